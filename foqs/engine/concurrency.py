"""Limits on live leases on one host: the slots that its shards have, the leases that take them, and the flows that
consumers want and that wait at gates.

`foqs.limits.lease_slots` says how slots are lent. A lease takes a slot of each of its item's limited throttle keys in
the item's shard, and is committed before it is delivered. So the rows of a shard say how many slots are taken: they
are counted, by lane, when the shard is opened, and again when other keys are limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

from foqs.bounds import THROTTLE, Bounded
from foqs.engine.calls import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.fairness.keys import TopicKey, tenancy_of
from foqs.fairness.tenants import Flow
from foqs.ids import digest_of, hash_slot_of
from foqs.item import Item
from foqs.limits.gate import Agenda
from foqs.limits.lease_slots import ShardSlots
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.layers import LeaseLimits, NamespacePolicies, Policies
from foqs.prefetch.lane import Lane

Parked = Flow[Any]
SlotGate = ShardSlots[TopicKey, Parked]
AnyGate = ThrottleKey[TopicKey, Parked] | SlotGate

RECENT_MS = 2_000
"""A topic is wanted for this time after a dequeue of it found a flow that waits."""
_CALLS = 100
"""Consumers of a topic that are looked at for how many items they want."""
_SILENT = 3
"""This many lost questions in a row mean that the coordinator is away, and no chance."""
_GATES = 100
"""Gates of a topic that are looked at for an empty reply."""


class Demand:
    """`waiting`: the consumers that wait. `topics`: the gates at which flows of a topic are parked, or were."""

    def __init__(
        self,
        policies: Policies,
        waiting: Mapping[TopicKey, Sequence[DequeueCall]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.topics: dict[TopicKey, dict[AnyGate, None]] = {}
        self.lacked: dict[TopicKey, tuple[int, int]] = {}  # when a dequeue parked a flow, and the items it wanted
        self._policies = policies
        self._waiting = waiting
        self._monotonic_ms = monotonic_ms

    def parked(self, topic: TopicKey, gate: AnyGate, wanted: int, at_ms: int) -> None:
        """Note that a flow of the topic is parked now, which a consumer found that wants `wanted` more items."""
        self.lacked.pop(topic, None)  # the oldest comes first
        self.lacked[topic] = (at_ms, wanted)
        self.topics.setdefault(topic, {})[gate] = None

    def forget(self, at_ms: int) -> None:
        """Forget dequeues that found a parked flow more than `RECENT_MS` ago."""
        while self.lacked:
            topic, (lacked_ms, _) = next(iter(self.lacked.items()))
            if at_ms - lacked_ms < RECENT_MS:
                break
            del self.lacked[topic]

    def of(self, topic: TopicKey) -> bool:
        """Return True if consumers want items of the topic."""
        if self._policies.pausing and self._policies.paused(topic):
            return False
        if topic in self._waiting:
            return True
        lacked = self.lacked.get(topic)
        return lacked is not None and self._monotonic_ms() - lacked[0] < RECENT_MS

    def waits(self, gate: AnyGate, topic: TopicKey, flow: Parked, kept_ms: int) -> bool:
        """Return True if the flow, a keeper of this gate since `kept_ms`, waits at another gate, and consumers want it.

        A lease may live for hours, and a coordinator be away: a token is kept for a slot for one interval, and nothing
        for a gate without answers."""
        at = flow.parked
        if at is None or at is gate or at.unanswered >= _SILENT or not flow.ready:
            return False
        kept_long = isinstance(gate, ThrottleKey) and self._monotonic_ms() - kept_ms >= gate.interval_ms
        if kept_long and isinstance(at, ShardSlots):
            return False
        return self.of(topic) and gate in gates_of(flow)

    def wanted(self, topic: TopicKey) -> int:
        """Return how many items of the topic consumers want."""
        if not self.of(topic):
            return 0
        waiting = self._waiting.get(topic)
        if waiting is not None:
            return sum([call.most or max(items for _, items in call.wants) for call in islice(waiting, _CALLS)])
        return self.lacked[topic][1]

    def gates(self, topic: TopicKey) -> Sequence[AnyGate]:
        """Return some of the gates at which flows of the topic are parked now."""
        found = islice(self.topics.get(topic, ()), _GATES)
        return [gate for gate in found if topic in gate.active or topic in gate.asleep]

    def first_due(self, topics: Sequence[TopicKey]) -> AnyGate | None:
        """Return the gate at which flows of the topics are parked and that may have units first."""
        gates = [gate for topic in topics for gate in self.gates(topic)]
        return min(gates, key=lambda gate: gate.due_ms, default=None)


def gates_of(flow: Parked) -> Iterator[AnyGate]:
    """Yield the gates of the flow's keys, as it knew them last."""
    if flow.rules is not None:
        yield from flow.rules.keys
        if flow.rules.limited:
            for lane in flow.lanes:
                yield from lane.slots.gates if lane.slots is not None else ()


