"""The production engine of a simulated host. Each lease is checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.engine import delivery
from foqs.engine.engine import Engine
from foqs.engine.pending import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey
from tests.sim.audit import available
from tests.sim.ledger import broken

if TYPE_CHECKING:
    from tests.sim.member import Member


class WatchedEngine(Engine):
    """The production engine; its leases are checked as they are made."""

    member: Member


def _watched(state: State, call: DequeueCall, wants: Sequence[tuple[TopicKey, int]], now_ms: int) -> bool:
    if not isinstance(state, WatchedEngine):
        return _serve(state, call, wants, now_ms)
    member = state.member
    eligible = [shard for shard in state.serving if ready_to_hand_out(member, shard, now_ms)]
    skipping = set(state.skipping)
    served = _serve(state, call, wants, now_ms)
    if served:
        check_served(member, call, eligible, skipping)
    return served


_serve = delivery.serve
delivery.serve = _watched


def ready_to_hand_out(member: Member, shard: Shard, now_ms: int) -> bool:
    """Return whether the member may lease the shard's items."""
    config = shard.config
    oldest = shard.oldest_unwritten_ms()
    return (
        member.in_step(shard)
        and shard.healthy(now_ms)
        and now_ms - shard.confirmed_ms <= config.confirm_ms
        and not shard.in_takeover_grace(now_ms)
        and (oldest is None or now_ms - oldest <= config.lease_write_delay_ms)
    )


def check_served(member: Member, call: DequeueCall, eligible: list[Shard], skipping: set[TopicKey]) -> None:
    """Check promise 5, and each lease."""
    sim = member.sim
    by_key: dict[TopicKey, list[tuple[int, int, int]]] = {key: [] for key, _ in call.wants}
    for found in call.found:
        item = found[1]
        if member.current(found[0].number):
            sim.ledger.leased(item, sim.now_ms, delayed_ok=sim.profile.clock_steps)
        by_key[item.lane.topic.key].append(item.key)
    topics = [key for key, _ in call.wants]
    order = [topics.index(found[1].lane.topic.key) for found in call.found]
    if order != sorted(order):
        broken(5, "topics are not in the order asked for")
    for key, count in call.wants:
        given = by_key[key]
        if given != sorted(given) or len(given) > count:
            broken(5, f"{key}: {given} is not in order, or more than {count}")
        if not given or key in skipping:
            continue
        for shard in eligible:
            lane = shard.lanes.get(key)
            may = available(shard, lane, sim.dbs[shard.number]) if lane is not None else []
            may = [one for one in may if one not in given]  # their consumer was gone: given back at once
            if may and may[0] < given[-1]:
                broken(5, f"{key}: {given[-1]} was handed out before {may[0]} of shard {shard.number}")
        sim.ledger.checks["order"] += 1
