"""Dataclasses of options as parameters of commands."""

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, Field

from foqs.option_groups import options_of, spread


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


class Limit(BaseModel):
    rate: Annotated[float, Field(ge=1)] | None = Field(default=None, description="Deliveries a second.")
    shadow: bool = False


def test_a_command_takes_an_option_for_each_field() -> None:
    @options_of(Limit)
    def limit(key: str, *, address: str, **given: Any) -> dict[str, Any]:
        return {"key": key, "address": address, **given}

    parameters = inspect.signature(limit).parameters
    assert list(parameters) == ["key", "rate", "shadow", "address"]
    kind, option = get_args(parameters["rate"].annotation)
    assert (kind, option.help, parameters["rate"].default) == (float | None, "Deliveries a second.", None)
    assert get_args(parameters["shadow"].annotation)[0] == bool | None
    assert limit("k", address="a:1", rate=2.0) == {"key": "k", "address": "a:1", "rate": 2.0}
