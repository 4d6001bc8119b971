"""Schedules: their next times, the item of the last one, and changes of their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from foqs.checks import printable
from foqs.client import Schedule, SettingsChange
from foqs.client.settings_types import Changes, with_fields
from foqs.console.action import Action, Done, Form, Question
from foqs.console.marks import check_mark, mark_of, said_of
from foqs.console.schedule_form import CATCH_UP, OVERLAP, fields_of, in_words, setting_of
from foqs.console.view import Page, View
from foqs.errors import Conflict, Invalid, NotFound

PAGE_SCHEDULES = 100
_KEY = "schedule."
_SHOWN_TIMES = 5


class Row(NamedTuple):
    """`entry` is the setting. `words`: its times, "" if they are not simple. `next`: (in its zone, in UTC) as ms."""

    schedule: Schedule
    entry: Mapping[str, Any]
    words: str
    zone: str
    next: tuple[tuple[str, int], ...]
    last: str


async def load(view: View) -> Mapping[str, Any]:
    part = view.request.query_params.get("prefix", "")
    found = await view.client.schedules(part, limit=PAGE_SCHEDULES + 1)
    rows = [row_of(one) for one in found.schedules[:PAGE_SCHEDULES]]
    more = len(found.schedules) > PAGE_SCHEDULES
    once = partial(once_key, view)
    return {"rows": rows, "prefix": part, "more": more, "missing": found.missing, "once": once}


def row_of(schedule: Schedule) -> Row:
    entry = json.loads(schedule.setting)
    zone = str(entry.get("timezone", "UTC"))
    last = "" if schedule.last_at_ms is None else _in_zone(schedule.last_at_ms, zone)
    times = tuple((_in_zone(at_ms, zone), at_ms) for at_ms in schedule.next_at_ms[:_SHOWN_TIMES])
    return Row(schedule, entry, in_words(str(entry.get("cron", ""))), zone, times, last)


def _in_zone(at_ms: int, zone: str) -> str:
    """Return a time with the name of its zone at that time; "" in UTC, and in a zone that only the service knows."""
    try:
        if zone == "UTC":
            return ""
        return datetime.fromtimestamp(at_ms // 1_000, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")
    except (KeyError, OSError, ValueError):
        return ""


def once_key(view: View, name: str) -> str:
    """Return the deduplication key of the next item that the user stores of a schedule: a double click has one."""
    digest = sha256(f"{view.session.once}/{name}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"console/{digest[:24]}"


# ------------------------------------------------------------------------------------------ changes


async def _run(view: View, form: Form) -> Done:
    name = form.get("name", "")
    item_id = await view.client.run_schedule(name, dedup_key=form.get("once") or None)
    if form.get("once") == once_key(view, name):
        view.session.renew()
    link = f"item {item_id}", view.url(f"/items/{item_id}")
    return Done(f"An item of schedule {printable(name)} is stored:", links=[link])


async def _pause(view: View, form: Form) -> Done:
    name, paused = form.get("name", ""), form.get("to") == "on"

    def decide(entries: Mapping[str, str]) -> Changes:
        return with_fields(entries, _known(entries, name), {"paused": paused})

    change = await view.client.change_settings(decide)
    words = "paused: no time of it fires" if paused else "resumed: its times fire from now on"
    return _done(f"Schedule {printable(name)} is {words}.", change)


async def _ask_remove(view: View, form: Form) -> Question | None:
    name = form.get("name", "")
    text = "It fires no more times, and its setting is gone. Items that it has stored stay."
    return Question(f"Delete schedule {name}?", text, "Delete the schedule", name)


async def _remove(view: View, form: Form) -> Done:
    name = form.get("name", "")
    change = await view.client.change_settings(lambda entries: ({}, [_known(entries, name)]))
    return _done(f"Schedule {printable(name)} is deleted.", change, view.url("/schedules"))


def _known(entries: Mapping[str, str], name: str) -> str:
    if _KEY + name not in entries:
        raise NotFound(f"there is no schedule {name!r}")
    return _KEY + name


def _done(said: str, change: SettingsChange | None, to: str = "") -> Done:
    return Done(said + said_of(change), to, well=change is None or not (change.missing or change.warnings))


# ------------------------------------------------------------------------------------------ the form


async def load_one(view: View) -> Mapping[str, Any]:
    """The form of a schedule; of a new one without a name."""
    name = view.request.query_params.get("name", "")
    if not name:
        return _values("", fields_of("{}"), "", is_new=True)
    settings = await view.client.settings(_KEY + name)
    text = settings.entries.get(_KEY + name)
    if text is None:
        raise NotFound(f"there is no schedule {name!r}")
    found = (one for one in (await view.client.schedules(name, limit=1)).schedules if one.name == name)
    row = next(map(row_of, found), None)
    return _values(name, fields_of(text), mark_of(text), is_new=False) | {"row": row, "setting": _shown(text)}


def _values(name: str, form: Mapping[str, str], mark: str, is_new: bool) -> dict[str, Any]:
    """Return the values of the template. `mark` is that of the setting from which the form was made."""
    return {
        "name": name, "form": form, "mark": mark, "is_new": is_new, "errors": (), "stored": "", "row": None,
        "catch_up": CATCH_UP, "overlap": OVERLAP,
    }  # fmt: skip


async def _set(view: View, form: Form) -> Done | Mapping[str, Any]:
    """Put the setting unless it has changed since the form was shown."""
    name = form.get("name", "")
    again = _values(name, {**fields_of("{}"), **form}, form.get("mark", ""), not form.get("mark"))
    try:
        if not name:
            raise Invalid("name: a schedule needs one")
        setting = setting_of(form)

        def decide(entries: Mapping[str, str]) -> Changes:
            check_mark(form.get("mark", ""), f"Schedule {printable(name)}", entries.get(_KEY + name))
            return {_KEY + name: setting}, ()

        change = await view.client.change_settings(decide)
    except Invalid as error:
        return again | {"errors": error.message.split("\n")}
    except Conflict as error:
        stored = (await view.client.settings(_KEY + name)).entries.get(_KEY + name)
        return again | {"errors": [error.message], "mark": mark_of(stored), "stored": _shown(stored), "status": 409}
    return _done(f"Schedule {printable(name)} is stored.", change, view.url("/schedules"))


def _shown(setting: str | None) -> str:
    if setting is None:
        return "(there is no such schedule)"
    return json.dumps(json.loads(setting), indent=1, ensure_ascii=False, sort_keys=True)


PAGE = Page("/schedules", "Schedules", "schedules.html", load, key="s")
ONE = Page("/schedules/edit", "Schedule", "schedule.html", load_one, home="/schedules")
ACTIONS = (
    Action("/schedules/run", _run),
    Action("/schedules/pause", _pause),
    Action("/schedules/set", _set, page=ONE),
    Action("/schedules/delete", _remove, _ask_remove),
)
