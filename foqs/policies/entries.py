"""Values of settings that are JSON objects: reading one, with every error of a wrong one."""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from foqs.errors import Invalid

_KINDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "a text",
    "string_unicode": "a text that is UTF-8",
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
}
"""What a value must be, by pydantic's type of the error; a value in braces is the error's own."""
_VALUE_CHARACTERS = 60


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


E = TypeVar("E", bound=Entry)
T = TypeVar("T")


def checked(error: Callable[[T], str | None]) -> AfterValidator:
    """Return the check of a field's value for which `error` returns no error."""

    def check(value: T) -> T:
        found = error(value)
        if found is not None:
            raise ValueError(found)
        return value

    return AfterValidator(check)


def read(model: type[E], text: str, what: str, later: Set[str]) -> E:
    """Return the entry that a text says. `what` an entry is called; `later`: fields that this version does not have.

    Raises Invalid with every error of the entry, one a line."""
    try:
        value = json.loads(text, object_pairs_hook=_fields)
    except RecursionError:
        raise Invalid("not JSON: too deep") from None
    except UnicodeEncodeError:
        raise Invalid("the name of a field is not UTF-8") from None
    except ValueError as error:
        raise Invalid(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Invalid(f"{what} is a JSON object, not {shown(value)}")
    errors = [f"{name}: this version of foqs does not have it" for name in sorted(later & value.keys())]
    try:
        entry = model.model_validate({name: value[name] for name in value if name not in later})
    except ValidationError as found:
        errors += [_line(detail) for detail in found.errors(include_url=False)]
    if errors:
        raise Invalid("\n".join(errors))
    return entry


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    "".join(names).encode()
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{shown(twice)} stands in an object more than once")
    return dict(pairs)


def _line(detail: Any) -> str:
    place, kind = detail["loc"], detail["type"]
    if kind == "extra_forbidden":
        *inside, name = place
        return ": ".join([*inside, f"there is no field {shown(name)}"])
    if kind == "value_error" and place[-1:] == ("[key]",):  # pydantic's name for the key of a pair
        place = place[:-1]
    where = ".".join([part if isinstance(part, str) and part.isidentifier() else shown(part) for part in place])
    if kind == "missing":
        return f"{where}: it is missing"
    if kind == "value_error":
        return f"{where}: {detail['ctx']['error']}" if place else str(detail["ctx"]["error"])
    return f"{where}: it must be {_KINDS[kind].format_map(detail.get('ctx', {}))}, not {shown(detail['input'])}"


def shown(value: Any) -> str:
    """Return a value as an error names it."""
    text = json.dumps(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."
