"""Read the clocks of all database servers that a host knows of, each in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from threading import Thread

from foqs.server.database_clock import Reading
from foqs.store.link import place_of, read_clock

Read = Callable[[str], tuple[bytes, int, int] | None]
"""`foqs.store.link.read_clock` with its timeouts."""


class ClockSurvey:
    """`urls()` are those of all shards that a host may serve: of its configuration, or of its cluster.

    Shards with one address are read once. Daemon threads read: a server that does not answer keeps no process alive.
    """

    def __init__(
        self,
        urls: Callable[[], Iterable[str]],
        loop: asyncio.AbstractEventLoop,
        connect_timeout_s: float,
        io_timeout_s: float,
        read: Read | None = None,
    ) -> None:
        self._urls = urls
        self._loop = loop
        self._read = read or partial(read_clock, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s)

    def ask(self, report: Callable[[str, Reading | None], None]) -> Collection[str]:
        """Begin to read, and return the servers' names; `report` is called on the event loop, once for each."""
        servers: dict[str, str] = {}
        for url in self._urls():
            place = place_of(url)
            if place is not None:
                server, database = place
                servers.setdefault(server + database if server == "sqlite://" else server, url)
        for name, url in servers.items():
            Thread(target=self._run, args=(name, url, report), name=f"clock-{name}", daemon=True).start()
        return servers.keys()

    def _run(self, name: str, url: str, report: Callable[[str, Reading | None], None]) -> None:
        found = self._read(url)
        reading = None if found is None else Reading(*found)
        with suppress(RuntimeError):  # the loop is closed: the host has ended
            self._loop.call_soon_threadsafe(report, name, reading)
