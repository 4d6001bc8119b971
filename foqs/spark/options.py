"""The options of a reader or writer: typed, checked as a whole, and named in what is said about them.

Spark hands options over as text, with names of any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from foqs.errors import Invalid

_OF_SPARK = frozenset({"path", "checkpointlocation"})
"""What Spark adds by itself."""


class Options(BaseModel):
    """What each kind of reader or writer takes is a class over this one; a field `max_rows` is the option `maxRows`."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Raises Invalid, which names every option that is unknown, missing or wrong."""
        known = {alias.lower(): alias for alias in cls.names()}
        named = {known.get(name.lower(), name): text for name, text in given.items() if name.lower() not in _OF_SPARK}
        try:
            return cls.model_validate(named)
        except ValidationError as error:
            raise Invalid("; ".join(map(_said, error.errors()))) from None

    @classmethod
    def names(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]


def _said(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"option {name} is missing"
    if error["type"] == "extra_forbidden":
        return f"option {name} is unknown"
    return f"option {name}: {error['msg']}" if name else str(error["msg"])
