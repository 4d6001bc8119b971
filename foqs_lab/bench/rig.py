"""The measured system: a private database server, shards on it, and a host in a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
