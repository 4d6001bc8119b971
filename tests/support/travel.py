"""Values and errors made for tests, and the ways that take them to another process."""

from __future__ import annotations

import copy
import pickle
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any

from foqs.client import FailureFilter, Item, ItemFilter, Items, ItemState, Nack

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def sample(hint: Any) -> Any:
    """Return a value of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in arguments if one is not type(None)))
    if origin is tuple:
        return (sample(arguments[0]),) if len(arguments) == 2 and arguments[1] is ... else tuple(map(sample, arguments))
    if origin in (list, Sequence):
        return [sample(arguments[0])]
    if origin in (dict, Mapping):
        return {sample(arguments[0]): sample(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, BaseException):
        return hint("why")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    if isinstance(hint, type):
        return made(hint)
    raise AssertionError(f"give `sample` a value of {hint}")


_PLAIN: dict[Any, Any] = {
    int: 7, str: "text\U0001f40eß", bytes: b"\0\xff", float: 1.0, bool: True, Any: "anything",
}  # fmt: skip


_DEPENDENT: dict[type, dict[str, Any]] = {
    ItemFilter: {"state": ItemState.READY, "enqueued_before_ms": 9, "min_priority": None, "max_priority": None},
    FailureFilter: {"died_before_ms": 9, "fingerprint": "00000000000000ff"},
    Nack: {"release": False, "reject": False, "uncounted": False},
}
"""Values of fields that depend on those of other fields, or have a form of their own."""


def made(kind: type) -> Any:
    """Return an instance with a value in each field."""
    if issubclass(kind, Enum):
        return list(kind)[-1]
    if kind is Items:
        items = Items([made(Item), Item(id=2)])
        items.reason, items.retry_after_ms = "paused", 9
        return items
    if issubclass(kind, int) and not issubclass(kind, Enum):
        return kind(281474976710657)
    hints = typing.get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else [field.name for field in fields(kind)]  # type: ignore[arg-type, attr-defined]
    return kind(**{name: sample(hints[name]) for name in names} | _DEPENDENT.get(kind, {}))


def ways() -> dict[str, Callable[[Any], Any]]:
    pickled: dict[str, Callable[[Any], Any]] = {
        f"pickle {number}": lambda one, number=number: pickle.loads(pickle.dumps(one, number)) for number in PROTOCOLS
    }
    return {**pickled, "copy": copy.copy, "deepcopy": copy.deepcopy}


def content(value: Any) -> Any:
    """Return a form that `==` compares. For an Item, `==` compares the identity."""
    if isinstance(value, Item):
        return [content(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Items):
        return [*map(content, value), value.reason, value.retry_after_ms]
    if isinstance(value, BaseException):
        return type(value), value.args, str(value), {name: content(one) for name, one in vars(value).items()}
    if isinstance(value, tuple | list):
        return [type(value), *map(content, value)]
    return value
