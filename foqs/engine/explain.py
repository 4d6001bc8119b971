"""Why an item is not delivered yet: reasons from memory, and from the item's row as GetItem finds it.

The reasons are in the order in which they have to end (`ORDER`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple

from foqs.bounds import MOST_LISTED
from foqs.checks import counted
from foqs.engine import explain_limits, explain_tenants, ready_lanes
from foqs.engine.concurrency import AnyGate, Parked
from foqs.engine.explain_limits import NO_LEDGERS, Ahead, Ledgers, dry_gate, span
from foqs.engine.explain_tenants import command
from foqs.engine.item_ops import change_at_limit, given_of
from foqs.engine.listing import Listed, Listing
from foqs.engine.shard import Shard
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.state import State, in_slices
from foqs.engine.stats import count, last_asked_ms
from foqs.engine.workers import LATELY_MS
from foqs.fairness.keys import TopicKey, fairness_of, topic_key
from foqs.fairness.ledger import Position, position_of
from foqs.fairness.tenants import Flow
from foqs.fairness.topics import Topic
from foqs.idl import idl
from foqs.ids import number_of, shard_of
from foqs.item import Item, Phase, Place
from foqs.limits.lease_slots import ShardSlots
from foqs.prefetch.lane import Lane
from foqs.rows import FailureCause, LastFailure
from foqs.shardmgr.lifecycle import ShardState

_FLOWS = 10_000
"""Parked flows that are compared with that of an item: of more of them every second, every third and so on."""

_HOLDERS = 10
"""Items that are named as holders of the slots of a key."""

_RETRIES_BYTES = 1 << 20
"""Bodies that are read with the delayed items of a topic."""
_RETRIES_MS = 1_000
_SHOWN = 200

_Reason = idl.ExplainReason
_Code = idl.Reason
_Kind = idl.LimitKind


ORDER = (
    _Code.GONE, _Code.EXHAUSTED, _Code.SHARD_NOT_SERVED, _Code.CLOCK_IN_DOUBT, _Code.OWNER_IN_GRACE,
    _Code.BREAKER_OPEN, _Code.DELAYED, _Code.LEASED, _Code.BEHIND_IN_ORDER, _Code.PAUSED, _Code.THROTTLED,
    _Code.CONCURRENCY, _Code.BEHIND_IN_LANE, _Code.BEHIND_IN_TURN, _Code.PER_WORKER, _Code.NO_CONSUMER,
    _Code.NOT_LOADED,
)  # fmt: skip
"""The reasons in the order in which they have to end. Their numbers in the contract have no order."""
_RANKS = {code: rank for rank, code in enumerate(ORDER)}


class Explanation(NamedTuple):
    """`reasons` are ExplainReason, `state` is a member of ItemState; see ExplainItemResponse. `last_failure` and
    `limits` (ExplainLimit) of an item; `tenants` (ExplainTenants) and `tenants_ready` of a topic."""

    reasons: Sequence[Any]
    eta_ms: int | None = None
    state: int | None = None
    last_failure: LastFailure | None = None
    limits: Sequence[Any] = ()
    tenants: Sequence[Any] = ()
    tenants_ready: int | None = None


def no_item(item_id: int, shards: Collection[int], below: int | None = None) -> str:
    """Return why no item has this id, as far as the id says it. `shards`: the numbers of all. Its shard has given only
    ids `below` this one; None: that is not known."""
    number = shard_of(item_id)
    if number <= 0 or not number_of(item_id):
        return f"no such item: {item_id} is no item's id, which names a shard and a number of 1 or more in it"
    if number not in shards:
        return f"no such item: its id names shard {number}, which the service does not have, or no longer"
    if below is not None and item_id >= below:
        return f"no such item: shard {number} has not given this id, unless an older copy of its database was put back"
    return (
        "no such item: it was acked or deleted, its TTL ended, it failed for good, or it never was. Ended items stay, "
        "with their results, only in a topic whose policy has `keep`: for the next ones, "
        """foqs topic policy TOPIC 'keep={"completed_ms": 3600000, "failed_ms": 86400000}'"""
    )


def gone(why: str) -> Explanation:
    """Explain an item that is not there. `why` as `no_item` returns it."""
    return Explanation([_Reason(_Code.GONE, f"There is {why}.")])


def not_served(shard: int, *, disabled: bool = False) -> Explanation:
    """Explain an item of a shard that no host serves."""
    return Explanation([_not_served(shard, disabled=disabled)])


def of_shard(state: State, shard: Shard, now_ms: int) -> list[Any]:
    """Return why no item of the shard is leased now."""
    owner = shard.owner
    number, reasons = shard.number, []
    if state.draining or owner.state is not ShardState.SERVING:
        return [_not_served(number, disabled=False)]
    if owner.held:
        why = f"The host of shard {number} waits until it knows which clock is right: its /readyz has the reason."
        reasons.append(_Reason(_Code.CLOCK_IN_DOUBT, why))
    if owner.in_takeover_grace(now_ms):
        assert owner.grace_from_ms is not None
        until_ms = owner.grace_from_ms + shard.config.confirm_ms + 1
        why = f"Shard {number} was taken from a host that may still run: no item of it is leased before that ends,"
        why = f"{why} {_in(until_ms, now_ms)}."
        reasons.append(_Reason(_Code.OWNER_IN_GRACE, why, until_ms))
    if not shard.healthy(now_ms):
        why = f"The database of shard {number} fails, is slow, or does not answer: see foqs doctor."
        reasons.append(_Reason(_Code.BREAKER_OPEN, why, owner.breaker.retry_at_ms(now_ms) or None))
    return reasons


def of_item(
    state: State, shard: Shard, item: Item, now_ms: int, last: LastFailure | None = None, ledgers: Ledgers = NO_LEDGERS
) -> Explanation:
    """Explain an item that is in the shard, known in memory or as its row says. `last`: of its row."""
    key = item.lane.topic.key
    reasons = of_shard(state, shard, now_ms)
    # The rate of deliveries says nothing until these end.
    passing = state.policies.holds(key, fairness_of(item.lane.key)) or bool(reasons)
    eta_ms, gate = None, None
    if item.phase is Phase.LEASED:
        found = idl.ItemState.LEASED
        reasons.append(_leased(shard.owner, item, now_ms))
    elif 0 < item.expires_at_ms <= now_ms:
        return Explanation([_Reason(_Code.GONE, "Its TTL has ended: it is removed soon.")])
    elif item.place is Place.TIMER:
        found = idl.ItemState.DELAYED
        reasons += [_delayed(shard, item, last, now_ms), *_ended(shard, item, now_ms)]
    elif item.order is not None and (before := shard.memory.orders.before(item.order))[0] != item.id:
        found = idl.ItemState.BEHIND
        reasons.append(_behind_in_order(shard, item, *before))
    else:
        found = idl.ItemState.READY
        ended = _ended(shard, item, now_ms)
        passing = passing or bool(ended)
        reasons += ended
        least, most = _ahead(_merged(item, now_ms), item)
        if least:
            reasons.append(_behind(item, least, most))
        gate = None if item.lane.flow is None else dry_gate(state, item.lane.flow, ledgers)
        passing = passing or gate is not None
        position = _position(item)
        if position.turns or position.urgent:
            reasons.append(_behind_tenants(item, position))
        reasons += _no_consumer(state, item.lane.topic, now_ms)
        reasons += _not_loaded(item, least, most)
        rate = state.explained.a_second(key, now_ms)
        ahead = least / position.share + position.turns
        if ahead and least == most and rate and not (passing or position.urgent):
            eta_ms = int(ahead / rate * 1000)
    reasons += _paused(state, key, now_ms, fairness_of(item.lane.key))
    flow, ready = item.lane.flow, found == idl.ItemState.READY
    own = [lane for lane in (item.lane.topic.lanes() if flow is None else flow.lanes) if lane.ready]
    limits = explain_limits.of_item(state, shard, item, Ahead(*_ahead(own, item, ready=ready)), ledgers, now_ms)
    if gate is not None:
        reasons.append(_without_unit(state, key, gate, flow, limits, now_ms))
    return Explanation(in_order(reasons), eta_ms, found, last, limits)


def of_topic(
    state: State, key: TopicKey, now_ms: int, done: Callable[[Explanation], None], ledgers: Ledgers = NO_LEDGERS
) -> None:
    """Explain why no item of a topic is delivered by this host."""

    def explained(reasons: list[Any], tenants: Sequence[Any] = (), tenants_ready: int | None = None) -> None:
        answer = Explanation(in_order([*reasons, *_paused(state, key, now_ms)]))
        done(answer._replace(tenants=tenants, tenants_ready=tenants_ready))

    def counted(counts: tuple[int, int, int, int]) -> None:
        def read(retries: str) -> None:
            explained(_of_others(state, key, counts, retries, now_ms))

        if counts[1]:
            _read_retries(state, key, now_ms, read)
        else:
            read("")

    topic = state.topics.get(key)
    if topic is not None and topic.ready:
        _with_tenants(state, topic, ledgers, now_ms, explained, partial(count, state, key, counted))
    else:
        count(state, key, counted)


@in_slices
def _with_tenants(
    state: State, topic: Topic[Lane[Item]], ledgers: Ledgers, now_ms: int,
    explained: Callable[[list[Any], Sequence[Any], int | None], None], delivered: Callable[[], None],
) -> Iterator[None]:  # fmt: skip
    """Explain a topic that has ready items, and count the tenants that wait. `delivered`: it has none any longer."""
    ready_lanes.bounds_of(state, topic)
    tenants, ready = yield from explain_tenants.waiting(state, topic, ledgers, now_ms)
    if topic.ready:
        explained(_of_ready(state, topic, now_ms), tenants, ready)
    else:
        delivered()


def _of_ready(state: State, topic: Topic[Lane[Item]], now_ms: int) -> list[Any]:
    """Explain a topic that has ready items."""
    ready_lanes.bounds_of(state, topic)
    if topic.turns is not None:
        tallies = topic.turns.tallies.items()
        lanes, shards = [], [term.shard for term, tally in tallies if tally.ready and term.shard is not None]
    else:
        lanes = [lane for lane in topic.lanes() if lane.ready]
        shards = [lane.term.shard for lane in lanes]
    held = {shard: of_shard(state, shard, now_ms) for shard in shards}
    if all(held.values()):
        return [reason for each in held.values() for reason in each]
    reasons = _no_consumer(state, topic, now_ms)
    if topic.turns is not None and not topic.turns.unparked:
        reasons += explain_tenants.held(state, topic.key, topic.turns, now_ms)
        gate = state.throttling.demand.first_due([topic.key])
        if gate is not None:
            reasons.append(_without_unit(state, topic.key, gate, None, (), now_ms))
    if lanes and not any(_has_first(lane) for lane in lanes if not held[lane.term.shard]):
        reasons.append(_Reason(_Code.NOT_LOADED, "The first items are not in memory: a dequeue reads them."))
    return reasons


def _read_retries(state: State, key: TopicKey, now_ms: int, done: Callable[[str], None]) -> None:
    """Say how many of the first delayed items wait for a retry, and the most common reason; "" if none does."""

    def listed(items: list[Listed], cursor: str | None) -> None:
        done(_retries_said(items, more=cursor is not None))

    delayed = idl.ItemState.DELAYED
    reading = Listing(state, key, delayed, MOST_LISTED, _RETRIES_BYTES, None, listed, lambda _error: done(""))
    state.deadlines.push(now_ms + _RETRIES_MS, reading)
    state.alarm(now_ms + _RETRIES_MS)
    reading.go_on()


def _retries_said(items: list[Listed], *, more: bool) -> str:
    waiting = sum(item.attempt > 0 for item in items)
    if not waiting:
        return ""
    of = f"{'the first ' if more else ''}{counted(len(items), 'delayed item')}"
    said = f"{waiting:,} of {of} {'waits' if waiting == 1 else 'wait'} for a retry"
    failures = [item.last_failure for item in items if item.last_failure is not None]
    groups = Counter((last.cause, last.fingerprint) for last in failures)
    if not groups:
        return f"{said}."
    (group, count), *_ = groups.most_common(1)
    last = next(one for one in failures if (one.cause, one.fingerprint) == group)
    reason = shortened(last.reason.decode()) or FailureCause(last.cause).name.lower()
    return f"{said}; most common ({count:,}): {reason}."


def _of_others(state: State, key: TopicKey, counts: tuple[int, int, int, int], retries: str, now_ms: int) -> list[Any]:
    """Explain a topic without ready items."""
    _, delayed, leased, behind = counts
    if not delayed + leased + behind:
        return [_no_items(state, key, now_ms)]
    reasons, see = [], f"see {command('items', key)}"
    if delayed:
        why = f"{counted(delayed, 'item', 'is', 'are')} delayed, and none is ready: {see} --state delayed."
        if retries:
            why = f"{why} {retries}"
        reasons.append(_Reason(_Code.DELAYED, why, count=delayed))
    if leased:
        why = f"{counted(leased, 'item', 'is', 'are')} leased, and none is ready: {see} --state leased."
        reasons.append(_Reason(_Code.LEASED, why, count=leased))
    if behind:
        wait = counted(behind, "item", "waits for an earlier one", "wait for earlier ones")
        why = f"{wait} of the same order key, and none is ready."
        reasons.append(_Reason(_Code.BEHIND_IN_ORDER, why, count=behind))
    return reasons


def in_order(reasons: Iterable[Any]) -> list[Any]:
    """Return the reasons in the order in which they have to end."""
    return sorted(reasons, key=lambda reason: rank(reason.code))


def rank(code: int) -> int:
    """Return the place of a reason in `ORDER`."""
    return _RANKS[code]


# ------------------------------------------------------------------------------------------ reasons


def _not_served(number: int, *, disabled: bool) -> Any:
    why = f"No host serves shard {number} now: it is moved or opened, or its database is away; see foqs doctor."
    if disabled:
        why = f"Shard {number} is disabled: see foqs cluster status."
    return _Reason(_Code.SHARD_NOT_SERVED, why)


def _ended(shard: Shard, item: Item, now_ms: int) -> list[Any]:
    """Explain an item that is not leased and has no attempt left, as after a lower limit."""
    change = change_at_limit(shard, item, now_ms)
    if change is None:
        return []
    dead = None if change.move is None else topic_key(change.move.lane)[1]
    then = "removes it" if dead is None else f"moves it to the dead-letter topic {dead}"
    tries = "attempt is" if item.attempt == 1 else "attempts are"
    why = f"Its {item.attempt:,} {tries} used up: a dequeue that reaches it delivers it no more, but {then}."
    return [_Reason(_Code.EXHAUSTED, why, key=dead, count=item.attempt)]


def _delayed(shard: Shard, item: Item, last: LastFailure | None, now_ms: int) -> Any:
    again, by = _in(item.deliver_after_ms, now_ms), None
    if last is not None and last.attempt == item.attempt:
        most = shard.policy_of(item.lane).max_attempts
        of, by = f" of {most:,}" if most else "", last.worker.decode() or None
        where = "" if by is None else f" in {by}"
        why = f"Attempt {last.attempt:,}{of} {_said(last)} {span(now_ms - last.at_ms)} ago{where}"
        if last.reason:
            why = f"{why}: {shortened(last.reason.decode())}"
        why = f"{why}; again {again}."
    else:
        after = f"Attempt {item.attempt} has ended, and the next comes" if item.attempt else "Its delay ends"
        why = f"{after} {again}."
    return _Reason(_Code.DELAYED, why, item.deliver_after_ms, by=by)


def shortened(reason: str) -> str:
    """Return a reason in one line.

    >>> shortened("SMTP 451\\n  try later"), len(shortened("x" * 1_000))
    ('SMTP 451 try later', 200)
    """
    line = " ".join(reason.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."


def _said(last: LastFailure) -> str:
    return "ended with its lease" if last.cause == FailureCause.EXPIRED else "failed"


def _leased(owner: ShardOwner, item: Item, now_ms: int) -> Any:
    given, until_ms = given_of(owner, item), item.lease_expires_at_ms
    worker, times = given.worker, given.extensions
    who = f"Worker {worker}" if worker else "A consumer"
    why = f"{who} has leased it"
    if times:
        least = "at least " if given.moment is None else ""
        often = "once, " if times == 1 else f"{times:,} times, last "
        why = f"{who} has held it for {least}{span(now_ms - given.at_ms)}"
        why = f"{why} (extended {often}{span(now_ms - given.extended_ms)} ago)"
    why = f"{why}, and the lease ends {_in(until_ms, now_ms)}; see {command('topic stats', item.lane.topic.key)}."
    return _Reason(_Code.LEASED, why, until_ms, count=times or None, by=worker or None, since_ms=given.at_ms)


def _paused(state: State, key: TopicKey, now_ms: int, tenant: str | None = None) -> list[Any]:
    """`tenant`: that of an item."""
    if state.policies.paused(key):
        field, what, held = "paused", "the topic", None
    elif tenant is not None and state.policies.holds(key, tenant):
        field, held = "paused_tenants", tenant
        what = f"tenant {tenant!r} of the topic" if tenant else "the items of the topic without a fairness key"
    else:
        return []
    entry, said, stamp = explain_tenants.by_settings(state, key, field, now_ms, held)
    why = f"The settings entry {entry} pauses {what}{said}; see {command('topic policy', key)}."
    by, since_ms = stamp.by or None, stamp.changed_at_ms or None
    return [_Reason(_Code.PAUSED, why, key=entry, by=by, since_ms=since_ms, tenant=held)]


def _no_items(state: State, key: TopicKey, now_ms: int) -> Any:
    """Explain a topic without items; a closed one takes none."""
    if not state.policies.of(key).closed:
        return _Reason(_Code.GONE, "The topic has no items.")
    entry, said, stamp = explain_tenants.by_settings(state, key, "closed", now_ms)
    see = command("topic policy", key)
    why = f"The topic has no items, and the settings entry {entry} closes it{said}; see {see}."
    return _Reason(_Code.GONE, why, key=entry, by=stamp.by or None, since_ms=stamp.changed_at_ms or None)


def _without_unit(
    state: State, topic: TopicKey, gate: AnyGate, flow: Flow[Any] | None, limits: Iterable[Any], now_ms: int
) -> Any:
    """`flow` and `limits` (ExplainLimit) belong to the item; a topic has neither."""
    parking, before = gate.active.get(topic) or gate.asleep.get(topic), 0
    if flow is not None and parking is not None:
        step, start = 1 + len(parking) // _FLOWS, flow.tenant.start
        before = step * sum(other.tenant.start < start for other in islice(parking, 0, None, step))
    see = f"see foqs throttle list --ns {quote(topic[0])}"
    if isinstance(gate, ShardSlots):
        return _full(state, gate, before, _own(limits, _Kind.CONCURRENCY, gate.name), see)
    throttle, own = gate.throttle, _own(limits, _Kind.RATE, gate.name)
    until_ms = now_ms + max(0, state.throttling.due_in_ms(gate))
    turns = [] if own is None else [_turn(own, "token")]
    if own is None or own.before:
        turns.append(f"the next one, for the first item that waits, may come {_in(until_ms, now_ms)}")
    limit = f"{throttle.per_second:g} deliveries a second, {throttle.burst:,} at once"
    why = f"Throttle key {gate.name!r} has no token here: {'; '.join(turns)}; the limit is {limit}: {see}."
    return _Reason(_Code.THROTTLED, why, until_ms, gate.name, before)


def _full(state: State, gate: ShardSlots[TopicKey, Parked], before: int, own: Any | None, see: str) -> Any:
    """Explain an item that waits for a slot. `own`: its limit."""
    holders: list[int] = []
    for other in state.throttling.concurrency.gates(gate.bounded):
        holders += islice(other.running, _HOLDERS - len(holders))
    why = f"Throttle key {gate.name!r} has no free slot for the item's shard"
    if own is not None:
        why = f"{why}: {_turn(own, 'slot')}"
    if holders:
        why = f"{why}; items {', '.join(map(str, holders))} hold some"
    limit = f"{counted(gate.throttle.concurrency or 0, 'lease')} at a time"
    why = f"{why}; the limit is {limit}: {see}."
    return _Reason(_Code.CONCURRENCY, why, key=gate.name, count=before, item_ids=holders or None)


def _own(limits: Iterable[Any], kind: int, key: str) -> Any | None:
    """Return the ExplainLimit of a throttle key."""
    return next((limit for limit in limits if (limit.kind, limit.key) == (kind, key)), None)


def _turn(own: Any, unit: str) -> str:
    """Return when an item gets its unit of a limit: the next unit may be for another item."""
    when = f" in about {span(own.estimate_ms)}" if own.estimate_ms else ""
    if not own.before:
        return f"this item gets the next one{when}"
    return f"this item gets its {unit}{when}, after about {counted(own.before, 'other item')}"


def _behind(item: Item, least: int, most: int) -> Any:
    number = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    of = "of the topic"
    if item.lane.flow is not None:
        tenant = fairness_of(item.lane.key)
        of = f"of tenant {tenant!r}" if tenant else "without a fairness key"
    why = f"{number} ready {'item' if most == 1 else 'items'} {of} {'comes' if most == 1 else 'come'} first"
    return _Reason(_Code.BEHIND_IN_LANE, f"{why}, by priority and then by time.", count=least)


def _not_loaded(item: Item, least: int, most: int) -> list[Any]:
    why = ""
    if item.phase is not Phase.WINDOW:
        why = "Its row is not in memory: a dequeue that needs it reads the row."
        if most and not least:
            why = f"{why} Up to {counted(most, 'ready item')} may be before it."
    elif most and not least:
        why = f"Up to {most:,} ready items of other shards may be before it, and a dequeue has to read them first."
    elif item.body is None:
        why = "Its body is not in memory: a dequeue that needs it reads it."
    return [_Reason(_Code.NOT_LOADED, why)] if why else []


def _behind_in_order(shard: Shard, item: Item, turn: int, ahead: int | None) -> Any:
    if not turn:
        why = f"The host of shard {shard.number} reads which item of its order key is next."
        return _Reason(_Code.BEHIND_IN_ORDER, why)
    first = f"Item {turn} of the same order key has not ended"
    if ahead is None:
        why = f"{first}, nor have further items that come before this one."
    else:
        why = f"{first}, and {counted(ahead - 1, 'more item')} come before this one." if ahead > 1 else f"{first}."
    stored = None if item.body is None else item.body.order_key
    key = None if stored is None else stored.decode()
    return _Reason(_Code.BEHIND_IN_ORDER, why, key=key, count=ahead, item_ids=[turn])


def _behind_tenants(item: Item, position: Position) -> Any:
    tenant, share = fairness_of(item.lane.key), f"{position.share:.2%}"
    first = f"About {position.turns:,} turns of other tenants come first"
    if position.urgent:
        first = "Tenants with more urgent items go first"
    why = f"{first}; by weight, tenant {tenant!r} has {share} of the turns of the waiting tenants."
    return _Reason(_Code.BEHIND_IN_TURN, why, key=tenant, count=position.turns)


def _no_consumer(state: State, topic: Topic[Lane[Item]], now_ms: int) -> list[Any]:
    key, asked_ms = topic.key, last_asked_ms(topic)
    if (full := _holding_enough(state, key, asked_ms, now_ms)) is not None:
        return [full]
    if key in state.waiting or now_ms - asked_ms < LATELY_MS:
        return []
    last = f"the last one asked {span(now_ms - asked_ms)} ago" if asked_ms else "none has asked since it was ready"
    why = f"No consumer waits for the topic on the item's host, and {last}; see {command('consumers --topic', key)}."
    return [_Reason(_Code.NO_CONSUMER, why)]


def _holding_enough(state: State, key: TopicKey, asked_ms: int, now_ms: int) -> Any | None:
    """Explain a topic whose consumers may have no more of its items. None if a consumer waits that may have some, or
    has asked (`asked_ms`) since one was refused."""
    (ns, topic), holdings = key, state.holdings
    most = state.policies.of(key).per_worker
    if most is None:
        return None
    parked, waits = holdings.parked.get(key), state.waiting.get(key, ())
    refused = holdings.full.get(key)
    full = [call.worker for call in islice(waits, _FLOWS) if not holdings.room(key, call)]
    if len(full) < len(waits):
        return None
    if parked or full:
        worker = full[0] if parked is None else next(iter(parked)).worker
        who = _consumers(len(full) + len(parked or ()))
    elif refused is not None and refused[0] >= asked_ms and now_ms - refused[0] < LATELY_MS:
        worker, who = refused[1], "The consumer that asked last for the topic on the item's host may have no more items"
    else:
        return None
    entry = state.policies.namespace(ns).layers(topic)["per_worker"]
    holds = f"worker {worker} holds" if worker else "its process holds"
    why = f"{who}: {holds} {most:,}, as the settings entry {entry} allows. It has to end one, or another worker to ask."
    return _Reason(_Code.PER_WORKER, why, key=entry, count=most, by=worker or None)


def _consumers(count: int) -> str:
    if count == 1:
        return "The consumer that waits for the topic on the item's host may have no more items"
    return f"The {count:,} consumers that wait for the topic on the item's host may have no more items"


# ------------------------------------------------------------------------------------------ inside


def _merged(item: Item, now_ms: int) -> list[Lane[Item]]:
    """Return the lanes with ready items that are merged with the item's lane: the lanes of its tenant."""
    own = item.lane
    lanes = own.topic.lanes() if own.flow is None else own.flow.merged()
    return [lane for lane in lanes if lane.ready and (lane is own or _healthy(lane.term.shard, now_ms))]


def _healthy(shard: Shard | None, now_ms: int) -> bool:
    return shard is not None and shard.healthy(now_ms)


def _position(item: Item) -> Position:
    turns, flow = item.lane.topic.turns, item.lane.flow
    position = None if turns is None or flow is None else position_of(flow.tenant, turns)
    return position or _ALONE


def _ahead(lanes: Iterable[Lane[Item]], item: Item, *, ready: bool = True) -> tuple[int, int]:
    """Return the least and the most ready items that come before `item`. Not `ready`: it is none of them."""
    least = most = 0
    for lane in lanes:
        window = lane.window
        known = 0 if window is None else bisect_left(window.entries, item.key)
        least += known
        if window is not None and window.covers(item.key):
            most += known
        else:
            most += max(known, lane.ready - (ready and lane is item.lane))
    return least, most


def _has_first(lane: Lane[Item]) -> bool:
    window = lane.window
    return window is not None and bool(window.entries) and window.entries[0][3].body is not None


def _in(at_ms: int, now_ms: int) -> str:
    return f"in {span(at_ms - now_ms)}" if at_ms > now_ms else "at once"


_ALONE = Position(0, 1.0, False)
