"""What a host keeps in memory for a tenant of a shard that it has just opened."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

from foqs.engine import shard_life
from foqs.rows import BACKLOG_SHIFT, Backlog, LaneRow, RowPages
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory

TENANTS = 20_000
BYTES = 850
"""Lane, flow and tenant with their names, and their entries in dicts and in the heap of turns."""


def test_a_tenant_of_an_opened_shard_takes_few_bytes() -> None:
    lab = Laboratory(1)
    shard, store = lab.engine.shards[1], lab.stores[1]
    lab.engine.drained(shard, lab.now_ms)
    store.close(clean=True)
    shard.to(ShardState.ASSIGNED)
    shard.to(ShardState.OPENING)
    opened = store.open("host", take_over=False)
    gc.collect()
    tracemalloc.start(1)
    try:
        lanes, backlog = RowPages(LaneRow), RowPages(Backlog)
        ns, topic = (name.encode() for name in KEY)
        for first in range(1, TENANTS + 1, 2_000):
            numbers = range(first, first + 2_000)
            lanes.add([(number, ns, topic, b"customer-%06d" % number, b"", 0) for number in numbers])
            backlog.add([(number, lab.now_ms >> BACKLOG_SHIFT, 1) for number in numbers])
        opened = replace(opened, lanes=lanes, backlog=backlog)
        shard_life.open_shard(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
        shard_life.wake_lanes(lab.engine, shard)
        while lab.engine.long_work:
            lab.engine.go_on()
        gc.collect()
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(shard.lanes) == lab.engine.ready(KEY) == TENANTS
    assert held_bytes / TENANTS < BYTES
    assert peak_bytes / TENANTS < BYTES + 150
