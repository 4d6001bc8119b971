"""The highest ids and epochs of a shard, remembered outside its database.

A restored older copy of a database continues with old numbers, and would assign ids again that are in use. Owners
reserve numbers in steps: the mark names a ceiling, and the owner writes a new mark before it reaches the ceiling.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from foqs.errors import Invalid

STEP = 1 << 20
"""Numbers that one mark reserves. A host that crashes wastes no more of the 2^48 than that."""


class Mark(NamedTuple):
    """`epoch` is the last owner's. Its database had stored `number` as the next one, so a lower one there is an older
    copy. Numbers from `ceiling` on were not given."""

    epoch: int
    number: int
    ceiling: int


def ahead(epoch: int, next_number: int) -> Mark:
    """Return the mark of an owner that continues with `next_number`."""
    return Mark(epoch, next_number, next_number + STEP)


def newer(one: Mark | None, other: Mark | None) -> Mark | None:
    """Return the mark of the later owner; for one owner, the higher mark."""
    return max(one, other) if one is not None and other is not None else one or other


def encode(mark: Mark) -> bytes:
    return json.dumps(mark._asdict(), separators=(",", ":")).encode()


def decode(data: bytes) -> Mark:
    """Parse a mark; unknown keys are ignored. Raises Invalid."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid("not JSON") from None
    match record:
        case {"epoch": int(epoch), "number": int(number), "ceiling": int(ceiling)} if min(epoch, number, ceiling) >= 0:
            return Mark(epoch, number, ceiling)
    raise Invalid("epoch, number and ceiling are not three numbers")
