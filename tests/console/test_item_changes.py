"""Changes of items on the console: of one item, and of the rows that a user chose."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client import AsyncClient, Client, Delivery, Item, ItemRules, ItemSpec, ItemState, OutcomeUnknown, Unavailable
from foqs.testing import Server
from tests.console.asgi import Answer
from tests.console.browser import Browser, browser, client, service

__all__ = ["browser", "client", "service"]  # fixtures
pytestmark = pytest.mark.threads


def said_after(browser: Browser, answer: Answer) -> str:
    """Return the outcome of a change, which the next page shows."""
    assert answer.status == 303, answer.said
    return browser.get(answer.headers["location"]).said


def places(client: Client, topic: str = "t") -> dict[int, tuple[Any, int]]:
    return {item.id: (item.state, item.priority) for item in client.list_items(topic)}


def test_chosen_items_run_now(browser: Browser, client: Client) -> None:
    first, second, third = client.enqueue_many([ItemSpec("t", b"x", delay_ms=60_000)] * 3)
    page = browser.get("/items", topic="t")
    for item_id in (first, second, third):
        assert f'id="choose-{item_id}" name="id" value="{item_id}"' in page.text
    answer = browser.post("/items/run-now", {"id": [str(first), str(third)], "back": "/items?topic=t"})
    assert "2 items changed: ready now." in said_after(browser, answer)
    assert places(client) == {
        first: (ItemState.READY, 0), second: (ItemState.DELAYED, 0), third: (ItemState.READY, 0)
    }  # fmt: skip


def test_an_item_gets_another_time_and_priority(browser: Browser, client: Client) -> None:
    stored = client.enqueue("t", b"x")
    before_ms = client.get_item(stored).deliver_after_ms
    answer = browser.post("/items/place", {"id": str(stored), "delay": "90s", "priority": "-5"})
    assert "1 item changed: not before 1.5 min from now, priority -5." in said_after(browser, answer)
    item = client.get_item(stored)
    assert (item.state, item.priority, item.deliver_after_ms - before_ms) == (ItemState.DELAYED, -5, 90_000)
    answer = browser.post("/items/place", {"id": str(stored), "delay": "", "priority": "7"})
    assert "1 item changed: priority 7." in said_after(browser, answer)
    assert client.get_item(stored).deliver_after_ms == item.deliver_after_ms


def test_outcomes_are_counted(browser: Browser, client: Client) -> None:
    leased = client.enqueue("t", b"x")
    client.dequeue("t", lease_ms=60_000)
    short, usual, gone = client.enqueue("t", b"x", ttl_ms=60_000), client.enqueue("t", b"x"), client.enqueue("t", b"x")
    client.delete_items([gone])
    chosen = [str(item_id) for item_id in (leased, short, usual, gone)]
    said = said_after(browser, browser.post("/items/place", {"id": chosen, "delay": "2m"}))
    assert "1 item changed: not before 2 min from now. 2 items skipped: a consumer took them, or they have " in said
    assert "ended. 1 item not changed; the first error: " in said
    states = {item.id: item.state for item in client.list_items("t")}
    assert states == {usual: ItemState.DELAYED, short: ItemState.READY, leased: ItemState.LEASED}


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("run-now", {}, "no item is chosen"),
        ("delete", {"confirmed": "yes"}, "no item is chosen"),
        ("run-now", {"id": "7x"}, "'7x' is not an item id"),
        ("place", {"id": "7"}, "give a delay, a priority, or both"),
        ("place", {"id": "7", "delay": "-5s"}, "Delay: '-5s' is no duration"),
        ("place", {"id": "7", "delay": "999d"}, "Delay: at most a year"),
        ("place", {"id": "7", "priority": "1e3"}, "Priority: '1e3' is no whole number"),
        ("place", {"id": "7", "priority": "3000000000"}, "priority is 3000000000"),
    ],
)
def test_a_wrong_form_changes_nothing(browser: Browser, path: str, fields: dict[str, str], said: str) -> None:
    answer = browser.post(f"/items/{path}", fields)
    assert answer.status == 400
    assert said in answer.said


def test_items_are_deleted_after_a_question(browser: Browser, client: Client) -> None:
    stored = [client.enqueue("t", b"x") for _ in range(4)]
    chosen = {"id": [str(item_id) for item_id in stored[:3]], "back": "/items?topic=t"}
    question = browser.post("/items/delete", chosen)
    assert question.status == 200
    assert "Delete 3 items?" in question.said
    assert len(places(client)) == 4
    client.delete_items(stored[:1])
    said = said_after(browser, browser.confirm("/items/delete", question))
    assert "2 items deleted. 1 item was gone before." in said
    assert [*places(client)] == stored[3:]


def test_the_page_after_a_deleted_item_has_its_topic(browser: Browser, client: Client) -> None:
    stored = client.enqueue("t", b"x")
    client.dequeue("t", lease_ms=60_000)
    assert 'name="topic" value="t"' in browser.get(f"/items/{stored}").text
    question = browser.post("/items/delete", {"id": str(stored), "topic": "t", "back": f"/items/{stored}"})
    assert f"Delete item {stored}?" in question.said
    assert "also while a consumer works on it" in question.said
    answer = browser.confirm("/items/delete", question)
    assert answer.headers["location"] == f"/items?ns={client.namespace}&topic=t"
    assert "1 item deleted." in said_after(browser, answer)
    assert places(client) == {}


def test_a_console_that_only_reads_offers_no_change(service: Server, client: Client) -> None:
    stored = client.enqueue("t", b"x")
    browser = Browser(service.address, client.namespace, read_only=True)
    for answer in (browser.get("/items", topic="t"), browser.get(f"/items/{stored}")):
        assert answer.status == 200
        assert 'method="post"' not in answer.text
    assert browser.post("/items/delete", {"id": str(stored), "confirmed": "yes"}).status == 403
    browser.close()
    assert [*places(client)] == [stored]


# --------------------------------------------------------------------------------------------- moves


def moved(browser: Browser, item_id: int, target: str) -> Answer:
    question = browser.post("/items/move", {"id": str(item_id), "to": target, "back": f"/items/{item_id}"})
    if question.status != 200:
        return question
    assert "This is not one step." in question.said
    return browser.confirm("/items/move", question)


@pytest.mark.parametrize("delay_ms", [0, 3_600_000])
def test_a_moved_item_keeps_its_fields(browser: Browser, client: Client, delay_ms: int) -> None:
    stored = client.enqueue(
        "t", b"\xff1", metadata=b"m", headers={"a": "b"}, priority=-3, fairness_key="acme", throttle_keys=["smtp"],
        ttl_ms=86_400_000, rules=ItemRules(max_attempts=3), delay_ms=delay_ms, dedup_key="k",
    )  # fmt: skip
    before = client.get_item(stored)
    answer = moved(browser, stored, "u")
    (copy,) = client.list_items("u")
    assert answer.headers["location"] == f"/items/{copy.id}?ns={client.namespace}"
    assert f"1 item moved from t to u: item {stored} is item {copy.id} now." in said_after(browser, answer)
    assert places(client) == {}

    def fields(item: Item) -> list[Any]:
        return [
            item.payload, item.metadata, item.headers, item.priority, item.fairness_key, item.throttle_keys,
            item.expires_at_ms, item.rules, item.state, item.delivery, item.deliver_after_ms,
        ]  # fmt: skip

    assert fields(copy) == fields(before)


def test_an_item_that_cannot_be_moved_is_refused(browser: Browser, client: Client) -> None:
    client.put_settings({"topic.k": '{"keep": {"completed_ms": 60000}}'})
    once = client.enqueue("t", b"x", delivery=Delivery.AT_MOST_ONCE)
    leased, kept, usual = client.enqueue("l", b"x"), client.enqueue("k", b"x"), client.enqueue("s", b"x")
    client.dequeue("l", lease_ms=60_000)
    client.ack(client.dequeue("k")[0])
    for item_id, target, status, said in (
        (once, "u", 400, "an at-most-once item might be delivered twice"),
        (leased, "u", 409, "a consumer works on the item"),
        (kept, "u", 409, "the item has ended"),
        (usual, "s", 400, "the item is in that topic"),
        (usual, "", 400, "give the topic"),
        (usual + 1, "u", 404, ""),
    ):
        answer = browser.post("/items/move", {"id": str(item_id), "to": target, "confirmed": "yes"})
        assert answer.status == status
        assert said in answer.said
    assert list(client.list_items("u")) == []
    assert places(client, "s") == {usual: (ItemState.READY, 0)}


def test_an_item_stays_where_its_copy_is_refused(browser: Browser, client: Client) -> None:
    stored = client.enqueue("t", b"x")
    place = client.get_item(stored).deliver_after_ms
    client.put_settings({"topic.u": '{"closed": true}'})
    answer = moved(browser, stored, "u")
    assert answer.status == 503
    assert "closed" in answer.said
    item = client.get_item(stored)
    assert (item.state, item.deliver_after_ms) == (ItemState.READY, place)


class _Watched(AsyncClient):
    """Notes the items that a consumer gets while the copy is stored."""

    got: list[bytes]

    async def enqueue(self, *args: Any, **options: Any) -> int:
        type(self).got = [item.payload for item in await self.dequeue("t")]
        stored = await super().enqueue(*args, **options)
        type(self).got += [item.payload for item in await self.dequeue("t")]
        return stored


def test_no_consumer_gets_an_item_and_its_copy(service: Server, client: Client) -> None:
    stored = client.enqueue("t", b"x")
    browser = Browser(service.address, client.namespace, _Watched)
    assert moved(browser, stored, "u").status == 303
    browser.close()
    assert _Watched.got == []
    assert [item.payload for item in client.dequeue("u")] == [b"x"]


class _Cut(AsyncClient):
    """The service does not answer the delete at the end of a move."""

    async def delete_items(self, *args: Any, **options: Any) -> Any:
        return [Unavailable("no host answers")]


def test_a_repeated_move_stores_one_copy(service: Server, client: Client, browser: Browser) -> None:
    stored = client.enqueue("t", b"x")
    cut = Browser(service.address, client.namespace, _Cut)
    answer = moved(cut, stored, "u")
    cut.close()
    (copy,) = places(client, "u")
    assert answer.status == 409
    assert f"the copy is stored, with the id {copy}, and the item may remain: repeat the move" in answer.said
    assert places(client)[stored][0] == ItemState.DELAYED, "no consumer gets it for a time"
    assert moved(browser, stored, "u").status == 303
    assert [*places(client, "u")] == [copy]
    assert places(client) == {}


class _Lost(AsyncClient):
    """The reply to the enqueue of a move is lost."""

    async def enqueue(self, *args: Any, **options: Any) -> int:
        await super().enqueue(*args, **options)
        raise OutcomeUnknown("no reply")


def test_an_item_waits_while_its_copy_may_be_stored(service: Server, client: Client, browser: Browser) -> None:
    stored = client.enqueue("t", b"x")
    lost = Browser(service.address, client.namespace, _Lost)
    assert moved(lost, stored, "u").status == 503
    lost.close()
    assert places(client)[stored][0] == ItemState.DELAYED, "a consumer might get both"
    assert moved(browser, stored, "u").status == 303
    assert (len(places(client, "u")), places(client)) == (1, {})


def test_a_move_whose_copy_has_ended_keeps_the_item(service: Server, client: Client, browser: Browser) -> None:
    stored = client.enqueue("t", b"x")
    cut = Browser(service.address, client.namespace, _Cut)
    moved(cut, stored, "u")
    cut.close()
    client.ack(client.dequeue("u")[0])
    answer = moved(browser, stored, "u")
    assert answer.status == 409
    assert "an earlier move stored a copy, which has ended" in answer.said
    assert [*places(client)] == [stored]
    assert places(client, "u") == {}
