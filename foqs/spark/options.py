"""The options of a reader or writer: typed, validated together, and named in error messages.

Spark passes options as text, with names in any case, and adds its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from foqs.errors import Invalid

ExtraColumns = Literal["refuse", "headers"]
"""What a column is whose name is none of ours: an error, or a header of the item."""

_OF_SPARK = frozenset(
    {
        "path", "checkpointlocation", "provider", "owner", "location", "comment", "collation", "external",
        "is_managed_location", "serialization.format", "transient_lastddltime",
    }
)  # fmt: skip
"""Options that Spark and its catalogs add."""
_OF_SPARK_PREFIXES = ("spark.", "view.")
_OF_TABLE = "option."
"""Prefix of the options among the properties of a catalog's table. The other properties belong to the catalog."""
_NONE_GIVEN = (
    ". Spark gave no option: it does not pass on those of CREATE TABLE. Use CREATE TEMPORARY VIEW name USING foqs "
    "OPTIONS (...), or name the options in each statement: INSERT INTO name WITH ('endpoints' = '...', ...) VALUES ..."
)


def of_user(given: Mapping[str, str]) -> dict[str, str]:
    """Return the user's options without those that Spark adds."""
    of_table = {name[len(_OF_TABLE) :]: text for name, text in given.items() if name.lower().startswith(_OF_TABLE)}
    found = of_table or given
    return {
        name: text
        for name, text in found.items()
        if name.lower() not in _OF_SPARK and not name.lower().startswith(_OF_SPARK_PREFIXES)
    }


class Options(BaseModel):
    """Base of the options of each reader and writer; a field `max_rows` is the option `maxRows`."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False)

    @field_validator("endpoints", "tls", "token", check_fields=False)
    @classmethod
    def _usable(cls, given: str | None, info: ValidationInfo) -> str | None:
        """Refuse what no client takes, before tasks begin."""
        from foqs.client.connection import Tls, parse_addresses

        try:
            if given is not None and info.field_name == "endpoints":
                parse_addresses(given)
            elif given is not None and info.field_name == "tls":
                Tls.parse(given)
        except Invalid as error:
            raise ValueError(error.message.removeprefix("tls: ")) from None
        if given == "":
            raise ValueError("it is empty: give a value, or leave the option out")
        return given

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Validate the options. Raises Invalid, which names every option that is unknown, missing or wrong."""
        known = {alias.lower(): alias for alias in cls.names()}
        named = {known.get(name.lower(), name): text for name, text in of_user(given).items()}
        try:
            return cls.model_validate(named)
        except ValidationError as error:
            wrong = error.errors()
        said = "; ".join(map(_said, wrong))
        if any(one["type"] == "extra_forbidden" for one in wrong):
            said += f"; the options are {', '.join(cls.names())}"
        raise Invalid(said if named else said + _NONE_GIVEN)

    @classmethod
    def names(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]


def _said(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"option {name} is missing"
    if error["type"] == "extra_forbidden":
        return f"option {name} is unknown"
    said: str = error["msg"].removeprefix("Value error, ")
    return f"option {name}: {said}" if name else said
