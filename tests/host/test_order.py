"""Orders of events that are rare, one by one."""

from __future__ import annotations

from collections.abc import Callable

from foqs.buffers.keys import Give
from foqs.buffers.round import RoundResult
from foqs.dedup import bounds_of
from foqs.errors import FoqsError
from foqs.host.listing import Listing
from foqs.host.slot_moves import SlotMoves
from foqs.ids import shard_of
from foqs.rows import DedupRow, Holding
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Routing
from foqs.shardmgr.slots import bits_of, has
from foqs.store.protocol import RowRejected
from tests.host.laboratory import KEY, Laboratory


def test_a_refused_item_does_not_confirm_the_owner() -> None:
    """One that is too large for a packet is refused before the database was asked for anything."""
    lab = Laboratory(1)
    shard, store = lab.host.shards[1], lab.stores[1]
    lab.enqueue()
    lab.settle()
    lab.now_ms += 10_000
    assert not shard.confirmed(lab.now_ms)

    def refuse(batch: object) -> None:
        raise RowRejected("too large")

    commit, store.commit = store.commit, refuse  # type: ignore[method-assign, assignment]
    refused = lab.enqueue(b"too large")
    lab.settle()
    store.commit = commit  # type: ignore[method-assign]
    assert isinstance(refused[0], FoqsError)
    assert not shard.confirmed(lab.now_ms)


def test_a_slot_that_is_just_given_away_does_not_come_back_with_another() -> None:
    lab = Laboratory(1, 2)
    shard = lab.host.shards[1]
    mine, other = range(512), 900
    shard.keys.wanted = Holding(1, bits_of(mine))
    lab.host.touch(shard)
    lab.settle()
    given: list[list[DedupRow] | FoqsError] = []
    stamp = shard.keys.held.stamp + 1
    shards = tuple(1 if slot in (*mine, other) else 2 for slot in range(1024))
    routing = Routing(slots=Slots(0, shards, {}, stamp))
    moves = SlotMoves(lab.host, lambda: routing, lambda *asked: None, lambda after_ms, do: None)
    shard.keys.gives.append(Give(mine[0], stamp, bounds_of(mine[0])[0], 10, given.append))
    lab.host.touch(shard)
    sent = lab.send()
    # The record that comes now: another slot is here.
    without = tuple(2 if slot == mine[0] else number for slot, number in enumerate(shards))
    routing = Routing(slots=Slots(0, without, {}, stamp + 1))
    moves.adopt()
    for each in sent:
        lab.arrive(*each)
    assert given == [[]]
    lab.settle()
    held = shard.keys.held
    assert has(held.bits, other)
    assert not has(held.bits, mine[0])
    assert lab.dbs[1].slots == held


def test_what_waits_behind_a_lost_connection_goes_to_another_shard() -> None:
    lab = Laboratory(1, 2)
    shard = lab.host.shards[1]
    lab.host.shards[2].takes_new = False
    lab.enqueue()
    ((_, round_),) = lab.send()
    behind = lab.enqueue()
    assert len(shard.chunks) == 1
    lab.host.shards[2].takes_new = True
    lab.arrive(shard, round_, RoundResult(down=True, error="gone"))
    for each in lab.send():
        if each[0] is not shard:
            lab.arrive(*each)
    assert [shard_of(found) for found in behind] == [2]


def test_a_listing_that_ended_leaves_nothing_behind() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    lab.settle()
    shard = lab.host.shards[1]
    lab.enqueue()
    lab.send()
    said: list[FoqsError] = []

    class Call:
        def fail(self, error: FoqsError) -> None:
            said.append(error)

    lab.host.list(Listing(lab.host, KEY, 0, 10, 1 << 20, None, Call()), lab.now_ms, 1_000)  # type: ignore[arg-type]
    lab.now_ms += 2_000
    lab.host.tick(lab.now_ms)
    assert said
    assert not shard.lists


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


def test_what_another_deadline_ended_is_not_ended_again() -> None:
    """Both are due when the timer rings: a request, and what is held for it."""
    lab = Laboratory(1)
    held = Ends(lambda: None)

    def end() -> None:
        held.done = True

    for waiting in (Ends(end), held, held):
        lab.host.deadlines.push(lab.now_ms + 10, waiting)
    lab.now_ms += 10
    lab.host.tick(lab.now_ms)
    assert not held.ends
