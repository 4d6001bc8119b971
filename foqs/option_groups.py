"""Options of commands that are described once: groups that several commands share, and options of the settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

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


def options_of(model: type[BaseModel], **spellings: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a command take an option for each field of a model in place of its `**` parameter: None if it is not given.

    The fields' descriptions are the help. The host checks the ranges, with the rest of the settings. `spellings`:
    another name of an option, by its field.
    """
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _plain(field.annotation) | None, typer.Option(*_names(name, spellings), help=field.description)
            ],
        )
        for name, field in model.model_fields.items()
    ]

    def described(command: Callable[..., R]) -> Callable[..., R]:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        first = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        command.__signature__ = inspect.Signature([*first, *options, *own[len(first) :]])  # type: ignore[attr-defined]
        return command

    return described


def _names(field: str, spellings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of an option with a second spelling; none for one that has the name of its field alone."""
    return (f"--{field.replace('_', '-')}", spellings[field]) if field in spellings else ()


def _plain(annotation: Any) -> Any:
    """Return the type of a field without its range, and without None."""
    below = [part for part in get_args(annotation) if part is not NoneType]
    return _plain(below[0]) if below else annotation
