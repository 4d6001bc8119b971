"""The page about consumers: its figures are the figures that the service gives, and its forms end leases."""

import re
from html import escape

import pytest

from foqs.client import Client, Delivery, ItemState
from foqs.console.pages.consumers import PAGE_CONSUMERS
from foqs.idl import idl
from foqs.testing import Server
from tests.api.wire import Wire
from tests.console.asgi import Site
from tests.console.rig import HOSTILE, client, service, site, words
from tests.support.html import Page

__all__ = ["client", "service", "site"]  # fixtures
pytestmark = pytest.mark.threads

A, B = "host-1:7", "host-2:8"


def lease(client: Client, worker: str, topic: str = "mail", items: int = 1) -> None:
    for _ in range(items):
        client.enqueue(topic, b"x")
    assert len(client.dequeue(topic, count=items, worker=worker, lease_ms=3_600_000)) == items


def row(text: str, name: str) -> list[str]:
    return [" ".join(cell.split()) for cell in Page(text).row(name)]


def held(client: Client, topic: str = "mail") -> dict[str, int]:
    return {one.worker: one.held for one in client.consumers(topic).consumers if one.held}


def test_consumers_have_their_figures(site: Site, service: Server, client: Client) -> None:
    lease(client, A, items=3)
    service.advance(seconds=90)
    lease(client, B)
    lease(client, B, "orders", 2)
    (peer,), (library,) = client.consumers().consumers[0].peers, client.consumers().consumers[0].clients
    text = site.get("/consumers").text
    assert row(text, A)[:5] == [A, "0", "3", "1.5 min", "1.5 min ago"]
    assert row(text, A)[5:9] == ["leased items of mail", peer, service.address, library]
    assert row(text, B)[:5] == [B, "0", "3", "0", "now"]
    assert text.index(A) < text.index(B), "the oldest lease first"
    assert 'href="/items?topic=mail&amp;state=leased"' in text


def test_a_topic_lists_its_consumers_alone(site: Site, client: Client) -> None:
    lease(client, A)
    lease(client, B, "orders", 2)
    text = site.get("/consumers?topic=orders").text
    assert row(text, B)[2] == "2"
    assert A not in text
    assert "All topics" in text


def test_a_handler_that_hangs_is_marked(site: Site, service: Server, client: Client) -> None:
    lease(client, A)
    host, port = service.address.split(":")
    wire = Wire((host, int(port)))
    wire.ask(
        "Dequeue", ns=client.namespace, wants=[idl.TopicCount("mail", 0, None, 2)], worker=B
    )  # as a worker reports
    wire.close()
    text = site.get("/consumers").text
    assert row(text, B)[1:3] == ["2 hung", "0"]
    assert text.index(B) < text.index(A), "hung handlers first"


def test_without_a_consumer_the_page_says_so(site: Site, client: Client) -> None:
    client.enqueue("mail", b"x")
    assert "No consumer has asked for items in the last 10 minutes" in site.get("/consumers").text


def test_a_long_list_is_bounded(site: Site, client: Client) -> None:
    for number in range(PAGE_CONSUMERS + 1):
        client.dequeue("mail", worker=f"w-{number:03}")
    text = site.get("/consumers").text
    assert f"The first {PAGE_CONSUMERS} of {PAGE_CONSUMERS + 1}" in text
    assert len([one for one in Page(text).cells if one[0].startswith("w-")]) == PAGE_CONSUMERS


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text(site: Site, client: Client, name: str) -> None:
    lease(client, name, name)
    text = site.get("/consumers").text
    shown = escape(name if name.isprintable() else repr(name)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    assert f'<td class="name"><bdi>{shown}</bdi></td>' in text
    assert "<script>alert" not in text
    assert "<img" not in text
    answer = site.post("/consumers/release", {"topic": name, "worker": name, "confirmed": "yes"})
    assert answer.status == 303
    assert held(client, name) == {}


def test_leases_of_a_worker_are_ended_after_a_question(site: Site, client: Client) -> None:
    lease(client, A, items=3)
    lease(client, B)
    fields = {"topic": "mail", "worker": A, "reason": "it hangs", "back": "/consumers"}
    question = site.post("/consumers/release", fields)
    assert f"Worker {A} holds 3 items of the topic now" in question.text
    assert "at-most-once items are removed" in question.text
    assert held(client) == {A: 3, B: 1}
    answer = site.post("/consumers/release", fields | {"confirmed": "yes"})
    assert (answer.status, answer.headers["location"]) == (303, "/consumers?topic=mail")
    assert held(client) == {B: 1}
    assert f"3 leases ended: leases of worker {A} in topic mail." in site.get("/consumers").text
    items = client.dequeue("mail", count=9)
    assert [item.attempt for item in items] == [2, 2, 2], "the attempts count"
    assert "an operator ended the lease: it hangs" in site.get(f"/items/{items[0].id}").text
    assert client.topic_stats("mail").attempts_failed_hour == 0, "no worker has failed"


def test_at_most_once_items_are_removed(site: Site, client: Client) -> None:
    client.enqueue("mail", b"x", delivery=Delivery.AT_MOST_ONCE)
    client.dequeue("mail", worker=A)
    site.post("/consumers/release", {"topic": "mail", "worker": A, "confirmed": "yes"})
    assert list(client.list_items("mail")) == []


def test_leases_older_than_a_time_are_ended(site: Site, service: Server, client: Client) -> None:
    lease(client, A)
    service.advance(minutes=10)
    lease(client, B)
    fields = {"topic": "mail", "worker": "", "age": "5", "unit": "min"}
    question = site.post("/consumers/release", fields)
    assert "End leases in topic mail, given more than 5 min ago?" in question.text
    assert site.post("/consumers/release", fields | {"confirmed": "yes"}).status == 303
    assert held(client) == {B: 1}


def test_all_leases_of_a_topic_need_its_name(site: Site, client: Client) -> None:
    lease(client, A)
    lease(client, B)
    fields = {"topic": "mail", "worker": "", "age": "", "unit": "s"}
    assert site.post("/consumers/release", fields | {"confirmed": "yes"}).status == 200
    assert "2 consumers hold 2 items" in site.post("/consumers/release", fields | {"typed": "mai"}).text
    assert held(client) == {A: 1, B: 1}
    assert site.post("/consumers/release", fields | {"typed": "mail"}).status == 303
    assert len(list(client.list_items("mail", state=ItemState.READY))) == 2


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"topic": "", "worker": A, "age": "1"}, "topic: name the topic"),
        ({"topic": "mail", "worker": "<b>", "age": "soon"}, "held for longer than: give a number, not soon"),
        ({"topic": "mail", "worker": A, "age": "-1"}, "held for longer than: give a number of 0 or more"),
        ({"topic": "mail", "worker": A, "age": "1e999"}, "held for longer than: give a number, not 1e999"),
        ({"topic": "mail", "worker": "w" * 256, "age": "3"}, "worker"),
    ],
)
def test_an_error_is_at_the_form_and_the_input_stays(
    site: Site, client: Client, fields: dict[str, str], wrong: str
) -> None:
    lease(client, A)
    answer = site.post(
        "/consumers/release", fields | {"unit": "h", "back": "/consumers?topic=mail", "confirmed": "yes"}
    )
    assert answer.status == 400
    assert re.search(rf'role="alert"><p>[^<]*{re.escape(wrong)}', answer.text)
    assert f'name="worker" value="{fields["worker"]}"' in words(answer)
    assert f'name="age" value="{fields["age"]}"' in answer.text
    assert '<option value="h" selected>' in answer.text
    assert held(client) == {A: 1}
