"""A shard opens with the counts of its database, in slices of the event loop, and closes with an answer to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine import item_ops, shard_life
from foqs.engine.listing import Listing
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, NotServed, OutcomeUnknown, Unavailable
from foqs.fairness.keys import lane_key
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.item import Phase
from foqs.opened import Opened
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory
from tests.support.one_host import OneHost, kinds, put, take


def types(answers: list[Any]) -> list[type]:
    return [type(answer) for answer in answers]


def leased(lab: Laboratory) -> tuple[int, int]:
    (item_id,) = lab.stored()
    lab.taken()
    return item_id, lab.lease_of(item_id)


# ------------------------------------------------------------------------------------------ open


def test_a_new_owner_knows_the_stored_items() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(), lab.item(), lab.item(delay_ms=60_000))
    lab.taken(count=1)
    lab.go_on(200)  # the lease is written
    lab.reopen()
    lane = lab.engine.state.shards[1].memory.lanes[KEY]
    assert (lane.ready, lane.leased, lane.total) == (1, 1, 3)
    assert lab.taken() == [ids[1]]
    assert lab.stored() > ids, "no id is used again"
    lab.stored(key=("ns", "new"))
    assert len(lab.dbs[1].lanes) == 2


def test_an_unwritten_lease_ends_with_its_owner() -> None:
    lab = Laboratory(1)
    item_id, _ = leased(lab)
    lab.reopen()
    assert lab.taken() == [item_id]


def test_empty_topics_are_idle_from_the_open_on() -> None:
    lab = Laboratory(1, lane_idle_ms=5_000)
    acked = leased(lab)
    lab.ack(acked)
    lab.settle()
    lab.reopen()
    assert lab.dbs[1].lanes
    lab.go_on(6_000)
    assert not lab.dbs[1].lanes


@pytest.mark.parametrize("clean", [True, False])
def test_a_replaced_owner_is_given_time_to_stop(clean: bool) -> None:
    """It may lease items from memory until its last confirmation is too old."""
    lab = Laboratory(1)
    ids = lab.stored()
    lab.reopen(clean=clean)
    consumer = lab.dequeue(wait_ms=5_000)
    lab.settle()
    lab.go_on(1_000)
    assert consumer == ([ids] if clean else [])
    lab.go_on(1)
    assert consumer == [ids]


# ------------------------------------------------------------------------------------------ close


def test_items_that_wait_go_to_another_shard() -> None:
    lab = Laboratory(1, 2)
    lab.engine.state.shards[2].owner.takes_new = False
    answers = lab.enqueue()
    lab.engine.state.shards[2].owner.takes_new = True
    lab.engine.lose(lab.engine.state.shards[1], lab.now_ms)
    lab.settle()
    assert [shard_of(item_id) for item_id in answers] == [2]


def test_fenced_items_that_wait_elsewhere_were_not_sent() -> None:
    """At their deadline they are refused, because no transaction has them."""
    lab = Laboratory(1, 2)
    lab.engine.state.shards[1].owner.takes_new = False
    lab.enqueue()
    lab.send()
    lab.engine.state.shards[1].owner.takes_new, lab.engine.state.shards[2].owner.takes_new = True, False
    answers = lab.enqueue(timeout_ms=900)
    ((shard, batch),) = lab.send()
    lab.engine.state.shards[2].owner.takes_new = True
    lab.arrive(shard, batch, BatchResult(fenced=True))
    assert not answers
    lab.ring(901)
    assert types(answers) == [Unavailable]


def test_items_with_keys_wait_for_their_own_shard_only() -> None:
    """No other shard knows whether their keys were stored before."""
    lab = Laboratory(1, 2)
    answers = lab.enqueue_keyed("a")
    lab.engine.lose(lab.engine.state.shards[1], lab.now_ms)
    assert types(answers) == [NotServed]


def test_a_close_settles_everything_that_waits() -> None:
    lab = Laboratory(1)
    shard = lab.engine.state.shards[1]
    acked = leased(lab)
    enqueued, changed, looked = lab.enqueue(), lab.ack(acked), lab.look(acked[0])
    listed: list[Any] = []
    lab.engine.list(
        Listing(lab.engine.state, KEY, 0, 10, 1 << 20, None, lambda *_: None, listed.append), lab.now_ms, 5_000
    )
    lab.engine.lose(shard, lab.now_ms)
    assert types(enqueued) == [Unavailable]
    assert types(changed) == types(listed) == [NotServed]
    ((item, body, error),) = looked
    assert (item, body, type(error)) == (None, None, NotServed)
    assert shard.owner.state is ShardState.CLOSED
    assert (lab.engine.state.budget.used_bytes, len(lab.engine.state.residents)) == (0, 0)
    assert lab.send() == []


@pytest.mark.parametrize(
    ("outcome", "error"), [(Outcome.FAILED, NotServed), (Outcome.UNKNOWN, OutcomeUnknown), (Outcome.NONE, NotServed)]
)
def test_what_a_fenced_transaction_tells_its_requests(outcome: Outcome, error: type[FoqsError]) -> None:
    lab = Laboratory(1)
    acked = leased(lab)
    enqueued, changed = lab.enqueue(), lab.ack(acked)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(outcome, fenced=True))
    assert types(changed) == [error]
    assert types(enqueued) == [OutcomeUnknown if outcome is Outcome.UNKNOWN else Unavailable]


def test_an_unknown_outcome_stays_unknown_at_the_close() -> None:
    """None of its items may be stored again, though another shard has room."""
    lab = Laboratory(1, 2)
    lab.engine.state.shards[2].owner.takes_new = False
    answers = lab.enqueue()
    lab.faults[1].commits.append("applied")
    lab.settle()
    lab.engine.state.shards[2].owner.takes_new = True
    lab.engine.lose(lab.engine.state.shards[1], lab.now_ms)
    lab.settle()
    assert types(answers) == [OutcomeUnknown]
    assert not lab.dbs[2].items


def test_a_drain_that_is_cut_short_leaves_outcomes_unknown() -> None:
    lab = Laboratory(1)
    answers = lab.enqueue()
    ((shard, batch),) = lab.send()
    lab.engine.retire(shard)
    lab.engine.drained(shard, lab.now_ms)
    assert types(answers) == [OutcomeUnknown]
    lab.arrive(shard, batch)
    assert types(answers) == [OutcomeUnknown], "a late result changes nothing"


def test_no_lease_of_a_closed_shard_stands() -> None:
    lab = Laboratory(1)
    item_id, lease = leased(lab)
    shard = lab.engine.state.shards[1]
    item = shard.memory.known[item_id]
    lab.engine.lose(shard, lab.now_ms)
    assert not item_ops.stands(item, lease)
    assert types(lab.ack((item_id, lease))) == [NotServed]


# ------------------------------------------------------------------------------------------ hangs and clocks


@pytest.mark.parametrize("by_ms", [60_000, -60_000])
def test_a_clock_that_is_set_changes_no_remaining_wait(by_ms: int) -> None:
    lab = Laboratory(1)
    consumer = lab.dequeue(wait_ms=500)
    lab.now_ms += by_ms
    lab.engine.clock_set(by_ms)
    lab.go_on(499)
    assert not consumer
    lab.go_on(1)
    assert consumer == [[]]


@pytest.mark.parametrize("by_ms", [60_000, -60_000])
def test_an_unwritten_lease_moves_with_the_clock(by_ms: int) -> None:
    """Its remaining time does not change. The end of a written lease is in its row, and stays."""
    lab = Laboratory(1)
    written, _ = leased(lab)
    lab.go_on(200)
    unwritten, _ = leased(lab)
    items = lab.engine.state.shards[1].memory.known
    before = items[written].lease_expires_at_ms, items[unwritten].lease_expires_at_ms
    lab.now_ms += by_ms
    lab.engine.clock_set(by_ms)
    assert items[written].lease_expires_at_ms == before[0]
    assert items[unwritten].lease_expires_at_ms == before[1] + by_ms
    assert items[unwritten].phase is Phase.LEASED
    lab.go_on(100)
    assert lab.dbs[1].timer[unwritten].due_ms == before[1] + by_ms


def test_ownership_stays_confirmed_when_the_clock_is_set() -> None:
    lab = Laboratory(1)
    ids = lab.stored()
    lab.now_ms += 60_000
    lab.engine.clock_set(60_000)
    assert lab.dequeue() == [ids]


@pytest.mark.parametrize("written", [False, True])
def test_requests_for_known_items_go_on_while_the_shard_is_held(written: bool) -> None:
    """The time is in doubt, and no other owner is."""
    host = OneHost(1)
    put(host, *[b"x"] * 6)
    acked, nacked, extended = take(host, 3).items
    host.wait(200 if written else 1)
    shard = host.engine.state.shards[1]
    shard.owner.hold()
    left = [item.id for item in shard.memory.known.values() if item.phase is not Phase.LEASED]
    assert kinds(host.ask("DeleteItems", ids=[left[0]])) == [None]
    assert kinds(host.ask("Ack", items=[idl.AckItem(acked.id, acked.lease)])) == [None]
    assert kinds(host.ask("Nack", items=[idl.NackItem(nacked.id, nacked.lease)])) == [None]
    longer = idl.ExtendItem(extended.id, extended.lease, 60_000)
    assert kinds(host.ask("ExtendLease", items=[longer])) == [None]
    waiting = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 10)], wait_ms=30_000)
    for _ in range(20):
        host.wait(1_000)
    assert not waiting.answers
    assert not shard.owner.in_takeover_grace(host.now_ms), "it coordinates the keys of its slots"
    shard_life.unhold(host.engine.state, shard)
    host.wait(1)
    host.wait(100)
    assert {item.id for item in waiting.answer.items} == {nacked.id, *left[1:]}


TENANTS = [lane_key(KEY, f"tenant-{number}", ("api",) * (number % 2)) for number in range(20)]


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_life, "_LANES", 3)
    monkeypatch.setattr(shard_life, "_COUNTS", 5)


def stored(lab: Laboratory) -> dict[Any, list[int]]:
    """Store an item in each lane of TENANTS and in the plain one; one of them is leased, one tenant has none."""
    ids = {key: lab.stored(key=key) for key in [KEY, *TENANTS]}
    lab.taken(count=1)
    lab.go_on(200)
    return ids


def closed(lab: Laboratory) -> Shard:
    shard = lab.engine.state.shards[1]
    lab.engine.drained(shard, lab.now_ms)
    lab.stores[1].close(clean=True)
    shard.owner.to(ShardState.ASSIGNED)
    finish(lab)
    return shard


def finish(lab: Laboratory) -> None:
    while lab.engine.state.slices.long_work:
        lab.engine.pump(lab.now_ms)


def filling(lab: Laboratory, then: Callable[[], None]) -> tuple[Shard, Opened]:
    """Begin to open the shard, whose store is open."""
    shard = closed(lab)
    shard.owner.to(ShardState.OPENING)
    opened = lab.stores[1].open("host", take_over=False)
    lab.engine.fill(shard, opened, then)
    return shard, opened


def counts(shard: Shard) -> list[Any]:
    lanes = [
        (key, lane.number, lane.ready, lane.leased, lane.total, lane.weight, lane.dead)
        for key, lane in shard.memory.lanes.items()
    ]
    tenants = {key: (list(found.numbers), found.total, len(found)) for key, found in shard.memory.tenants.items()}
    return [
        lanes,
        dict(shard.memory.totals),
        list(shard.memory.idle_lanes),
        shard.memory.dead_lanes,
        shard.queue.next_lane,
        tenants,
    ]


@pytest.mark.usefixtures("few_at_a_time")
def test_nothing_counts_before_the_last_turn() -> None:
    lab = Laboratory(1)
    ids = stored(lab)
    filled_ms: list[int] = []
    shard, opened = filling(lab, lambda: filled_ms.append(lab.now_ms))
    turns = 0
    while not filled_ms:
        assert shard.owner.state is ShardState.OPENING
        assert (lab.engine.ready(KEY), shard.memory.lanes) == (0, {})
        assert lab.dequeue() == [[]]
        assert not lab.engine.state.topics[KEY].lanes()
        lab.engine.pump(lab.now_ms)
        turns += 1
    assert turns == 7 + 4 + 4
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    assert lab.engine.ready(KEY) == 20
    assert sum(lane.total for lane in lab.engine.state.topics[KEY].lanes()) == 21
    lab.settle()
    taken: list[int] = []
    while some := lab.taken(count=100):  # a dequeue takes only items in memory
        taken += some
        lab.settle()
    assert len(taken) == 20
    assert {*taken} < {one for each in ids.values() for one in each}


@pytest.mark.usefixtures("few_at_a_time")
def test_turns_fill_the_same_memory() -> None:
    lab = Laboratory(1)
    stored(lab)
    shard, opened = filling(lab, lambda: None)
    finish(lab)
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    in_turns = counts(shard)
    assert len(in_turns[-1][KEY][0]) == 20
    lab.reopen()
    assert counts(lab.engine.state.shards[1]) == in_turns


@pytest.mark.usefixtures("few_at_a_time")
def test_an_unwanted_shard_leaves_no_lanes() -> None:
    lab = Laboratory(1)
    stored(lab)
    shard, _ = filling(lab, lambda: None)
    finish(lab)
    assert KEY in lab.engine.state.topics
    lab.engine.unfill(shard)
    finish(lab)
    assert not lab.engine.state.topics
    assert shard.filled is None
    lab.engine.unfill(shard)


@pytest.mark.usefixtures("few_at_a_time")
def test_waiting_consumers_are_served_after_the_open() -> None:
    lab = Laboratory(1)
    keys = [("ns", f"topic-{number:02}") for number in range(20)]
    for key in keys:
        lab.stored(key=key)  # type: ignore[arg-type]
    shard, opened = filling(lab, lambda: None)
    answers = [lab.dequeue(5_000, keys=[key]) for key in keys]  # type: ignore[list-item]
    finish(lab)
    assert answers == [[]] * 20
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    lab.settle()
    assert [len(ids) for (ids,) in answers] == [1] * 20


@pytest.mark.usefixtures("few_at_a_time")
def test_a_shard_lost_at_once_wakes_no_topics() -> None:
    lab = Laboratory(1)
    stored(lab)
    shard, opened = filling(lab, lambda: None)
    finish(lab)
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    lab.engine.lose(shard, lab.now_ms)
    while lab.engine.state.slices.long_work:
        lab.engine.pump(lab.now_ms)
        assert not shard.memory.woken
    assert not lab.engine.state.topics


@pytest.mark.usefixtures("few_at_a_time")
def test_empty_lanes_are_idle_from_the_open_on() -> None:
    lab = Laboratory(1, lane_idle_ms=5_000)
    (item_id,) = lab.stored(key=TENANTS[0])
    lab.taken()
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    lab.reopen()
    lab.go_on(4_900)
    assert lab.dbs[1].lanes
    lab.go_on(300)
    assert not lab.dbs[1].lanes
    assert not lab.engine.state.shards[1].memory.tenants
