"""The highest ids and epochs of a shard, remembered outside its database.

A restored older copy of a database continues with old numbers, and would assign ids again that are in use. Owners
reserve numbers in steps: the mark names a ceiling, and the owner writes a new mark before it reaches the ceiling.

Marks belong to a shard's identity, a UUID in its row, which a copy keeps under any address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from foqs.errors import Invalid

STEP = 1 << 20
"""Numbers that one mark reserves. A host that crashes wastes no more of the 2^48 than that."""


class Stamp(NamedTuple):
    """The time of a host (`at_ms`), and of its machine's clock (`machine_ms`), at one moment. `host` is its id."""

    at_ms: int = 0
    machine_ms: int = 0
    host: str = ""


class Mark(NamedTuple):
    """`epoch` is the last owner's. Its database had stored `number` as the next one, so a lower one there is an older
    copy. Numbers from `ceiling` on were not given. The owner had committed at least `seq` transactions, counted over
    all owners. `stamp`: when it was written."""

    epoch: int
    number: int
    ceiling: int
    seq: int = 0
    stamp: Stamp = Stamp()


Marks = Mapping[str, Mark]
"""The marks of all shards that had one number, by identity (in hex)."""


def ahead(epoch: int, next_number: int, seq: int = 0) -> Mark:
    """Return the mark of an owner that continues with `next_number`."""
    return Mark(epoch, next_number, next_number + STEP, seq)


def encode(mark: Mark) -> bytes:
    record = mark._asdict() | {"stamp": mark.stamp._asdict()}
    return json.dumps(record, separators=(",", ":")).encode()


def decode(data: bytes) -> Mark:
    """Parse a mark; unknown keys are ignored. Raises Invalid."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid("not JSON") from None
    match record:
        case {"epoch": int(epoch), "number": int(number), "ceiling": int(ceiling)} if min(epoch, number, ceiling) >= 0:
            seq = record.get("seq", 0)
            return Mark(epoch, number, ceiling, seq if type(seq) is int else 0, _stamp(record.get("stamp")))
    raise Invalid("epoch, number and ceiling are not three numbers")


def _stamp(record: object) -> Stamp:
    match record:
        case {"at_ms": int(at_ms), "machine_ms": int(machine_ms), "host": str(host)}:
            return Stamp(at_ms, machine_ms, host)
    return Stamp()
