"""The tenants of a topic with the most ready items, and the sums of all further ones.

What one host knows of a namespace's throttle keys, for GetThrottles.

ReleaseLeases on one host: ends leases of a topic as if by time. And counts of leases by worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappush, heappushpop
from itertools import islice
from typing import NamedTuple

from foqs.bounds import THROTTLE, Bounded
from foqs.buffers.shard_batch import ListRead
from foqs.engine.batch_reads import when_due
from foqs.engine.concurrency import AnyGate
from foqs.engine.item_ops import given_of, stands
from foqs.engine.listing import Spot, lanes_at
from foqs.engine.shard import Shard
from foqs.engine.state import State, begin_long
from foqs.errors import FoqsError, Unavailable
from foqs.fairness.keys import TopicKey, lane_key
from foqs.item import Item, Phase, Settles, from_found
from foqs.limits.lease_slots import Slots
from foqs.rows import Body, Found, TimerRow

MOST_TENANTS = 1_000
"""Tenants that are reported by name."""
_FLOWS = 250
"""Flows that a count looks at in one turn of the event loop."""


class TenantCounts(NamedTuple):
    """Of one tenant, or sums of several. `parked`: ready items that wait for throttles. `weight`: of several tenants,
    the sum over those with ready items that wait for none. `served`: what they were given, in the unit of the topic."""

    ready: int = 0
    parked: int = 0
    weight: int = 0
    served: float = 0.0

    @property
    def turn_weight(self) -> int:
        """The weight that takes part in the turns now."""
        return self.weight if self.ready > self.parked else 0


class MostReady:
    """Up to `most` tenants by name, those with the most ready items. `rest` has the sums of further ones."""

    def __init__(self, most: int) -> None:
        self.rest = TenantCounts()
        self._most = most
        self._heap: list[tuple[int, str, TenantCounts]] = []

    def add(self, name: str, counts: TenantCounts) -> None:
        """Add a tenant, which was not added before."""
        one = (counts.ready, name, counts)
        if len(self._heap) < self._most:
            heappush(self._heap, one)
        else:
            self.add_rest(heappushpop(self._heap, one)[2])

    def add_rest(self, counts: TenantCounts) -> None:
        """Add tenants that have no names here."""
        rest = self.rest
        self.rest = TenantCounts(
            rest.ready + counts.ready,
            rest.parked + counts.parked,
            rest.weight + counts.turn_weight,
            rest.served + counts.served,
        )

    def named(self) -> list[tuple[str, TenantCounts]]:
        """Return the tenants with names: the most ready items first."""
        return [(name, counts) for _, name, counts in sorted(self._heap, key=lambda one: (-one[0], one[1]))]


def most_ready(tenants: Iterable[tuple[str, TenantCounts]], most: int) -> MostReady:
    found = MostReady(most)
    for name, counts in tenants:
        found.add(name, counts)
    return found


def tenants_of(state: State, key: TopicKey, done: Callable[[MostReady], None]) -> None:
    """Count the tenants of a topic. It has none if its tenants take no turns."""
    begin_long(state, _count_tenants(state, key, done))


def _count_tenants(state: State, key: TopicKey, done: Callable[[MostReady], None]) -> Iterator[None]:
    found, looked = MostReady(MOST_TENANTS), 0
    topic, namespace = state.topics.get(key), state.policies.namespace(key[0])
    tenants = [] if topic is None or topic.turns is None else list(topic.turns.tenants.values())
    for tenant in tenants:
        ready = parked = 0
        for flow in list(tenant.flows.values()):
            items = flow.ready
            ready += items
            parked += items if flow.parked is not None else 0
            looked += 1
            if looked % _FLOWS == 0:
                yield
        weight = namespace.weight(key[1], tenant.name, tenant.given_weight)
        found.add(tenant.name, TenantCounts(ready, parked, weight, tenant.served))
    done(found)


_MOST_FLOWS = 10_000
"""Flows of one host whose items are counted for an answer."""
_KEYS = 2_000
"""Keys that are looked at in one turn of the event loop."""


class KeyStats(NamedTuple):
    """Flows of a key that are parked and their items, the longest time since when one is parked, and deliveries over a
    shadow throttle. `tokens`: in the bucket; `taken`: live leases, and `free`: how many more there may be. These three
    are None on a host that does not coordinate the key. `overage` and `reclaimed`: see ThrottleStats of the IDL."""

    parked_flows: int = 0
    parked_items: int = 0
    longest_wait_ms: int = 0
    shadow_held: int = 0
    tokens: float | None = None
    taken: int | None = None
    free: int | None = None
    overage: int = 0
    reclaimed: int = 0


class Coordinated(NamedTuple):
    """The quotas and throttle keys that this host coordinates, and the tokens in the bucket of each and its slots, None
    if it is forgotten by now."""

    keys: Sequence[Bounded]
    tokens_of: Callable[[Bounded], float | None]
    slots_of: Callable[[Bounded], Slots | None]


def throttles_of(
    state: State,
    coordinated: Coordinated,
    ns: str,
    prefix: str,
    after: str,
    limit: int,
    done: Callable[[dict[str, KeyStats]], None],
) -> None:
    """Report the first keys behind `after`, in order, that begin with `prefix`: those in use here, and those that this
    host coordinates."""
    begin_long(state, _search_keys(state, coordinated, ns, prefix, after, limit, done))


def _search_keys(
    state: State,
    coordinated: Coordinated,
    ns: str,
    prefix: str,
    after: str,
    limit: int,
    done: Callable[[dict[str, KeyStats]], None],
) -> Iterator[None]:
    used, begin, concurrency = state.throttling.keys, THROTTLE + prefix, state.throttling.concurrency
    first: list[str] = []
    for keys in (list(used), concurrency.keys(ns), coordinated.keys):
        for at in range(0, len(keys), _KEYS):
            if at:
                yield
            part = [key[1] for key in keys[at : at + _KEYS] if key[0] == ns and key[1].startswith(begin)]
            names = {name for name in part if name > THROTTLE + after}
            first = sorted({*first, *names})[:limit] if names else first
    found: dict[str, KeyStats] = {}
    flows, now_ms = _MOST_FLOWS, state.throttling.monotonic_ms()
    for name in first:
        bounded = (ns, name)
        key, gates, past = used.get(bounded), concurrency.gates(bounded), concurrency.past(bounded)
        slots = coordinated.slots_of(bounded)
        one = _of_gates([*gates, *([] if key is None else [key])], flows, now_ms)
        flows = max(0, flows - one.parked_flows)
        found[name[len(THROTTLE) :]] = one._replace(
            tokens=coordinated.tokens_of(bounded),
            taken=None if slots is None else slots.taken,
            free=None if slots is None else max(0, slots.limit - slots.taken),
            shadow_held=(key.shadow_held if key else 0) + (slots.shadow_held if slots else 0),
            overage=sum([gate.overage for gate in gates], past.overage),
            reclaimed=sum([gate.reclaimed for gate in gates], past.reclaimed + (slots.reclaimed if slots else 0)),
        )
    done(found)


def _of_gates(gates: Sequence[AnyGate], most_flows: int, now_ms: int) -> KeyStats:
    flows = items = wait_ms = 0
    for parking in [parking for gate in gates for _, parking in gate.parked()]:
        if flows < most_flows:
            items += sum([flow.ready for flow in islice(parking, most_flows - flows)])
        flows += len(parking)
        since_ms = parking.since_ms()
        wait_ms = max(wait_ms, 0 if since_ms is None else now_ms - since_ms)
    return KeyStats(flows, items, wait_ms)


_PAGE_ROWS = 200
_PAGE_BYTES = 1 << 20
_ITEMS = 5_000
"""Items that a count looks at in one turn of the event loop."""
MOST_WORKERS = 1_000
"""Workers that are reported, those with the oldest leases: consumers choose their names."""


class WorkerLeases(NamedTuple):
    """The leases that one worker holds in a topic."""

    worker: str
    held: int
    oldest_given_ms: int


def workers_of(state: State, key: TopicKey, done: Callable[[list[WorkerLeases]], None]) -> None:
    """Count the leases of a topic that are in memory, by worker, the oldest lease first. "" has the leases of consumers
    without a name, and those that an earlier owner of the shard gave."""
    begin_long(state, _count_workers(state, key, done))


def _count_workers(state: State, key: TopicKey, done: Callable[[list[WorkerLeases]], None]) -> Iterator[None]:
    found: dict[str, WorkerLeases] = {}
    looked = 0
    for shard in list(state.serving):
        plain = shard.lanes.get(lane_key(key))
        if key not in shard.tenants and (plain is None or not plain.leased):
            continue
        for item in list(shard.known.values()):
            if item.phase is Phase.LEASED and item.lane.topic.key == key:
                at_ms, worker, *_ = given_of(shard, item)
                _, held, oldest_ms = found.get(worker, (worker, 0, at_ms))
                found[worker] = WorkerLeases(worker, held + 1, min(oldest_ms, at_ms))
            looked += 1
            if looked % _ITEMS == 0:
                yield
    done(sorted(found.values(), key=lambda one: (one.oldest_given_ms, one.worker))[:MOST_WORKERS])


class Releasing(Settles):
    """Reads the leases of a topic page by page, shard after shard, and ends those of `worker` (None: of all) that were
    given at `given_until_ms` or before. Calls `reply` once with the number of ended leases and the error that kept it
    from going on, if any."""

    __slots__ = ("_at", "_error", "_given_until_ms", "_key", "_open", "_released", "_reply", "_shards", "_state",
                 "_worker", "done")  # fmt: skip

    def __init__(
        self, state: State, key: TopicKey, worker: str | None, given_until_ms: int,
        reply: Callable[[int, FoqsError | None], None],
    ) -> None:  # fmt: skip
        self._state = state
        self._key = key
        self._worker = worker
        self._given_until_ms = given_until_ms
        self._reply = reply
        self._shards = list(state.serving)
        self._at = Spot()
        self._open = 0  # ends that are not committed yet
        self._released = 0
        self._error: FoqsError | None = None
        self.done = False

    def go_on(self) -> None:
        """Read the next page, or reply when every end is committed."""
        begin_long(self._state, self._ask())

    def _ask(self) -> Iterator[None]:
        while self._shards and self._error is None:
            shard = self._shards[0]
            lanes, self._at = yield from lanes_at(shard, self._key, "leased", self._at)
            if self.done:
                return
            if lanes:
                after = self._at.after_in(lanes, "leased")
                shard.lists.append(ListRead(lanes, "leased", after, _PAGE_ROWS, _PAGE_BYTES, self._read))
                self._state.touch(shard)
                return
            self._next_shard()
        if not self._open and not self.done:
            self.done = True
            self._reply(self._released, self._error)

    def settled(self, at: int, error: FoqsError | None) -> None:
        self._released += error is None
        self._ended(error)

    def _ended(self, error: FoqsError | None) -> None:
        self._open -= 1
        if self.done:
            return
        self._error = self._error or error
        if not self._shards or self._error is not None:
            self.go_on()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.done = True
        for shard in shards.values():  # as in `Listing`: one without a connection would keep the read
            shard.lists = [read for read in shard.lists if read.done != self._read]
        self._reply(self._released, Unavailable("a shard did not answer in time"))

    def _next_shard(self) -> None:
        del self._shards[0]
        self._at = Spot()

    def _read(self, rows: list[TimerRow], bodies: dict[int, Body], _failures: object, error: FoqsError | None) -> None:
        if self.done:
            return
        if error is not None:
            self._error = error
            self.go_on()
            return
        shard, now_ms = self._shards[0], self._state.now_ms
        for row in rows:
            self._at = self._at._replace(after=(row.due_ms, row.id))
            item = shard.known.get(row.id)
            lane = shard.lane_numbers.get(row.lane)
            if item is None and row.id in bodies and lane is not None:
                item = from_found(Found(bodies[row.id], None, row), lane)
            if item is None or not stands(item, row.lease):
                continue
            given = given_of(shard, item)
            if self._worker not in (None, given.worker) or given.at_ms > self._given_until_ms:
                continue
            self._open += 1
            if shard.policies.of(self._key).max_total_ms:
                shard.looks.add(item.id, partial(self._looked, shard, row.lease))
            else:
                self._release(shard, item, now_ms)
        if not rows:
            self._at = self._at.behind()
        self._state.soon(self.go_on)

    def _release(self, shard: Shard, item: Item, since_ms: int) -> None:
        now_ms = self._state.now_ms
        change = when_due(shard, item, since_ms, now_ms - shard.late_ms)
        change.waits.append((self, 0))
        shard.put(change, now_ms)
        self._state.touch(shard)

    def _looked(
        self, shard: Shard, lease: int, item: Item | None, found: Found | None, error: FoqsError | None
    ) -> None:
        """End a lease for which the policy asks since when the item could be delivered. It may be over by now."""
        if item is not None and found is not None and stands(item, lease):
            self._release(shard, item, found.since_ms)
        else:
            self._ended(error)
