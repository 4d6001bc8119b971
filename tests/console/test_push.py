"""The pages of push targets: the endpoint of each, and the state of the items that it sends."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

import pytest

from foqs.client import Client, ItemSpec
from foqs.console.pages.push import MOST_GROUPS, PAGE_TARGETS
from foqs.console.view import path_of
from foqs.testing import Server
from tests.console.asgi import Answer, Site
from tests.console.browser import Browser, browser, client, service
from tests.console.rig import HOSTILE, ROOT, SEER, guarded

__all__ = ["browser", "client", "guarded", "service"]  # fixtures
pytestmark = pytest.mark.threads

URL = "https://hooks.example.com/in?a=1"
FULL = {
    "topic": "orders", "url": URL, "method": "PUT", "concurrency": 7, "timeout_ms": 90_000, "secrets": ["new", "old"],
    "headers": {"Authorization": "Bearer {secret:crm}", "X-Key": "plain-value-of-a-key"},
}  # fmt: skip


def put(client: Client, name: str = "shop", **fields: Any) -> None:
    client.put_settings({f"push.{name}": json.dumps({"topic": "orders", "url": URL, **fields})})


def page_of(browser: Browser, name: str = "shop") -> Answer:
    page = browser.get(path_of("/push", "name", name))
    assert page.status == 200, page.said
    return page


def facts(page: Answer) -> dict[str, str]:
    found = re.findall(r"<div><dt>(.*?)</dt><dd[^>]*>(.*?)</dd></div>", page.text)
    return {name: " ".join(re.sub(r"<[^>]*>", "", text).split()) for name, text in found}


def test_the_fields_of_a_target(browser: Browser, client: Client) -> None:
    put(client, **FULL)
    page = page_of(browser)
    said = facts(page)
    assert said["Items of topic"] == "orders"
    assert said["To"] == f"PUT {URL}"
    assert said["Body"] == "the payload"
    assert said["Requests at a time"] == "7 of each push process"
    assert said["Time-out of a request"] == "1.5 min"
    assert said["Signed by the secrets"] == "new, old"
    assert said["Further headers"] == "Authorization, X-Key"
    assert said["Secrets in headers"] == "crm"
    assert "plain-value-of-a-key" not in page.text, "the value of a header may be a secret"
    assert "Bearer" not in page.text
    stamp = client.settings("push.").stamps["push.shop"]
    assert f"UTC by {stamp.by} ." in page.said
    assert re.search(r'id="entry" href="/settings/entry\?[^"]*key=push.shop"', page.text)
    assert URL not in re.findall(r'href="([^"]*)"', page.text), "an endpoint is no page to visit"


def test_a_plain_target(browser: Browser, client: Client) -> None:
    put(client, envelope="cloudevents")
    said = facts(page_of(browser))
    assert said["Body"] == "a CloudEvents envelope in JSON"
    assert said["Signed by the secrets"] == "none: requests are not signed"
    assert (said["Further headers"], said["Secrets in headers"]) == ("(none)", "(none)")


def test_items_failures_and_dead_letters_of_the_topic(browser: Browser, client: Client) -> None:
    put(client)
    client.set_policy("orders", {"dead": {"topic": "lost"}})
    client.enqueue_many([ItemSpec("orders", b"x")] * 5)
    first, second, *_ = client.dequeue("orders", 3)
    client.nack(first, reject=True, reason="HTTP 410 <gone>")
    client.nack(second, failed=True, reason="HTTP 503")
    page = page_of(browser)
    assert "Ready 2" in page.said and "Leased 1" in page.said
    assert ["failed", "HTTP 503", "1"] in [row[:3] for row in page.rows]
    (dead,) = [row for row in page.rows if len(row) == 7]
    assert (dead[0], dead[1], dead[3], dead[6]) == ("rejected", "HTTP 410 <gone>", "1", str(first.id))
    (group,) = client.list_failures("lost").groups
    assert re.search(
        rf'href="/dead\?[^"]*topic=lost&amp;cause=rejected&amp;fingerprint={group.fingerprint}"', page.text
    )
    assert re.search(r'id="dead-of-topic" href="/dead\?[^"]*topic=lost&amp;origin=orders"', page.text)
    client.set_policy("orders", {"dead": None})
    assert "The topic has no dead-letter topic" in page_of(browser).said


def test_a_paused_topic_and_targets_that_share_it(browser: Browser, client: Client) -> None:
    put(client)
    put(client, "b/c")
    put(client, "other", topic="mail")
    page = page_of(browser)
    assert facts(page)["Items of topic"] == "orders"
    assert "Another target shares the items of the topic: b/c ." in page.said
    assert re.search(r'<a id="sharing-1" href="/push/b%2Fc\?', page.text)
    assert "share" not in page_of(browser, "other").said
    client.set_policy("orders", {"paused": True})
    page = page_of(browser)
    assert facts(page)["Items of topic"] == "orders paused"
    assert "Paused: no item of the topic is delivered." in page.said


def test_many_groups_of_dead_letters_are_bounded(browser: Browser, client: Client) -> None:
    put(client)
    client.enqueue_many([ItemSpec("orders", b"x")] * (MOST_GROUPS + 2))
    for number, item in enumerate(client.dequeue("orders", MOST_GROUPS + 2)):
        client.nack(item, reject=True, reason="a" * (number + 1))
    page = page_of(browser)
    assert len([row for row in page.rows if len(row) == 7]) == MOST_GROUPS
    assert f"The {MOST_GROUPS} largest groups are shown; 2 smaller ones are left out." in page.said


def test_targets_are_listed_and_found(browser: Browser, client: Client) -> None:
    assert "The namespace has no push target." in browser.get("/push").said
    put(client, **FULL)
    put(client, "mail", topic="mail")
    rows = browser.get("/push").rows
    assert [row[:5] for row in rows] == [
        ["mail", "mail", f"POST {URL}", "10", "–"], ["shop", "orders", f"PUT {URL}", "7", "new, old"],
    ]  # fmt: skip
    page = browser.get("/push", prefix="sh")
    assert [row[0] for row in page.rows] == ["shop"]
    assert re.search(r'<a id="target-id-[^"]*" href="/push/shop\?', page.text)
    assert "no push target whose name begins so." in browser.get("/push", prefix="x").said
    entry = browser.get("/settings/entry", key="push.shop")
    assert re.search(r'<a id="push-target" href="/push/shop\?', entry.text)
    assert 'id="push-target"' not in browser.get("/settings/entry", key="push.none").text


def test_the_first_targets_are_listed(browser: Browser, client: Client) -> None:
    text = json.dumps({"topic": "orders", "url": URL})
    client.put_settings({f"push.t{number:03}": text for number in range(PAGE_TARGETS + 1)})
    page = browser.get("/push")
    assert len(page.rows) == PAGE_TARGETS
    assert f"The first {PAGE_TARGETS} of {PAGE_TARGETS + 1}, by name." in page.said


def test_an_unknown_target_is_not_found(browser: Browser, client: Client) -> None:
    for path in ("/push/none<b>", "/push/?name=none<b>"):
        page = browser.get(path)
        assert page.status == 404
        assert f"namespace {client.namespace} has no push target none<b>: the page Push lists them" in page.said
        assert "none<b>" not in page.text
    assert browser.get("/push/").status == 404


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.isprintable()])
def test_names_are_text(browser: Browser, client: Client, name: str) -> None:
    put(client, name, topic=name)
    shown = escape(name).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    one, listed = page_of(browser, name), browser.get("/push")
    assert f"<h1>Push target <bdi>{shown}</bdi></h1>" in one.text
    for page in (one, listed):
        assert f"<bdi>{shown}</bdi>" in page.text
        assert "<script>alert" not in page.text and "<img" not in page.text


def test_an_entry_of_a_newer_version(
    browser: Browser, client: Client, service: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, concurrency=9)
    known = "foqs.console.pages.push.parse_push"

    def refuse(_text: str) -> None:
        from foqs.errors import Invalid

        raise Invalid("colour: there is no such <field>")

    monkeypatch.setattr(known, refuse)
    page = page_of(browser)
    assert "A newer version of foqs made the entry: colour: there is no such <field>" in page.said
    assert "&lt;field&gt;" in page.text
    assert "error colour: there is no such <field>" in browser.get("/push").rows[0][0]


@pytest.mark.process
def test_a_user_without_the_right_admin_sees_no_reasons(guarded: str) -> None:
    with Client(guarded, "shop", token=ROOT) as client:
        put(client)
        client.enqueue("orders", b"x")
        client.nack(client.dequeue("orders")[0], reject=True, reason="HTTP 410")
        client.enqueue("orders", b"x")
    site = Site(guarded)
    try:
        assert site.sign_in(SEER).status == 303
        page = site.get("/push/shop?ns=shop")
        assert page.status == 200
        assert facts(page)["To"] == f"POST {URL}"
        assert "by root" in page.said
        assert "Ready 1" in page.said
        assert "Dead letters are for tokens with the right admin ." in page.said
        assert "HTTP 410" not in page.text
        assert "Its settings entry" in page.said
        assert "New push target" not in site.get("/push?ns=shop").said
        assert [site.get(f"{path}?ns=other").status for path in ("/push", "/push/shop")] == [403, 403]
    finally:
        site.close()
