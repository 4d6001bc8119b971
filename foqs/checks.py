"""Checks of values that callers and users give. Each raises Invalid with the name, the value and the allowed range.

A bool is no number here, a float no integer, and bytes no text: the codec would convert them without a message. The
error shows numbers, and no text, which may be a secret. `zero` says in the error what 0 means.

Values that are printed and given back have one spelling here, the same in logs, in commands and in Python.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Collection, Iterable
from datetime import date, timedelta
from math import isfinite
from string import hexdigits
from typing import Any, NoReturn, TypeGuard
from urllib.parse import parse_qs, parse_qsl

from foqs.errors import Invalid

I32_MAX = (1 << 31) - 1
I64_MAX = (1 << 63) - 1
LONGEST_MS = I32_MAX
"""24.8 days. The longest wait, time-out and lease: an i32 holds it, and a thread can wait for it."""
FIRST_TIME_MS, _LAST_TIME_MS = 10**11, 10**14
"""In March 1973 and the year 5138: a number outside is clearly no time in milliseconds, but in another unit."""
MASK = "***"
"""In place of a secret."""
SMALL_TIME_MS = 1_000
"""A smaller number counts as a time in the past, which is often written as 0 or 1."""
SHOWN_BITS = 256
"""An error shows a number of this size, or smaller."""
_SHOWN_CHARS = 40
_MOST_SHARDS = 20
_FINGERPRINT_DIGITS = 16
_ACCEPTED_URLS = ("mysql+pymysql", "mysql+mysqldb", "sqlite")
_DRIVERS = {
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
    "sqlite": ("pysqlite",),
}
PASSWORD_FILE = "password_file"
"""The option of a shard's URL that names the file with the password."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,254}", re.ASCII)
_SECRET_OPTION = re.compile(f"{PASSWORD_FILE}$|ssl")
_NUMBER = re.compile(r"[0-9]{1,5}", re.ASCII)
_SCHEME = re.compile(r"([\w.-]+)(?:\+([\w.-]+))?://")
_PLACE = re.compile(
    r"(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?(?P<host>\[[^/?]+\]|[^/:?]*)(?::(?P<port>[^/?]*))?"
    r"(?:/(?P<database>[^?]*))?(?:\?(?P<options>.*))?",
    re.DOTALL,
)
"""The parts of a URL as SQLAlchemy splits it: user, password, host, port, database, options."""


def check_int(
    name: str, value: object, low: int, high: int | None = None, *, zero: str = "", none: bool = False
) -> None:
    """Refuse a value that is not an int within the bounds. With `none`, None is accepted too.

    >>> check_int("count", 5, 1, 10)
    >>> check_int("count", "4", 1, 10)
    Traceback (most recent call last):
    foqs.errors.Invalid: count is of type str: it must be an integer from 1 to 10
    """
    if type(value) is int and low <= value and (high is None or value <= high):
        return
    if value is None and none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        refuse(name, value, f"it must be an integer {_range(name, low, high, zero)}")


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
        bounds = f"above {low}{_up_to(high)}{_unit(name)}" if above else _range(name, low, high, zero)
        refuse(name, value, f"it must be a number {bounds}")


def check_bool(name: str, value: object) -> None:
    """Refuse every value but True and False: the text "no" would count as True."""
    if not isinstance(value, bool):
        refuse(name, value, "it must be True or False")


def check_text(
    name: str, value: object, *, most_bytes: int | None = None, none: bool = False, empty: bool = False
) -> None:
    """Refuse a value that is not text of 1 to `most_bytes` bytes of UTF-8. The error does not show the text. With
    `empty`, an empty text is accepted too."""
    if value is None and none:
        return
    wanted = "it must be text" if empty else "it must be text that is not empty"
    if most_bytes is not None:
        wanted = f"it must be text of {0 if empty else 1} to {most_bytes} bytes"
    if not isinstance(value, str):
        raise Invalid(f"{name} {'is None' if value is None else f'is of type {type(value).__name__}'}: {wanted}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{name} is not valid Unicode: {wanted}") from None
    if (not size and not empty) or (most_bytes is not None and size > most_bytes):
        raise Invalid(f"{name} {f'has {size} bytes' if size else 'is empty'}: {wanted}")


