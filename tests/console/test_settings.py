"""The pages of the settings, against a real host in memory."""

from __future__ import annotations

import json
import re
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
    change = client.put_settings({"topic.mail": '{"paused": true}'})
    fields = {"version": change.version, "value": '{\r\n  "paused": false,\r\n  "max_attempts": 4\r\n}'}
    done = site.post(entry_path("topic.mail"), fields)
    assert done.status == 303
    assert client.settings().entries == {"topic.mail": '{"paused": false, "max_attempts": 4}'}


def test_an_outcome_is_said_once(client: Client, site: Site) -> None:
    change = client.put_settings({"plans/acme": "gold"})

    done = site.post(entry_path("plans/acme"), {"version": change.version, "value": "iron\r\nwill"})
    assert (done.status, done.headers["location"]) == (303, entry_path("plans/acme"))
    said = f"Entry plans/acme is changed. Version {change.version + 1} is in effect on"
    assert said in site.get(done.headers["location"]).text
    assert said not in site.get(done.headers["location"]).text
    assert client.settings().entries["plans/acme"] == "iron\nwill"


def test_a_change_without_effect_makes_no_version(client: Client, site: Site) -> None:
    value = '{"paused": true}'
    change = client.put_settings({"topic.mail": value})
    site.post(entry_path("topic.mail"), {"version": change.version, "value": indented(value).replace("\n", "\r\n")})
    assert client.settings().version == change.version


def test_every_error_is_shown_with_the_input(client: Client, site: Site) -> None:
    change = client.put_settings({"topic.mail": '{"paused": true}'})
    typed = '{"max_attemps": 5, "lease_ms": -1}'
    found = site.post(
        entry_path("topic.mail"), {"version": change.version, "value": typed, "back": entry_path("topic.mail")}
    )
    assert found.status == 400
    assert "there is no field &#34;max_attemps&#34;" in found.text
    assert len(re.findall(r"<li>topic\.mail", found.text)) == 2
    assert f">\n{typed}</textarea>" in words(found)
    assert client.settings().version == change.version
    assert f'hx-get="{entry_path("topic.mail")}"' in words(found)


def test_a_conflict_shows_the_stored_value_and_the_input(client: Client, site: Site) -> None:
    old = client.put_settings({"plans/acme": "gold"})
    new = client.put_settings({"plans/acme": "silver"})
    found = site.post(entry_path("plans/acme"), {"version": old.version, "value": HOSTILE})
    assert found.status == 400
    assert f"the settings have changed since version {old.version}" in found.text
    assert "<pre>silver</pre>" in found.text
    assert f">\n{HOSTILE}</textarea>" in words(found)
    assert "<script>alert" not in found.text
    assert client.settings().entries == {"plans/acme": "silver"}
    again = re.search(r'name="version" value="(\d+)"', found.text)
    assert again is not None
    assert int(again[1]) == new.version
    assert site.post(entry_path("plans/acme"), {"version": again[1], "value": "x"}).status == 303
    assert client.settings().entries == {"plans/acme": "x"}


@pytest.mark.parametrize(
    ("changed", "words_of_it"), [("plans/acme", "and so has this entry"), ("b", "but this entry has not")]
)
def test_a_conflict_says_if_the_entry_has_changed(client: Client, site: Site, changed: str, words_of_it: str) -> None:
    client.put_settings({"plans/acme": "gold"})
    form = site.get(entry_path("plans/acme")).text
    fields = dict(re.findall(r'name="(version|digest)" value="([^"]+)"', form))
    assert fields.keys() == {"version", "digest"}
    client.put_settings({changed: "silver"})
    found = site.post(entry_path("plans/acme"), fields | {"value": "iron"})
    assert (found.status, words_of_it in found.said) == (400, True)


def test_a_conflict_with_a_removal(client: Client, site: Site) -> None:
    old = client.put_settings({"plans/acme": "gold"})
    client.put_settings({}, ["plans/acme"])
    found = site.post(entry_path("plans/acme"), {"version": old.version, "value": "iron"})
    assert (found.status, "the entry was removed" in found.text) == (400, True)
    assert site.get(entry_path("plans/acme")).status == 404


def test_an_entry_is_added_once(client: Client, site: Site) -> None:
    found = site.get(ENTRY)
    assert 'name="version" value="0"' in found.text
    assert site.post(ENTRY, {"version": 0, "key": "plans/a b", "value": "gold"}).status == 303
    assert client.settings().entries == {"plans/a b": "gold"}
    again = site.post(ENTRY, {"version": 1, "key": "plans/a b", "value": "iron"})
    assert (again.status, "there is an entry with this key already" in again.text) == (400, True)
    assert 'value="plans/a b"' in again.text
    assert client.settings().entries == {"plans/a b": "gold"}
    empty = site.post(ENTRY, {"version": 1, "key": "", "value": "iron"})
    assert (empty.status, "the key is empty" in empty.text) == (400, True)


def test_warnings_of_a_change_are_in_the_notice(client: Client, site: Site) -> None:
    done = site.post(ENTRY, {"version": 0, "key": "topc.mail", "value": "x"})
    text = words(site.get(done.headers["location"]))
    assert '<div class="notice warn"' in text
    assert "Warning: topc.mail" in text


def test_a_removal_asks_for_the_key(client: Client, site: Site) -> None:
    change = client.put_settings({"plans/acme": "gold", "b": "c"})
    fields = {"key": "plans/acme", "version": change.version, "back": "/settings"}
    asked = site.post("/settings/remove", fields)
    assert (asked.status, "Type plans/acme to confirm" in asked.said) == (200, True)
    assert site.post("/settings/remove", fields | {"typed": "plans"}).status == 200
    assert client.settings().version == change.version
    done = site.post("/settings/remove", fields | {"typed": "plans/acme"})
    assert (done.status, done.headers["location"]) == (303, "/settings")
    assert client.settings().entries == {"b": "c"}


def test_a_removal_after_another_change_does_nothing(client: Client, site: Site) -> None:
    old = client.put_settings({"plans/acme": "gold"})
    new = client.put_settings({"plans/acme": "iron"})
    fields = {"key": "plans/acme", "version": old.version, "typed": "plans/acme"}
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
    assert reader.post(entry_path("plans/acme"), {"version": 1, "value": "x"}).status == 403


@pytest.mark.parametrize("key", [HOSTILE, "..", "a/b?c#d", " spaces ", "topic.*", "ключ"])
def test_keys_with_any_letters(client: Client, site: Site, key: str) -> None:
    client.put_settings({key: '{"paused": true}'})
    assert quote(key, safe="") in site.get("/settings").text.replace("+", "%20")
    found = site.get(entry_path(key))
    assert (found.status, "<script>alert" in found.text) == (200, False)
    assert site.post(entry_path(key), {"version": 1, "value": '{"paused": false}'}).status == 303
    assert client.settings().entries == {key: '{"paused": false}'}
