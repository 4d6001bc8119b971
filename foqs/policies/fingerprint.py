"""Groups reasons of failures that differ only in what changes from one item to the next."""

from __future__ import annotations

import re
from hashlib import blake2b
from string import hexdigits

from foqs.errors import Invalid

_VARIABLE = re.compile(
    r"""(?P<uuid>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})
      | (?P<quoted>"[^"]*" | (?<!\w)'[^']*' | `[^`]*`)
      | (?P<number>0x[0-9a-f]+ | \b(?=[a-f]*[0-9])[0-9a-f]{6,}\b | [0-9]+)""",
    re.IGNORECASE | re.VERBOSE,
)


_DIGITS = 16


def fingerprint(reason: str) -> int:
    """Return 64 bits, signed; 0 for an empty reason."""
    if not reason:
        return 0
    common = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", reason)
    return int.from_bytes(blake2b(common.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def shown_fingerprint(number: int) -> str:
    """Return the spelling of a fingerprint, in Python and in commands: 16 hexadecimal digits.

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
