"""The items of a shard in memory: rows of windows, forgotten items, and bytes of the budget."""

from __future__ import annotations

import pytest

from foqs.bounds import Budget
from foqs.config.schema import HostSection
from foqs.counters import Counters
from foqs.engine import item_ops
from foqs.engine.batch_reads import BodiesRead
from foqs.engine.endings import Awaited
from foqs.engine.shard_memory import FIRST_PAGE_ROWS, ShardMemory
from foqs.engine.shard_queue import ShardQueue
from foqs.fairness.keys import lane_key
from foqs.fairness.topics import Topics
from foqs.item import KNOWN_BYTES, Cause, Change, Item, Phase, Place, To
from foqs.prefetch.residents import Residents
from tests.engine.laboratory import KEY, Laboratory, reads_of


def drained(lab: Laboratory, count: int = 5) -> list[int]:
    """Return the ids of all ready items, as dequeues of `count` get them."""
    got: list[int] = []
    while taken := lab.taken(count=count):
        got += taken
    return got


# ------------------------------------------------------------------------------------------ windows


def test_a_full_window_leaves_its_end_in_the_database() -> None:
    """Items before the end of the window enter memory; items behind it are read later. The order holds."""
    lab = Laboratory(1, window_rows=16)
    ids = lab.stored(*(lab.item(priority=10) for _ in range(20)))
    shard = lab.engine.state.shards[1]
    assert sorted(shard.memory.known) == ids[:16]
    (behind,) = lab.stored(lab.item(priority=11))
    (before,) = lab.stored(lab.item(priority=9))
    assert behind not in shard.memory.known
    assert sorted(shard.memory.known) == [*ids[:15], before]
    assert drained(lab) == [before, *ids, behind]


def test_a_nacked_item_returns_to_its_place() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*(lab.item(priority=priority) for priority in (1, 2, 3)))
    assert lab.taken(count=2) == ids[:2]
    lab.operate(ids[1], item_ops.nack(lab.lease_of(ids[1]), 0, None))
    lab.settle()
    assert lab.taken() == ids[1:]


@pytest.mark.parametrize("nacked", [True, False], ids=["nacked", "new"])
def test_an_item_behind_a_half_read_window_waits(nacked: bool) -> None:
    """Rows between the end of the window and the item are only in the database."""
    lab = Laboratory(1, tail_items=0)
    late = lab.stored(lab.item(priority=5))
    lab.taken()
    ids = lab.stored(*(lab.item(priority=1) for _ in range(6 * FIRST_PAGE_ROWS)))
    shard = lab.engine.state.shards[1]
    shard.memory.drop_window(shard.memory.lanes[KEY])
    assert lab.taken(count=1) == ids[:1]
    if nacked:
        lab.operate(late[0], item_ops.nack(lab.lease_of(late[0]), 0, None))
        lab.settle()
    else:
        late = lab.stored(lab.item(priority=5))
    assert late[0] not in shard.memory.known
    assert drained(lab, 200) == [*ids[1:], *late]


def test_a_deleted_item_leaves_its_window() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(), lab.item())
    deleted = lab.operate(ids[0], item_ops.delete)
    assert lab.taken() == ids[1:]
    assert deleted == [None]
    assert lab.engine.ready(KEY) == 0


def test_a_topic_that_was_not_read_stays_unread() -> None:
    """Its window would lack the items that are only in the database."""
    lab = Laboratory(1)
    (old,) = lab.stored(lab.item(priority=1))
    lab.reopen()
    (new,) = lab.stored(lab.item(priority=2))
    assert new not in lab.engine.state.shards[1].memory.known
    assert drained(lab) == [old, new]


# ------------------------------------------------------------------------------------------ memory


def test_a_known_item_costs_its_body_until_it_is_delivered() -> None:
    lab = Laboratory(1)
    budget = lab.engine.state.budget
    (item_id,) = lab.stored(lab.item(b"x" * 1_000))
    assert budget.used_bytes == KNOWN_BYTES + 1_000
    lab.taken()
    assert budget.used_bytes == KNOWN_BYTES
    lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), 0, b"metadata"))
    lab.settle()
    assert lab.taken() == [item_id]
    assert budget.used_bytes == KNOWN_BYTES
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert budget.used_bytes == 0


