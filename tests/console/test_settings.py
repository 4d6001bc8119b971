"""The pages of the settings, against a real host in memory."""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.parse import quote

import pytest

from foqs.client import Client
from foqs.console.entries import indented, layers_of
from tests.console.asgi import Site
from tests.console.rig import client, reader, service, site, words

__all__ = ["client", "reader", "service", "site"]  # fixtures

HOSTILE = "<script>alert(1)</script>&\"'"

pytestmark = pytest.mark.threads

ENTRY = "/settings/entry"


def entry_path(key: str) -> str:
    return f"{ENTRY}?key={quote(key, safe='')}"


def form_of(site: Site, key: str) -> dict[str, str]:
    """Return the hidden fields of the form of an entry."""
    found = re.findall(r'type="hidden" name="(mark|key)" value="([^"]*)"', site.get(entry_path(key)).text)
    return {"key": key} | {name: unescape(value) for name, value in found}


def test_settings_that_were_never_written(client: Client, site: Site) -> None:
    found = site.get("/settings")
    assert found.status == 200
    assert "The settings have no entries." in found.text
    assert "never written" in found.text


def test_entries_are_shown_by_kind(client: Client, site: Site) -> None:
    change = client.put_settings(
        {
            "topic.mail": '{"paused": true, "max_attempts": 5}', "throttle.api": '{"per_second": 10}',
            "weight.acme": "7", "script.s": "function on_failure() end", "plans/acme": HOSTILE,
        }
    )  # fmt: skip
    found = site.get("/settings")
    assert found.status == 200
    headings = re.findall(r"<h2>([^<]*)</h2>", found.text)
    others = "Other entries, for your own programs and for scripts"
    assert headings[:5] == ["Topic policies", "Throttles", "Weights", "Scripts", others]
    assert f"Version {change.version} is in effect" in found.text
    assert '<pre>{\n  "paused": true,\n  "max_attempts": 5\n}</pre>' in words(found)
    assert "<script>alert" not in found.text
    assert HOSTILE in words(found)
    stamp = client.settings().stamps["weight.acme"]
    assert stamp.by in found.text


