"""The allowed columns of a frame with their types, checked before a task sends a row."""

from __future__ import annotations

from collections.abc import Iterable

from foqs.errors import Invalid
from foqs.spark.columns import problems
from foqs.spark.options import ExtraColumns

_TEXT = ("string",)
_BYTES = ("binary", "string")
_NUMBER = ("tinyint", "smallint", "int", "bigint")
COLUMNS = {
    "topic": _TEXT,
    "payload": _BYTES,
    "priority": _NUMBER[:-1],
    "deliver_after": ("timestamp",),
    "delay_ms": _NUMBER,
    "lease_ms": _NUMBER,
    "ttl_ms": _NUMBER,
    "expires_at": ("timestamp",),
    "metadata": _BYTES,
    "headers": ("map<string,string>",),
    "delivery": _TEXT,
    "dedup_key": _TEXT,
    "fairness_key": _TEXT,
    "throttle_keys": ("array<string>",),
    "weight": _NUMBER[:-1],
}
EXTRA = ("string", "boolean", *_NUMBER)
"""Types of a column that is a header: those with one text."""


def check(columns: Iterable[tuple[str, str]], *, has_topic: bool, extra: ExtraColumns = "refuse") -> None:
    """Check `columns`: pairs of a name and Spark's simple name of the type. Raises Invalid, which names every wrong
    column."""
    found = list(columns)
    names = {name.lower() for name, _ in found}
    wrong = problems(found, COLUMNS, EXTRA if extra == "headers" else ())
    if "payload" not in names:
        wrong.append("column payload is missing")
    if "topic" not in names and not has_topic:
        wrong.append("column topic is missing, and so is the option topic")
    if {"deliver_after", "delay_ms"} <= names:
        wrong.append("give the column deliver_after or delay_ms, not both")
    if wrong:
        raise Invalid("; ".join(wrong))


def schema(*, with_topic: bool) -> str:
    """Columns of a SQL table that is declared without any, as DDL."""
    kinds = {name: kinds[-1] if name != "priority" else "int" for name, kinds in COLUMNS.items()}
    left_out = {"delay_ms"} if with_topic else {"delay_ms", "topic"}
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items() if name not in left_out)
