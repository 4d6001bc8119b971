"""Orders of events that are rare, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foqs.buffers.pending_dedup import Give, GivenPage
from foqs.buffers.shard_batch import BatchResult
from foqs.engine.listing import Listed, Listing
from foqs.errors import FoqsError
from foqs.ids import hash_slot_bounds, shard_of
from foqs.peers.hash_slots import SlotMigration
from foqs.rows import DedupRow, Holding
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Routing, bits_of, has
from foqs.store.protocol import RowRejected
from tests.engine.laboratory import KEY, Laboratory


def test_a_refused_item_does_not_confirm_the_owner() -> None:
    """One that is too large for a packet is refused before the database was asked for anything."""
    lab = Laboratory(1)
    shard, store = lab.engine.state.shards[1], lab.stores[1]
    lab.enqueue()
    lab.settle()
    lab.now_ms += 10_000
    assert not shard.owner.confirmed(lab.now_ms)

    def refuse(batch: object) -> None:
        raise RowRejected("too large")

    commit, store.commit = store.commit, refuse  # type: ignore[method-assign, assignment]
    refused = lab.enqueue(b"too large")
    lab.settle()
    store.commit = commit  # type: ignore[method-assign]
    assert isinstance(refused[0], FoqsError)
    assert not shard.owner.confirmed(lab.now_ms)


def test_a_slot_just_given_away_does_not_come_back() -> None:
    lab = Laboratory(1, 2)
    shard = lab.engine.state.shards[1]
    mine, other = range(512), 900
    shard.queue.keys.wanted = Holding(1, bits_of(mine))
    lab.engine.state.touch(shard)
    lab.settle()
    given: list[list[DedupRow] | FoqsError] = []
    stamp = shard.queue.keys.held.stamp + 1
    shards = tuple(1 if slot in (*mine, other) else 2 for slot in range(1024))
    routing = Routing(slots=Slots(0, shards, {}, stamp))
    no_call = lambda *_: None  # noqa: E731
    moves = SlotMigration(lab.engine, lambda: routing, no_call, no_call, no_call)
    shard.queue.keys.gives.append(Give(mine[0], stamp, hash_slot_bounds(mine[0])[0], 10, given.append))
    lab.engine.state.touch(shard)
    sent = lab.send()
    # The record that comes now: another slot is here.
    without = tuple(2 if slot == mine[0] else number for slot, number in enumerate(shards))
    routing = Routing(slots=Slots(0, without, {}, stamp + 1))
    moves.adopt()
    for each in sent:
        lab.arrive(*each)
    assert given == [GivenPage([], [])]
    lab.settle()
    held = shard.queue.keys.held
    assert has(held.bits, other)
    assert not has(held.bits, mine[0])
    assert lab.dbs[1].slots == held


def test_items_behind_a_lost_connection_go_to_another_shard() -> None:
    lab = Laboratory(1, 2)
    shard = lab.engine.state.shards[1]
    lab.engine.state.shards[2].owner.takes_new = False
    lab.enqueue()
    ((_, batch),) = lab.send()
    behind = lab.enqueue()
    assert len(shard.queue.chunks) == 1
    lab.engine.state.shards[2].owner.takes_new = True
    lab.arrive(shard, batch, BatchResult(down=True, error="gone"))
    for each in lab.send():
        if each[0] is not shard:
            lab.arrive(*each)
    assert [shard_of(found) for found in behind] == [2]


def test_a_listing_that_ended_leaves_nothing_behind() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    lab.settle()
    shard = lab.engine.state.shards[1]
    lab.enqueue()
    lab.send()
    said: list[FoqsError] = []

    def reply(items: list[Listed], cursor: str | None) -> None:
        pytest.fail("the shard did not answer")

    lab.engine.list(Listing(lab.engine.state, KEY, 0, 10, 1 << 20, None, reply, said.append), lab.now_ms, 1_000)
    lab.now_ms += 2_000
    lab.engine.tick(lab.now_ms)
    assert said
    assert not shard.queue.lists


class Ends:
    """Waits for its deadline; `first` is what happens as it comes."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.done = False
        self.first = first
        self.ends = 0

    def timed_out(self, shards: object) -> None:
        self.first()
        self.done = True
        self.ends += 1


def test_a_call_that_another_deadline_ended_ends_once() -> None:
    """Both are due when the timer rings: a request, and the call that is held for it."""
    lab = Laboratory(1)
    held = Ends(lambda: None)

    def end() -> None:
        held.done = True

    for waiting in (Ends(end), held, held):
        lab.engine.state.deadlines.push(lab.now_ms + 10, waiting)
    lab.now_ms += 10
    lab.engine.tick(lab.now_ms)
    assert not held.ends