def lives(flow: Parked) -> bool:
    """Return True if the flow has items to deliver. If not, unpark it."""
    if flow.lanes and flow.ready:
        return True
    flow.parked = None
    return False


class Book:
    """The gates of one namespace in one shard, by throttle key, while `limits` are in force. `counted`: all leases that
    the shard had when the book was opened count. `before`: the gates of the book that it replaces."""

    __slots__ = ("before", "closed", "counted", "gates", "limits", "ns", "shard")

    def __init__(self, ns: str, shard: Shard, limits: LeaseLimits | None, before: Mapping[str, SlotGate]) -> None:
        self.before = before
        self.ns = ns
        self.shard = shard
        self.limits = limits
        self.gates: dict[str, SlotGate] = {}
        self.counted = self.closed = False


class LaneSlots:
    """Where the leases of one lane count. A lane has at most one of an open book."""

    __slots__ = ("_agenda", "book", "gates")

    def __init__(self, book: Book, gates: tuple[SlotGate, ...], agenda: Agenda[AnyGate]) -> None:
        self.book = book
        self.gates = gates
        self._agenda = agenda

    @property
    def stale(self) -> bool:
        """Return True if the gates may belong to other limits, or be forgotten."""
        return self.book.closed or any(gate.closed for gate in self.gates)

    @property
    def commits(self) -> bool:
        """Return True if a lease is committed before it is delivered."""
        return not self.book.closed and any(not gate.throttle.shadow for gate in self.gates)

    def ended(self, item_id: int, *, by_time: bool = False) -> None:
        """Note that the end of a lease of the lane is committed."""
        for gate in self.gates:
            gate.ended(item_id, by_time=by_time)
            if not gate.closed:
                self._agenda.settle_soon(gate)


_SLICE = 500
_LANES = 5_000
"""Lanes whose leases are counted in one slice of the event loop."""
_URGENT = 20
"""Parked flows whose items are looked at for how urgent they are."""
_MOST_PAST = 10_000
_NO_GATES: Mapping[str, SlotGate] = {}

Counted = tuple[Bounded, int]
"""A throttle key that a coordinator counts, and the version of the settings by which it does."""


class Past:
    """Counts of a key since the host's start, of shards that are closed."""

    __slots__ = ("overage", "reclaimed")

    def __init__(self) -> None:
        self.overage = self.reclaimed = 0


