"""This host's ownership of one shard: its state and epoch, its last confirmation, and the health of its database."""

from __future__ import annotations

from collections.abc import Callable

from foqs.buffers.checkpoint import NEVER_MS
from foqs.config.schema import HostSection
from foqs.opened import Opened
from foqs.shardmgr.lifecycle import Breaker, BreakerSettings, ShardState, moved

RETRY_MS = 20
"""Pause after a passing failure that the breaker does not count as enough to open."""
FULL_MS = 1_000
"""A full database is asked for room again after this time. Until then it gets no new items, and at worst removals
alone."""
_FORGOTTEN_MS = 60_000
"""A database that nothing needed room in for this time counts as full no longer, when it commits anything."""


class ShardOwner:
    def __init__(self, config: HostSection, breaker: BreakerSettings) -> None:
        self.config = config
        self.breaker = Breaker(breaker)
        self.hang_ms = breaker.hang_ms
        self.state = ShardState.ASSIGNED
        self.epoch = 0
        self.takes_new = True  # items; False: the shard is served until it is empty
        self.forget()

    def forget(self) -> None:
        """Begin with nothing known."""
        self.confirm_wanted = False
        self.confirmed_ms = 0
        self.confirming: list[Callable[[], None]] = []  # called after the next batch, or when the shard is closed
        self.opened_ms = 0
        self.clock_wanted = False  # a reading of the database's clock, also with a transaction
        self.clock_read_ms = 0
        self.clock_ahead_ms = 0  # of the database, before the host's, when it was read
        self.late_ms = 0  # items end this much later than by the host's clock, as the database's clock is behind
        self.server = b""  # as in `Opened`
        self.held = False  # nothing is delivered, scanned or removed, as it is not known what time it is
        # When the shard was taken from an owner that may still run; NEVER_MS: it is `held`, and was not.
        self.grace_from_ms: int | None = None
        self.lost = False
        self.disk_full = False  # until a transaction with new items is committed
        self.removals_only = False  # not even changes fit: no transaction but removals was committed
        self.full_until_ms = 0
        self.restored_ms = 0  # as in `Opened`
        self.read_only = False  # lost, because its database takes no writes
        self.denied = False  # lost, because its server answers and has no such database, or denies it
        self.down_from_ms: int | None = None  # since when a lost database has not answered
        self.answered_ms = 0  # when requests that wait for it were answered last
        self.pause_from_ms: int | None = None  # after a passing failure

    def configure(self, config: HostSection) -> None:
        self.config = config

    def configure_breaker(self, breaker: BreakerSettings) -> None:
        self.breaker.settings, self.hang_ms = breaker, breaker.hang_ms

    # ------------------------------------------------------------------------------------- states

    def to(self, state: ShardState) -> None:
        self.state = moved(self.state, state)

    def begin(self, opened: Opened, begun_ms: int, now_ms: int) -> None:
        """Serve the shard, which the store owns since `begun_ms` or later."""
        self.epoch = opened.epoch
        self.server = opened.server
        self.restored_ms = opened.restored_ms
        self.opened_ms = now_ms
        # Counting a long backlog takes time, in which another host may have taken the shard.
        self.confirmed_ms = begun_ms
        self.grace_from_ms = now_ms if opened.replaced else None
        self.to(ShardState.SERVING)

    def take_new(self, takes: bool) -> None:
        """Take new items, or serve the shard until it is empty."""
        self.takes_new = takes

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`."""
        self.confirmed_ms += by_ms
        self.opened_ms += by_ms
        self.clock_ahead_ms -= by_ms
        self.clock_read_ms += by_ms
        if self.grace_from_ms is not None:
            self.grace_from_ms += by_ms
        self.full_until_ms += by_ms
        if self.down_from_ms is not None:
            self.down_from_ms += by_ms

    # ------------------------------------------------------------------------------------- confirmation

    def confirmed(self, now_ms: int) -> bool:
        """True if ownership was confirmed within `confirm_ms`. (Confirmed in the future: the clock was set back.)"""
        return 0 <= now_ms - self.confirmed_ms <= self.config.confirm_ms

    def want_confirmation(self, then: Callable[[], None] | None = None) -> None:
        """Have the next batch ask the database for the owner, and call `then` after it."""
        self.confirm_wanted = True
        if then is not None:
            self.confirming.append(then)

    def want_clock(self) -> None:
        """Have the next batch read the database's clock."""
        self.clock_wanted = True

    def questions_sent(self) -> None:
        """Note that a batch asks for the owner and the clock."""
        self.confirm_wanted = self.clock_wanted = False

    def confirm(self, begun_ms: int) -> None:
        """Note that a batch that began at `begun_ms` confirmed the ownership."""
        self.confirmed_ms = begun_ms

    def take_confirming(self) -> list[Callable[[], None]]:
        """Take out the callbacks that wait for the next batch."""
        confirming, self.confirming = self.confirming, []
        return confirming

    # ------------------------------------------------------------------------------------- grace and clocks

    def in_takeover_grace(self, now_ms: int) -> bool:
        """Return True if the replaced owner may still lease ready items, because its last confirmation may be valid."""
        from_ms = self.grace_from_ms
        return from_ms is not None and 0 <= now_ms - from_ms <= self.config.confirm_ms

    def end_grace(self) -> None:
        self.grace_from_ms = None

    def hold(self) -> None:
        """Deliver and scan nothing until `unhold`. Requests for known items continue: no other owner is in doubt."""
        self.held = True
        if self.grace_from_ms is None:
            self.grace_from_ms = NEVER_MS

    def unhold(self) -> None:
        self.held = False

    def clock_read(self, ahead_ms: int, now_ms: int) -> None:
        """Note that the database's clock is ahead of the host's."""
        self.clock_read_ms, self.clock_ahead_ms = now_ms, ahead_ms

    def wait_for_clock(self, jump_ms: int) -> None:
        """End items later if the database's clock is behind by more than `jump_ms`."""
        self.late_ms = max(0, -self.clock_ahead_ms - jump_ms)

    # ------------------------------------------------------------------------------------- the database

    def lose(self, from_ms: int, *, read_only: bool, denied: bool = False) -> None:
        """Note that the connection ended, in a batch that began at `from_ms`."""
        self.lost, self.read_only, self.denied = True, read_only, denied
        if self.down_from_ms is None:
            self.down_from_ms = from_ms

    def reconnected(self) -> None:
        self.lost = self.read_only = self.denied = False
        self.pause_from_ms = self.down_from_ms = None

    def pause(self, now_ms: int) -> None:
        """Ask the database again after `RETRY_MS`."""
        self.pause_from_ms = now_ms

    # ------------------------------------------------------------------------------------- room in the database

    def tried_room(self, now_ms: int, *, fits: bool, inserts: bool, removals: bool) -> None:
        """Note that a transaction with new items (`inserts`), with removals alone, or with other changes did not fit
        the database, or that a full one took it."""
        if not fits:
            self.disk_full, self.removals_only = True, not inserts
            self.full_until_ms = now_ms + FULL_MS
        elif inserts or now_ms - self.full_until_ms > _FORGOTTEN_MS:
            self.disk_full = self.removals_only = False
        elif not removals:
            self.removals_only = False

    def full(self, now_ms: int) -> bool:
        """Return True if the database gets no new items now, because it has no room."""
        return self.disk_full and now_ms < self.full_until_ms

    def takes_removals_only(self, now_ms: int) -> bool:
        return self.removals_only and now_ms < self.full_until_ms

    def answered(self, now_ms: int) -> None:
        """Note that the requests were answered that wait for the database."""
        self.answered_ms = now_ms

    def retry_at_ms(self, now_ms: int) -> int:
        """Return when the database may be asked again after a passing failure; 0: at once."""
        from_ms = self.pause_from_ms
        if from_ms is None or not 0 <= now_ms - from_ms < RETRY_MS:
            return 0
        return from_ms + RETRY_MS
