"""The measured system: a private database server, shards on it, and a host in a process of its own.

The raw bound is the speed of the database server with the rows of a cycle. A body and an index
row are inserted, then deleted, with plain multi-row SQL on four connections, 500 rows a statement, one flush a
transaction. No queue on this server, in any language, can be faster than this by much.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import create_engine, make_url

from foqs_lab.servers import ServerSettings, start_database_server

_STOP_S = 30.0


@dataclass(slots=True)
class Rig:
    """`urls` are the shards'; `server_pid` is the database server's, 0 with SQLite."""

    database: str
    version: str
    urls: list[str]
    config: Path
    folder: Path
    server_pid: int = 0
    process: subprocess.Popen[str] | None = None
    port: int = 0

    def start_host(self) -> None:
        """A fresh host with nothing in memory. Raises RuntimeError when it does not come up."""
        level = os.environ.get("FOQS_LOG__LEVEL", "warning")
        env = {**os.environ, "FOQS_LOG__LEVEL": level, "FOQS_LOG__FORMAT": "console"}
        command = [sys.executable, "-m", "foqs", "serve", "--config", str(self.config), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("foqs listening on "):
            self.stop_host()
            raise RuntimeError("the host did not start")
        self.port = int(line.rsplit(":", 1)[1])

    def stop_host(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart_host(self) -> None:
        self.stop_host()
        self.start_host()

    def servers(self) -> dict[str, int]:
        """The processes that serve a request, by name. SQLite is part of the host."""
        assert self.process is not None
        database = {"database": self.server_pid} if self.server_pid else {}
        return {"host": self.process.pid, **database}

    def peak_rss_bytes(self) -> int:
        """The most resident memory the host has had."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the kernel does not report VmHWM")


@contextmanager
def rig(database: Literal["mariadb", "mysql", "sqlite"], shards: int, driver: str = "pymysql") -> Iterator[Rig]:
    """`database` is sqlite, mariadb or mysql; durable settings, flush at each commit. Raises ServerUnavailable."""
    folder = Path(tempfile.mkdtemp(prefix="foqs-bench-"))
    made: Rig | None = None
    try:
        if database == "sqlite":
            urls = [f"sqlite:///{folder}/shard-{n}.db" for n in range(1, shards + 1)]
            made = _made(database, "embedded", urls, folder)
            yield made
            return
        settings = ServerSettings(buffer_pool_bytes=1 << 30, redo_log_bytes=1 << 30)
        with start_database_server(database, settings) as server:
            urls = [server.url(server.create_database(f"shard_{n}"), driver=driver) for n in range(1, shards + 1)]
            made = _made(database, server.version, urls, folder)
            made.server_pid = server.pid
            yield made
            made.stop_host()
    finally:
        if made is not None:
            made.stop_host()
        shutil.rmtree(folder, ignore_errors=True)


def _made(database: str, version: str, urls: list[str], folder: Path) -> Rig:
    config = folder / "foqs.toml"
    lines = ['[server]\nid = "bench"\nport = 0\n']
    lines += [f'[[shards]]\nid = {n}\nurl = "{url}"\n' for n, url in enumerate(urls, 1)]
    config.write_text("\n".join(lines))
    subprocess.run(
        [sys.executable, "-m", "foqs", "shards", "create", "--config", str(config)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return Rig(database, version, urls, config, folder)


CONNECTIONS = 4
ROWS = 500


def raw_bound(urls: list[str], total: int, payload_bytes: int) -> float:
    """Cycles a second (a body and an index row inserted and deleted) over `total` rows."""
    context = get_context("spawn")
    ready = context.Barrier(CONNECTIONS)
    with ProcessPoolExecutor(CONNECTIONS, context, initializer=_share, initargs=(ready,)) as pool:
        parts = [
            pool.submit(_part, urls[n % len(urls)], n, max(1, total // CONNECTIONS // ROWS), payload_bytes)
            for n in range(CONNECTIONS)
        ]
        took = [part.result() for part in parts]
    rows = max(1, total // CONNECTIONS // ROWS) * ROWS * CONNECTIONS
    return rows / (max(ended for _, ended in took) - min(began for began, _ in took))


_all_ready: Barrier


def _share(ready: Barrier) -> None:
    global _all_ready  # noqa: PLW0603 - a barrier reaches a pool's process only through its initializer
    _all_ready = ready


def _part(url: str, number: int, rounds: int, payload_bytes: int) -> tuple[float, float]:
    run = _sqlite_runner(url) if url.startswith("sqlite") else _mysql_runner(url)
    blob = "BLOB" if url.startswith("sqlite") else "LONGBLOB"
    tail = "" if url.startswith("sqlite") else " ENGINE=InnoDB"
    item, ready = f"raw_item_{number}", f"raw_ready_{number}"
    run([f"DROP TABLE IF EXISTS {item}", f"DROP TABLE IF EXISTS {ready}"])
    run([f"CREATE TABLE {item} (id BIGINT PRIMARY KEY, lane INT, priority INT, at BIGINT, payload {blob}){tail}"])
    key = "PRIMARY KEY (lane, priority, at, id)"
    run([f"CREATE TABLE {ready} (lane INT, priority INT, at BIGINT, id BIGINT, {key}){tail}"])
    rng = random.Random(number)
    work = [_statements(rng, item, ready, at * ROWS, payload_bytes) for at in range(rounds)]
    _all_ready.wait()  # the statements' text is built before the clock runs
    began = time.monotonic()
    for insert, delete in work:
        run(insert)
        run(delete)
    ended = time.monotonic()
    run([f"DROP TABLE {item}", f"DROP TABLE {ready}"])
    return began, ended


def _statements(
    rng: random.Random, item: str, ready: str, first: int, payload_bytes: int
) -> tuple[list[str], list[str]]:
    ids = range(first, first + ROWS)
    at = 1_700_000_000_000
    keys = [(1, rng.randrange(1000), at, i) for i in ids]
    bodies = ",".join(f"({i},1,{p},{at},x'{rng.randbytes(payload_bytes).hex()}')" for _, p, _, i in keys)
    rows = ",".join(str(row).replace(" ", "") for row in keys)
    inserts = [f"INSERT INTO {item} VALUES {bodies}", f"INSERT INTO {ready} VALUES {rows}"]
    names = ",".join(map(str, ids))
    deletes = [
        f"DELETE FROM {ready} WHERE (lane,priority,at,id) IN ({rows})",
        f"DELETE FROM {item} WHERE id IN ({names})",
    ]
    return inserts, deletes


def _mysql_runner(url: str) -> Any:
    connection = create_engine(make_url(url)).raw_connection()
    cursor = connection.cursor()

    def run(statements: list[str]) -> None:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()

    return run


def _sqlite_runner(url: str) -> Any:
    connection = sqlite3.connect(make_url(url).database or "", timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")

    def run(statements: list[str]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(
                statement.replace(") IN ((", ") IN (VALUES (", 1) if "DELETE" in statement else statement
            )
        connection.commit()

    return run


def commit_ms(url: str, rounds: int) -> list[float]:
    """Milliseconds of plain single-row commits on one connection, each flushed: the unit for latencies."""
    run = _sqlite_runner(url) if url.startswith("sqlite") else _mysql_runner(url)
    run(["DROP TABLE IF EXISTS raw_commit"])
    run(["CREATE TABLE raw_commit (id BIGINT PRIMARY KEY, at BIGINT)"])
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        run([f"INSERT INTO raw_commit VALUES ({number},1)"])
        took.append((time.perf_counter() - began) * 1000)
    run(["DROP TABLE raw_commit"])
    return took
