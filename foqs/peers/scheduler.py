"""Fires schedules: each time as an enqueue whose deduplication key is the name and the time.

The coordinator of a schedule is the owner of the shard that has the hash slot of the name. It keeps a row there, among
the deduplication keys: the last time that is decided, and its item. So the row moves with the slot. A new coordinator
continues from the row; what its predecessor fired behind it, it fires again, and the keys of the items are known. The
row of a paused schedule has the time negated, and that of a removed one expires: the time from then on is no outage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from foqs.bounds import DAY_MS
from foqs.engine.engine import Engine
from foqs.errors import FoqsError, Unavailable
from foqs.ids import FOREVER_MS, digest_of, hash_slot_of
from foqs.peers.forwarded import Timers
from foqs.policies.schedules import ScheduleEntry, due
from foqs.rows import DedupRow
from foqs.shardmgr.lifecycle import ShardState

_BEAT_MS = 500
_RETRY_MS = 1_000
_FAILED_MS = 60_000
_READ_MS = 5_000
_NEVER_MS = 1 << 62
Name = tuple[str, str]
"""(namespace, name)."""
Fired = Callable[[int | FoqsError], None]
Lives = Callable[[bool | FoqsError], None]
Refused = Callable[[str, str, int, FoqsError], None]
"""(namespace, name, time in ms, error)."""


def row_digest(ns: str, name: str) -> bytes:
    """Return the digest of the row of a schedule. No dedup_key has a control character."""
    return digest_of(ns, f"\0schedule\0{name}")


class Owner(NamedTuple):
    """The shard of a hash slot, the epoch of its owner, and the stamp of the shard's slots: the slot may leave and
    return, with another row."""

    shard: int
    epoch: int
    stamp: int


@dataclass(slots=True, eq=False)
class Schedule:
    """A schedule that is coordinated here. `last_ms`: all times up to it are decided; 0 before its row is read.
    `last_id`: the item of the last time that fired, `fired_ms`; 0 if it is not known, as the row has the last time that
    was decided. `error`: why the last time is not stored. `missed`: times that did not fire since this host coordinates
    the schedule. `next_ms`: when there is something to do. `busy`: an answer is awaited."""

    name: Name
    owner: Owner
    entry: ScheduleEntry
    last_ms: int = 0
    last_id: int = 0
    fired_ms: int = 0
    error: str = ""
    missed: int = 0
    next_ms: int = 0
    busy: bool = False


class Scheduler:
    """`slots` returns the shard of each hash slot, and has the slots shared out. `enqueue` stores the item of a time;
    `lives` says whether an item has not ended."""

    def __init__(
        self,
        engine: Engine,
        timers: Timers,
        slots: Callable[[], Sequence[int]],
        enqueue: Callable[[str, str, ScheduleEntry, int, Fired], None],
        lives: Callable[[int, Lives], None],
    ) -> None:
        self._engine = engine
        self._state = engine.state
        self._now_ms = timers.now_ms
        self._later = timers.later
        self._soon = timers.soon
        self._slots = slots
        self._enqueue = enqueue
        self._lives = lives
        self._refused: Refused = lambda *_: None
        self.here: dict[Name, Schedule] = {}

    def begin(self, refused: Refused) -> None:
        """Begin to fire. `refused` is called for each time that a host refuses for good."""
        self._refused = refused
        self._later(_BEAT_MS, self.beat)

    @property
    def next_ms(self) -> int:
        """When the next schedule of this host has work; now if one is at work."""
        return min((self._now_ms() if one.busy else one.next_ms for one in self.here.values()), default=_NEVER_MS)

    def beat(self) -> None:
        now_ms, known, self.here = self._now_ms(), self.here, {}
        schedules = self._state.policies.schedules
        slots = self._slots() if schedules else ()
        for ns, entries in schedules.items() if slots else ():
            for name, entry in entries.items():
                try:
                    self._look((ns, name), entry, known.get((ns, name)), slots, now_ms)
                except Exception as error:  # noqa: BLE001 - one schedule stops no other
                    self._refused(ns, name, now_ms, Unavailable(f"internal error: {error!r}"))
                    if (failed := self.here.get((ns, name))) is not None:
                        failed.busy, failed.next_ms = False, now_ms + _FAILED_MS
        for (ns, name), one in known.items():
            if name not in schedules.get(ns, {}):
                self._mark(one, expires_ms=now_ms)
        wait_ms = min((one.next_ms for one in self.here.values() if not one.busy), default=_NEVER_MS) - self._now_ms()
        self._later(max(1, min(wait_ms, _BEAT_MS)), self.beat)

    def _look(
        self, name: Name, entry: ScheduleEntry, known: Schedule | None, slots: Sequence[int], now_ms: int
    ) -> None:
        slot = hash_slot_of(row_digest(*name))
        shard = self._state.shards.get(slots[slot])
        if shard is None or shard.owner.state is not ShardState.SERVING or not shard.queue.keys.takes_slot(slot):
            return
        owner = Owner(shard.number, shard.owner.epoch, shard.queue.keys.held.stamp)
        if known is None or known.owner != owner:
            known = Schedule(name, owner, entry)
        self.here[name] = known
        if known.entry is not entry:
            self._changed(known, entry, now_ms)
        if not known.busy and known.next_ms <= now_ms:
            self._continue(known)

    def _changed(self, schedule: Schedule, entry: ScheduleEntry, now_ms: int) -> None:
        """Follow another value: its times begin now. A pause is no outage."""
        before, schedule.entry = schedule.entry, entry
        if schedule.last_ms and before.times_key() != entry.times_key():
            self._decided(schedule, now_ms, schedule.last_id)

    def _continue(self, schedule: Schedule) -> None:
        now_ms = self._now_ms()
        if not schedule.last_ms:
            self._read(schedule)
            return
        found = due(schedule.entry, schedule.last_ms, now_ms, min(DAY_MS, self._state.config.limits.dedup_window_ms))
        at_ms = next(found.fires, None)
        if found.missed:
            self._missed(schedule, found.missed)
            schedule.last_ms = (
                schedule.last_ms if at_ms is None else at_ms - 1
            )  # they count once, however often it is tried
        if at_ms is None:
            self._decided(schedule, now_ms, schedule.last_id)
        elif schedule.entry.overlap == "skip" and schedule.last_id:
            schedule.busy = True
            self._lives(schedule.last_id, partial(self._overlaps, schedule, at_ms))
        else:
            self._fire(schedule, at_ms)

    def _read(self, schedule: Schedule) -> None:
        """Read the row. A schedule without a row begins now."""
        schedule.busy = True
        found, digest = partial(self._was_read, schedule), row_digest(*schedule.name)
        self._engine.find_key(self._slots(), digest, found, self._now_ms(), _READ_MS)

    def _was_read(self, schedule: Schedule, row: DedupRow | None, error: FoqsError | None) -> None:
        schedule.busy = False
        now_ms = self._now_ms()
        if error is not None:
            schedule.next_ms = now_ms + _RETRY_MS
        elif row is None:
            self._decided(schedule, now_ms, 0)
        else:
            at_ms = abs(row.content)
            fired = schedule.entry.overlap == "allow" and next(schedule.entry.times().after(at_ms - 1), 0) == at_ms
            schedule.last_id, schedule.fired_ms = row.id, at_ms if fired else 0
            if row.content < 0 or schedule.entry.paused:
                self._decided(schedule, now_ms, row.id)
            else:
                self._until(schedule, row.content)

    def _overlaps(self, schedule: Schedule, at_ms: int, lives: bool | FoqsError) -> None:
        schedule.busy = False
        if self.here.get(schedule.name) is not schedule or at_ms <= schedule.last_ms:
            return  # it is removed, changed, or another host's by now
        if isinstance(lives, FoqsError):
            schedule.next_ms = self._now_ms() + _RETRY_MS
        elif lives:
            self._missed(schedule, 1)
            self._decided(schedule, at_ms, schedule.last_id)
        else:
            self._fire(schedule, at_ms)

    def _fire(self, schedule: Schedule, at_ms: int) -> None:
        schedule.busy = True
        self._enqueue(*schedule.name, schedule.entry, at_ms, partial(self._fired, schedule, at_ms))

    def _fired(self, schedule: Schedule, at_ms: int, outcome: int | FoqsError) -> None:
        schedule.busy = False
        if not isinstance(outcome, FoqsError):
            schedule.fired_ms, schedule.error = at_ms, ""
            self._state.counters.schedules_fired += 1
            self._decided(schedule, at_ms, int(outcome))
            return
        known, schedule.error = schedule.error, outcome.message
        if outcome.retryable or not outcome.outcome_known:
            schedule.next_ms = self._now_ms() + _RETRY_MS
            return
        if known != outcome.message:
            self._refused(*schedule.name, at_ms, outcome)
        self._missed(schedule, 1)
        self._decided(schedule, at_ms, schedule.last_id)

    def _missed(self, schedule: Schedule, times: int) -> None:
        schedule.missed += times
        self._state.counters.schedules_missed += times

    def _decided(self, schedule: Schedule, last_ms: int, last_id: int) -> None:
        """Note that all times up to `last_ms` are decided, unless the schedule is removed or another host's by now."""
        if self.here.get(schedule.name) is schedule:
            schedule.last_id = last_id
            self._until(schedule, max(schedule.last_ms, last_ms))
            self._mark(schedule)

    def _mark(self, schedule: Schedule, expires_ms: int = FOREVER_MS) -> None:
        shard = self._state.shards.get(schedule.owner.shard)
        digest = row_digest(*schedule.name)
        if shard is not None and shard.owner.epoch == schedule.owner.epoch and shard.queue.keys.takes(digest):
            content = -schedule.last_ms if schedule.entry.paused else schedule.last_ms
            self._engine.mark(shard, DedupRow(digest, content, schedule.last_id, expires_ms))

    def _until(self, schedule: Schedule, last_ms: int) -> None:
        schedule.last_ms = last_ms
        entry = schedule.entry
        schedule.next_ms = _NEVER_MS if entry.paused else next(entry.times().after(last_ms), _NEVER_MS)
        if schedule.next_ms <= self._now_ms():
            self._soon(partial(self._again, schedule))

    def _again(self, schedule: Schedule) -> None:
        if self.here.get(schedule.name) is schedule and not schedule.busy and schedule.next_ms <= self._now_ms():
            self._continue(schedule)


def item_key(name: str, at_ms: int) -> str:
    """Return the dedup_key of a schedule's item."""
    return f"schedule/{name}/{at_ms}"
