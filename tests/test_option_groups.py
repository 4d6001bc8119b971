"""Dataclasses of options as parameters of commands."""

import inspect
from dataclasses import dataclass

import pytest

from foqs.option_groups import spread


@dataclass(frozen=True)
class Wait:
    limit: int
    quiet: bool = False


def move(shard: int, wait: Wait, host: str = "any") -> tuple[int, Wait, str]:
    return shard, wait, host


def test_the_fields_take_the_place_of_the_group() -> None:
    parameters = inspect.signature(spread(move)).parameters
    assert [(name, one.annotation) for name, one in parameters.items()] == [
        ("shard", int),
        ("limit", int),
        ("quiet", bool),
        ("host", str),
    ]
    assert (parameters["quiet"].default, parameters["host"].default) == (False, "any")


def test_the_command_gets_the_group() -> None:
    assert spread(move)(3, limit=5) == (3, Wait(5), "any")
    assert spread(move)(shard=3, limit=5, quiet=True, host="b") == (3, Wait(5, True), "b")


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(TypeError, match="limit"):
        spread(move)(3)
