"""Outages of databases: the log of shards that cannot be opened, in one line for all with a growing pause, and the
pulse of databases, which notices silence also where no request asks for anything.

One idle shard of each database server confirms its ownership a few times a second. When a call to a server takes long,
the other idle shards of that server confirm theirs, so each shard is known by a call of its own. A call that takes
longer than `breaker.hang_ms` counts as silence.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sized
from typing import NamedTuple, Protocol

import structlog

from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import server_of

log = structlog.get_logger("foqs.host")

_COLLECT_MS = 200  # several shards of one database server fail at about the same time
_FIRST_PAUSE_MS = 2_000
_LONGEST_PAUSE_MS = 60_000
_FORGET_MS = 5_000
_MOST_NUMBERS = 20
_BEAT_MS = 100
_QUIET_MS = 400
"""A server is asked again after this time without a call."""
_LONG_MS = 200
"""A call that takes longer makes the other shards of the server ask, too."""


class Line(NamedTuple):
    """`reason` is the most frequent one; `reasons` counts the different ones. `again_ms`: the pause until the next."""

    shards: list[int]
    not_open: int
    reason: str
    reasons: int
    waiting: int
    again_ms: int


class _Failure(NamedTuple):
    reason: str
    held: bool
    at_ms: int


class OpenFailures:
    """The shards whose last attempt to open them failed. Times are milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}
        self._said: dict[int, bool] = {}  # the shards of the lines so far, and whether another host had them
        self._pause_ms = _FIRST_PAUSE_MS
        self._line_ms: int | None = None
        self.due_ms: int | None = None
        """The time of the next call of `line`."""

    def failed(self, shard: int, reason: str, now_ms: int, *, held: bool) -> None:
        """`held`: another host has the shard, so this one is a standby. That is said once."""
        self._failures[shard] = _Failure(reason, held, now_ms)
        if shard not in self._said or (self._said[shard] and not held):
            first = now_ms + _COLLECT_MS
            soon = first if self._line_ms is None else max(first, self._line_ms + _FIRST_PAUSE_MS)
            self.due_ms = soon if self.due_ms is None else min(self.due_ms, soon)
        elif self.due_ms is None and not held and self._line_ms is not None:
            self.due_ms = self._line_ms + self._pause_ms

    def opened(self, shard: int) -> None:
        self._failures.pop(shard, None)
        self._said.pop(shard, None)
        if not self._failures:
            self._pause_ms = _FIRST_PAUSE_MS
            self.due_ms = None

    def line(self, assigned: Container[int], now_ms: int) -> Line | None:
        """Return what to log now, None if all shards were opened or given to other hosts."""
        for shard, failure in list(self._failures.items()):
            if shard not in assigned and failure.at_ms + _FORGET_MS < now_ms:  # between two attempts it is not either
                self.opened(shard)
        self.due_ms = None
        if not self._failures:
            return None
        again_ms = self._pause_ms
        self._pause_ms = min(2 * again_ms, _LONGEST_PAUSE_MS)
        self._line_ms = now_ms
        if any(not failure.held for failure in self._failures.values()):
            self.due_ms = now_ms + again_ms
        self._said = {shard: failure.held for shard, failure in self._failures.items()}
        reasons = Counter(failure.reason for failure in self._failures.values())
        ((reason, _),) = reasons.most_common(1)
        waiting = sum(failure.held for failure in self._failures.values())
        shards = sorted(self._failures)[:_MOST_NUMBERS]
        return Line(shards, len(self._failures), reason, len(reasons), waiting, again_ms)


class Shards(Container[int], Sized, Protocol):
    """The numbers of the shards that the host has to serve."""


class OpenLog:
    """Write the lines of `OpenFailures` to the log. Runs on the event loop. `serves()` is true if the host takes
    requests."""

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


def pulsed_server(url: str) -> str:
    """Return the database server of a shard's URL; '' for a SQLite file, which no server could hold up."""
    return "" if url.startswith("sqlite") else server_of(url)


class Pulse:
    """The signs of life of database servers. `server_of(shard)` names the server of a shard; '' is none that could be
    silent. `opening_ms()` has the time for which each shard has been opening, and if its database took the connection.
    `changed()` is called when a shard becomes silent or answers again. `now_ms` is the host's clock."""

    def __init__(
        self,
        engine: Engine,
        server_of: Callable[[int], str],
        opening_ms: Callable[[], Mapping[int, tuple[int, bool]]],
        changed: Callable[[], None],
        now_ms: Callable[[], int],
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self._engine = engine
        self._server_of = server_of
        self._opening_ms = opening_ms
        self._changed = changed
        self._now_ms = now_ms
        self._later = later
        self._silent: frozenset[int] = frozenset()
        self._ended = False

    def begin(self) -> None:
        """Look at the shards from now on, until `end`."""
        if self._ended:
            return
        self._later(_BEAT_MS, self.begin)
        self.beat()

    def end(self) -> None:
        self._ended = True

    def silent_ms(self) -> dict[int, int]:
        """Return for how many ms a database has not answered, by shard, if it is longer than `breaker.hang_ms`; and of
        each shard that is lost. A shard with a connection may take long to open: it counts if its server is silent."""
        now_ms, hang_ms, found = self._now_ms(), self._engine.state.config.breaker.hang_ms, {}
        for number, shard in self._engine.state.shards.items():
            if shard.owner.lost:
                found[number] = max(0, now_ms - shard.owner.down_from_ms) if shard.owner.down_from_ms is not None else 0
            elif shard.queue.in_flight is not None and now_ms - shard.queue.in_flight.begun_ms > hang_ms:
                found[number] = now_ms - shard.queue.in_flight.begun_ms
        opening = {number: (ms, taken) for number, (ms, taken) in self._opening_ms().items() if ms > hang_ms}
        found |= {number: ms for number, (ms, taken) in opening.items() if not taken}
        if opening and found:
            servers = {self._server_of(number) for number in found} - {""}
            found |= {number: ms for number, (ms, _) in opening.items() if self._server_of(number) in servers}
        return found

    def beat(self) -> None:
        """Ask servers for a sign of life, and report a change."""
        now_ms = self._now_ms()
        servers: dict[str, list[Shard]] = defaultdict(list)
        for number, shard in self._engine.state.shards.items():
            if shard.owner.state is ShardState.SERVING and not shard.owner.lost and (server := self._server_of(number)):
                servers[server].append(shard)
        for shards in servers.values():
            for shard in _to_ask(shards, now_ms):
                shard.owner.want_confirmation()
                self._engine.state.touch(shard)
        silent = frozenset(self.silent_ms())
        if silent != self._silent:
            self._silent = silent
            self._changed()


def _to_ask(shards: Iterable[Shard], now_ms: int) -> list[Shard]:
    """Return the shards of one server that ask it for a sign of life now."""
    begun = [shard.queue.in_flight.begun_ms for shard in shards if shard.queue.in_flight is not None]
    idle = [shard for shard in shards if shard.queue.in_flight is None]
    if begun:
        oldest_ms = min(begun)
        long = now_ms - oldest_ms > _LONG_MS
        return [shard for shard in idle if shard.owner.confirmed_ms < oldest_ms] if long else []
    if any(0 <= now_ms - shard.owner.confirmed_ms < _QUIET_MS for shard in idle):
        return []
    return [min(idle, key=lambda shard: shard.owner.confirmed_ms)]
