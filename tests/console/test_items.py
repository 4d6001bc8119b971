"""The pages of items: the search with its reasons, and one item."""

from __future__ import annotations

import itertools
import re
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from foqs.client import AsyncClient, Client, Extension, Forbidden, ItemRules, ItemSpec, NotFound, Progress
from foqs.store.maintenance import create_schema
from foqs.testing import Server
from tests.api.hosts import HostProcess
from tests.console.asgi import Answer
from tests.console.browser import Browser, browser, client, service

__all__ = ["browser", "client", "service"]  # fixtures
pytestmark = pytest.mark.threads
HOSTILE = "<script>alert('x')</script>\"&\u202e"
BIG = 12_345_678_901_234_567_890


def ids(answer: Answer) -> list[str]:
    return re.findall(r'<a href="[^"]*/items/(\d+)', answer.text)


# --------------------------------------------------------------------------------------------- the search


def test_a_page_without_conditions_asks_for_one(browser: Browser) -> None:
    answer = browser.get("/items")
    assert answer.status == 200
    assert "Give a condition: a topic, an id, a tenant, a header or another one." in answer.said
    assert "KEY=VALUE, one in a line; the whole value, in the same case" in answer.said


def test_each_condition_selects_the_items_that_meet_it(browser: Browser, client: Client, service: Server) -> None:
    old = client.enqueue("t", b"x", priority=-7, fairness_key="acme", headers={"kind": "a=b", "size": "1"})
    service.advance(minutes=10)
    late = client.enqueue("t", b"x", delay_ms=60_000)
    client.enqueue("t2", b"x")
    failed = client.enqueue("t", b"x", priority=3)
    (item,) = [item for item in client.dequeue("t", 2, worker="w") if item.id == failed]
    client.nack(item, failed=True, reason="SMTP 451", delay_ms=60_000)
    (kept,) = [item for item in client.list_items("t") if item.id == old]
    assert kept.state is not None

    def found(**query: Any) -> set[int]:
        answer = browser.get("/items", topic="t", **query)
        assert answer.status == 200
        return set(map(int, ids(answer)))

    assert found() == {old, late, failed}
    assert found(state="delayed") == {late, failed}
    assert found(state="leased") == {old}
    assert found(tenant="acme") == {old}
    assert found(keyless="1") == {late, failed}
    assert found(priority="3") == {failed}
    assert found(priority="..0") == {old, late}
    assert found(priority="0..9") == {late, failed}
    assert found(older="5m") == {old}
    assert found(newer="5m") == {late, failed}
    assert (
        found(header="kind=a=b") == found(header="kind=a=b\r\nsize=1") == found(header=["kind=a=b", "size=1"]) == {old}
    )
    assert found(header="kind=a") == set()
    assert found(failure="451") == {failed}
    assert found(failure="smtp") == set()
    assert found(state="delayed", keyless="1", failure="SMTP 4") == {failed}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"older": "soon"}, "Older than: 'soon' is no duration"),
        ({"newer": "5"}, "Newer than: '5' is no duration"),
        ({"priority": "high"}, "Priority: 'high' is no whole number"),
        ({"priority": ".."}, "Priority: the range has no end"),
        ({"priority": "5..1"}, "min_priority is 5, more than max_priority, 1"),
        ({"state": "lost"}, "State: 'lost' is no state"),
        ({"header": "kind"}, "Headers: 'kind' is not KEY=VALUE"),
        ({"tenant": "a", "keyless": "1"}, "Tenant: give a fairness key, or ask for items without one"),
        ({"id": "x"}, "'x' is not an item id"),
        ({"cursor": "x"}, "cursor"),
    ],
)
def test_a_wrong_condition_is_an_error_of_its_field(browser: Browser, query: dict[str, str], said: str) -> None:
    answer = browser.get("/items", topic="t", **query)
    assert answer.status == 200
    assert said in answer.said
    assert 'value="t"' in answer.text, "what the user gave stays in the form"


