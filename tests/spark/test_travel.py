"""What Spark takes between its driver and its tasks survives pickle."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest

from tests.support.travel import content, made, ways

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import foqs.spark

LOCAL = {"_Leased", "Held"}
"""They hold events of a thread of the driver."""
GIVEN: dict[str, dict[str, Any]] = {"Place": {"conf": ["spark.a=b"]}, "Source": {"config": "x"}, "Plan": {"topic": "t"}}
"""Their fields have rules: a value for each type is refused."""


def kinds() -> Iterator[Any]:
    for found in pkgutil.walk_packages(foqs.spark.__path__, "foqs.spark."):
        module = importlib.import_module(found.name)
        for name, kind in vars(module).items():
            own = isinstance(kind, type) and kind.__module__ == found.name
            if own and (is_dataclass(kind) or issubclass(kind, BaseException) or hasattr(kind, "_fields")):
                yield pytest.param(kind, id=f"{found.name.removeprefix('foqs.spark.')}.{name}")


@pytest.mark.parametrize("kind", list(kinds()))
def test_a_value_of_spark_travels(kind: type) -> None:
    if kind.__name__ in LOCAL:
        return
    given = GIVEN.get(kind.__name__)
    value = kind("why") if issubclass(kind, BaseException) else made(kind) if given is None else kind(**given)
    for name, way in ways().items():
        assert content(way(value)) == content(value), name
        assert type(way(value)) is kind
