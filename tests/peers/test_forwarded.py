"""The state machine of forwarded requests, and each kind of request on it, over an exchange without a network."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from foqs.dedup import Duplicate, OwnDuplicate, digest_of
from foqs.engine.pending import EnqueueCall, ItemsCall
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
    Unauthenticated,
    Unavailable,
)
from foqs.idl import idl
from foqs.peers import by_id
from foqs.peers.by_id import ForwardedItems, Kind
from foqs.peers.dedup_enqueue import ForwardedDedupEnqueue
from foqs.peers.enqueue import ForwardedEnqueue
from foqs.peers.exchange import AGAIN_MS
from foqs.peers.get_item import ForwardedGetItem
from foqs.peers.list_items import ForwardedList
from tests.api.wire import spec
from tests.peers.exchanges import HANDOVER_MS, Incoming, Rig, refused

DEADLINE_MS = 60_000
LOST = LostReply("lost")


def ids(*shards: int) -> list[int]:
    return [shard << 48 | at for at, shard in enumerate(shards, 1)]


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


# ------------------------------------------------------------------------------------------------ items by id


def test_each_owner_gets_its_entries_in_one_request() -> None:
    rig = Rig({1: "b", 2: "c", 3: "b"})
    answers = forward(rig, by_id.ACK, ids(1, 2, 3))
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
        (by_id.ACK, None, None),
        (by_id.ACK, NotFound("gone"), OutcomeUnknown),
        (by_id.ACK, StaleLease("there"), StaleLease),
        (by_id.ACK, Forbidden("other rights"), OutcomeUnknown),
        (by_id.DELETE, NotFound("gone"), None),
        (by_id.EXTEND, StaleLease("over"), StaleLease),
        (by_id.EXTEND, Invalid("other limits"), OutcomeUnknown),
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
    answers = forward(rig, by_id.NACK, ids(1))
    rig.answer(LOST)
    assert kinds(answers) == [LostReply]
    assert rig.log.lines == ["reply_lost"]


@pytest.mark.parametrize("refusal", [Overloaded("full", 700), Unavailable("down", 700)])
def test_a_refusal_is_the_clients_to_repeat(refusal: FoqsError) -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, by_id.ACK, ids(1))
    rig.answer(refused(refusal))
    assert kinds(answers) == [type(refusal)]


def test_a_refusal_in_doubt_is_asked_again_after_its_hint() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, by_id.ACK, ids(1))
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
    answers = forward(rig, by_id.NACK, ids(1))
    rig.answer(refused(NotServed()))
    rig.wait(AGAIN_MS)
    assert not rig.sent
    rig.move({1: "c"})
    assert rig.sent[0].address == "c:1"
    rig.answer(refused(None))
    assert kinds(answers) == [None]


def test_a_request_that_was_not_sent_is_sent_again() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, by_id.NACK, ids(1))
    rig.answer(NotSent("no connection"))
    rig.wait(AGAIN_MS)
    rig.answer(refused(None))
    assert kinds(answers) == [None]


def test_a_request_too_large_for_a_frame_is_halved() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, by_id.ACK, ids(1, 1, 1))
    rig.answer(RequestTooLarge("too large"))
    assert [len(sent.request.items) for sent in rig.sent] == [1, 2]
    rig.answer(refused(None))
    rig.answer(refused(None, StaleLease("no")))
    assert kinds(answers) == [None, None, StaleLease]


def test_one_item_too_large_for_a_frame_fails() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, by_id.ACK, ids(1))
    rig.answer(RequestTooLarge("too large"))
    assert kinds(answers) == [RequestTooLarge]


def test_a_shard_without_an_owner_is_held_for_a_while() -> None:
    rig = Rig({1: "b"}, shards=(2,))
    answers = forward(rig, by_id.ACK, ids(2))
    assert (rig.engine.counters.held, len(rig.exchange.held)) == (1, 1)
    rig.wait(HANDOVER_MS)
    assert kinds(answers) == [Unavailable]
    assert rig.log.lines == ["unrouted"]
    assert not rig.exchange.held


def test_an_entry_in_doubt_is_unknown_after_the_hold() -> None:
    rig = Rig({1: "b"})
    answers = forward(rig, by_id.ACK, ids(1))
    rig.answer(LOST)
    rig.move({}, shards=(1,))
    rig.wait(HANDOVER_MS)
    assert kinds(answers) == [OutcomeUnknown]


@pytest.mark.parametrize(("lost", "expected"), [(False, NotFound), (True, OutcomeUnknown)])
def test_a_shard_that_is_removed(lost: bool, expected: type) -> None:
    rig = Rig({1: "b", 2: "b"})
    answers = forward(rig, by_id.DELETE, ids(2))
    rig.answer(LOST if lost else NotSent("no connection"))
    rig.move({1: "b"})
    assert kinds(answers) == [expected]


def test_parts_that_wait_share_one_timer() -> None:
    rig = Rig({1: "b", 2: "c"})
    forward(rig, by_id.ACK, ids(1, 2))
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
        made.append(ForwardedItems(rig.exchange, call, by_id.ACK, request, ids(1), Mock(), DEADLINE_MS))
        return made[0]

    call = ItemsCall(1, answers.append, None, elsewhere)
    call.settled(0, NotServed())
    rig.run()
    assert rig.exchange.held
    call.timed_out({})
    assert kinds(answers) == [Unavailable]
    assert (dict(rig.exchange.held), [one.origin for one in made]) == ({}, [None])


# ------------------------------------------------------------------------------------------------ enqueues


def keyed(rig: Rig, adopt: Any = None) -> tuple[ForwardedDedupEnqueue, list[Any]]:
    item = Mock(at=0)
    item.dedup.digest = digest_of("test", "k")
    outcomes: list[Any] = []
    request = SimpleNamespace(ns="test", items=[spec("t", dedup_key="k")], context=None)
    call = EnqueueCall(1, outcomes.extend)
    made = ForwardedDedupEnqueue(rig.exchange, call, [item], request, DEADLINE_MS, adopt or Mock())
    made.route()
    return made, outcomes


def stored(item_id: int, *, duplicate: bool = False) -> Any:
    return idl.EnqueueResponse([idl.EnqueueOutcome(item_id, None, duplicate or None)])


def test_a_keyed_enqueue_is_repeated_after_a_lost_reply() -> None:
    rig = Rig({2: "b"})
    _, outcomes = keyed(rig)
    rig.answer(LOST)
    rig.wait(AGAIN_MS)
    rig.answer(stored(7, duplicate=True))
    assert [(type(outcome), outcome) for outcome in outcomes] == [(OwnDuplicate, 7)]


def test_a_duplicate_without_doubt_is_anothers() -> None:
    rig = Rig({2: "b"})
    _, outcomes = keyed(rig)
    rig.answer(stored(7, duplicate=True))
    assert [type(outcome) for outcome in outcomes] == [Duplicate]


@pytest.mark.parametrize("refusal", [Forbidden("older rights"), Unauthenticated("no token"), Invalid("limits")])
def test_a_keyed_item_in_doubt_is_not_reported_as_refused(refusal: FoqsError) -> None:
    rig = Rig({2: "b"})
    _, outcomes = keyed(rig)
    rig.answer(LOST)
    rig.wait(AGAIN_MS)
    rig.answer(refusal)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown]


@pytest.mark.parametrize("refusal", [Overloaded("full", 100), Unavailable("down", 100)])
def test_a_keyed_item_in_doubt_is_asked_for_until_the_hold_ends(refusal: FoqsError) -> None:
    rig = Rig({2: "b"})
    _, outcomes = keyed(rig)
    rig.answer(LOST)
    while not outcomes:
        rig.wait(AGAIN_MS)
        if rig.sent:
            rig.answer(refusal)
    assert rig.now_ms >= 1_000 + HANDOVER_MS
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown]


def test_an_owner_without_the_slot_is_asked_again() -> None:
    """The rows of the slot are being moved; the routing stays the same."""
    rig = Rig({2: "b"})
    _, outcomes = keyed(rig)
    rig.answer(NotServed())
    rig.wait(AGAIN_MS)
    rig.answer(stored(7))
    assert outcomes == [7]


def test_this_hosts_refusal_does_not_settle_a_doubt() -> None:
    """This host refuses it: that says nothing of the other host's part."""
    rig = Rig({2: "b"})
    _, outcomes = keyed(rig)
    rig.answer(LOST)
    rig.exchange.serves = lambda number: True  # type: ignore[method-assign]
    rig.wait(AGAIN_MS)
    assert not outcomes
    rig.wait(HANDOVER_MS)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown]