def is_text(value: object) -> TypeGuard[str]:
    """Return True for a text that UTF-8 says. The codec hands over other texts as bytes. JSON and variables of the
    environment may hold texts that cannot be sent."""
    if not isinstance(value, str):
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def has_control(text: str) -> bool:
    """Return True for a text that no name may be. Ask first if the text is not printable, which takes less time."""
    return any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text)


def check_bytes(name: str, value: object, *, none: bool = False) -> None:
    """Refuse a value that is not bytes, bytearray or memoryview. Only the caller knows the encoding of a text. The
    error does not show the value."""
    if isinstance(value, bytes | bytearray | memoryview) or (value is None and none):
        return
    advice = ": encode it, for example with .encode()" if isinstance(value, str) else ""
    raise Invalid(f"{name} is of type {type(value).__name__}: it must be bytes{advice}")


def check_choice(name: str, value: object, among: Iterable[object]) -> None:
    """Refuse a value that is not equal to one of `among`."""
    allowed = [str(one) for one in among]
    wanted = f"it must be one of {', '.join(allowed)}"
    if not isinstance(value, str):
        refuse(name, value, wanted)
    if str(value) not in allowed:
        raise Invalid(f"{name} is {shown(value)}: {wanted}")


def check_callable(name: str, value: object, form: str, *, none: bool = False) -> None:
    """Refuse a value that cannot be called. `form` shows the call."""
    if not callable(value) and not (value is None and none):
        refuse(name, value, f"it must be a function, called as {form}")
    if (undone := body_not_run(value)) is not None:
        raise Invalid(f"{name} is a {undone}, which would never run: give an ordinary function, called as {form}")


def body_not_run(call: Any) -> str | None:
    """Return what `call` is if a call of it would not run its body; None for other callables."""
    import inspect  # takes 7 ms

    while isinstance(call, functools.partial):
        call = call.func
    candidates = (call, getattr(type(call), "__call__", None))  # noqa: B004 - the function itself is looked at
    if any(map(inspect.iscoroutinefunction, candidates)):
        return "coroutine function (async def)"
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in candidates):
        return "generator function"
    return None


def check_distinct(name: str, values: object, what: str) -> None:
    """Refuse no values, values that are not texts, empty texts, and a value that is given twice."""
    found: set[str] = set()
    if isinstance(values, bytes | str) or not isinstance(values, Collection):  # an iterator would be empty afterwards
        refuse(name, values, f"it must be a list of texts, one for each {what}")
    for value in values:
        check_text(f"{name}: {what}", value)
        if value in found:
            raise Invalid(f"{name} has {shown(value)} twice: give each {what} once")
        found.add(value)
    if not found:
        raise Invalid(f"{name} is empty: give at least one {what}")


def check_time_ms(name: str, value: object, *, none: bool = False) -> None:
    """Refuse a value that is no time in Unix epoch milliseconds. 0 is accepted as a time in the past."""
    if value is None and none:
        return
    check_int(name, value, -I64_MAX - 1, I64_MAX)
    assert isinstance(value, int), "the check says so"
    if (fault := time_fault(value)) is not None:
        raise Invalid(f"{name} is {value}, {fault}")


