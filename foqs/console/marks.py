"""When a form about entries of the settings is outdated, and the words about their change. Pure."""

from __future__ import annotations

from foqs.checks import printable
from foqs.client import Conflict, SettingsChange
from foqs.settings_log import Value, ValueDigest, digest_of


def mark_of(*values: Value) -> str:
    """Return what a form sends back of the values that it was made from; "" for a single one that does not exist."""
    marks = ["" if one is None else (one if isinstance(one, ValueDigest) else digest_of(one)).digest for one in values]
    return marks[0] if len(marks) == 1 else digest_of(".".join(marks)).digest


def check_mark(mark: str, what: str, *now: Value) -> None:
    """Raise Conflict if the values, `what` in words, have another mark than the form was made with."""
    if mark_of(*now) != mark:
        raise outdated(what) if mark else Conflict(f"{what} exists already{_AGAIN}")


def outdated(what: str) -> Conflict:
    return Conflict(f"{what} has changed since this form was made{_AGAIN}")


_AGAIN = ": nothing was changed. Look at the stored value, then send the form again"


def said_of(change: SettingsChange | None) -> str:
    """Return the version, the hosts that did not confirm it, and the warnings, as the rest of a notice."""
    if change is None:
        return ""
    applied = ", ".join(map(printable, change.applied)) or "no host yet"
    words = [f" Version {change.version} of the settings is in effect on {applied}."]
    if change.missing:
        words.append(f"Not confirmed, may act on an older version: {', '.join(map(printable, change.missing))}.")
    return " ".join([*words, *(f"Warning: {one}." for one in map(printable, change.warnings))])
