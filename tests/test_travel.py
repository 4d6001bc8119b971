"""Bases of what may leave its process, and of what must stay."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from traceback import extract_tb

import pytest

from foqs.travel import Local, TravellingError, Value, bare, stripped, trimmed

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


# ------------------------------------------------------------------------------------------- errors without tracebacks


class Hostile(Exception):
    """Its attributes raise, and it takes no new ones."""

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError("no cause")

    @property
    def __class__(self) -> type:
        raise RuntimeError("no class")

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("no attributes")


def caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        try:
            raise cause or KeyError("inner")
        except Exception as inner:  # noqa: BLE001 - which of them does not matter
            raise error from (inner if cause is not None else None)
    except Exception as outer:  # noqa: BLE001 - as above
        return outer


def test_an_error_is_kept_without_any_traceback() -> None:
    cause = ValueError("cause")
    error = caught(Odd(count=1, names=[]), cause)
    group = caught(ExceptionGroup("both", [error, TypeError("x")]))  # type: ignore[list-item]
    assert bare(group) is group
    assert [one.__traceback__ for one in (group, error, cause)] == [None] * 3
    assert (error.__cause__, error.__context__, cause.__context__) == (cause, None, None)


def test_an_error_of_the_caller_keeps_its_traceback() -> None:
    """A call within an `except` clause has the error there as its context."""
    try:
        raise KeyError("of the caller")
    except KeyError as own:
        try:
            raise Odd(count=1, names=[])
        except Odd as error:
            assert bare(error).__context__ is None
        assert own.__traceback__ is not None


def test_a_fault_keeps_its_traceback_as_text() -> None:
    error = bare(caught(ZeroDivisionError("fault")))
    (note,) = error.__notes__
    assert note.startswith("Traceback (most recent call last):\n")
    assert "in caught" in note
    assert not hasattr(bare(caught(Odd(count=1, names=[]))), "__notes__")
    assert not hasattr(stripped(caught(ZeroDivisionError("fault"))), "__notes__")
    assert bare(error).__notes__ == [note]


def of_the_driver() -> None:
    raise KeyError("first")


@pytest.mark.parametrize("named", [True, False])
def test_the_text_of_a_fault_has_what_led_to_it(named: bool) -> None:
    try:
        try:
            of_the_driver()
        except KeyError as first:
            if named:
                raise ZeroDivisionError("second") from first
            raise ZeroDivisionError("second")  # noqa: B904 - as a fault in an `except` clause
    except ZeroDivisionError as error:
        (note,) = bare(error).__notes__
    parts = [note.index("in of_the_driver"), note.index("KeyError: 'first'\n"), note.rindex("in test_the_text_of")]
    assert parts == sorted(parts)


def test_an_error_that_raises_where_it_is_read_is_stripped() -> None:
    error = caught(Hostile("text"))
    assert bare(error) is error
    assert error.__traceback__ is None


def test_a_trimmed_error_begins_with_the_frame_of_the_user() -> None:
    between = {"__name__": "foqs.client.work"}
    exec("def through(call):\n    call()", between)
    error = caught_of(lambda: between["through"](of_the_driver))
    assert [frame.name for frame in extract_tb(trimmed(error).__traceback__)][-2:] == ["through", "of_the_driver"]
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert [frame.name for frame in extract_tb(error.__traceback__)] == ["through", "of_the_driver"]
    assert [frame.name for frame in extract_tb(trimmed(error).__traceback__)] == ["of_the_driver"]


def test_a_fault_of_foqs_keeps_all_frames() -> None:
    between = {"__name__": "foqs.client.work"}
    exec("def inner():\n    raise KeyError\ndef outer():\n    inner()", between)
    error = caught_of(between["outer"])
    error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
    assert [frame.name for frame in extract_tb(trimmed(error).__traceback__)] == ["outer", "inner"]


def test_the_circle_of_an_error_and_its_causes_ends() -> None:
    error = caught(KeyError("a"))
    error.__cause__ = error
    assert trimmed(error) is error


def caught_of(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except KeyError as error:
        return error
    raise AssertionError
