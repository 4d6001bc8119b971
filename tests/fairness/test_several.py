"""Turns that are found together are those that come one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.fairness import turns
from tests.fairness.turns_model import Rig

WEIGHTS = (1, 3, 7, 0.3, 10, 1_000)

tenants = st.lists(st.tuples(st.integers(1, 40), st.sampled_from(WEIGHTS)), min_size=1, max_size=6)


def rig_of(tenants: list[tuple[int, float]], before: int) -> Rig:
    rig = Rig()
    for at, (ready, weight) in enumerate(tenants):
        rig.join(f"t{at}", 10_000, weight)
        rig.lanes[f"t{at}"].add(ready)
    rig.picks(2 * len(tenants) + before)  # none is new
    for at, (ready, _) in enumerate(tenants):
        lane = rig.lanes[f"t{at}"]
        lane.add(ready - lane.ready)
    rig.order.clear()
    return rig


@given(tenants, st.integers(0, 30), st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 6))
def test_several_turns_are_those_one_by_one(
    drawn: list[tuple[int, float]], before: int, counts: list[int], leaving: int
) -> None:
    one_by_one, together = rig_of(drawn, before), rig_of(drawn, before)
    if leaving < len(drawn) - 1:  # its entry stays in the queue
        for rig in (one_by_one, together):
            rig.part(f"t{leaving}")
    for count in counts:
        queue = together.turns.alike(len(drawn))
        assert queue is not None
        items = [
            [tenant.name] * min(most, together.lanes[tenant.name].ready)
            for (_, _, tenant), most in zip(queue, turns.shares(queue, count), strict=True)
        ]
        names, found = turns.next_turns(queue, items, count)
        together.turns.charge_all(found)
        for name in names:
            together.lanes[name].add(-1)
        assert names == [one_by_one.pick() for _ in names]
        for name, lane in together.lanes.items():
            assert lane.ready == one_by_one.lanes[name].ready
            if lane.ready:
                assert together.tenant(name).start == one_by_one.tenant(name).start
                assert together.tenant(name).served == one_by_one.tenant(name).served
        assert together.turns.tenants and (
            len(names) == count or not all(lane.ready for lane in together.lanes.values())
        )
        if len(names) < count:
            break


def test_the_parts_add_up_to_the_whole() -> None:
    rig = rig_of([(1_000, 1), (1_000, 2), (1_000, 4)], 0)
    queue = rig.turns.alike(3)
    assert queue is not None
    shares = dict(zip([tenant.name for _, _, tenant in queue], turns.shares(queue, 70), strict=True))
    assert [abs(shares[f"t{at}"] - due) <= 1 for at, due in enumerate((10, 20, 40))] == [True] * 3


def test_a_queue_with_a_newcomer_says_not_all() -> None:
    rig = rig_of([(10, 1), (10, 1)], 0)
    assert rig.turns.alike(2) is not None
    rig.join("new", 1)
    assert rig.turns.alike(3) is None


def test_many_tenants_take_their_turns_one_by_one() -> None:
    rig = rig_of([(10, 1), (10, 1), (10, 1)], 0)
    assert rig.turns.alike(2) is None


def test_items_of_different_cost_take_their_turns_one_by_one() -> None:
    rig = rig_of([(10, 1), (10, 1)], 0)
    rig.turns.follow("bytes", ranked=False)
    assert rig.turns.alike(2) is None


def test_ranked_tenants_take_their_turns_one_by_one() -> None:
    rig = rig_of([(10, 1), (10, 1)], 0)
    rig.turns.follow("items", ranked=True)
    assert rig.turns.alike(2) is None
