"""Requests of the usual shape as bytes, without a struct for each, and the context that ends every request.

The codec is the reference: each function returns exactly its bytes, without the STOP of the request, or None for values
that the codec has to encode or refuse (most options of an item, several topics, wrong types).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

from foqs.client.items import Delivery
from foqs.idl import idl
from foqs.wire.protocol import I32, I64, LIST, STRING, STRUCT, encode_struct, field_head

_NAMES_KEPT = 1_024
_STOP = b"\0"
_ONE = bytes((STRUCT,)) + (1).to_bytes(4, "big")  # a list of one struct
_NS, _TOPIC, _PAYLOAD = field_head(STRING, 1), field_head(STRING, 1), field_head(STRING, 2)
_PRIORITY, _DELIVERY = field_head(I32, 5), field_head(I32, 10)
_FAIRNESS, _WEIGHT = field_head(STRING, 12), field_head(I32, 14)
_THROTTLES = field_head(LIST, 13) + bytes((STRING,))
_ID, _LEASE = field_head(I64, 1), field_head(I64, 2)
_ITEMS, _WANTS, _ACKS = field_head(LIST, 2) + _ONE, field_head(LIST, 2) + _ONE, field_head(LIST, 1) + _ONE
_NS_OF_ACKS = field_head(STRING, 2)
_COUNT, _WAIT = field_head(I32, 2), field_head(I64, 4)
_CONTEXT, _REQUEST_ID, _TRACEPARENT = field_head(STRUCT, 15), field_head(STRING, 2), field_head(STRING, 3)
_TIMEOUT = field_head(I64, 4)

_length = Struct(">I").pack
# What follows the payload; the weight; all acks; what follows the topic of the wants; the end of a context.
_after_payload = Struct(">3si3si").pack
_weight = Struct(">3si").pack
_acks = Struct(f">{len(_ACKS)}s3sq3sqB").pack
_after_topic = Struct(">3siB3sq").pack
_context_end = Struct(">3sqB").pack
_MISFITS = (StructError, TypeError, AttributeError, UnicodeEncodeError)
"""A value of another type, too large, or not valid Unicode: the codec encodes it or names the fault."""


def enqueue_request(namespace: str, topic: str, payload: bytes, priority: int = 0, **options: Any) -> bytes | None:
    """Return the EnqueueRequest for one item."""
    if type(payload) is not bytes or type(priority) is not int:
        return None
    try:
        end = _STOP if not options else _tenancy(**options)
        middle = _after_payload(_PRIORITY, priority, _DELIVERY, Delivery.AT_LEAST_ONCE)
        return b"".join((_before_payload(namespace, topic), _length(len(payload)), payload, middle, end))
    except _MISFITS:
        return None


def ack_request(namespace: str, item_id: int, lease: int) -> bytes | None:
    """Return the AckRequest for one item."""
    try:
        return _acks(_ACKS, _ID, item_id, _LEASE, lease, 0) + _behind_acks(namespace)
    except _MISFITS:
        return None


def dequeue_request(
    namespace: str, counts: Mapping[str, int], wait_ms: int, lease_ms: int | None, max_bytes: int | None
) -> bytes | None:
    """Return the DequeueRequest for one topic without options."""
    if lease_ms is not None or max_bytes is not None or len(counts) != 1:
        return None
    try:
        ((topic, count),) = counts.items()
        return _before_count(namespace, topic) + _after_topic(_COUNT, count, 0, _WAIT, wait_ms)
    except _MISFITS:
        return None


def context_head(token: str | None) -> bytes:
    """Return what the contexts of one client begin with. Raises Unencodable."""
    return _CONTEXT + encode_struct(idl.RequestContext(token=token))[:-1]


def context(head: bytes, request_id: str, traceparent: str | None, timeout_ms: int) -> bytes:
    """Return the field with the RequestContext."""
    encoded = request_id.encode()
    trace = b"" if traceparent is None else _text(_TRACEPARENT, traceparent)
    end = _context_end(_TIMEOUT, timeout_ms, 0)
    return b"".join((head, _REQUEST_ID, _length(len(encoded)), encoded, trace, end))


@lru_cache(_NAMES_KEPT)
def _before_payload(namespace: str, topic: str) -> bytes:
    return _text(_NS, namespace) + _ITEMS + _text(_TOPIC, topic) + _PAYLOAD


def _tenancy(
    fairness_key: str | None = None, throttle_keys: Sequence[str] | None = None, weight: int | None = None
) -> bytes:
    """Return what follows the delivery of an item, up to its end. Raises an error of `_MISFITS`: other options too."""
    if isinstance(throttle_keys, str):
        raise TypeError("one text is no sequence of keys")
    if weight is not None and type(weight) is not int:
        raise TypeError("a bool, or a number with a fraction, is no weight")
    return _behind_delivery(fairness_key, None if throttle_keys is None else tuple(throttle_keys), weight)


@lru_cache(_NAMES_KEPT)
def _behind_delivery(fairness_key: str | None, throttle_keys: tuple[str, ...] | None, weight: int | None) -> bytes:
    made = b"" if fairness_key is None else _text(_FAIRNESS, fairness_key)
    if throttle_keys is not None:
        made += _THROTTLES + _length(len(throttle_keys)) + b"".join([_text(b"", key) for key in throttle_keys])
    if weight is not None:
        made += _weight(_WEIGHT, weight)
    return made + _STOP


@lru_cache(_NAMES_KEPT)
def _before_count(namespace: str, topic: str) -> bytes:
    return _text(_NS, namespace) + _WANTS + _text(_TOPIC, topic)


@lru_cache(_NAMES_KEPT)
def _behind_acks(namespace: str) -> bytes:
    return _text(_NS_OF_ACKS, namespace)


def _text(head: bytes, value: str) -> bytes:
    encoded = value.encode()
    return head + _length(len(encoded)) + encoded
