"""The topics of a namespace, and one topic: figures equal those of the service, and changes change it."""

import json
import re
from html import escape, unescape

import pytest

from foqs.client import Client, FailureCause, ItemSpec
from foqs.console.pages.topics import PAGE_TOPICS
from foqs.console.view import path_of
from foqs.fairness import topic_rates
from foqs.testing import Server
from tests.console.asgi import Site, words
from tests.console.rig import client, service, site
from tests.support.html import Page

__all__ = ["client", "service", "site"]  # fixtures
pytestmark = pytest.mark.threads

HOSTILE = ("..", ".", "a/b", "a?b=c#d", "<script>alert(1)</script>", '"><img src=x>', "a b\u202ec", "ünï", "%2e%2e")


def names(text: str) -> list[str]:
    return re.findall(r'<td class="name"><a href="[^"]*"><bdi>(.*?)</bdi>', text)


def test_counts_equal_those_of_the_service(site: Site, client: Client) -> None:
    for number in range(7):
        client.enqueue("mail", b"x", delay_ms=60_000 if number < 2 else None)
    client.dequeue("mail", count=3)
    client.enqueue("other", b"x")
    page = Page(site.get("/topics").text)
    assert page.row("mail")[1:5] == ["2", "0", "2", "3"]
    assert page.row("other")[1:5] == ["1", "0", "0", "0"]
    one = site.get("/topics/mail").text
    assert re.findall(r"<dt>(\w+)</dt><dd><b>(\d+)</b>", one)[:3] == [("Ready", "2"), ("Delayed", "2"), ("Leased", "3")]


def test_rates_equal_those_of_the_service(site: Site, client: Client, service: Server) -> None:
    for topic, items in (("mail", 90), ("fast", 6)):
        client.enqueue_many([ItemSpec(topic, b"x")] * items)
    for item in client.dequeue("fast", 6):
        client.ack(item)
    for item in client.dequeue("mail", 30):
        client.nack(item, failed=True, reason="SMTP 451")
    service.advance(seconds=10)
    rows = Page(site.get("/topics").text)
    assert rows.row("mail")[6:10] == ["1.5", "0.5", "0", "30"]
    assert rows.row("fast")[1:10] == ["0", "0", "0", "0", "–", "0.1", "0.1", "0.1", "0"], "it has no items, but traffic"
    assert names(site.get("/topics?order=failed").text) == ["mail", "fast"]
    assert names(site.get("/topics?order=delivered").text) == ["mail", "fast"]
    one = re.findall(r"<dt>(\w+)</dt><dd><b>([^<]+)</b>", site.get("/topics/mail").text)
    assert one[4:] == [("In", "1.5/s"), ("Delivered", "0.5/s"), ("Acked", "0/s"), ("Failed", "30/min")]
    service.advance(seconds=60)
    assert names(site.get("/topics").text) == ["mail"]
    assert Page(site.get("/topics").text).row("mail")[6:10] == ["0", "0", "0", "0"]


def test_rates_that_are_not_known_are_no_zeros(
    site: Site, client: Client, service: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rates, "MOST_TOPICS", 0)
    client.enqueue("mail", b"x")
    service.advance(seconds=10)
    assert Page(site.get("/topics").text).row("mail")[6:10] == ["–"] * 4
    assert site.get("/topics/mail").said.count("– not known") == 3


def test_paused_and_closed_topics_are_marked(site: Site, client: Client) -> None:
    for topic in ("held", "open", "shut"):
        client.enqueue(topic, b"x")
    client.set_policy("held", {"paused": True})
    client.set_policy("shut", {"closed": True})
    rows = {row[0] for row in site.get("/topics").rows}
    assert rows == {"held paused", "open", "shut closed"}


