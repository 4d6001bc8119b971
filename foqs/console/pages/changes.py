"""The changes of a namespace's settings, and their way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from foqs.checks import printable
from foqs.client import SettingsLog, SettingsStamp, SettingsVersion
from foqs.console.action import Action, Done, Form, Question
from foqs.console.entries import Difference, differences
from foqs.console.fields import whole
from foqs.console.marks import check_mark, mark_of, outdated, said_of
from foqs.console.view import Page, View
from foqs.errors import Conflict, Invalid, NotFound
from foqs.settings_log import MOST_VERSIONS, Value, gaps, undoing

SHOWN_VERSIONS = 20
MOST_CHANGES = 50
"""Keys of a version that are shown."""
_MOST_CHARACTERS = 2_000
_MOST_NAMED = 10


class Entry(NamedTuple):
    """A key that a version changed. `word` says how: added, removed or changed. `mark` is that of its present value."""

    key: str
    word: str
    differences: list[Difference]
    mark: str


class Row(NamedTuple):
    """A version. `known` is False for one that the log does not have. `more`: changed keys that are not in `entries`;
    `left_out` of these have no values in the log. `mark` is that of the present values of its keys."""

    version: int
    stamp: SettingsStamp
    entries: list[Entry]
    more: int
    left_out: int
    mark: str = ""
    known: bool = True


async def load(view: View) -> Mapping[str, Any]:
    prefix, author = view.request.query_params.get("prefix", ""), view.asked("by")
    is_all = view.asked("all") == "yes"
    # One more shows if there are more. An author may have made only old ones.
    limit = MOST_VERSIONS if author or is_all else SHOWN_VERSIONS + 1
    found = await view.client.settings_log(prefix, limit=limit)
    versions = [one for one in found.versions if not author or one.stamp.by == author]
    shown = versions if is_all else versions[:SHOWN_VERSIONS]
    missing = set() if prefix or author else set(gaps(found.version, [one.version for one in shown]))
    now = _now(found.versions)
    rows = [
        *(_row(one, now) for one in shown),
        *(Row(version, SettingsStamp(), [], 0, 0, known=False) for version in missing),
    ]
    return {
        "version": found.version,
        "rows": sorted(rows, key=lambda row: -row.version),
        "has_more": len(versions) > len(shown),
        "most": MOST_VERSIONS,
        "prefix": prefix,
        "author": author,
    }


def _now(versions: Sequence[SettingsVersion]) -> dict[str, Value]:
    """Return the present values of the keys that the versions changed, the newest version first."""
    now: dict[str, Value] = {}
    for one in versions:
        for key, (_, new) in one.changes.items():
            now.setdefault(key, new)
    return now


def _row(one: SettingsVersion, now: Mapping[str, Value]) -> Row:
    entries = [
        Entry(key, _word(old, new), [_short(each) for each in differences(old, new)], mark_of(now[key]))
        for key, (old, new) in [*one.changes.items()][:MOST_CHANGES]
    ]
    more = len(one.changes) + one.left_out - len(entries)
    mark = mark_of(*(now[key] for key in sorted(one.changes)))
    return Row(one.version, one.stamp, entries, more, one.left_out, mark)


def _word(old: Value, new: Value) -> str:
    if old is None:
        return "added"
    return "removed" if new is None else "changed"


def _short(one: Difference) -> Difference:
    return one._replace(old=_cut(one.old), new=_cut(one.new))


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"


# ------------------------------------------------------------------------------------- the way back


class Way(NamedTuple):
    """A change that undoes an earlier one: the entries to put, and the keys to remove, in this version of the settings.
    `now`: present values of these keys, as far as the log has them. `also`: later versions that it undoes for these
    keys."""

    put: dict[str, str]
    removed: list[str]
    version: int
    now: Mapping[str, Value]
    also: list[int]


async def _ask(view: View, form: Form) -> Question | None:
    of, key = _fields(form)
    way = await _way_back(view, form)
    if not way.put and not way.removed:
        return None
    lines = [*_words(way)]
    more = f"; and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    text = f"{'; '.join(lines[:_MOST_NAMED])}{more}."
    if way.also:
        text += (
            f" This undoes later changes of {'this entry' if key else 'these entries'} too, of {_numbers(way.also)}."
        )
    what = f"the change of {printable(key)} in version {of}" if key else f"all changes of version {of}"
    count = len(way.put) + len(way.removed)
    several = "1 entry" if count == 1 else f"{count:,} entries"
    return Question(f"Revert {what}?", f"The settings get a new version. {text}", f"Revert {several}")


def _words(way: Way) -> Iterator[str]:
    for key in sorted((*way.put, *way.removed)):
        for one in differences(way.now[key], way.put.get(key)):
            name = printable(key) + (f", {printable(one.field)}" if one.field else "")
            yield f"{name}: {_said(one.old)} → {_said(one.new)}"


def _said(text: str | None) -> str:
    if text is None:
        return "(none)"
    text = " ".join(text.split())
    return printable(f"{text[:200]}…" if len(text) > 200 else text) or '""'


def _numbers(versions: Sequence[int]) -> str:
    return f"version {versions[0]}" if len(versions) == 1 else f"versions {', '.join(map(str, versions))}"


async def _revert(view: View, form: Form) -> Done:
    of, key = _fields(form)
    way = await _way_back(view, form)
    if not way.put and not way.removed:
        return Done(f"Nothing to change: the settings have the values from before version {of} already.")
    try:
        change = await view.client.put_settings(way.put, way.removed, expected_version=way.version)
    except Conflict:
        raise outdated(_what(key, of)) from None
    what = f"The change of {printable(key)} in version {of} is" if key else f"All changes of version {of} are"
    return Done(f"{what} reverted.{said_of(change)}", well=not change.missing and not change.warnings)


def _fields(form: Form) -> tuple[int, str]:
    """Return the version to undo, and the key ("": all keys of that version). Raises Invalid."""
    return whole("of", form.get("of", "")), form.get("key", "")


def _what(key: str, of: int) -> str:
    return f"Entry {printable(key)}" if key else f"An entry of version {of}"


async def _way_back(view: View, form: Form) -> Way:
    """Raises Conflict, Invalid, and NotFound if the log does not suffice."""
    of, key = _fields(form)
    found: SettingsLog = await view.client.settings_log()
    record = next((one for one in found.versions if one.version == of), None)
    if record is None:
        raise NotFound(f"version {of} cannot be reverted: the log does not have it")
    keys = {key} if key else {*record.changes}
    if not keys or (key and key not in record.changes):
        raise Invalid(f"version {of} did not change {printable(key) if key else 'an entry'}")
    now = _now(found.versions)
    check_mark(form.get("mark", ""), _what(key, of), *(now[one] for one in sorted(keys)))
    put, removed = undoing(found.versions[::-1], found.version, of - 1, keys)
    also = sorted(one.version for one in found.versions if one.version > of and keys & one.changes.keys())
    return Way(put, removed, found.version, now, also)


PAGE = Page("/changes", "Changes", "changes.html", load, key="h")
PAGES = (PAGE,)
ACTIONS = (Action("/changes/revert", _revert, _ask),)
