"""Keep the host's clock in step with its databases' clocks, which decide about stored times.

Delays, TTLs and lease ends are stored as times and outlive the host that wrote them. So every owner of a shard must
judge them by the same clock, and only the database is common to all owners. Otherwise a host with a wrong machine clock
would remove items before their TTL is over, or hand out delayed items early.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import shard_open
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard

log = structlog.get_logger("foqs.host")

_STEADY_MS = 10_000
"""A database's clock is followed after its difference stood for this long: leases that are held end with the clock."""
_LOGGED_MS = 1_000
"""A difference is logged when it has changed by more than this since it was logged last."""


class HostClock(Protocol):
    """`foqs.clock.Clock`, or the simulation's clock."""

    def now_ms(self) -> int: ...

    def machine_ahead_ms(self) -> int: ...

    def set(self, by_ms: int) -> None: ...


class DatabaseClock:
    """Sets the host's clock and `Shard.late_ms` from readings of the databases' clocks.

    Where databases disagree, the host's clock follows the median (the earlier of two). On a shard whose clock is behind
    the host's, items end late rather than early (`Shard.late_ms`).
    """

    def __init__(self, engine: Engine, clock: HostClock) -> None:
        self._engine = engine
        self._clock = clock
        self._wanted: tuple[int, int] | None = None  # a change of the clock in ms, and since when it is wanted
        self._seen_ms = clock.machine_ahead_ms()  # when readings were asked for because of it
        self._logged_ms = 0
        self._logged_shards: dict[int, int] = {}

    def opened(self, db_ahead_ms: int) -> int:
        """Return by how many ms the host's clock was set for a shard that was opened but is not served yet.

        The database's clock is `db_ahead_ms` ahead of the host's. The clock is set at once only while no shard is
        served, because then no lease depends on it.
        """
        if self._engine.serving or abs(db_ahead_ms) <= self._jump_ms:
            return 0
        self._set(db_ahead_ms)
        return db_ahead_ms

    def served(self, shard: Shard, db_ahead_ms: int) -> None:
        """Use the reading of a shard that is served from now on."""
        self._read(shard, db_ahead_ms)

    def read(self, shard: Shard, shard_batch: ShardBatch, db_now_ms: int) -> None:
        """Use the reading of a batch that began at `shard_batch.begun_ms`.

        The difference closest to 0 counts, so that a slow batch does not set the clock.
        """
        now_ms = self._clock.now_ms()
        self._read(shard, max(db_now_ms - now_ms, min(db_now_ms - shard_batch.begun_ms, 0)))

    def look(self) -> None:
        """Ask for new readings after the machine's clock was set."""
        machine_ms = self._clock.machine_ahead_ms()
        if abs(machine_ms - self._seen_ms) > self._jump_ms:
            self._seen_ms = machine_ms
            for shard in self._engine.serving:
                shard.clock_wanted = True
                self._engine.touch(shard)

    @property
    def _jump_ms(self) -> int:
        return self._engine.config.host.clock_jump_ms

    def _read(self, shard: Shard, ahead_ms: int) -> None:
        if shard not in self._engine.serving:
            return
        now_ms = self._clock.now_ms()
        shard.clock_read_ms, shard.clock_ahead_ms = now_ms, ahead_ms
        by_ms = self._change(now_ms)
        if by_ms:
            self._set(by_ms)
        shard.late_ms = max(0, -shard.clock_ahead_ms - self._jump_ms)
        self._log_machine()
        self._log_shard(shard)

    def _change(self, now_ms: int) -> int:
        """Return the correction in ms that the clock needs now."""
        aheads = sorted(shard.clock_ahead_ms for shard in self._engine.serving)
        median_ms = aheads[(len(aheads) - 1) // 2]
        if abs(median_ms) <= self._jump_ms:
            self._wanted = None
            return 0
        if abs(self._clock.machine_ahead_ms() - median_ms) <= self._jump_ms:
            return median_ms  # the machine's clock confirms it
        if self._wanted is None or abs(median_ms - self._wanted[0]) > self._jump_ms:
            self._wanted = (median_ms, now_ms)
        return median_ms if now_ms - self._wanted[1] >= _STEADY_MS else 0

    def _set(self, by_ms: int) -> None:
        self._wanted = None
        self._clock.set(by_ms)
        shard_open.clock_set(self._engine, by_ms)
        self._seen_ms = self._logged_ms = self._clock.machine_ahead_ms()
        self._engine.counters.clock_jumps += 1
        log.warning("clock.set", by_ms=by_ms, machine_ahead_ms=self._logged_ms)

    def _log_machine(self) -> None:
        machine_ms = self._clock.machine_ahead_ms()
        if abs(machine_ms - self._logged_ms) > _LOGGED_MS:
            self._logged_ms = machine_ms
            self._engine.counters.clock_jumps += 1
            log.warning("clock.differs", machine_ahead_ms=machine_ms)

    def _log_shard(self, shard: Shard) -> None:
        ahead_ms = shard.clock_ahead_ms
        if abs(ahead_ms - self._logged_shards.get(shard.number, 0)) > _LOGGED_MS:
            self._logged_shards[shard.number] = ahead_ms
            log.warning("shard.clock_differs", shard=shard.number, database_ahead_ms=ahead_ms)
