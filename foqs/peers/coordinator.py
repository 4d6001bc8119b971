"""The coordinator of borrowed units on one host: it lends the units of a key to hosts, and waits after a take-over.

The coordinator of a key is the owner of the shard that has the key's hash slot (see `foqs.ids`). A shard has one owner
at a time, because of the fence and the confirmed epochs, and a slot is on one shard at a time. So no key has two
coordinators, whatever hosts believe of each other. A ledger says what a unit is and which host gets it
(`foqs.limits.bucket`, `foqs.limits.lease_slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from foqs.bounds import Bounded
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.ids import digest_of, hash_slot_of
from foqs.limits.bucket import TTL_MS
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import slots_in

T = TypeVar("T")
BEAT_MS = 500
_MOST_CONFIRMING = 1_000
_KEEP_CONFIRMED_SHARE = 3
_TENDED = 2_000
"""Ledgers of a unit that a beat looks at, to forget idle ones."""


class HashSlotOwner(NamedTuple):
    """The shard that has a hash slot, and the epoch of the shard's owner."""

    shard: int
    epoch: int


Found = Callable[[HashSlotOwner | None, int], None]
"""(owner, empty_at_ms), or (None, 0): the hash slot is not here. `empty_at_ms`: the monotonic time from which no host
has units of an earlier owner."""


def coordinator_hash_slot(ns: str, topic: str = "") -> int:
    return hash_slot_of(digest_of(ns, topic))


class HashSlotOwners:
    """The hash slots of this host's shards, and since when they are here. `missing` is called when a slot is not here
    and the record may say that it should be."""

    def __init__(
        self,
        engine: Engine,
        timers: Timers,
        missing: Callable[[], None],
    ) -> None:
        self._state = engine.state
        self._now_ms = timers.now_ms
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self._missing = missing
        self._here: dict[int, tuple[HashSlotOwner, int]] = {}  # by slot, and since when (monotonic ms) it is here
        self._seen: dict[HashSlotOwner, bytes] = {}  # the slots of each shard

    def find(self, slot: int, found: Found) -> None:
        """Call `found` at once if the shard's database confirmed within `confirm_ms` that this host owns the shard, or
        else after the shard's next batch."""
        shard = self._shard_of(slot)
        if shard is None:
            self._missing()
            found(None, 0)
        elif shard.owner.confirmed(self._now_ms()) or len(shard.owner.confirming) >= _MOST_CONFIRMING:
            self._confirmed(slot, found)
        else:
            self._after_batch(shard, partial(self._confirmed, slot, found))

    def _confirmed(self, slot: int, found: Found) -> None:
        shard, now_ms = self._shard_of(slot), self._now_ms()
        if shard is None or shard.owner.in_takeover_grace(now_ms) or not shard.owner.confirmed(now_ms):
            found(None, 0)
            return
        self.observe()
        owner, since_ms = self._here[slot]
        found(owner, since_ms + TTL_MS)

    def check(self, shard: Shard, then: Callable[[bool], None]) -> None:
        """Call `then(True)` if the shard's database says that this host owns it. The database is asked after this call:
        after an earlier answer another owner may have stored more."""
        owner = shard.owner
        if len(owner.confirming) >= _MOST_CONFIRMING:
            then(False)
            return
        asked_ms, before = self._now_ms(), shard.queue.in_flight

        def confirmed() -> None:
            nonlocal before
            if before is not None and owner.state is not ShardState.CLOSED:
                before = None
                self._after_batch(shard, confirmed)
            else:
                then(owner.confirmed_ms >= asked_ms)

        self._after_batch(shard, confirmed)

    def census(
        self, shards: Sequence[Shard], count: Callable[[Shard], T], within_ms: int,
        answer: Callable[[dict[int, T]], None],
    ) -> None:  # fmt: skip
        """Count the shards whose databases confirm this host, and call `answer` with the counts by shard: once all are
        counted, or after `within_ms` without the rest."""
        left, found, answered = len(shards), dict[int, T](), False

        def add(shard: Shard, confirmed: bool) -> None:
            nonlocal left
            if not answered and confirmed and shard.owner.state in (ShardState.SERVING, ShardState.DRAINING):
                found[shard.number] = count(shard)
            left -= 1
            if not left:
                end()

        def end() -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(found)

        for shard in list(shards):
            self.check(shard, partial(add, shard))
        if not shards:
            end()
        elif left:
            self._later(within_ms, end)

    def observe(self) -> None:
        """Record which slots are here. Must be called at least once in `TTL_MS`: then no other host lent units for
        a slot that left this host and returned in between.

        The shard from which a slot arrives may have a new owner, whose predecessor was confirmed lately and does not
        know yet. So such a slot counts only `confirm_ms` later."""
        seen = {
            HashSlotOwner(shard.number, shard.owner.epoch): shard.queue.keys.held.bits
            for shard in self._state.serving
            if shard.owner.state is ShardState.SERVING and not shard.owner.in_takeover_grace(self._now_ms())
        }
        if seen == self._seen:
            return
        now_ms = self._monotonic_ms()
        before, self._here = self._here, {}
        for owner, bits in seen.items():
            since_ms = now_ms + (self._state.config.host.confirm_ms if owner in self._seen else 0)
            for slot in slots_in(bits):
                known = before.get(slot)
                self._here[slot] = known if known is not None and known[0] == owner else (owner, since_ms)
        self._seen = seen

    def keep_confirmed(self, number: int) -> None:
        """Have a shard's database confirm in time that this host owns the shard."""
        shard = self._state.shards.get(number)
        if shard is not None and shard.owner.state is ShardState.SERVING:
            age_ms = self._now_ms() - shard.owner.confirmed_ms
            if not 0 <= age_ms * _KEEP_CONFIRMED_SHARE < shard.config.confirm_ms:
                shard.owner.want_confirmation()
                self._state.touch(shard)

    def _after_batch(self, shard: Shard, then: Callable[[], None]) -> None:
        """Call `then` after the shard's next batch, which asks for the owner, or when the shard is closed."""
        shard.owner.want_confirmation(then)
        self._state.touch(shard)

    def _shard_of(self, slot: int) -> Shard | None:
        for shard in self._state.serving:
            if shard.owner.state is ShardState.SERVING and shard.queue.keys.takes_slot(slot):
                return shard
        return None