def test_an_item_is_found_by_its_id_in_any_namespace(browser: Browser, client: Client, service: Server) -> None:
    here = client.enqueue("t", b"x", dedup_key="order 1")
    with Client(service.address, "elsewhere", routing=False) as other:
        there = other.enqueue("u", b"x")
    assert ids(browser.get("/items", id=f" {here} ")) == ids(browser.get("/items", id=hex(here))) == [str(here)]
    assert ids(browser.get("/items", dedup="order 1")) == [str(here)]
    answer = browser.get("/items", id=there, topic="t")
    assert answer.rows[0][-1] == "elsewhere"
    assert "The id names one item: the other conditions do not count." in answer.said
    assert "There is no such item: shard" in browser.get("/items", id=there + 1).said
    assert "No item of the namespace has this dedup key" in browser.get("/items", dedup="order").said


def test_rows_have_the_fields_and_the_reason(browser: Browser, client: Client) -> None:
    leased = client.enqueue("t", b"x", priority=2, fairness_key="acme", throttle_keys=["smtp", "gpu"])
    client.dequeue("t", worker="w:1", lease_ms=60_000)
    delayed = client.enqueue("t", b"x", delay_ms=7_200_000)
    kept = client.enqueue("k", b"x", rules=ItemRules(keep_ms=60_000))
    client.ack(client.dequeue("k")[0])
    rows = {row[1]: row[2:] for row in browser.get("/items", topic="t").rows}
    assert rows[str(leased)][:8] == ["leased", "2", "1", "0", "1 min", "acme", "gpu smtp", "–"]
    assert rows[str(leased)][8].startswith("Worker w:1 has leased it")
    assert rows[str(delayed)] == ["delayed", "0", "0", "0", "2 h", "–", "–", "–", "Its delay ends in 2.0 h."]
    (ended,) = browser.get("/items", topic="k").rows
    assert (ended[1], ended[2], ended[-1]) == (str(kept), "completed", "–")


def why_of(browser: Browser, item_id: int) -> str:
    """What the row of an item says about its wait."""
    (row,) = [row for row in browser.get("/items", topic="t").rows if row[1] == str(item_id)]
    return row[-1]


def test_a_row_has_the_root_cause(browser: Browser, client: Client) -> None:
    """An item behind items that wait for a throttle waits for it, too."""
    client.put_settings({"throttle.smtp:*": '{"per_second": 0.05, "burst": 2}'})
    stored = client.enqueue_many([ItemSpec("t", b"x", throttle_keys=["smtp:gmx"])] * 5)
    assert why_of(browser, stored[-1]).startswith("No consumer waits for the topic")
    client.dequeue("t", 1)
    assert why_of(browser, stored[-1]) == (
        "Throttle key 'smtp:gmx': 0.05 deliveries a second, 2 at once; 1 token is here: about 1.0 min at 0.05 a second "
        "with 3 before it. throttle smtp:gmx"
    )
    client.dequeue("t", 5)
    dry = why_of(browser, stored[-1])
    assert dry.startswith("Throttle key 'smtp:gmx' has no token here: this item gets its token in about 1.0 min, after")
    client.put_settings({"topic.t": '{"paused": true}'})
    assert why_of(browser, stored[-1]).startswith("The settings entry topic.t pauses the topic")
    answer = browser.get("/items", topic="t")
    row = rf'<a id="why-{stored[-1]}-1" href="/settings/entry\?ns={browser.ns}&amp;key=topic.t">'
    assert re.search(row, answer.text)


def test_an_item_has_links_to_what_holds_it(browser: Browser, client: Client) -> None:
    client.put_settings({"throttle.smtp:*": '{"per_second": 0.05, "burst": 1}'})
    stored = client.enqueue_many([ItemSpec("t", b"x", throttle_keys=["smtp:gmx"])] * 3)
    client.dequeue("t", 3)
    answer = browser.get(f"/items/{stored[-1]}")
    assert "this item gets its token in about" in answer.said
    for link in ("reason-1-1", "limit-1-1"):
        assert f'<a id="{link}" href="/throttles?ns={browser.ns}&amp;prefix=smtp%3Agmx">' in answer.text
    (reason,) = re.findall(r"<li><bdi>Throttle key.*?</li>", answer.text)
    assert "until" not in reason, "the next token is for another item"


