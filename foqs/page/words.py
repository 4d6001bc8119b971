"""Numbers, sizes and times as words. Each function is a filter of the templates."""

from __future__ import annotations

from datetime import UTC, datetime

NOTHING = "–"
"""A value that is absent."""
_UNITS_BYTES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def number(count: int) -> str:
    """
    >>> number(9_999), number(1_250_000)
    ('9,999', '1,250,000')
    """
    return f"{count:,}"


def many(count: int, one: str, plural: str = "") -> str:
    """
    >>> many(1, "topic"), many(2_000, "topic")
    ('1 topic', '2,000 topics')
    """
    return f"{number(count)} {one if count == 1 else plural or one + 's'}"


def size(count: int) -> str:
    """Bytes, in powers of 1,024.

    >>> size(700), size(1536), size(10 << 20)
    ('700 B', '1.5 KiB', '10 MiB')
    """
    for unit_name, factor in _UNITS_BYTES:
        if count >= factor:
            return f"{short(count / factor)} {unit_name}"
    return f"{count} B"


def short(value: float) -> str:
    """Return a number with one digit behind the point below 10, else without any."""
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"


def short_number(count: int) -> str:
    """For the labels of a chart.

    >>> short_number(999), short_number(12_345), short_number(1_250_000)
    ('999', '12k', '1.2M')
    """
    for unit_name, factor in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= factor:
            return f"{short(count / factor)}{unit_name}"
    return str(count)


def share(part: int, whole: int) -> str:
    """
    >>> share(1, 3), share(1, 1_000), share(0, 0)
    ('33 %', '<1 %', '–')
    """
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def duration(ms: int) -> str:
    """
    >>> duration(0), duration(90_000), duration(93_600_000)
    ('0', '1.5 min', '1.1 d')
    """
    for unit_name, unit_ms in _UNITS_MS:
        if ms >= unit_ms:
            return f"{short(ms / unit_ms)} {unit_name}"
    return "0"


def ago(ms: int) -> str:
    """
    >>> ago(90_000), ago(0), ago(-1)
    ('1.5 min ago', 'now', 'now')
    """
    return f"{duration(ms)} ago" if ms > 0 else "now"


def moment(ms: int) -> str:
    """Unix epoch milliseconds, in UTC.

    >>> moment(1_772_625_600_999)
    '2026-03-04 12:00:00 UTC'
    """
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def unit(value: float) -> str:
    """A coordinate or length in an SVG.

    >>> unit(1), unit(2 / 3)
    ('1.0', '0.7')
    """
    return f"{value:.1f}"
