"""The methods of the service, a short way past the codec for requests and replies of the usual shape, and what each
request carries: the id of its call and its time-out.

The codec is the reference. A request function returns exactly the codec's bytes, without the STOP of the request. For
values that the codec has to encode or refuse (times of an item, wrong types) it returns None, or the struct. A reply
function gets a frame and the place where the result begins. It returns an object with the fields of the codec's
response, or None for a reply that the codec has to read (errors, duplicates, several items, TTLs).
Items in responses are `foqs.client.items.Item`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import chain
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from foqs import __version__
from foqs.bounds import LIMITS
from foqs.checks import check_text
from foqs.client.items import Delivery, Item, Leased
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import (
    BOOL,
    I32,
    I64,
    LIST,
    MAP,
    STOP,
    STRING,
    STRUCT,
    encode_struct,
    field_head,
    lean,
)

_RESPONSE = field_head(STRUCT, 0)
_ITEM_METADATA, _ITEM_HEADERS = field_head(STRING, 8), field_head(MAP, 9) + bytes((STRING, STRING))
_ITEM_FAIRNESS, _ITEM_THROTTLES = field_head(STRING, 17), field_head(LIST, 18) + bytes((STRING,))
_MOST_THROTTLES = 8
_STOPS = b"\0\0"  # of a response and of the result
_OUTCOMES = _RESPONSE + field_head(LIST, 1) + bytes((STRUCT,))
_ONE_ITEM = _OUTCOMES + (1).to_bytes(4, "big")
_NONE = _OUTCOMES + bytes(4) + _STOPS
_ONE_DONE = _ONE_ITEM + b"\0" + _STOPS
_STORED, _STORED_STOPS = _ONE_ITEM + field_head(I64, 1), b"\0" + _STOPS
_stored = Struct(f">{len(_STORED)}sq{len(_STORED_STOPS)}s")
_SECOND_ITEMS = field_head(LIST, 2) + bytes((STRUCT,))
_SECOND_ITEM, _SECOND_NONE = _SECOND_ITEMS + (1).to_bytes(4, "big"), _SECOND_ITEMS + bytes(4) + _STOPS

# Up to the namespace; before the topic; from its end to the payload; from the delivery.
_head = Struct(">3sq3sq3si3sI")
_topic = Struct(">3sI")
_middle = Struct(">3si3sI")
_tail = Struct(">3si3sq3sq3sqB")
_FIELDS = (
    field_head(I64, 1), field_head(I64, 2), field_head(I32, 3), field_head(STRING, 4), field_head(STRING, 5),
    field_head(I32, 6), field_head(STRING, 7), field_head(I32, 10), field_head(I64, 11), field_head(I64, 12),
    field_head(I64, 13),
)  # fmt: skip
_text_head = Struct(">3sI").unpack_from
_size = Struct(">I").unpack_from

_EnqueueResponse, _EnqueueOutcome = lean(idl.EnqueueResponse), lean(idl.EnqueueOutcome)
_DequeueResponse, _AckAndDequeueResponse = lean(idl.DequeueResponse, Item), lean(idl.AckAndDequeueResponse, Item)
_ONE_OUTCOME = (idl.ItemOutcome(),)
_DONE = idl.AckResponse(_ONE_OUTCOME)


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
    """Return the response to acks, nacks or extensions that were all carried out."""
    if len(frame) == start + len(_ONE_DONE) and frame.endswith(_ONE_DONE):
        return _DONE
    end = _end_of_done(frame, start)
    count = end - start - len(_ONE_ITEM)
    return idl.AckResponse(_ONE_OUTCOME * count) if count > 0 and frame[end:] == _STOPS else None


def dequeue_response(
    frame: bytes, start: int, response: Any = None, one: bytes = _ONE_ITEM, none: bytes = _NONE
) -> Any:
    """Return the response with at most one leased item. Fill in the given `response`, whose list of items begins with
    the bytes `one` or `none`."""
    if response is None:
        response = _DequeueResponse()
    if not frame.startswith(one, start):
        response.items = []
        return response if len(frame) == start + len(none) and frame.endswith(none) else None
    at = start + len(one)
    try:
        id_, item_id, lease_, lease, attempt_, attempt, ns_, ns_bytes = _head.unpack_from(frame, at)
        ns_at = at + _head.size
        topic_, topic_bytes = _topic.unpack_from(frame, ns_at + ns_bytes)
        topic_at = ns_at + ns_bytes + _topic.size
        priority_, priority, payload_, payload_bytes = _middle.unpack_from(frame, topic_at + topic_bytes)
        payload_at = topic_at + topic_bytes + _middle.size
        at = payload_at + payload_bytes
        payload, metadata, headers = frame[payload_at:at], None, None
        if frame[at] == STRING:
            head, size = _text_head(frame, at)
            metadata_at, at = at + 7, at + 7 + size
            if head != _ITEM_METADATA:
                return None
            metadata = frame[metadata_at:at]
        if frame[at] == MAP:
            headers, at = _read_headers(frame, at)
        delivery_, delivery, due_, due_ms, enqueued_, enqueued_ms, expires_, expires_ms, stop = _tail.unpack_from(
            frame, at
        )
        at += _tail.size
        ns, topic = frame[ns_at : ns_at + ns_bytes].decode(), frame[topic_at : topic_at + topic_bytes].decode()
        fairness = ""
        throttles: tuple[str, ...] = ()
        if stop:
            at, fairness, throttles = _read_tenancy(frame, at - 1)
    except (StructError, UnicodeDecodeError, IndexError):
        return None
    fields = (id_, lease_, attempt_, ns_, topic_, priority_, payload_, delivery_, due_, enqueued_, expires_)
    if fields != _FIELDS or len(frame) != at + len(_STOPS) or not frame.endswith(_STOPS):
        return None
    item = Item(
        item_id, lease, attempt, ns, topic, priority, payload, metadata, headers, delivery, due_ms, enqueued_ms,
        expires_ms, None, None, None, fairness, throttles,
    )  # fmt: skip
    response.items = [item]
    return response


def ack_and_dequeue_response(frame: bytes, start: int) -> Any:
    """Return the response with at most one leased item to acks that were carried out."""
    items_at = _end_of_done(frame, start)
    if items_at < 0:
        return None
    response = _AckAndDequeueResponse()
    response.outcomes = _ONE_OUTCOME * (items_at - start - len(_ONE_ITEM))
    return dequeue_response(frame, items_at, response, _SECOND_ITEM, _SECOND_NONE)


def _end_of_done(frame: bytes, start: int) -> int:
    """Return where the list of outcomes ends, -1 if it has an error. An outcome without one is a zero."""
    at = start + len(_ONE_ITEM)
    if not frame.startswith(_OUTCOMES, start) or len(frame) < at:
        return -1
    (count,) = _size(frame, at - 4)
    return at + count if frame.count(0, at, at + count) == count else -1


def _read_headers(frame: bytes, at: int) -> tuple[dict[str, str], int]:
    """Return the headers of an item, whose field begins at `at`, and where they end. The end is -1 for another field.
    Raises StructError or UnicodeDecodeError."""
    headers: dict[str, str] = {}
    if not frame.startswith(_ITEM_HEADERS, at):
        return headers, -1
    (count,) = _size(frame, at + 5)
    at += 9
    for _ in range(count):
        (size,) = _size(frame, at)
        key_at, at = at + 4, at + 4 + size
        (size,) = _size(frame, at)
        text_at, at = at + 4, at + 4 + size
        headers[frame[key_at : text_at - 4].decode()] = frame[text_at:at].decode()
    return headers, at


def _read_tenancy(frame: bytes, at: int) -> tuple[int, str, tuple[str, ...]]:
    """Return where an item ends, and its fairness key and throttle keys, which begin at `at`. The end is -1 for any
    other fields. Raises StructError, UnicodeDecodeError or IndexError."""
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
    return (at + 1 if frame[at] == STOP else -1), fairness, tuple(throttles)


_current: ContextVar[str | None] = ContextVar("foqs_request_id", default=None)
_NAMES_KEPT = 1_024
_USUAL = Delivery.AT_LEAST_ONCE
_STOP = b"\0"
_STRUCTS = bytes((STRUCT,))
_ONE = _STRUCTS + (1).to_bytes(4, "big")  # a list of one struct
_NS, _TOPIC, _PAYLOAD = field_head(STRING, 1), field_head(STRING, 1), field_head(STRING, 2)
_METADATA, _HEADERS = field_head(STRING, 3), field_head(MAP, 4) + bytes((STRING, STRING))
_PRIORITY, _DELIVERY, _DEDUP = field_head(I32, 5), field_head(I32, 10), field_head(STRING, 11)
_FAIRNESS, _WEIGHT, _ORDER_KEY = field_head(STRING, 12), field_head(I32, 14), field_head(STRING, 19)
_BATCH = field_head(I64, 20)
_THROTTLES = field_head(LIST, 13) + bytes((STRING,))
_ID, _LEASE = field_head(I64, 1), field_head(I64, 2)
_ITEMS, _ACKS = field_head(LIST, 2) + _ONE, field_head(LIST, 1) + _ONE
_NS_OF_ACKS = field_head(STRING, 2)
_WANTS, _SECOND_ACKS, _SECOND_WANTS = (field_head(LIST, number) + _STRUCTS for number in (2, 2, 3))
_COUNT, _HOLDING, _TOPIC_WEIGHT = field_head(I32, 2), field_head(I32, 3), field_head(I32, 5)
_LEDGER = field_head(BOOL, 7) + b"\1"
_CONTEXT, _REQUEST_ID, _TRACEPARENT = field_head(STRUCT, 15), field_head(STRING, 2), field_head(STRING, 3)
_TIMEOUT = field_head(I64, 4)
# The heads of lease_ms, wait_ms and max_bytes; of worker; of begins and most. Without acks, and with them.
_OPTIONS, _SECOND_OPTIONS = (
    ([field_head(I64, at) for at in times], field_head(STRING, worker), [field_head(I32, at) for at in numbers])
    for times, worker, numbers in (((3, 4, 5), 6, (8, 9)), ((4, 5, 6), 7, (8, 10)))
)

_length = Struct(">I").pack
_i32, _i64 = Struct(">3si").pack, Struct(">3sq").pack
# What follows the payload and its options; a whole ack; all acks; the count of a topic; the end of a context.
_after_payload = Struct(">3si3si").pack
_ack = Struct(">3sq3sqB").pack
_acks = Struct(f">{len(_ACKS)}s3sq3sqB").pack
_count, _held = Struct(">3siB").pack, Struct(">3si3siB").pack
_context_end = Struct(">3sqB").pack
_MISFITS = (StructError, TypeError, AttributeError, UnicodeEncodeError)
"""A value of another type, too large, or not valid Unicode: the codec encodes it or names the fault."""


def enqueue_request(
    namespace: str, topic: str, payload: bytes, priority: int = 0, metadata: bytes | None = None,
    headers: Mapping[str, str] | None = None, dedup_key: str | None = None, **options: Any,
) -> bytes | None:  # fmt: skip
    """Return the EnqueueRequest for one item."""
    if type(payload) is not bytes or type(priority) is not int:
        return None
    try:
        parts = [_before_payload(namespace, topic), _length(len(payload)), payload]
        if metadata is not None:
            if type(metadata) is not bytes:
                return None
            parts += _METADATA, _length(len(metadata)), metadata
        if headers is not None:
            if type(headers) is not dict:
                return None
            parts += _HEADERS, _length(len(headers))
            for text in chain.from_iterable(headers.items()):
                encoded = text.encode()
                parts += _length(len(encoded)), encoded
        parts.append(_after_payload(_PRIORITY, priority, _DELIVERY, _USUAL))
        if dedup_key is not None:
            if options.get("order_key"):
                return None
            parts.append(_text(_DEDUP, dedup_key))
        parts.append(_STOP if not options else _tenancy_bytes(**options))
        return b"".join(parts)
    except _MISFITS:
        return None


class Changed(NamedTuple):
    """One item of a ChangeItemsRequest. All items of a call have the same values."""

    id: int
    priority: int | None
    delay_ms: int | None
    deliver_after_ms: int | None


def change_request(items: Sequence[Changed]) -> Any:
    """Return the ChangeItemsRequest for items with the same values."""
    _, priority, delay_ms, deliver_after_ms = items[0]
    return idl.ChangeItemsRequest([item.id for item in items], priority, delay_ms, deliver_after_ms)


def ack_request(namespace: str, item_id: int, lease: int) -> bytes | None:
    """Return the AckRequest for one item."""
    try:
        return _acks(_ACKS, _ID, item_id, _LEASE, lease, 0) + _behind_acks(namespace)
    except _MISFITS:
        return None


def dequeue_request(
    namespace: str, counts: Mapping[str, int], wait_ms: int | None, lease_ms: int | None = None,
    max_bytes: int | None = None, *, worker: str | None = None, ledger: bool | None = None, begins: int | None = None,
    most: int | None = None, holding: Mapping[str, int] | None = None, acks: Sequence[Leased] | None = None,
    weights: Mapping[str, int] | None = None,
) -> Any:  # fmt: skip
    """Return the DequeueRequest, or with `acks` the AckAndDequeueRequest. It is a struct if the codec has to name a
    fault. `weights`: of some of the topics."""
    try:
        if acks is None:
            parts, heads = [_before_wants(namespace), _WANTS, _length(len(counts))], _OPTIONS
        else:
            parts, heads = [_before_wants(namespace), _SECOND_ACKS, _length(len(acks))], _SECOND_OPTIONS
            parts += [_ack(_ID, item.id, _LEASE, item.lease, 0) for item in acks]
            parts += _SECOND_WANTS, _length(len(counts))
        for topic, count in counts.items():
            held = None if holding is None else holding[topic]
            parts.append(_topic_of_want(topic))
            parts.append(
                _weighted_bytes(count, held, weights[topic]) if weights is not None and topic in weights
                else _count(_COUNT, count, 0) if held is None
                else _held(_COUNT, count, _HOLDING, held, 0)
            )  # fmt: skip
        times, worker_, numbers = heads
        for head, number in zip(times, (lease_ms, wait_ms, max_bytes), strict=True):
            if number is not None:
                parts.append(_i64(head, number))
        if worker is not None:
            parts.append(_text(worker_, worker))
        if ledger:
            parts.append(_LEDGER)
        for head, number in zip(numbers, (begins, most), strict=True):
            if number is not None:
                parts.append(_i32(head, number))
        return b"".join(parts)
    except _MISFITS:
        wants = [
            idl.TopicCount(topic, count, holding and holding[topic], None, (weights or {}).get(topic))
            for topic, count in counts.items()
        ]
        options = {"lease_ms": lease_ms, "wait_ms": wait_ms, "max_bytes": max_bytes, "worker": worker}
        if acks is None:
            return idl.DequeueRequest(namespace, wants, **options, ledger=ledger, begins=begins, most=most)
        entries = [idl.AckItem(item.id, item.lease) for item in acks]
        return idl.AckAndDequeueRequest(namespace, entries, wants, **options, begins=begins, most=most)


CLIENT = f"foqs-python/{__version__}"


def context_head(token: str | None, program: str | None = None) -> bytes:
    """Return what the contexts of one client begin with. Raises Unencodable."""
    return _CONTEXT + encode_struct(idl.RequestContext(token=token, client=CLIENT, program=program))[:-1]


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
    fairness_key: str | None = None,
    throttle_keys: Sequence[str] | None = None,
    weight: int | None = None,
    order_key: str | None = None,
    batch: int | None = None,
) -> bytes:
    """Return what follows the delivery of an item, up to its end. Raises an error of `_MISFITS`: other options too."""
    if isinstance(throttle_keys, str):
        raise TypeError("one text is no sequence of keys")
    if weight is not None and type(weight) is not int:
        raise TypeError("a bool, or a number with a fraction, is no weight")
    if batch is not None and (type(batch) is not int or batch <= 0):
        raise TypeError("it is no id of a batch")
    made = _behind_delivery(fairness_key, None if throttle_keys is None else tuple(throttle_keys), weight)
    if order_key is None and batch is None:
        return made
    order = b"" if order_key is None else _text(_ORDER_KEY, order_key)
    return b"".join((made[: -len(_STOP)], order, b"" if batch is None else _i64(_BATCH, batch), _STOP))


@lru_cache(_NAMES_KEPT)
def _behind_delivery(fairness_key: str | None, throttle_keys: tuple[str, ...] | None, weight: int | None) -> bytes:
    made = b"" if fairness_key is None else _text(_FAIRNESS, fairness_key)
    if throttle_keys is not None:
        made += _THROTTLES + _length(len(throttle_keys)) + b"".join([_text(b"", key) for key in throttle_keys])
    if weight is not None:
        made += _i32(_WEIGHT, weight)
    return made + _STOP


@lru_cache(_NAMES_KEPT)
def _before_wants(namespace: str) -> bytes:
    return _text(_NS, namespace)


@lru_cache(_NAMES_KEPT)
def _topic_of_want(topic: str) -> bytes:
    return _text(_TOPIC, topic)


def _weighted_bytes(count: int, held: int | None, weight: int) -> bytes:
    """Return what follows the name of a topic with a weight."""
    return _i32(_COUNT, count) + (b"" if held is None else _i32(_HOLDING, held)) + _i32(_TOPIC_WEIGHT, weight) + _STOP


@lru_cache(_NAMES_KEPT)
def _behind_acks(namespace: str) -> bytes:
    return _text(_NS_OF_ACKS, namespace)


def _text(head: bytes, value: str) -> bytes:
    encoded = value.encode()
    return head + _length(len(encoded)) + encoded


@lru_cache(1_024)
def server_timeout_ms(left_ms: int) -> int:
    """Return the time-out for the server: shorter than `left_ms`, so its reply arrives before the client gives up. A
    server takes no longer one than its `timeout_max_ms`."""
    return max(1, min(LIMITS.timeout_max_ms, int(left_ms - min(500.0, left_ms / 10))))


@contextmanager
def request_id(name: str) -> Iterator[None]:
    """Give this id to calls made inside, by this thread or task, instead of random ones. At most 128 bytes that can be
    printed; Invalid otherwise."""
    check_text("request_id", name, empty=True)
    if not name or not name.isprintable() or len(name.encode()) > LIMITS.context_bytes:
        raise Invalid(f"a request id has 1 to {LIMITS.context_bytes} bytes, all of them printable")
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str:
    """Return the id for the requests of a call that begins now. All its requests carry it: parts of a batch, second
    tries, and what hosts ask each other for it. Hosts log it."""
    return _current.get() or f"{random.getrandbits(48):012x}"


ENQUEUE = RemoteMethod("Enqueue", usual=enqueue_response)
DEQUEUE = RemoteMethod("Dequeue", Item, usual=dequeue_response)
ACK = RemoteMethod("Ack", usual=items_response)
NACK = RemoteMethod("Nack", usual=items_response)
EXTEND = RemoteMethod("ExtendLease", usual=items_response)
ACK_AND_DEQUEUE = RemoteMethod("AckAndDequeue", Item, usual=ack_and_dequeue_response)
DELETE = RemoteMethod("DeleteItems")
CHANGE = RemoteMethod("ChangeItems")
CANCEL = RemoteMethod("CancelItem")
CREATE_BATCH = RemoteMethod("CreateBatch")
CLOSE_BATCH = RemoteMethod("CloseBatch")
CANCEL_BATCH = RemoteMethod("CancelBatch")
GET_BATCH = RemoteMethod("GetBatch")
RELEASE_LEASES = RemoteMethod("ReleaseLeases")
TOPICS = RemoteMethod("GetActiveTopics")
TOPIC_STATS = RemoteMethod("GetTopicStats")
SCHEDULES = RemoteMethod("ListSchedules")
RUN_SCHEDULE = RemoteMethod("RunSchedule")
THROTTLES = RemoteMethod("GetThrottles")
GET_ITEM = RemoteMethod("GetItem", Item)
GET_RESULT = RemoteMethod("GetResult")
EXPLAIN = RemoteMethod("ExplainItem")
LIST_ITEMS = RemoteMethod("ListItems", Item)
LIST_FAILURES = RemoteMethod("ListFailures")
FAILING = RemoteMethod("ListFailing")
REDRIVE = RemoteMethod("RedriveItems")
STATUS = RemoteMethod("GetStatus")
CONSUMERS = RemoteMethod("ListConsumers")
RATES = RemoteMethod("GetRates")
SERVER_INFO = RemoteMethod("GetServerInfo")
ROUTING = RemoteMethod("GetRouting")
GET_SETTINGS = RemoteMethod("GetSettings")
GET_SETTINGS_LOG = RemoteMethod("GetSettingsLog")
TRY_HOOK = RemoteMethod("TryHook")
PUT_SETTINGS = RemoteMethod("PutSettings")
