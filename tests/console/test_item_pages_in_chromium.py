"""Each change of topics, items, dead letters and jobs, made in a browser as a user makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.client import Client, ItemSpec, ItemState, NotFound
from foqs.testing import Server
from tests.console.browser import client, service
from tests.console.user import LiveConsole, User, console, user, window
from tests.support.browser import Browser
from tests.support.waiting import wait_until

__all__ = ["client", "console", "service", "user", "window"]  # fixtures

KINDS = [{"kind": "invoice"}, {"kind": "export"}]


def ids(user: User) -> list[str]:
    """The ids of the items that the page lists."""
    return [row[1].split()[0] for row in user.rows("items")] if user.has("#items") else []


def ended(user: User, state: str) -> list[str]:
    """Return the row of the newest job when it has this state."""

    def row() -> list[str]:
        user.open("/jobs")
        (newest, *_) = user.rows("jobs")
        return newest if newest[3].startswith(state) else []

    return wait_until(row, f"a job that is {state}")


def test_a_topic_is_changed(user: User, client: Client) -> None:
    client.enqueue("mail", b"x", fairness_key="acme")
    user.open("/topics/mail")
    pause, close = "form[action^='/topics/pause'] button", "form[action^='/topics/close'] button"
    for button, paused, closed in [(pause, 1, 0), (close, 1, 1), (pause, 0, 1), (close, 0, 0)]:
        user.press(button)
        stats = client.topic_stats("mail")
        assert (stats.paused, stats.closed) == (bool(paused), bool(closed)), user.said
        assert user.has("#main > .notice.ok")
    user.unfold("#enqueue")
    user.fill(payload="ünï\nline", priority="7", delay_s="60", fairness_key="globex")
    user.press("#enqueue button")
    (stored,) = client.list_items("mail", state=ItemState.DELAYED)
    assert (stored.payload, stored.priority, stored.fairness_key) == ("ünï\nline".encode(), 7, "globex")
    assert str(stored.id) in user.said
    # The browser shows the page again, and sends no form again.
    user.browser.refresh()
    user.back()
    user.browser.forward()
    assert len(list(client.list_items("mail"))) == 2
    user.open("/topics/mail")
    user.press("#edit-policy")
    assert user.title == "Entry topic.mail"
    user.type("#value", '{"max_attempts": 3}')
    user.press("form.entry button")
    assert client.topic_stats("mail").policy["max_attempts"] == 3
    user.open("/topics/mail")
    user.unfold("#purge")
    user.type("#purge-tenant", "acme")
    user.press("#purge-items")
    assert "1 item" in user.text(".notice.warn:not(#stale)")
    user.confirm("mail")
    assert user.title == "Jobs"
    wait_until(lambda: [item.fairness_key for item in client.list_items("mail")] == ["globex"], "the purge")


def test_items_are_found(user: User, client: Client, service: Server) -> None:
    client.set_policy("mail", {"retry": {"kind": "constant", "first_ms": 3_600_000, "longest_ms": 3_600_000}})
    failed = client.enqueue("mail", b"failed", priority=-1)
    (taken,) = client.dequeue("mail")
    client.nack(taken, failed=True, reason="SMTP 451: try again")
    old = client.enqueue("mail", b"old", priority=9, fairness_key="acme", headers=KINDS[0], dedup_key="order-1")
    service.advance(minutes=10)
    new = client.enqueue("mail", b"new", priority=2, fairness_key="globex", headers=KINDS[1])
    user.open("/items")
    searches: list[tuple[dict[str, str], set[int]]] = [
        ({}, {old, failed, new}),
        ({"state": "delayed"}, {failed}),
        ({"tenant": "acme"}, {old}),
        ({"priority": "..0"}, {failed}),
        ({"priority": "2..9"}, {old, new}),
        ({"older": "5m"}, {old, failed}),
        ({"newer": "5m"}, {new}),
        ({"header": "kind=export"}, {new}),
        ({"tenant": "none-such"}, set()),
        ({"failure": "SMTP 451"}, {failed}),
    ]
    for fields, wanted in searches:
        user.open("/items")
        user.unfold("#further")
        for name, value in {"topic": "mail", **fields}.items():
            user.type(f"#{name}", value)
        user.press("form.search button")
        assert set(ids(user)) == set(map(str, wanted)), fields
    url = user.browser.current_url
    user.open("/")
    user.browser.get(url)
    assert ids(user) == [str(failed)], "the URL is the search"
    for name, value in (("id", str(new)), ("dedup", "order-1")):
        user.open("/items")
        user.unfold("#further")
        user.type(f"#{name}", value)
        user.press("form.search button")
        assert ids(user) == [str(new if name == "id" else old)]
    user.type("#priority", "much")
    user.type("#dedup", "")
    user.type("#topic", "mail")
    user.press("form.search button")
    assert "no whole number" in user.said
    assert user.find("#priority").get_attribute("value") == "much"


def test_pages_of_items_have_each_item_once(user: User, client: Client) -> None:
    stored = client.enqueue_many([ItemSpec("many", b"x", priority=number) for number in range(120)])
    user.open("/items", topic="many")
    found = ids(user)
    for _ in range(2):
        user.press("#next-page")
        found += ids(user)
    assert not user.has("#next-page")
    assert found == [str(one) for one in stored]
    user.back()
    assert ids(user) == found[50:100]
    user.press("#first-page")
    assert ids(user) == found[:50]


def test_one_item_is_changed(user: User, client: Client, service: Server) -> None:
    item = client.enqueue("mail", b'{"to": "ada"}', delay_ms=60_000, headers=KINDS[0])
    user.open(f"/items/{item}")
    user.press("#payload-json")
    assert '"to": "ada"' in user.text("#payload pre")
    user.press("#payload-none")
    assert not user.has("#payload pre")
    user.press("form[action^='/items/run-now'] button")
    assert client.get_item(item).state == ItemState.READY
    user.type("#delay", "2h")
    user.press("form[action^='/items/place']:has(#delay) button")
    assert client.get_item(item).deliver_after_ms == round(service.now.timestamp() * 1_000) + 7_200_000
    user.type("#priority", "-5")
    user.press("form[action^='/items/place']:has(#priority) button")
    assert client.get_item(item).priority == -5
    assert f"foqs item {item} " in user.texts("pre")[-1]
    user.type("#to", "post")
    user.press("form[action^='/items/move'] button")
    user.confirm()
    (moved,) = client.list_items("post")
    assert (moved.payload, moved.headers, list(client.list_items("mail"))) == (b'{"to": "ada"}', KINDS[0], [])
    assert user.title == f"Item {moved.id}"
    user.press("form[action^='/items/delete'] button")
    assert client.get_item(moved.id).id == moved.id, "it asks first"
    user.back()
    user.press("form[action^='/items/delete'] button")
    user.confirm()
    with pytest.raises(NotFound):
        client.get_item(moved.id)
    assert "1 item deleted" in user.said
    assert user.find("#topic").get_attribute("value") == "post", "the items of its topic"


def test_chosen_items_are_changed(user: User, client: Client) -> None:
    stored = client.enqueue_many([ItemSpec("mail", b"x", priority=number) for number in range(6)])
    user.open("/items", topic="mail")
    user.press("#many-now")
    assert "no item is chosen" in user.said
    user.press("#main a")
    assert len(ids(user)) == 6, "back on the page"
    for one in stored[:2]:
        user.click(f"#choose-{one}")
    user.type("#many-priority", "50")
    user.type("#many-delay", "10m")
    user.press("#many-place")
    changed = {item.id for item in client.list_items("mail", state=ItemState.DELAYED) if item.priority == 50}
    assert changed == set(stored[:2])
    user.click("#many-all")
    user.press("#many-now")
    assert {item.state for item in client.list_items("mail")} == {ItemState.READY}
    user.click("#many-all")
    user.click(f"#choose-{stored[5]}")
    user.press("#many-delete")
    user.confirm()
    assert "5 items deleted" in user.said
    assert [item.id for item in client.list_items("mail")] == [stored[5]]


def test_all_items_that_match_are_changed_by_a_job(user: User, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x", headers=KINDS[number % 2]) for number in range(90)])
    user.open("/items", topic="mail", header="kind=invoice")
    user.unfold("#all")
    user.type("#all-priority", "33")
    user.press("#all-place")
    assert "That is 45 items" in user.text(".notice.warn:not(#stale)")
    user.back()
    assert {item.priority for item in client.list_items("mail")} == {0}, "a question changes nothing"
    user.unfold("#all")
    user.type("#all-priority", "33")
    user.type("#all-delay", "1h")
    user.press("#all-place")
    user.confirm()
    ended(user, "finished")
    changed = [item for item in client.list_items("mail", state=ItemState.DELAYED) if item.priority == 33]
    assert [item.headers for item in changed] == [KINDS[0]] * 45
    user.open("/items", topic="mail", state="delayed")
    user.unfold("#all")
    user.press("#all-now")
    user.confirm()
    ended(user, "finished")
    assert list(client.list_items("mail", state=ItemState.DELAYED)) == []
    # One item a second: it is at work until the user ends it.
    user.open("/items", topic="mail")
    user.unfold("#all")
    user.type("#all-pace", "1")
    user.press("#all-delete")
    user.confirm("mail")
    assert user.find("progress").get_attribute("max") == "90"
    user.press("[id^=cancel-]")
    job = ended(user, "cancelled")
    left = len(list(client.list_items("mail")))
    assert 0 < left < 90
    assert f"{90 - left} item" in job[4]


def test_a_job_continues_after_a_restart(window: Browser, client: Client, service: Server, tmp_path: Path) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 90)
    with LiveConsole(service.address, state_dir=tmp_path) as own:
        user = User(window, own.url, client.namespace)
        user.open("/topics/mail")
        user.unfold("#purge")
        user.type("#purge-pace", "1")
        user.press("#purge-items")
        user.confirm("mail")
        own.stop()
        own.start()
        left = len(list(client.list_items("mail")))
        user.open("/jobs")
        assert "continue the job" in user.rows("jobs")[0][3]
        user.press("[id^=continue-]")
        wait_until(lambda: len(list(client.list_items("mail"))) < left, "a further step")
        user.press("[id^=cancel-]")
        ended(user, "cancelled")


def test_dead_letters_return_or_are_deleted(user: User, client: Client) -> None:
    client.set_policy("mail", {"max_attempts": 1, "dead": {"topic": "mail.dlq"}})
    reasons = ["SMTP 451"] * 4 + ["no such user"] * 2 + ["disk is full"]
    client.enqueue_many([ItemSpec("mail", b"x")] * len(reasons))
    for item, reason in zip(client.dequeue("mail", count=10), reasons, strict=True):
        client.nack(item, failed=True, reason=reason)

    def left() -> dict[str, int]:
        found = [item.failure.reason for item in client.list_items("mail.dlq") if item.failure]
        return {reason: found.count(reason) for reason in {*found}}

    wait_until(lambda: sum(left().values()) == 7, "the dead letters")
    user.open("/dead")
    user.press("#topics a")
    assert [row[3] for row in user.rows("groups")] == ["4", "2", "1"]

    def group(verb: str, reason: str) -> str:
        row = [row[1] for row in user.rows("groups")].index(reason) + 1
        return f"#groups tr:nth-child({row}) td:last-child [id^={verb}-]"

    user.press(group("one", "SMTP 451"))
    assert left()["SMTP 451"] == 3
    user.press(group("redrive", "no such user"))
    assert left()["no such user"] == 2, "it asks first"
    user.confirm()
    wait_until(lambda: "no such user" not in left(), "the group")
    user.open("/dead", topic="mail.dlq")
    user.press("button[name=each]")
    user.confirm()
    assert left() == {"SMTP 451": 2}
    user.fill(pace="1", to_topic="other")
    user.press("form[action^='/dead/redrive'] fieldset button:not([name]):not(.danger)")
    user.confirm()
    wait_until(lambda: left() == {}, "the rest, one a second")
    assert len(list(client.list_items("other"))) == 2
    client.nack(client.dequeue("mail")[0], reject=True, reason="bad")
    wait_until(lambda: left() == {"bad": 1}, "a dead letter")
    user.open("/dead", topic="mail.dlq")
    user.press(group("delete", "bad"))
    user.confirm("mail.dlq")
    wait_until(lambda: left() == {}, "the delete")
