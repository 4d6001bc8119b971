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


def test_keys_are_there_after_a_restart(host: OneHost) -> None:
    put_each(host)
    host.reopen()
    assert keys(pages(host, 10)) == ORDER
    assert keys(take(host).items) == ORDER


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_have_each_item_of_each_tenant_once(host: OneHost, limit: int) -> None:
    ids = put_each(host, 3) + put_each(host, 2, delay_ms=500)
    for _ in range(3):
        put(host, b"y", fairness_key="acme")
    taken = [item.id for item in take(host, 5).items]
    host.settle()
    listed = pages(host, limit)
    assert len(listed) == len({item.id for item in listed}) == len(ids) + 3
    assert sorted(item.id for item in pages(host, limit, state=State.LEASED)) == sorted(taken)
    delayed = pages(host, limit, state=State.DELAYED)
    assert keys(delayed) == sorted(2 * SHOWN, key=repr)


def test_a_page_goes_on_behind_a_tenant_that_is_gone(host: OneHost) -> None:
    put_each(host, 2)
    first = host.ask("ListItems", ns="n", topic="t", limit=3)
    gone = {item.id for item in pages(host, 100) if item.fairness_key == "acme"}
    host.ask("DeleteItems", ids=sorted(gone))
    rest = host.ask("ListItems", ns="n", topic="t", limit=100, cursor=first.cursor).items
    left = {item.id for item in pages(host, 100)}
    assert {item.id for item in (*first.items, *rest)} - gone == left
    assert len(left) == 4


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


def test_the_last_stored_weight_counts() -> None:
    host = OneHost(1)

    def weights() -> dict[bytes, int]:
        return {lane.fairness: lane.weight for lane in host.dbs[1].lanes.values()}

    for weight in (5, 7, None):
        put(host, b"x", fairness_key="acme", weight=weight)
        put(host, b"x", fairness_key="zenith")
    assert weights() == {b"acme": 7, b"zenith": 0}
    put(host, b"x", fairness_key="zenith", weight=2)
    assert weights() == {b"acme": 7, b"zenith": 2}


def test_all_leases_of_a_topic_are_released(host: OneHost) -> None:
    put_each(host, 2)
    taken = take(host, worker="w").items
    host.settle()
    (stats,) = host.ask("GetTopicStats", ns="n", topic="t").workers
    assert (stats.worker, stats.held) == ("w", 8)
    assert host.ask("ReleaseLeases", ns="n", topic="t", worker="w").released == 8
    again = take(host).items
    assert sorted(item.id for item in again) == sorted(item.id for item in taken)
    assert {item.attempt for item in again} == {2}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"fairness_key": "x" * 256}, "fairness_key: a name has 1 to 255 bytes, not 256"),
        ({"fairness_key": "a\n"}, "fairness_key: a name has no control characters"),
        ({"fairness_key": b"\xff"}, "fairness_key is not UTF-8"),
        ({"throttle_keys": [""]}, "throttle_keys: a name has 1 to 255 bytes, not 0"),
        ({"throttle_keys": ["a*"]}, "throttle_keys: a throttle key does not end in *"),
        ({"throttle_keys": ["a", "a"]}, "throttle_keys: the key 'a' is listed more than once"),
        ({"throttle_keys": list("abcdefghi")}, "throttle_keys: there are 9 keys, more than 8"),
        ({"throttle_keys": [n * 255 for n in "abc"]}, "throttle_keys: the keys have 767 bytes"),
        ({"weight": 0}, "weight is 0, not in 1..1000"),
        ({"weight": 1_001}, "weight is 1001, not in 1..1000"),
    ],
)
def test_wrong_keys_are_refused_alone(host: OneHost, fields: dict[str, Any], why: str) -> None:
    bad, good = host.ask("Enqueue", ns="n", items=[spec("t", b"x", **fields), spec("t", b"y")]).outcomes
    assert bad.error.message.startswith(why)
    assert good.error is None


def test_a_cursor_with_half_a_position(host: OneHost) -> None:
    cursor = cursor_of(1, "ready", [1, 2])
    assert refused(host, "ListItems", ns="n", topic="t", cursor=cursor) == "the cursor is not one of this server's"
