"""The log of settings and the differences of versions, as people read them: tables, JSON and unified diffs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.checks import counted, printable
from foqs.cli.terminal import duration, when
from foqs.settings_log import Value, ValueDigest, gaps

if TYPE_CHECKING:
    from foqs.client import SettingsLog, SettingsStamp, SettingsVersion

_LONG = 60
"""Characters of a JSON object that is shown in several lines."""
_SHOWN = 60
_UNKNOWN = "unknown (a host of an older version)"
_STYLES = {"-": "red", "+": "green", "@": "cyan"}


def unified(changes: Mapping[str, tuple[Value, Value]], before: str, after: str) -> Iterator[str]:
    """Yield the lines of a diff. `before` and `after` name the two sides."""
    yield f"--- {before}"
    yield f"+++ {after}"
    for key, (old, new) in changes.items():
        yield f"@@ {printable(key)} @@"
        long = any(isinstance(value, str) and len(value) > _LONG for value in (old, new))
        lines = difflib.unified_diff(_lines(old, long=long), _lines(new, long=long), lineterm="")
        for line in list(lines)[3:]:
            yield "..." if line.startswith("@@") else printable(line)


def _lines(value: Value, *, long: bool) -> list[str]:
    if value is None:
        return []
    if isinstance(value, ValueDigest):
        return [f"({counted(value.size_bytes, 'byte')} that the log does not have, digest {value.digest})"]
    try:
        found = json.loads(value) if long else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        value = json.dumps(found, ensure_ascii=False, indent=2)
    return value.splitlines() or [""]


def show(lines: Iterator[str]) -> None:
    """Print a diff, in colours on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    for line in lines:
        style = "bold" if line.startswith(("--- ", "+++ ")) else _STYLES.get(line[:1], "")
        console.print(Text(line, style))


def summary(value: Value) -> str:
    """Return a value in one line, the beginning of a long one."""
    if value is None:
        return "(none)"
    if isinstance(value, ValueDigest):
        return f"({counted(value.size_bytes, 'byte')})"
    first = value.split("\n", 1)[0][:_SHOWN]
    if len(value) <= 2 * _SHOWN and "\n" not in value:
        return printable(value) or '""'
    return f"{printable(first)}... ({len(value):,} characters)"


class Gap(NamedTuple):
    """A version that the log does not have."""

    version: int


class Row(NamedTuple):
    """A row of the table of the log: an entry. The first one of a version has its columns."""

    version: int | None
    when: str
    by: str
    key: str
    change: str


def with_gaps(found: SettingsLog, prefix: str) -> Iterator[SettingsVersion | Gap]:
    """Yield the versions, the newest first. Without a prefix, also those between them that are missing."""
    versions: list[SettingsVersion | Gap] = [*found.versions]
    if not prefix:
        versions += map(Gap, gaps(found.version, [one.version for one in found.versions]))
    yield from sorted(versions, key=lambda one: -one.version)


def rows(one: SettingsVersion | Gap) -> Iterator[Row]:
    if isinstance(one, Gap):
        yield Row(one.version, "-", _UNKNOWN, "-", "-")
        return
    at_ms = one.stamp.changed_at_ms
    head: tuple[int | None, str, str] = one.version, when(at_ms) if at_ms else "-", author(one.stamp) or "-"
    lines = [(printable(key), f"{summary(old)} -> {summary(new)}") for key, (old, new) in one.changes.items()]
    if one.left_out:
        lines.append((f"({one.left_out:,} more)", "too many for the log"))
    for key, change in lines or [("-", "the values that the entries had")]:
        yield Row(*head, key, change)
        head = None, "", ""


def record(one: SettingsVersion | Gap) -> dict[str, Any]:
    """Return a version of the log as it is written in JSON."""
    if isinstance(one, Gap):
        return {"version": one.version, "changed_at_ms": None, "by": _UNKNOWN, "changes": None, "left_out": None}
    changes = [{"key": key, "old": _plain(old), "new": _plain(new)} for key, (old, new) in one.changes.items()]
    return {"version": one.version, **stamp(one.stamp), "changes": changes, "left_out": one.left_out}


def stamp(given: SettingsStamp | None) -> dict[str, Any]:
    """Return the fields of a stamp in JSON."""
    if given is None:
        return {"changed_at_ms": None, "by": None}
    return {"changed_at_ms": given.changed_at_ms or None, "by": given.by or None}


def age(given: SettingsStamp | None, now_ms: int) -> str | None:
    """`now_ms` is the server's time."""
    return f"{duration(now_ms - given.changed_at_ms)} ago" if given is not None and given.changed_at_ms else None


def author(given: SettingsStamp | None) -> str | None:
    return printable(given.by) if given is not None and given.by else None


def _plain(value: Value) -> object:
    return value._asdict() if isinstance(value, ValueDigest) else value
