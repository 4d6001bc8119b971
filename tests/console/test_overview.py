"""The overview: the verdict with its links, and the items of all topics of the namespace."""

import re
from html import escape

import pytest

from foqs.client import Client, ItemSpec
from foqs.console.view import path_of
from foqs.testing import Server
from tests.console.asgi import Site
from tests.console.rig import CHIEF, HOSTILE, ROOT, SEER, client, guarded, service, site

__all__ = ["client", "guarded", "service", "site"]  # fixtures
pytestmark = pytest.mark.threads


def fail(client: Client, topic: str, failed: int, acked: int) -> None:
    client.enqueue_many([ItemSpec(topic, b"x")] * (failed + acked))
    for at, item in enumerate(client.dequeue(topic, failed + acked)):
        if at < failed:
            client.nack(item, failed=True, reason="SMTP 451")
        else:
            client.ack(item)


def test_items_of_all_topics_are_counted(site: Site, client: Client, service: Server) -> None:
    """Of more topics than one answer of the service lists."""
    client.enqueue("b-old", b"x")
    client.enqueue("c-old", b"x", delay_ms=60_000)
    service.advance(seconds=100)
    client.enqueue_many([ItemSpec(f"t-{number:04}", b"x") for number in range(1_100)])
    client.enqueue_many([ItemSpec("z", b"x", delay_ms=60_000)] * 2)
    client.dequeue("t-1099")
    answer = site.get("/")
    assert re.findall(r"<dt>(\w+)</dt><dd><b>([\d,]+)</b>", answer.text)[:3] == [
        ("Ready", "1,101"),
        ("Delayed", "2"),
        ("Leased", "1"),
    ]
    assert [row[0] for row in answer.rows if row[1].startswith("≤")][:2] == ["b-old", "c-old"]
    assert len([row for row in answer.rows if row[1].startswith("≤")]) == 5


def test_a_namespace_without_items(site: Site) -> None:
    text = site.get("/?ns=empty").text
    assert re.findall(r"<dt>(\w+)</dt><dd><b>([\d,]+)</b>", text)[:3] == [
        ("Ready", "0"),
        ("Delayed", "0"),
        ("Leased", "0"),
    ]
    assert "Oldest ready items" not in text


def test_failed_attempts_lead_to_what_fails(site: Site, client: Client, service: Server) -> None:
    fail(client, "mail", 15, 20)
    assert "attempts of the last 10 minutes failed" not in site.get("/").text
    fail(client, "mail", 5, 0)
    answer = site.get("/")
    assert "topic default/mail: 20 of 40 attempts of the last 10 minutes failed, most with SMTP 451" in answer.said
    assert 'href="/topics/mail?ns=default#failing"><bdi>What fails' in answer.text
    assert 'id="failing"' in site.get("/topics/mail").text
    service.advance(minutes=11)
    assert "attempts of the last 10 minutes failed" not in site.get("/").text


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_reason_leads_to_its_topic(site: Site, client: Client, service: Server, topic: str) -> None:
    """Also in another namespace than that of the page."""
    with Client(client.address, "a&b") as other:
        fail(other, topic, 20, 0)
    href = path_of("/topics", "topic", topic)
    text = site.get("/").text
    assert f'href="{escape(href)}{"&amp;" if "?" in href else "?"}ns=a%26b#failing"' in text
    assert "<script>alert" not in text and "<img" not in text


@pytest.mark.process
def test_a_user_sees_the_reasons_of_its_namespaces(guarded: str) -> None:
    for token, ns, seen in ((CHIEF, "shop", True), (CHIEF, "other", False), (SEER, "shop", False)):
        site = Site(guarded)
        with Client(guarded, ns, token=ROOT) as client:
            fail(client, f"mail-{token[8:12]}-{ns}", 20, 0)
        assert site.sign_in(token).status == 303
        assert (f"mail-{token[8:12]}-{ns}: 20 of 20" in site.get("/?ns=shop").said) is seen
        site.close()
