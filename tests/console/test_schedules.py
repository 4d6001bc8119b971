"""Schedules on pages: figures of the service, changes, and the form of a setting."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape, unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import Client, Invalid, Schedule
from foqs.console.pages.schedules import PAGE_SCHEDULES, row_of
from foqs.console.schedule_form import fields_of, in_words, setting_of
from foqs.policies.schedules import check_schedule
from foqs.testing import Server, server
from tests.console.asgi import Site
from tests.console.rig import client, site
from tests.support.html import Page

__all__ = ["client", "site"]  # fixtures
pytestmark = pytest.mark.threads

HOSTILE = "<script>alert(1)</script>"
NIGHTLY = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "topic": "reports", "payload": "all"}


@pytest.fixture
def service() -> Iterator[Server]:
    with server(datetime(2026, 3, 28, 12, tzinfo=UTC)) as running:
        yield running


def put(client: Client, name: str = "nightly", **fields: Any) -> None:
    client.put_settings({f"schedule.{name}": json.dumps({**NIGHTLY, **fields})})


def setting(client: Client, name: str = "nightly") -> Any:
    found = client.settings("schedule.").entries.get(f"schedule.{name}")
    return None if found is None else json.loads(found)


def row(text: str, name: str = "nightly") -> str:
    (found,) = [one for one in Page(text).cells if name in one[0]]
    return " | ".join(" ".join(cell.split()) for cell in found)


def fields_in(text: str) -> dict[str, str]:
    """Return the fields of the form of a schedule, as a browser would send them."""
    form = text[text.index('action="/schedules/set"') :]
    form = form[: form.index("</form>")]
    found = {}
    for attributes in re.findall(r"<input ([^>]*)>", form):
        name, value = re.search(r'name="([^"]*)"', attributes), re.search(r'value="([^"]*)"', attributes)
        assert name is not None
        if "checkbox" not in attributes or " checked" in attributes:
            found[name[1]] = unescape(value[1]) if value else ""
    for name, value in re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL):
        found[name] = unescape(value).replace("\n", "\r\n")
    for name, options in re.findall(r'<select name="(\w+)">(.*?)</select>', form, re.DOTALL):
        found[name] = re.findall(r'value="(\w*)" selected', options)[0]
    return found


# ------------------------------------------------------------------------------------------ the list


def test_a_row_has_the_times_in_words_in_the_zone_and_in_utc(site: Site, client: Client) -> None:
    put(client)
    text = row(site.get("/schedules").text)
    assert "every day at 03:000 3 * * * Europe/Berlin" in text
    # The clocks of Berlin change in the night to the 29th.
    assert "2026-03-29 03:00:00 CEST2026-03-29 01:00:00 UTC" in text
    assert "reports" in text


def test_a_row_has_the_last_time_and_its_item(site: Site, client: Client, service: Server) -> None:
    put(client, timezone="UTC")
    service.advance(days=1)
    (schedule,) = client.schedules().schedules
    assert schedule.last_id is not None
    text = site.get("/schedules").text
    assert f'href="/items/{schedule.last_id}"' in text
    assert "2026-03-29 03:00:00 UTC" in row(text)
    assert schedule.coordinator in row(text)


def test_missed_times_and_errors_are_on_the_page(site: Site, client: Client, service: Server) -> None:
    put(client, cron="@every 10s", overlap="skip")
    service.advance(seconds=31)
    (schedule,) = client.schedules().schedules
    assert schedule.missed == 2
    assert f" {schedule.missed} |" in row(site.get("/schedules").text)
    put(client, "wrong", cron="@every 10s", rules={"dead_topic": "reports"})
    service.advance(seconds=11)
    error = next(one.error for one in client.schedules().schedules if one.name == "wrong")
    assert error
    assert escape(error) in site.get("/schedules").text


def test_times_of_an_unknown_zone_are_in_utc() -> None:
    entry = json.dumps({"cron": "0 3 * * *", "timezone": "Mars/Base", "topic": "t"})
    found = row_of(Schedule("s", entry, (1_800_000_000_000,), None, None, 0, False, "", ""))
    assert (found.zone, found.next) == ("Mars/Base", (("", 1_800_000_000_000),))


def test_a_namespace_without_schedules_says_so(site: Site) -> None:
    assert "The namespace has no schedule." in site.get("/schedules").text


def test_the_list_is_bounded_and_a_prefix_finds_the_rest(site: Site, client: Client) -> None:
    entries = {f"schedule.s{number:03}": json.dumps(NIGHTLY) for number in range(PAGE_SCHEDULES + 1)}
    client.put_settings(entries)
    text = site.get("/schedules").text
    assert f"The first {PAGE_SCHEDULES} schedules by name" in text
    last = f"s{PAGE_SCHEDULES:03}"
    assert last not in text
    assert last in site.get(f"/schedules?prefix={last}").text
    assert len(client.schedules(limit=3).schedules) == 3
    assert len(client.schedules().schedules) == PAGE_SCHEDULES + 1


def test_hostile_text_is_text(site: Site, client: Client) -> None:
    put(client, HOSTILE, topic=HOSTILE, payload=HOSTILE)
    for path in ("/schedules", f"/schedules/edit?name={HOSTILE}"):
        text = site.get(path).text
        assert escape(HOSTILE) in text
        assert HOSTILE not in text
        Page(text)


# ------------------------------------------------------------------------------------------ changes


def test_a_double_click_stores_one_item(site: Site, client: Client) -> None:
    put(client)
    once = re.findall(r'name="once" value="([^"]+)"', site.get("/schedules").text)
    for _ in range(2):
        site.post("/schedules/run", {"name": "nightly", "once": once[0]})
    (item,) = client.list_items("reports")
    assert item.payload == b"all"
    assert str(item.id) in site.get("/schedules").text
    again = re.findall(r'name="once" value="([^"]+)"', site.get("/schedules").text)
    site.post("/schedules/run", {"name": "nightly", "once": again[0]})
    assert len(list(client.list_items("reports"))) == 2


def test_the_page_stays_the_same_until_something_changes(site: Site, client: Client) -> None:
    put(client)
    etag = site.get("/schedules").headers["etag"]
    refresh = {"hx-request": "true", "if-none-match": etag}
    assert site.get("/schedules", refresh).status == 304


def test_pause_and_resume(site: Site, client: Client) -> None:
    put(client)
    site.post("/schedules/pause", {"name": "nightly", "to": "on"})
    assert setting(client) == NIGHTLY | {"paused": True}
    text = site.get("/schedules").text
    assert "is paused: no time of it fires" in text
    assert ">Resume<" in text
    site.post("/schedules/pause", {"name": "nightly", "to": "off"})
    assert setting(client)["paused"] is False


@pytest.mark.parametrize("path", ["run", "pause", "delete"])
def test_a_change_of_an_unknown_schedule_is_refused(site: Site, path: str) -> None:
    assert site.post(f"/schedules/{path}", {"name": "none", "to": "on", "typed": "none"}).status == 404


def test_a_delete_asks_for_the_name(site: Site, client: Client) -> None:
    put(client)
    asked = site.post("/schedules/delete", {"name": "nightly"})
    assert "Delete schedule nightly?" in asked.text
    site.post("/schedules/delete", {"name": "nightly", "typed": "weekly"})
    assert setting(client) == NIGHTLY
    site.post("/schedules/delete", {"name": "nightly", "typed": "nightly"})
    assert setting(client) is None


# ------------------------------------------------------------------------------------------ the form


def test_a_new_schedule_is_stored(site: Site, client: Client) -> None:
    form = fields_in(site.get("/schedules/edit").text)
    answer = site.post("/schedules/set", {**form, "name": "poll", "cron": "@every 10s", "topic": "polls"})
    assert (answer.status, answer.headers["location"]) == (303, "/schedules")
    assert setting(client, "poll") == {"cron": "@every 10s", "topic": "polls"}


def test_a_change_keeps_all_other_fields(site: Site, client: Client) -> None:
    rules = {"retry": {"kind": "constant", "first_ms": 5}}
    given = {
        "headers": {"a": "b"}, "rules": rules, "throttle_keys": ["x", "y"], "priority": -3, "jitter_ms": 7,
        "overlap": "skip", "catch_up": "all", "paused": True, "fairness_key": "acme", "payload": "\n1\n2",
    }  # fmt: skip
    put(client, **given)
    form = fields_in(site.get("/schedules/edit?name=nightly").text)
    site.post("/schedules/set", {**form, "cron": "0 4 * * *"})
    assert setting(client) == NIGHTLY | given | {"cron": "0 4 * * *"}


def test_errors_are_at_the_form_with_the_input(site: Site, client: Client) -> None:
    put(client)
    form = fields_in(site.get("/schedules/edit?name=nightly").text)
    wrong = {
        "cron": "61 * * * *",
        "timezone": "Europe/Berlin",
        "payload": "mine",
        "back": "/schedules/edit?name=nightly",
    }
    answer = site.post("/schedules/set", {**form, **wrong})
    assert answer.status == 400
    with pytest.raises(Invalid) as refused:
        client.put_settings({"schedule.nightly": json.dumps(NIGHTLY | {"cron": wrong["cron"]})})
    for line in refused.value.message.split("\n"):
        assert (
            f"<li>{escape(line, quote=True).replace('&#x27;', '&#39;').replace('&quot;', '&#34;')}</li>" in answer.text
        )
    assert re.search(r'name="cron"[^>]* aria-invalid="true"', answer.text)
    again = fields_in(answer.text)
    assert {name: again[name] for name in wrong} == wrong
    assert 'hx-get="/schedules/edit?name=nightly"' in answer.text
    assert setting(client) == NIGHTLY
    site.post("/schedules/set", {**again, "cron": "0 5 * * *"})
    assert (setting(client)["cron"], setting(client)["payload"]) == ("0 5 * * *", "mine")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"priority": "high"}, "priority: &#39;high&#39; is no whole number"),
        ({"further": "{"}, "further fields: this is not JSON"),
        ({"further": "[" * 60_000}, "further fields: the JSON is nested too deeply"),
        ({"further": "[]," * 40_000}, "further fields: this is too long"),
        ({"further": "[]"}, "further fields: this is JSON, and no object"),
        ({"further": '{"topic": "x"}'}, "topic: it is in a field of its own and in the further fields"),
        ({"name": ""}, "name: a schedule needs one"),
        ({"topic": ""}, "topic"),
    ],
)
def test_each_wrong_field_is_named(site: Site, client: Client, wrong: dict[str, str], said: str) -> None:
    answer = site.post("/schedules/set", {"name": "new", "cron": "@every 1s", "topic": "t", "mark": "", **wrong})
    assert answer.status == 400
    assert said in answer.text[answer.text.index('role="alert"') :]
    assert setting(client, "new") is None


def test_a_change_of_another_user_is_shown_and_not_lost(site: Site, client: Client) -> None:
    put(client)
    form = fields_in(site.get("/schedules/edit?name=nightly").text)
    put(client, cron="0 7 * * *")
    answer = site.post("/schedules/set", {**form, "cron": "0 8 * * *"})
    assert answer.status == 409
    shown = [unescape(one) for one in re.findall(r"<pre><bdi>(.*?)</bdi></pre>", answer.text, re.DOTALL)]
    assert [json.loads(one)["cron"] for one in shown] == ["0 7 * * *"]
    assert "Schedule nightly has changed since this form was made: nothing was changed." in answer.text
    assert 'name="cron" value="0 8 * * *"' in answer.text
    assert setting(client)["cron"] == "0 7 * * *"
    assert site.post("/schedules/set", fields_in(answer.text)).status == 303
    assert setting(client)["cron"] == "0 8 * * *"


def test_a_change_of_another_key_is_no_conflict(site: Site, client: Client) -> None:
    put(client)
    form = fields_in(site.get("/schedules/edit?name=nightly").text)
    client.set_policy("mail", {"max_attempts": 3})
    assert site.post("/schedules/set", {**form, "cron": "0 8 * * *"}).status == 303
    assert setting(client)["cron"] == "0 8 * * *"


@pytest.mark.parametrize("before", ["new", "gone"])
def test_a_schedule_that_came_or_went_is_a_conflict(site: Site, client: Client, before: str) -> None:
    if before == "gone":
        put(client)
    form = fields_in(site.get(f"/schedules/edit{'?name=nightly' if before == 'gone' else ''}").text)
    if before == "gone":
        client.put_settings(remove=["schedule.nightly"])
    else:
        put(client)
    answer = site.post("/schedules/set", {**form, "name": "nightly", "cron": "0 8 * * *", "topic": "t"})
    assert answer.status == 409
    assert setting(client) == (None if before == "gone" else NIGHTLY)


def test_a_schedule_that_is_not_there_has_no_form(site: Site) -> None:
    assert site.get("/schedules/edit?name=none").status == 404


# ------------------------------------------------------------------------------------------ pure parts


json_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
settings = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("cron", "timezone", "topic", "payload", "fairness_key", "payload_base64"), json_texts),
        "catch_up": st.sampled_from(["none", "last", "all"]),
        "overlap": st.sampled_from(["allow", "skip"]),
        "priority": st.integers(-(1 << 31), 1 << 31) | json_texts,
        "jitter_ms": st.integers(0, 1 << 40),
        "paused": st.booleans(),
        "throttle_keys": st.lists(json_texts, max_size=3),
        "headers": st.dictionaries(json_texts, json_texts, max_size=2),
    },
)


@given(settings)
def test_a_form_that_is_not_changed_keeps_the_setting(entry: dict[str, Any]) -> None:
    form = fields_of(json.dumps(entry))
    sent = {name: value.replace("\n", "\r\n") for name, value in form.items()}
    # False is the default, and spaces around the times have no effect.
    wanted = {
        name: value for name, value in entry.items() if (name, value) not in (("paused", False), ("throttle_keys", []))
    }
    found = json.loads(setting_of(sent))
    for name in ("cron", "timezone"):
        if name in wanted:
            wanted[name], found[name] = wanted[name].strip(), found.get(name, "").strip()
    assert found == wanted


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("@every 1m", "every minute"),
        ("@every 90s", "every 90 seconds"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", ""),
        ("30 * * * *", "every hour at minute 30"),
        ("0 3 * * *", "every day at 03:00"),
        ("0 15 3 * * *", "every day at 03:15"),
        ("5 15 3 * * *", ""),
        ("0 0 3 * * *", "every day at 03:00"),
        ("5 3 * * 1", "every Monday at 03:05"),
        ("0 3 * * sun", "every Sunday at 03:00"),
        ("0 3 * * 7", "every Sunday at 03:00"),
        ("0 3 * * MON-FRI", "Monday to Friday at 03:00"),
        ("0 3 1 * *", "on day 1 of each month at 03:00"),
        ("0 3 L * *", "on the last day of each month at 03:00"),
        ("0 3 1 * 1", ""),
        ("0 3 * 6 *", ""),
        ("0,30 3 * * *", ""),
        ("0 3 * * 5#2", ""),
        ("0 24 * * *", ""),
        ("@every 0s", ""),
        ("", ""),
    ],
)
def test_simple_times_have_words(cron: str, words: str) -> None:
    assert in_words(cron) == words
    if words:
        check_schedule(json.dumps({"cron": cron, "topic": "t"}))


@given(st.text() | st.from_regex(r"(\*|[0-9]{1,2}|L|mon)( (\*|[0-9]{1,2}|L|mon|\*/[0-9])){4}", fullmatch=True))
def test_texts_of_any_kind_have_words_or_none(cron: str) -> None:
    assert isinstance(in_words(cron), str)
