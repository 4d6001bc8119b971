"""The page of an order key: its items in their order, what the next one waits for, and its dead letters."""

from __future__ import annotations

import re
from html import escape
from urllib.parse import urlencode

import pytest

from foqs.client import Client, ItemSpec
from foqs.console.pages.order_key import MOST_ITEMS
from foqs.ids import shard_of
from tests.console.asgi import Answer, Site
from tests.console.browser import Browser, browser, client, service
from tests.console.rig import HOSTILE, ROOT, SEER, guarded

__all__ = ["browser", "client", "guarded", "service"]  # fixtures
pytestmark = pytest.mark.threads

KEY = "order-42"
MOST_LOOKED_AT = 10_000
"""Items that one search looks at."""


def store(client: Client, count: int = 3, key: str = KEY, topic: str = "orders") -> list[int]:
    return list(client.enqueue_many([ItemSpec(topic, b"x", order_key=key)] * count))  # type: ignore[arg-type]


def page_of(browser: Browser, key: str = KEY, topic: str = "orders") -> Answer:
    page = browser.get("/order-key", topic=topic, key=key)
    assert page.status == 200, page.said
    return page


def places(page: Answer) -> list[tuple[str, int, str]]:
    """The place, the id and the state of each item."""
    found = [row for row in page.rows if len(row) == 7]
    return [(row[0], int(row[1]), row[2]) for row in found]


def test_items_are_in_their_order_behind_the_leased_one(browser: Browser, client: Client) -> None:
    ids = store(client, 4)
    store(client, 2, key="other")
    (item, _) = client.dequeue("orders", 10, worker="host-3:4711", lease_ms=60_000)
    assert item.id == ids[0]
    page = page_of(browser)
    assert places(page) == [("1", ids[0], "leased"), *((str(at), ids[at - 1], "behind") for at in (2, 3, 4))]
    assert f"Next item {ids[0]} leased Worker host-3:4711 has leased it" in page.said
    assert "leased 1 0 host-3:4711 has it, its lease ends in 1 min" in page.said
    assert f"All items of the key are on shard {shard_of(ids[0])} ." in page.said
    assert 'hx-get="/order-key' in page.text
    client.ack(item)
    page = page_of(browser)
    assert places(page)[0] == ("1", ids[1], "ready")
    assert f"Next item {ids[1]} ready" in page.said


def test_a_failed_item_keeps_its_place_until_its_retry(browser: Browser, client: Client) -> None:
    client.set_policy("orders", {"retry": {"kind": "constant", "first_ms": 60_000, "jitter": 0}})
    ids = store(client)
    later = client.enqueue("orders", b"x", order_key=KEY, delay_ms=5_000)
    client.nack(client.dequeue("orders")[0], failed=True, reason="SMTP <451>")
    page = page_of(browser)
    assert places(page) == [
        ("1", ids[0], "delayed"), ("2", ids[1], "behind"), ("3", ids[2], "behind"), ("–", later, "delayed"),
    ]  # fmt: skip
    (first, *_) = [row for row in page.rows if row[1] == str(ids[0])]
    assert first[5:] == ["waits for its retry, due in 1 min", "failed : SMTP <451>"]
    assert "SMTP &lt;451&gt;" in page.text
    assert "A failed item keeps its place" in page.said


def test_a_policy_that_skips_a_failed_item(browser: Browser, client: Client) -> None:
    policy = {"order": {"on_failure": "skip"}, "retry": {"kind": "constant", "first_ms": 60_000, "jitter": 0}}
    client.set_policy("orders", policy)
    ids = store(client)
    client.nack(client.dequeue("orders")[0], failed=True, reason="in vain")
    page = page_of(browser)
    assert places(page) == [("1", ids[1], "ready"), ("2", ids[2], "behind"), ("–", ids[0], "delayed")]
    assert "skips a failed item while it waits for its retry" in page.said


def test_only_a_failed_item_is_left(browser: Browser, client: Client) -> None:
    client.set_policy("orders", {"retry": {"kind": "constant", "first_ms": 60_000, "jitter": 0}})
    (only,) = store(client, 1)
    sooner = client.enqueue("orders", b"x", order_key=KEY, delay_ms=5_000)
    client.nack(client.dequeue("orders")[0], failed=True)
    page = page_of(browser)
    assert places(page) == [("1", only, "delayed"), ("–", sooner, "delayed")]
    assert f"Next item {only} delayed" in page.said


