"""Taken items leave the windows of a tenant at the end, and not before."""

from __future__ import annotations

from foqs.engine.fair_dequeue import TenantCursor
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of


def test_of_one_lane_the_taken_items_are_leased() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*[lab.item() for _ in range(3)], key=of("a"))
    lane = lab.engine.shards[1].lanes[of("a")]
    assert lane.window is not None
    taking = TenantCursor()
    taking.lane, taking.entries = lane, lane.window.entries
    taking.at, taking.upto = 2, 3
    assert lane.ready == 3
    taking.finish(lab.engine)
    assert (lane.ready, lane.leased) == (1, 2)
    assert [entry[2] for entry in lane.window.entries] == ids[2:]
    assert not taking.entries
    assert (taking.at, taking.upto) == (0, 0)


def test_of_several_lanes_those_of_parked_flows_keep_their_items() -> None:
    lab = Laboratory(1)
    (parked_id,) = lab.stored(lab.item(), key=of("a", "k"))
    (other_id,) = lab.stored(lab.item(), key=of("a"))
    lanes = [lab.engine.shards[1].lanes[key] for key in (of("a", "k"), of("a"))]
    parked, other = lanes
    assert parked.window is not None
    assert other.window is not None
    taking = TenantCursor()
    taking.lanes, taking.entries = lanes, list(other.window.entries)
    taking.at = taking.upto = 1
    taking.parked = {parked.flow}
    taking.finish(lab.engine)
    assert [entry[2] for entry in parked.window.entries] == [parked_id]
    assert not other.window.entries
    assert (parked.ready, other.ready, other.leased) == (1, 0, 1)
    assert parked_id < other_id
    assert lab.engine.topics[KEY].ready == 1
