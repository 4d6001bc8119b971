"""Lanes of tenants and throttle sets: order, row, weight, and bytes in memory."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from foqs.buffers.shard_batch import Chunk
from foqs.engine import shard_life
from foqs.engine.calls import EnqueueCall
from foqs.fairness.keys import LaneKey, lane_key, pack_throttles, tenancy_of, topic_key, unpack_throttles
from foqs.opened import Backlog, RowPages
from foqs.rows import BACKLOG_SHIFT, LaneRow, NewItem
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory

TOPIC = ("ns", "topic")
A, B = lane_key(TOPIC, "a"), lane_key(TOPIC, "b")
THROTTLED = lane_key(TOPIC, "a", ("api", "customer:7"))


def put(lab: Laboratory, keys: list[LaneKey], weights: dict[LaneKey, int] | None = None) -> list[Any]:
    """Enqueue an item for each key in one request."""
    answers: list[Any] = []
    items = [lab.item(str(at).encode()) for at in range(len(keys))]
    call = EnqueueCall(len(keys), answers.extend)
    lab.engine.enqueue(call, range(len(keys)), items, keys, [1] * len(keys), lab.now_ms, 5_000, weights)
    lab.settle()
    return answers


def weights_of(lab: Laboratory) -> dict[tuple[bytes, bytes], int]:
    return {(row.fairness, row.throttles): row.weight for row in lab.dbs[1].lanes.values()}


@pytest.mark.parametrize("key", [lane_key(TOPIC), A, lane_key(TOPIC, "", ("k",)), THROTTLED])
def test_names(key: LaneKey) -> None:
    fairness, throttles = tenancy_of(key)
    assert topic_key(key) == TOPIC
    assert unpack_throttles(pack_throttles(throttles)) == throttles
    assert lane_key(topic_key(key), fairness, throttles) == key


def test_a_plain_lane_is_named_by_its_topic() -> None:
    assert lane_key(TOPIC) is TOPIC


def test_each_tenant_and_throttle_set_has_a_lane() -> None:
    lab = Laboratory(1)
    put(lab, [A, B, THROTTLED, lane_key(TOPIC), A])
    names = {(row.fairness, row.throttles) for row in lab.dbs[1].lanes.values()}
    assert names == {(b"a", b""), (b"b", b""), (b"a", b"api\0customer:7"), (b"", b"")}
    assert {key: lane.total for key, lane in lab.engine.state.shards[1].memory.lanes.items()} == {
        A: 2, B: 1, THROTTLED: 1, lane_key(TOPIC): 1,
    }  # fmt: skip


def test_lanes_and_weights_are_there_after_a_restart() -> None:
    lab = Laboratory(1)
    put(lab, [A, B, THROTTLED], {A: 4})
    lab.reopen()
    lanes = lab.engine.state.shards[1].memory.lanes
    assert {key: (lane.total, lane.weight) for key, lane in lanes.items()} == {A: (1, 4), B: (1, 0), THROTTLED: (1, 0)}


def test_the_last_stored_weight_wins() -> None:
    lab = Laboratory(1)
    put(lab, [A, B], {A: 4, B: 2})
    put(lab, [A, B], {B: 9})
    put(lab, [A, B])
    assert weights_of(lab) == {(b"a", b""): 4, (b"b", b""): 9}


def test_an_equal_weight_is_not_written_again() -> None:
    lab = Laboratory(1)
    put(lab, [A], {A: 4})
    batches: list[Any] = []
    lab.dbs[1].observers.append(lambda epoch, batch: batches.append(batch.weights))
    put(lab, [A], {A: 4})
    put(lab, [A], {A: 5})
    assert batches == [[], [(1, 5)]]


def test_a_weight_whose_transaction_failed_is_written_again() -> None:
    lab = Laboratory(1)
    put(lab, [A], {A: 4})
    lab.faults[1].commits.append("busy")
    put(lab, [A], {A: 5})
    lab.go_on(5_000)
    assert weights_of(lab) == {(b"a", b""): 5}
    assert lab.engine.state.shards[1].memory.lanes[A].weight == 5


def test_a_part_of_a_chunk_keeps_the_weights() -> None:
    items = [NewItem(b"", None, None, 0, 0, 0, 0, 0, 0, 1)] * 2
    chunk = Chunk(EnqueueCall(2, print), [0, 1], items, [A, B], 2, None, {A: 4})
    assert chunk.part([1]).weights == {A: 4}


TENANTS = 20_000
BYTES = 880
"""Lane, flow and tenant with their names, and their entries in dicts and in the heap of turns."""


def test_a_tenant_of_an_opened_shard_takes_few_bytes() -> None:
    lab = Laboratory(1)
    shard, store = lab.engine.state.shards[1], lab.stores[1]
    lab.engine.drained(shard, lab.now_ms)
    store.close(clean=True)
    shard.owner.to(ShardState.ASSIGNED)
    shard.owner.to(ShardState.OPENING)
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
        shard_life.wake_lanes(lab.engine.state, shard)
        while lab.engine.state.slices.long_work:
            lab.engine.state.slices.go_on()
        gc.collect()
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(shard.memory.lanes) == lab.engine.ready(KEY) == TENANTS
    assert held_bytes / TENANTS < BYTES
    assert peak_bytes / TENANTS < BYTES + 150
