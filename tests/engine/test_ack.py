"""Acks and other operations by id: which item they find, and when each entry is answered."""

from __future__ import annotations

import pytest

from foqs.engine import ack, item_ops
from foqs.engine.batch_reads import LookRead
from foqs.engine.calls import ItemsCall
from foqs.errors import FoqsError, NotFound, NotServed, OutcomeUnknown, Overloaded, StaleLease, Unavailable
from foqs.ids import make_id
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory, reads_of


def leased(lab: Laboratory) -> tuple[int, int]:
    """Return the id and the lease of a new item."""
    lab.stored()
    (item_id,) = lab.taken()
    return item_id, lab.lease_of(item_id)


def types(answers: list[FoqsError | None]) -> list[type]:
    return [type(answer) for answer in answers]


def test_an_ack_is_answered_when_it_is_committed() -> None:
    lab = Laboratory(1)
    answers = lab.ack(leased(lab))
    ((shard, batch),) = lab.send()
    assert not answers
    lab.arrive(shard, batch)
    assert answers == [None]
    assert not lab.dbs[1].items


def test_a_wrong_lease_is_refused_and_the_right_one_works() -> None:
    lab = Laboratory(1)
    item_id, lease = leased(lab)
    assert types(lab.ack((item_id, lease + 1))) == [StaleLease]
    assert types(lab.ack((item_id, 0))) == [StaleLease]
    answers = lab.ack((item_id, lease))
    lab.settle()
    assert answers == [None]


def test_each_entry_of_a_request_has_its_own_outcome() -> None:
    lab = Laboratory(1, 2)
    ids = [lab.stored()[0] for _ in range(3)]
    lab.taken()
    first, second, third = [(item_id, lab.lease_of(item_id)) for item_id in ids]
    answers = lab.ack(first, (second[0], 1), (make_id(1, 999), 1), third)
    lab.settle()
    assert types(answers) == [type(None), StaleLease, NotFound, type(None)]
    assert [item_id for db in lab.dbs.values() for item_id in db.items] == [ids[1]]


@pytest.mark.parametrize("sent", [True, False], ids=["in flight", "waiting"])
def test_a_repeated_ack_gets_the_outcome_of_the_first(sent: bool) -> None:
    lab = Laboratory(1)
    acked = leased(lab)
    first = lab.ack(acked)
    flights = lab.send() if sent else []
    again = lab.ack(acked)
    assert not first
    assert not again
    for flight in flights:
        lab.arrive(*flight)
    lab.settle()
    assert first == again == [None]
    assert lab.engine.state.counters.removed == {"ack": 1}


def test_an_ack_behind_a_nack_in_flight_is_stale() -> None:
    lab = Laboratory(1)
    item_id, lease = leased(lab)
    nacked = lab.operate(item_id, item_ops.nack(lease, 0, None))
    lab.send()
    assert types(lab.ack((item_id, lease))) == [StaleLease]
    assert not nacked


def test_an_ack_overtakes_the_write_of_its_lease() -> None:
    """The lease is being written when the ack arrives; the next transaction removes the item."""
    lab = Laboratory(1)
    acked = leased(lab)
    lab.ring(101)
    ((shard, batch),) = lab.send()
    assert batch.transaction is not None
    assert [row.id for row in batch.transaction.timer_new] == [acked[0]]
    answers = lab.ack(acked)
    lab.arrive(shard, batch)
    assert not answers
    lab.settle()
    assert answers == [None]
    assert not lab.dbs[1].items


def test_an_item_that_is_not_in_memory_is_looked_up() -> None:
    lab = Laboratory(1)
    acked = leased(lab)
    lab.go_on(200)  # the lease is written
    lab.reopen()
    answers = lab.ack(acked)
    ((shard, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, LookRead)] == [[acked[0]]]
    lab.arrive(shard, batch)
    assert not answers
    lab.settle()
    assert answers == [None]


def test_an_ended_lease_may_ack_until_the_next_lease() -> None:
    lab = Laboratory(1)
    lab.stored()
    first, second = [], []
    for held in (first, second):
        (item_id,) = lab.taken(lease_ms=300)
        held.append((item_id, lab.lease_of(item_id)))
        lab.go_on(400)
        assert lab.engine.ready(KEY) == 1
    assert types(lab.ack(*first)) == [StaleLease]
    answers = lab.ack(*second)
    lab.settle()
    assert answers == [None]
    assert not lab.dbs[1].items


@pytest.mark.parametrize("known", [True, False], ids=["in memory", "looked up"])
def test_an_item_of_another_namespace_is_not_found(known: bool) -> None:
    lab = Laboratory(1)
    item_id, lease = leased(lab)
    if not known:
        lab.go_on(200)
        lab.reopen()
    named = lab.ack((item_id, lease), ns="other")
    outside = lab.operate(item_id, item_ops.ack(lease), within={"other"})
    lab.settle()
    assert types(named) == types(outside) == [NotFound]
    inside = lab.operate(item_id, item_ops.ack(lease), within={"ns"})
    lab.settle()
    assert inside == [None]


