"""Bases of what may leave its process, and of what must stay."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest

from foqs.travel import Local, TravellingError, Value

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Odd(TravellingError):
    """Its constructor takes other arguments than those of `Exception`."""

    def __init__(self, *, count: int, names: list[str]) -> None:
        if not isinstance(names, list):
            raise TypeError("names is no list")
        super().__init__(f"{count} of {names}", count)
        self.count, self.names = count, names


@dataclass(slots=True)
class Pair(Value):
    left: int
    right: list[int] | None = None


@dataclass(slots=True)
class Triple(Pair):
    third: int = 3


class Labelled(Pair):
    """A subclass of an application, with attributes of its own."""

    label = ""


class Stays(Local):
    instead = "make another one"


class Leaves(Stays):
    """A subclass that an application can rebuild."""

    def __getstate__(self) -> dict[str, int]:
        return {"kept": 1}


def everywhere(thing: object) -> list[object]:
    return [
        *(pickle.loads(pickle.dumps(thing, number)) for number in PROTOCOLS), copy.copy(thing), copy.deepcopy(thing)
    ]  # fmt: skip


def test_an_error_keeps_its_text_arguments_and_attributes() -> None:
    error = Odd(count=2, names=["a", "b"])
    error.add_note("a note")
    for there in everywhere(error):
        assert isinstance(there, Odd)
        assert (str(there), there.args, vars(there)) == (str(error), error.args, vars(error))
    assert copy.copy(error).names is error.names
    assert copy.deepcopy(error).names is not error.names


@pytest.mark.parametrize("value", [Pair(1, [2]), Triple(1, [2], 4)])
def test_a_value_with_slots_is_equal_in_each_process(value: Pair) -> None:
    assert everywhere(value) == [value] * (len(PROTOCOLS) + 2)
    assert copy.copy(value).right is value.right
    assert copy.deepcopy(value).right is not value.right


def test_a_subclass_keeps_attributes_of_its_own() -> None:
    value = Labelled(1)
    value.label = "x"
    assert [(there.left, there.label) for there in everywhere(value)] == [(1, "x")] * (len(PROTOCOLS) + 2)  # type: ignore[attr-defined]


def test_what_stays_says_what_to_do() -> None:
    for number in PROTOCOLS:
        with pytest.raises(TypeError, match=r"^a Stays cannot be copied, .* to another process: make another one$"):
            pickle.dumps([Stays()], number)
    with pytest.raises(TypeError, match="a Stays"):
        copy.copy(Stays())
    assert [vars(there) for there in everywhere(Leaves())] == [{"kept": 1}] * (len(PROTOCOLS) + 2)
