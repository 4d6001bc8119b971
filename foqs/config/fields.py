"""Keys of foqs.toml: the marks that a section gives them, and their description without a configuration.

A section is a class of `Section`; its keys are fields, each with its description below it. `Live[...]` marks a key that
SIGHUP changes in a running host. `Secret` (or `SecretUrl`, `SecretPair`) marks a key that is never shown. A second key,
with the suffix `_file`, names a file to read it from. The file of a secret `..._previous`, which is replaced just now,
may be missing: then there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from foqs.checks import MASK, masked_url

T = TypeVar("T")

FILE, PREVIOUS = "_file", "_previous"
PREFIX, DELIMITER = "FOQS_", "__"
NO_BOOL = "it must be a number, not true or false"
NOT_SET, REQUIRED = UNSET = ("not set", "none: required")
"""Texts in place of a default."""
_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path"}


def masked_pair(pair: str) -> str:
    """Return `user:password` without the password."""
    user, colon, _ = pair.partition(":")
    return f"{user}:{MASK}" if colon else MASK


@dataclass(frozen=True, slots=True)
class SecretMark:
    """A secret: `masked` returns the part of the value that may be shown."""

    masked: Callable[[str], str]


class LiveMark:
    """SIGHUP changes the key in a running host."""


Live = Annotated[T, LiveMark()]
Secret = Annotated[str, SecretMark(lambda _: MASK)]
SecretUrl = Annotated[str, SecretMark(masked_url)]
SecretPair = Annotated[str, SecretMark(masked_pair)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is meant: pydantic would take them as 1 and 0."""
        if isinstance(value, bool) and {int, float}.intersection(map(_plain, _parts(_field(cls, info).annotation))):
            raise ValueError(NO_BOOL)
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _no_empty_text(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a text or a path without a character, as from an empty variable: an empty host means all addresses, an
        empty path this folder."""
        empty = isinstance(value, str) and not value.strip()
        if empty and {str, Path}.intersection(map(_plain, _parts(_field(cls, info).annotation))):
            raise ValueError("it is empty: give a value, or leave the key out")
        return value

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        fields = type(self).model_fields
        for name, value in super().__repr_args__():
            secret = secret_mark(fields[name]) if name in fields else None
            yield name, value if secret is None or value is None else secret.masked(value)


def refuse(wrong: Mapping[str, bool]) -> None:
    """Raise one ValueError with all reasons that hold, because pydantic takes one error of a validator."""
    if found := [reason for reason, holds in wrong.items() if holds]:
        raise ValueError("; ".join(found))


@dataclass(frozen=True, slots=True)
class Key:
    """A key. `name` is dotted, without the index in a list of sections; `listed` is the name of that list."""

    name: str
    field: FieldInfo
    section: type[Section]
    listed: str | None

    @property
    def description(self) -> str:
        return " ".join((self.field.description or "").split())

    @property
    def env(self) -> str:
        """The environment variable; a list of sections is one variable with JSON."""
        return env_name(self.listed or self.name)

    @property
    def live(self) -> bool:
        return is_live(self.field)

    @property
    def secret(self) -> SecretMark | None:
        return secret_mark(self.field)

    @property
    def type(self) -> str:
        """The type and its bounds, for people."""
        words, bounds = _type_words(self.field.annotation), _bounds(self.field)
        return f"{words}, {bounds}" if bounds else words

    @property
    def bounds(self) -> str:
        """The bounds of a number, for people; "" for other keys."""
        numeric = {int, float}.intersection(map(_plain, _parts(self.field.annotation)))
        return _bounds(self.field) if numeric else ""

    @property
    def default(self) -> str:
        """The default as TOML, or one of `UNSET`."""
        if self.field.is_required():
            return REQUIRED
        value = self.field.get_default(call_default_factory=True)
        return NOT_SET if value is None else toml_value(value)


def keys(model: type[BaseModel], prefix: str = "", listed: str | None = None) -> Iterator[Key]:
    """Yield every key below `model`, in the order of the text."""
    for name, field in model.model_fields.items():
        section, many = section_of(field)
        dotted = f"{prefix}{name}"
        if section is not None:
            yield from keys(section, f"{dotted}.", listed or (dotted if many else None))
        elif issubclass(model, Section):
            yield Key(dotted, field, model, listed)


def key_at(model: type[BaseModel], where: Sequence[str | int]) -> Key | None:
    """Return the key at a place in a configuration, None if there is none."""
    at: type[BaseModel] | None = model
    for part in where[:-1]:
        if at is not None and isinstance(part, str) and part in at.model_fields:  # else an index, or a name in a table
            at = section_of(at.model_fields[part])[0]
    name = str(where[-1]) if where else ""
    if at is None or not issubclass(at, Section) or name not in at.model_fields:
        return None
    return Key(".".join(map(str, where)), at.model_fields[name], at, None)


def section_of(field: FieldInfo) -> tuple[type[Section] | None, bool]:
    """Return the section that a field holds, if any, and whether it holds a list of sections."""
    for part in _parts(field.annotation):
        if isinstance(part, type) and issubclass(part, Section):
            return part, False
        inner = get_args(part)[:1] if get_origin(part) is tuple else ()
        if inner and isinstance(inner[0], type) and issubclass(inner[0], Section):
            return inner[0], True
    return None, False


def secret_mark(field: FieldInfo) -> SecretMark | None:
    return next((mark for mark in _marks(field) if isinstance(mark, SecretMark)), None)


def is_live(field: FieldInfo) -> bool:
    return any(isinstance(mark, LiveMark) for mark in _marks(field))


def is_path(field: FieldInfo) -> bool:
    return Path in _parts(field.annotation)


def is_path_table(field: FieldInfo) -> bool:
    """Return True for paths by names that the user gives."""
    return dict[str, Path] in map(_plain, _parts(field.annotation))


def env_name(name: str) -> str:
    return PREFIX + name.upper().replace(".", DELIMITER)


def toml_value(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_value(str(name))} = {toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'


def _field(section: type[BaseModel], info: ValidationInfo) -> FieldInfo:
    return section.model_fields[str(info.field_name)]


def _plain(annotation: Any) -> Any:
    """Return the type below the marks."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _marks(field: FieldInfo) -> Iterator[object]:
    yield from field.metadata
    for part in _parts(field.annotation):
        if get_origin(part) is Annotated:
            yield from get_args(part)[1:]


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union without None, or the annotation itself."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(part for part in get_args(annotation) if part is not NoneType)
    return (annotation,)


def _type_words(annotation: Any) -> str:
    words = []
    for part in _parts(annotation):
        origin = get_origin(part)
        if origin is Annotated:
            words.append(_type_words(get_args(part)[0]))
        elif origin is Literal:
            words.append(" or ".join(map(toml_value, get_args(part))))
        elif origin is dict:
            words.append("table of paths" if get_args(part)[1] is Path else "table of tables")
        elif origin in (tuple, list, frozenset):
            words.append(f"list of {_type_words(get_args(part)[0])}")
        else:
            words.append(_WORDS.get(part, "text"))
    return " or ".join(dict.fromkeys(words))


def _bounds(field: FieldInfo) -> str:
    found: dict[str, Any] = {}
    for mark in _marks(field):
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length"):
            if (value := getattr(mark, name, None)) is not None:
                found[name] = value
    words = [
        f"{word} {found[name]}"
        for name, word in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
        if name in found
    ]
    if "max_length" in found:
        words.append(f"{found.get('min_length', 0)} to {found['max_length']} characters")
    elif "min_length" in found:
        words.append("not empty" if found["min_length"] == 1 else f"at least {found['min_length']} characters")
    return ", ".join(words)
