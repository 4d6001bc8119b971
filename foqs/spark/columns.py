"""Columns of a Spark schema, matched with the columns of foqs. Names match in any case, as in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from foqs.errors import Invalid


def columns_of(schema: Any) -> list[tuple[str, str]]:
    """Names of a Spark StructType, and Spark's simple names of their types."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def problems(found: Iterable[tuple[str, str]], known: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the errors in the names and types `found`. `known` has the allowed types by name."""
    wrong = []
    seen = set()
    for name, kind in found:
        our = name.lower()
        if our not in known:
            wrong.append(f"column {name} is unknown: the columns are {', '.join(known)}")
        elif our in seen:
            wrong.append(f"column {our} is there twice")
        elif kind not in known[our]:
            wrong.append(f"column {name} is {kind}, not {' or '.join(known[our])}")
        seen.add(our)
    return wrong


def read_as(schema: Any, known: Mapping[str, str]) -> list[str]:
    """Return the foqs name of each column of a reader's schema, in its order. Raises Invalid."""
    found = columns_of(schema)
    if wrong := problems(found, {name: (kind,) for name, kind in known.items()}):
        hint = "; cast it in the query (CAST(payload AS STRING))" if any(", not " in one for one in wrong) else ""
        raise Invalid("the schema is wrong: " + "; ".join(wrong) + hint)
    return [name.lower() for name, _ in found]
