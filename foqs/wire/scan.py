"""Proves, before an object is built, that a frame is whole and that decoding it is cheap.

The Cython codec believes what a frame declares: 2 MB of empty structs cost it 1.9 s and 350 MB, and a list of
a type that does not exist makes it spin without consuming a byte. `scan` walks the frame without building
anything and lets through only one struct that ends where the frame ends, with every count and length
within the bytes that are left, nested at most `MAX_DEPTH` deep, no container above `limits.request_items`,
and in all at most `max_values` (by default `VALUES_PER_ITEM * limits.request_items`). So a scan takes at most
about 0.1 us a value (fixed-size elements are stepped over at once), and what passes decodes to at most that
many objects, however large the frame is.

Batches without maps never come here: see `foqs.wire.request_decoder`.
"""

from __future__ import annotations

from itertools import product
from struct import error as StructError

from foqs.bounds import Limits
from foqs.errors import Invalid
from foqs.wire.errors import Malformed
from foqs.wire.protocol import (
    FIXED_BYTES,
    LIST,
    MAP,
    MIN_BYTES,
    SET,
    STOP,
    STRING,
    STRUCT,
    read_list_head,
    read_map_head,
    read_u32,
)

MAX_DEPTH = 16
VALUES_PER_ITEM = 40
_BYTES_PER_REPLY_VALUE = 4
"""Few values take less."""

# What the elements of a list, or the pairs of a map, take at least, and whether that is what they take.
_SHAPES: dict[tuple[int, ...], tuple[int, bool]] = {
    types: (sum(MIN_BYTES[ttype] for ttype in types), all(ttype in FIXED_BYTES for ttype in types))
    for length in (1, 2)
    for types in product(MIN_BYTES, repeat=length)
}


def scan(frame: bytes, start: int, limits: Limits, max_values: int | None = None) -> None:
    """Checks the struct at `start`, which has to end with the frame.

    Raises Malformed when it is not well formed, Invalid when it is but holds more than the limits allow.
    """
    walk = _Walk(frame, limits, max_values or VALUES_PER_ITEM * limits.request_items)
    try:
        end = walk.struct(start, MAX_DEPTH)
    except (IndexError, StructError):
        raise Malformed("the frame ends within a value") from None
    if end != len(frame):
        raise Malformed("bytes after the message")


def scan_reply(frame: bytes, start: int, limits: Limits) -> None:
    """Check the struct of a reply: the sender may be something else than a host. Raises Malformed.

    A reply may hold more values than a request: it gathers items of many requests.
    """
    try:
        scan(frame, start, limits, max(limits.request_items, len(frame) // _BYTES_PER_REPLY_VALUE))
    except Invalid as error:
        raise Malformed(error.message) from None


class _Walk:
    """One pass over one frame. A position may run past the end: the next read, or the caller, notices."""

    __slots__ = ("frame", "max_count", "values_left")

    def __init__(self, frame: bytes, limits: Limits, max_values: int) -> None:
        self.frame = frame
        self.max_count = limits.request_items
        self.values_left = max_values

    def spend(self, values: int) -> None:
        self.values_left -= values
        if self.values_left < 0:
            raise Invalid("too many values in one request: send fewer items at once")

    def struct(self, position: int, depth: int) -> int:
        if depth <= 0:
            raise Malformed("nested too deeply")
        frame = self.frame
        while (ttype := frame[position]) != STOP:
            self.values_left -= 1
            if self.values_left < 0:
                self.spend(0)
            if ttype == STRING:
                position += 7 + read_u32(frame, position + 3)[0]
            elif ttype in FIXED_BYTES:
                position += 3 + FIXED_BYTES[ttype]
            else:
                position = self.value(ttype, position + 3, depth)
        return position + 1

    def value(self, ttype: int, position: int, depth: int) -> int:
        """Steps over one value that is no string and has no fixed size."""
        if ttype == STRUCT:
            return self.struct(position, depth - 1)
        if ttype in (LIST, SET):
            element, count = read_list_head(self.frame, position)
            return self.elements((element,), count, position + 5, depth - 1)
        if ttype == MAP:
            key, element, count = read_map_head(self.frame, position)
            return self.elements((key, element), count, position + 6, depth - 1)
        raise Malformed("no such type")

    def elements(self, types: tuple[int, ...], count: int, position: int, depth: int) -> int:
        """Steps over `count` elements, each one value of each of `types` (one for a list, two for a map)."""
        if depth <= 0:
            raise Malformed("nested too deeply")
        if count == 0:
            return position
        shape = _SHAPES.get(types)
        if count < 0 or shape is None:
            raise Malformed("no such container")
        min_bytes, fixed = shape
        if count * min_bytes > len(self.frame) - position:
            raise Malformed("more elements declared than the frame can hold")
        if count > self.max_count:
            raise Invalid(f"more than {self.max_count} elements in one list or map")
        self.spend(count * len(types))
        if fixed:
            return position + count * min_bytes
        if types == (STRING, STRING):
            types, count = (STRING,), 2 * count
        return self.step(types, count, position, depth)

    def step(self, types: tuple[int, ...], count: int, position: int, depth: int) -> int:
        frame = self.frame
        if types == (STRING,):
            for _ in range(count):
                position += 4 + read_u32(frame, position)[0]
            return position
        for _ in range(count):
            for ttype in types:
                if ttype == STRING:
                    position += 4 + read_u32(frame, position)[0]
                elif ttype in FIXED_BYTES:
                    position += FIXED_BYTES[ttype]
                else:
                    position = self.value(ttype, position, depth)
        return position
