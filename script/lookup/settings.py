"""The fields of the values of settings: of topic policies, throttles, schedules and push targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from foqs.policies.entries import Entry, FairEntry, RetryEntry, ThrottleEntry
from foqs.policies.push import PushEntry
from foqs.policies.schedules import RulesEntry, ScheduleEntry
from foqs.policies.topic_policy import DeadEntry, HooksEntry, KeepEntry, OrderEntry, PolicyEntry
from script.lookup.markdown import anchor, cell, table

_INSIDE: Mapping[type[Entry], str] = {
    FairEntry: "fair",
    RetryEntry: "retry",
    DeadEntry: "dead",
    HooksEntry: "hooks",
    KeepEntry: "keep",
    OrderEntry: "order",
    RulesEntry: "rules",
}
"""The headings of the values that are fields of other values."""
_WORDS = {str: "text", int: "integer", float: "number", bool: "`true` or `false`"}


def fields(model: type[Entry]) -> str:
    rows = [
        (f"`{name}`", _value(field.annotation, field.metadata), _default(field), cell(field.description or ""))
        for name, field in model.model_fields.items()
    ]
    missing = [name for name, field in model.model_fields.items() if not field.description]
    assert not missing, f"{model.__name__}: these fields have no text below them: {missing}"
    return table(("field", "value", "default", "meaning"), rows)


def inside(*models: type[Entry]) -> str:
    """Return a heading and the fields of each of the values that are fields of another one."""
    return "\n\n".join(
        f"### Field `{_INSIDE[model]}`\n\n{cell(model.__doc__ or '')}\n\n{fields(model)}" for model in models
    )


PARTS: Mapping[str, Callable[[], str]] = {
    "topic": partial(fields, PolicyEntry),
    "topic-fields": partial(inside, RetryEntry, DeadEntry, KeepEntry, FairEntry, OrderEntry, HooksEntry),
    "throttle": partial(fields, ThrottleEntry),
    "schedule": partial(fields, ScheduleEntry),
    "schedule-fields": partial(inside, RulesEntry),
    "push": partial(fields, PushEntry),
}


def _value(annotation: Any, marks: list[Any]) -> str:
    kinds = [kind for kind in _kinds(annotation) if kind is not NoneType]
    words = " or ".join(_words(kind) for kind in kinds)
    bounds = _bounds(
        [*marks, *(mark for kind in kinds if get_origin(kind) is Annotated for mark in get_args(kind)[1:])]
    )
    null = ", or `null`" if NoneType in _kinds(annotation) else ""
    return f"{words}{bounds}{null}"


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _words(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(inside[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(one)}`" for one in inside)
    if origin is tuple:
        return f"list of {_words(inside[0])}" if get_origin(inside[0]) is Literal else "list of texts"
    if origin is dict:
        return f"object of {'integers' + _bounds(list(get_args(inside[1])[1:])) if _is_int(inside[1]) else 'texts'}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        name = _INSIDE[kind]  # type: ignore[index]
        return f"[object](#{anchor(f'field {name}')})"
    return _WORDS[kind]


def _is_int(kind: Any) -> bool:
    return bool(get_origin(kind) is Annotated and get_args(kind)[0] is int)


def _bounds(marks: list[Any]) -> str:
    found = {
        name: value
        for mark in _flat(marks)
        for name in ("ge", "le")
        if (value := getattr(mark, name, None)) is not None
    }
    if "ge" in found and "le" in found:
        return f", {found['ge']} to {found['le']}"
    return ""


def _flat(marks: list[Any]) -> Iterator[Any]:
    for mark in marks:
        yield from mark.metadata if isinstance(mark, FieldInfo) else (mark,)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "not set"
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True) or {}
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return f"`{json.dumps(value)}`"
