"""Each change of settings, schedules, throttles, hooks and consumers, made in a browser as a user makes it."""

from __future__ import annotations

import json

from foqs.client import Client, ItemState
from tests.console.browser import client, service
from tests.console.user import User, console, user, window
from tests.support.waiting import wait_until

__all__ = ["client", "console", "service", "user", "window"]  # fixtures


def entry(client: Client, key: str) -> dict[str, object] | None:
    text = client.settings().entries.get(key)
    return None if text is None else json.loads(text)


def test_a_schedule_is_made_and_changed(user: User, client: Client) -> None:
    user.open("/schedules")
    user.press("a.button[href^='/schedules/edit']")
    user.fill(name="nightly", cron="0 3 * *", topic="report", payload="go")
    user.press("form.fields button.primary")
    assert "cron" in user.said
    assert user.find("[name=cron]").get_attribute("aria-invalid") == "true"
    assert entry(client, "schedule.nightly") is None
    user.fill(cron="0 3 * * *", timezone="Europe/Berlin")
    user.press("form.fields button.primary")
    assert entry(client, "schedule.nightly") == {
        "cron": "0 3 * * *", "timezone": "Europe/Berlin", "topic": "report", "payload": "go",
    }  # fmt: skip
    user.press("[id^=run-]")
    (item,) = client.list_items("report")
    assert (item.payload, str(item.id) in user.said) == (b"go", True)
    user.press("[id^=pause-]")
    assert client.schedules().schedules[0].paused
    user.press("[id^=pause-]")
    assert not client.schedules().schedules[0].paused
    user.press("#schedules td a[id^=edit-]")
    user.fill(cron="@every 10m")
    client.change_settings(lambda entries: ({"schedule.nightly": entries["schedule.nightly"].replace("go", "no")}, ()))
    user.press("form.fields button.primary")
    assert "nothing was changed" in user.said, "another user changed it"
    assert '"no"' in user.texts("section pre")[0]
    user.press("form.fields button.primary")
    assert entry(client, "schedule.nightly") == {
        "cron": "@every 10m", "timezone": "Europe/Berlin", "topic": "report", "payload": "go",
    }  # fmt: skip
    user.press("[id^=delete-]")
    user.confirm("nightly")
    assert client.schedules().schedules == ()
    assert not user.has("#schedules")


def test_a_throttle_is_set_and_changed(user: User, client: Client) -> None:
    user.open("/throttles")
    user.unfold("#set")
    user.type("#set-key", "smtp")
    user.type("#set-burst", "3")
    user.press("#set form button")
    assert "per_second or concurrency" in user.said
    assert user.find("#set-key").get_attribute("value") == "smtp"
    user.type("#set-rate", "0.5")
    user.press("#set form button")
    assert entry(client, "throttle.smtp") == {"per_second": 0.5, "burst": 3}
    user.press("[id^=shadow-]")
    assert not (entry(client, "throttle.smtp") or {}).get("shadow"), "it asks first"
    user.confirm()
    assert entry(client, "throttle.smtp") == {"per_second": 0.5, "burst": 3, "shadow": True}
    user.press("[id^=shadow-]")
    assert entry(client, "throttle.smtp") == {"per_second": 0.5, "burst": 3, "shadow": False}
    user.press("#throttles a[id^=edit-]")
    user.type("#set-concurrency", "4")
    client.put_settings({"throttle.smtp": '{"per_second": 2}'})
    user.press("#set form button")
    assert user.has("#set .notice.bad"), "another user changed it"
    user.press("#set form button")
    assert entry(client, "throttle.smtp") == {"per_second": 0.5, "burst": 3, "concurrency": 4}
    user.press("[id^=remove-]")
    user.confirm()
    assert entry(client, "throttle.smtp") is None


def test_a_script_is_tried_and_saved(user: User, client: Client) -> None:
    source = "function on_enqueue(item)\n  return {priority = 7}\nend\n"
    user.open("/hooks")
    user.fill(script="route")
    user.press("form[action='/hooks/'] button")
    assert user.title == "Script route"
    user.type("#source", "function on_enqueue(")
    user.press("form.script button.primary")
    assert user.has("[role=alert]")
    user.type("#source", source)
    user.press("form.script button:not(.primary)")
    assert [row[0] for row in user.rows("changed")] == ["priority"]
    assert "script.route" not in client.settings().entries, "a try stores nothing"
    user.press("form.script button.primary")
    assert client.settings().entries["script.route"] == source
    client.set_policy("mail", {"hooks": {"on_enqueue": "route"}})
    client.enqueue("mail", b"x")
    user.open("/hooks")
    assert [row[:5] for row in user.rows("calls")] == [["mail", "on_enqueue", "route", "1", "0"]]
    user.press("#scripts a[id^=source-]")
    assert user.text("#stored") == source.strip()