def test_what_fails_has_its_share_and_workers(site: Site, client: Client, service: Server) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 8)
    for worker, failed in (("one", 1), ("two", 2), ("<b>", 1), ("fine", 0)):
        for at, item in enumerate(client.dequeue("mail", 2, worker=worker)):
            if at < failed:
                client.nack(item, reject=worker == "one", failed=worker != "one", reason=f"SMTP {worker}")
            else:
                client.ack(item)
    since = service.now
    client.enqueue_many([ItemSpec("mail", b"x")] * 2)
    for worker in ("three", "four"):
        for item in client.dequeue("mail", worker=worker):
            client.nack(item, failed=True, reason="SMTP two")
    answer = site.get("/topics/mail")
    rows = {row[1]: row for row in answer.rows if row[1:2] and row[1].startswith("SMTP")}
    assert rows["SMTP two"][2:6] == ["4", "4", "4", "40 %"]
    assert rows["SMTP two"][6].startswith(f"{since:%Y-%m-%d %H:%M}")
    assert rows["SMTP one"][8] == "1", "a dead letter"
    assert [rows[f"SMTP {worker}"][10] for worker in ("one", "<b>")] == ["one", "<b>"]
    assert sorted(rows["SMTP two"][10].split()) == ["3", "four", "three", "two", "workers"]
    assert "<b></b>" not in answer.text and "&lt;b&gt;" in answer.text


def test_the_list_counts_the_consumers(site: Site, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x"), ItemSpec("mail", b"x"), ItemSpec("idle", b"x")])
    for worker in ("a", "b"):
        client.dequeue("mail", worker=worker)
    client.dequeue("drained", worker="a")
    rows = {row[0]: row[10] for row in site.get("/topics").rows}
    assert rows == {"mail": "2 of topic mail", "idle": "0"}


def test_the_list_says_how_many_items_are_held_back(site: Site, client: Client) -> None:
    client.put_settings({"topic.paused": '{"paused": true}'})
    client.enqueue_many([ItemSpec("paused", b"x"), ItemSpec("paused", b"x"), ItemSpec("free", b"x")])
    rows = {row[0]: row[2] for row in site.get("/topics").rows}
    assert rows == {"paused paused": "2", "free": "0"}


def test_pages_have_each_topic_once(site: Site, client: Client) -> None:
    wanted = [f"t-{number:04}" for number in range(2 * PAGE_TOPICS + 1)]
    for topic in wanted:
        client.enqueue(topic, b"x")
    found, path = [], "/topics"
    while path:
        text = site.get(path).text
        found += names(text)
        following = re.search(r'<a rel="next" href="([^"]*)"', text)
        path = "" if following is None else following[1].replace("&amp;", "&")
    assert found == wanted


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("order=ready", ["many", "some", "late"]),
        ("order=delayed", ["late", "many", "some"]),
        ("order=nonsense", ["late", "many", "some"]),
        ("part=ME", ["some"]),
        ("part=none-of-them", []),
    ],
)
def test_topics_are_ordered_and_found(site: Site, client: Client, query: str, wanted: list[str]) -> None:
    for topic, ready, delayed in (("many", 3, 0), ("some", 2, 0), ("late", 0, 1)):
        for number in range(ready + delayed):
            client.enqueue(topic, b"x", delay_ms=60_000 if number < delayed else None)
    assert names(site.get(f"/topics?{query}").text) == wanted


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_name_is_text_and_leads_to_its_topic(site: Site, client: Client, topic: str) -> None:
    client.enqueue(topic, b"x")
    shown = escape(topic if topic.isprintable() else repr(topic))
    text = site.get("/topics").text
    assert [name.replace("&#34;", "&quot;").replace("&#39;", "&#x27;") for name in names(text)] == [shown]
    assert "<script>alert" not in text
    assert "<img" not in text
    link = re.search(r'<td class="name"><a href="([^"]*)"', text)
    assert link is not None
    one = site.get(link[1])
    assert one.status == 200
    assert re.search(r"<dt>Ready</dt><dd><b>1</b>", one.text), "the page is about another topic"
    assert f'hx-get="{link[1]}"' in one.text
    assert f'name="back" value="{link[1]}"' in one.text


