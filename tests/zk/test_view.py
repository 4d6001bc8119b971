"""Records that were read, as facts."""

from foqs.ids import HASH_SLOTS
from foqs.shardmgr.facts import Slots, Written, encode_assignment, encode_slots
from foqs.zk.records import View

FIRST = Written(1, 1, 0, 0)


def test_a_record_that_was_written_again_is_another_one() -> None:
    """Its versions restart too; a store may not have seen that the record was missing in between."""
    changes: list[None] = []
    view = View(lambda: changes.append(None))
    for host, shard in (("a", 1), ("b", 2)):
        for _ in range(2):
            view.assignment.put("assignment", encode_assignment({1: host}), FIRST)
            view.slots.put("slots", encode_slots(Slots(shards=(shard,) * HASH_SLOTS, stamp=shard)), FIRST)
        assert view.facts.assignment.hosts == {1: host}
        assert view.facts.slots.shards == (shard,) * HASH_SLOTS
    assert len(changes) == 4, "what stands as it was is no change"