def test_settings_are_changed_in_two_tabs(user: User, client: Client) -> None:
    client.put_settings({"topic.mail": '{"max_attempts": 5}'})
    user.open("/settings")
    user.press("#live a[id^=entry-]")
    first = user.browser.current_window_handle
    user.browser.switch_to.new_window("tab")
    user.open("/settings/entry", key="topic.mail")
    user.type("#value", '{"max_attempts": 8}')
    user.press("form.entry button")
    assert entry(client, "topic.mail") == {"max_attempts": 8}
    user.press("#remove")
    second = user.browser.current_window_handle
    user.browser.switch_to.window(first)
    user.type("#value", '{"max_attempts": 2}')
    user.press("form.entry button")
    assert user.has("#errors")
    assert entry(client, "topic.mail") == {"max_attempts": 8}
    assert '"max_attempts": 8' in user.text(".columns pre")
    user.press("form.entry button")
    assert entry(client, "topic.mail") == {"max_attempts": 2}
    user.browser.switch_to.window(second)
    user.confirm("topic.mail")
    assert user.title == "Changed by another request"
    assert entry(client, "topic.mail") == {"max_attempts": 2}
    user.press("#main a")
    assert user.title == "Entry topic.mail"
    assert '"max_attempts": 2' in user.find("#value").get_attribute("value")
    user.press("#remove")
    user.confirm("topic.mail")
    assert client.settings().entries == {}
    user.browser.close()
    user.browser.switch_to.window(first)


def test_settings_are_added_exported_and_reverted(user: User, client: Client) -> None:
    user.open("/settings")
    user.press("a.button[href^='/settings/entry']")
    user.type("#key", "weight.acme")
    user.type("#value", "0")
    user.press("form.entry button")
    assert user.has("#errors")
    user.type("#value", "3")
    user.press("form.entry button")
    user.open("/settings/entry")
    user.type("#key", "plans/acme")
    user.type("#value", "gold\n<b>")
    user.press("form.entry button")
    assert client.settings().entries == {"weight.acme": "3", "plans/acme": "gold\n<b>"}
    user.open("/settings")
    exported = user.browser.execute_async_script(
        "fetch(document.querySelector('a[download]').href).then(one => one.json()).then(arguments[0])"
    )
    assert (exported["namespace"], exported["entries"]) == (client.namespace, client.settings().entries)
    user.open("/changes")
    user.fill(prefix="weight.")
    user.press("#main form[role=search] button")
    assert [row[0].split() for row in user.rows("version-1")] == [["weight.acme", "added"]]
    assert not user.has("#version-2")
    user.press("#revert-1-1")
    assert len(client.settings().entries) == 2, "it asks first"
    user.back()
    user.press("#revert-1-1")
    user.confirm()
    assert client.settings().entries == {"plans/acme": "gold\n<b>"}
    user.back()
    user.browser.refresh()
    assert client.settings().version == 3, "a change is made once"


def test_leases_of_a_worker_are_ended(user: User, client: Client) -> None:
    for topic in ("mail", "post"):
        client.enqueue(topic, b"x")
        client.dequeue(topic, worker="host-1:77")
    user.open("/consumers", topic="mail")
    user.press("#consumers [id^=release-]")
    assert "host-1:77" in user.title
    user.confirm()
    assert "1 lease ended" in user.said
    wait_until(lambda: {item.state for item in client.list_items("mail")} <= {ItemState.READY, ItemState.DELAYED}, "")
    assert [item.state for item in client.list_items("post")] == [ItemState.LEASED]
    user.open("/consumers")
    user.unfold("#release")
    user.type("#release-topic", "post")
    user.type("#release-age", "soon")
    user.press("#release form button")
    assert "soon" in user.said
    user.type("#release-age", "0")
    user.press("#release form button")
    user.confirm("post")
    wait_until(lambda: ItemState.LEASED not in {item.state for item in client.list_items("post")}, "the lease's end")
