"""Requests of a client with a filter of items, and pages of hosts of earlier versions, which ignore the filter."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client import Client, Invalid, ItemFilter, ItemState
from foqs.idl import idl
from tests.client.peer import Peer, script

NOW_MS = 1_700_000_000_000


def client_of(peer: Peer) -> Client:
    return Client(peer.address, "ns", routing=False, timeout_ms=10_000)


def listed(number: int, **fields: Any) -> Any:
    return idl.Item(id=number, ns="ns", topic="t", state=1, payload=b"x", **fields)


def test_a_search_with_all_conditions(peer: Peer) -> None:
    peer.meddle = script("ListItems", idl.ListItemsResponse([], "c", 10_000))
    wanted = ItemFilter(
        ItemState.LEASED, "acme", {"a": "b"}, enqueued_before_ms=NOW_MS + 9, enqueued_after_ms=NOW_MS, min_priority=-1,
        max_priority=4, failure_contains="SMTP", order_key="k", batch=1 << 60,
    )  # fmt: skip
    with client_of(peer) as client:
        assert client.search_items("t", filter=wanted, page_items=7, cursor="b") == ((), "c", 10_000)
    (asked,) = peer.named("ListItems")
    assert (asked.ns, asked.topic, asked.state, asked.limit, asked.cursor) == ("ns", "t", 3, 7, "b")
    assert (asked.fairness_key, asked.most_looked_at) == ("acme", None)
    assert asked.filter == idl.ItemFilter(-1, 4, NOW_MS + 9, NOW_MS, {"a": "b"}, "SMTP", "k", 1 << 60)


def test_one_priority_is_a_range(peer: Peer) -> None:
    with client_of(peer) as client:
        client.search_items("t", filter=ItemFilter(priority=3))
        client.search_items("t", filter=ItemFilter(fairness_key="acme"), state=ItemState.READY)
    first, second = peer.named("ListItems")
    assert first.filter == idl.ItemFilter(3, 3)
    assert (second.filter, second.fairness_key, second.state) == (None, "acme", 1)


def test_an_argument_replaces_the_field_of_the_filter(peer: Peer) -> None:
    with client_of(peer) as client:
        wanted = ItemFilter(ItemState.READY, "acme", priority=3)
        assert list(client.list_items("t", filter=wanted, state=ItemState.DELAYED, fairness_key="")) == []
    (asked,) = peer.named("ListItems")
    assert (asked.state, asked.fairness_key, asked.filter) == (2, "", idl.ItemFilter(3, 3))


def test_a_list_passes_over_empty_pages(peer: Peer) -> None:
    pages = [
        idl.ListItemsResponse([], "a", 10_000),
        idl.ListItemsResponse([listed(1, priority=3)], "b", 2_000),
        idl.ListItemsResponse([], "c", 10_000),
        idl.ListItemsResponse([listed(2, priority=3)], None, 10),
    ]
    peer.meddle = script("ListItems", *pages)
    with client_of(peer) as client:
        assert [item.id for item in client.list_items("t", filter=ItemFilter(priority=3))] == [1, 2]
    asked = peer.named("ListItems")
    assert [one.cursor for one in asked] == [None, "a", "b", "c"]
    assert {one.filter.max_priority for one in asked} == {3}


def test_a_host_of_an_earlier_version_lists_other_items_too(peer: Peer) -> None:
    good = {"headers": {"kind": "export", "x": "y"}, "priority": 2, "enqueued_at_ms": NOW_MS}
    reason = {"last_failure": idl.LastFailure(1, 1, "SMTP 451", 0, NOW_MS)}
    other = [
        good | reason | {"headers": {"kind": "mail"}},
        good | reason | {"headers": None},
        good | reason | {"priority": 3},
        good | reason | {"enqueued_at_ms": NOW_MS + 1},
        good,
    ]
    items = [listed(1, **good, **reason), *[listed(9, **fields) for fields in other]]
    wanted = ItemFilter(
        headers={"kind": "export"}, max_priority=2, enqueued_before_ms=NOW_MS + 1, failure_contains="SMTP"
    )
    peer.meddle = script("ListItems", *[idl.ListItemsResponse(items, None)] * 2)
    with client_of(peer) as client:
        found = client.search_items("t", filter=wanted)
        assert ([item.id for item in found.items], found.cursor, found.looked_at) == ([1], None, 6)
        assert [item.id for item in client.list_items("t", filter=wanted)] == [1]


def test_the_list_of_a_change_has_the_filter(peer: Peer) -> None:
    with client_of(peer) as client:
        client.change_all("t", filter=ItemFilter(headers={"kind": "export"}), priority=1)
        with pytest.raises(Invalid, match=r"READY, DELAYED or BEHIND"):
            client.change_all("t", filter=ItemFilter(ItemState.COMPLETED), priority=1)
    asked = peer.named("ListItems")
    assert [(one.state, one.filter.headers) for one in asked] == [(state, {"kind": "export"}) for state in (1, 2, 6, 3)]
