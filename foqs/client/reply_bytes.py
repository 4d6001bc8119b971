"""Replies of the usual shape read from their bytes, without a struct for each.

The codec is the reference: each function gets a reply frame and where the result begins in it. It returns an object
with the fields of the codec's response, or None for a reply that the codec has to read (errors, duplicates, several
items, metadata, headers, TTLs, fields of a newer version).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from foqs.client.items import Item
from foqs.wire.protocol import I32, I64, LIST, STRING, STRUCT, field_head

_RESPONSE = field_head(STRUCT, 0)
_FAIRNESS, _THROTTLES = field_head(STRING, 17), field_head(LIST, 18) + bytes((STRING,))
_MOST_THROTTLES = 8
_STOPS = b"\0\0"  # of a response and of the result
_LIST = _RESPONSE + field_head(LIST, 1) + bytes((STRUCT,))
_ONE = _LIST + (1).to_bytes(4, "big")
_NONE = _LIST + bytes(4) + _STOPS
_ONE_DONE = _ONE + b"\0" + _STOPS
_STORED, _STORED_STOPS = _ONE + field_head(I64, 1), b"\0" + _STOPS
_stored = Struct(f">{len(_STORED)}sq{len(_STORED_STOPS)}s")

# Up to the namespace; before the topic; from its end to the payload; from the payload's end.
_head = Struct(f">{len(_ONE)}s3sq3sq3si3sI")
_topic = Struct(">3sI")
_middle = Struct(">3si3sI")
_tail = Struct(">3si3sq3sq3sq3s")
_FIELDS = (
    _ONE, field_head(I64, 1), field_head(I64, 2), field_head(I32, 3), field_head(STRING, 4), field_head(STRING, 5),
    field_head(I32, 6), field_head(STRING, 7), field_head(I32, 10), field_head(I64, 11), field_head(I64, 12),
    field_head(I64, 13),
)  # fmt: skip
_ENDS = b"\0" + _STOPS
_text = Struct(">3sI").unpack_from
_size = Struct(">I").unpack_from


class Outcome(NamedTuple):
    """Reads like an EnqueueOutcome or ItemOutcome without an error."""

    id: int | None = None
    error: None = None
    duplicate: None = None


class Outcomes(NamedTuple):
    """Reads like the response to items of any method."""

    outcomes: tuple[Outcome, ...]


class Dequeued(NamedTuple):
    """Reads like a DequeueResponse."""

    items: list[Item]
    doubtful: None = None
    news_version: None = None
    retry_after_ms: None = None
    reason: None = None
    per_worker: None = None


_DONE = Outcomes((Outcome(),))


def enqueue_response(frame: bytes, start: int) -> Outcomes | None:
    """Return the response to one item that was stored, and is no duplicate."""
    if len(frame) != start + _stored.size:
        return None
    head, item_id, stops = _stored.unpack_from(frame, start)
    if head != _STORED or stops != _STORED_STOPS:
        return None
    return Outcomes((Outcome(item_id),))


def items_response(frame: bytes, start: int) -> Outcomes | None:
    """Return the response to one ack, nack or extension that was carried out."""
    return _DONE if len(frame) == start + len(_ONE_DONE) and frame.endswith(_ONE_DONE) else None


def dequeue_response(frame: bytes, start: int) -> Dequeued | None:
    """Return the response with at most one leased item."""
    if len(frame) == start + len(_NONE):
        return Dequeued([]) if frame.endswith(_NONE) else None
    try:
        one, id_, item_id, lease_, lease, attempt_, attempt, ns_, ns_bytes = _head.unpack_from(frame, start)
        ns_at = start + _head.size
        topic_, topic_bytes = _topic.unpack_from(frame, ns_at + ns_bytes)
        topic_at = ns_at + ns_bytes + _topic.size
        priority_, priority, payload_, payload_bytes = _middle.unpack_from(frame, topic_at + topic_bytes)
        payload_at = topic_at + topic_bytes + _middle.size
        tail_at = payload_at + payload_bytes
        delivery_, delivery, due_, due_ms, enqueued_, enqueued_ms, expires_, expires_ms, stops = _tail.unpack_from(
            frame, tail_at
        )
        ns, topic = frame[ns_at : ns_at + ns_bytes].decode(), frame[topic_at : topic_at + topic_bytes].decode()
        end, fairness = tail_at + _tail.size, ""
        throttles: tuple[str, ...] = ()
        if stops != _ENDS:
            end, fairness, throttles = _tenancy(frame, end - len(_ENDS))
    except (StructError, UnicodeDecodeError):
        return None
    fields = (one, id_, lease_, attempt_, ns_, topic_, priority_, payload_, delivery_, due_, enqueued_, expires_)
    if fields != _FIELDS or len(frame) != end:
        return None
    item = Item(
        item_id, lease, attempt, ns, topic, priority, frame[payload_at:tail_at], None, None, delivery, due_ms,
        enqueued_ms, expires_ms, None, None, None, fairness, throttles,
    )  # fmt: skip
    return Dequeued([item])


def _tenancy(frame: bytes, at: int) -> tuple[int, str, tuple[str, ...]]:
    """Return where the reply ends, and the fairness key and the throttle keys of its item, which begin at `at`. The end
    is -1 for any other fields. Raises StructError or UnicodeDecodeError."""
    fairness = ""
    if frame.startswith(_FAIRNESS, at):
        _, size = _text(frame, at)
        text_at, at = at + 7, at + 7 + size
        fairness = frame[text_at:at].decode()
    throttles: list[str] = []
    if frame.startswith(_THROTTLES, at):
        (count,) = _size(frame, at + 4)
        at += 8
        for _ in range(min(count, _MOST_THROTTLES)):
            (size,) = _size(frame, at)
            text_at, at = at + 4, at + 4 + size
            throttles.append(frame[text_at:at].decode())
        if count != len(throttles):
            return -1, "", ()
    return (at + len(_ENDS) if frame.startswith(_ENDS, at) else -1), fairness, tuple(throttles)
