"""Forms that change one entry of the settings, and the words about such a change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from foqs.checks import printable
from foqs.client import Conflict, SettingsChange


def mark_of(text: str | None) -> str:
    """Return what a form sends back of the entry that it was made from; "" for an entry that does not exist."""
    return "" if text is None else sha256(text.encode()).hexdigest()[:24]


def check_mark(entries: Mapping[str, str], key: str, mark: str) -> None:
    """Raise Conflict if the entry is another one than that with the mark."""
    if mark_of(entries.get(key)) != mark:
        what = f"{printable(key)} was changed after this form was made" if mark else f"{printable(key)} exists already"
        raise Conflict(
            f"{what}. Nothing is changed. Compare your input with the stored entry: sent again, the form replaces it"
        )


def said_of(change: SettingsChange | None) -> str:
    """Return the version, the hosts that did not confirm it, and the warnings, as the rest of a notice."""
    if change is None:
        return ""
    missing = f" Hosts that did not confirm it: {', '.join(change.missing)}." if change.missing else ""
    warnings = "".join(f" Warning: {one}." for one in change.warnings)
    return f" Version {change.version} of the settings.{missing}{warnings}"
