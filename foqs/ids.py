"""Item ids: an i64 that says which shard holds the item.

Layout, from the sign bit down: 0, 15 bits of shard, 48 bits of number. So an id is positive, a shard never gives
the same id twice (numbers only grow, also when everything was deleted), and any host can route by the id alone.
Ids are written in decimal everywhere; hexadecimal is accepted where people and programs give them.
"""

from __future__ import annotations

import re

from foqs.checks import shown
from foqs.errors import Invalid

NUMBER_BITS = 48
MAX_NUMBER = (1 << NUMBER_BITS) - 1
MAX_SHARD = (1 << 15) - 1
MIN_I64, MAX_I64 = -(1 << 63), (1 << 63) - 1
_SHOWN_BITS = 256
_SPELLED = re.compile(r"(0x)?([0-9a-f]+)", re.IGNORECASE | re.ASCII)
_MOST_DIGITS = 19
"""Of MAX_I64. Python refuses to read thousands of digits, with an error of its own."""


def make_id(shard: int, number: int) -> int:
    """`shard` 1..32767, `number` 1..2^48-1; ValueError beyond."""
    if not 1 <= shard <= MAX_SHARD:
        raise ValueError(f"shard number {shard} is not in 1..{MAX_SHARD}")
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"item number {number} is not in 1..{MAX_NUMBER}")
    return shard << NUMBER_BITS | number


def first_id(shard: int) -> int:
    """Return the summand that makes an id of `shard` from a number (the hot path adds instead of calling `make_id`)."""
    return shard << NUMBER_BITS


def shard_of(item_id: int) -> int:
    """Return the shard's number; 0 or less for a value that is not an id."""
    return item_id >> NUMBER_BITS


def number_of(item_id: int) -> int:
    return item_id & MAX_NUMBER


def parse_id(given: object, what: str = "an item id") -> int:
    """Parse an id or a lease: decimal, or hexadecimal with 0x. Raises Invalid."""
    if isinstance(given, int) and not isinstance(given, bool):
        if MIN_I64 <= given <= MAX_I64:
            return given
        size = given.bit_length()
        number = str(given) if size <= _SHOWN_BITS else f"a number of {size} bits"
        raise Invalid(f"{number} is not {what}: it has more than 64 bits")
    text = shown(given) if isinstance(given, str) else repr(given)
    spelled = _SPELLED.fullmatch(given.strip()) if isinstance(given, str) else None
    if spelled is not None and (spelled[1] or spelled[2].isdecimal()):
        digits = spelled[2].lstrip("0") or "0"
        read = int(digits, 16 if spelled[1] else 10) if len(digits) <= _MOST_DIGITS else MAX_I64 + 1
        if read <= MAX_I64:
            return read
        raise Invalid(f"{text} is not {what}: the largest one is {MAX_I64}")
    raise Invalid(f"{text} is not {what}: give a whole number, in decimal, or in hexadecimal with 0x before it")
