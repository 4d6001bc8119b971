"""The items of a request by their lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.buffers.shard_batch import Chunk
from foqs.engine.calls import EnqueueCall
from foqs.fairness.keys import lane_key
from foqs.rows import NewItem
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of


def item(priority: int) -> NewItem:
    return NewItem(b"", None, None, priority, 0, 0, 0, 0, 0, 0)


@given(st.lists(st.sampled_from(["", "a", "b"]), max_size=8))
def test_each_lane_has_its_items_in_their_order(names: list[str]) -> None:
    keys = [lane_key(KEY, name) for name in names]  # equal ones are several objects
    items = [item(at) for at in range(len(keys))]
    chunk = Chunk(EnqueueCall(len(keys), lambda _: None), range(len(keys)), items, keys, 0)
    by_lane = chunk.by_lane()
    assert by_lane.keys() == set(keys)
    for key, own in by_lane.items():
        assert own == [one for one, its in zip(items, keys, strict=True) if its == key]


def test_mixed_tenants_enter_the_tail_in_order() -> None:
    lab = Laboratory(1)
    items, keys = [lab.item() for _ in range(6)], [of(name) for name in ("a", "b", "a", "c", "b", "a")]
    call = EnqueueCall(6, lambda _: None)
    lab.engine.enqueue(call, range(6), items, keys, [0] * 6, lab.now_ms, 5_000)
    lab.settle()
    tail = lab.engine.shards[1].tail
    assert [one.id for one in tail.items()] == [one.id for one in items]
    assert tail.count == 6
    assert tail.bytes == sum(len(one.payload) for one in items)
    assert tail.first() == items[0].id
