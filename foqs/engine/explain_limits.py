"""The limits that count for an item, whether or not one of them holds it now, each with an estimate of the wait.

An estimate is for a limit alone, as if the item was ready now, and by what its host knows: the items that are before it
now, and no tokens or slots for other hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import ceil, inf
from typing import Any, NamedTuple

from foqs.bounds import THROTTLE, Bounded
from foqs.checks import counted
from foqs.engine.concurrency import AnyGate, Parked, SlotGate
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey, tenancy_of
from foqs.fairness.ledger import position_of
from foqs.fairness.tenants import HELD, IDLE, PARKED, Tenant
from foqs.fairness.turns import Turns
from foqs.figures import to_struct
from foqs.idl import idl
from foqs.item import Item
from foqs.limits.bucket import ThrottleTokens
from foqs.limits.lease_slots import LeaseSlots
from foqs.limits.shadow_hour import HourCounts
from foqs.policies.entries import Throttle
from foqs.prefetch.lane import Lane

_FLOWS = 1_000
"""Parked flows of a key that are looked at. The rest counts as similar to these."""
_LEASES = 1_000
"""Leases whose ages are looked at."""
_CALLS = 1_000
"""Consumers that are looked at."""
_UNITS = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

_Limit = idl.ExplainLimit
_Kind = idl.LimitKind


class Ledgers(NamedTuple):
    """The ledgers of the throttle keys that this host coordinates: None of any other key, and of an idle one."""

    tokens_of: Callable[[Bounded], ThrottleTokens | None]
    slots_of: Callable[[Bounded], LeaseSlots | None]


NO_LEDGERS = Ledgers(lambda _: None, lambda _: None)


class Ahead(NamedTuple):
    """The least and the most ready items of the item's own flow that come before it."""

    least: int
    most: int

    def __str__(self) -> str:
        return _number(self.most) if self.least == self.most else f"up to {self.most:,}"


def of_item(state: State, shard: Shard, item: Item, ahead: Ahead, ledgers: Ledgers, now_ms: int) -> list[Any]:
    """Return the limits that count for an item, as ExplainLimit: its throttles in the order in which a delivery takes
    their units, then `per_worker`, then its tenant's share."""
    lane, (ns, topic) = item.lane, item.lane.topic.key
    policies = state.policies.namespace(ns)
    names = sorted({*tenancy_of(lane.key)[1], *policies.of(topic).throttles})
    throttles = [(name, throttle) for name in names if (throttle := policies.throttle(name)) is not None]
    rates = [one for one in throttles if one[1].per_second is not None]
    rates.sort(key=lambda one: (one[1].per_second or inf, one[0]))
    found = [_rate(state, item, (ns, THROTTLE + name), limit, ahead, ledgers, now_ms) for name, limit in rates]
    found += [
        _leases(state, shard, item, (ns, THROTTLE + name), limit, ahead, ledgers, now_ms)
        for name, limit in throttles
        if limit.concurrency is not None
    ]
    if policies.of(topic).per_worker is not None:
        found.append(_per_worker(state, lane.topic.key))
    if lane.topic.turns is not None and lane.flow is not None and len(lane.topic.turns.tenants) > 1:
        found.append(_share(state, lane.topic.key, lane.flow.tenant, lane.topic.turns, now_ms))
    return found


def dry_gate(state: State, flow: Parked, ledgers: Ledgers) -> AnyGate | None:
    """Return the gate at which the flow is parked, or would be if a consumer asked now. (One flow of a topic without
    consumers is not parked, so that it notices the next consumer: the ledgers say if there are units for it.)"""
    throttling = state.throttling
    gate = throttling.dry_gate(flow)
    if gate is not None or not flow.lanes:
        return gate
    at_ms, rules, (ns, topic) = throttling.monotonic_ms(), throttling.rules_of(flow), flow.lanes[0].topic.key
    for key in rules.keys:
        tokens = None if key.throttle.shadow or key.here(at_ms) else ledgers.tokens_of(key.bounded)
        if tokens is not None and tokens.here(at_ms) < 1:
            return key
    if rules.limited:
        shards = {lane.term.shard.number for lane in flow.lanes if lane.ready and lane.term.shard is not None}
        policies = state.policies.namespace(ns)
        for name in sorted({*flow.throttles, *policies.of(topic).throttles}):
            throttle, slots = policies.throttle(name), ledgers.slots_of((ns, THROTTLE + name))
            if throttle is not None and not throttle.shadow and slots is not None and slots.free <= 0:
                gates = throttling.concurrency.gates((ns, THROTTLE + name))
                if gates and not any(one.here(at_ms) for one in gates if one.shard in shards):
                    return gates[0]
    return None


# ------------------------------------------------------------------------------------------ throttles


