"""The page of the changes of settings, against a real host in memory."""

from __future__ import annotations

import re

import pytest

from foqs.client import Client
from tests.console.asgi import Site
from tests.console.rig import client, reader, service, site, words

__all__ = ["client", "reader", "service", "site"]  # fixtures

HOSTILE = "<script>alert(1)</script>&\"'"
pytestmark = pytest.mark.threads

REVERT = "/changes/revert"


def mark_of(site: Site, of: int, key: str = "") -> str:
    """Return the mark of the form that reverts a key of a version, or all of it; "" without such a form."""
    forms = re.findall(r'<form[^>]*action="/changes/revert">(.*?)</form>', site.get("/changes?all=yes").text, re.DOTALL)
    for fields in [dict(re.findall(r'name="([^"]*)" value="([^"]*)"', form)) for form in forms]:
        if (fields["of"], fields.get("key", "")) == (str(of), key):
            return fields["mark"]
    return ""


def reverted(site: Site, client: Client, version: int, key: str = "", **more: object) -> tuple[int, str]:
    fields = {"of": version, "key": key, "mark": mark_of(site, version, key), "confirmed": "yes", "back": "/changes"}
    done = site.post(REVERT, fields | more)
    return done.status, done.said


def test_settings_without_a_change(client: Client, site: Site) -> None:
    found = site.get("/changes")
    assert (found.status, "The log has no changes." in found.text) == (200, True)


def test_only_the_fields_that_changed_are_shown(client: Client, site: Site) -> None:
    client.put_settings({"topic.mail": '{"paused": true, "max_attempts": 5}'})
    client.put_settings({"topic.mail": '{"max_attempts": 6, "lease_ms": 1000}'})
    client.put_settings({}, ["topic.mail"])
    found = site.get("/changes")
    rows = re.findall(r"<tr>.*?</tr>", found.text.split("Version 2, ")[1].split("</section>")[0], re.DOTALL)
    words = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in rows[1:]]
    assert words == [
        "topic.mail changed lease_ms field added none 1000 Revert the change of topic.mail in version 2",
        "max_attempts 5 6",
        "paused field removed true none",
    ]
    text = found.said
    assert re.search(r"Version 1, .* topic\.mail added whole value none \{ ", text)
    assert "topic.mail removed whole value" in text
    by = client.settings_log().versions[0].stamp.by
    assert f"by {by}" in text


def test_changes_are_found_by_key_and_author(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold", "other": "x"})
    client.put_settings({"plans/zenith": "iron"})
    text = site.get("/changes?prefix=plans/a").said
    assert ("gold" in text, "iron" in text, "other" in text) == (True, False, False)
    by = client.settings_log().versions[0].stamp.by
    assert "iron" in site.get(f"/changes?by={by}").text
    assert "The log has no change of that kind." in site.get("/changes?by=ann").text


def test_the_last_versions_are_shown_first(client: Client, site: Site) -> None:
    for number in range(25):
        client.put_settings({"n": f"value-{number}"})
    found = site.get("/changes")
    assert ("value-24" in found.text, "value-4</code>" in found.text, "value-3</code>" in found.text) == (
        True,
        True,
        False,
    )
    assert "These are the last 20 versions." in found.text
    everything = site.get("/changes?all=yes")
    assert ("value-0" in everything.text, "These are the last" in everything.text) == (True, False)


def test_hostile_texts_are_text(client: Client, site: Site) -> None:
    client.put_settings({HOSTILE: HOSTILE})
    found = site.get("/changes")
    assert (found.status, "<script>alert" in found.text, HOSTILE in words(found)) == (200, False, True)


def test_a_revert_of_one_key_asks_and_says_what_changes(client: Client, site: Site) -> None:
    client.put_settings({"plans/acme": "gold", "other": "x"})
    client.put_settings({"plans/acme": "iron", "other": "y"})
    asked = site.post(
        REVERT, {"of": 2, "key": "plans/acme", "mark": mark_of(site, 2, "plans/acme"), "back": "/changes"}
    )
    assert asked.status == 200
    text = asked.said
    assert "Revert the change of plans/acme in version 2?" in text
    assert "plans/acme: iron → gold." in text
    assert "later changes" not in text
    assert client.settings().version == 2
    assert reverted(site, client, 2, "plans/acme")[0] == 303
    assert client.settings().entries == {"plans/acme": "gold", "other": "y"}


def test_a_revert_of_a_version_takes_its_keys_back(client: Client, site: Site) -> None:
    client.put_settings({"a": "1", "untouched": "1"})
    client.put_settings({"a": "2", "b": "2"})
    client.put_settings({"b": "3", "untouched": "3"})
    asked = site.post(REVERT, {"of": 2, "mark": mark_of(site, 2), "back": "/changes"}).said
    assert "a: 2 → 1; b: 3 → (none)." in asked
    assert "This undoes later changes of these entries too, of version 3." in asked
    assert "Revert 2 entries" in asked
    assert reverted(site, client, 2)[0] == 303
    assert client.settings().entries == {"a": "1", "untouched": "3"}


def test_the_outcome_names_the_new_version(client: Client, site: Site) -> None:
    client.put_settings({"a": "1"})
    assert reverted(site, client, 1, "a")[0] == 303
    text = site.get("/changes").said
    assert "The change of a in version 1 is reverted. Version 2 of the settings is in effect on" in text
    assert client.settings().entries == {}


def test_a_revert_of_a_page_that_is_old_changes_nothing(client: Client, site: Site) -> None:
    client.put_settings({"a": "1"})
    old = mark_of(site, 1, "a")
    client.put_settings({"a": "2"})
    status, text = reverted(site, client, 1, "a", mark=old)
    assert (status, "Entry a has changed since this form was made: nothing was changed." in text) == (409, True)
    assert client.settings().version == 2


def test_a_revert_of_an_old_version_that_changed_does_nothing(client: Client, site: Site) -> None:
    client.put_settings({"a": "1", "b": "1"})
    old = mark_of(site, 1)
    client.put_settings({"other": "x"})
    assert old == mark_of(site, 1) != ""
    client.put_settings({"b": "2"})
    status, text = reverted(site, client, 1, mark=old)
    assert (status, "An entry of version 1 has changed since this form was made" in text) == (409, True)
    assert client.settings().version == 3


def test_a_revert_without_an_effect_makes_no_version(client: Client, site: Site) -> None:
    client.put_settings({"a": "1"})
    client.put_settings({"a": "2"})
    client.put_settings({"a": "1"})
    assert reverted(site, client, 2, "a")[0] == 303
    assert client.settings().version == 3


def test_a_version_that_the_log_lacks_is_not_reverted(client: Client, site: Site) -> None:
    client.put_settings({"a": "1"})
    assert reverted(site, client, 7)[0] == 404
    assert reverted(site, client, 1, "b")[0] == 400
    assert reverted(site, client, 1, of="x")[0] == 400
    assert client.settings().version == 1


def test_a_console_that_only_reads_offers_no_revert(client: Client, site: Site, reader: Site) -> None:
    client.put_settings({"a": "1", "b": "2"})
    assert ">Revert" in site.get("/changes").text
    assert ">Revert" not in reader.get("/changes").text
