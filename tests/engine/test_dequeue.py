"""Which shards lease items to a dequeue: the fast decision is the plain one, on any state of a shard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import dequeue
from foqs.item import Item, Phase, Place
from foqs.shardmgr.lifecycle import BreakerState, ShardState
from tests.engine.laboratory import Laboratory
from tests.support.lanes import lone_lane

NOW_MS = 1_000_000
LAB = Laboratory(1)
SHARD = LAB.engine.shards[1]
CONFIG = SHARD.config
LANE = lone_lane()


def given_lease(lease: int, phase: Phase, place: Place) -> Item:
    return Item(1, LANE, 0, 0, 1, lease, 0, None, place, phase)


items = st.builds(
    given_lease,
    st.sampled_from([7, 7, 8]),
    st.sampled_from([Phase.LEASED, Phase.LEASED, Phase.IDLE]),
    st.sampled_from([Place.READY, Place.READY, Place.TIMER]),
)
ages_ms = st.sampled_from(
    [-1, 0, 1, CONFIG.lease_write_delay_ms, CONFIG.lease_write_delay_ms + 1, CONFIG.confirm_ms, CONFIG.confirm_ms + 1]
)


@given(
    state=st.sampled_from([ShardState.SERVING] * 4 + [ShardState.DRAINING]),
    breaker=st.sampled_from([BreakerState.CLOSED] * 4 + [BreakerState.OPEN, BreakerState.HALF_OPEN]),
    lost=st.sampled_from([False] * 4 + [True]),
    batch_age_ms=st.sampled_from([None, 0, SHARD.hang_ms, SHARD.hang_ms + 1]),
    confirmed_age_ms=ages_ms,
    grace_age_ms=st.one_of(st.none(), ages_ms),
    unwritten=st.lists(st.tuples(ages_ms, items), max_size=4),
)
def test_a_shard_leases_if_it_is_healthy_and_may_lease(
    state: ShardState,
    breaker: BreakerState,
    lost: bool,
    batch_age_ms: int | None,
    confirmed_age_ms: int,
    grace_age_ms: int | None,
    unwritten: list[tuple[int, Item]],
) -> None:
    shard = SHARD
    shard.state, shard.breaker.state, shard.lost = state, breaker, lost
    shard.in_flight = None if batch_age_ms is None else ShardBatch(begun_ms=NOW_MS - batch_age_ms)
    shard.confirmed_ms = NOW_MS - confirmed_age_ms
    shard.grace_from_ms = None if grace_age_ms is None else NOW_MS - grace_age_ms
    oldest_first = sorted(unwritten, key=lambda one: -one[0])
    shard.unwritten.clear()
    shard.unwritten.extend((NOW_MS - age_ms, item, 7) for age_ms, item in oldest_first)
    shard.confirm_wanted = False
    fast = dequeue.leases(shard, NOW_MS)
    asked = shard.confirm_wanted
    shard.confirm_wanted = False
    assert fast is (shard.may_lease(NOW_MS) if shard.healthy(NOW_MS) else None)
    assert asked is shard.confirm_wanted
