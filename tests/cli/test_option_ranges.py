"""Every number of the command line has bounds: the walk over all commands finds options without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from foqs.cli.main import app
from foqs_lab.cli import app as lab

NEGATIVE = {"--priority", "--priority-is", "--min-priority", "--max-priority", "--seed"}
"""Options that take negative numbers; their help says so, or the number has no meaning of its own."""
BY_HOST = {"throttle set"}
"""Commands whose values the host checks with the rest of the settings; tests/cli/test_throttle.py has their errors."""
COUNTED = {"--items", "--batches", "--delayed", "--payload-bytes", "--oldest", "--processes", "--workers", "--share"}
"""Options of which 0 means none, as for every count."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, one in below.items():
        yield from commands(one, (*path, name))


PROGRAMS = {"foqs": app, "foqs-lab": lab}
ALL = [found for name, one in PROGRAMS.items() for found in commands(get_command(one), (name,))]


def kind(one: Any) -> type | None:
    """Return int or float for a number. Typer has its own types since 0.29, and had Click's before."""
    described = getattr(one, "type_descriptor", None)
    found = [described.annotation, *get_args(described.annotation)] if described is not None else [one.type.name]
    return next((number for name, number in KINDS.items() if name in found), None)


def bound(one: Any, name: str) -> float | None:
    return getattr(one if hasattr(one, "type_descriptor") else one.type, name, None)


KINDS: dict[Any, type] = {int: int, float: float, "integer": int, "integer range": int, "float": float} | {
    "float range": float
}
NUMBERS = [(path, command, one) for path, command in ALL for one in command.params if kind(one) is not None]
IDS = [f"{'-'.join(path)}-{one.name}" for path, _, one in NUMBERS]


def spelled(one: Any) -> str:
    return str(one.opts[0] if one.param_type_name == "option" else one.name)


def given(one: Any, value: str) -> list[str]:
    return [f"{one.opts[0]}={value}"] if one.param_type_name == "option" else ["--", value]


def refusal(command: Any, one: Any, value: str) -> str:
    with pytest.raises(Exception) as caught:  # Typer keeps its own copy of Click
        before = [other for other in command.params[: command.params.index(one)] if other.param_type_name == "argument"]
        words = given(one, value)
        if one.param_type_name == "argument":
            words[1:1] = ["1"] * len(before)
        command.make_context("foqs", words)
    assert hasattr(caught.value, "format_message"), repr(caught.value)
    return str(caught.value.format_message())


def test_the_walk_finds_the_options() -> None:
    assert len(ALL) > 50 and len(NUMBERS) > 50


@pytest.mark.parametrize(("path", "command", "one"), NUMBERS, ids=IDS)
def test_a_number_out_of_range_is_refused_by_its_name(path: tuple[str, ...], command: Any, one: Any) -> None:
    whole = kind(one) is int
    wrong = ["many", "", "1,5", *(["1.5", "1e3", "nan"] if whole else [])]
    if spelled(one) not in NEGATIVE and " ".join(path[1:]) not in BY_HOST:
        wrong.append("-1")
        assert bound(one, "min") is not None, "no lower bound"
    if (most := bound(one, "max")) is not None:
        wrong.append(str(most * 10 + 1))
    for value in wrong:
        said = refusal(command, one, value)
        name = spelled(one) if one.param_type_name == "option" else str(one.metavar)
        assert name in said, said


@pytest.mark.parametrize(
    ("path", "command", "one"), [case for case in NUMBERS if kind(case[2]) is float],
    ids=[name for name, case in zip(IDS, NUMBERS, strict=True) if kind(case[2]) is float],
)  # fmt: skip
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_must_be_finite(path: tuple[str, ...], command: Any, one: Any, value: str) -> None:
    needed = [(other.opts[0], other) for other in command.params if other.required]
    options = [f"{name}=x" for name, other in needed if other.param_type_name == "option"]
    arguments = ["1" for _, other in needed if other.param_type_name == "argument"]
    program, *words = path
    done = CliRunner().invoke(PROGRAMS[program], [*words, *options, *given(one, value), *arguments])
    assert done.exit_code == 2
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert spelled(one) in said, said


@pytest.mark.parametrize(("path", "command", "one"), NUMBERS, ids=IDS)
def test_the_help_says_what_0_means(path: tuple[str, ...], command: Any, one: Any) -> None:
    if bound(one, "min") == 0 and not COUNTED.intersection(one.opts):
        assert re.search(r"\b0\b", one.help or ""), one.help
