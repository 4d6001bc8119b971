"""Hosts as processes of their own, over shards on private database servers."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs.store.maintenance import create_schema
from foqs_lab.servers import SqlEndpoint
from foqs_lab.servers.private import Restartable
from foqs_lab.servers.process import ServerProcess, free_port, wait_until

_START_MS = 60_000
_STOP_MS = 90_000  # a host takes twice its grace at most, and some seconds to close
_LISTENING = "foqs listening on "
_TIMES = {"item": "enqueued_at", "ready": "deliver_after", "timer": "due", "expiry": "at_ms"}
"""The tables that hold items, and a time in each."""
_FAULTS = re.compile(
    r"store\.mismatch|shard\.crashed|(handler|loop|thread|process|facts)\.failed|Traceback|Exception in"
)
"""What a host logs when something is wrong with itself, whatever its database does."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's database. `server` is where it lives; `way`: the port of a relay through which hosts connect."""

    number: int
    server: SqlEndpoint
    database: str
    way: int | None = None

    @property
    def url(self) -> str:
        url = self.server.url(self.database)
        return url if self.way is None else url.replace(f":{self.server.port}/", f":{self.way}/")

    def rows(self) -> int:
        """Rows in all tables that hold items."""
        counts = " + ".join(f"(SELECT COUNT(*) FROM `{table}`)" for table in _TIMES)
        return int(self.server.query(f"SELECT {counts}", database=self.database)[0][0])

    def left(self) -> list[str]:
        """The first of those rows, in words: which item, and the time of that row in ms."""
        selects = (f"(SELECT '{table}', id, {time} FROM `{table}` LIMIT 5)" for table, time in _TIMES.items())
        rows = self.server.query(" UNION ALL ".join(selects), database=self.database)
        return [f"shard {self.number} still has {item} in {table}, at {at_ms}" for table, item, at_ms in rows]


def make_shards(servers: Sequence[SqlEndpoint], on_each: int, name: str) -> list[Shard]:
    """`on_each` empty shards on each of `servers`, in databases called `name`_1, `name`_2, ..."""
    places = [server for server in servers for _ in range(on_each)]
    shards = []
    for number, server in enumerate(places, 1):
        shards.append(Shard(number, server, server.create_database(f"{name}_{number}")))
        create_schema(shards[-1].url, number)
    return shards


class HostProcess(Restartable):
    """`foqs serve` as a process: killed, paused, started again on the same port, its log in a file.

    `settings` are keys of foqs.toml by section, such as `{"host": {"confirm_ms": 500}}`. With `workers` it is so many
    hosts behind that port.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        folder: Path,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        port: int | None = None,
        workers: int | None = None,
    ) -> None:
        self.name = name
        self.ids = [name] if workers is None else [f"{name}-{n}" for n in range(1, workers + 1)]
        self._options = [] if workers is None else ["--workers", str(workers)]
        self.port = port or free_port(above=workers or 0)
        self.admin_port = free_port()
        self._config = folder / f"{name}.toml"
        server = {"id": name, **(settings or {}).get("server", {})}
        # Workers pick their admin ports, as on port 0: the tests do not use them.
        admin = {"port": self.admin_port if workers is None else 0, **(settings or {}).get("admin", {})}
        self._config.write_text(toml({**(settings or {}), "server": server, "admin": admin}, shards))
        self.log = folder / f"{name}.log"
        self.log.touch()

    def launch(self, *, take_over: bool = False) -> None:
        """Starts it and does not wait."""
        self._begun = self.log.stat().st_size
        argv = [sys.executable, "-m", "foqs", "serve", "--config", str(self._config), "--port", str(self.port)]
        argv += [*self._options, *(["--take-over"] if take_over else [])]
        self._process = ServerProcess(argv, log=self.log)

    def start(self, *, take_over: bool = False) -> None:
        """Starts it; returns when it serves."""
        self.launch(take_over=take_over)
        self.wait_listening()

    def wait_listening(self) -> None:
        self.wait_for(_LISTENING)

    def wait_for(self, text: str, *, timeout_ms: int = _START_MS, times: int = 1) -> None:
        """Until the log of this start holds `text` so often. Raises TimeoutError, or RuntimeError when it ended."""
        process = self._started()
        found = wait_until(lambda: not process.alive or self.said(text) >= times, timeout_ms=timeout_ms)
        if self.said(text) >= times:
            return
        error = TimeoutError(f"{self.name} did not log {text!r} within {timeout_ms} ms") if not found else RuntimeError(
            f"{self.name} ended"
        )  # fmt: skip
        error.add_note(process.log_tail())
        raise error

    def said(self, text: str) -> int:
        """How often, since it was last started."""
        with self.log.open("rb") as log:
            log.seek(self._begun)
            return log.read().count(text.encode())

    def signal(self, number: signal.Signals) -> None:
        """Does not wait, and does nothing to one that is gone."""
        self._started().signal(number)

    def stop(self) -> int | None:
        """SIGTERM, then waits; its exit code. Does nothing to one that is gone; None: it was not started."""
        return self._process.stop(grace_ms=_STOP_MS * len(self.ids)) if self._process is not None else None

    def faults(self) -> list[str]:
        """Lines of the whole log that no host should write, whatever its database does."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if _FAULTS.search(line)]

    def counted(self, counter: str) -> int:
        """What a host that was stopped says of one of its counters. Raises ValueError when it did not."""
        found = re.findall(rf"host\.stopped.*\b{counter}=(\d+)", self.log.read_text(errors="replace"))
        if not found:
            raise ValueError(f"{self.name} did not log {counter}")
        return int(found[-1])

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._process is not None:
            error.add_note(f"the log of {self.name} ends with:\n{self._process.log_tail(40)}")
        self.stop()


def toml(settings: Mapping[str, Mapping[str, object]], shards: Sequence[Shard] = ()) -> str:
    """A foqs.toml of keys by section."""
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    for shard in shards:
        lines += ["[[shards]]", f"id = {shard.number}", f"url = {json.dumps(shard.url)}"]
    return "\n".join(lines) + "\n"