def test_a_topic_without_items_says_so(site: Site) -> None:
    assert "No topic of the namespace has items or traffic." in site.get("/topics").text
    assert "The topic has no items." in site.get(path_of("/topics", "topic", "nothing")).text


def section(text: str, title: str) -> str:
    """The words of a section, "" without one."""
    found = re.search(rf"<section[^>]*><h2>{title}</h2>(.*?)</section>", text, re.DOTALL)
    return "" if found is None else words(found[1])


def links(text: str) -> list[str]:
    return [unescape(link) for link in re.findall(r'<a id="reason-[^"]*" href="([^"]*)"', text)]


def test_a_topic_at_its_rate_says_what_holds_items_back(site: Site, client: Client) -> None:
    client.put_settings({"throttle.smtp:*": '{"per_second": 0.05, "burst": 1}'})
    client.enqueue_many([ItemSpec("mail", b"x", fairness_key="acme", throttle_keys=["smtp:gmx"])] * 3)
    client.ack(client.dequeue("mail", 3)[0])
    client.dequeue("mail", 3)
    answer = site.get("/topics/mail")
    assert "Throttle key 'smtp:gmx' has no token here" in section(answer.text, "What holds items back")
    assert "Why no item is delivered" not in answer.said
    assert "/throttles?prefix=smtp%3Agmx" in links(answer.text)
    assert "0 not held back, 2 wait for throttles" in answer.said
    row = Page(answer.text).row("acme")
    assert [cell.strip() for cell in row[4:]] == ["2", "2", "throttle smtp:gmx"]
    assert '<a id="tenant-1-1" href="/throttles?prefix=smtp%3Agmx">' in answer.text


def test_a_pause_of_the_topic_is_why_no_item_is_delivered(site: Site, client: Client) -> None:
    client.enqueue("mail", b"x", fairness_key="acme")
    client.put_settings({"topic.m*": '{"paused": true}'})
    answer = site.get("/topics/mail")
    assert "The settings entry topic.m* pauses the topic" in section(answer.text, "Why no item is delivered")
    assert links(answer.text)[:2] == ["/settings/entry?key=topic.m%2A", "/changes?prefix=topic.m%2A"]
    assert "0 not held back, 1 are paused" in answer.said
    assert [cell.strip() for cell in Page(answer.text).row("acme")[4:]] == ["1", "1", "the end of the topic's pause"]


def test_items_of_a_paused_tenant_are_held_back(site: Site, client: Client) -> None:
    for tenant in ("acme", "globex"):
        client.enqueue_many([ItemSpec("mail", b"x", fairness_key=tenant)] * 2)
    client.put_settings({"topic.mail": '{"paused_tenants": ["acme"]}'})
    answer = site.get("/topics/mail")
    assert [cell.strip() for cell in Page(answer.text).row("globex")[4:]] == ["2", "0", "–"]
    row = next(row for row in answer.rows if row[0].startswith("acme"))
    assert row[4:] == ["2", "2", "the end of its pause"]
    assert "1 of 2 tenants with ready items is paused" in answer.said
    assert "2 not held back, 2 are paused" in answer.said


def test_a_name_without_a_topic_is_no_topic(site: Site, client: Client) -> None:
    client.enqueue("mail", b"x")
    client.put_settings({"topic.mails": '{"max_attempts": 3}', "topic.mai*": '{"max_attempts": 4}'})
    answer = site.get("/topics/mial")
    assert "No topic mial is known in namespace default" in answer.said
    near = re.findall(r'<a id="near-\d" href="([^"]*)"', answer.text)
    assert near == ["/topics/mail", "/topics/mails"]
    assert "<dt>Ready</dt>" not in answer.text
    for known in ("mail", "mails", "mail.dlq"):
        assert "is known in namespace" not in site.get(f"/topics/{known}").said, known
    client.dequeue("asked")
    assert "is known in namespace" not in site.get("/topics/asked").said, "a consumer asks for it"
    assert "Did you mean" not in site.get("/topics/zzzzzz").said


