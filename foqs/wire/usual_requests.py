"""Requests of the usual shape, read from their bytes without the codec.

A usual request has the fields of the contract in their order. Its items have the same fields, of which only the
payload, the metadata, the headers, the priority and the keys of deduplication and fairness differ. Its acks have both
of their fields. The codec is the reference. Each function gets a frame, where its request begins, the most elements of
a list, and the `KnownContext` of the connection. It returns the codec's request, its strings checked, and
where the context should begin; or None for a frame that the codec has to read or to refuse. It reads each byte at most
once (items twice, where fairness keys begin to differ) and believes no length: a frame that ends elsewhere is not
usual. Nor is one with more fields than the contract has: a frame full of them would take twice the codec's time.

Acks, and the items of an enqueue, are in columns: a struct for each costs twice the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from struct import Struct
from typing import Any, NamedTuple

from foqs.bounds import THROTTLE_KEYS
from foqs.idl import idl
from foqs.wire.known_context import MISFITS, KnownContext, fields_of
from foqs.wire.protocol import I32, I64, LIST, MAP, STOP, STRING, STRUCT, field_head, lean

# An element as each encoder writes it: two fields (type, number, value) in their order, then the end.
_ACK = Struct(">BhqBhqB")
ACK_BYTES = _ACK.size
_acks_of = _ACK.iter_unpack


class AckColumns:
    """A list of AckItem, each with both of its fields."""

    __slots__ = ("ids", "leases")

    def __init__(self, elements: bytes) -> None:
        """Raises ValueError unless each element of the list is ACK_BYTES long and of the usual form; `elements` is a
        multiple of that."""
        self.ids: list[int] = []
        self.leases: list[int] = []
        ids, leases = self.ids, self.leases
        for id_type, id_number, item_id, lease_type, lease_number, lease, end in _acks_of(elements):
            if id_type != I64 or id_number != 1 or lease_type != I64 or lease_number != 2 or end != STOP:
                raise ValueError("an ack of another form")
            ids.append(item_id)
            leases.append(lease)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: int) -> Any:
        return idl.AckItem(self.ids[at], self.leases[at])


class SpecColumns:
    """A list of ItemSpec that are like `first` but for their payloads and priorities, and for the fields whose columns
    are not None. Equal headers in a row are one object. Reads as a list of structs."""

    __slots__ = ("dedup_keys", "first", "headers", "metadata", "payloads", "priorities", "tenants")

    def __init__(self, first: Any) -> None:
        self.first = first
        self.metadata: list[bytes] | None = None
        self.headers: list[dict[str, str]] | None = None
        self.dedup_keys: list[str] | None = None
        self.tenants: list[str] | None = None
        self.payloads: list[bytes] = [first.payload]
        self.priorities: list[int] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, at: int) -> Any:
        spec = copy(self.first)
        spec.payload, spec.priority = self.payloads[at], self.priorities[at]
        if self.metadata is not None:
            spec.metadata = self.metadata[at]
        if self.headers is not None:
            spec.headers = self.headers[at]
        if self.dedup_keys is not None:
            spec.dedup_key = self.dedup_keys[at]
        if self.tenants is not None:
            spec.fairness_key = self.tenants[at]
        return spec

    def changed(self, tenants: list[str] | None, priorities: list[int] | None) -> SpecColumns:
        """Return the same items with other tenants and priorities. None: they stay."""
        made = copy(self)
        made.tenants, made.priorities = tenants or self.tenants, priorities or self.priorities
        return made


class Wants(list[Any]):
    """The topics of a dequeue. Equal requests of a connection share them, and with them what the api made of such a
    request, None before: `checked`, and the `asker`."""

    __slots__ = ("asker", "checked")
    asker: Any
    checked: Any


def ids_and_leases(acks: AckColumns | Sequence[Any] | None) -> tuple[list[int], list[int]]:
    """Return the columns of a list of AckItem; 0 means an absent field."""
    if isinstance(acks, AckColumns):
        return acks.ids, acks.leases
    if acks is None:
        return [], []
    return [ack.id or 0 for ack in acks], [ack.lease or 0 for ack in acks]


ReadRequest = Callable[[bytes, int, int, KnownContext], tuple[Any, int] | None]

_EnqueueRequest, _DequeueRequest, _AckRequest = lean(idl.EnqueueRequest), lean(idl.DequeueRequest), lean(idl.AckRequest)
_AckAndDequeueRequest = lean(idl.AckAndDequeueRequest)
_ItemSpec, _TopicCount = lean(idl.ItemSpec), lean(idl.TopicCount)

_REQUEST = field_head(STRUCT, 1)
_NS = _REQUEST + field_head(STRING, 1)
_STRUCTS = bytes((STRUCT,))
_ITEMS = _WANTS = _SECOND_ACKS = field_head(LIST, 2) + _STRUCTS
_SECOND_WANTS, _ACKS = field_head(LIST, 3) + _STRUCTS, _REQUEST + field_head(LIST, 1) + _STRUCTS
_NS_OF_ACKS = field_head(STRING, 2)
_TOPIC, _PAYLOAD, _PRIORITY = field_head(STRING, 1), field_head(STRING, 2), field_head(I32, 5)
_DELIVERY, _COUNT = field_head(I32, 10), field_head(I32, 2)
_HOLDING, _TOPIC_WEIGHT = field_head(I32, 3), field_head(I32, 5)
_METADATA, _DEDUP = field_head(STRING, 3), field_head(STRING, 11)
_HEADERS = field_head(MAP, 4) + bytes((STRING, STRING))
_MOST_PAIRS = 7
"""Of the headers of an item: `scan` lets requests through in which each item has this number."""
_FAIRNESS, _WEIGHT = field_head(STRING, 12), field_head(I32, 14)
_THROTTLES = field_head(LIST, 13) + bytes((STRING,))
_BATCH = field_head(I64, 20)
_WORKER, _SECOND_WORKER, _BEGINS = field_head(STRING, 6), field_head(STRING, 7), field_head(I32, 8)
_MOST, _SECOND_MOST = field_head(I32, 9), field_head(I32, 10)

_first_text = Struct(">6sI").unpack_from
_first_list = Struct(">7sI").unpack_from
_list = Struct(">4sI").unpack_from
_map = Struct(">5si").unpack_from
_list_with_text = Struct(">4sI3sI").unpack_from
_text = Struct(">3sI").unpack_from
_size = Struct(">I").unpack_from
_i32 = Struct(">3si").unpack_from
_i64 = Struct(">3sq").unpack_from
_last_i32 = Struct(">3siB").unpack_from

_TIMES, _OPTIONS, _SECOND_OPTIONS = (
    fields_of(struct, I64) for struct in (_ItemSpec, _DequeueRequest, _AckAndDequeueRequest)
)


def enqueue_request(frame: bytes, start: int, most: int, known: KnownContext) -> tuple[Any, int] | None:
    """Read an EnqueueRequest whose items are of one topic."""
    try:
        if known.spec is not None and frame.startswith(known.to_payload, start):
            payload_at = start + len(known.to_payload) + 4
            payload_end = payload_at + _size(frame, payload_at - 4)[0]
            priority_, priority = _i32(frame, payload_end)
            if priority_ == _PRIORITY and frame.startswith(known.behind_priority, payload_end + 7):
                request, spec = _EnqueueRequest(), _ItemSpec()
                request.ns, request.items = known.ns, [spec]
                spec.__dict__.update(known.spec, payload=frame[payload_at:payload_end], priority=priority)
                return request, payload_end + 7 + len(known.behind_priority)
        ns_, ns_bytes = _first_text(frame, start)
        ns_at = start + 10
        list_at = ns_at + ns_bytes
        items_, count, topic_, topic_bytes = _list_with_text(frame, list_at)
        topic_at = list_at + 15
        size_at = topic_at + topic_bytes + 3
        payload_, payload_bytes = _text(frame, size_at - 3)
        payload_end = size_at + 4 + payload_bytes
        if (
            ns_ != _NS or items_ != _ITEMS or topic_ != _TOPIC or payload_ != _PAYLOAD or not 1 <= count <= most
        ):  # fmt: skip
            return None
        request, spec = _EnqueueRequest(), _ItemSpec()
        request.ns = frame[ns_at:list_at].decode()
        spec.topic = frame[topic_at : size_at - 3].decode()
        spec.payload = frame[size_at + 4 : payload_end]
        at = payload_end if frame.startswith(_PRIORITY, payload_end) else _extras(spec, frame, payload_end)
        priority_, spec.priority = _i32(frame, at)
        at += 7
        times_at = at
        for _ in _TIMES:
            if frame[at] != I64:
                break
            head, number = _i64(frame, at)
            setattr(spec, _TIMES[head], number)
            at += 11
        delivery_, spec.delivery, stop = _last_i32(frame, at)
        at += 8
        if priority_ != _PRIORITY or delivery_ != _DELIVERY:
            return None
        key_at = at - 1
        if stop != STOP:
            at = _tenancy(spec, frame, key_at)
        if count == 1:
            request.items = [spec]
            if times_at == payload_end + 7 and spec.dedup_key is None:  # the next enqueue has a key of its own
                known.enqueued(request.ns, spec, frame[start:size_at], frame[times_at:at])
        else:
            request.items = items = SpecColumns(spec)
            middle, ending = frame[times_at:key_at], frame[key_at:at]
            shape = _Shape(frame[list_at + 8 : size_at], frame[payload_end : times_at - 7], middle, ending)
            at = _more_items(items, frame, times_at - 7, count, shape)
        return request, at
    except MISFITS:
        return None


def _extras(spec: Any, frame: bytes, at: int) -> int:
    """Read what an item may have between its payload and its priority. Return where the priority begins. Raises an
    error of `MISFITS`."""
    if frame.startswith(_METADATA, at):
        _, size = _text(frame, at)
        spec.metadata = frame[at + 7 : at + 7 + size]
        at += 7 + size
    if frame.startswith(_HEADERS, at):
        spec.headers, at = _headers(frame, at)
    return at


def _headers(frame: bytes, at: int) -> tuple[dict[str, str], int]:
    """Return the headers at `at`, and where they end. Raises an error of `MISFITS`."""
    headers_, count = _map(frame, at)
    if headers_ != _HEADERS or not 0 <= count <= _MOST_PAIRS:
        raise ValueError("headers of another form")
    at += 9
    texts = []
    for _ in range(2 * count):
        (size,) = _size(frame, at)
        at += 4 + size
        texts.append(frame[at - size : at].decode())
    pairs = iter(texts)
    return dict(zip(pairs, pairs, strict=True)), at


def _tenancy(spec: Any, frame: bytes, at: int) -> int:
    """Read what an item may have behind its delivery: a deduplication key, a tenant, throttle keys, a weight and a
    batch. Return where the item ends. Raises an error of `MISFITS`."""
    if frame.startswith(_DEDUP, at):
        _, size = _text(frame, at)
        spec.dedup_key = frame[at + 7 : at + 7 + size].decode()
        at += 7 + size
    if frame.startswith(_FAIRNESS, at):
        _, size = _text(frame, at)
        spec.fairness_key = frame[at + 7 : at + 7 + size].decode()
        at += 7 + size
    if frame.startswith(_THROTTLES, at):
        _, count = _list(frame, at)
        at += 8
        spec.throttle_keys = keys = []
        for _ in range(min(count, THROTTLE_KEYS)):
            (size,) = _size(frame, at)
            keys.append(frame[at + 4 : at + 4 + size].decode())
            at += 4 + size
        if count != len(keys):
            raise ValueError("more throttle keys than an item may have")
    if frame.startswith(_WEIGHT, at):
        spec.weight = _i32(frame, at)[1]
        at += 7
    if frame.startswith(_BATCH, at):
        spec.batch = _i64(frame, at)[1]
        at += 11
    if frame[at] != STOP:
        raise ValueError("an item of another form")
    return at + 1


class _Shape(NamedTuple):
    """The parts of the first item of a list without its payload and its priority: up to the payload's length; from the
    payload to the priority; from there to behind the delivery; and the rest. In the next items, only fields with
    columns may differ."""

    beginning: bytes
    extras: bytes
    middle: bytes
    ending: bytes


def _more_items(items: SpecColumns, frame: bytes, at: int, count: int, shape: _Shape) -> int:
    """Read the items behind the first one, and return where the last one ends. `at` is the first one's priority. Raises
    an error of `MISFITS`."""
    beginning, extras, middle, ending = shape
    payloads, priorities = items.payloads, items.priorities
    behind_first = at + 7 + len(middle) + len(ending)
    if extras or items.first.dedup_key is not None:
        return _more_fields(items, frame, behind_first, count, shape)
    between = middle + ending + beginning
    from_priority = Struct(f">3si{len(between)}sI")
    unpack, step = from_priority.unpack_from, from_priority.size
    for _ in range(count - 1):
        priority_, priority, between_, size = unpack(frame, at)
        if between_ != between or priority_ != _PRIORITY:
            break
        payload_at = at + step
        at = payload_at + size
        priorities.append(priority)
        payloads.append(frame[payload_at:at])
    else:
        priority_, priority = _i32(frame, at)
        if priority_ == _PRIORITY and frame.startswith(middle + ending, at + 7):
            priorities.append(priority)
            return at + 7 + len(middle) + len(ending)
    if items.first.fairness_key is None:
        raise ValueError("an item of another form")
    del payloads[1:], priorities[:]
    return _more_fields(items, frame, behind_first, count, shape)


def _more_fields(items: SpecColumns, frame: bytes, at: int, count: int, shape: _Shape) -> int:
    """Do the work of `_more_items` where more fields differ. `at` is where the first item ends."""
    beginning, extras, middle, ending = shape
    first = spec = items.first
    payloads, priorities, metadata, headers = items.payloads, items.priorities, [first.metadata], [first.headers]
    columns: list[tuple[bytes, list[str]]] = []
    if first.dedup_key is not None:
        items.dedup_keys = [first.dedup_key]
        columns.append((_DEDUP, items.dedup_keys))
    if first.fairness_key is not None:
        items.tenants = [first.fairness_key]
        columns.append((_FAIRNESS, items.tenants))
    for _ in columns:
        ending = ending[7 + _size(ending, 3)[0] :]
    between = ending + beginning
    to_payload, to_texts = Struct(f">{len(between)}sI"), Struct(f">3si{len(middle)}s")
    unpack_payload, payload_step, unpack_texts, texts_step = (
        to_payload.unpack_from, to_payload.size, to_texts.unpack_from, to_texts.size
    )  # fmt: skip
    known: dict[bytes, str] = {}
    priorities.append(first.priority)
    at -= len(ending)
    for _ in range(count - 1):
        between_, size = unpack_payload(frame, at)
        at += payload_step + size
        payloads.append(frame[at - size : at])
        if extras:
            if frame.startswith(extras, at):
                at += len(extras)
            else:
                spec, extras_at = _ItemSpec(), at
                at = _extras(spec, frame, at)
                extras = frame[extras_at:at]
            metadata.append(spec.metadata)
            headers.append(spec.headers)
        priority_, priority, middle_ = unpack_texts(frame, at)
        if between_ != between or priority_ != _PRIORITY or middle_ != middle:
            raise ValueError("an item of another form")
        priorities.append(priority)
        at += texts_step
        for head, texts in columns:
            head_, size = _text(frame, at)
            if head_ != head:
                raise ValueError("a field that is not expected")
            at += 7 + size
            encoded = frame[at - size : at]
            texts.append(known.get(encoded) or known.setdefault(encoded, encoded.decode()))
    if not frame.startswith(ending, at):
        raise ValueError("an item of another form")
    at += len(ending)
    items.metadata, items.headers = _whole(metadata), _whole(headers)
    return at


def _whole(column: list[Any]) -> list[Any] | None:
    """Return a column, or None if no item has the field. Raises ValueError if only some have it."""
    absent = column.count(None)
    if absent and absent < len(column):
        raise ValueError("items with different fields")
    return None if absent else column


def ack_request(frame: bytes, start: int, most: int, known: KnownContext) -> tuple[Any, int] | None:
    """Read an AckRequest."""
    try:
        acks_, count = _first_list(frame, start)
        at = start + 11
        if acks_ != _ACKS or count > most:
            return None
        request = _AckRequest()
        end = at + count * ACK_BYTES
        request.items = AckColumns(frame[at:end])
        if frame.startswith(_NS_OF_ACKS, end):
            _, ns_bytes = _text(frame, end)
            at, end = end + 7, end + 7 + ns_bytes
            request.ns = frame[at:end].decode()
        return request, end
    except MISFITS:
        return None


def dequeue_request(frame: bytes, start: int, most: int, known: KnownContext) -> tuple[Any, int] | None:
    """Read a DequeueRequest."""
    try:
        ns_, ns_bytes = _first_text(frame, start)
        ns_at = start + 10
        at = ns_at + ns_bytes
        if ns_ != _NS or not frame.startswith(_WANTS, at):
            return None
        request = _DequeueRequest()
        request.ns = frame[ns_at:at].decode()
        return request, _wants(request, frame, at, most, _OPTIONS, _WORKER, _MOST)
    except MISFITS:
        return None


def ack_and_dequeue_request(frame: bytes, start: int, most: int, known: KnownContext) -> tuple[Any, int] | None:
    """Read an AckAndDequeueRequest."""
    try:
        ns_, ns_bytes = _first_text(frame, start)
        ns_at = start + 10
        acks_at = ns_at + ns_bytes
        acks_, count = _list(frame, acks_at)
        at = acks_at + 8
        if ns_ != _NS or acks_ != _SECOND_ACKS or count > most:
            return None
        wants_at = at + count * ACK_BYTES
        if not frame.startswith(_SECOND_WANTS, wants_at):
            return None
        request = _AckAndDequeueRequest()
        request.ns = frame[ns_at:acks_at].decode()
        request.acks = AckColumns(frame[at:wants_at])
        return request, _wants(request, frame, wants_at, most, _SECOND_OPTIONS, _SECOND_WORKER, _SECOND_MOST)
    except MISFITS:
        return None


def _wants(
    request: Any, frame: bytes, at: int, most: int, options: Mapping[bytes, str], worker: bytes, total: bytes
) -> int:
    """Read the wants at `at` and the options behind them, and return where these end. The field with the worker's name
    begins with the bytes `worker`, and the bound on all topics with `total`. Raises an error of `MISFITS`."""
    _, wants = _list(frame, at)
    at += 8
    if wants > most:
        raise ValueError("too many topics")
    request.wants = found = Wants()
    found.checked = found.asker = None
    for _ in range(wants):
        topic_, topic_bytes = _text(frame, at)
        count_at = at + 7 + topic_bytes
        want = _TopicCount()
        want.topic = frame[at + 7 : count_at].decode()
        count_, want.count, stop = _last_i32(frame, count_at)
        at = count_at + 8
        if stop == I32:
            holding_, want.holding, stop = _last_i32(frame, at - 1)
            at += 7
            if holding_ != _HOLDING:
                raise ValueError("a field that is not expected")
            if stop == I32:
                want.weight, stop = _weight(frame, at - 1)
                at += 7
        if topic_ != _TOPIC or count_ != _COUNT or stop != STOP:
            raise ValueError("a topic of another form")
        found.append(want)
    for _ in options:
        if frame[at] != I64:
            break
        head, number = _i64(frame, at)
        setattr(request, options[head], number)
        at += 11
    if frame.startswith(worker, at):
        _, size = _text(frame, at)
        name_at, at = at + 7, at + 7 + size
        request.worker = frame[name_at:at].decode()
    if frame[at] == I32:
        if frame.startswith(_BEGINS, at):
            _, request.begins = _i32(frame, at)
            at += 7
        if frame.startswith(total, at):
            _, request.most = _i32(frame, at)
            at += 7
    return at


def _weight(frame: bytes, at: int) -> tuple[int, int]:
    """Return the weight of a topic and the byte behind it. Raises ValueError: another field is there."""
    weight_, weight, stop = _last_i32(frame, at)
    if weight_ != _TOPIC_WEIGHT:
        raise ValueError("a field that is not expected")
    return weight, stop


READERS: Mapping[str, ReadRequest] = {
    "Enqueue": enqueue_request,
    "Dequeue": dequeue_request,
    "Ack": ack_request,
    "AckAndDequeue": ack_and_dequeue_request,
}
