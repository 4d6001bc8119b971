"""Checks of values that callers and users give. Each raises Invalid with the name, the value and the allowed range.

A bool is no number here, a float no integer, and bytes no text: the codec would convert them without a message. The
error shows numbers and short texts. `zero` says in the error what 0 means.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from math import isfinite
from typing import NoReturn

from foqs.errors import Invalid

I32_MAX = (1 << 31) - 1
I64_MAX = (1 << 63) - 1
LONGEST_MS = I32_MAX
"""24.8 days. The longest wait, time-out and lease: an i32 holds it, and a thread can wait for it."""
FIRST_TIME_MS = 10**11
"""In March 1973. A smaller number is a time in seconds, or a duration, and no time in milliseconds."""
_SECONDS_FROM = 10**8
_LAST_TIME_MS = 10**14
"""In the year 5138. A larger number is a time in microseconds or nanoseconds."""
_SHOWN_BITS = 256
_SHOWN_CHARS = 40


def check_int(
    name: str, value: object, low: int, high: int | None = None, *, zero: str = "", none: bool = False
) -> None:
    """Refuse a value that is not an int within the bounds. With `none`, None is accepted too.

    >>> check_int("count", 5, 1, 10)
    >>> check_int("count", "4", 1, 10)
    Traceback (most recent call last):
    foqs.errors.Invalid: count is '4' (str): it must be an integer from 1 to 10
    """
    if type(value) is int and low <= value and (high is None or value <= high):
        return
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        _refuse(name, value, f"it must be {_whole(name)} {_range(low, high, zero)}")


def check_number(
    name: str, value: object, low: float, high: float | None = None, *, above: bool = False, zero: str = "",
    none: bool = False,
) -> None:  # fmt: skip
    """Refuse a value that is not an int or a finite float within the bounds; with `above`, `low` itself too."""
    if value is None and none:
        return
    usable = (
        isinstance(value, int | float) and not isinstance(value, bool) and (isinstance(value, int) or isfinite(value))
    )
    if not usable or value < low or (above and value == low) or (high is not None and value > high):  # type: ignore[operator]  # `usable` says so
        bounds = f"above {low}{_up_to(high)}" if above else _range(low, high, zero)
        _refuse(name, value, f"it must be {_unit(name, 'a number')} {bounds}")


def check_bool(name: str, value: object) -> None:
    """Refuse every value but True and False: the text "no" would count as True."""
    if not isinstance(value, bool):
        _refuse(name, value, "it must be True or False")


def check_text(name: str, value: object, *, most_bytes: int | None = None, none: bool = False) -> None:
    """Refuse a value that is not text of 1 to `most_bytes` bytes of UTF-8. The error does not show the text."""
    if value is None and none:
        return
    wanted = (
        "it must be text that is not empty" if most_bytes is None else f"it must be text of 1 to {most_bytes} bytes"
    )
    if not isinstance(value, str):
        _refuse(name, value, wanted)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{name} is not valid Unicode: {wanted}") from None
    if not size or (most_bytes is not None and size > most_bytes):
        raise Invalid(f"{name} {f'has {size} bytes' if size else 'is empty'}: {wanted}")


def check_bytes(name: str, value: object, *, none: bool = False) -> None:
    """Refuse a value that is not bytes, bytearray or memoryview. Only the caller knows the encoding of a text. The error
    does not show the value."""
    if isinstance(value, bytes | bytearray | memoryview) or (value is None and none):
        return
    advice = ": encode it, for example with .encode()" if isinstance(value, str) else ""
    raise Invalid(f"{name} is of type {type(value).__name__}: it must be bytes{advice}")


def check_choice(name: str, value: object, among: Iterable[object]) -> None:
    """Refuse a value that is not equal to one of `among`."""
    allowed = [str(one) for one in among]
    if not isinstance(value, str) or str(value) not in allowed:
        _refuse(name, value, f"it must be one of {', '.join(allowed)}")


def check_callable(name: str, value: object, form: str, *, none: bool = False) -> None:
    """Refuse a value that cannot be called. `form` shows the call."""
    if not callable(value) and not (value is None and none):
        _refuse(name, value, f"it must be a function, called as {form}")


def check_distinct(name: str, values: object, what: str) -> None:
    """Refuse no values, values that are not texts, empty texts, and a value that is given twice."""
    found: set[str] = set()
    if isinstance(values, bytes | str) or not isinstance(values, Iterable):
        _refuse(name, values, f"it must be a list of texts, one for each {what}")
    for value in values:
        check_text(f"{name}: {what}", value)
        if value in found:
            raise Invalid(f"{name} has {_shown(value)} twice: give each {what} once")
        found.add(value)
    if not found:
        raise Invalid(f"{name} is empty: give at least one {what}")


def check_time_ms(name: str, value: object, *, none: bool = False) -> None:
    """Refuse a value that is no time in Unix epoch milliseconds. 0 is accepted as a time in the past."""
    if value is None and none:
        return
    check_int(name, value, -I64_MAX - 1, I64_MAX)
    assert isinstance(value, int)
    if (fault := time_fault(value)) is not None:
        raise Invalid(f"{name} is {value}{fault}")


def time_fault(at_ms: int) -> str | None:
    """Return why a number is clearly not a time in Unix epoch milliseconds, and the remedy; None if it may be one.

    >>> time_fault(1_764_112_000_000) is time_fault(0) is None
    True
    """
    if at_ms and abs(at_ms) < FIRST_TIME_MS:
        if at_ms >= _SECONDS_FROM:
            return ", which is a time in seconds: give Unix epoch milliseconds (multiply by 1,000)"
        return ", which is a duration and no time: give Unix epoch milliseconds"
    if at_ms > _LAST_TIME_MS:
        return ", which is a time in microseconds or nanoseconds: give Unix epoch milliseconds"
    return None


def duration_fault(value_ms: int) -> str:
    """Return a hint for a duration that is too long, if it is rather a time."""
    return " (a duration; the value looks like a time)" if value_ms >= FIRST_TIME_MS else ""


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise Invalid(f"{name} {_said(value)}: {wanted}{_remedy(name, value)}")


def _said(value: object) -> str:
    if value is None:
        return "is None"
    if isinstance(value, bool):
        return f"is {value} (bool)"
    if isinstance(value, int):
        return f"is {int(value)}" if value.bit_length() <= _SHOWN_BITS else f"has {value.bit_length()} bits"
    if type(value) in (float, str):
        return f"is {_shown(value)} ({type(value).__name__})"
    return f"is of type {type(value).__name__}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _remedy(name: str, value: object) -> str:
    if not name.endswith("_ms"):
        return ""
    if isinstance(value, timedelta):
        return "; of a timedelta: round(d.total_seconds() * 1000)"
    if isinstance(value, date):
        return "; of a datetime: round(d.timestamp() * 1000)"
    return ""


def _whole(name: str) -> str:
    return _unit(name, "an integer" if not name.endswith(("_ms", "_bytes")) else "a whole number")


def _unit(name: str, noun: str) -> str:
    unit = " of milliseconds" if name.endswith("_ms") else " of bytes" if name.endswith("_bytes") else ""
    return f"{noun}{unit}"


def _range(low: float, high: float | None, zero: str) -> str:
    meaning = f" ({zero})" if zero and low == 0 else ""
    return f"of at least {low}{meaning}" if high is None else f"from {low}{meaning} to {high}"


def _up_to(high: float | None) -> str:
    return "" if high is None else f", at most {high}"