def test_a_topic_has_failures_tenants_and_a_policy(site: Site, client: Client) -> None:
    client.put_settings({"topic.mail": json.dumps({"max_attempts": 9, "fair": {"weights": {"acme": 3}}})})
    for tenant in ("acme", "<b>"):
        client.enqueue("mail", b"x", fairness_key=tenant)
    item = client.dequeue("mail")[0]
    client.nack(item, failed=True, reason="SMTP 451 <i>later</i>")
    text = site.get("/topics/mail").text
    assert "SMTP 451 &lt;i&gt;later&lt;/i&gt;" in text
    assert FailureCause.FAILED.name.lower() in text
    page = Page(text)
    assert page.row("acme")[1] == "3"
    assert page.row("max_attempts")[1:3] == ["9", "topic.mail"]
    assert "&lt;b&gt;" in text
    assert "<b></b>" not in text


def test_a_topic_is_paused_and_closed_and_opened_again(site: Site, client: Client) -> None:
    client.enqueue("mail", b"x")
    for action, field in (("pause", "paused"), ("close", "closed")):
        answer = site.post(f"/topics/{action}", {"topic": "mail", "to": "on", "back": "/topics/mail"})
        assert (answer.status, answer.headers["location"]) == (303, "/topics/mail")
        assert getattr(client.topic_stats("mail"), field) is True
        assert f"Topic mail is {field}" in site.get("/topics/mail").text
        assert f"Topic mail is {field}" not in site.get("/topics/mail").text, "a notice is shown once"
        site.post(f"/topics/{action}", {"topic": "mail", "to": "off", "back": "/topics/mail"})
        assert getattr(client.topic_stats("mail"), field) is False


def test_a_form_that_is_sent_twice_enqueues_one_item(site: Site, client: Client) -> None:
    def fields() -> dict[str, str]:
        found = re.search(r'name="once" value="(\w+)"', site.get("/topics/mail").text)
        assert found is not None
        return {"topic": "mail", "payload": "x", "priority": "0", "delay_s": "0", "once": found[1], "back": "/"}

    form = fields()
    for sent in (form, form):
        assert site.post("/topics/enqueue", sent).status == 303
    (item,) = client.list_items("mail")
    assert f"sent twice: an item was stored in topic mail once: item {item.id}" in site.get("/topics/mail").said
    site.post("/topics/enqueue", form | {"payload": "y"})
    site.post("/topics/enqueue", fields())
    assert sorted(item.payload for item in client.list_items("mail")) == [b"x", b"x", b"y"]


def test_an_item_is_enqueued(site: Site, client: Client) -> None:
    fields = {"topic": "mail", "payload": "a\r\nb", "priority": "-3", "delay_s": "0", "fairness_key": "acme"}
    assert site.post("/topics/enqueue", fields).status == 303
    (item,) = client.list_items("mail")
    assert (item.payload, item.priority, item.fairness_key) == (b"a\nb", -3, "acme")
    assert str(item.id) in site.get("/topics/mail").text
    before = {"sec-fetch-site": "same-origin", "referer": "http://localhost:7780/topics/mail?ns=default"}
    wrong = site.post("/topics/enqueue", fields | {"priority": "urgent"}, before)
    assert '<a href="/topics/mail?ns=default">Back to the page</a>' in wrong.text
    for referer in ("x://y", "http://[", "//evil.example/x"):
        answer = site.post("/topics/enqueue", fields | {"priority": ""}, before | {"referer": referer})
        assert (answer.status, "evil" in answer.text) == (400, False)
    assert (site.get("/topics/pause").status, site.get("/items/all/delete").status) == (200, 404)
    assert (wrong.status, "Priority: &#39;urgent&#39; is no whole number" in wrong.text) == (400, True)
    assert len(list(client.list_items("mail"))) == 1
