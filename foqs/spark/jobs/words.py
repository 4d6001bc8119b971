"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from foqs.spark.jobs.summary import AGES_MS, PRIORITIES, SIZES_BYTES

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_UNITS_BYTES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def duration(ms: int) -> str:
    """
    >>> duration(0), duration(90_000), duration(93_600_000)
    ('0', '1.5 min', '1.1 d')
    """
    for unit, size in _UNITS_MS:
        if ms >= size:
            return f"{_short(ms / size)} {unit}"
    return "0"


def size(count: int) -> str:
    """
    >>> size(700), size(1536), size(10 << 20)
    ('700 B', '1.5 KiB', '10 MiB')
    """
    for unit, factor in _UNITS_BYTES:
        if count >= factor:
            return f"{_short(count / factor)} {unit}"
    return f"{count} B"


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


def short_number(count: int) -> str:
    """For the labels of a chart.

    >>> short_number(999), short_number(12_345), short_number(1_250_000)
    ('999', '12k', '1.2M')
    """
    for unit, factor in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= factor:
            return f"{_short(count / factor)}{unit}"
    return str(count)


def moment(ms: int) -> str:
    """Unix epoch milliseconds, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age_labels() -> list[str]:
    return [f"<{duration(bound)}" for bound in AGES_MS[1:]] + [f"≥{duration(AGES_MS[-1])}"]


def size_labels() -> list[str]:
    return [f"<{size(bound)}" for bound in SIZES_BYTES[1:]] + [f"≥{size(SIZES_BYTES[-1])}"]


def priority_labels() -> list[str]:
    """Return a priority's label: exact values unchanged, ranges by the end nearer to 0."""
    labels = []
    for low, after in zip(PRIORITIES, (*PRIORITIES[1:], None), strict=True):
        if after is not None and after == low + 1:
            labels.append(str(low))
        elif low < 0:
            labels.append("≤-" + short_number(1 - (after or 0)))
        else:
            labels.append("≥" + short_number(low))
    return labels


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"
