"""The data of a simulated host's production engine. Each lease is checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.engine import dequeue
from foqs.engine.calls import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey, tenancy_of
from foqs.item import Item
from tests.sim.audit import available, lanes_of
from tests.sim.records import broken

if TYPE_CHECKING:
    from tests.sim.member import Member
    from tests.sim.simulation import Simulation


class WatchedState(State):
    """The data of the production engine; its leases are checked as they are made."""

    member: Member


def _watched_fill(state: State, call: DequeueCall, wants: Sequence[tuple[TopicKey, int]], now_ms: int) -> None:
    if not isinstance(state, WatchedState):
        _fill(state, call, wants, now_ms)
        return
    keys = [key for key, _ in wants]
    before, throttles = _before(state, keys, now_ms), state.member.sim.throttles
    whole = throttles.before(state.member, keys, before[0]) if state.member.lending else set()
    _fill(state, call, wants, now_ms)
    if call.found:
        _after(state.member, [call], before)
    if whole:
        throttles.after(state.member, call, wants, whole)


def _watched_fill_waiting(state: State, calls: Sequence[DequeueCall], key: TopicKey, now_ms: int) -> int:
    if not isinstance(state, WatchedState):
        return _fill_waiting(state, calls, key, now_ms)
    before = _before(state, [key], now_ms)
    served = _fill_waiting(state, calls, key, now_ms)
    if served:
        _after(state.member, calls[:served], before)
        state.member.sim.ledger.checks["served together"] += served
    return served


_Before = tuple[list[Shard], set[TopicKey]]
"""The shards whose items may be leased, and the topics that wait for no shard."""


def _before(state: WatchedState, keys: Sequence[TopicKey], now_ms: int) -> _Before:
    eligible = [shard for shard in state.serving if ready_to_hand_out(shard, now_ms)]
    if state.member.shares is not None:
        state.member.shares.before(keys, eligible)
    return [shard for shard in eligible if state.member.in_step(shard)], set(state.skipping)


def _after(member: Member, calls: Sequence[DequeueCall], before: _Before) -> None:
    check_served(member, calls, *before)
    if member.lending is not None:
        member.sim.throttles.leased(calls)
    if member.shares is not None:
        member.shares.leased([item for call in calls for _, item, _ in call.found])


_fill, _fill_waiting = dequeue.fill, dequeue.fill_waiting
dequeue.fill, dequeue.fill_waiting = _watched_fill, _watched_fill_waiting


def ready_to_hand_out(shard: Shard, now_ms: int) -> bool:
    """Return whether the host may lease the shard's items."""
    config = shard.config
    oldest = shard.queue.oldest_unwritten_ms()
    return (
        shard.healthy(now_ms)
        and now_ms - shard.owner.confirmed_ms <= config.confirm_ms
        and not shard.owner.in_takeover_grace(now_ms)
        and (oldest is None or now_ms - oldest <= config.lease_write_delay_ms)
    )


def check_served(member: Member, calls: Sequence[DequeueCall], eligible: list[Shard], skipping: set[TopicKey]) -> None:
    """Check each lease, and promise 5: `calls` together got the first items, each before the next."""
    sim = member.sim
    wanted: dict[TopicKey, int] = {}
    given: dict[TopicKey, dict[str, list[Item]]] = {}
    for call in calls:
        for key, count in call.wants:
            wanted[key] = wanted.get(key, 0) + count
        topics = [key for key, _ in call.wants]
        order = [topics.index(found[1].lane.topic.key) for found in call.found]
        if order != sorted(order):
            broken(5, "topics are not in the order asked for")
        for shard, item, _ in call.found:
            if member.current(shard.number):
                sim.ledger.leased(item, sim.now_ms, delayed_ok=sim.profile.clock_steps)
                if shard in eligible:
                    sim.ledger.orders.leased(item, sim.dbs[shard.number])
            tenant = tenancy_of(item.lane.key)[0]
            given.setdefault(item.lane.topic.key, {}).setdefault(tenant, []).append(item)
    for key, count in wanted.items():
        tenants = given.get(key, {})
        if sum(map(len, tenants.values())) > count:
            broken(5, f"{key}: {tenants} are more than {count}")
        for tenant, items in tenants.items():
            keys = [item.key for item in items]
            if keys != sorted(keys):
                broken(5, f"{key} {tenant}: {keys} is not in order")
            if key not in skipping:
                _check_first(sim, eligible, key, tenant, items)


def _check_first(sim: Simulation, eligible: list[Shard], key: TopicKey, tenant: str, items: list[Item]) -> None:
    """Check that no item of the tenant is left that stands before the last one that was handed out. A throttle may hold
    the items of a lane that has it."""
    names = [name for name in sim.profile.lanes(key) if tenancy_of(name)[0] == tenant]
    lasts = {item.lane.key: item.key for item in items}
    for shard in eligible:
        for lane in lanes_of(shard, names):
            first = next(available(shard, lane, sim.dbs[shard.number]), None)
            held = lane.flow is not None and lane.flow.parked is not None  # its throttle may just have been removed
            last = items[-1].key if sim.throttles.free(lane.key) and not held else lasts.get(lane.key)
            if last is not None and first is not None and first < last:
                broken(5, f"{key} {tenant}: {last} was handed out before {first} of shard {shard.number}")
    sim.ledger.checks["order"] += 1
