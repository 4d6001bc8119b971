"""Options that several commands share, as one parameter of each of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

R = TypeVar("R")


def spread(command: Callable[..., R]) -> Callable[..., R]:
    """Return a command that takes the fields of each dataclass among its parameters in place of the dataclass.

    The annotations of the fields describe the options.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command, eval_str=True).parameters.values():
        if not (isinstance(one.annotation, type) and is_dataclass(one.annotation)):
            parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) if groups else one)
            continue
        fields = inspect.signature(one.annotation, eval_str=True).parameters.values()
        groups[one.name] = one.annotation, [field.name for field in fields]
        parameters += [field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields]

    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> R:
        for name, (group, names) in groups.items():
            given[name] = group(**{field: given.pop(field) for field in names if field in given})
        return command(*args, **given)

    # Typer reads both.
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapped
