"""The page of a batch of items, and the members of one among the items."""

from __future__ import annotations

import re

import pytest

from foqs.client import BatchState, Client, ItemSpec
from foqs.testing import Server
from tests.console.asgi import Answer
from tests.console.browser import Browser, browser, client, service

__all__ = ["browser", "client", "service"]  # fixtures
pytestmark = pytest.mark.threads


def said_after(browser: Browser, answer: Answer) -> str:
    """Return the outcome of a change, which the next page shows."""
    assert answer.status == 303, answer.said
    return browser.get(answer.headers["location"]).said


def links(answer: Answer) -> set[str]:
    return {link.partition("?")[0] for link in re.findall(r'<a (?:id="[^"]*" )?href="([^"]*)"', answer.text)}


def take(client: Client, topic: str = "t") -> None:
    """Ack the first ready item, and nack the other ones for good."""
    first, *others = client.dequeue(topic, count=10)
    client.ack(first)
    for item in others:
        client.nack(item, reject=True, reason="in vain")


def test_a_batch_from_its_begin_to_its_end(browser: Browser, client: Client, service: Server) -> None:
    client.set_policy("t", {"dead": {"topic": "t.dlq"}})
    batch = client.create_batch(on_success=ItemSpec("ends", b"well"), on_end=ItemSpec("ends", b"end"))
    ids = client.enqueue_many([ItemSpec("t", b"x", batch=batch), ItemSpec("t", b"y", batch=batch)])
    page = browser.get(f"/batch/{batch}")
    assert page.status == 200
    assert "open It does not end before it is closed, or by its TTL in 7 d." in page.said
    assert "0 of 2 members ended" in page.said
    assert "not ended 2" in page.said
    assert 'id="close"' in page.text and 'id="cancel"' in page.text
    said = said_after(browser, browser.post("/batch/close", {"id": str(batch), "back": f"/batch/{batch}"}))
    assert f"Batch {batch} is closed: it ends with its last member." in said
    page = browser.get(f"/batch/{batch}")
    assert "closed It ends with its last member, or by its TTL in 7 d." in page.said
    assert 'id="close"' not in page.text and 'id="cancel"' in page.text
    take(client)
    service.advance(seconds=1)
    page = browser.get(f"/batch/{batch}")
    found = client.get_batch(batch)
    assert (found.state, found.failed_ids) == (BatchState.ENDED, tuple(ids[1:]))
    assert re.search(r"ended Some of its members were not completed. It ended at .* \(.* ago\).", page.said)
    assert "2 of 2 members ended (100 %)" in page.said
    assert "completed 1 failed 1 not ended 0" in page.said
    assert [page.text.count(f'<rect class="{colour}"') for colour in ("leased", "dead", "kept")] == [1, 1, 0]
    assert f"/items/{found.end_id}" in links(page) and f"/items/{ids[1]}" in links(page)
    assert found.success_id is None
    assert "/batch/close" not in page.text and "/batch/cancel" not in page.text
    assert f"Stored at the end of batch {batch}" in browser.get(f"/items/{found.end_id}").said


def test_a_batch_is_cancelled_after_a_question(browser: Browser, client: Client, service: Server) -> None:
    outer = client.create_batch()
    batch = client.create_batch(parent=outer)
    client.enqueue_many([ItemSpec("t", b"x", batch=batch)] * 2)
    client.dequeue("t")
    page = browser.get(f"/batch/{batch}")
    assert f"/batch/{outer}" in links(page)
    question = browser.post("/batch/cancel", {"id": str(batch), "back": f"/batch/{batch}"})
    assert question.status == 200
    assert f"Cancel batch {batch}?" in question.said
    assert "Members that no consumer has are removed" in question.said
    assert client.get_batch(batch).state == BatchState.OPEN
    assert f"Batch {batch} is cancelled." in said_after(browser, browser.confirm("/batch/cancel", question))
    service.advance(seconds=1)
    page = browser.get(f"/batch/{batch}")
    assert "cancelled It was cancelled, and ends when consumers have ended the members that they hold." in page.said
    assert "1 of 2 members ended (50 %)" in page.said
    assert page.text.count('<rect class="kept"') == 1
    assert 'id="close"' not in page.text and 'id="cancel"' not in page.text
    service.advance(minutes=5)
    for item in client.dequeue("t"):
        client.ack(item)
    service.advance(seconds=1)
    assert "cancelled It was cancelled, and ended at" in browser.get(f"/batch/{batch}").said
    assert "open" in browser.get(f"/batch/{outer}").said


@pytest.mark.parametrize(("close", "words"), [(True, "All of its members were completed."), (False, "by its TTL")])
def test_other_ends(browser: Browser, client: Client, service: Server, close: bool, words: str) -> None:
    batch = client.create_batch(ttl_ms=60_000)
    if close:
        client.close_batch(batch)
    service.advance(minutes=2)
    page = browser.get(f"/batch/{batch}")
    assert page.status == 200
    assert words in page.said
    assert "0 of 0 members ended (–)" in page.said


def test_members_are_found_among_the_items(browser: Browser, client: Client) -> None:
    batch, other = client.create_batch(), client.create_batch()
    mine = {client.enqueue("t", b"x", batch=batch), client.enqueue("t2", b"x", batch=batch, delay_ms=5_000)}
    theirs = client.enqueue("t", b"x", batch=other)
    page = browser.get(f"/batch/{batch}")
    assert "/items" in links(page)
    for query in ({"batch": batch}, {"batch": f" {batch:#x} "}):
        page = browser.get("/items", **query)
        assert set(map(int, re.findall(r"/items/(\d+)", page.text))) == mine
        assert f"/batch/{batch}" in page.text
    page = browser.get("/items", topic="t", batch=other)
    assert set(map(int, re.findall(r"/items/(\d+)", page.text))) == {theirs}
    assert "A job changes all items of topic t of batch" in page.said
    page = browser.get(f"/items/{theirs}")
    assert f"Member of batch {other}" in page.said
    assert f"/batch/{other}" in links(page)
    assert "'soon' is not the id of a batch" in browser.get("/items", batch="soon").said


def test_headers_of_any_client_make_no_wrong_links(browser: Browser, client: Client) -> None:
    item = client.enqueue("t", b"x", headers={"foqs-batch": "<b>7", "foqs-after": "77"})
    page = browser.get(f"/items/{item}")
    assert page.status == 200
    assert "Stored at the end of" not in page.said
    assert "Follows item 77" in page.said


def test_a_batch_that_is_not_there(browser: Browser, client: Client) -> None:
    page = browser.get("/batch/77")
    assert page.status == 404
    assert f"the namespace {client.namespace} has no batch 77" in page.said
    assert browser.get("/batch/x").status == 400
    assert browser.post("/batch/close", {"id": "77"}).status == 404
    assert browser.post("/batch/close", {"id": ""}).status == 400


def test_a_console_that_only_reads_offers_no_change(service: Server, client: Client) -> None:
    reader = Browser(service.address, client.namespace, read_only=True)
    try:
        page = reader.get(f"/batch/{client.create_batch()}")
        assert page.status == 200
        assert '<form method="post"' not in page.text and "/batch/cancel" not in page.text
    finally:
        reader.close()
