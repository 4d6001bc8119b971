"""New members of batches wait for the homes of their batches, on each shard that gets them."""

from __future__ import annotations

from foqs.buffers.shard_batch import Chunk
from foqs.engine.calls import EnqueueCall
from foqs.fairness.keys import lane_key
from foqs.rows import NewMember
from tests.engine.laboratory import KEY, Laboratory


def test_members_that_return_to_a_shard_wait_again() -> None:
    """While another shard has them, the reports of the first one do not count them: their batch may have ended."""
    lab = Laboratory(1, 2)
    first, second = (shard.queue for shard in lab.engine.state.shards.values())
    call = EnqueueCall(1, lambda _: None)
    chunk = Chunk(call, [0], [NewMember.of(lab.item(), 7)], [lane_key(KEY, members=True)], 1, members=True)
    first.add(chunk)
    (join,) = first.members.joins
    join.waits.clear()
    first.go_on()
    assert list(first.chunks) == [chunk]
    for here, there in ((first, second), (second, first)):
        assert here.take_chunks() == [chunk]
        there.add(chunk)
        assert not there.chunks
        assert [join.what for join in there.members.joins] == [chunk]