def time_fault(at_ms: int) -> str | None:
    """Return why a number is clearly not a time in Unix epoch milliseconds, and the remedy; None if it may be one.

    >>> time_fault(1_764_112_000)
    'which is in January 1970: give Unix epoch milliseconds (of seconds 1,000 times the number), and no duration'
    >>> time_fault(1_764_112_000_000) is time_fault(0) is time_fault(-1) is None
    True
    """
    if SMALL_TIME_MS <= at_ms < FIRST_TIME_MS:
        when = time.strftime("%B %Y", time.gmtime(at_ms // 1_000))
        return f"which is in {when}: give Unix epoch milliseconds (of seconds 1,000 times the number), and no duration"
    if at_ms > _LAST_TIME_MS:
        return "which is after the year 5000: give Unix epoch milliseconds (not microseconds or nanoseconds)"
    return None


def is_time(value_ms: int) -> bool:
    """Return True for a number that is rather a time in Unix epoch milliseconds than a duration."""
    return FIRST_TIME_MS <= value_ms <= _LAST_TIME_MS


def refuse(name: str, value: object, wanted: str) -> NoReturn:
    """Raise Invalid, which shows the value if it is a number; `wanted` begins with "it must be"."""
    raise Invalid(f"{name} {_said(value)}: {wanted}{_remedy(name, value)}")


def _said(value: object) -> str:
    if value is None:
        return "is None"
    if isinstance(value, bool):
        return f"is {value} (bool)"
    if isinstance(value, int):
        return f"is {int(value)}" if value.bit_length() <= SHOWN_BITS else f"has {value.bit_length()} bits"
    if type(value) is float:
        return f"is {value} (float)"
    return f"is of type {type(value).__name__}"


def shown(value: str) -> str:
    """Return the text in quotes, cut after 40 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _remedy(name: str, value: object) -> str:
    if not name.endswith("_ms"):
        return ""
    if isinstance(value, timedelta):
        return "; of a timedelta: round(d.total_seconds() * 1000)"
    if isinstance(value, date):
        return "; of a datetime: round(d.timestamp() * 1000)"
    if isinstance(value, int) and is_time(value):
        return " (a duration, not a time)"
    return ""


def _range(name: str, low: float, high: float | None, zero: str) -> str:
    meaning = f" ({zero})" if zero and low == 0 else ""
    bounds = f"of at least {low}{meaning}" if high is None else f"from {low}{meaning} to {high}"
    return f"{bounds}{_unit(name)}"


def _unit(name: str) -> str:
    return ", in milliseconds" if name.endswith("_ms") else ", in bytes" if name.endswith("_bytes") else ""


def _up_to(high: float | None) -> str:
    return "" if high is None else f", at most {high}"


def printable(text: str) -> str:
    """Return a name in a form that a terminal can show: an id can be any text."""
    return text if text.isprintable() else repr(text)


def counted(number: int, noun: str, one: str = "", many: str = "") -> str:
    """Return a number with its noun, and with the verb for one or for many.

    >>> counted(1, "item"), counted(2_000, "item"), counted(1, "item", "waits", "wait")
    ('1 item', '2,000 items', '1 item waits')
    """
    verb = one if number == 1 else many
    return f"{number:,} {noun}{'' if number == 1 else 's'}{verb and ' '}{verb}"


def part_of(part: int, number: int, noun: str, one: str, many: str) -> str:
    """Return a part of a number with its noun, and with the verb for one or for many.

    >>> part_of(1, 3, "item", "is", "are"), part_of(1, 1, "item", "is", "are"), part_of(0, 1, "item", "is", "are")
    ('1 of 3 items is', '1 of 1 item is', '0 of 1 item are')
    """
    return f"{part:,} of {counted(number, noun)} {one if part == 1 else many}"


def per_second(minute: int) -> str:
    """Return the mean rate of the events of a minute, in events a second.

    >>> per_second(0), per_second(2), per_second(90), per_second(72_000)
    ('0', '<0.1', '1.5', '1,200')
    """
    rate = minute / 60
    if 0 < rate < 0.1:
        return "<0.1"
    return f"{rate:.1f}".removesuffix(".0") if rate < 10 else f"{rate:,.0f}"


def shard_list(numbers: Iterable[int]) -> str:
    """Return words for shards, with their first numbers.

    >>> shard_list([7]), shard_list([4, 1]), shard_list(range(1, 24))[-17:]
    ('shard 7', 'shards 1, 4', '19, 20 and 3 more')
    """
    ordered = sorted(numbers)
    further = len(ordered) - _MOST_SHARDS
    shown = ", ".join(map(str, ordered[:_MOST_SHARDS]))
    return f"shard{'s' * (len(ordered) > 1)} {shown}{f' and {further} more' if further > 0 else ''}"


def host_port(host: str, port: int | str) -> str:
    """Return the address as options take it: an IPv6 address is in brackets.

    >>> host_port("db", 7707), host_port("::1", 7707)
    ('db:7707', '[::1]:7707')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown_fingerprint(number: int) -> str:
    """Return a fingerprint as 16 hexadecimal digits.

    >>> shown_fingerprint(-1), parse_fingerprint("00000000000000FF"), parse_fingerprint(shown_fingerprint(-5))
    ('ffffffffffffffff', 255, -5)
    """
    return f"{number & ((1 << 64) - 1):0{_FINGERPRINT_DIGITS}x}"


def parse_fingerprint(text: str) -> int:
    """Return the number that `shown_fingerprint` shows. Raises Invalid."""
    if len(text) != _FINGERPRINT_DIGITS or not set(text) <= set(hexdigits):
        raise Invalid(f"a fingerprint has {_FINGERPRINT_DIGITS} hexadecimal digits: {text[:40]!r} is none")
    number = int(text, 16)
    return number - (1 << 64) if number >> 63 else number


def shard_url_fault(url: str) -> str | None:
    """Return why a shard cannot be at `url`; None when it may. SQLAlchemy and the driver read its options. The text
    shows nothing of what follows `://`, which has a password."""
    scheme = _SCHEME.match(url)
    accepted = f"the shard's URL has to begin with {', '.join(f'{name}://' for name in _ACCEPTED_URLS)}"
    if scheme is None:
        return accepted
    dialect, driver = scheme[1], scheme[2]
    if dialect not in _DRIVERS:
        return f"{dialect} is no database of foqs: {accepted}"
    if driver is not None and driver not in _DRIVERS[dialect]:
        return f"{dialect}+{driver} is no driver of foqs: {accepted}"
    place = _PLACE.fullmatch(url, scheme.end())
    if place is None:
        return "the shard's URL is not dialect://user:password@host:port/database"
    if dialect == "sqlite":
        lost = place["database"] in (None, "", ":memory:")
        return "a SQLite shard needs a file: a database in memory is lost with the process" if lost else None
    port = place["port"]
    if port is not None and not (_NUMBER.fullmatch(port) and 0 < int(port) < 65_536):
        return "the port of the shard's URL is not a number from 1 to 65535"
    return _password_fault(place) if place["database"] else "the shard's URL names no database"


def _password_fault(place: re.Match[str]) -> str | None:
    """Refuse a path: an account that writes URLs, as into ZooKeeper, could else send any file of a host to a server."""
    named = parse_qs(place["options"] or "", keep_blank_values=True).get(PASSWORD_FILE)
    if named is None:
        return None
    if len(named) > 1 or not _FILE_NAME.fullmatch(named[0]):
        return (
            f"{PASSWORD_FILE} in the shard's URL is not the name of a file in store.secrets_dir: letters, digits, and "
            "after the first one also . _ and -"
        )
    given = f"the shard's URL has a password and a {PASSWORD_FILE}: leave the password out"
    return given if place["password"] else None


def masked_url(url: str) -> str:
    """Return the URL without its password and options. A text that is no URL is hidden whole."""
    scheme, found, rest = url.partition("://")
    if not found or not re.fullmatch(r"[\w+.-]+", scheme):
        return MASK
    user, at, place = rest.rpartition("@")  # a password may hold any character, @ too
    name, colon, _ = user.partition(":")
    place, query, _ = place.partition("?")
    return f"{scheme}://{name}{colon and f':{MASK}'}{at}{place}{query and f'?{MASK}'}"


def same_account(url: str, other: str) -> bool:
    """Return True if two URLs lead to one database as one account: they differ in passwords and TLS at most, which a
    connection that is open needs no more."""
    return _account(url) == _account(other)


def _account(url: str) -> object:
    scheme = _SCHEME.match(url)
    place = scheme and _PLACE.fullmatch(url, scheme.end())
    if scheme is None or place is None:
        return url
    options = parse_qsl(place["options"] or "", keep_blank_values=True)
    others = sorted(option for option in options if not _SECRET_OPTION.match(option[0]))
    return scheme[0], place["user"], place["host"], place["port"], place["database"], others