def test_pages_follow_their_cursors(browser: Browser, client: Client) -> None:
    stored = client.enqueue_many([ItemSpec("t", b"x", headers={"n": "1"})] * 120)
    answer, seen = browser.get("/items", topic="t", header="n=1"), list[str]()
    pages = 0
    while True:
        seen += ids(answer)
        pages += 1
        following = re.search(r'id="next-page" rel="next" href="([^"]*)"', answer.text)
        if following is None:
            break
        answer = browser.get(following[1].replace("&amp;", "&"))
    assert (pages, seen) == (3, list(map(str, stored)))
    first = re.search(r'id="first-page" href="([^"]*)"', answer.text)
    assert first is not None
    assert ids(browser.get(first[1].replace("&amp;", "&"))) == seen[:50]


def test_an_empty_page_says_how_far_it_looked(
    browser: Browser, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs.api.lookups.MOST_LOOKED_AT", 20)
    client.enqueue_many([ItemSpec("t", b"x", headers={"n": str(at)}) for at in range(25)])
    answer = browser.get("/items", topic="t", header="n=24")
    assert "No match among the 20 items looked at. Look further" in answer.said
    further = re.search(r'id="further-page" rel="next" href="([^"]*)"', answer.text)
    assert further is not None
    assert len(ids(browser.get(further[1].replace("&amp;", "&")))) == 1
    assert "The topic has no such item." in browser.get("/items", topic="none", header="n=24").said


def test_only_a_first_page_that_does_not_scan_refreshes(browser: Browser, client: Client) -> None:
    client.enqueue_many([ItemSpec("t", b"x", fairness_key="a")] * 51)

    def refreshes(answer: Answer) -> bool:
        return 'hx-trigger="foqs:refresh from:body"' in answer.text

    answer = browser.get("/items", topic="t", tenant="a", state="ready")
    assert refreshes(answer)
    following = re.search(r'id="next-page" rel="next" href="([^"]*)"', answer.text)
    assert following is not None
    assert not refreshes(browser.get(following[1].replace("&amp;", "&")))
    assert not refreshes(browser.get("/items", topic="t", priority="0"))


# --------------------------------------------------------------------------------------------- all topics


def following(answer: Answer) -> str:
    """Return the link to the next page, "" without one."""
    found = re.search(r'id="(?:next|further)-page" rel="next" href="([^"]*)"', answer.text)
    return unescape(found[1]) if found else ""


def test_a_tenant_is_found_in_all_topics(browser: Browser, client: Client) -> None:
    """The form on the page of the topics asks for it."""
    client.enqueue_many([ItemSpec("mail", b"x", fairness_key="acme")] * 7)
    pay = client.enqueue("pay", b"x", fairness_key="acme", delay_ms=60_000)
    client.enqueue("other", b"x", fairness_key="zen")
    form = browser.get("/topics").text
    assert re.search(r'action="/items">.*?name="tenant"', form, re.DOTALL)
    answer = browser.get("/items", tenant="acme")
    assert [row[1] for row in answer.rows] == ["mail"] * 5 + ["pay"]
    assert answer.rows[-1][2] == str(pay)
    assert answer.rows[-1][-1] == "Its delay ends in 1.0 min."
    assert "3 topics searched for this page" in answer.said
    assert "Further items may match in mail ." in answer.said
    link = re.search(r'id="partly-1" href="([^"]*)"', answer.text)
    assert link is not None
    assert len(ids(browser.get(unescape(link[1])))) == 7
    assert 'hx-trigger="foqs:refresh' not in answer.text
    assert 'id="all"' not in answer.text, "a change of all that match is for one topic"
    assert "No topic of the namespace has such an item." in browser.get("/items", tenant="none").said


def test_a_header_is_found_in_all_topics(browser: Browser, client: Client) -> None:
    """Each item once, over all pages."""
    topics = [f"t{at:02}" for at in range(30)] + [" a b ", "ünï/c"]
    wanted = [client.enqueue(topic, b"x", headers={"order": "7"}) for topic in topics for _ in range(3)]
    client.enqueue_many([ItemSpec(topic, b"x", headers={"order": "8"}) for topic in topics])
    answer = browser.get("/items", header="order=7")
    found, pages = ids(answer), 1
    while path := following(answer):
        answer = browser.get(path)
        assert answer.rows
        found, pages = found + ids(answer), pages + 1
    assert sorted(map(int, found)) == sorted(wanted)
    assert pages > 1
    assert "First page" in answer.said


def test_a_topic_leads_to_the_items_of_its_tenants(browser: Browser, client: Client) -> None:
    client.set_policy("mail", {"fair": {"scope": "tenant"}})
    acme = client.enqueue("mail", b"x", fairness_key="acme")
    none = client.enqueue("mail", b"x")
    text = browser.get("/topics/mail").text
    links = [unescape(one) for one in re.findall(r'id="tenant-items-\d+" href="([^"]*)"', text)]
    assert sorted(tuple(ids(browser.get(link))) for link in links) == sorted([(str(acme),), (str(none),)])


@pytest.mark.parametrize("bound", ["time", "items"])
def test_a_search_in_all_topics_is_bounded(
    browser: Browser, client: Client, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time, and in items: a topic with more of them is searched alone."""
    client.enqueue_many([ItemSpec(f"t{at:02}", b"x", headers={"n": str(at)}) for at in range(20) for _ in range(3)])
    if bound == "time":
        clock = itertools.count()
        monkeypatch.setattr("foqs.console.pages.items.monotonic", lambda: float(next(clock)))
    else:
        monkeypatch.setattr("foqs.console.pages.items._MOST_LOOKED_AT", 2)
    answer, searched = browser.get("/items", header="n=19"), list[int]()
    while True:
        (number,) = re.findall(r"(\d+) topics? searched", answer.said)
        searched.append(int(number))
        if not following(answer):
            break
        assert "No match among the" in answer.said
        answer = browser.get(following(answer))
    assert searched == ([8, 8, 4] if bound == "time" else [1] * 20)
    assert [row[1] for row in answer.rows] == ["t19"] * 3


def test_texts_of_users_are_texts_of_the_page(browser: Browser, client: Client) -> None:
    name = " " + HOSTILE.replace("\u202e", "") + " "  # a name has no character that changes the order of the text
    client.enqueue(name, b"x", fairness_key=name, throttle_keys=[name], headers={HOSTILE: HOSTILE})
    (item,) = client.dequeue(name, worker=name)
    client.nack(item, failed=True, reason=HOSTILE, delay_ms=60_000)
    for answer in (
        browser.get("/items", topic=name),
        browser.get("/items", topic=name, failure=HOSTILE, header=f"{HOSTILE}={HOSTILE}", tenant=name),
        browser.get("/items", topic=name, priority=name),
        browser.get("/items", tenant=name),
        browser.get(f"/items/{item.id}"),
    ):
        assert answer.status == 200
        assert "<script>alert" not in answer.text
        assert "<script>alert(" in answer.said
        assert "\u202e" not in re.sub(r"<(input|textarea).*?>.*?(</textarea>|$)", "", answer.text, flags=re.M | re.S)


class _Vanishing(AsyncClient):
    """A client of a console whose items end between the list and the explanation."""

    async def explain(self, item_id: Any, **options: Any) -> Any:
        await self.delete_items([item_id])
        return await super().explain(item_id, **options)


class _Away(AsyncClient):
    async def explain(self, item_id: Any, **options: Any) -> Any:
        raise NotFound("no such item")


class _Denied(AsyncClient):
    async def search_items(self, *args: Any, **options: Any) -> Any:
        raise Forbidden("p has no right admin in the namespace 'n'")


@pytest.mark.parametrize("kind", [_Vanishing, _Away])
def test_an_item_that_ends_after_the_list_is_gone(service: Server, client: Client, kind: type[AsyncClient]) -> None:
    stored = client.enqueue("t", b"x")
    browser = Browser(service.address, client.namespace, kind)
    (row,) = browser.get("/items", topic="t").rows
    browser.close()
    assert (row[1], row[-1]) == (str(stored), "gone since the page was listed")


def test_a_caller_without_the_right_reads_that(service: Server, client: Client) -> None:
    client.enqueue("t", b"x")
    browser = Browser(service.address, client.namespace, _Denied)
    answer = browser.get("/items", topic="t")
    browser.close()
    assert "To look at items needs the right admin ." in answer.said
    assert answer.rows == []


# --------------------------------------------------------------------------------------------- one item


def test_an_item_has_all_its_fields(browser: Browser, client: Client, service: Server) -> None:
    stored = client.enqueue(
        "t", b"secret", priority=-3, fairness_key="acme", throttle_keys=["smtp"], ttl_ms=86_400_000, metadata=b"123",
        headers={"kind": "a", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        rules=ItemRules(max_attempts=4),
    )  # fmt: skip
    for attempt in range(2):
        (item,) = client.dequeue("t", worker=f"w:{attempt}", lease_ms=60_000)
        if not attempt:
            client.nack(item, failed=True, reason="broken\nat line 7", delay_ms=1_000)
            service.advance(seconds=1)
    given: Any = {"checkpoint": b"12345", "progress": Progress(1, 4), "log": ["one", "two"], "durable": True}
    assert client.extend_many([Extension(item.id, item.lease, **given)]) == [None]
    answer = browser.get(f"/items/{stored}")
    assert answer.status == 200
    for text in (
        f"Item {stored}", "leased", f"Namespace {client.namespace}", "Topic t", "Priority -3", "Attempt 2",
        "Tenant (fairness key) acme", "Throttle keys smtp", "Metadata 3 B", "Payload 6 B", "Delivery at least once",
        "Trace 0af7651916cd43dd8448eb211c80319c", "Worker w:1 has leased it", "max_attempts 4", "kind a",
        "1 of 4 (25 %)", "Checkpoint: 5 B", "one two", "Last failed attempt", "Cause failed Worker w:0",
        "broken at line 7", "A consumer works on it. Its lease ends at",
    ):  # fmt: skip
        assert text in answer.said, text
    assert '<progress aria-label="Progress" max="4" value="1">' in answer.text
    assert "secret" not in answer.text


def test_an_item_leads_to_its_trace(client: Client, service: Server) -> None:
    traced = client.enqueue(
        "t", b"x", headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    )
    hostile = client.enqueue("t", b"x", headers={"traceparent": '00-"><b>-b7ad6b7169203331-01'})
    browser = Browser(service.address, client.namespace, trace_url="https://traces.example/{trace_id}?tab=spans")
    link = 'href="https://traces.example/0af7651916cd43dd8448eb211c80319c?tab=spans" rel="noreferrer"'
    assert link in browser.get(f"/items/{traced}").text
    assert "traces.example" not in browser.get(f"/items/{hostile}").text
    browser.close()


def test_the_state_is_said_with_its_time(browser: Browser, client: Client, service: Server) -> None:
    ready, delayed = client.enqueue("r", b"x"), client.enqueue("d", b"x", delay_ms=60_000)
    client.put_settings({"topic.k": '{"keep": {"failed_ms": 60000}, "dead": null, "max_attempts": 1}'})
    done, failed = (client.enqueue("k", b"x", rules=ItemRules(keep_ms=60_000)) for _ in range(2))
    for item in client.dequeue("k", 2):
        if item.id == done:
            client.ack(item, result=b'{"n":12345678901234567890}')
        else:
            client.nack(item, failed=True, reason="no luck")
    at = service.now.strftime("%Y-%m-%d %H:%M:%S UTC")
    assert f"A consumer may lease it now, and since {at} (now)." in browser.get(f"/items/{ready}").said
    assert ", in 1 min." in browser.get(f"/items/{delayed}").said
    answer = browser.get(f"/items/{done}")
    assert f"It was acked at {at} (now), and its topic keeps it for a time." in answer.said
    assert 'Result { "n": 12345678901234567890 }' in answer.said
    answer = browser.get(f"/items/{failed}")
    assert f"It failed for good at {at} (now)" in answer.said
    assert "no luck" in answer.said


def test_a_dead_letter_says_why(browser: Browser, client: Client) -> None:
    rules = ItemRules(max_attempts=1, dead_topic="t.dlq")
    stored = client.enqueue("t", b"x", fairness_key="acme", throttle_keys=["smtp"], rules=rules)
    client.nack(client.dequeue("t", worker="w:1")[0], failed=True, reason="KeyError: 'x'")
    answer = browser.get(f"/items/{stored}")
    assert "Topic t.dlq" in answer.said
    for text in (
        "A dead letter: it stays in t.dlq until",
        "Attempts 1 Worker w:1 From topic t Tenant there acme Throttle keys there smtp",
    ):
        assert text in answer.said
    assert "KeyError: 'x'" in answer.said
    (row,) = browser.get("/items", topic="t.dlq").rows
    assert row[7:10] == ["acme", "smtp", "failed : KeyError: 'x'"]
    of_tenant = browser.get("/items", topic="t.dlq", tenant="acme")
    assert of_tenant.rows == []
    for text, link in ((answer.text, "group"), (of_tenant.text, "dead-of-tenant")):
        (url,) = re.findall(rf'<a id="{link}" href="([^"]*)"', text)
        assert "1 dead letter in 1 group" in browser.get(unescape(url)).said


def test_the_page_of_an_item_is_in_its_namespace(browser: Browser, client: Client, service: Server) -> None:
    with Client(service.address, "elsewhere", routing=False) as other:
        there = other.enqueue("u", b"x")
    answer = browser.get(f"/items/{there}", payload="hex")
    assert (answer.status, answer.headers["location"]) == (303, f"/items/{there}?ns=elsewhere&payload=hex")


def test_an_item_that_is_gone_is_a_page_about_that(browser: Browser, client: Client) -> None:
    stored = client.enqueue("t", b"x")
    client.delete_items([stored])
    assert browser.get(f"/items/{stored}").status == 404
    assert browser.get("/items/7x").status == 400


@pytest.mark.process
def test_a_user_reaches_the_items_of_its_rights_alone(tmp_path: Path) -> None:
    """The ids are above 2^53: JavaScript would round them."""
    url = f"sqlite:///{tmp_path / 'shard.db'}"
    create_schema(url, 40)
    config, principals = tmp_path / "foqs.toml", tmp_path / "principals.toml"
    tokens = {name: f"{name}-{'x' * 40}" for name in ("both", "one", "none")}
    digests = {name: sha256(token.encode()).hexdigest() for name, token in tokens.items()}
    rights = {"both": '"*" = ["admin", "produce"]', "one": '"shop" = ["admin"]', "none": '"shop" = ["produce"]'}
    principals.write_text(
        "".join(
            f'[principals.{name}]\ntoken_sha256 = "{digest}"\nrights = {{ {rights[name]} }}\n'
            for name, digest in digests.items()
        )
    )
    config.write_text(
        f'[server]\nport = 0\n[[shards]]\nid = 40\nurl = "{url}"\n[auth]\nprincipals_file = "{principals}"\n'
    )
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        address = "{}:{}".format(*host.address)
        stored = {}
        for ns in ("shop", "other"):
            with Client(address, ns, token=tokens["both"], routing=False) as client:
                stored[ns] = client.enqueue("t", b"x")
        assert min(stored.values()) > 1 << 53
        browser = Browser(address, "shop")
        browser.sign_in(tokens["both"])
        assert ids(browser.get("/items", id=stored["other"])) == [str(stored["other"])]
        browser.sign_in(tokens["one"])
        assert ids(browser.get("/items", topic="t")) == [str(stored["shop"])]
        assert f"Item {stored['shop']}" in browser.get(f"/items/{stored['shop']}").said
        hidden = browser.get("/items", id=stored["other"]).said
        assert "There is no such item: it was acked or deleted" in hidden
        assert "in a namespace that you may not look at" in hidden
        assert browser.get(f"/items/{stored['other']}").status == 404
        browser.post("/items/delete", {"id": str(stored["other"]), "confirmed": "yes"})
        assert "0 items deleted. 1 item was gone before." in browser.get("/items").said
        browser.ns = "other"
        assert browser.get("/items", topic="t").rows == []
        assert browser.get(f"/items/{stored['shop']}").headers["location"] == f"/items/{stored['shop']}?ns=shop"
        browser.ns = "shop"
        browser.sign_in(tokens["none"])
        assert "needs the right admin" in browser.get("/items", topic="t").said
        assert browser.get(f"/items/{stored['shop']}", payload="text").status == 403
        browser.post("/items/delete", {"id": str(stored["shop"]), "confirmed": "yes"})
        with Client(address, token=tokens["both"], routing=False) as client:
            assert [client.get_item(item_id).topic for item_id in stored.values()] == ["t", "t"]
        browser.close()
        assert host.stop() == 0


# --------------------------------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("json", b'{"b":12345678901234567890,"a":[1.10,{}],"b":2}', f'{{ "b": {BIG}, "a": [ 1.10, {{}} ], "b": 2 }}'),
        ("json", b"[" + b"7" * 5_000 + b"]", f"[ {'7' * 5_000} ]"),
        ("json", b"{not json", "Shown as text: it is no JSON. {not json"),
        ("json", b"\xff", "Shown as text: it is no JSON, which is in UTF-8."),
        ("json", b"[" * 60_000, "Shown as text: the JSON is nested too deeply."),
        ("text", b"a\xffb", "The bytes are no valid UTF-8: \ufffd is in place of invalid ones. a\ufffdb"),
        ("text", HOSTILE.encode(), "<script>alert('x')</script>\"&\\u202e"),
        ("hex", b"\x00<b>", "00000000 00 3c 62 3e |.<b>|"),
        ("text", b"", "(empty)"),
    ],
)  # fmt: skip
def test_a_payload_is_shown_when_asked_for(
    browser: Browser, client: Client, kind: str, payload: bytes, said: str
) -> None:
    stored = client.enqueue("t", payload)
    with structlog.testing.capture_logs() as logged:
        assert "(empty)" not in browser.get(f"/items/{stored}").said
        answer = browser.get(f"/items/{stored}", payload=kind)
    assert said in answer.said
    assert "hx-get" not in answer.text
    assert [line for line in logged if line["event"] == "audit.payload"] == [
        {"event": "audit.payload", "log_level": "info", "who": "", "ns": client.namespace, "id": stored}
    ]


@pytest.mark.parametrize("kind", ["json", "text", "hex"])
def test_a_long_payload_is_cut(browser: Browser, client: Client, kind: str) -> None:
    stored = client.enqueue("t", b'["a' + "é".encode() * 40_000 + b'"]')
    answer = browser.get(f"/items/{stored}", payload=kind)
    assert "The first 64 KiB of 80,005 bytes." in answer.said
    assert "valid UTF-8" not in answer.said
    assert answer.text.count("é") == {"json": 32_766, "text": 32_766, "hex": 0}[kind]
    assert ("a page shows JSON of up to 64 KiB" in answer.said) == (kind == "json")


def test_the_copy_commands_are_quoted(browser: Browser, client: Client, service: Server) -> None:
    stored = client.enqueue("t", b"x")
    options = f"--address={service.address} --ns={client.namespace}"
    read = f"foqs item {stored} {options}"
    said = browser.get(f"/items/{stored}").said
    assert f"{read} | foqs enqueue --copy {options}" in said
    assert f"{read} | foqs enqueue --copy TOPIC {options}" in said