class Concurrency:
    """`lent`: gates with units. `unpark(topic, flow)`: a flow waits no more. `serving`: the open shards."""

    def __init__(
        self,
        policies: Policies,
        agenda: Agenda[AnyGate],
        demand: Demand,
        lent: dict[AnyGate, None],
        unpark: Callable[[TopicKey, Parked], None],
        long_work: Callable[[Iterator[None]], None],
        monotonic_ms: Callable[[], int],
        serving: Callable[[], Sequence[Shard]],
    ) -> None:
        self._policies = policies
        self._agenda = agenda
        self._demand = demand
        self._unpark = unpark
        self._long_work = long_work
        self._monotonic_ms = monotonic_ms
        self._serving = serving
        self._numbers = count(1)
        self._lent = lent
        self._tended = 0  # the book that `tend` begins with
        self._past: dict[Bounded, Past] = {}

    # ------------------------------------------------------------------------------------- leases

    def lacking(self, flow: Parked, lane: Lane[Item], at_ms: int) -> SlotGate | None:
        """Return where an item of the lane has to wait for a slot, None if it may be leased."""
        slots = lane.slots
        if slots is None or slots.stale:
            slots = self._resolve(lane)
        for gate in slots.gates:
            if not (gate.has_room(flow, at_ms) or gate.throttle.shadow):
                return gate  # type: ignore[no-any-return]
        return None

    def lease(self, flow: Parked, item: Item, at_ms: int) -> None:
        """Lease an item for which `lacking` found nothing."""
        for gate in item.lane.slots.gates:
            gate.settled(flow)
            gate.lease(item.id, at_ms)
            self._lent[gate] = None
            if gate.throttle.shadow:  # its coordinator counts leases over the limit
                self._agenda.settle_soon(gate)

    def before_parking(self, flow: Parked, gate: SlotGate, items: int, at_ms: int) -> int:
        """Return how many slots of the gate's shard consumers that want `items` items of the flow could use.

        The flow waits at this gate. It claims slots of keys that come before this key by name, and may keep them until
        it has all. It gives up the slots of later keys: the order is the same in all shards, so no two flows wait for
        each other."""
        ready = 0
        for lane in flow.lanes:
            slots, here = lane.slots, lane.term.shard is not None and lane.term.shard.number == gate.shard
            ready += lane.ready if here else 0
            for other in slots.gates if slots is not None else ():
                if here and other.bounded < gate.bounded:
                    other.claim(flow, at_ms)
                    if other.keep(lane.topic.key, flow, flow.waits_ms, at_ms):
                        self._agenda.settle_soon(other)
                elif other is not gate and other.claims(flow):
                    other.settled(flow)
                    self._agenda.settle_soon(other)
        return max(1, -(-items * ready // max(1, flow.ready)))

    def keep(self, flow: Parked, at_ms: int) -> None:
        """Keep the slots that the flow has a claim on while it waits for a token: it gave up its token for them."""
        for lane in flow.lanes:
            for gate in lane.slots.gates if lane.slots is not None else ():
                if gate.claims(flow) and gate.keep(lane.topic.key, flow, flow.waits_ms, at_ms):
                    self._agenda.settle_soon(gate)

    def full_gate(self, flow: Parked, at_ms: int) -> SlotGate | None:
        """Return where the flow's first item would wait, as far as this host knows."""
        heads = [lane for lane in flow.lanes if lane.window is not None and lane.window.entries]
        lane = min(heads, key=lambda one: one.window.entries[0], default=None)
        if lane is None or lane.slots is None or lane.slots.stale:
            return None
        full = (gate for gate in lane.slots.gates if gate.due_ms > at_ms and not gate.here(at_ms))
        return next((gate for gate in full if not gate.throttle.shadow), None)

    # ------------------------------------------------------------------------------------- shards

    def opened(self, shard: Shard) -> None:
        """Count the leases of a shard that was opened, where their keys are limited."""
        books = [self._new_book(shard, ns) for ns in self._policies.limiting]
        if books:
            self._long_work(self._count(shard.memory, books))

    def closed(self, shard: Shard) -> None:
        """Stop counting the leases of a closed shard: its next owner counts them."""
        for book in shard.memory.limited.values():
            self._close(book)
        shard.memory.limited.clear()

    def changed(self, ns: str) -> None:
        """Follow the limits of the namespace. Count leases again where a key got a limit or lost one."""
        policies = self._policies.limiting.get(ns)
        for shard in self._serving():
            book = shard.memory.limited.get(ns)
            before = {}
            if book is not None and (policies is None or book.limits != policies.limits):
                self._close(book)
                before = book.gates
                del shard.memory.limited[ns]
                book = None
            if policies is None:
                continue
            if book is None:
                self._book(shard, ns, before)
            else:
                self._long_work(self._follow(book))

    def _follow(self, book: Book) -> Iterator[None]:
        for done, gate in enumerate(list(book.gates.values()), 1):
            policies = self._policies.limiting.get(book.ns)
            if policies is None or book.closed:
                return
            throttle = policies.throttle(gate.name)
            if throttle is not None and throttle != gate.throttle:
                gate.throttle = throttle
                if gate.counted:
                    gate.tie_all()
                gate.due_ms = self._monotonic_ms()
                self._agenda.settle_soon(gate)
                if throttle.shadow:
                    yield from self._free(gate)
            if done % _SLICE == 0:
                yield

    def _book(self, shard: Shard, ns: str, before: Mapping[str, SlotGate] = _NO_GATES) -> Book:
        """Return the book of a namespace in a shard. `before`: the gates of a book whose limits are out of force."""
        book: Book | None = shard.memory.limited.get(ns)
        if book is None:
            book = self._new_book(shard, ns, before)
            self._long_work(self._count(shard.memory, [book]))
        return book

    def _new_book(self, shard: Shard, ns: str, before: Mapping[str, SlotGate] = _NO_GATES) -> Book:
        book = shard.memory.limited[ns] = Book(ns, shard, self._policies.namespaces[ns].limits, before)
        return book

    def _count(self, memory: ShardMemory, books: Sequence[Book]) -> Iterator[None]:
        """Count the leases that the shard has. A book that was closed since is left out."""
        by_ns = {book.ns: book for book in books}
        for done, lane in enumerate(list(memory.lanes.values()), 1):
            book = by_ns.get(lane.topic.key[0]) if lane.leased else None
            if book is not None and not book.closed and not (lane.slots and lane.slots.book is book):
                self._resolve(lane)
            if done % _LANES == 0:
                yield
        for book in books:
            if book.closed:
                continue
            book.counted = True
            for gate in list(book.gates.values()):
                gate.tie_all()
                self._agenda.ask(gate)
                if gate.has:
                    self._lent[gate] = None

    def _resolve(self, lane: Lane[Item]) -> LaneSlots:
        """Count the leases of the lane at the gates of its limited keys."""
        (ns, topic), old = lane.topic.key, lane.slots
        book, policies = self._book(lane.term.shard, ns), self._policies.namespaces[ns]
        names = {*tenancy_of(lane.key)[1], *policies.of(topic).throttles}
        gates = [self._gate(book, name, policies) for name in sorted(names) if policies.concurrency(name)]
        slots = lane.slots = LaneSlots(book, tuple(gates), self._agenda)
        if old is None or old.book is not book:
            for gate in gates:
                gate.leased += lane.leased
        return slots

    def _gate(self, book: Book, name: str, policies: NamespacePolicies) -> SlotGate:
        gate = book.gates.get(name)
        if gate is None:
            throttle = policies.throttle(name)
            assert throttle is not None, "the key is limited"
            hash_slot = hash_slot_of(digest_of(book.ns, THROTTLE + name))
            gate = SlotGate(
                book.ns, name, throttle, hash_slot, book.shard.number, book.shard.owner.epoch, self._numbers
            )
            gate.counted = book.counted
            if (old := book.before.get(name)) is not None:
                gate.go_on_from(old)
            book.gates[name] = gate
        return gate

    def _close(self, book: Book) -> None:
        """From now on its gates report nothing, as another book, or another owner, may count."""
        book.closed = True
        gates = list(book.gates.values())
        for gate in gates:
            self._forget(gate)
        self._long_work(self._drop(gates))

    def _drop(self, gates: list[SlotGate]) -> Iterator[None]:
        for done, gate in enumerate(gates, 1):
            yield from self._free(gate)
            if done % _SLICE == 0:
                yield

    def _free(self, gate: SlotGate) -> Iterator[None]:
        """Have all flows that are parked at the gate tried again."""
        done = 0
        for topic, parking in list(gate.parked()):
            for flow in parking:
                gate.remove(topic, flow)
                if flow.parked is gate and lives(flow):
                    self._unpark(topic, flow)
                done += 1
                if done % _SLICE == 0:
                    yield

    def _forget(self, gate: SlotGate) -> None:
        gate.closed = True
        self._lent.pop(gate, None)
        if gate.overage or gate.reclaimed:
            past = self._past.pop(gate.bounded, None) or Past()
            self._past[gate.bounded] = past
            past.overage += gate.overage
            past.reclaimed += gate.reclaimed
            if len(self._past) > _MOST_PAST:
                del self._past[next(iter(self._past))]

    # ------------------------------------------------------------------------------------- coordinators

    def hear(self, key: Bounded, shard: Shard) -> None:
        """Report to the key's coordinator at once, as it asked."""
        book = shard.memory.limited.get(key[0])
        gate = book.gates.get(key[1][len(THROTTLE) :]) if book is not None else None
        if gate is not None:
            gate.hear(self._monotonic_ms())
            self._agenda.ask(gate)

    def count(self, shard: Shard, keys: Sequence[Counted]) -> tuple[int, list[int]]:
        """Return the number of this report, and how many leases with each key the shard has, -1 where that is not known
        yet. Call it after the shard's database confirmed this host. Free slots of these keys are given up."""
        at_ms, found = self._monotonic_ms(), []
        number = next(self._numbers)
        for (ns, name), version in keys:
            policies, key = self._policies.limiting.get(ns), name[len(THROTTLE) :]
            late = self._policies.versions.get(ns, 0) < version
            limited = policies is not None and policies.concurrency(key) is not None and not late
            book = self._book(shard, ns) if limited else None
            if book is None or not book.counted:
                found.append(-1)
                continue
            gate = book.gates.get(key)
            found.append(0 if gate is None else gate.give_up_free(at_ms))
            if gate is not None:
                self._agenda.settle_soon(gate)
        return number, found

    def tend(self) -> None:
        """Forget unused gates, some at a time."""
        books = [book for shard in self._serving() for book in shard.memory.limited.values()]
        left = _SLICE
        for at in range(len(books)):
            book = books[(self._tended + at) % len(books)]
            for name, gate in list(islice(book.gates.items(), left)):
                left -= 1
                del book.gates[name]
                if gate.unused and gate not in self._agenda and book.counted:
                    self._forget(gate)
                else:
                    book.gates[name] = gate  # at the end
            if left <= 0:
                break
        self._tended += 1

    # ------------------------------------------------------------------------------------- numbers

    def gates(self, key: Bounded) -> list[SlotGate]:
        """Return the gates of a throttle key on this host."""
        books = [book for shard in self._serving() if (book := shard.memory.limited.get(key[0])) is not None]
        return [gate for book in books if (gate := book.gates.get(key[1][len(THROTTLE) :])) is not None]

    def keys(self, ns: str) -> list[Bounded]:
        """Return the throttle keys of a namespace that have gates on this host, or had some since its start."""
        books = [book for shard in self._serving() if (book := shard.memory.limited.get(ns)) is not None]
        past = dict.fromkeys(key for key in self._past if key[0] == ns)
        return [*{(ns, THROTTLE + name): None for book in books for name in book.gates} | past]

    def all_gates(self) -> list[SlotGate]:
        books = [book for shard in self._serving() for book in shard.memory.limited.values()]
        return [gate for book in books for gate in book.gates.values()]

    def all_past(self) -> list[tuple[Bounded, Past]]:
        return list(self._past.items())

    def past(self, key: Bounded) -> Past:
        return self._past.get(key) or Past()


def urgency(gate: SlotGate, at_ms: int) -> tuple[int, int]:
    """Return the lowest priority of the items that wait at the gate, and since when the first flow waits (ms)."""
    priorities: list[int] = []
    since_ms = at_ms
    for parking in islice(gate.active.values(), _URGENT):
        since_ms = min(since_ms, parking.since_ms() or at_ms)
        lanes = [lane for flow in parking.longest(_URGENT) for lane in flow.lanes if lane.window is not None]
        here = [lane for lane in lanes if lane.term.shard is not None and lane.term.shard.number == gate.shard]
        priorities += [lane.window.entries[0][0] for lane in here if lane.window.entries]
    return min(priorities, default=0), at_ms - since_ms
