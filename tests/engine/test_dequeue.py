"""Which shards lease items to a dequeue, and how topics share a bound on all of them."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import MOST_WEIGHT
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import ready_lanes
from foqs.engine.dequeue import shares_of
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.item import Item, Phase, Place
from foqs.prefetch.lane import LaneKey
from foqs.shardmgr.lifecycle import BreakerState, ShardState
from tests.api.test_throttles import Throttled
from tests.engine.laboratory import Laboratory
from tests.engine.test_consumers import Paused
from tests.support.lanes import lone_lane

NOW_MS = 1_000_000
LAB = Laboratory(1)
SHARD = LAB.engine.state.shards[1]
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
    batch_age_ms=st.sampled_from([None, 0, SHARD.owner.hang_ms, SHARD.owner.hang_ms + 1]),
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
    shard.owner.state, shard.owner.breaker.state, shard.owner.lost = state, breaker, lost
    shard.queue.in_flight = None if batch_age_ms is None else ShardBatch(begun_ms=NOW_MS - batch_age_ms)
    shard.owner.confirmed_ms = NOW_MS - confirmed_age_ms
    shard.owner.grace_from_ms = None if grace_age_ms is None else NOW_MS - grace_age_ms
    oldest_first = sorted(unwritten, key=lambda one: -one[0])
    shard.queue.unwritten.clear()
    shard.queue.unwritten.extend((NOW_MS - age_ms, item, 7) for age_ms, item in oldest_first)
    shard.owner.confirm_wanted = False
    fast = ready_lanes.leases(shard, NOW_MS)
    asked = shard.owner.confirm_wanted
    shard.owner.confirm_wanted = False
    assert fast is (shard.may_lease(NOW_MS) if shard.healthy(NOW_MS) else None)
    assert asked is shard.owner.confirm_wanted


KEYS: list[LaneKey] = [("ns", f"t{n:03}") for n in range(200)]


def topic_of(lab: Laboratory, item_id: int) -> str:
    item: Item = lab.engine.state.shards[item_id >> 48].memory.known[item_id]
    return item.lane.topic.key[1]


def stock(lab: Laboratory, *keys: LaneKey, items: int = 50) -> None:
    for key in keys:
        lab.stored(*[lab.item() for _ in range(items)], key=key)


def exact_shares(wanted: list[int], weights: list[int], most: int) -> list[Fraction]:
    """The weighted max-min shares: nothing is left, and no topic with unmet wants is behind another by its weight."""
    shares, left, open_ = [Fraction(0)] * len(wanted), Fraction(min(most, sum(wanted))), set(range(len(wanted)))
    while left:
        total = sum(weights[at] for at in open_)
        step = min(left / total, *((wanted[at] - shares[at]) / weights[at] for at in open_))
        for at in open_:
            shares[at] += step * weights[at]
        left -= step * total
        open_ = {at for at in open_ if shares[at] < wanted[at]}
    return shares


topics_wanted = st.lists(st.tuples(st.integers(0, 30), st.integers(1, MOST_WEIGHT)), max_size=12)


@given(topics_wanted, st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_shares_are_within_one_of_the_exact_ones(topics: list[tuple[int, int]], most: int, chance: float) -> None:
    wanted, weights = [one for one, _ in topics], [weight for _, weight in topics]
    shares = shares_of(wanted, weights, most, chance)
    assert sum(shares) == min(most, sum(wanted))
    for share, exact, one in zip(shares, exact_shares(wanted, weights, most), wanted, strict=True):
        assert abs(share - exact) < 1 and 0 <= share <= one


@given(topics_wanted, st.integers(1, 20))
def test_shares_are_exact_over_all_chances(topics: list[tuple[int, int]], most: int) -> None:
    wanted, weights = [one for one, _ in topics], [weight % 7 + 1 for _, weight in topics]
    exact = exact_shares(wanted, weights, most)
    steps = sum(weight for weight, one, share in zip(weights, wanted, exact, strict=True) if share < one) or 1
    shares = [shares_of(wanted, weights, most, (step + 0.5) / steps) for step in range(steps)]
    assert [sum(of_topic) for of_topic in zip(*shares, strict=True)] == [share * steps for share in exact]


def test_equal_weights_share_evenly() -> None:
    assert shares_of([9, 1, 9], [5, 5, 5], 5, 0.9) == [2, 1, 2]
    assert shares_of([9] * 4, [1] * 4, 8, 0.0) == [2, 2, 2, 2]


def test_topics_share_what_a_request_may_have() -> None:
    lab = Laboratory(1, 2)
    stock(lab, KEYS[0], KEYS[150], KEYS[199])
    stock(lab, KEYS[7], items=2)
    got = Counter(topic_of(lab, one) for one in lab.taken(keys=KEYS, count=20, most=20))
    assert got == {"t000": 6, "t007": 2, "t150": 6, "t199": 6}


def test_without_a_bound_the_first_topics_are_emptied_first() -> None:
    lab = Laboratory(1)
    stock(lab, KEYS[0], KEYS[1], items=3)
    assert [topic_of(lab, one) for one in lab.taken(keys=KEYS[:2], count=2)] == ["t000"] * 2 + ["t001"] * 2


def long_run(lab: Laboratory, requests: int, most: int, weights: dict[LaneKey, int], **how: Any) -> Counter[str]:
    """How many items of each topic the requests get."""
    asked = {"keys": list(weights), "count": most, "most": most, "weights": weights, **how}
    return Counter(topic_of(lab, one) for _ in range(requests) for one in lab.taken(**asked))


@pytest.mark.parametrize(("most", "max_bytes"), [(1, 1 << 20), (2, 1 << 20), (9, 1 << 20), (9, 1)])
def test_weighted_topics_share_by_their_weights(most: int, max_bytes: int) -> None:
    """Also where the bytes of an answer are those of one item."""
    lab = Laboratory(1, 2)
    stock(lab, *KEYS[:3], items=3_600)
    got = long_run(lab, 600, most, {KEYS[0]: 6, KEYS[1]: 3, KEYS[2]: 1}, max_bytes=max_bytes)
    items = sum(got.values())
    assert items == (600 if max_bytes == 1 else 600 * most)
    for topic, share in (("t000", 0.6), ("t001", 0.3), ("t002", 0.1)):
        # Three standard deviations of 600 draws; a rounded share has less.
        assert abs(got[topic] / items - share) < 3 * (share * (1 - share) / 600) ** 0.5, got


def test_a_topic_of_the_least_weight_does_not_starve() -> None:
    lab = Laboratory(1)
    stock(lab, *KEYS[:2], items=4_000)
    got = long_run(lab, 4_000, 1, {KEYS[0]: 100, KEYS[1]: 1})
    assert 15 <= got["t001"] <= 80, got


def test_an_empty_topic_leaves_everything_to_the_other() -> None:
    lab = Laboratory(1)
    stock(lab, KEYS[1], items=40)
    weights = {KEYS[0]: MOST_WEIGHT, KEYS[1]: 1}
    assert long_run(lab, 1, 30, weights) == {"t001": 30}
    stock(lab, KEYS[0], items=3)
    assert long_run(lab, 1, 10, weights) == {"t000": 3, "t001": 7}


def test_weights_hold_for_what_a_topic_cannot_give() -> None:
    """The items of the first topic are counted as ready, and have expired."""
    lab = Laboratory(1)
    stock(lab, *KEYS[1:3], items=600)
    weights = {KEYS[0]: MOST_WEIGHT, KEYS[1]: 3, KEYS[2]: 1}
    got: Counter[str] = Counter()
    for _ in range(400):
        lab.stored(lab.item(ttl_ms=50), key=KEYS[0])
        lab.now_ms += 60
        got += long_run(lab, 1, 1, weights)
    assert got.keys() == {"t001", "t002"} and 60 <= got["t002"] <= 140, got


def test_a_consumer_that_waits_gets_items_by_weight() -> None:
    lab = Laboratory(1)
    answers = lab.dequeue(wait_ms=5_000, keys=KEYS[:2], count=4, most=4, weights={KEYS[0]: 3, KEYS[1]: 1})
    for key in KEYS[:2]:
        lab.put(*[lab.item() for _ in range(9)], key=key)
    lab.settle()
    assert Counter(topic_of(lab, one) for ids in answers for one in ids) == {"t000": 3, "t001": 1}


@pytest.mark.parametrize("fullest", [KEYS[0], KEYS[1], KEYS[199]])
def test_no_topic_starves_beside_full_ones(fullest: LaneKey) -> None:
    """The first topic behind many that give nothing has no more turns than any other one."""
    lab = Paused(1)
    stock(lab, *KEYS, items=2)
    lab.pause(*[topic for _, topic in KEYS[2:199]])
    stock(lab, fullest, items=400)
    stock(lab, *{*KEYS[:2], KEYS[199]} - {fullest}, items=200)
    got = Counter(topic_of(lab, one) for _ in range(300) for one in lab.taken(keys=KEYS, count=1, most=1))
    assert sorted(got) == ["t000", "t001", "t199"]
    assert min(got.values()) > 70, got


def test_a_topic_that_cannot_give_its_share_leaves_it_to_more() -> None:
    """Its items are counted as ready: they have expired, or their shard may not lease them now."""
    lab = Laboratory(1)
    lab.stored(*[lab.item(ttl_ms=50) for _ in range(30)], key=KEYS[3])
    stock(lab, KEYS[0], KEYS[9], items=40)
    lab.now_ms += 60
    for _ in range(7):
        got = Counter(topic_of(lab, one) for one in lab.taken(keys=KEYS, count=10, most=10))
        assert sum(got.values()) == 10 and set(got) <= {"t000", "t009"}


@pytest.mark.parametrize("at", [0, 1, 99, 199])
def test_an_item_of_any_topic_wakes_a_consumer_of_all(at: int) -> None:
    lab = Laboratory(1, 2)
    answers = lab.dequeue(wait_ms=5_000, keys=KEYS, count=4, most=4)
    assert len(lab.engine.state.waiting) == 200
    ids = lab.stored(key=KEYS[at])
    assert answers == [ids]
    assert not lab.engine.state.waiting


def test_topics_that_become_ready_together_do_not_pass_the_bound() -> None:
    lab = Laboratory(1, 2, 3)
    answers = lab.dequeue(wait_ms=5_000, keys=KEYS, count=3, most=3)
    for key in KEYS[:40]:
        lab.put(lab.item(), lab.item(), key=key)
    lab.settle()
    assert [len(ids) for ids in answers] == [3]
    assert sum(topic.ready for topic in lab.engine.state.topics.values()) == 77


@pytest.mark.parametrize("seed", range(30))
def test_the_bound_holds_and_is_reached(seed: int) -> None:
    """With tenants, throttle keys, limits of a worker, pauses and items on several shards."""
    rng = random.Random(seed)
    entries = {f"topic.t{n}": '{"per_worker": 3}' for n in range(4)}
    entries |= {"topic.t4": '{"paused": true}', "throttle.slow": '{"per_second": 1, "burst": 2}'}
    host = Throttled(entries)
    left: Counter[str] = Counter()
    for n in range(12):
        count = rng.randrange(12)
        specs = []
        for _ in range(count):
            tenant = rng.choice([None, "a", "b"]) if n % 3 == 0 else None
            keys = ["slow"] if n == 5 else None
            specs.append(idl.ItemSpec(f"t{n}", b"x", fairness_key=tenant, throttle_keys=keys))
        if specs:
            host.ask("Enqueue", ns="n", items=specs)
        left[f"t{n}"] = count
    host.pass_ms(50)
    reports = rng.random() < 0.5
    held: Counter[str] = Counter()
    while True:
        most, count = rng.randint(1, 25), rng.randint(1, 12)
        wants = [idl.TopicCount(f"t{n}", count, held[f"t{n}"] if reports else None) for n in range(12)]
        rng.shuffle(wants)
        call = host.call("Dequeue", ns="n", wants=wants, worker="w", most=most)
        host.pass_ms(50)
        items: list[Any] = call.answer.items
        got = Counter(item.topic for item in items)
        may = {topic: min(count, number) for topic, number in left.items() if topic != "t4"}
        may |= {topic: min(may[topic], 3 - held[topic]) for topic in ("t0", "t1", "t2", "t3")}
        sure = sum(number for topic, number in may.items() if topic != "t5")  # the tokens of t5 come in time
        assert all(number <= may.get(topic, 0) for topic, number in got.items()), (got, may)
        assert min(most, sure) <= len(items) <= most, (got, may)
        assert held["t5"] + got["t5"] <= 4
        held += got
        left.subtract(got)
        if not items:
            break


@pytest.mark.parametrize("holding", [None, 2])
def test_a_topic_at_its_limit_holds_up_no_other_topic(holding: int | None) -> None:
    host = Throttled({"topic.t0": '{"per_worker": 2}', "topic.t1": '{"paused": true}'})
    for topic in ("t0", "t1"):
        host.put(9, topic=topic)
    wants = [idl.TopicCount(f"t{n}", 5, holding) for n in range(20)]
    if holding is None:
        first = host.call("Dequeue", ns="n", wants=wants, worker="w", most=5).answer.items
        assert [item.topic for item in first] == ["t0"] * 2
    call = host.call("Dequeue", ns="n", wants=wants, worker="w", most=5, wait_ms=5_000)
    host.pass_ms(500)
    assert not call.answers
    host.put(1, topic="t17")
    host.pass_ms(5)
    assert [item.topic for item in call.answer.items] == ["t17"]


@pytest.mark.parametrize(
    ("most", "count", "error"), [(0, 1, "most"), (10_001, 1, "most"), (5, 0, "count"), (5, 10_001, "count")]
)
def test_a_bound_out_of_range_is_refused(most: int, count: int, error: str) -> None:
    host = Throttled({})
    wants = [idl.TopicCount("t", 1), idl.TopicCount("u", count)]
    for method in ("Dequeue", "AckAndDequeue"):
        answer = host.call(method, ns="n", wants=wants, most=most).answer
        assert isinstance(answer, Invalid) and error in answer.message


def test_the_counts_of_a_bounded_request_may_be_large_together() -> None:
    host = Throttled({})
    host.put(3)
    wants = [idl.TopicCount(topic, 10_000) for topic in ("t", "u", "v")]
    assert len(host.ask("Dequeue", ns="n", wants=wants, most=2).items) == 2
    assert len(host.ask("AckAndDequeue", ns="n", acks=[], wants=wants, most=1).items) == 1
