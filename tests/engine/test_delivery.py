"""From leased items to a reply: at once, unless an at-most-once lease must be committed first."""

from __future__ import annotations

import pytest

from foqs.engine import consumers, item_ops
from foqs.engine.calls import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import Callbacks
from foqs.item import Item
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory


def once(lab: Laboratory) -> int:
    (item_id,) = lab.stored(lab.item(delivery=AT_MOST_ONCE))
    return item_id


def test_a_call_that_finds_nothing_is_not_answered() -> None:
    """Its consumer waits, or another host serves it."""
    lab = Laboratory(1)
    ids = lab.stored(key=("ns", "other"))
    replies: list[list[int]] = []

    def reply(items: list[Item], doubtful: list[int]) -> bool:
        replies.append([item.id for item in items])
        return True

    call = DequeueCall([(KEY, 1), (("ns", "other"), 1)], 60_000, 1 << 20, 0, reply)
    assert not consumers.serve_call(lab.engine.state, call, call.wants[:1], lab.now_ms)
    assert (call.done, replies) == (False, [])
    assert consumers.serve_call(lab.engine.state, call, call.wants[1:], lab.now_ms)
    assert (call.done, replies) == (True, [ids])


def test_an_item_is_delivered_before_its_lease_is_written() -> None:
    lab = Laboratory(1)
    ids = lab.stored()
    assert lab.dequeue() == [ids]
    assert lab.send() == []
    assert not lab.dbs[1].timer


def test_an_at_most_once_lease_is_written_before_the_reply() -> None:
    lab = Laboratory(1)
    item_id = once(lab)
    answers = lab.dequeue()
    ((shard, batch),) = lab.send()
    assert not answers
    lab.arrive(shard, batch)
    assert answers == [[item_id]]
    assert lab.dbs[1].timer[item_id].lease == lab.lease_of(item_id)


def test_a_reply_waits_for_its_last_at_most_once_lease() -> None:
    """The items are on two shards, and one is at-least-once; one reply has all of them, in order."""
    lab = Laboratory(1, 2)
    lab.engine.state.shards[2].owner.takes_new = False
    first, plain = once(lab), lab.stored()[0]
    lab.engine.state.shards[1].owner.takes_new, lab.engine.state.shards[2].owner.takes_new = False, True
    lab.now_ms += 1
    last = once(lab)
    answers = lab.dequeue()
    one, other = lab.send()
    lab.arrive(*other)
    assert not answers
    lab.arrive(*one)
    assert answers == [[first, plain, last]]


def test_an_open_reply_goes_on_without_a_late_lease() -> None:
    """The late lease is doubtful for its consumer. It is given back once it is known, and the item is not lost."""
    lab = Laboratory(1, 2)
    lab.engine.state.shards[2].owner.takes_new = False
    late = once(lab)
    lab.engine.state.shards[1].owner.takes_new, lab.engine.state.shards[2].owner.takes_new = False, True
    quick = once(lab)
    answers = lab.dequeue()
    flights = dict(lab.send())
    lab.arrive(lab.engine.state.shards[2], flights[lab.engine.state.shards[2]])
    lab.ring(lab.engine.state.config.host.confirm_ms)
    assert (answers, lab.doubtful) == ([[quick]], [late])
    lab.arrive(lab.engine.state.shards[1], flights[lab.engine.state.shards[1]])
    lab.go_on(2_000)
    assert lab.taken() == [late]
    assert lab.engine.state.counters.removed == {}


@pytest.mark.parametrize("fault", ["applied", "not applied"])
def test_a_lease_of_unknown_outcome_is_not_delivered_twice(fault: str) -> None:
    """The reply waits while the outcome may still become known in time."""
    lab = Laboratory(1)
    item_id = once(lab)
    lab.faults[1].commits.append(fault)
    first = lab.dequeue()
    lab.settle()
    assert not first
    second = lab.dequeue(wait_ms=10)
    lab.go_on(900)
    assert first == [[item_id]]
    assert second == [[]]
    assert not lab.doubtful


def test_a_lost_shard_leaves_an_unknown_lease_doubtful() -> None:
    lab = Laboratory(1)
    item_id = once(lab)
    lab.faults[1].commits.append("applied")
    answers = lab.dequeue()
    lab.settle()
    lab.engine.lose(lab.engine.state.shards[1], lab.now_ms)
    assert (answers, lab.doubtful) == ([[]], [item_id])


