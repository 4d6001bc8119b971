"""Columns of a Spark schema, matched with the columns of foqs. Names match in any case, as in Spark.

With the option `extraColumns=headers`, each other column is a header of the item: the writer stores it there, and the
readers take it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foqs.errors import Invalid
from foqs.spark.options import ExtraColumns

HEADERS = "headers"


def columns_of(schema: Any) -> list[tuple[str, str]]:
    """Names of a Spark StructType, and Spark's simple names of their types."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def problems(
    found: Iterable[tuple[str, str]], known: Mapping[str, tuple[str, ...]], extra: tuple[str, ...] = ()
) -> list[str]:
    """Return the errors in the names and types `found`. `known` has the allowed types by name, `extra` those of a
    column that is a header: none without extraColumns=headers."""
    wrong = []
    seen = set()
    for name, kind in found:
        our = name.lower() if name.lower() in known else name  # headers have a case
        if our not in known and not extra:
            wrong.append(
                f"column {name} is unknown: the columns are {', '.join(known)} (with the option extraColumns=headers "
                "each other column is a header)"
            )
        elif our not in known and kind not in extra:
            wrong.append(f"column {name} is {kind}, and a header is {' or '.join(extra)}: cast it in the query")
        elif our in seen:
            wrong.append(f"column {our} is there twice")
        elif our in known and kind not in known[our]:
            wrong.append(f"column {name} is {kind}, not {' or '.join(known[our])}")
        seen.add(our)
    return wrong


@dataclass(frozen=True, slots=True)
class Reading:
    """How a reader makes the columns of a schema: `names` are the foqs columns that it needs, each once. `sources` has
    for each column of the schema the place in `names`, or the name of a header."""

    names: list[str]
    sources: tuple[int | str, ...]

    def columns(self, found: Sequence[Any]) -> list[Any]:
        """Return the columns of the schema, as Arrow, made of those of `names`."""
        return [found[source] if isinstance(source, int) else self._header(found, source) for source in self.sources]

    def _header(self, found: Sequence[Any], name: str) -> Any:
        import pyarrow.compute as pc  # options are checked where PyArrow is not installed

        return pc.map_lookup(found[self.names.index(HEADERS)], query_key=name, occurrence="first")


def read_as(schema: Any, known: Mapping[str, str], extra: ExtraColumns = "refuse") -> Reading:
    """Return how to read the columns of a reader's schema. Raises Invalid."""
    found = columns_of(schema)
    kinds = ("string",) if extra == "headers" else ()
    if wrong := problems(found, {name: (kind,) for name, kind in known.items()}, kinds):
        hint = "; cast it in the query (CAST(payload AS STRING))" if any(", not " in one for one in wrong) else ""
        raise Invalid("the schema is wrong: " + "; ".join(wrong) + hint)
    ours = [name.lower() if name.lower() in known else None for name, _ in found]
    names = [name for name in ours if name is not None]
    if None in ours and HEADERS not in names:
        names.append(HEADERS)
    sources = (name if our is None else names.index(our) for our, (name, _) in zip(ours, found, strict=True))
    return Reading(names, tuple(sources))
