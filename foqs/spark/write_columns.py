"""Which columns a frame may have, and of which types: checked before a row is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from foqs.errors import Invalid

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
    "metadata": _BYTES,
    "headers": ("map<string,string>",),
    "delivery": _TEXT,
    "dedup_key": _TEXT,
}


def check(columns: Iterable[tuple[str, str]], *, has_topic: bool) -> None:
    """`columns` are (name, Spark's simple name of the type). Raises Invalid, which names every wrong column."""
    found = list(columns)
    names = [name for name, _ in found]
    wrong = [f"column {name} is unknown: there are {', '.join(COLUMNS)}" for name in names if name not in COLUMNS]
    wrong += [f"column {name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    wrong += [
        f"column {name} is {kind}, not {' or '.join(COLUMNS[name])}"
        for name, kind in found
        if name in COLUMNS and kind not in COLUMNS[name]
    ]
    if "payload" not in names:
        wrong.append("column payload is missing")
    if "topic" not in names and not has_topic:
        wrong.append("column topic is missing, and so is the option topic")
    if {"deliver_after", "delay_ms"} <= set(names):
        wrong.append("of the columns deliver_after and delay_ms there may be one")
    if wrong:
        raise Invalid("; ".join(wrong))


def columns_of(schema: Any) -> list[tuple[str, str]]:
    """Of a Spark StructType."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
