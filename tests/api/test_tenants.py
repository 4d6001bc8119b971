"""Items of tenants and throttle sets at one host: what consumers and operators see of them."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.engine.listing import cursor_of
from foqs.idl import idl
from tests.api.wire import State, spec
from tests.support.one_host import OneHost, put, refused, routing_of, take

pytestmark = pytest.mark.memory

KEYS: list[dict[str, Any]] = [
    {},
    {"fairness_key": "acme"},
    {"fairness_key": "acme", "throttle_keys": ["db", "api:acme"]},
    {"throttle_keys": ["db"]},
]
SHOWN = [(None, None), ("acme", None), ("acme", ["api:acme", "db"]), (None, ["db"])]
ORDER = sorted(SHOWN, key=repr)


@pytest.fixture
def host() -> OneHost:
    return OneHost(1, 2)


def keys(items: list[Any]) -> list[tuple[str | None, list[str] | None]]:
    return sorted([(item.fairness_key, item.throttle_keys) for item in items], key=repr)


def pages(host: OneHost, limit: int, **fields: Any) -> list[Any]:
    """Return the items of all pages, of which none has more than `limit`."""
    found: list[Any] = []
    cursor = None
    while True:
        page = host.ask("ListItems", ns="n", topic="t", limit=limit, cursor=cursor, **fields)
        assert len(page.items) <= limit
        found += page.items
        if (cursor := page.cursor) is None:
            return found


def put_each(host: OneHost, times: int = 1, **fields: Any) -> list[int]:
    specs = [spec("t", b"x", **given, **fields) for given in KEYS for _ in range(times)]
    return [outcome.id for outcome in host.ask("Enqueue", ns="n", items=specs).outcomes]


def test_consumers_and_operators_see_the_keys(host: OneHost) -> None:
    ids = put_each(host)
    assert [
        (item.fairness_key, item.throttle_keys) for item in (host.ask("GetItem", id=one).item for one in ids)
    ] == SHOWN
    assert keys(pages(host, 10)) == ORDER
    assert keys(take(host).items) == ORDER
    assert keys(pages(host, 10, state=State.LEASED)) == ORDER


def test_an_item_with_a_dedup_key_keeps_its_tenant(host: OneHost) -> None:
    (first,) = put(host, b"x", dedup_key="k", fairness_key="acme", throttle_keys=["db"], weight=3)
    (second,) = put(host, b"x", dedup_key="k", fairness_key="zenith")
    assert first == second, "only topic and payload are compared"
    (item,) = take(host).items
    assert (item.id, item.fairness_key, item.throttle_keys) == (first, "acme", ["db"])


@pytest.mark.parametrize("dedup_key", [None, "k"])
def test_an_enqueue_at_a_host_without_shards_is_forwarded_whole(dedup_key: str | None) -> None:
    host = OneHost(routing=routing_of({2: "b"}))
    given = {"fairness_key": "acme", "throttle_keys": ["db"], "weight": 3, "dedup_key": dedup_key}
    host.call("Enqueue", ns="n", items=[spec("t", b"x", **given), spec("t", b"y", **given)])
    (sent,) = host.to("Enqueue")
    assert [{name: getattr(item, name) for name in given} for item in sent.request.items] == [given] * 2


def test_a_dead_letter_returns_to_its_tenant(host: OneHost) -> None:
    put_each(host)
    nacks = [idl.NackItem(item.id, item.lease, reject=True, reason="no") for item in take(host).items]
    host.ask("Nack", items=nacks)
    dead = host.ask("ListItems", ns="n", topic="t.dlq").items
    assert keys(dead) == [(None, None)] * 4
    failures = [(item.failure.fairness_key, item.failure.throttle_keys) for item in dead]
    assert sorted(failures) == sorted((fairness or "", throttles or []) for fairness, throttles in SHOWN)
    assert host.ask("RedriveItems", ns="n", topic="t.dlq").at_least == 4
    assert keys(take(host).items) == ORDER


def test_a_cursor_with_half_a_position(host: OneHost) -> None:
    cursor = cursor_of(1, "ready", [1, 2])
    assert refused(host, "ListItems", ns="n", topic="t", cursor=cursor) == "the cursor is not one of this server's"