def _rate(
    state: State, item: Item, key: Bounded, throttle: Throttle, ahead: Ahead, ledgers: Ledgers, now_ms: int
) -> Any:
    throttling, rate = state.throttling, throttle.per_second
    assert rate is not None, "the throttle has a rate"
    at_ms, name = throttling.monotonic_ms(), key[1][len(THROTTLE) :]
    limit = f"{rate:g} deliveries a second, {throttle.burst:,} at once"
    if throttle.shadow:
        return _in_shadow(state, _Kind.RATE, name, throttle, limit, throttling.shadow_rates.get(key))
    gate, ledger = throttling.keys.get(key), ledgers.tokens_of(key)
    others = 0 if gate is None else _others(gate, item, ahead.most)
    before = ahead.most + others
    if ledger is None and (gate is None or gate.unused):
        tokens = throttle.burst  # nothing used it lately: the bucket is full, as far as this host knows
    else:
        tokens = (0 if gate is None else gate.here(at_ms)) + (0 if ledger is None else int(ledger.here(at_ms)))
    until_ms, lacking = None, max(0, before + 1 - tokens)
    estimate_ms = ceil(1000 * lacking / rate)
    state_now = f"{counted(tokens, 'token', 'is', 'are')} here"
    if not tokens:
        due_in_ms = max(0, throttling.due_in_ms(gate)) if gate is not None else 0
        until_ms = now_ms + due_in_ms
        estimate_ms = due_in_ms + ceil(1000 * (lacking - 1) / rate)
        state_now = f"no token is here, and the next one, for the first that waits, may come {_in(due_in_ms)}"
    wait = _wait(estimate_ms, f"at {rate:g} a second with {ahead if not others else _number(before)} before it")
    return _Limit(
        _Kind.RATE, name, f"{limit}; {state_now}: {wait}.", rate, throttle.burst, None, tokens, before, estimate_ms,
        until_ms,
    )  # fmt: skip


def _leases(
    state: State, shard: Shard, item: Item, key: Bounded, throttle: Throttle, ahead: Ahead, ledgers: Ledgers,
    now_ms: int,
) -> Any:  # fmt: skip
    most, name = throttle.concurrency, key[1][len(THROTTLE) :]
    assert most is not None, "the throttle limits leases"
    at_ms, limit = state.throttling.monotonic_ms(), f"{counted(most, 'lease')} at a time"
    gates = state.throttling.concurrency.gates(key)
    own = next((gate for gate in gates if gate.shard == shard.number), None)
    ledger, taken = ledgers.slots_of(key), sum([gate.leased for gate in gates])
    where = ""
    if state.shards_elsewhere:  # the ledger is as of the last half second
        where, taken = (" on this host", taken) if ledger is None else ("", max(taken, ledger.taken))
    if throttle.shadow:
        counts = state.throttling.shadow_leases.get(key)
        found = _in_shadow(state, _Kind.CONCURRENCY, name, throttle, limit, counts)
    else:
        before = ahead.most + (0 if own is None else _others(own, item, ahead.most))
        lacking = max(0, before + 1 - max(0, most - taken))
        estimate_ms = _slots_in(gates, taken, lacking, at_ms)
        free = 0 if own is None else max(0, own.here(at_ms))
        wait = _wait(estimate_ms, f"with {_number(before)} before it, by the ages of the leases")
        if own is not None and item.id in own.running:
            estimate_ms, wait = None, "the item has one of them"
        text = f"{limit}; {taken:,} are taken{where}, and {free:,} are free for shard {shard.number}"
        found = _Limit(_Kind.CONCURRENCY, name, f"{text}: {wait}.", most, None, taken, free, before, estimate_ms)
    found.used = taken
    oldest = min(((at, item_id, gate) for gate in gates for item_id, at in islice(gate.running.items(), 1)),
                 key=lambda one: one[:2], default=None)  # fmt: skip
    if oldest is not None:
        leased_ms, found.item_id, gate = oldest
        found.since_ms = now_ms - (at_ms - leased_ms)
        holder = state.shards[gate.shard].memory.known.get(found.item_id)
        found.by = None if holder is None or holder.given is None else holder.given.worker or None
        who = "" if found.by is None else f" in worker {found.by}"
        found.text = (
            f"{found.text} The oldest lease is that of item {found.item_id}{who}, {span(at_ms - leased_ms)} old."
        )
    return found


def _in_shadow(state: State, kind: int, name: str, throttle: Throttle, limit: str, counts: HourCounts | None) -> Any:
    hour = None if counts is None else counts.sums(state.throttling.monotonic_ms())
    counted = "no delivery is counted yet" if hour is None else str(hour)
    if state.shards_elsewhere:
        counted = f"{counted} on this host; foqs throttle list has the sums of all"
    text = f"{limit}, in shadow: {counted}. It holds nothing back."
    made = _Limit(kind, name, text, throttle.per_second, throttle.burst, estimate_ms=0, shadow=True)
    if kind == _Kind.CONCURRENCY:
        made.bound, made.burst = throttle.concurrency, None
    made.hour = None if hour is None else to_struct(hour)
    return made