class LoneHashSlotOwners(HashSlotOwners):
    """A lone host has all hash slots, and no host had units at its start."""

    def __init__(self, engine: Engine, timers: Timers) -> None:
        super().__init__(engine, timers, lambda: None)
        self._empty_at_ms = timers.monotonic_ms()

    def find(self, slot: int, found: Found) -> None:
        found(HashSlotOwner(0, 0), self._empty_at_ms)

    def observe(self) -> None:
        """Nothing changes."""

    def check(self, shard: Shard, then: Callable[[bool], None]) -> None:
        then(True)

    def keep_confirmed(self, number: int) -> None:
        """No other host owns a shard."""


class Question(NamedTuple):
    """A host's question for units of a key. `unit`: the name of the unit; `hash_slot`: of the key; `ask`: see its
    ledger."""

    unit: str
    key: Bounded
    hash_slot: int
    ask: Any


class Unit:
    """A kind of units that are lent, with one ledger for each key."""

    def __init__(self, timers: Timers) -> None:
        self._monotonic_ms = timers.monotonic_ms

    def rule(self, key: Bounded) -> Any:
        """Return the part of the settings that a ledger of the key follows, None if nothing of the key is lent."""
        raise NotImplementedError

    def new_ledger(self, key: Bounded, rule: Any, empty_at_ms: int) -> Any:
        """Return a new ledger. No host had units of the key at `empty_at_ms`."""
        raise NotImplementedError

    def follow(self, ledger: Any, rule: Any) -> bool:
        """Follow the rule. Return False if a new ledger is needed."""
        ledger.follow(rule, self._monotonic_ms())
        return True

    def early(self, rule: Any, ask: Any, wait_ms: int) -> Any:
        """Return the answer while units of an earlier coordinator may be in use, for another `wait_ms`."""
        raise NotImplementedError

    def lend(self, key: Bounded, ledger: Any, holder: str, ask: Any, answer: Callable[[Any], None]) -> None:
        """Answer the question of a host, once."""
        raise NotImplementedError

    def tend(self, key: Bounded, ledger: Any, ledgers: int) -> bool:
        """Look after one of `ledgers`. Return False if it is forgotten."""
        return not ledger.idle(self._monotonic_ms())

    def flush(self) -> None:
        """Send the news of ledgers to other hosts: called after a request and in each beat."""