def test_dead_letters_of_the_key_and_of_the_topic(browser: Browser, client: Client) -> None:
    for topic in ("orders", "mail"):
        client.set_policy(topic, {"dead": {"topic": "lost"}})
        store(client, 2, topic=topic)
    store(client, 1, key="other")
    dead = {}
    for topic in ("orders", "mail"):
        for item in client.dequeue(topic, 10):
            dead[topic, item.order_key] = item.id
            client.nack(item, reject=True, reason="no <stock>")
    page = page_of(browser)
    (row,) = [row for row in page.rows if len(row) == 5]
    assert (row[0], row[2:]) == (str(dead["orders", KEY]), ["1", "rejected", "no <stock>"])
    assert re.search(r'id="dead-letters" href="/dead\?[^"]*topic=lost&amp;origin=orders"', page.text)
    item = browser.get(f"/items/{dead['orders', KEY]}")
    assert re.search(rf'id="of-order-key" href="/order-key\?[^"]*topic=orders&amp;key={KEY}"', item.text)
    assert "None has the key" not in page.said
    client.delete_items([dead["orders", KEY]])
    assert "None has the key." in page_of(browser).said


def test_the_page_is_reached_from_an_item_a_search_and_a_reason(browser: Browser, client: Client) -> None:
    ids = store(client)
    link = r'href="/order-key\?[^"]*topic=orders&amp;key=order-42"'
    page = browser.get(f"/items/{ids[1]}")
    assert re.search(rf'<a id="of-order-key" {link}', page.text)
    assert re.search(rf'<a id="reason-1-1" {link}', page.text)
    for query in ({"order": KEY}, {"topic": "orders", "order": KEY}):
        found = browser.get("/items", **query)
        assert "In their order: order key order-42 of topic orders ." in found.said
        assert len(re.findall(rf'<a id="order-1" {link}', found.text)) == 1
    assert "In their order:" not in browser.get("/items", topic="orders").said
    assert re.search(r'id="among-items" href="/items\?[^"]*topic=orders&amp;order=order-42"', page_of(browser).text)


def test_long_orders_and_large_topics_are_bounded(browser: Browser, client: Client) -> None:
    ids = store(client, MOST_ITEMS + 3)
    page = page_of(browser)
    assert [found[1] for found in places(page)] == ids[: MOST_ITEMS + 1]
    assert 'id="all-behind"' in page.text
    assert 'id="look-further"' not in page.text and "hx-get" in page.text
    client.enqueue_many([ItemSpec("orders", b"x")] * (MOST_LOOKED_AT + 1))
    page = page_of(browser)
    assert [found[1] for found in places(page)] == ids[: MOST_ITEMS + 1], "the first is beyond the bound of a search"
    assert 'id="look-further"' in page.text and "hx-get" not in page.text
    assert "items looked at for this page, so it does not refresh itself" in page.said


def test_a_paused_topic_is_said(browser: Browser, client: Client) -> None:
    store(client)
    client.set_policy("orders", {"paused": True})
    page = page_of(browser)
    assert "Paused: no item of the topic is delivered." in page.said
    assert re.search(r'<a id="reason-1-1" href="/settings/entry\?[^"]*key=topic.orders"', page.text)


def test_a_key_without_items_is_not_found(browser: Browser, client: Client) -> None:
    store(client, 1)
    for topic, key in (("orders", "none<b>"), ("none<b>", KEY)):
        page = browser.get("/order-key", topic=topic, key=key)
        assert page.status == 404
        assert f"topic {topic} of namespace {client.namespace} has no item with the order key {key}" in page.said
        assert "<b>" not in page.text.split("<main", 1)[1].split("</h1>", 1)[1].split("</main", 1)[0].replace(
            "<bdi>", ""
        )
    for query in ({}, {"topic": "orders"}, {"key": KEY}):
        page = browser.get("/order-key", **query)
        assert (page.status, "the address names no order key" in page.said) == (404, True)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.isprintable()])
def test_names_are_text(browser: Browser, client: Client, name: str) -> None:
    name = f" {name} "  # spaces are a part of a name
    client.enqueue(name, b"x", order_key=name)
    page = page_of(browser, name, name)
    assert "<script>alert" not in page.text and "<img" not in page.text
    shown = escape(name).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    assert f"<h1>Order key <bdi>{shown}</bdi></h1>" in page.text
    (item_id,) = [found[1] for found in places(page)]
    link = re.search(r'id="of-order-key" href="([^"]*)"', browser.get(f"/items/{item_id}").text)
    assert link is not None
    assert urlencode({"topic": name, "key": name}) in link[1].replace("&amp;", "&")


@pytest.mark.process
def test_a_user_without_the_right_admin_sees_no_item(guarded: str) -> None:
    with Client(guarded, "shop", token=ROOT) as client:
        ids = store(client)
    site = Site(guarded)
    try:
        assert site.sign_in(SEER).status == 303
        for key in (KEY, "none"):
            page = site.get(f"/order-key?ns=shop&topic=orders&key={key}")
            assert page.status == 200
            assert "To look at items needs the right admin ." in page.said
            assert str(ids[0]) not in page.text
        assert site.get(f"/order-key?ns=other&topic=orders&key={KEY}").status == 403
    finally:
        site.close()
