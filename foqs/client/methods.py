"""The methods of the service, and a short way past the codec for requests and replies of the usual shape.

The codec is the reference. A request function returns exactly the codec's bytes, without the STOP of the request, or
None for values that the codec has to encode or refuse (most options of an item, several topics, wrong types). A reply
function gets a frame and the place where the result begins. It returns an object with the fields of the codec's
response, or None for a reply that the codec has to read (errors, duplicates, several items, metadata, headers, TTLs).
Items in responses are `foqs.client.items.Item`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

from foqs.client.items import Delivery, Item
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import I32, I64, LIST, STRING, STRUCT, encode_struct, field_head, lean

_RESPONSE = field_head(STRUCT, 0)
_ITEM_FAIRNESS, _ITEM_THROTTLES = field_head(STRING, 17), field_head(LIST, 18) + bytes((STRING,))
_MOST_THROTTLES = 8
_STOPS = b"\0\0"  # of a response and of the result
_LIST = _RESPONSE + field_head(LIST, 1) + bytes((STRUCT,))
_ONE_ITEM = _LIST + (1).to_bytes(4, "big")
_NONE = _LIST + bytes(4) + _STOPS
_ONE_DONE = _ONE_ITEM + b"\0" + _STOPS
_STORED, _STORED_STOPS = _ONE_ITEM + field_head(I64, 1), b"\0" + _STOPS
_stored = Struct(f">{len(_STORED)}sq{len(_STORED_STOPS)}s")

# Up to the namespace; before the topic; from its end to the payload; from the payload's end.
_head = Struct(f">{len(_ONE_ITEM)}s3sq3sq3si3sI")
_topic = Struct(">3sI")
_middle = Struct(">3si3sI")
_tail = Struct(">3si3sq3sq3sq3s")
_FIELDS = (
    _ONE_ITEM, field_head(I64, 1), field_head(I64, 2), field_head(I32, 3), field_head(STRING, 4), field_head(STRING, 5),
    field_head(I32, 6), field_head(STRING, 7), field_head(I32, 10), field_head(I64, 11), field_head(I64, 12),
    field_head(I64, 13),
)  # fmt: skip
_ENDS = b"\0" + _STOPS
_text_head = Struct(">3sI").unpack_from
_size = Struct(">I").unpack_from


_EnqueueResponse, _EnqueueOutcome = lean(idl.EnqueueResponse), lean(idl.EnqueueOutcome)
_DequeueResponse = lean(idl.DequeueResponse, Item)
_DONE = idl.AckResponse((idl.ItemOutcome(),))


def enqueue_response(frame: bytes, start: int) -> Any:
    """Return the response to one item that was stored, and is no duplicate."""
    if len(frame) != start + _stored.size:
        return None
    head, item_id, stops = _stored.unpack_from(frame, start)
    if head != _STORED or stops != _STORED_STOPS:
        return None
    response, outcome = _EnqueueResponse(), _EnqueueOutcome()
    outcome.id = item_id
    response.outcomes = (outcome,)
    return response


def items_response(frame: bytes, start: int) -> Any:
    """Return the response to one ack, nack or extension that was carried out."""
    return _DONE if len(frame) == start + len(_ONE_DONE) and frame.endswith(_ONE_DONE) else None


def dequeue_response(frame: bytes, start: int) -> Any:
    """Return the response with at most one leased item."""
    response = _DequeueResponse()
    if len(frame) == start + len(_NONE):
        response.items = []
        return response if frame.endswith(_NONE) else None
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
            end, fairness, throttles = _read_tenancy(frame, end - len(_ENDS))
    except (StructError, UnicodeDecodeError):
        return None
    fields = (one, id_, lease_, attempt_, ns_, topic_, priority_, payload_, delivery_, due_, enqueued_, expires_)
    if fields != _FIELDS or len(frame) != end:
        return None
    item = Item(
        item_id, lease, attempt, ns, topic, priority, frame[payload_at:tail_at], None, None, delivery, due_ms,
        enqueued_ms, expires_ms, None, None, None, fairness, throttles,
    )  # fmt: skip
    response.items = [item]
    return response


def _read_tenancy(frame: bytes, at: int) -> tuple[int, str, tuple[str, ...]]:
    """Return where the reply ends, and the fairness key and the throttle keys of its item, which begin at `at`. The end
    is -1 for any other fields. Raises StructError or UnicodeDecodeError."""
    fairness = ""
    if frame.startswith(_ITEM_FAIRNESS, at):
        _, size = _text_head(frame, at)
        text_at, at = at + 7, at + 7 + size
        fairness = frame[text_at:at].decode()
    throttles: list[str] = []
    if frame.startswith(_ITEM_THROTTLES, at):
        (count,) = _size(frame, at + 4)
        at += 8
        for _ in range(min(count, _MOST_THROTTLES)):
            (size,) = _size(frame, at)
            text_at, at = at + 4, at + 4 + size
            throttles.append(frame[text_at:at].decode())
        if count != len(throttles):
            return -1, "", ()
    return (at + len(_ENDS) if frame.startswith(_ENDS, at) else -1), fairness, tuple(throttles)


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
        end = _STOP if not options else _tenancy_bytes(**options)
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


def _tenancy_bytes(
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


ENQUEUE = RemoteMethod("Enqueue", usual=enqueue_response)
DEQUEUE = RemoteMethod("Dequeue", Item, usual=dequeue_response)
ACK = RemoteMethod("Ack", usual=items_response)
NACK = RemoteMethod("Nack", usual=items_response)
EXTEND = RemoteMethod("ExtendLease", usual=items_response)
ACK_AND_DEQUEUE = RemoteMethod("AckAndDequeue", Item)
DELETE = RemoteMethod("DeleteItems")
RELEASE_LEASES = RemoteMethod("ReleaseLeases")
TOPICS = RemoteMethod("GetActiveTopics")
TOPIC_STATS = RemoteMethod("GetTopicStats")
THROTTLES = RemoteMethod("GetThrottles")
GET_ITEM = RemoteMethod("GetItem", Item)
EXPLAIN = RemoteMethod("ExplainItem")
LIST_ITEMS = RemoteMethod("ListItems", Item)
LIST_FAILURES = RemoteMethod("ListFailures")
REDRIVE = RemoteMethod("RedriveItems")
SERVER_INFO = RemoteMethod("GetServerInfo")
ROUTING = RemoteMethod("GetRouting")
GET_SETTINGS = RemoteMethod("GetSettings")
TRY_HOOK = RemoteMethod("TryHook")
PUT_SETTINGS = RemoteMethod("PutSettings")
