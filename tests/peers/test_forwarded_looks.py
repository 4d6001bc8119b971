"""Forwarded look-ups of an item, and lists of items."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from foqs.errors import (
    FoqsError,
    Forbidden,
    NotFound,
    NotServed,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from foqs.idl import idl
from foqs.peers.forwarded import AGAIN_MS, HERE
from foqs.peers.forwarded_requests import ForwardedGetItem, ForwardedList
from tests.peers.exchanges import DEADLINE_MS, LOST, Incoming, Rig, ids


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
    rig.exchange.find_item = lambda item_id: HERE  # type: ignore[method-assign]
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
    assert rig.engine.state.counters.held == 0


def test_a_listing_ends_at_a_shard_without_an_owner() -> None:
    call = listing(Rig({2: "b"}, shards=(1,)))
    assert [type(answer) for answer in call.answers] == [Unavailable]


def test_a_listing_passes_over_disabled_shards() -> None:
    """No host will serve them: a listing that waited for one would never end."""
    rig = Rig({2: "b"}, shards=(1, 3))
    rig.routing = replace(rig.routing, disabled=frozenset({1, 3}))
    call = listing(rig)
    rig.answer(idl.ListItemsResponse(["item"], None))
    assert [(answer.items, answer.cursor) for answer in call.answers] == [(["item"], None)]
