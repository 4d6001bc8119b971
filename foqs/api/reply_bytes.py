"""Replies of the usual shape as bytes, without a struct for each item.

`api/responses.py` and the codec are the reference: each function returns exactly their bytes, or None for outcomes and
items that it leaves to them (errors, duplicates, metadata, headers, TTLs).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct

from foqs.errors import FoqsError
from foqs.fairness.keys import LaneKey, tenancy_of
from foqs.item import Item
from foqs.prefetch.lane import Lane
from foqs.wire.protocol import I32, I64, LIST, STRING, STRUCT, field_head

_STOP = b"\0"
_LIST_FIELD = field_head(LIST, 1) + bytes((STRUCT,))
_SECOND_LIST_FIELD = field_head(LIST, 2) + bytes((STRUCT,))
_ID_FIELD = field_head(I64, 1)
_NAMES_KEPT = 1_024

_count = Struct(">I").pack
_outcome = Struct(">3sqB").pack
# Up to the attempt; priority and the payload's length; the delivery and the times behind it.
_head = Struct(">3sq3sq3si").pack
_middle = Struct(">3si3sI").pack
_tail = Struct(">3si3sq3sq3sq").pack
_LEASE, _ATTEMPT, _NS, _TOPIC = field_head(I64, 2), field_head(I32, 3), field_head(STRING, 4), field_head(STRING, 5)
_PRIORITY, _PAYLOAD, _DELIVERY = field_head(I32, 6), field_head(STRING, 7), field_head(I32, 10)
_FAIRNESS, _THROTTLES = field_head(STRING, 17), field_head(LIST, 18) + bytes((STRING,))
_DELIVER_AFTER, _ENQUEUED_AT, _EXPIRES_AT = field_head(I64, 11), field_head(I64, 12), field_head(I64, 13)


def enqueue_response(outcomes: Sequence[int | FoqsError]) -> bytes | None:
    """Return the EnqueueResponse of items that were all stored, none of them a duplicate."""
    if set(map(type, outcomes)) != {int}:
        return None
    stored = b"".join(map(_outcome, repeat(_ID_FIELD), outcomes, repeat(0)))
    return b"".join((_LIST_FIELD, _count(len(outcomes)), stored, _STOP))


def items_response(outcomes: Sequence[FoqsError | None]) -> bytes | None:
    """Return the response to acks, nacks, extensions or deletes that were all carried out."""
    count = len(outcomes)
    if outcomes.count(None) != count:
        return None
    return _LIST_FIELD + _count(count) + bytes(count + 1)  # an outcome is its STOP


def dequeue_response(items: Sequence[Item]) -> bytes | None:
    """Return the DequeueResponse of leased items whose bodies are in memory."""
    parts = [_LIST_FIELD, _count(len(items))]
    lane, names, end = None, b"", _STOP
    ends: dict[Lane[Item], bytes] = {}
    for item in items:
        body = item.body
        assert body is not None
        if body.metadata is not None or body.headers is not None or body.expires_at_ms:
            return None
        if item.lane is not lane:
            lane = item.lane
            names = _names(*lane.topic.key)
            end = _STOP if lane.flow is None else ends.get(lane) or ends.setdefault(lane, _tenancy(lane.key))
        payload = body.payload
        parts += (
            _head(_ID_FIELD, item.id, _LEASE, item.lease, _ATTEMPT, item.attempt),
            names,
            _middle(_PRIORITY, body.priority, _PAYLOAD, len(payload)),
            payload,
            _tail(
                _DELIVERY, body.delivery, _DELIVER_AFTER, item.deliver_after_ms, _ENQUEUED_AT, body.enqueued_at_ms,
                _EXPIRES_AT, item.lease_expires_at_ms,
            ),
            end,
        )  # fmt: skip
    parts.append(_STOP)
    return b"".join(parts)


def ack_and_dequeue_response(acked: bytes, dequeued: bytes) -> bytes:
    """Return the AckAndDequeueResponse with the outcomes of an AckResponse and the items of `dequeue_response`."""
    return b"".join((acked[: -len(_STOP)], _SECOND_LIST_FIELD, dequeued[len(_LIST_FIELD) :]))


@lru_cache(_NAMES_KEPT)
def _names(ns: str, topic: str) -> bytes:
    """Return the fields `ns` and `topic` of an item."""
    return _text(_NS, ns) + _text(_TOPIC, topic)


def _tenancy(lane: LaneKey) -> bytes:
    """Return the fields `fairness_key` and `throttle_keys` of an item, and its end. (Kept from reply to reply, those of
    tenants that are gone would hold on to blocks of memory that nothing else uses any more.)"""
    fairness, throttles = tenancy_of(lane)
    made = _text(_FAIRNESS, fairness) if fairness else b""
    if throttles:
        made += _THROTTLES + _count(len(throttles)) + b"".join([_text(b"", key) for key in throttles])
    return made + _STOP


def _text(head: bytes, value: str) -> bytes:
    encoded = value.encode()
    return head + _count(len(encoded)) + encoded
