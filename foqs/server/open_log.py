"""Write the log lines that `foqs.server.open_failures` decides on, about shards that cannot be opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sized
from typing import Protocol

import structlog

from foqs.server.open_failures import OpenFailures

log = structlog.get_logger("foqs.host")


class Shards(Container[int], Sized, Protocol):
    """The numbers of the shards that the host is to serve."""


class OpenLog:
    """Runs on the event loop. `serves()` says whether the host takes requests yet."""

    def __init__(self, shards: Shards, loop: asyncio.AbstractEventLoop, serves: Callable[[], bool]) -> None:
        self._shards = shards
        self._loop = loop
        self._serves = serves
        self._unopened = OpenFailures()
        self._timer: asyncio.TimerHandle | None = None

    def failed(self, shard: int, reason: str, *, held: bool) -> None:
        """`held`: another host has the shard."""
        self._unopened.failed(shard, reason, self._now_ms(), held=held)
        self._arm()

    def opened(self, shard: int) -> None:
        self._unopened.opened(shard)
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        if self._unopened.due_ms is not None:
            self._timer = self._loop.call_at(self._unopened.due_ms / 1000, self._write)

    def _write(self) -> None:
        line = self._unopened.line(self._shards, self._now_ms())
        if line is not None:
            log.warning(
                "shard.not_opened",
                shards=line.shards,
                not_open=line.not_open,
                of=len(self._shards),
                reason=line.reason,
                reasons=line.reasons,
                waiting=line.waiting,
                again_ms=line.again_ms,
                serving=self._serves(),
            )
        self._arm()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
