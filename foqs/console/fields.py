"""Values that users type into forms. Pure."""

from __future__ import annotations

import re

from foqs.bounds import MOST_PACE
from foqs.checks import shown
from foqs.errors import Invalid

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|min|m|h|d)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def duration_ms(label: str, text: str) -> int:
    """Return a duration. Raises Invalid, with the label of the field.

    >>> duration_ms("Delay", "10m"), duration_ms("Delay", "1.5 h"), duration_ms("Delay", "0s")
    (600000, 5400000, 0)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise Invalid(
            f"{label}: {shown(text)} is no duration: give a number with ms, s, m, h or d, such as 30s, 10m or 2h"
        )
    return round(float(found[1]) * _UNITS_MS[found[2]])


def whole(label: str, text: str) -> int:
    """Return a whole number. Raises Invalid, with the label of the field."""
    if _WHOLE.fullmatch(text.strip()) is None:
        raise Invalid(f"{label}: {shown(text)} is no whole number")
    return int(text)


def between(label: str, text: str) -> tuple[int | None, int | None]:
    """Return the bounds of a number, both included: of one value, or of a range that may have one end only. Raises
    Invalid, with the label of the field.

    >>> between("Priority", "5"), between("Priority", "-5..10"), between("Priority", "..0"), between("Priority", "3..")
    ((5, 5), (-5, 10), (None, 0), (3, None))
    """
    first, is_range, last = text.partition("..")
    if not is_range:
        return (value := whole(label, text)), value
    if not first.strip() and not last.strip():
        raise Invalid(f"{label}: the range has no end: give a number such as 5, or a range such as 1..10, ..0 or 5..")
    return (
        whole(label, first) if first.strip() else None,
        whole(label, last) if last.strip() else None,
    )


def pace(text: str) -> int:
    """Return items a second, 0 for no limit. Raises Invalid."""
    text = text.strip()
    if not text:
        return 0
    if not (_WHOLE.fullmatch(text) and 0 <= (value := int(text)) <= MOST_PACE):
        raise Invalid(f"pace: give whole items a second, 1 to {MOST_PACE:,}, or nothing for no limit")
    return value
