"""The form of `--help`: the groups of the commands, and the examples below each text."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from math import isfinite
from typing import Any, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from foqs.cli import terminal
from foqs.cli.terminal import fail, report_errors
from foqs.option_groups import spread

_AS_BYTES = "text"
"""The payload of `foqs enqueue`: any bytes."""
_STYLE = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")

RUN, QUEUE, OPERATE, MEASURE = "Run", "Queue", "Operate", "Measure"
"""The groups of `foqs --help`."""

P = ParamSpec("P")
R = TypeVar("R")


class _Flags:
    """Shows a flag without the type of its value: it has none."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            if getattr(one, "is_flag", False) and one.metavar is None:
                one.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    pass


class Group(_Flags, TyperGroup):
    """A group of commands."""


def command(
    app: typer.Typer, *examples: str, name: str | None = None, group: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as a command of `app`: its docstring is the text, `examples` are command lines.

    The command takes the options of its groups, and reports typed errors in one line.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        decorate = app.command(
            name, cls=_Command, help=_flowing(function.__doc__ or ""), epilog=_epilog(examples), rich_help_panel=group
        )
        decorate(report_errors(_checked(spread(function))))
        return function

    return register


def commands(name: str, text: str, *examples: str) -> typer.Typer:
    """Return an app that holds the sub-commands of `foqs NAME`."""
    return typer.Typer(name=name, cls=Group, help=text, epilog=_epilog(examples), no_args_is_help=True)


def top(text: str, *examples: str) -> dict[str, Any]:
    """Return the settings of the program itself."""
    return {"help": text, "epilog": _epilog(examples), "no_args_is_help": True}


def _checked(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that it refuses `nan` and `inf`, which lie within the bounds of every option, and texts that
    are not UTF-8. It goes on when it loses stdout, unless it is `piped`."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **given: P.kwargs) -> R:
        terminal.go_on()
        for name, value in given.items():
            if isinstance(value, float) and not isfinite(value):
                fail(f"--{name.replace('_', '-')} is {value}: it must be a finite number", 2)
            if name != _AS_BYTES:
                given[name] = _utf8(name, value)
        return function(*args, **given)

    return wrapped


def _utf8(name: str, value: Any) -> Any:
    """Return the value. Python decodes arguments by the locale, and bytes that do not fit as surrogates."""
    if isinstance(value, list):
        return [_utf8(name, one) for one in value]
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            try:
                return os.fsencode(value).decode()
            except UnicodeError:
                fail(f"{name.replace('_', '-')} is {value!a}: it is not UTF-8", 2)
    return value


def escaped(text: str) -> str:
    """Return the text with its brackets marked as plain text, as `rich.markup.escape` does. A command imports rich only
    to show something."""
    return _STYLE.sub(lambda found: f"{found[1] * 2}\\{found[2]}", text)


def _flowing(docstring: str) -> str:
    """Join the lines of each paragraph, so that they fill a terminal of any width; rich would read [tls] as a style."""
    text = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(docstring).split("\n\n"))
    return escaped(text)


def _epilog(examples: tuple[str, ...]) -> str:
    # The line break in front keeps the indentation: typer dedents every line but the first.
    return escaped("\nExamples:\n" + "\n".join(f"  {line}" for line in examples))
