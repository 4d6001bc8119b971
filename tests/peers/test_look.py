"""Operators look at all hosts through any of them."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.engine.calls import DequeueCall
from foqs.errors import Code
from foqs.idl import idl
from tests.api.wire import Refused, Wire
from tests.peers.nodes import Cluster


def listed(wire: Wire, limit: int, state: int | None = None) -> list[Any]:
    """All pages."""
    found, cursor = [], None
    while True:
        page = wire.ask("ListItems", ns="test", topic="t", limit=limit, cursor=cursor, state=state)
        assert len(page.items) <= limit
        found += page.items
        if (cursor := page.cursor) is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_items_of_all_hosts_page_by_page(cluster: Cluster, limit: int) -> None:
    a, b, c = cluster.add("a", 1, 4), cluster.add("b", 2, 3), cluster.add("c")
    cluster.tell()
    ids = []
    for member in (a, b):
        for _ in range(4):
            ids += cluster.wire(member).put("t", b"x", b"y")
        ids += cluster.wire(member).put("t", b"later", delay_ms=3_600_000)
        cluster.wire(member).put("other", b"z")
    for member in (a, b, c):
        found = listed(cluster.wire(member), limit)
        assert sorted(item.id for item in found) == sorted(ids)
        assert [item.id >> 48 for item in found] == sorted(item.id >> 48 for item in found)
    assert len(listed(cluster.wire(c), limit, idl.ItemState.DELAYED)) == 2


@pytest.mark.parametrize("limit", [1, 1_000])
def test_a_search_goes_to_all_hosts(cluster: Cluster, limit: int) -> None:
    """A page may have no items: its cursor continues on the next shard."""
    a, b, c = cluster.add("a", 1, 4), cluster.add("b", 2, 3), cluster.add("c")
    cluster.tell()
    wanted = []
    for member in (a, b):
        cluster.wire(member).put("t", *[b"x"] * 20, headers={"kind": "mail"})
        wanted += cluster.wire(member).put("t", b"y", headers={"kind": "export"})
    for member in (a, b, c):
        found, looked_at, cursor = [], 0, None
        while True:
            page = cluster.wire(member).ask(
                "ListItems", ns="test", topic="t", limit=limit, cursor=cursor, most_looked_at=10,
                filter=idl.ItemFilter(headers={"kind": "export"}),
            )  # fmt: skip
            assert page.looked_at <= 10
            found += [item.id for item in page.items]
            looked_at += page.looked_at
            if (cursor := page.cursor) is None:
                break
        assert (found, looked_at) == (sorted(wanted, key=lambda one: one >> 48), 42)


def test_items_while_a_shard_is_being_moved(cluster: Cluster) -> None:
    """Better an error that may be repeated than a list that is not whole."""
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    ids = [*cluster.wire(a).put("t", b"x"), *cluster.wire(b).put("t", b"x")]
    cluster.tell(cluster.routing(without=[2]))
    first = cluster.wire(a).ask("ListItems", ns="test", topic="t")
    assert [item.id for item in first.items] == ids[:1]
    with pytest.raises(Refused) as refused:
        cluster.wire(a).ask("ListItems", ns="test", topic="t", cursor=first.cursor)
    assert refused.value.code == Code.UNAVAILABLE
    cluster.tell()
    second = cluster.wire(a).ask("ListItems", ns="test", topic="t", cursor=first.cursor)
    assert ([item.id for item in second.items], second.cursor) == (ids[1:], None)


def test_a_cursor_of_a_removed_shard_goes_on_with_the_next(cluster: Cluster) -> None:
    a, b = cluster.add("a", 1), cluster.add("b", 3)
    cluster.tell()
    ids = [*cluster.wire(a).put("t", b"x"), *cluster.wire(b).put("t", b"x")]
    first = cluster.wire(b).ask("ListItems", ns="test", topic="t")
    cluster.shards.discard(1)
    cluster.tell(cluster.routing(b))
    again = cluster.wire(b).ask("ListItems", ns="test", topic="t", cursor=first.cursor)
    assert [item.id for item in again.items] == ids[1:]


def test_a_wait_that_ends_during_a_forward_gets_its_answer(cluster: Cluster) -> None:
    """With an empty answer it would lose the at-most-once items that are being leased."""
    a = cluster.add("a", 1)
    cluster.tell()
    waiting = DequeueCall([(("test", "t"), 1)], 1_000, 1_000, 0, lambda items, doubtful: True)
    waiting.away = True
    cluster.on_loop(lambda: a.engine.state.patience.push(0, waiting))
    cluster.on_loop(lambda: a.engine.tick(a._clock.now_ms()))
    assert not waiting.done


def test_requests_whose_time_is_over_twice_at_once_end_once(cluster: Cluster) -> None:
    """The caller's time, and the time that one is held for an owner: and so do those behind them."""
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    (item_id,) = cluster.wire(b).put("t", b"x")
    cluster.tell(cluster.routing(without=[2]))
    look, ack, behind = (cluster.wire(a) for _ in range(3))
    context = idl.RequestContext(timeout_ms=10_000)
    look.send_call("GetItem", id=item_id, context=context)
    ack.send_call("Ack", ns="test", items=[idl.AckItem(item_id, 1)], context=context)
    cluster.until(lambda: a.counters.held == 2, "requests that are held")
    behind.send_call("GetRouting", wait_ms=25_000, version=cluster.wire(a).ask("GetRouting").version)
    cluster.until(lambda: bool(a.service.routing._routing_calls), "a request that waits")
    cluster.on_loop(lambda: a.engine.tick(a.now_ms() + 60_000))
    with pytest.raises(Refused) as refused:
        look.receive("GetItem")
    assert refused.value.code == Code.UNAVAILABLE
    assert ack.receive("Ack").outcomes[0].error.code == Code.UNAVAILABLE
    assert behind.receive("GetRouting").version
