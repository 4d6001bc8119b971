"""Tenants that come and go leave nothing in memory. The few bytes of an object that stays would hold on to a megabyte
of the allocator."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path

import foqs
from foqs.api import responses
from tests.engine.laboratory import Laboratory
from tests.engine.tenants import of

TENANTS = 1_000
LEFT_BYTES = 8 * TENANTS


def passing(lab: Laboratory, first: int) -> None:
    """Store an item for each tenant, deliver and ack all of them, and wait until their lanes are gone."""
    shard = lab.engine.shards[1]
    for number in range(first, first + TENANTS):
        lab.put(lab.item(), key=of(f"tenant {number}"))
    lab.settle()
    acked = 0
    while ids := lab.taken(count=100):
        lab.ack(*[(item_id, lab.lease_of(item_id)) for item_id in ids])
        lab.settle()
        acked += len(ids)
    assert acked == TENANTS
    while shard.lanes:
        lab.go_on(1_000)
    lab.dbs[1].ever.clear()


def held_bytes() -> int:
    gc.collect()  # which also frees the tuples that the interpreter keeps for new ones
    here = [tracemalloc.Filter(True, str(Path(foqs.__file__).parent / "*"))]
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(here).statistics("filename"))


def test_tenants_that_are_gone_hold_no_memory() -> None:
    lab = Laboratory(1, lane_idle_ms=1_000)
    tracemalloc.start()
    try:
        passing(lab, 0)
        before_bytes = held_bytes()
        passing(lab, TENANTS)
        assert held_bytes() - before_bytes < LEFT_BYTES
    finally:
        tracemalloc.stop()


def test_replies_keep_no_names_of_tenants() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored(key=of("tenant"))
    item = lab.engine.shards[1].known[item_id]
    before = sys.getrefcount(item.lane), sys.getrefcount(item.lane.key)
    assert responses.dequeue_response([item]) is not None
    assert (sys.getrefcount(item.lane), sys.getrefcount(item.lane.key)) == before