def _others(gate: AnyGate, item: Item, ahead: int) -> int:
    """Return about how many units other flows that are parked at the gate get before the item. Tenants of its topic
    take turns by weight, and topics get one unit in turn."""
    flow, topic, own = item.lane.flow, item.lane.topic.key, 0
    elsewhere: list[int] = []
    for other_topic, parking in gate.parked():
        step = 1 + len(parking) // _FLOWS
        if other_topic != topic:
            elsewhere.append(step * sum(one.ready for one in islice(parking, 0, None, step)))
        elif flow is not None:
            own = step * sum(_turns_of(one, flow, ahead) for one in islice(parking, 0, None, step) if one is not flow)
    return own + sum(min(items, own + ahead) for items in elsewhere)


def _turns_of(other: Parked, flow: Parked, ahead: int) -> int:
    first = other.tenant.start < flow.tenant.start
    return min(other.ready, int(ahead * other.tenant.weight / flow.tenant.weight) + first)


def _slots_in(gates: list[SlotGate], taken: int, lacking: int, at_ms: int) -> int | None:
    """Return about when `lacking` more slots are free, None if that is not known. The time that is left of a lease is
    on average the age of the leases that live, so one of the `taken` slots returns in (age / taken)."""
    ages = [at_ms - leased_ms for gate in gates for leased_ms in islice(gate.running.values(), _LEASES)]
    if not lacking or not ages:
        return None if lacking else 0
    return ceil(lacking * (sum(ages) / len(ages)) / max(taken, len(ages)))


# ------------------------------------------------------------------------------------------ consumers and tenants


def _per_worker(state: State, key: TopicKey) -> Any:
    topic, policies = key[1], state.policies.namespace(key[0])
    most, entry = policies.of(topic).per_worker, policies.layers(topic)["per_worker"]
    assert most is not None, "the policy limits leases of workers"
    calls = [*islice(state.waiting.get(key, ()), _CALLS), *islice(state.holdings.parked.get(key, ()), _CALLS)]
    able = sum(state.holdings.room(key, call) > 0 for call in calls)
    waiting = f"{able:,} of {counted(len(calls), 'consumer')} waiting on the item's host may have more"
    if not calls:
        waiting = "no consumer waits on the item's host"
    text = f"{counted(most, 'item')} of the topic for each worker, as the settings entry {entry} says; {waiting}"
    wait = f": {_wait(0, '')}" if able else ""
    return _Limit(
        _Kind.PER_WORKER, entry, f"{text}{wait}.", most, free=able, estimate_ms=0 if able else None
    )  # fmt: skip


def _share(state: State, key: TopicKey, tenant: Tenant[Lane[Item]], turns: Turns[Lane[Item]], now_ms: int) -> Any:
    name, policies = tenant.name, state.policies.namespace(key[0])
    weight = policies.weight(key[1], name, tenant.given_weight)
    who = f"Tenant {name!r} has weight {weight:,}" if name else f"Items without a fairness key have weight {weight:,}"
    position = position_of(tenant, turns)
    if position is None:
        why = _AWAY.get(tenant.away, "its items cannot be leased yet")
        return _Limit(_Kind.FAIR_SHARE, name, f"{who}. The tenant takes no turns now: {why}.")
    estimate_ms = None
    rate = state.explained.a_second(key, now_ms)
    if not position.urgent and (rate or not position.turns):
        estimate_ms = ceil(1000 * position.turns / rate) if rate else 0
    wait = _wait(estimate_ms, f"with {position.turns:,} turns of other tenants before its next one")
    if position.urgent:
        wait = "tenants with more urgent items go first"
    text = f"{who}, which is {position.share:.2%} of the turns of the waiting tenants: {wait}."
    return _Limit(
        _Kind.FAIR_SHARE, name, text, position.share, before=position.turns, estimate_ms=estimate_ms
    )  # fmt: skip


_AWAY = {HELD: "it is paused", IDLE: "none of its items is ready", PARKED: "its ready items wait for throttles"}


# ------------------------------------------------------------------------------------------ words


def _wait(estimate_ms: int | None, of: str) -> str:
    if estimate_ms is None:
        return "the wait is not known"
    return f"about {span(estimate_ms)} {of}" if estimate_ms else "no wait now"


def _number(items: int) -> str:
    return f"{items:,}" if items else "none"


def _in(ms: int) -> str:
    return f"in {span(ms)}" if ms > 0 else "at once"


def span(ms: int) -> str:
    """Return a duration in a unit that fits.

    >>> span(40), span(90_000), span(7_200_000)
    ('40 ms', '1.5 min', '2.0 h')
    """
    if ms < 1_000:
        return f"{max(0, ms)} ms"
    seconds = ms / 1_000
    return next(f"{seconds / size:.1f} {unit}" for unit, size in _UNITS if seconds >= size)
