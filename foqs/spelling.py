"""The spelling of values that are printed and given back: the same in logs, in commands and in Python."""

from __future__ import annotations

from string import hexdigits

from foqs.errors import Invalid

_DIGITS = 16


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
    return f"{number & ((1 << 64) - 1):0{_DIGITS}x}"


def parse_fingerprint(text: str) -> int:
    """Return the number that `shown_fingerprint` shows. Raises Invalid."""
    if len(text) != _DIGITS or not set(text) <= set(hexdigits):
        raise Invalid(f"a fingerprint has {_DIGITS} hexadecimal digits: {text[:40]!r} is none")
    number = int(text, 16)
    return number - (1 << 64) if number >> 63 else number
