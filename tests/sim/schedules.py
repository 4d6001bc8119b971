"""Schedules of a simulated run: each host runs the production `Scheduler`, and their times are checked by their rows.

What an item says of its time is known by its enqueue, and nothing else of how a host decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.engine.calls import LookCall
from foqs.errors import FoqsError, LostReply, Unavailable
from foqs.ids import FOREVER_MS, Dedup, content_of, digest_of, hash_slot_bounds, hash_slot_of, shard_of
from foqs.item import Item
from foqs.peers import scheduler
from foqs.peers.scheduler import Fired, Lives, Name, Owner
from foqs.policies.schedules import ScheduleEntry
from foqs.rows import AT_LEAST_ONCE, Batch, Found, NewItem
from foqs.second_answer import Duplicate
from tests.sim.records import Spec, broken
from tests.sim.slots import FEW_SLOTS
from tests.support.timers import TestTimers

if TYPE_CHECKING:
    from tests.sim.member import Member
    from tests.sim.simulation import Simulation

PROMISE = 20
Answer = Callable[[Any], None]
_CATCHES_UP_MS = 60_000
_LATE_MS = 2_000
"""Without failures, a time fires within this."""
_ANSWER_MS = 5_000


class Time(NamedTuple):
    """One time of a schedule."""

    name: Name
    at_ms: int


class Coordinator(NamedTuple):
    """A host that coordinates a schedule. Another owner of the row is another coordinator."""

    name: Name
    owner: Owner


class Schedules:
    """`_ids`: the item of each time. `_begun`: up to when the first row of a schedule says that all is decided; times
    before it need not fire. `_knew`: for each enqueue of a time, the item that its coordinator knew as the last one.
    `_pauses`: of a schedule, from when its row says that it is paused, until it goes on."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._checks = sim.counts
        self._specs: dict[bytes, Spec] = {}
        self._times: dict[int, Time] = {}  # by the number of a spec
        self._ids: dict[Time, int] = {}
        self._knew: dict[Time, list[int]] = defaultdict(list)
        self._begun: dict[Name, int] = {}
        self._pauses: dict[Name, list[tuple[int, int]]] = defaultdict(list)
        self.entries = dict(self._set())
        self._rows = {scheduler.row_digest(*name): name for name in self.entries}
        self.open: dict[object, Member] = {}  # questions, and the host that asks

    def _set(self) -> Iterator[tuple[Name, ScheduleEntry]]:
        for ns, entries in self._sim.ledger.attempts.policies.schedules.items():
            yield from (((ns, name), entry) for name, entry in entries.items())

    def changed(self) -> None:
        """All hosts know other settings."""
        for name, pauses in self._pauses.items():
            if pauses and pauses[-1][1] == FOREVER_MS and name not in self._paused():
                since_ms, now_ms = pauses.pop()[0], self._sim.now_ms
                pauses.append((since_ms, now_ms))
                self._checks["times in pauses"] += max(0, now_ms - since_ms) // 1_000

    def _paused(self) -> list[Name]:
        return [name for name, entry in self._set() if entry.paused]

    # ------------------------------------------------------------------------------------- enqueues

    def item(self, name: Name, at_ms: int, now_ms: int) -> tuple[Spec, NewItem]:
        """Return the item of a time. All keys are in the slots that move."""
        entry = self.entries[name]
        low, _ = hash_slot_bounds(at_ms // 1_000 % FEW_SLOTS)
        digest = low[:2] + digest_of(name[0], scheduler.item_key(name[1], at_ms))[2:]
        spec = self._specs.get(digest)
        if spec is None:
            spec = self._specs[digest] = self._sim.clients.new_spec((name[0], entry.topic))
            self._times[spec.number] = Time(name, at_ms)
        payload = f"{spec.number}:{name[1]}".encode()
        spec.dedup = Dedup(digest, content_of(entry.topic, payload))
        return spec, NewItem(payload, None, None, entry.priority, now_ms, 0, now_ms, 0, 0, AT_LEAST_ONCE)

    def enqueued(self, time: Time, last_id: int) -> None:
        self._knew[time].append(last_id)

    def answered(self, outcome: int | FoqsError) -> None:
        if isinstance(outcome, int):
            self._checks["times again" if isinstance(outcome, Duplicate) else "times"] += 1
        else:
            self._checks["times refused"] += 1

    # ------------------------------------------------------------------------------------- the databases

    def row_id(self, coordinator: Coordinator) -> int:
        """Return the item that the row names, for its owner; 0 for another one."""
        digest, (number, epoch, _) = scheduler.row_digest(*coordinator.name), coordinator.owner
        db = self._sim.dbs[number]
        row = db.dedup.get(digest)
        return row.id if row is not None and db.epoch == epoch and db.slots_have(digest) else 0

    def committing(self, batch: Batch) -> None:
        """A transaction is about to be applied."""
        now_ms = max(self._sim.now_ms, self._sim.ledger.latest_ms)
        for item in batch.inserts:
            time = self._times.get(int(item.payload.split(b":", 1)[0]))
            if time is not None:
                self._store(time, item.id, now_ms)
        for row in batch.keys.marks if batch.keys is not None else ():
            name = self._rows[row.digest]
            self._begun.setdefault(name, abs(row.content))
            self._checks["rows of schedules"] += 1
            pauses = self._pauses[name]
            if row.content < 0 and name in self._paused() and (not pauses or pauses[-1][1] < FOREVER_MS):
                pauses.append((-row.content, FOREVER_MS))
            ahead_ms = abs(row.content) - now_ms
            if ahead_ms > self._sim.profile.config.host.clock_jump_ms:
                broken(PROMISE, f"{name}: times of the next {ahead_ms} ms are decided")
        for row in batch.keys.copied if batch.keys is not None else ():
            self._checks["rows of schedules that moved"] += row.digest in self._rows

    def _store(self, time: Time, item_id: int, now_ms: int) -> None:
        entry = self.entries[time.name]
        if time in self._ids:
            broken(PROMISE, f"{time} is stored as {item_id}, and was stored as {self._ids[time]}")
        if next(entry.times().after(time.at_ms - 1)) != time.at_ms or time.at_ms > now_ms:
            broken(PROMISE, f"{time} is stored at {now_ms}")
        if any(since_ms < time.at_ms < to_ms for since_ms, to_ms in self._pauses[time.name]):
            broken(PROMISE, f"{time} is stored, and the schedule was paused: {self._pauses[time.name]}")
        self._ids[time] = item_id
        if entry.overlap == "skip":
            self._overlaps(time)

    def _overlaps(self, time: Time) -> None:
        """A coordinator knows the items that it stored, and the one of the row. What another one stored behind the row
        may overlap until it has stored that again."""
        knew = self._knew[time]
        if not all(knew):
            return
        self._checks["overlaps"] += 1
        if all(self._lives(last_id) for last_id in knew):
            broken(PROMISE, f"{time} is stored, and the item of the last time has not ended: {knew}")

    def _lives(self, item_id: int) -> bool:
        db = self._sim.dbs[shard_of(item_id)]
        return item_id in db.items and item_id not in db.ended

    # ------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Nothing fails from now on: all times fire, until the schedules are removed."""
        sim = self._sim
        sim.wait(_CATCHES_UP_MS, lambda: not any(self._late()), lambda: f"these do not fire: {list(self._late())[:5]}")
        sim.until(sim.time + _LATE_MS)  # each schedule has a coordinator, which hears of its end
        sim.set_policies({key: text for key, text in sim.policies.items() if not key.startswith("schedule.")})
        sim.wait(_CATCHES_UP_MS, lambda: not any(one.alive for one in self.open.values()), lambda: "questions are open")
        sim.wait(_CATCHES_UP_MS, lambda: not self._left(), lambda: f"rows of removed schedules: {self._left()}")
        for name, entry in self.entries.items():
            last_ms = max((time.at_ms for time in self._ids if time.name == name), default=0)
            expected = list(self._between(name, last_ms))
            missing = [time for time in expected if time not in self._ids]
            if entry.catch_up == "all" and entry.overlap == "allow":
                self._checks["times in a row"] += len(expected)
                if missing:
                    broken(PROMISE, f"these were never stored, and later ones were: {missing}")
            elif entry.overlap == "skip":
                self._checks["times skipped"] += len(missing)

    def _late(self) -> Iterator[Time]:
        """Yield the times that are not stored in time, and 0 for a schedule that never had a row."""
        now_ms = self._sim.now_ms
        for name, entry in self.entries.items():
            if name not in self._begun:
                yield Time(name, 0)
            elif entry.catch_up == "all" and entry.overlap == "allow":
                yield from (one for one in self._between(name, now_ms - _LATE_MS) if one not in self._ids)

    def _between(self, name: Name, to_ms: int) -> Iterator[Time]:
        """Yield the times up to then of which the first row of the schedule does not say that they are decided."""
        after = self.entries[name].times().after(self._begun[name])
        return (Time(name, at_ms) for at_ms in takewhile(lambda at_ms: at_ms <= to_ms, after))

    def _left(self) -> list[object]:
        dbs = self._sim.dbs.values()
        return [db.dedup[digest] for db in dbs for digest in self._rows if digest in db.dedup and db.slots_have(digest)]


class Fires:
    """A host's scheduler and its way to other hosts, in place of `foqs.api.schedules`."""

    def __init__(self, member: Member) -> None:
        self._member, self._sim, self._rng = member, member.sim, member.sim.rng
        self._last: dict[Coordinator, int] = {}
        later: Any = member.later
        slots = lambda: member.neighbour.view.shards  # noqa: E731
        timers = TestTimers(lambda: member.now_ms, soon=lambda do: later(0, do), later=later)
        self.scheduler = scheduler.Scheduler(member.engine, timers, slots, self._fire, self._lives)
        self.scheduler.begin(lambda *_: None)

    def _fire(self, ns: str, name: str, entry: ScheduleEntry, at_ms: int, fired: Fired) -> None:
        sim, member = self._sim, self._member
        here = self.scheduler.here.get((ns, name))
        if here is None:
            broken(PROMISE, f"{member.name} fires {name}, and does not coordinate it")
            return
        coordinator = Coordinator((ns, name), here.owner)
        if coordinator not in self._last:
            self._last[coordinator] = sim.schedules.row_id(coordinator)
        sim.schedules.enqueued(Time((ns, name), at_ms), self._last[coordinator])
        spec, item = sim.schedules.item((ns, name), at_ms, member.now_ms)
        assert spec.dedup is not None
        number = member.neighbour.view.shards[hash_slot_of(spec.dedup.digest)]

        def send(owner: Member, answer: Answer) -> None:
            if owner.engine.state.draining:
                answer(Unavailable("the host stops"))
            else:
                sim.clients.send_keyed(owner, [spec], [item], _ANSWER_MS, lambda outcomes: answer(outcomes[0]))

        def done(outcome: int | FoqsError) -> None:
            if isinstance(outcome, int):
                self._last[coordinator] = outcome
            sim.note("fired", member.name, coordinator, at_ms, outcome)
            sim.schedules.answered(outcome)
            fired(outcome)

        self._ask(number, send, done)

    def _lives(self, item_id: int, done: Lives) -> None:
        def look(owner: Member, answer: Answer) -> None:
            def found(item: Item | None, rows: Found | None, error: FoqsError | None) -> None:
                answer(error or (rows is not None and rows.ended is None and rows.failure is None))

            owner.engine.look(item_id, LookCall(found), owner.now_ms, _ANSWER_MS)

        self._ask(shard_of(item_id), look, done)

    def _ask(self, number: int, send: Callable[[Member, Answer], None], done: Answer) -> None:
        """Ask the owner of a shard, as far as this host knows it. Answers of other hosts may be late or lost."""
        sim, rng, member = self._sim, self._rng, self._member
        owner = sim.owners[number] if sim.healing or rng.random() < 0.95 else rng.choice(sim.members)
        question = object()
        sim.schedules.open[question] = member

        def answer(outcome: Any) -> None:
            if member.alive and sim.schedules.open.pop(question, None):
                done(outcome)

        if owner is member:
            send(member, answer)
            return

        def reply(outcome: Any) -> None:
            if sim.healing or rng.random() > 0.05:
                sim.soon(0 if sim.healing else rng.choice([0, 5, 500]), lambda: answer(outcome))

        def arrive() -> None:
            if owner.alive:
                send(owner, reply)
            else:
                reply(Unavailable("the host does not answer"))

        sim.soon(0 if sim.healing else rng.choice([0, 5, 500]), arrive)
        sim.soon(2 * _ANSWER_MS, lambda: answer(LostReply("no answer in time")))