def test_an_item_deleted_before_the_reply_is_left_out() -> None:
    lab = Laboratory(1)
    item_id, (plain,) = once(lab), lab.stored()
    answers = lab.dequeue()
    flights = lab.send()
    deleted = lab.operate(plain, item_ops.delete)
    lab.arrive(*flights[0])
    assert answers == [[item_id]]
    lab.settle()
    assert deleted == [None]


def test_an_awaited_item_stays_in_memory() -> None:
    """Memory has room for one written lease; a delete finds the item of the open reply nevertheless."""
    lab = Laboratory(1, 2, leases=1)
    lab.engine.state.shards[2].owner.takes_new = False
    awaited, other = lab.stored(lab.item(priority=1), lab.item(priority=3))
    lab.engine.state.shards[1].owner.takes_new, lab.engine.state.shards[2].owner.takes_new = False, True
    late = once(lab)
    answers = lab.dequeue(count=2)
    ((two, batch),) = lab.send()
    assert lab.taken() == [other]
    lab.ring(100)
    lab.settle()  # both leases of shard 1 are written
    deleted = lab.operate(awaited, item_ops.delete)
    lab.settle()
    assert deleted == [None]
    lab.arrive(two, batch)
    assert answers == [[late]]


def test_an_unwritten_lease_needs_a_confirmed_owner() -> None:
    """Its reply waited for another shard, and another owner may have leased the item in that time."""
    lab = Laboratory(1, 2, confirm_ms=500)
    lab.engine.state.shards[2].owner.takes_new = False
    (plain,) = lab.stored()
    lab.engine.state.shards[1].owner.takes_new, lab.engine.state.shards[2].owner.takes_new = False, True
    item_id = once(lab)
    answers = lab.dequeue()
    ((shard, batch),) = lab.send()
    lab.now_ms += 600  # no timer rings, so nothing confirms the other shard
    lab.arrive(shard, batch)
    assert answers == [[item_id]]
    lab.go_on(100)
    assert lab.taken() == [plain]


@pytest.mark.parametrize("at_most_once", [False, True])
def test_a_reply_that_is_not_sent_gives_its_items_back(at_most_once: bool) -> None:
    """The consumer did not begin the item, so the attempt does not count."""
    lab = Laboratory(1)
    item_id = once(lab) if at_most_once else lab.stored()[0]
    gone = lab.dequeue(delivers=lambda: False)
    lab.settle()
    assert gone == [[item_id]]
    assert lab.taken() == [item_id]
    item = lab.engine.state.shards[1].memory.known[item_id]
    assert item.attempt == 1
    namespace = lab.engine.state.counters.namespaces.of("ns")
    assert (namespace.delivered, namespace.released) == (1, 1)


def test_a_cancelled_consumer_gives_back_what_commits() -> None:
    lab = Laboratory(1)
    item_id = once(lab)
    sent = True
    answers = lab.dequeue(delivers=lambda: sent)
    flights = lab.send()
    sent = False
    lab.arrive(*flights[0])
    lab.settle()
    assert answers == [[item_id]]
    assert item_id in lab.dbs[1].ready
    assert lab.engine.ready(KEY) == 1


def test_a_second_delivery_is_counted() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    assert lab.engine.state.counters.redelivered == 0
    lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), 0, None))
    lab.settle()
    assert lab.taken() == [item_id]
    assert lab.engine.state.counters.redelivered == 1


def test_a_delivered_item_keeps_no_body_in_memory() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(b"x" * 10_000))
    before = lab.engine.state.budget.used_bytes
    lab.taken()
    assert before - lab.engine.state.budget.used_bytes == 10_000


def test_a_draining_host_leases_nothing() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    shard: Shard = lab.engine.state.shards[1]
    lab.engine.drain(lab.now_ms)
    assert lab.dequeue(wait_ms=1_000) == [[]]
    assert shard.memory.known[item_id].lease == 0


def test_work_for_the_next_turn_is_done_once_behind_the_batches() -> None:
    woken: list[int] = []
    lab = Laboratory(1, callbacks=Callbacks(wake=lambda: woken.append(1)))
    woken.clear()
    sent: list[int] = []
    lab.engine.state.slices.soon(lambda: sent.append(len(lab.flights)))
    assert (woken, sent) == ([1], [])
    lab.enqueue()
    lab.send()
    lab.send()
    assert sent == [1]