@pytest.mark.parametrize(("elsewhere", "error"), [(False, NotFound), (True, NotServed)])
def test_the_error_for_a_shard_that_is_not_here(elsewhere: bool, error: type[FoqsError]) -> None:
    lab = Laboratory(1, shards_elsewhere=elsewhere)
    assert types(lab.ack((make_id(2, 1), 1))) == [error]


@pytest.mark.parametrize(("shuts_down", "error"), [(True, type(None)), (False, NotServed)])
def test_a_shard_that_drains_accepts_acks_if_it_stays(shuts_down: bool, error: type) -> None:
    """A shard that is handed over would never be idle under load."""
    lab = Laboratory(1, shards_elsewhere=True)
    acked = leased(lab)
    if shuts_down:
        lab.engine.drain(lab.now_ms)
    else:
        lab.engine.retire(lab.engine.state.shards[1])
    answers = lab.ack(acked)
    lab.settle()
    assert types(answers) == [error]


def test_a_request_goes_elsewhere_when_its_shard_does() -> None:
    lab = Laboratory(1, shards_elsewhere=True)
    answers: list[FoqsError | None] = []
    sent_on: list[int | None] = []

    class Forwarded:
        def add(self, at: int) -> None:
            sent_on.append(at)

        def end(self) -> None:
            sent_on.append(None)

    call = ItemsCall(1, answers.extend, elsewhere=lambda _: Forwarded())
    ack.operate(lab.engine.state, call, 0, make_id(2, 1), item_ops.delete, None, lab.now_ms)
    assert (sent_on, answers) == ([0], [])
    call.settled(0, None)
    assert (sent_on, answers) == ([0, None], [None])


def test_an_ack_to_a_full_shard_is_refused() -> None:
    lab = Laboratory(1, pending_rows=1)
    other, acked = leased(lab), leased(lab)
    waits = lab.ack(other)
    (error,) = lab.ack(acked)
    assert isinstance(error, Overloaded)
    assert error.retry_after_ms
    assert not waits
    lab.settle()
    answers = lab.ack(acked)
    lab.settle()
    assert waits == answers == [None]


def test_a_ready_item_of_a_taken_shard_may_be_leased_elsewhere() -> None:
    """The replaced owner may lease it, so a delete is refused until that is over. A written lease is known."""
    lab = Laboratory(1)
    written = leased(lab)
    lab.go_on(200)
    (ready,) = lab.stored()
    lab.reopen(clean=False)
    refused = lab.operate(ready, item_ops.delete)
    acked = lab.ack(written)
    lab.settle()
    (error,) = refused
    assert isinstance(error, Unavailable)
    assert error.retry_after_ms == lab.engine.state.config.host.confirm_ms
    assert acked == [None]
    lab.go_on(1_001)
    deleted = lab.operate(ready, item_ops.delete)
    lab.settle()
    assert deleted == [None]


@pytest.mark.parametrize(("sent", "error"), [(False, Unavailable), (True, OutcomeUnknown)])
def test_an_ack_that_takes_too_long(sent: bool, error: type[FoqsError]) -> None:
    """Unsent, it is withdrawn and the item stays leased; sent, it may be committed."""
    lab = Laboratory(1)
    acked = leased(lab)
    lab.enqueue()
    flights = lab.send()
    if sent:
        answers = lab.ack(acked, timeout_ms=900)
        lab.arrive(*flights[0])
        flights = lab.send()
    else:
        answers = lab.ack(acked, timeout_ms=900)
    lab.ring(901)
    assert types(answers) == [error]
    lab.arrive(*flights[0])
    lab.settle()
    assert (acked[0] in lab.dbs[1].items) is not sent
    assert len(answers) == 1


def test_acks_within_namespaces_change_no_other_item() -> None:
    """A consumer may ack items of several namespaces in one request."""
    lab = Laboratory(1)
    (mine,), (other,) = lab.stored(), lab.stored(key=("other", "topic"))
    lab.taken()
    lab.taken(keys=[("other", "topic")])
    answers: list[FoqsError | None] = []
    call = ItemsCall(2, answers.extend)
    call.within = {"ns"}
    leases = [lab.lease_of(item_id) for item_id in (mine, other)]
    lab.engine.ack(call, (mine, other), leases, None, lab.now_ms, 5_000)
    lab.settle()
    assert types(answers) == [type(None), NotFound]
    assert list(lab.dbs[1].items) == [other]


def test_an_at_most_once_item_may_be_acked() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(delivery=AT_MOST_ONCE))
    (item_id,) = lab.taken()
    answers = lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert answers == [None]
    assert lab.engine.state.counters.removed == {"ack": 1}
