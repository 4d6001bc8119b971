"""The settings of a namespace, one entry of them, and their changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from foqs.checks import printable
from foqs.client import Settings, SettingsChange, SettingsStamp
from foqs.console.action import Action, Done, Form, Question
from foqs.console.entries import KINDS, TOPIC, editable, indented, inside, kind_of, layers_of, stored
from foqs.console.fields import whole
from foqs.console.view import Page, View
from foqs.errors import Conflict, Invalid, NotFound
from foqs.settings_log import UNKNOWN, digest_of

MOST_SHOWN = 100
"""Entries of each kind."""
MOST_CHARACTERS = 1_000
"""Of a value, where many are shown."""
_MOST_LINKS = 20


class Row(NamedTuple):
    """An entry. `value` is its beginning if `characters`, the length of the whole value, is not 0."""

    key: str
    value: str
    characters: int
    stamp: SettingsStamp


async def load(view: View) -> Mapping[str, Any]:
    prefix = view.request.query_params.get("prefix", "")
    found = await view.client.settings(prefix)
    keys: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for key in sorted(found.entries):
        keys[kind_of(key)].append(key)
    kinds = [
        (title, len(keys[kind]), [_row(found, key) for key in keys[kind][:MOST_SHOWN]])
        for kind, title in KINDS.items()
        if keys[kind]
    ]
    return {"version": found.version, "kinds": kinds, "prefix": prefix}


def _row(found: Settings, key: str) -> Row:
    value, stamp = found.entries[key], found.stamps.get(key, UNKNOWN)
    characters = len(value) if len(value) > MOST_CHARACTERS else 0
    return Row(key, value[:MOST_CHARACTERS] if characters else indented(value), characters, stamp)


async def load_entry(view: View) -> Mapping[str, Any]:
    """Raises NotFound."""
    key = _key(view)
    found = await _entry(view, key)
    if key and found["value"] is None:
        raise NotFound(f"the settings of namespace {printable(view.ns)} have no entry {printable(key)}")
    return found


def _key(view: View) -> str:
    """Return the key of the page's entry, "" on the page for a new one."""
    return view.request.query_params.get("key", "")


async def _entry(view: View, key: str) -> dict[str, Any]:
    # The layers are above the part that is refreshed: a namespace may have thousands of policies.
    layered = key.startswith(TOPIC) and "hx-request" not in view.request.headers
    found = await view.client.settings(TOPIC if layered else key or _NO_KEY)
    value, name = found.entries.get(key), key.removeprefix(TOPIC)
    narrower = inside(found.entries, name) if layered else []
    return {
        "key": key,
        "version": found.version,
        "value": None if value is None else indented(value),
        "digest": "" if value is None else digest_of(value).digest,
        "stamp": found.stamps.get(key, UNKNOWN),
        "layers": layers_of(found.entries, name) if layered else [],
        "narrower": narrower[:_MOST_LINKS],
        "more_narrower": len(narrower[_MOST_LINKS:]),
        "errors": [],
        "exists": "",
        "stored_value": None,
        "typed_key": key,
        "typed_value": "" if value is None else editable(key, value),
    }


_NO_KEY = "\0"
"""No key begins so: the answer has the version alone."""


async def _put(view: View, form: Form) -> Done | Mapping[str, Any]:
    """Store an entry. Where the service refuses it, or the settings have changed, the form comes again."""
    page_key, version = _key(view), whole("version", form.get("version", ""))
    key, text = page_key or form.get("key", ""), form.get("value", "").replace("\r\n", "\n")
    to = view.url("/settings/entry", key=key)
    try:
        if not key:
            raise Invalid("the key is empty")
        before = (await view.client.settings(key)).entries.get(key)
        if before is not None and text == editable(key, before).replace("\r\n", "\n"):
            return Done(f"Nothing to change: entry {printable(key)} has this value.", to)
        if before is not None and not page_key:
            why = "there is an entry with this key already: nothing was changed"
            return await _again(view, form, [why], exists=key)
        change = await view.client.put_settings({key: stored(key, text)}, expected_version=version)
    except Invalid as error:
        return await _again(view, form, error.message.splitlines())
    except Conflict:
        again = await _again(view, form, [])
        entry = "and so has this entry" if again["digest"] != form.get("digest", "") else "but this entry has not"
        why = f"the settings have changed since version {version}, which this form was made from, {entry}"
        again["errors"] = [f"{why}: nothing was changed"]
        return again | {"stored_value": again["value"] or "(the entry was removed: to save it adds it again)"}
    return _done(f"Entry {printable(key)} is {'added' if before is None else 'changed'}.", change, to)


async def _again(view: View, form: Form, errors: list[str], exists: str = "") -> dict[str, Any]:
    """Return the values of the page with what the user entered, for the present version of the settings."""
    found = await _entry(view, _key(view))
    typed = {"typed_key": form.get("key", ""), "typed_value": form.get("value", "").replace("\r\n", "\n")}
    return found | typed | {"errors": errors, "exists": exists}


def _done(text: str, change: SettingsChange, to: str = "") -> Done:
    return Done(f"{text} {outcome(change)}", to, not change.missing and not change.warnings)


def outcome(change: SettingsChange) -> str:
    """Return the version that a change made, the hosts that did not confirm it, and its warnings."""
    applied = ", ".join(map(printable, change.applied)) or "no host yet"
    words = [f"Version {change.version} is in effect on {applied}."]
    if change.missing:
        words.append(f"Not confirmed, may act on an older version: {', '.join(map(printable, change.missing))}.")
    return " ".join([*words, *(f"Warning: {one}." for one in map(printable, change.warnings))])


async def _ask_remove(view: View, form: Form) -> Question:
    key = form.get("key", "")
    return Question(
        f"Remove entry {printable(key)}?",
        f"The settings of namespace {printable(view.ns)} lose this entry, and hosts act without it from then on.",
        "Remove the entry",
        key,
    )


async def _remove(view: View, form: Form) -> Done:
    key, version = form.get("key", ""), whole("version", form.get("version", ""))
    try:
        change = await view.client.put_settings({}, [key], expected_version=version)
    except Conflict:
        raise changed_since(version) from None
    return _done(f"Entry {printable(key)} is removed.", change, view.url("/settings"))


def changed_since(version: int) -> Conflict:
    return Conflict(
        f"the settings have changed since version {version}, which the page showed: nothing was changed. Open the page "
        "again, and repeat it there"
    )


async def export(view: View) -> Response:
    """The file that `foqs settings import` reads."""
    found = await view.client.settings()
    document = {"namespace": view.ns, "version": found.version, "entries": found.entries}
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in view.ns)
    return Response(
        json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True) + "\n",
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="settings-{name}.json"'},
    )


PAGE = Page("/settings", "Settings", "settings.html", load, key="e")
ENTRY = Page("/settings/entry", "Entry of the settings", "setting.html", load_entry, home="/settings")
EXPORT = Page("/settings/export", "Export", "", export, home="/settings")
PAGES = (PAGE, ENTRY, EXPORT)
ACTIONS = (
    Action("/settings/entry", _put, page=ENTRY),
    Action("/settings/remove", _remove, _ask_remove),
)
