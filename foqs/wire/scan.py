"""Proofs that a frame is whole and cheap to decode, before the codec sees it, and checks of types that it omits.

The Cython codec believes what a frame declares: 2 MB of empty structs cost it 1.9 s and 350 MB, and a list of
a type that does not exist makes it spin without consuming a byte. `scan` walks the frame without building
anything and lets through only one struct that ends where the frame ends, with every count and length
within the bytes that are left, nested at most `MAX_DEPTH` deep, no container above `limits.request_items`,
and in all at most `max_values` (by default `VALUES_PER_ITEM * limits.request_items`). So a scan takes at most
about 0.1 us a value (fixed-size elements are stepped over at once), and what passes decodes to at most that
many objects, however large the frame is. Batches without maps never come here: see `foqs.wire.server_codec`.

thriftpy2 hands over a `string` that is not UTF-8 as `bytes`, and leaves a field of the wrong type at its
default. `foqs.rpc` guarantees, for every request: its own `string` fields and the fields of its context are
`str` or None. Strings inside items are checked where the items are looked at: one bad item is
that item's fault. In an answer of another host, `text_fault` finds a string that is not UTF-8 in any place.
"""

from __future__ import annotations

from itertools import product
from struct import error as StructError
from typing import Any

from foqs.bounds import Limits
from foqs.errors import PROTOCOL_VERSION, Invalid, OtherProtocol
from foqs.wire.protocol import (
    FIXED_BYTES,
    LIST,
    MAP,
    MIN_BYTES,
    SET,
    STOP,
    STRING,
    STRUCT,
    Malformed,
    read_list_head,
    read_map_head,
    read_u32,
)

MAX_DEPTH = 16
VALUES_PER_ITEM = 40
_BYTES_PER_REPLY_VALUE = 4
"""Few values take less."""

# Least size of the elements of a list, or of the pairs of a map, and True if each of them has this size.
_SHAPES: dict[tuple[int, ...], tuple[int, bool]] = {
    types: (sum(MIN_BYTES[ttype] for ttype in types), all(ttype in FIXED_BYTES for ttype in types))
    for length in (1, 2)
    for types in product(MIN_BYTES, repeat=length)
}


def scan(frame: bytes, start: int, limits: Limits, max_values: int | None = None) -> None:
    """Check the struct at `start`, which has to end with the frame.

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
        """Step over one value that is no string and has no fixed size."""
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
        """Step over `count` elements, each one value of each of `types` (one for a list, two for a map)."""
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


def check_strings(request: Any, names: tuple[str, ...]) -> None:
    """Check that each of these `string` fields of `request` is text or absent. Raises Invalid."""
    for name in names:
        value = getattr(request, name)
        if value is not None and not isinstance(value, str):
            raise Invalid(f"{name} is not UTF-8")


def check_context(context: Any, limits: Limits) -> None:
    """Check the types and sizes of a RequestContext. Raises Invalid, without values: one of them is secret. Raises
    OtherProtocol for a request of a host with another protocol version."""
    # Written out: a loop over the names takes twice the time, and every request comes here.
    request_id, most = context.request_id, limits.context_bytes
    if context.token is not None:
        _check_text(context.token, "token", limits.token_bytes)
    if request_id is not None:
        _check_text(request_id, "request_id", most)
    if context.traceparent is not None:
        _check_text(context.traceparent, "traceparent", most)
    if context.host_proof is not None:
        _check_text(context.host_proof, "host_proof", most)
    if context.host_proof_next is not None:
        _check_text(context.host_proof_next, "host_proof_next", most)
    if context.principal is not None:
        _check_text(context.principal, "principal", limits.token_bytes)
    if context.client is not None and not isinstance(context.client, str):
        raise Invalid("context.client is not UTF-8")
    if request_id is not None and not request_id.isprintable():
        # Line ends and terminal escapes would forge what a log says.
        raise Invalid("context.request_id has characters that cannot be printed")
    timeout_ms = context.timeout_ms
    if timeout_ms is not None and not 1 <= timeout_ms <= limits.timeout_max_ms:
        raise Invalid(f"context.timeout_ms is not within 1 and {limits.timeout_max_ms}")
    if context.hops is not None and context.hops < 0:
        raise Invalid("context.hops is below 0")
    if context.peer_version is not None and context.peer_version != PROTOCOL_VERSION:
        raise OtherProtocol("the host that asks", context.peer_version)


def _check_text(value: object, name: str, max_bytes: int) -> None:
    if not isinstance(value, str):
        raise Invalid(f"context.{name} is not UTF-8")
    if len(value) > max_bytes or (not value.isascii() and len(value.encode()) > max_bytes):
        raise Invalid(f"context.{name} is longer than {max_bytes} bytes")


def text_fault(struct: Any) -> str | None:
    """Return the name of a field of `struct`, or of a struct in it, with a `string` that is not UTF-8; None: no field.
    Such a string is `bytes`, on which the methods of texts fail."""
    for spec in struct.thrift_spec.values():
        value = getattr(struct, spec[1])
        if value and (found := _fault(spec[0], spec[2], value, spec[1])) is not None:
            return found
    return None


def _fault(ttype: int, of: Any, value: Any, name: str) -> str | None:
    if ttype == STRING:
        return None if isinstance(value, str) else name
    if ttype == STRUCT:
        return text_fault(value)
    parts: list[tuple[Any, Any]] = []
    if ttype == LIST:
        parts = [(of, value)]
    elif ttype == MAP:
        parts = [(of[0], value.keys()), (of[1], value.values())]
    for kind, values in parts:
        inner, below = kind if isinstance(kind, tuple) else (kind, None)
        if inner in (STRING, STRUCT, LIST, MAP):
            found = next((fault for one in values if (fault := _fault(inner, below, one, name)) is not None), None)
            if found is not None:
                return found
    return None
