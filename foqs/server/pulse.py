"""Notice a database that has stopped to answer, also where no request asks it for anything.

One idle shard of each database server confirms its ownership a few times a second. When a call to a server takes long,
the other idle shards of that server confirm theirs, so each shard is known by a call of its own. A call that takes
longer than `breaker.hang_ms` is what counts as silence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import server_of

_BEAT_MS = 100
_QUIET_MS = 400
"""A server is asked again after this time without a call."""
_LONG_MS = 200
"""A call that takes longer makes the other shards of the server ask, too."""


def pulsed_server(url: str) -> str:
    """Return the database server of a shard's URL; '' for a SQLite file, which no server could hold up."""
    return "" if url.startswith("sqlite") else server_of(url)


class Pulse:
    """`server_of(shard)` names the database server of a shard; '' is none that could be silent. `opening_ms()` has for
    how long each shard has been opening, and if its database took the connection. `changed()` is called when a shard
    becomes silent or answers again. `now_ms` is the host's clock."""

    def __init__(
        self,
        engine: Engine,
        server_of: Callable[[int], str],
        opening_ms: Callable[[], Mapping[int, tuple[int, bool]]],
        changed: Callable[[], None],
        now_ms: Callable[[], int],
        later: Callable[[int, Callable[[], None]], None],
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
        now_ms, hang_ms, found = self._now_ms(), self._engine.config.breaker.hang_ms, {}
        for number, shard in self._engine.shards.items():
            if shard.lost:
                found[number] = max(0, now_ms - shard.down_from_ms) if shard.down_from_ms is not None else 0
            elif shard.in_flight is not None and now_ms - shard.in_flight.begun_ms > hang_ms:
                found[number] = now_ms - shard.in_flight.begun_ms
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
        for number, shard in self._engine.shards.items():
            if shard.state is ShardState.SERVING and not shard.lost and (server := self._server_of(number)):
                servers[server].append(shard)
        for shards in servers.values():
            for shard in _to_ask(shards, now_ms):
                shard.confirm_wanted = True
                self._engine.touch(shard)
        silent = frozenset(self.silent_ms())
        if silent != self._silent:
            self._silent = silent
            self._changed()


def _to_ask(shards: Iterable[Shard], now_ms: int) -> list[Shard]:
    """Return the shards of one server that ask it for a sign of life now."""
    begun = [shard.in_flight.begun_ms for shard in shards if shard.in_flight is not None]
    idle = [shard for shard in shards if shard.in_flight is None]
    if begun:
        oldest_ms = min(begun)
        return [shard for shard in idle if shard.confirmed_ms < oldest_ms] if now_ms - oldest_ms > _LONG_MS else []
    if any(0 <= now_ms - shard.confirmed_ms < _QUIET_MS for shard in idle):
        return []
    return [min(idle, key=lambda shard: shard.confirmed_ms)]