def test_a_keyed_item_withdrawn_at_its_time_out() -> None:
    rig = Rig({}, shards=(2,))
    made, _ = keyed(rig)
    assert rig.exchange.held
    assert made.withdraw() == [0]
    assert not rig.exchange.held


def test_a_keyed_item_in_doubt_is_not_withdrawn() -> None:
    rig = Rig({2: "b"})
    made, _ = keyed(rig)
    rig.answer(LOST)
    assert made.withdraw() == []


def plain(rig: Rig, addresses: list[str]) -> list[Any]:
    outcomes: list[Any] = []
    request = SimpleNamespace(ns="test", context=None)
    call = EnqueueCall(2, outcomes.extend)
    specs = [spec("t", b"1"), spec("t", b"2")]
    ForwardedEnqueue(rig.exchange, call, [0, 1], specs, request, addresses, DEADLINE_MS).route()
    return outcomes


def test_the_next_host_is_asked_when_none_was_stored() -> None:
    rig = Rig({1: "b"})
    outcomes = plain(rig, ["b:1", "c:1", "d:1"])
    rig.answer(NotSent("no connection"))
    assert [sent.address for sent in rig.sent] == ["c:1"]
    rig.answer(idl.EnqueueResponse([idl.EnqueueOutcome(None, idl.ItemError(5, "no healthy shard"))] * 2))
    assert [sent.address for sent in rig.sent] == ["d:1"]
    rig.answer(idl.EnqueueResponse([idl.EnqueueOutcome(7), idl.EnqueueOutcome(8)]))
    assert outcomes == [7, 8]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (LOST, [LostReply] * 2),
        (Overloaded("full", 5), [Overloaded] * 2),
        (idl.EnqueueResponse([idl.EnqueueOutcome(7)]), [LostReply] * 2),
        (idl.EnqueueResponse([idl.EnqueueOutcome(7), idl.EnqueueOutcome()]), [int, OutcomeUnknown]),
        (
            idl.EnqueueResponse([idl.EnqueueOutcome(7), idl.EnqueueOutcome(None, idl.ItemError(5, "x"))]),
            [int, Unavailable],
        ),
    ],
)
def test_any_other_answer_ends_a_plain_enqueue(answer: Any, expected: list[type]) -> None:
    rig = Rig({1: "b"})
    outcomes = plain(rig, ["b:1", "c:1"])
    rig.answer(answer)
    assert [type(outcome) for outcome in outcomes] == expected
    assert not rig.sent


