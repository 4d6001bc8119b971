"""Replies of the usual shape between hosts, read from their bytes without the codec.

A usual reply says that all items of a request were carried out, or has leased items and nothing else. The codec is the
reference, and takes ten times the time. Each function gets a frame and the place where the reply's struct begins, and
returns None for a reply that the codec has to read or to refuse. It believes no length: a frame that ends elsewhere is
not usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from foqs.idl import LeasedBytes, idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import I32, I64, LIST, STRING, STRUCT, field_head

_RESPONSE = field_head(STRUCT, 0)
_LIST = _RESPONSE + field_head(LIST, 1) + bytes((STRUCT,))
_STOPS = b"\0\0"  # of the response and of the result
_ID, _NS, _TOPIC = field_head(I64, 1), field_head(STRING, 4), field_head(STRING, 5)
_FAIRNESS, _THROTTLES = field_head(STRING, 17), field_head(LIST, 18) + bytes((STRING,))
_size = Struct(">I").unpack_from
_text = Struct(">3sI").unpack_from
_stored = Struct(">3sqB")
# Of an item: up to its names; behind them; behind the payload. Its names, and its tenancy, are like those before.
_head = Struct(">3sq3sq3si")
_middle = Struct(">3si3sI")
_tail = Struct(">3si3sq3sq3sq")
_HEADS = (field_head(I64, 1), field_head(I64, 2), field_head(I32, 3))
_MIDDLES = (field_head(I32, 6), field_head(STRING, 7))
_TAILS = (field_head(I32, 10), field_head(I64, 11), field_head(I64, 12), field_head(I64, 13))
_OK = idl.ItemOutcome()
_DEQUEUE = RemoteMethod("Dequeue")


class Outcome(NamedTuple):
    """Reads like an EnqueueOutcome without an error."""

    id: int
    error: None = None
    duplicate: None = None


class Outcomes(NamedTuple):
    """Reads like the response to items of any method."""

    outcomes: Sequence[Any]


def items_done(frame: bytes, start: int) -> Outcomes | None:
    """Return the response to items by id that were all carried out."""
    at = start + len(_LIST) + 4
    if not frame.startswith(_LIST, start) or frame.count(0, at) != len(frame) - at:
        return None
    (count,) = _size(frame, at - 4)
    return Outcomes([_OK] * count) if at + count + len(_STOPS) == len(frame) else None


def items_stored(frame: bytes, start: int) -> Outcomes | None:
    """Return the response to new items that were all stored, none of them a duplicate."""
    at, end = start + len(_LIST) + 4, len(frame) - len(_STOPS)
    if end < at or not frame.startswith(_LIST, start) or not frame.endswith(_STOPS):
        return None
    if end - at != _size(frame, at - 4)[0] * _stored.size:
        return None
    outcomes = []
    for head, item_id, stop in _stored.iter_unpack(frame[at:end]):
        if head != _ID or stop:
            return None
        outcomes.append(Outcome(item_id))
    return Outcomes(outcomes)


def items_leased(frame: bytes, start: int) -> LeasedBytes | None:
    """Return the response with leased items without metadata, headers, TTL and ledger."""
    if not frame.startswith(_LIST, start):
        return None
    at = start + len(_LIST)
    names, tenancy = b"", b"\0"
    try:
        (count,) = _size(frame, at)
        at += 4
        if not 1 <= count <= len(frame) - at:
            return None
        for _ in range(count):
            id_, _, lease_, _, attempt_, _ = _head.unpack_from(frame, at)
            at += _head.size
            if not names or not frame.startswith(names, at):
                names = frame[at : _behind_names(frame, at)]
            at += len(names)
            priority_, _, payload_, size = _middle.unpack_from(frame, at)
            at += _middle.size + size
            delivery_, _, due_, _, enqueued_, _, expires_, _ = _tail.unpack_from(frame, at)
            at += _tail.size
            if (
                (id_, lease_, attempt_) != _HEADS
                or (priority_, payload_) != _MIDDLES
                or (delivery_, due_, enqueued_, expires_) != _TAILS
            ):
                return None
            if not frame.startswith(tenancy, at):
                tenancy = frame[at : _behind_tenancy(frame, at)]
            at += len(tenancy)
    except (StructError, ValueError):
        return None
    if frame[at:] != _STOPS:
        return None
    number = int.from_bytes(frame[start - 4 : start], "big")
    return LeasedBytes(frame[start + len(_RESPONSE) : -1], lambda: _DEQUEUE.decode(frame, number))


def _behind_names(frame: bytes, at: int) -> int:
    """Return where the namespace and the topic at `at` end. Raises StructError, or ValueError: other fields."""
    for name in (_NS, _TOPIC):
        head, size = _text(frame, at)
        if head != name:
            raise ValueError("an item of another form")
        at += 7 + size
    return at


def _behind_tenancy(frame: bytes, at: int) -> int:
    """Return where an item with a fairness key or throttle keys at `at` ends. Raises as `_behind_names`."""
    if frame.startswith(_FAIRNESS, at):
        at += 7 + _text(frame, at)[1]
    if frame.startswith(_THROTTLES, at):
        (count,) = _size(frame, at + len(_THROTTLES))
        at += len(_THROTTLES) + 4
        for _ in range(min(count, len(frame))):
            at += 4 + _size(frame, at)[0]
    if not frame.startswith(b"\0", at):
        raise ValueError("an item of another form")
    return at + 1
