"""Forwarded enqueues, with a deduplication key and without."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from foqs.api.intake import Intake
from foqs.bounds import LIMITS
from foqs.engine.calls import EnqueueCall
from foqs.errors import (
    FoqsError,
    Forbidden,
    Invalid,
    LostReply,
    NotSent,
    NotServed,
    OutcomeUnknown,
    Overloaded,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
)
from foqs.idl import idl
from foqs.ids import digest_of
from foqs.peers.forwarded import AGAIN_MS, RETRY_MS
from foqs.peers.forwarded_requests import ForwardedEnqueue, ForwardedKeyedEnqueue
from foqs.second_answer import Duplicate, OwnDuplicate
from tests.api.wire import spec
from tests.peers.exchanges import DEADLINE_MS, HANDOVER_MS, LOST, Rig


def keyed(rig: Rig, adopt: Any = None) -> tuple[ForwardedKeyedEnqueue, list[Any]]:
    item = Mock(at=0)
    item.dedup.digest = digest_of("test", "k")
    item.item.order_key = None
    outcomes: list[Any] = []
    request = SimpleNamespace(ns="test", items=[spec("t", dedup_key="k")], context=None)
    call = EnqueueCall(1, outcomes.extend)
    made = ForwardedKeyedEnqueue(rig.exchange, call, [item], request, DEADLINE_MS, adopt or Mock())
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


def ordered(rig: Rig, *keys: str) -> list[Any]:
    """The outcomes of an enqueue of an item for each of the order keys."""
    items = Intake("test", [spec("t", b"%d" % at, order_key=key) for at, key in enumerate(keys)], LIMITS, 1_000).keyed
    request = SimpleNamespace(ns="test", items=[spec("t", order_key=key) for key in keys], context=None)
    outcomes: list[Any] = []
    call = EnqueueCall(len(keys), outcomes.extend)
    ForwardedKeyedEnqueue(rig.exchange, call, items, request, DEADLINE_MS, Mock()).route()
    return outcomes


def sent_keys(rig: Rig) -> list[list[str]]:
    return [[item.order_key for item in sent.request.items] for sent in rig.sent]


def stored_all(*ids: int) -> Any:
    return idl.EnqueueResponse([idl.EnqueueOutcome(item_id) for item_id in ids])


def test_items_with_order_keys_go_in_one_request() -> None:
    rig = Rig({2: "b"})
    outcomes = ordered(rig, *"abab")
    assert sent_keys(rig) == [["a", "b", "a", "b"]]
    rig.answer(stored_all(5, 6, 7, 8))
    assert outcomes == [5, 6, 7, 8]


def test_an_ordered_enqueue_is_not_repeated_after_a_lost_reply() -> None:
    rig = Rig({2: "b"})
    outcomes = ordered(rig, "a", "a")
    rig.answer(LOST)
    rig.wait(AGAIN_MS)
    assert not rig.sent
    assert [type(outcome).__base__ for outcome in outcomes] == [OutcomeUnknown] * 2


@pytest.mark.parametrize("refusal", [NotServed(), NotSent("no connection")])
def test_an_ordered_enqueue_that_reached_no_owner_is_repeated(refusal: FoqsError) -> None:
    rig = Rig({2: "b"})
    outcomes = ordered(rig, "a", "a")
    rig.answer(refusal)
    rig.wait(AGAIN_MS)
    assert sent_keys(rig) == [["a", "a"]]
    rig.answer(stored_all(5, 6))
    assert outcomes == [5, 6]


def test_a_request_that_is_too_large_is_cut_between_order_keys() -> None:
    rig = Rig({2: "b"})
    outcomes = ordered(rig, *"abab")
    rig.answer(RequestTooLarge("no"))
    assert sent_keys(rig) == [["a", "a"], ["b", "b"]]
    rig.answer(stored_all(5, 7))
    rig.answer(stored_all(6, 8))
    assert outcomes == [5, 6, 7, 8]


def test_the_rest_of_an_order_key_may_be_enqueued_later() -> None:
    """The items before it do not fit one request with it, and may fail."""
    rig = Rig({2: "b"})
    outcomes = ordered(rig, *"aaaa")
    rig.answer(RequestTooLarge("no"))
    assert sent_keys(rig) == [["a", "a"]]
    rig.answer(stored_all(5, 6))
    assert outcomes[:2] == [5, 6]
    assert [(type(one), one.retry_after_ms) for one in outcomes[2:]] == [(Unavailable, RETRY_MS)] * 2


def plain(rig: Rig, addresses: list[str]) -> list[Any]:
    outcomes: list[Any] = []
    request = SimpleNamespace(ns="test", context=None, items=[spec("t", b"1"), spec("t", b"2")])
    call = EnqueueCall(2, outcomes.extend)
    ForwardedEnqueue(rig.exchange, call, [0, 1], request, addresses, DEADLINE_MS).route()
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
    ],
)
def test_any_other_answer_ends_a_plain_enqueue(answer: Any, expected: list[type]) -> None:
    rig = Rig({1: "b"})
    outcomes = plain(rig, ["b:1", "c:1"])
    rig.answer(answer)
    assert [type(outcome) for outcome in outcomes] == expected
    assert not rig.sent


@pytest.mark.parametrize(
    ("neighbour", "expected"),
    [(idl.EnqueueOutcome(7), 7), (idl.EnqueueOutcome(None, idl.ItemError(1, "wrong")), Invalid)],
)
def test_an_item_is_tried_elsewhere_without_its_neighbour(neighbour: Any, expected: Any) -> None:
    rig = Rig({1: "b"})
    outcomes = plain(rig, ["b:1", "c:1"])
    rig.answer(idl.EnqueueResponse([neighbour, idl.EnqueueOutcome(None, idl.ItemError(5, "no healthy shard"))]))
    (sent,) = rig.sent
    assert (sent.address, [one.payload for one in sent.request.items]) == ("c:1", [b"2"])
    rig.answer(idl.EnqueueResponse([idl.EnqueueOutcome(8)]))
    assert [one if isinstance(one, int) else type(one) for one in outcomes] == [expected, 8]


def test_a_plain_enqueue_ends_after_the_last_host() -> None:
    rig = Rig({1: "b"})
    outcomes = plain(rig, ["b:1"])
    rig.answer(NotSent("no connection"))
    assert [type(outcome) for outcome in outcomes] == [NotSent] * 2
    assert rig.engine.state.counters.held == 0