def test_a_plain_enqueue_ends_after_the_last_host() -> None:
    rig = Rig({1: "b"})
    outcomes = plain(rig, ["b:1"])
    rig.answer(NotSent("no connection"))
    assert [type(outcome) for outcome in outcomes] == [NotSent] * 2
    assert rig.engine.counters.held == 0


# ------------------------------------------------------------------------------------------------ looking


def get_item(rig: Rig, item_id: int) -> tuple[Incoming, Mock]:
    call, here = Incoming(SimpleNamespace(id=item_id, context=None)), Mock()
    ForwardedGetItem(rig.exchange, call, here, DEADLINE_MS).route()
    return call, here


def test_a_look_up_is_repeated_after_a_lost_reply() -> None:
    rig = Rig({1: "b"})
    call, _ = get_item(rig, *ids(1))
    rig.answer(LOST)
    rig.wait(AGAIN_MS)
    rig.answer("found")
    assert call.answers == ["found"]
    assert not rig.exchange.held


@pytest.mark.parametrize("refusal", [NotFound("gone"), Overloaded("full", 5), Forbidden("no")])
def test_a_refused_look_up_is_passed_on(refusal: FoqsError) -> None:
    rig = Rig({1: "b"})
    call, _ = get_item(rig, *ids(1))
    rig.answer(refusal)
    assert call.answers == [refusal]


def test_a_look_up_ends_with_the_clients_time() -> None:
    rig = Rig({1: "b"})
    call, _ = get_item(rig, *ids(1))
    rig.wait(DEADLINE_MS)
    rig.answer("too late")
    assert [type(answer) for answer in call.answers] == [Unavailable]
    assert rig.log.lines == ["unrouted"]


def test_a_look_up_whose_shard_came_home_looks_here() -> None:
    rig = Rig({}, shards=(1,))
    call, here = get_item(rig, *ids(1))
    rig.exchange.settles = lambda item_id: True  # type: ignore[method-assign]
    rig.exchange.route_held()
    here.assert_called_once_with()
    assert (call.answers, rig.timers()) == ([], 0)


def listing(rig: Rig, cursor: str | None = None) -> Incoming:
    request = idl.ListItemsRequest("test", "t", None, 10, cursor=cursor)
    call = Incoming(request)
    ForwardedList(rig.exchange, call, DEADLINE_MS).route()
    return call


def test_a_listing_asks_shard_by_shard() -> None:
    rig = Rig({1: "b", 2: "a", 3: "c"})
    call = listing(rig)
    asked = []
    for response in (idl.ListItemsResponse([], "more"), idl.ListItemsResponse([], None)):
        asked.append((rig.sent[0].address, rig.sent[0].request.shard, rig.sent[0].request.cursor))
        rig.answer(response)
    asked.append((rig.sent[0].address, rig.sent[0].request.shard, rig.sent[0].request.cursor))
    rig.answer(idl.ListItemsResponse(["item"], None))
    assert asked == [("b:1", 1, None), ("b:1", 1, "more"), ("a:1", 2, None)]
    (answer,) = call.answers
    assert (answer.items, answer.cursor is not None) == (["item"], True)


def test_a_listing_of_empty_shards_is_empty() -> None:
    rig = Rig({1: "b", 2: "b"})
    call = listing(rig)
    rig.answer(idl.ListItemsResponse([], None))
    rig.answer(idl.ListItemsResponse([], None))
    assert [(answer.items, answer.cursor) for answer in call.answers] == [([], None)]


@pytest.mark.parametrize("failure", [LOST, OutcomeUnknown("the host failed"), NotServed(), Unavailable("down", 5)])
def test_a_listing_ends_at_a_host_that_fails(failure: FoqsError) -> None:
    rig = Rig({1: "b"})
    call = listing(rig)
    rig.answer(failure)
    assert [answer.code for answer in call.answers] == [Unavailable.code]
    assert rig.engine.counters.held == 0


def test_a_listing_ends_at_a_shard_without_an_owner() -> None:
    call = listing(Rig({2: "b"}, shards=(1,)))
    assert [type(answer) for answer in call.answers] == [Unavailable]
