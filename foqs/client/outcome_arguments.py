"""Checks of what a handler says about its item: the delay, the metadata and the reason of an outcome."""

from __future__ import annotations

from operator import index
from typing import Any

from foqs.checks import I64_MAX
from foqs.client.guard import is_a, kind_of
from foqs.errors import Invalid

_HINT = "5 s are 5000"


class WrongArgument(Invalid):
    """A value of a wrong type, or below its range. Its text shows numbers and types, and never a text or bytes: these
    may be of a payload, and the server gets the text as the reason of the failure."""


def delay_argument(value: Any, what: str = "delay_ms", *, least: int = 0) -> int | None:
    """Return `value` as a plain int of milliseconds, or None. Raises WrongArgument."""
    if value is None:
        return None
    if is_a(value, bool) or not hasattr(type(value), "__index__"):
        raise WrongArgument(f"{what} is of type {kind_of(value)}: give whole milliseconds as an int ({_HINT})")
    number = int.__index__(index(value))
    if number < least:
        raise WrongArgument(f"{what} is {_shown(number)}: give {least} or more milliseconds")
    if number > I64_MAX:
        raise WrongArgument(f"{what} is {_shown(number)}: give at most {I64_MAX} milliseconds")
    return number


def metadata_argument(value: Any) -> bytes | None:
    """Return a copy of `value` that is plain bytes, or None. Raises WrongArgument."""
    if value is None or type(value) is bytes:
        return value
    if not is_a(value, (bytes, bytearray, memoryview)):
        raise WrongArgument(f"metadata is of type {kind_of(value)}: give bytes, or None to keep the item's")
    return memoryview(value).tobytes()


def reason_argument(value: Any) -> str:
    """Return `value` as a plain str that can be encoded. Raises WrongArgument."""
    if not is_a(value, str):
        raise WrongArgument(f"reason is of type {kind_of(value)}: give a text (str)")
    return str.encode(value, "utf-8", "replace").decode()


def _shown(number: int) -> str:
    return str(number) if number.bit_length() <= 256 else f"a number of {number.bit_length()} bits"
