"""Tenants with ranks, tenants that are passed over, and the counts of turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.fairness.tenants import DOWN, IDLE, PARKED, PASSED, QUEUED, SKIPPED, UNRANKED, ShardTerm
from foqs.fairness.turns import Turns
from tests.fairness.turns_model import FakeLane, Rig


def test_urgent_tenants_come_first_and_share_fairly() -> None:
    rig = Rig(ranked=True)
    for name, rank in (("a", 5), ("b", 5), ("c", 1), ("d", 1)):
        rig.turns.place(rig.join(name, 100), rank)
    part = rig.picks(200)
    assert all(abs(part.count(name) - 100) <= 1 for name in ("c", "d"))
    part = rig.picks(100)
    assert abs(part.count("a") - 50) <= 1


def test_newcomer_of_a_rank_waits_for_more_urgent_ones() -> None:
    rig = Rig(ranked=True)
    rig.turns.place(rig.join("urgent", 50), 1)
    rig.picks(10)
    rig.turns.place(rig.join("new", 1), 5)
    assert rig.picks(41) == ["urgent"] * 40 + ["new"]


def test_virtual_time_is_that_of_the_rank() -> None:
    """A tenant that joins a level does not wait for what another level was served."""
    rig = Rig(ranked=True)
    rig.turns.place(rig.join("a", 10_000), 5)
    rig.turns.place(rig.join("b", 10_000), 5)
    rig.turns.place(rig.join("urgent", 5_000), 1)
    rig.picks(5_010)
    rig.arrive("urgent", 10_000)
    assert rig.tenant("urgent").level.rank == UNRANKED
    rig.turns.place(rig.tenant("urgent"), 5)
    rig.turns.place(rig.join("late", 10_000), 5)
    part = rig.picks(400)
    assert all(abs(part.count(name) - 100) <= 2 for name in ("a", "b", "urgent", "late"))


def test_woken_tenants_are_ranked_again() -> None:
    rig = Rig(ranked=True)
    tenant = rig.join("a", 1)
    assert tenant.level.rank == UNRANKED
    rig.turns.place(tenant, 4)
    rig.turns.place(rig.join("b", 1), 3)
    rig.arrive("a", 1)
    assert (rig.turns.first(), tenant.level.rank) == (tenant, UNRANKED)


def ranked_pick(rig: Rig) -> str | None:
    """Pick as a dequeue does: a tenant whose most urgent item is not known gets its rank first."""
    while (tenant := rig.turns.first()) is not None and tenant.level.rank == UNRANKED:
        rig.turns.place(tenant, 5)
    return rig.pick()


def test_a_flood_does_not_starve_a_woken_newcomer() -> None:
    """Each item that arrives wakes it, and its rank is found again."""
    rig = Rig(ranked=True)
    rig.join("old", 1_000)
    for _ in range(4):
        ranked_pick(rig)
    for at in range(10):
        rig.join(f"before{at}", 1)
    rig.join("woken", 1)
    for at in range(60):
        rig.join(f"flood{at}", 1)
        rig.arrive("woken", 1)
        ranked_pick(rig)
    assert 4 + 2 * 10 <= rig.order.index("woken") <= 4 + 2 * 11
    assert "flood0" in rig.order


def test_newcomers_of_a_rank_keep_their_order() -> None:
    rig = Rig(ranked=True)
    for name in "abcd":
        rig.turns.place(rig.join(name, 5), 5)
    for name in "cab":
        rig.turns.place(rig.tenant(name), 7)
        rig.turns.place(rig.tenant(name), 5)
    assert [tenant.name for _, tenant in rig.tenant("a").level.newcomers] == ["a", "b", "c", "d"]


def test_passed_over_tenant_keeps_its_place() -> None:
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.join(name, 100)
    rig.picks(6)
    first = rig.turns.first()
    assert first is not None
    rig.turns.pass_over(first)
    rig.flow(first.name).wake()
    assert first.away == PASSED
    assert first.name not in rig.picks(4)
    rig.turns.back()
    assert first.away == QUEUED
    assert rig.picks(2) == [first.name, first.name]


def test_passed_over_newcomers_keep_their_order() -> None:
    rig = Rig()
    rig.join("a", 100)
    rig.picks(3)
    for name in ("n1", "n2", "n3"):
        rig.join(name, 1)
    for name in ("n1", "n2"):
        rig.turns.pass_over(rig.tenant(name))
    rig.part("n2")
    rig.turns.back()
    assert rig.picks(4) == ["n1", "a", "n3", "a"]


def test_next_up_has_queued_tenants_in_about_their_order() -> None:
    rig = Rig()
    for at in range(100):
        rig.join(f"t{at}", 100)
    rig.picks(300)
    rig.join("new", 1)
    rig.park("t7")
    soon = [tenant.name for tenant in rig.turns.next_up(10)]
    assert soon[0] == "new"
    assert len(soon) == len(set(soon)) == 10
    everyone = [tenant.name for tenant in rig.turns.next_up(1_000)]
    assert sorted(everyone) == sorted(set(rig.lanes) - {"t7"})


def test_tenants_that_left_take_no_memory() -> None:
    rig = Rig()
    rig.join("stays", 1)
    for at in range(5_000):
        rig.join(f"t{at}", 1)
        rig.part(f"t{at}")
    (_, level), *_ = rig.turns._ranks
    assert len(level.newcomers) + len(level.heap) < 200
    assert rig.picks(2) == ["stays", None]


flows = st.tuples(st.sampled_from("ab"), st.sampled_from([(), ("k",)]))
moves = st.lists(
    st.one_of(
        st.tuples(st.just("attach"), flows, st.integers(0, 2)),
        st.tuples(st.just("detach"), st.integers(0, 20), st.none()),
        st.tuples(st.just("count"), st.integers(0, 20), st.integers(0, 5)),
        st.tuples(st.just("park"), flows, st.booleans()),
        st.tuples(st.just("close"), st.integers(0, 2), st.none()),
    ),
    max_size=60,
)


@given(moves)
def test_counts_are_those_of_the_lanes(script: list[tuple]) -> None:
    turns: Turns[FakeLane] = Turns()
    terms = [ShardTerm(number, object()) for number in range(3)]
    lanes: list[FakeLane] = []
    for move, which, value in script:
        if move == "attach":
            lane = FakeLane(terms[value], ready=2)
            turns.attach(lane, *which)
            lanes.append(lane)
        elif move in ("detach", "count") and lanes:
            lane = lanes[which % len(lanes)]
            if move == "count":
                lane.add(value - min(lane.ready, 2))
            else:
                lanes.remove(lane)
                turns.detach(lane)
        elif move == "park":
            tenant = turns.tenants.get(which[0])
            flow = tenant.flows.get(which[1]) if tenant is not None else None
            if flow is not None:
                flow.parked = "key" if value else None
                if all(flow.parked is not None for flow in flow.tenant.flows.values()):
                    turns.leave(flow.tenant, PARKED)
                elif not value:
                    flow.wake()
        elif move == "close":
            terms[which].shard = None
        there = [lane for lane in lanes if lane.term.shard is not None]
        assert turns.ready == sum(lane.ready for lane in there)
        unparked = [lane for lane in there if lane.flow is not None and lane.flow.parked is None]
        assert turns.unparked == sum(lane.ready for lane in unparked)
        for flow in {lane.flow for lane in lanes if lane.flow is not None}:
            assert flow.ready == sum(lane.ready for lane in flow.lanes if lane in there)
    for lane in lanes:
        turns.detach(lane)
    assert not turns.tenants
    assert not turns.tallies
    assert turns.first() is None


def test_parked_flow_does_not_wake_its_tenant() -> None:
    rig = Rig()
    tenant = rig.join("a", 1)
    rig.park("a")
    rig.arrive("a", 5)
    assert tenant.away == PARKED
    assert (rig.turns.ready, rig.turns.unparked) == (6, 0)
    rig.unpark("a")
    assert tenant.away == QUEUED
    rig.picks(6)
    assert tenant.away == IDLE


def test_skipped_tenants_are_kept_in_their_order() -> None:
    rig = Rig()
    for name in "abc":
        rig.join(name, 5)
    rig.turns.skip(rig.tenant("b"), 10)
    rig.turns.skip(rig.tenant("a"), 20)
    rig.turns.skip(rig.tenant("c"), 20, down=True)
    assert (rig.tenant("a").away, rig.tenant("c").away) == (SKIPPED, DOWN)
    assert [tenant.name for tenant in rig.turns.skipped] == ["b", "a"]
    assert rig.pick() is None
    rig.flow("a").wake()
    rig.part("b")
    rig.flow("c").wake()
    assert (rig.turns.skipped, rig.turns.down) == ({}, {})
    assert sorted({name for name in rig.picks(10) if name}) == ["a", "c"]


def test_ranks_begin_and_end() -> None:
    rig = Rig()
    for name in "ab":
        rig.join(name, 50)
    rig.picks(10)
    rig.turns.follow("items", ranked=True)
    assert {tenant.level.rank for tenant in rig.turns.tenants.values()} == {UNRANKED}
    rig.turns.place(rig.tenant("a"), 3)
    rig.turns.place(rig.tenant("b"), -3)
    assert rig.picks(20) == ["b"] * 20
    rig.turns.follow("items", ranked=False)
    assert abs(rig.picks(20).count("a") - 10) <= 1


def test_a_queue_of_tenants_that_left_is_none() -> None:
    """All entries of the heap are stale: tenants left from its middle, the first one from its top."""
    rig = Rig()
    for name in "abc":
        rig.join(name, 1)
    rig.picks(3)
    for name in "abc":
        rig.arrive(name, 1)
    order = [tenant.name for tenant in rig.turns.next_up(3)]
    for name in reversed(order):
        rig.part(name)
    rig.join("away", 0)
    assert rig.turns.alike(8) is None


def test_the_order_of_before_binds_no_tenant_after_another_scope() -> None:
    """Else a tenant that was looked at again, or a debtor that returned, would stand on a level alone, for good."""
    rig = Rig(ranked=True)
    for name in ("a", "b"):
        rig.turns.place(rig.join(name, 100), 7)
    rig.turns.place(rig.join("debtor", 3), 7)
    rig.picks(7)
    rig.turns.incomplete[rig.tenant("a")] = None
    rig.part("debtor")
    rig.turns.follow("items", ranked=False)
    assert not rig.turns.incomplete
    rig.join("debtor", 100)
    part = rig.picks(60)
    assert all(19 <= part.count(name) <= 21 for name in ("a", "b", "debtor"))


def test_charges_in_another_unit_are_forgotten() -> None:
    """Two leases of a minute would else cost their tenant 120,000 items."""
    rig = Rig()
    rig.turns.follow("busy", ranked=False)
    slow, fast = rig.join("slow", 1_000), rig.join("fast", 1_000)
    for item_id in range(4):
        tenant = rig.turns.first()
        assert tenant is not None
        rig.turns.charge(tenant, rig.turns.cost(tenant, item_id, 1))
    rig.turns.lease_over(fast, 99, 10)
    rig.turns.correct(slow, 60_000)
    rig.turns.follow("items", ranked=False)
    for item_id in range(4):
        rig.turns.lease_over(slow, item_id, 60_000)
    part = rig.picks(100)
    assert abs(part.count("slow") - 50) <= 1
    assert slow.lease_ms is None


def test_half_of_the_tenants_that_are_next_are_newcomers() -> None:
    """As newcomers have every second turn, the pages of other tenants are read ahead, too."""
    rig = Rig()
    for number in range(20):
        rig.join(f"old{number}", 100)
    rig.picks(60)
    for number in range(20):
        rig.join(f"new{number}", 1)
    soon = [tenant.newcomer for tenant in rig.turns.next_up(10)]
    assert (soon.count(True), soon.count(False)) == (5, 5)