class Coordinator:
    def __init__(
        self, engine: Engine, forwarder: Forwarder, owners: HashSlotOwners, timers: Timers, units: dict[str, Unit]
    ) -> None:
        self._state = engine.state
        self._share_slots = forwarder.slots
        self._owners = owners
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self._units = units
        self.beats: list[Callable[[], None]] = []
        """Reports of what this host holds."""
        # By unit and key, with the owner of the hash slot and `empty_at_ms`: a ledger is valid while both stay.
        self._ledgers: dict[str, dict[Bounded, tuple[Any, HashSlotOwner, int]]] = {name: {} for name in units}
        self._beating = self._in_use = False

    def start(self) -> None:
        """Have hash slots shared out, and begin the beat, without which this host lends nothing."""
        self._in_use = True
        self.watch()

    def watch(self) -> None:
        """Begin the beat, which observes the slots here: a coordinator lends units once it has observed that it has had
        the slot for a time. A host of a cluster calls it at its start, before there is a quota or a throttle."""
        if not self._beating:
            self._beating = True
            self._later(BEAT_MS, self._beat)

    def lend(self, holder: str, questions: Sequence[Question], answer: Callable[[list[Any]], None]) -> None:
        """Answer the questions of one host, after the shards of their keys were confirmed: with None where this host
        does not coordinate the key."""
        self.start()
        grants: list[Any] = [None] * len(questions)
        by_slot: dict[int, list[int]] = {}
        for at, question in enumerate(questions):
            by_slot.setdefault(question.hash_slot, []).append(at)
        left = 1 + len(questions)

        def found(places: list[int], owner: HashSlotOwner | None, empty_at_ms: int) -> None:
            for at in places:
                if owner is None:
                    put(at, None)
                else:
                    self._lend_here(questions[at], holder, owner, empty_at_ms, partial(put, at))

        def put(at: int, grant: Any) -> None:
            grants[at] = grant
            end()

        def end() -> None:
            nonlocal left
            left -= 1
            if not left:
                answer(grants)
                for unit in {question.unit for question in questions}:
                    self._units[unit].flush()

        for slot, places in by_slot.items():
            self._owners.find(slot, partial(found, places))
        end()

    def ledger(self, unit: str, key: Bounded) -> Any:
        """Return the ledger of a key, None if it is not coordinated here."""
        known = self._ledgers[unit].get(key)
        return None if known is None else known[0]

    def keys(self, unit: str) -> list[Bounded]:
        """Return the keys that hosts asked this one about of late."""
        return list(self._ledgers[unit])

    def _lend_here(
        self, question: Question, holder: str, owner: HashSlotOwner, empty_at_ms: int, answer: Callable[[Any], None]
    ) -> None:
        unit, key, now_ms = self._units[question.unit], question.key, self._monotonic_ms()
        rule = unit.rule(key)
        if rule is None:
            answer(None)
        elif now_ms < empty_at_ms:
            answer(unit.early(rule, question.ask, empty_at_ms - now_ms))
        else:
            ledgers = self._ledgers[question.unit]
            known = ledgers.get(key)
            if known is None or known[1:] != (owner, empty_at_ms) or not unit.follow(known[0], rule):
                known = ledgers[key] = (unit.new_ledger(key, rule, empty_at_ms), owner, empty_at_ms)
            unit.lend(key, known[0], holder, question.ask, answer)

    def _beat(self) -> None:
        if self._state.draining:
            return
        for beat in self.beats:
            beat()
        if self._in_use:
            self._share_slots()
        self.tend()
        self._later(BEAT_MS, self._beat)

    def tend(self) -> None:
        """Keep the shards confirmed that a coordinator needs, and forget idle ledgers."""
        self._owners.observe()
        shards: set[int] = set()
        for name, ledgers in self._ledgers.items():
            unit = self._units[name]
            for key, known in list(islice(ledgers.items(), _TENDED)):
                del ledgers[key]
                if unit.tend(key, known[0], len(ledgers)):
                    ledgers[key] = known  # at the end
                    shards.add(known[1].shard)
            unit.flush()
        for number in shards:
            self._owners.keep_confirmed(number)
