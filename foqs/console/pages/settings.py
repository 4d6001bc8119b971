"""The settings of a namespace, one entry of them, and their changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from foqs.checks import printable
from foqs.client import Settings, SettingsChange, SettingsStamp
from foqs.client.settings_types import Changes
from foqs.console.action import Action, Done, Form, Question
from foqs.console.entries import KINDS, TOPIC, editable, indented, inside, kind_of, layers_of, stored
from foqs.console.marks import check_mark, mark_of, said_of
from foqs.console.view import Page, View, path_of
from foqs.errors import Conflict, Invalid, NotFound
from foqs.policies.entries import PUSH
from foqs.settings_log import UNKNOWN

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
    """An entry, or the form for a new one, with the key of a link. Raises NotFound where it may not be added."""
    key = view.request.query_params.get("key", "")
    found = await _entry(view, key)
    if found["value"] is None and key and not view.may_change:
        raise NotFound(f"the settings of namespace {printable(view.ns)} have no entry {printable(key)}")
    return found


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
        "mark": mark_of(value),
        "stamp": found.stamps.get(key, UNKNOWN),
        "layers": layers_of(found.entries, name) if layered else [],
        "narrower": narrower[:_MOST_LINKS],
        "more_narrower": len(narrower[_MOST_LINKS:]),
        "push_url": _push_url(view, key) if value is not None and key.startswith(PUSH) else "",
        "errors": [],
        "compared": False,
        "typed": "" if value is None else editable(key, value),
    }


def _push_url(view: View, key: str) -> str:
    return view.url(path_of("/push", "name", key.removeprefix(PUSH)))


_NO_KEY = "\0"
"""No key begins so: the answer has the version alone."""


async def _put(view: View, form: Form) -> Done | Mapping[str, Any]:
    """Store an entry. Where the service refuses it, or the entry has changed, the form comes again."""
    key, text, mark = form.get("key", ""), form.get("value", "").replace("\r\n", "\n"), form.get("mark", "")
    to = view.url("/settings/entry", key=key)
    try:
        if not key:
            raise Invalid("the key is empty")

        def decide(entries: Mapping[str, str]) -> Changes:
            before = entries.get(key)
            if before is not None and text == editable(key, before).replace("\r\n", "\n"):
                return {}, ()
            check_mark(mark, f"Entry {printable(key)}", before)
            return {key: stored(key, text)}, ()

        change = await view.client.change_settings(decide)
    except Invalid as error:
        return await _entry(view, key) | {"errors": error.message.splitlines(), "mark": mark, "typed": text}
    except Conflict as error:
        return await _entry(view, key) | {"errors": [error.message], "compared": True, "typed": text}
    if change is None:
        return Done(f"Nothing to change: entry {printable(key)} has this value.", to)
    return _done(f"Entry {printable(key)} is {'changed' if mark else 'added'}.", change, to)


def _done(text: str, change: SettingsChange | None, to: str) -> Done:
    return Done(text + said_of(change), to, change is None or not (change.missing or change.warnings))


async def _ask_remove(view: View, form: Form) -> Question:
    key = form.get("key", "")
    return Question(
        f"Remove entry {printable(key)}?",
        f"The settings of namespace {printable(view.ns)} lose this entry, and hosts act without it from then on.",
        "Remove the entry",
        key,
    )


async def _remove(view: View, form: Form) -> Done:
    key = form.get("key", "")

    def decide(entries: Mapping[str, str]) -> Changes:
        check_mark(form.get("mark", ""), f"Entry {printable(key)}", entries.get(key))
        return {}, [key]

    change = await view.client.change_settings(decide)
    return _done(f"Entry {printable(key)} is removed.", change, view.url("/settings"))


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
