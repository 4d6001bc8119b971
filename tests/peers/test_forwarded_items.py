"""The state machine of forwarded requests, driven by requests for items by id."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from foqs.engine.calls import ItemsCall
from foqs.errors import (
    FoqsError,
    Forbidden,
    Invalid,
    LostReply,
    NotFound,
    NotSent,
    NotServed,
    OutcomeUnknown,
    Overloaded,
    RequestTooLarge,
    StaleLease,
    Unavailable,
)
from foqs.idl import idl
from foqs.peers import forwarded_requests
from foqs.peers.forwarded import AGAIN_MS
from foqs.peers.forwarded_requests import ForwardedItems, Kind
from tests.peers.exchanges import DEADLINE_MS, HANDOVER_MS, LOST, Rig, ids, refused


def forward(rig: Rig, kind: Kind, items: list[int]) -> list[list[FoqsError | None]]:
    """Forward a request for `items`; returns a list that gets the outcomes."""
    answers: list[list[FoqsError | None]] = []
    request = SimpleNamespace(items=[idl.AckItem(one, 1) for one in items], ids=items, ns=None, context=None)

    def elsewhere(call: ItemsCall) -> ForwardedItems:
        return ForwardedItems(rig.exchange, call, kind, request, items, Mock(), DEADLINE_MS)

    call = ItemsCall(len(items), answers.append, None, elsewhere)
    for at in range(len(items)):
        call.settled(at, NotServed())
    rig.run()
    return answers


def kinds(answers: list[list[FoqsError | None]]) -> list[type | None]:
    (outcomes,) = answers
    return [None if error is None else type(error) for error in outcomes]


def test_each_owner_gets_its_entries_in_one_request() -> None:
    rig = Rig({1: "b", 2: "c", 3: "b"})
    answers = forward(rig, forwarded_requests.ACK, ids(1, 2, 3))
    assert [(sent.address, len(sent.request.items)) for sent in rig.sent] == [("b:1", 2), ("c:1", 1)]
    context = rig.sent[0].request.context
    assert (context.hops, bool(context.request_id)) == (1, True)
    rig.answer(refused(None, StaleLease("no")))
    assert not answers
    rig.answer(refused(NotFound("gone")))
    assert kinds(answers) == [None, NotFound, StaleLease]
    assert not rig.exchange.held


@pytest.mark.parametrize("wrong", [LOST, idl.AckResponse(None), refused(), refused(None, None)])
@pytest.mark.parametrize(
    ("kind", "second", "expected"),
    [
        (forwarded_requests.ACK, None, None),
        (forwarded_requests.ACK, NotFound("gone"), OutcomeUnknown),
        (forwarded_requests.ACK, StaleLease("there"), StaleLease),
        (forwarded_requests.ACK, Forbidden("other rights"), OutcomeUnknown),
        (forwarded_requests.DELETE, NotFound("gone"), None),
        (forwarded_requests.EXTEND, StaleLease("over"), StaleLease),
        (forwarded_requests.EXTEND, Invalid("other limits"), OutcomeUnknown),
        (forwarded_requests.GIVE, StaleLease("over"), OutcomeUnknown),
        (forwarded_requests.GIVE, NotFound("gone"), OutcomeUnknown),
    ],
)
def test_the_answer_after_a_lost_reply(
    kind: Kind, second: FoqsError | None, expected: type | None, wrong: object
) -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, kind, ids(1))
    rig.answer(wrong)
    assert rig.exchange.held
    rig.wait(AGAIN_MS)
    rig.answer(refused(second))
    assert kinds(answers) == [expected]


def test_a_nack_is_sent_once() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.NACK, ids(1))
    rig.answer(LOST)
    assert kinds(answers) == [LostReply]
    assert rig.log.lines == ["reply_lost"]


@pytest.mark.parametrize("refusal", [Overloaded("full", 700), Unavailable("down", 700)])
def test_a_refusal_is_the_clients_to_repeat(refusal: FoqsError) -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.ACK, ids(1))
    rig.answer(refused(refusal))
    assert kinds(answers) == [type(refusal)]


def test_a_refusal_in_doubt_is_asked_again_after_its_hint() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.ACK, ids(1))
    rig.answer(LOST)
    rig.wait(AGAIN_MS)
    rig.answer(refused(Overloaded("full", 700)))
    rig.wait(699)
    assert not rig.sent
    rig.wait(1)
    rig.answer(refused(None))
    assert kinds(answers) == [None]


def test_a_host_that_is_not_the_owner_is_asked_once() -> None:
    """The entry waits for another route."""
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.NACK, ids(1))
    rig.answer(refused(NotServed()))
    rig.wait(AGAIN_MS)
    assert not rig.sent
    rig.move({1: "c"})
    assert rig.sent[0].address == "c:1"
    rig.answer(refused(None))
    assert kinds(answers) == [None]


def test_a_request_that_was_not_sent_is_sent_again() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.NACK, ids(1))
    rig.answer(NotSent("no connection"))
    assert not rig.sent, "after a pause"
    rig.wait(AGAIN_MS)
    rig.answer(refused(None))
    assert kinds(answers) == [None]
    assert rig.log.lines == ["not_sent"]


def test_a_request_too_large_for_a_frame_is_halved() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.ACK, ids(1, 1, 1))
    rig.answer(RequestTooLarge("too large"))
    assert [len(sent.request.items) for sent in rig.sent] == [1, 2]
    rig.answer(refused(None))
    rig.answer(refused(None, StaleLease("no")))
    assert kinds(answers) == [None, None, StaleLease]


def test_one_item_too_large_for_a_frame_fails() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.ACK, ids(1))
    rig.answer(RequestTooLarge("too large"))
    assert kinds(answers) == [RequestTooLarge]


def test_a_shard_without_an_owner_is_held_for_a_while() -> None:
    rig = Rig({1: "b"}, shards=(2,))
    answers = forward(rig, forwarded_requests.ACK, ids(2))
    assert (rig.engine.state.counters.held, len(rig.exchange.held)) == (1, 1)
    rig.wait(HANDOVER_MS)
    assert kinds(answers) == [Unavailable]
    assert rig.log.lines == ["unrouted"]
    assert not rig.exchange.held


def test_an_entry_in_doubt_is_unknown_after_the_hold() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, forwarded_requests.ACK, ids(1))
    rig.answer(LOST)
    rig.move({}, shards=(1,))
    rig.wait(HANDOVER_MS)
    assert kinds(answers) == [OutcomeUnknown]


@pytest.mark.parametrize(("lost", "expected"), [(False, NotFound), (True, OutcomeUnknown)])
def test_a_shard_that_is_removed(lost: bool, expected: type) -> None:
    rig = Rig({1: "b", 2: "b"})
    answers = forward(rig, forwarded_requests.DELETE, ids(2))
    rig.answer(LOST if lost else NotSent("no connection"))
    rig.move({1: "b"})
    assert kinds(answers) == [expected]


def test_parts_that_wait_share_one_timer() -> None:
    rig = Rig({1: "b", 2: "c"})
    forward(rig, forwarded_requests.ACK, ids(1, 2))
    for _ in range(5):
        rig.answer(LOST)
        rig.answer(LOST)
        assert rig.timers() == 2  # of the next try, and of the end of the hold
        rig.wait(AGAIN_MS)
        assert len(rig.sent) == 2


def test_a_call_that_timed_out_is_forgotten() -> None:
    rig = Rig({}, shards=(1,))
    answers: list[list[FoqsError | None]] = []
    request = SimpleNamespace(items=[idl.AckItem(1 << 48 | 1, 1)], ns=None, context=None)
    made: list[ForwardedItems] = []

    def elsewhere(call: ItemsCall) -> ForwardedItems:
        made.append(ForwardedItems(rig.exchange, call, forwarded_requests.ACK, request, ids(1), Mock(), DEADLINE_MS))
        return made[0]

    call = ItemsCall(1, answers.append, None, elsewhere)
    call.settled(0, NotServed())
    rig.run()
    assert rig.exchange.held
    call.timed_out({})
    assert kinds(answers) == [Unavailable]
    assert (dict(rig.exchange.held), [one.origin for one in made]) == ({}, [None])