def test_a_delayed_item_costs_nothing() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(delay_ms=60_000))
    assert lab.engine.state.budget.used_bytes == 0
    assert not lab.engine.state.shards[1].memory.known


def test_the_body_of_an_item_that_returns_is_read_again() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored(lab.item(b"body"))
    lab.taken()
    lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), 0, b"new metadata"))
    lab.settle()
    found = lab.dequeue()
    ((shard, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, BodiesRead)] == [[item_id]]
    lab.arrive(shard, batch)
    assert found == [[item_id]]
    looked = lab.look(item_id)
    lab.settle()
    ((_, found, _),) = looked
    assert (found.body.payload, found.body.metadata) == (b"body", b"new metadata")


def test_windows_share_their_part_of_the_budget() -> None:
    """Windows are cut, and a dequeue reads the missing rows again."""
    lab = Laboratory(1)
    lab.engine.state.budget.limit_bytes = 20_000
    topics = [("ns", f"topic-{number}") for number in range(10)]
    ids = {key: lab.stored(*(lab.item(b"x" * 360) for _ in range(10)), key=key) for key in topics}
    assert lab.engine.state.budget.used_bytes <= 14_000
    for key in topics:
        got: list[int] = []
        while len(got) < 10:
            taken = lab.taken(keys=[key])
            assert taken
            got += taken
            for item_id in taken:
                lab.ack((item_id, lab.lease_of(item_id)))
            lab.settle()
        assert got == ids[key]
    assert lab.engine.state.budget.used_bytes == 0


def test_a_consumer_gets_an_item_however_short_memory_is() -> None:
    """The window of its topic keeps its first item."""
    lab = Laboratory(1)
    lab.engine.state.budget.limit_bytes = 1_000
    ids = lab.stored(*(lab.item(b"x" * 2_000) for _ in range(3)))
    assert drained(lab) == ids


def test_old_written_leases_are_forgotten_but_still_stand() -> None:
    lab = Laboratory(1, leases=2)
    ids = lab.stored(*(lab.item() for _ in range(4)))
    assert lab.taken() == ids
    acks = [(item_id, lab.lease_of(item_id)) for item_id in ids]
    lab.go_on(300)
    assert sorted(lab.engine.state.shards[1].memory.known) == ids[2:]
    assert lab.taken() == []
    answers = lab.ack(*acks)
    lab.settle()
    assert answers == [None] * 4
    assert lab.engine.state.budget.used_bytes == 0


@pytest.mark.parametrize("held", ["busy", "awaited"])
def test_a_written_lease_in_use_is_not_forgotten(held: str) -> None:
    """A change of the item waits, or the reply to its consumer does."""
    budget, config = Budget(1 << 20), HostSection(leases=1)
    residents, queue = Residents(budget, (), lambda: 0), ShardQueue(config)
    memory = ShardMemory(config, Topics(), residents, budget, Counters(), queue, Awaited())
    lane = memory.lane(lane_key(KEY))
    items = [Item(number, lane, 0, 0, 1, 5, 10, None, Place.TIMER, Phase.LEASED) for number in (1, 2, 3)]
    for item in items:
        memory.learn(item)
    if held == "busy":
        items[0].queue(Change(items[0], To.GONE, Cause.ACK))
    else:
        items[0].awaited = True
    for item in items:
        memory.remember_written(item)
    assert sorted(memory.known) == [1, 3]
    assert budget.used_bytes == 2 * KNOWN_BYTES


# ------------------------------------------------------------------------------------------ topics


def test_a_topic_counts_its_items_in_every_state() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(priority=1), lab.item(priority=2), lab.item(delay_ms=60_000))
    (item_id,) = lab.taken(count=1)
    lane = lab.engine.state.shards[1].memory.lanes[KEY]
    assert (lane.total, lane.ready, lane.leased) == (3, 1, 1)
    lab.go_on(300)
    assert (lane.total, lane.ready, lane.leased) == (3, 1, 1)
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert (lane.total, lane.ready, lane.leased) == (2, 1, 0)


def test_a_topic_without_items_is_idle_from_its_last_removal() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    shard = lab.engine.state.shards[1]
    assert not shard.memory.idle_lanes
    lab.now_ms += 50
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert [(key, lane.empty_since_ms) for key, lane in shard.memory.idle_lanes.items()] == [(KEY, lab.now_ms)]
