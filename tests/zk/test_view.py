"""Records that were read, as facts."""

from foqs.dedup import SLOTS
from foqs.shardmgr.facts import Slots, encode_assignment, encode_slots
from foqs.zk.view import View


def test_a_record_that_was_removed_and_written_anew_is_another_one() -> None:
    """Its versions begin anew, too; whether it was away in between nobody may have seen."""
    changes: list[None] = []
    view = View(lambda: changes.append(None))
    for host, shard in (("a", 1), ("b", 2)):
        for _ in range(2):
            view.put_assignment("assignment", encode_assignment({1: host}), 0)
            view.put_slots("slots", encode_slots(Slots(shards=(shard,) * SLOTS, stamp=shard)), 0)
        assert view.facts.assignment.hosts == {1: host}
        assert view.facts.slots.shards == (shard,) * SLOTS
    assert len(changes) == 4, "what stands as it was is no change"
