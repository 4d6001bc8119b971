"""Measure the figures of a host (`foqs.figures`): items by topic, by tenant and by worker, parked items by throttle
key, and traffic by namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from heapq import heappush, heappushpop
from itertools import islice
from typing import NamedTuple

from foqs.bounds import MOST_LISTED, THROTTLE, Bounded
from foqs.engine import ready_lanes
from foqs.engine.concurrency import AnyGate
from foqs.engine.item_ops import given_of
from foqs.engine.listing import cursor_of, parts_of
from foqs.engine.state import State, in_slices
from foqs.fairness.keys import TopicKey, fairness_of, lane_key
from foqs.fairness.rates import STEP_MS
from foqs.fairness.tenants import HELD
from foqs.fairness.topics import Topic
from foqs.figures import (
    ActiveTopic,
    NamespaceRates,
    OldestTopic,
    TenantStats,
    ThrottleStats,
    TopicStats,
    WorkerStats,
    merge_into,
    merged,
    oldest_first,
)
from foqs.item import Item, Phase
from foqs.limits.bucket import ThrottleTokens
from foqs.limits.lease_slots import LeaseSlots
from foqs.prefetch.lane import Lane

_LANES = 5_000
"""Lanes that a count looks at in one slice of the event loop."""
_TOPICS = 250
"""Topics that a search looks at in one slice."""
_UNKNOWN = (None, None, None, None)
"""The events of a minute."""


# ------------------------------------------------------------------------------------------ topics


@in_slices
def active_topics(
    state: State,
    ns: str | None,
    limit: int,
    cursor: str | None,
    address: str,
    within: Container[str] | None,
    now_ms: int,
    done: Callable[[list[ActiveTopic], bool], None],
    *,
    every: bool = False,
    dead: bool = False,
    rates: bool = False,
) -> Iterator[None]:
    """Report the topics with something ready, by name, and whether there are more; only of namespaces in `within`, if
    given. `every`: topics with items in any state, counted by state. `dead`: only topics that have dead letters, or
    take them. `rates`: with the events of the last minute; with `every`, topics with events but no items, too."""
    parts = parts_of(cursor, (str, str))
    after = (parts[0], parts[1]) if parts is not None else ("", "")
    if ns is not None:
        after = max(after, (ns, ""))
    if rates:
        yield from _end_step(state, now_ms)
    found: list[ActiveTopic] = []
    for at, keys in enumerate(_pages(state, ns, after, now_ms)):
        if at:
            yield
        for key in keys:
            if within is not None and key[0] not in within:
                continue
            if dead and not (state.policies.takes_dead(key) or (yield from _has_dead(state, key))):
                continue
            one = yield from _counted(state, key)
            minute = state.topics.rates.by_topic.of(key) if rates else None
            if not (one.ready or (every and (one.delayed or one.leased or one.behind or any(minute or ())))):
                continue
            if len(found) == limit:
                done(found, True)
                return
            topic = ActiveTopic(*key, one.ready, one.oldest_ms, (address,))
            if every:
                topic = topic._replace(
                    delayed=one.delayed, leased=one.leased, ready_paused=one.paused, ready_throttled=one.throttled,
                    dead=one.dead or None,
                )  # fmt: skip
            if rates:
                enqueued, delivered, acked, failed = minute or _UNKNOWN
                paused, closed = _held(state, key)
                topic = topic._replace(
                    enqueued_minute=enqueued, delivered_minute=delivered, acked_minute=acked, failed_minute=failed,
                    paused=paused, closed=closed,
                )  # fmt: skip
            found.append(topic)
    done(found, False)


def _pages(state: State, ns: str | None, after: TopicKey, now_ms: int) -> Iterator[list[TopicKey]]:
    """Yield the keys behind `after`, of one namespace if given, in order. Each list is for one slice of the event
    loop."""
    order = state.topics.order(now_ms)
    while order.sort(_TOPICS, state.topics):
        yield []
    while keys := order.after(after, _TOPICS):
        yield [key for key in keys if ns is None or key[0] == ns]
        if len(keys) < _TOPICS or (ns is not None and keys[-1][0] != ns):
            return
        after = keys[-1]


def _held(state: State, key: TopicKey) -> tuple[bool, bool]:
    """Return if the topic is paused, and closed."""
    if key[0] not in state.policies.namespaces:
        return False, False
    policy = state.policies.of(key)
    return policy.paused, policy.closed


def _has_dead(state: State, key: TopicKey) -> Generator[None, None, bool]:
    for at, lanes in enumerate(lanes_of(state, key)):
        if at:
            yield
        if any(lane.dead for lane in lanes):
            return True
    return False


@in_slices
def count(state: State, key: TopicKey, done: Callable[[tuple[int, int, int, int]], None]) -> Iterator[None]:
    """Report the numbers of ready, delayed and leased items of a topic, and of those behind in their orders."""
    one = yield from _counted(state, key)
    done((one.ready, one.delayed, one.leased, one.behind))


class _Counts(NamedTuple):
    """Items of a topic by state, `behind` items wait for earlier ones of their order keys.
    Of the ready ones: `paused` by the topic's policy, `throttled` in flows that wait.
    `oldest_ms`: `oldest_ready_at_ms`, 0 without one. `dead`: it has dead letters, or takes them."""

    ready: int
    delayed: int
    leased: int
    behind: int
    oldest_ms: int
    paused: int
    throttled: int
    dead: bool


def _counted(state: State, key: TopicKey) -> Generator[None, None, _Counts]:
    ready = leased = behind = total = oldest_ms = paused = throttled = 0
    dead, held = state.policies.takes_dead(key), pause_of(state, key)
    for at, lanes in enumerate(lanes_of(state, key)):
        if at:
            yield
        for lane in lanes:
            if lane.ready:
                lane_ms = lane.oldest_ready_at_ms()
                oldest_ms = min(oldest_ms, lane_ms) if ready else lane_ms
                if held is not None and held(lane):
                    paused += lane.ready
                elif lane.flow is not None and state.throttling.dry_gate(lane.flow) is not None:
                    throttled += lane.ready
            ready, leased, total = ready + lane.ready, leased + lane.leased, total + lane.total
            behind += lane.behind
            dead = dead or bool(lane.dead)
    delayed = max(0, total - ready - leased - behind)
    return _Counts(ready, delayed, leased, behind, oldest_ms, paused, throttled, dead)


@in_slices
def topic_stats(state: State, key: TopicKey, now_ms: int, done: Callable[[TopicStats], None]) -> Iterator[None]:
    """Report the items of a topic by state, its workers and its tenants."""
    yield from _end_step(state, now_ms)
    one = yield from _counted(state, key)
    completed, failed = yield from _kept(state, key)
    workers = yield from _workers(state, key, now_ms)
    tenants = yield from _tenants(state, key)
    minute, ten, hour = state.topics.failing.sums(key, now_ms)
    enqueued, delivered, acked, attempts = state.topics.rates.by_topic.of(key) or _UNKNOWN
    done(
        TopicStats(
            one.ready, one.delayed, one.leased, completed=completed, failed=failed, workers=workers,
            tenants=tuple(tenants.named()), ready_paused=one.paused, ready_throttled=one.throttled,
            more_tenants=tenants.rest_if_any(), attempts_failed_minute=minute, attempts_failed_10_minutes=ten,
            attempts_failed_hour=hour, enqueued_minute=enqueued, delivered_minute=delivered, acked_minute=acked,
            failed_minute=attempts, behind=one.behind,
        )
    )  # fmt: skip


def _kept(state: State, key: TopicKey) -> Generator[None, None, tuple[int, int]]:
    """Return the numbers of COMPLETED and FAILED items that the topic keeps."""
    completed = failed = 0
    if any(key in shard.queue.kept.topics for shard in state.serving):
        for lanes in lanes_of(state, key):
            for lane in lanes:
                shard = lane.term.shard
                of_lane = (0, 0) if shard is None else shard.queue.kept.of_lane(lane.number)
                completed, failed = completed + of_lane[0], failed + of_lane[1]
            yield
    return completed, failed


def topics_cursor(last: ActiveTopic) -> str:
    """Return the cursor of the page behind `last`."""
    return cursor_of(last.ns, last.topic)


def lanes_of(state: State, key: TopicKey) -> Iterator[list[Lane[Item]]]:
    """Yield the lanes of a topic on the open shards in parts, each for one slice of the event loop. A topic of plain
    lanes has one part."""
    if not any(key in shard.memory.tenants for shard in state.serving):
        topic = state.topics.get(key)
        yield topic.lanes() if topic is not None else []
        return
    for shard in list(state.serving):
        plain, above = shard.memory.lanes.get(lane_key(key)), 0
        if plain is not None:
            yield [plain]
        while (tenants := shard.memory.tenants.get(key)) is not None and (part := tenants.behind(above, _LANES)):
            above, numbers = part[-1], shard.memory.lane_numbers
            yield [numbers[number] for number in part if number in numbers]


def pause_of(state: State, key: TopicKey) -> Callable[[Lane[Item]], bool] | None:
    """Return what says of a lane of the topic whether a pause of the topic, or of its tenant, holds it; None if there
    is no pause."""
    policies = state.policies.pausing.get(key[0])
    if policies is None:
        return None
    policy = policies.of(key[1])
    if policy.paused:
        return lambda _: True
    tenants = policy.paused_tenants
    return (lambda lane: fairness_of(lane.key) in tenants) if tenants else None


def last_asked_ms(topic: Topic[Lane[Item]]) -> int:
    """Return when a consumer asked for the topic last, 0 if that is not known."""
    if topic.turns is not None:
        return topic.turns.used_ms
    return max((lane.window.used_ms for lane in topic.lanes() if lane.window is not None), default=0)


# ------------------------------------------------------------------------------------------ tenants

_FLOWS = 250
"""Flows that a count looks at in one slice of the event loop."""


def turn_weight(tenant: TenantStats) -> int:
    """Return the weight that takes part in the turns now. Of sums over several tenants it is theirs together."""
    return tenant.weight if tenant.ready > tenant.parked else 0


class MostReady:
    """Up to `most` tenants by name, the tenants with the most ready items. `rest` has the sums of further ones. Its
    weight counts tenants that take part in the turns."""

    def __init__(self, most: int) -> None:
        self.rest = TenantStats()
        self._most = most
        self._heap: list[tuple[int, str, TenantStats]] = []

    def add(self, tenant: TenantStats) -> None:
        """Add a tenant, which was not added before."""
        one = (tenant.ready, tenant.fairness_key, tenant)
        if len(self._heap) < self._most:
            heappush(self._heap, one)
        else:
            self.add_rest(heappushpop(self._heap, one)[2])

    def add_rest(self, tenants: TenantStats) -> None:
        """Add tenants that have no names here."""
        weight = self.rest.weight + turn_weight(tenants)
        self.rest = merged(self.rest, tenants)._replace(weight=weight, waits_for="")

    def named(self) -> list[TenantStats]:
        """Return the tenants with names: the most ready items first."""
        return [tenant for *_, tenant in sorted(self._heap, key=lambda one: (-one[0], one[1]))]

    def rest_if_any(self) -> TenantStats | None:
        return None if self.rest == TenantStats() else self.rest


def _tenants(state: State, key: TopicKey) -> Generator[None, None, MostReady]:
    """Count the tenants of a topic. It has none if its tenants take no turns."""
    found, looked = MostReady(MOST_LISTED), 0
    topic, namespace = state.topics.get(key), state.policies.namespace(key[0])
    if topic is not None:
        ready_lanes.bounds_of(state, topic)
    tenants = [] if topic is None or topic.turns is None else list(topic.turns.tenants.values())
    for tenant in tenants:
        ready = parked = 0
        waits: Counter[str] = Counter()
        for flow in list(tenant.flows.values()):
            items = flow.ready
            ready += items
            gate = state.throttling.dry_gate(flow) if items else None
            if gate is not None:
                waits[gate.name] += items
            parked += items if gate is not None or flow.waits else 0
            looked += 1
            if looked % _FLOWS == 0:
                yield
        weight = namespace.weight(key[1], tenant.name, tenant.given_weight)
        key_of_most = max(waits, key=lambda name: (waits[name], name), default="")
        found.add(TenantStats(tenant.name, weight, ready, parked, tenant.served, paused=tenant.away == HELD,
                              waits_for=key_of_most))  # fmt: skip
    return found


_MOST_FLOWS = 10_000
"""Flows of one host whose items are counted for an answer."""
_KEYS = 2_000
"""Keys that are looked at in one slice of the event loop."""


class Coordinated(NamedTuple):
    """The throttle keys that the host at `address` coordinates, and the ledgers of the tokens and slots of each, None
    if it is forgotten by now."""

    keys: Sequence[Bounded]
    tokens_of: Callable[[Bounded], ThrottleTokens | None]
    slots_of: Callable[[Bounded], LeaseSlots | None]
    address: str


@in_slices
def throttles_of(
    state: State,
    coordinated: Coordinated,
    ns: str,
    prefix: str,
    after: str,
    limit: int,
    done: Callable[[dict[str, ThrottleStats]], None],
) -> Iterator[None]:
    """Report the first keys behind `after`, in order, that begin with `prefix`: keys in use here, keys that this
    host coordinates, and keys that a throttle in shadow counted here in the last hour."""
    used, begin, concurrency = state.throttling.keys, THROTTLE + prefix, state.throttling.concurrency
    rates, leases = state.throttling.shadow_rates, state.throttling.shadow_leases
    first: list[str] = []
    for keys in (list(used), concurrency.keys(ns), coordinated.keys, list(rates), list(leases)):
        for at in range(0, len(keys), _KEYS):
            if at:
                yield
            part = [key[1] for key in keys[at : at + _KEYS] if key[0] == ns and key[1].startswith(begin)]
            names = {name for name in part if name > THROTTLE + after}
            first = sorted({*first, *names})[:limit] if names else first
    found: dict[str, ThrottleStats] = {}
    flows, now_ms = _MOST_FLOWS, state.throttling.monotonic_ms()
    for name in first:
        bounded = (ns, name)
        key, gates, past = used.get(bounded), concurrency.gates(bounded), concurrency.past(bounded)
        tokens, slots = coordinated.tokens_of(bounded), coordinated.slots_of(bounded)
        one = _of_gates(name[len(THROTTLE) :], [*gates, *([] if key is None else [key])], flows, now_ms)
        flows = max(0, flows - one.parked_flows)
        found[one.key] = one._replace(
            tokens=None if tokens is None else tokens.here(now_ms),
            coordinator="" if tokens is None and slots is None else coordinated.address,
            taken=None if slots is None else slots.taken,
            free=None if slots is None else max(0, slots.limit - slots.taken),
            shadow_held=(key.shadow_held if key else 0) + (slots.shadow_held if slots else 0),
            overage=sum([gate.overage for gate in gates], past.overage),
            reclaimed=sum([gate.reclaimed for gate in gates], past.reclaimed + (slots.reclaimed if slots else 0)),
            shadow_rate=rates[bounded].sums(now_ms) if bounded in rates else None,
            shadow_leases=leases[bounded].sums(now_ms) if bounded in leases else None,
        )
    done(found)


def _of_gates(key: str, gates: Sequence[AnyGate], most_flows: int, now_ms: int) -> ThrottleStats:
    flows = items = wait_ms = 0
    for parking in [parking for gate in gates for _, parking in gate.parked()]:
        if flows < most_flows:
            items += sum([flow.ready for flow in islice(parking, most_flows - flows)])
        flows += len(parking)
        since_ms = parking.since_ms()
        wait_ms = max(wait_ms, 0 if since_ms is None else now_ms - since_ms)
    return ThrottleStats(key, parked_flows=flows, parked_items=items, longest_wait_ms=wait_ms)


_ITEMS = 5_000
"""Items that a count looks at in one slice of the event loop."""
MOST_WORKERS = 1_000
"""Workers that are reported, the workers with the oldest leases: consumers choose their names."""


def _workers(state: State, key: TopicKey, now_ms: int) -> Generator[None, None, tuple[WorkerStats, ...]]:
    """Count the leases of a topic that are in memory, by worker, the oldest lease first, and hung handlers."""
    found: dict[str, tuple[int, int]] = {}  # leases, and when the oldest was given
    looked = 0
    for shard in list(state.serving):
        plain = shard.memory.lanes.get(lane_key(key))
        if key not in shard.memory.tenants and (plain is None or not plain.leased):
            continue
        for item in list(shard.memory.known.values()):
            if item.phase is Phase.LEASED and item.lane.topic.key == key:
                at_ms, worker, *_ = given_of(shard.owner, item)
                held, oldest_ms = found.get(worker, (0, at_ms))
                found[worker] = held + 1, min(oldest_ms, at_ms)
            looked += 1
            if looked % _ITEMS == 0:
                yield
    oldest = sorted(found.items(), key=lambda one: (one[1][1], one[0]))[:MOST_WORKERS]
    workers = {name: WorkerStats(name, held, max(0, now_ms - at_ms)) for name, (held, at_ms) in oldest}
    hung = state.hung.of(key, now_ms)
    merge_into(workers, [WorkerStats(worker, hung=handlers) for worker, handlers in hung.items()])
    return tuple(workers.values())


# ------------------------------------------------------------------------------------------ namespaces

_SUMS = 500
"""Topics whose events are summed up in one slice."""
_RINGS = 50
"""Rings that are read in one slice of the event loop."""


@in_slices
def turn(state: State, now_ms: int) -> Iterator[None]:
    """End the present step of the rates if `now_ms` is not in it, and sum up its events by topic."""
    yield from _end_step(state, now_ms)


def _end_step(state: State, now_ms: int) -> Iterator[None]:
    rates = state.topics.rates
    rates.turn(now_ms)
    while rates.by_topic.sum_up(_SUMS):
        yield


@in_slices
def traffic(
    state: State,
    ns: str | None,
    within: Container[str] | None,
    steps: int,
    limit: int,
    now_ms: int,
    done: Callable[[list[NamespaceRates], int, bool], None],
    *,
    items: bool = False,
) -> Iterator[None]:
    """Report the namespaces with the most traffic in the last whole `steps`, at most `limit`, or only `ns`; the number
    of the first step; and whether further ones had traffic. Only namespaces in `within`, if given. `items`: count
    the items of `ns` by state."""
    rates = state.topics.rates
    turn(state, now_ms)
    first = now_ms // STEP_MS - steps
    names = rates.named() if ns is None else [ns]
    names = [name for name in names if within is None or name in within]
    sums: list[tuple[int, str]] = []
    for at in range(0, len(names), _RINGS):
        if at:
            yield
        cells = rates.cells(first, steps)
        sums += [(-total, name) for name in names[at : at + _RINGS] if (total := rates.total(name, cells))]
    sums.sort()
    found: list[NamespaceRates] = []
    for at in range(0, min(limit, len(sums)), _RINGS):
        if at or len(names) > _RINGS:
            yield
        cells = rates.cells(first, steps)
        found += [rates.figures(name, cells) for _, name in sums[at : min(at + _RINGS, limit)]]
    if items and ns is not None and names:
        one = found[0] if found else NamespaceRates(ns)
        found = [(yield from _with_items(state, one, now_ms))]
    done(found, first, len(sums) > limit or (rates.more and ns is None and within is None))


def _with_items(state: State, rates: NamespaceRates, now_ms: int) -> Generator[None, None, NamespaceRates]:
    """Return the rates with the items of the namespace."""
    ready = delayed = leased = paused = throttled = dead = 0
    oldest: list[OldestTopic] = []
    for at, keys in enumerate(_pages(state, rates.ns, (rates.ns, ""), now_ms)):
        if at:
            yield
        for key in keys:
            one = yield from _counted(state, key)
            ready, delayed, leased = ready + one.ready, delayed + one.delayed, leased + one.leased
            paused, throttled = paused + one.paused, throttled + one.throttled
            if one.dead:
                dead += one.ready - one.paused - one.throttled
            if one.ready:
                oldest.append(OldestTopic(key[1], one.oldest_ms))
        oldest = [*oldest_first(oldest)]
    return rates._replace(
        ready=ready, delayed=delayed, leased=leased, oldest=tuple(oldest), ready_paused=paused,
        ready_throttled=throttled, ready_dead=dead,
    )  # fmt: skip