def test_entries_are_found_by_the_beginning_of_their_keys(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold", "plans/zenith": "iron", "other": "x"})
    found = site.get("/settings?prefix=plans/a")
    assert "gold" in found.text
    assert "iron" not in found.text
    assert "No entry has a key that begins so." in site.get("/settings?prefix=none").text


def test_only_the_first_of_many_entries_are_shown(client: Client, site: Site) -> None:
    client.put_settings({f"many/{n:04}": "v" * (2_000 if n == 0 else 1) for n in range(150)})
    found = site.get("/settings")
    assert "These are the first 100 of 150 by key" in found.text
    assert "many/0099" in found.text
    assert "many/0100" not in found.text
    assert "the first 1,000 of 2,000 characters" in found.text
    assert "v" * 1_001 not in found.text
    assert "v" * 2_000 in site.get(entry_path("many/0000")).text


def test_an_entry_shows_its_value_its_author_and_its_layers(client: Client, site: Site) -> None:
    client.put_settings(
        {
            "topic.mail": '{"max_attempts": 5}', "topic.ma*": '{"max_attempts": 7, "lease_ms": 1000}',
            "topic.*": '{"max_attempts": 9, "lease_ms": 2000, "per_worker": 3}', "topic.other": '{"per_worker": 1}',
        }
    )  # fmt: skip
    found = site.get(entry_path("topic.mail")).said
    assert "max_attempts 5 this entry topic.ma* 7 topic.* 9" in found
    assert "lease_ms 1000 topic.ma* topic.* 2000" in found
    assert "per_worker 3 topic.*" in found
    wider = site.get(entry_path("topic.ma*")).said
    assert "Policies that win over this one, for the topics that they name topic.mail" in wider
    assert "topic.other" not in wider


def test_the_layers_agree_with_the_service(client: Client) -> None:
    entries = {
        "topic.mail": '{"max_attempts": 5}', "topic.m*": '{"lease_ms": 1000}', "topic.mai*": '{"lease_ms": 3000}',
        "topic.*": '{"lease_ms": 2000, "per_worker": 3}',
    }  # fmt: skip
    client.put_settings(entries)
    stats = client.topic_stats("mail")
    layers = layers_of(entries, "mail")
    assert [one.field for one in layers] == ["lease_ms", "max_attempts", "per_worker"]
    for one in layers:
        assert (one.key, json.loads(one.value)) == (stats.policy_layers[one.field], stats.policy[one.field])


def test_an_entry_is_changed(client: Client, site: Site) -> None:
    client.put_settings({"topic.mail": '{"paused": true}'})
    fields = {"value": '{\r\n  "paused": false,\r\n  "max_attempts": 4\r\n}'}
    done = site.post(ENTRY, form_of(site, "topic.mail") | fields)
    assert done.status == 303
    assert client.settings().entries == {"topic.mail": '{"paused": false, "max_attempts": 4}'}


def test_the_console_is_the_author_where_users_have_no_token(client: Client, site: Site) -> None:
    site.post(ENTRY, {"mark": "", "key": "plans/acme", "value": "gold"})
    assert client.settings().stamps["plans/acme"].by == "console at 127.0.0.1"
    assert "by console at 127.0.0.1" in site.get(entry_path("plans/acme")).said
    assert "plans/acme" in site.get("/changes?by=console+at+127.0.0.1").said


def test_an_outcome_is_said_once(client: Client, site: Site) -> None:
    change = client.put_settings({"plans/acme": "gold"})

    done = site.post(ENTRY, form_of(site, "plans/acme") | {"value": "iron\r\nwill"})
    assert (done.status, done.headers["location"]) == (303, entry_path("plans/acme"))
    said = f"Entry plans/acme is changed. Version {change.version + 1} of the settings is in effect on"
    assert said in site.get(done.headers["location"]).text
    assert said not in site.get(done.headers["location"]).text
    assert client.settings().entries["plans/acme"] == "iron\nwill"


def test_a_change_without_effect_makes_no_version(client: Client, site: Site) -> None:
    value = '{"paused": true}'
    change = client.put_settings({"topic.mail": value})
    site.post(ENTRY, form_of(site, "topic.mail") | {"value": indented(value).replace("\n", "\r\n")})
    assert client.settings().version == change.version


def test_every_error_is_shown_with_the_input(client: Client, site: Site) -> None:
    change = client.put_settings({"topic.mail": '{"paused": true}'})
    typed = '{"max_attemps": 5, "lease_ms": -1}'
    found = site.post(ENTRY, form_of(site, "topic.mail") | {"value": typed, "back": entry_path("topic.mail")})
    assert found.status == 400
    assert "there is no field &#34;max_attemps&#34;" in found.text
    assert len(re.findall(r"<li>topic\.mail", found.text)) == 2
    assert f">\n{typed}</textarea>" in words(found)
    assert client.settings().version == change.version
    assert f'hx-get="{entry_path("topic.mail")}"' in words(found)


def test_a_push_target_is_checked_and_stored(client: Client, site: Site) -> None:
    key, value = "push.orders", {"topic": "orders", "url": "https://hooks.example.com/a?b=c"}
    wrong = site.post(ENTRY, {"mark": "", "key": key, "value": indented(json.dumps(value | {"url": "https://u:p@h/"}))})
    assert wrong.status == 400
    assert re.search(r"<li>push\.orders: url: it has a user or a password", wrong.text)
    assert site.post(ENTRY, {"mark": "", "key": key, "value": indented(json.dumps(value))}).status == 303
    assert client.settings().entries == {key: json.dumps(value)}
    assert "<h2>Push targets</h2>" in site.get("/settings").text
    assert '"topic": "orders",\n' in words(site.get(entry_path(key)))


def test_a_conflict_shows_the_stored_value_and_the_input(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold"})
    form = form_of(site, "plans/acme")
    client.put_settings({"plans/acme": "silver"})
    found = site.post(ENTRY, form | {"value": HOSTILE})
    assert found.status == 400
    assert "Entry plans/acme has changed since this form was made: nothing was changed." in found.text
    assert "<pre>silver</pre>" in found.text
    assert f">\n{HOSTILE}</textarea>" in words(found)
    assert "<script>alert" not in found.text
    assert client.settings().entries == {"plans/acme": "silver"}
    again = re.search(r'name="mark" value="([^"]+)"', found.text)
    assert again is not None
    assert site.post(ENTRY, form | {"mark": again[1], "value": "x"}).status == 303
    assert client.settings().entries == {"plans/acme": "x"}


def test_a_change_of_another_entry_is_no_conflict(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold"})
    form = form_of(site, "plans/acme")
    client.put_settings({"b": "silver"})
    assert site.post(ENTRY, form | {"value": "iron"}).status == 303
    assert client.settings().entries == {"plans/acme": "iron", "b": "silver"}


def test_a_conflict_with_a_removal(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold"})
    form = form_of(site, "plans/acme")
    client.put_settings({}, ["plans/acme"])
    found = site.post(ENTRY, form | {"value": "iron"})
    assert (found.status, "The settings have no such entry: to save it adds it." in found.text) == (400, True)
    assert client.settings().entries == {}


def test_an_entry_is_added_once(client: Client, site: Site) -> None:
    assert 'name="mark" value=""' in site.get(ENTRY).text
    assert site.post(ENTRY, {"mark": "", "key": "plans/a b", "value": "gold"}).status == 303
    assert client.settings().entries == {"plans/a b": "gold"}
    again = site.post(ENTRY, {"mark": "", "key": "plans/a b", "value": "iron"})
    assert (again.status, "Entry plans/a b exists already" in again.text) == (400, True)
    assert ("<pre>gold</pre>" in again.text, ">\niron</textarea>" in again.text) == (True, True)
    assert client.settings().entries == {"plans/a b": "gold"}
    empty = site.post(ENTRY, {"mark": "", "key": "", "value": "iron"})
    assert (empty.status, "the key is empty" in empty.text) == (400, True)


@pytest.mark.parametrize("key", ["topic.mail", HOSTILE])
def test_a_link_fills_the_key_of_a_new_entry(client: Client, site: Site, reader: Site, key: str) -> None:
    found = site.get(entry_path(key))
    assert (found.status, "New entry" in found.said) == (200, True)
    assert f'name="key" value="{key}"' in words(found)
    assert "<script>alert" not in found.text
    assert site.post(ENTRY, form_of(site, key) | {"value": "{}"}).status == 303
    assert client.settings().entries == {key: "{}"}
    assert reader.get(entry_path("none")).status == 404


def test_a_topic_without_a_policy_leads_to_the_form_of_one(client: Client, site: Site) -> None:
    assert f'href="{entry_path("topic.a&b")}">Add one</a>' in site.get("/topics/a%26b").text
    client.set_policy("a&b", {"max_attempts": 3})
    assert f'href="{entry_path("topic.a&b")}">Edit policy</a>' in site.get("/topics/a%26b").text


def test_warnings_of_a_change_are_in_the_notice(client: Client, site: Site) -> None:
    done = site.post(ENTRY, {"mark": "", "key": "topc.mail", "value": "x"})
    text = words(site.get(done.headers["location"]))
    assert '<div class="notice warn"' in text
    assert "Warning: topc.mail" in text


def test_a_removal_asks_for_the_key(client: Client, site: Site) -> None:
    change = client.put_settings({"plans/acme": "gold", "b": "c"})
    fields = form_of(site, "plans/acme") | {"back": "/settings"}
    asked = site.post("/settings/remove", fields)
    assert (asked.status, "Type plans/acme to confirm" in asked.said) == (200, True)
    assert site.post("/settings/remove", fields | {"typed": "plans"}).status == 200
    assert client.settings().version == change.version
    done = site.post("/settings/remove", fields | {"typed": "plans/acme"})
    assert (done.status, done.headers["location"]) == (303, "/settings")
    assert client.settings().entries == {"b": "c"}


def test_a_removal_after_another_change_does_nothing(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold"})
    fields = form_of(site, "plans/acme") | {"typed": "plans/acme"}
    new = client.put_settings({"plans/acme": "iron"})
    assert site.post("/settings/remove", fields).status == 409
    assert client.settings().version == new.version


def test_the_export_is_what_import_reads(client: Client, site: Site) -> None:
    entries = {"topic.mail": '{"paused": true}', "plans/ä": HOSTILE}
    change = client.put_settings(entries)
    found = site.get("/settings/export")
    assert found.headers["content-disposition"] == 'attachment; filename="settings-default.json"'
    assert json.loads(found.text) == {"namespace": "default", "version": change.version, "entries": entries}


def test_a_console_that_only_reads_offers_no_change(client: Client, site: Site, reader: Site) -> None:
    client.put_settings({"plans/acme": "gold"})
    assert "Add an entry" in site.get("/settings").text
    assert "Add an entry" not in reader.get("/settings").text
    found = reader.get(entry_path("plans/acme"))
    assert "<pre>gold</pre>" in found.text
    assert "<textarea" not in found.text
    assert reader.post(ENTRY, form_of(site, "plans/acme") | {"value": "x"}).status == 403


@pytest.mark.parametrize("key", [HOSTILE, "..", "a/b?c#d", " spaces ", "topic.*", "ключ"])
def test_keys_with_any_letters(client: Client, site: Site, key: str) -> None:
    client.put_settings({key: '{"paused": true}'})
    assert quote(key, safe="") in site.get("/settings").text.replace("+", "%20")
    found = site.get(entry_path(key))
    assert (found.status, "<script>alert" in found.text) == (200, False)
    assert site.post(ENTRY, form_of(site, key) | {"value": '{"paused": false}'}).status == 303
    assert client.settings().entries == {key: '{"paused": false}'}
