"""Requests of the usual shape, read from their bytes without the codec.

A usual request has the fields of the contract in their order. All but the payload, the priority and the fairness key of
its items is the same, and its acks have both of their fields. The codec is the reference. Each function gets a frame,
where its request begins, and the most elements of a list. It returns the codec's request, its strings checked, and
where the context should begin; or None for a frame that the codec has to read or to refuse. It reads each byte at most
once (the head of one item twice, where fairness keys begin to differ) and believes no length: a frame that ends
elsewhere is not usual. Nor is one with more fields than the contract has: a frame full of them would take twice the
codec's time.

Acks, and the items of an enqueue, are in columns: a struct for each costs twice the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from struct import Struct
from struct import error as StructError
from typing import Any

from foqs.bounds import THROTTLE_KEYS, Limits
from foqs.idl import idl
from foqs.wire.protocol import I32, I64, LIST, STOP, STRING, STRUCT, field_head, lean
from foqs.wire.scan import check_context

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
    """A list of ItemSpec that are like `first` but for their payloads, priorities and, where `tenants` is not None,
    fairness keys. Reads as a list of structs."""

    __slots__ = ("first", "payloads", "priorities", "tenants")

    def __init__(self, first: Any) -> None:
        self.first = first
        self.tenants: list[str] | None = None
        self.payloads: list[bytes] = [first.payload]
        self.priorities: list[int] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, at: int) -> Any:
        spec = copy(self.first)
        spec.payload, spec.priority = self.payloads[at], self.priorities[at]
        if self.tenants is not None:
            spec.fairness_key = self.tenants[at]
        return spec


def ids_and_leases(acks: AckColumns | Sequence[Any] | None) -> tuple[list[int], list[int]]:
    """Return the columns of a list of AckItem; 0 means an absent field."""
    if isinstance(acks, AckColumns):
        return acks.ids, acks.leases
    if acks is None:
        return [], []
    return [ack.id or 0 for ack in acks], [ack.lease or 0 for ack in acks]


ReadRequest = Callable[[bytes, int, int], tuple[Any, int] | None]

_EnqueueRequest, _DequeueRequest, _AckRequest = lean(idl.EnqueueRequest), lean(idl.DequeueRequest), lean(idl.AckRequest)
_AckAndDequeueRequest = lean(idl.AckAndDequeueRequest)
_ItemSpec, _TopicCount, RequestContext = lean(idl.ItemSpec), lean(idl.TopicCount), lean(idl.RequestContext)

_REQUEST, _STOPS = field_head(STRUCT, 1), b"\0\0"
_NS = _REQUEST + field_head(STRING, 1)
_STRUCTS = bytes((STRUCT,))
_ITEMS = _WANTS = _SECOND_ACKS = field_head(LIST, 2) + _STRUCTS
_SECOND_WANTS, _ACKS = field_head(LIST, 3) + _STRUCTS, _REQUEST + field_head(LIST, 1) + _STRUCTS
_NS_OF_ACKS = field_head(STRING, 2)
_TOPIC, _PAYLOAD, _PRIORITY = field_head(STRING, 1), field_head(STRING, 2), field_head(I32, 5)
_DELIVERY, _COUNT, _CONTEXT = field_head(I32, 10), field_head(I32, 2), field_head(STRUCT, 15)
_HOLDING = field_head(I32, 3)
_FAIRNESS, _WEIGHT = field_head(STRING, 12), field_head(I32, 14)
_THROTTLES = field_head(LIST, 13) + bytes((STRING,))
_WORKER, _SECOND_WORKER, _BEGINS = field_head(STRING, 6), field_head(STRING, 7), field_head(I32, 8)
_MOST, _SECOND_MOST = field_head(I32, 9), field_head(I32, 10)

_first_text = Struct(">6sI").unpack_from
_first_list = Struct(">7sI").unpack_from
_list = Struct(">4sI").unpack_from
_list_with_text = Struct(">4sI3sI").unpack_from
_text = Struct(">3sI").unpack_from
_size = Struct(">I").unpack_from
_i32 = Struct(">3si").unpack_from
_i64 = Struct(">3sq").unpack_from
_last_i32 = Struct(">3siB").unpack_from

_MISFITS = (StructError, IndexError, KeyError, ValueError)
"""The end of the data, a field that is not expected, a string that is not UTF-8."""


def _fields(struct: Any, ttype: int) -> dict[bytes, str]:
    """Return the names of a struct's fields of this type, by the bytes that begin each."""
    return {field_head(ttype, number): spec[1] for number, spec in struct.thrift_spec.items() if spec[0] == ttype}


_TIMES, _OPTIONS, _SECOND_OPTIONS = (
    _fields(struct, I64) for struct in (_ItemSpec, _DequeueRequest, _AckAndDequeueRequest)
)
_TEXTS, _I64S, _I32S = (_fields(RequestContext, ttype) for ttype in (STRING, I64, I32))
_REQUEST_ID = field_head(STRING, 2)
_KEPT_BYTES = 1024
"""Of the longest context that a connection keeps."""
_CONTEXT_FIELDS = len(_TEXTS) + len(_I64S) + len(_I32S)


def enqueue_request(frame: bytes, start: int, most: int) -> tuple[Any, int] | None:
    """Read an EnqueueRequest whose items are of one topic."""
    try:
        ns_, ns_bytes = _first_text(frame, start)
        ns_at = start + 10
        list_at = ns_at + ns_bytes
        items_, count, topic_, topic_bytes = _list_with_text(frame, list_at)
        topic_at = list_at + 15
        size_at = topic_at + topic_bytes + 3
        payload_, payload_bytes = _text(frame, size_at - 3)
        payload_at = size_at + 4
        priority_at = payload_at + payload_bytes
        priority_, priority = _i32(frame, priority_at)
        if (
            ns_ != _NS or items_ != _ITEMS or topic_ != _TOPIC or payload_ != _PAYLOAD or priority_ != _PRIORITY
            or not 1 <= count <= most
        ):  # fmt: skip
            return None
        request, spec = _EnqueueRequest(), _ItemSpec()
        request.ns = frame[ns_at:list_at].decode()
        spec.topic = frame[topic_at : size_at - 3].decode()
        spec.payload = frame[payload_at:priority_at]
        spec.priority = priority
        at = priority_at + 7
        for _ in _TIMES:
            if frame[at] != I64:
                break
            head, number = _i64(frame, at)
            setattr(spec, _TIMES[head], number)
            at += 11
        delivery_, spec.delivery, stop = _last_i32(frame, at)
        at += 8
        if delivery_ != _DELIVERY:
            return None
        tenancy_at = at - 1
        if stop != STOP:
            at = _tenancy(spec, frame, tenancy_at)
        if count == 1:
            request.items = [spec]
        else:
            request.items = items = SpecColumns(spec)
            middle, ending = frame[priority_at + 7 : tenancy_at], frame[tenancy_at:at]
            at = _more_items(items, frame, priority_at, frame[list_at + 8 : size_at], middle, ending, count)
        return request, at
    except _MISFITS:
        return None


def _tenancy(spec: Any, frame: bytes, at: int) -> int:
    """Read what an item may have behind its delivery: a tenant, throttle keys and a weight. Return where the item
    ends. Raises an error of `_MISFITS`."""
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
    if frame[at] != STOP:
        raise ValueError("an item of another form")
    return at + 1


def _more_items(
    items: SpecColumns, frame: bytes, at: int, beginning: bytes, middle: bytes, ending: bytes, count: int
) -> int:
    """Read the items behind the first one, and return where the last one ends. Each has the bytes `beginning` before
    its payload's length, and `middle` and `ending` behind its priority. `at` is the first one's priority. Raises an
    error of `_MISFITS`."""
    payloads, priorities = items.payloads, items.priorities
    between = middle + ending + beginning
    from_priority = Struct(f">3si{len(between)}sI")
    unpack, step = from_priority.unpack_from, from_priority.size
    for _ in range(count - 1):
        priority_, priority, between_, size = unpack(frame, at)
        if between_ != between or priority_ != _PRIORITY:
            return _more_tenants(items, frame, at, beginning, middle, ending, count)
        payload_at = at + step
        at = payload_at + size
        priorities.append(priority)
        payloads.append(frame[payload_at:at])
    priority_, priority = _i32(frame, at)
    if priority_ != _PRIORITY or not frame.startswith(ending, at + 7 + len(middle)):
        return _more_tenants(items, frame, at, beginning, middle, ending, count)
    if not frame.startswith(middle, at + 7):
        raise ValueError("an item of another form")
    priorities.append(priority)
    return at + 7 + len(middle) + len(ending)


def _more_tenants(
    items: SpecColumns, frame: bytes, at: int, beginning: bytes, middle: bytes, ending: bytes, count: int
) -> int:
    """Do the work of `_more_items` from the item whose priority is at `at`: from there on, fairness keys differ."""
    payloads, priorities, first = items.payloads, items.priorities, items.first.fairness_key
    if first is None:
        raise ValueError("an item of another form")
    (first_bytes,) = _size(ending, 3)
    behind = ending[7 + first_bytes :] + beginning
    to_name, to_payload = middle + _FAIRNESS, Struct(f">{len(behind)}sI")
    head = Struct(f">3si{len(to_name)}sI")
    unpack_head, head_bytes = head.unpack_from, head.size
    unpack_payload, behind_bytes = to_payload.unpack_from, to_payload.size
    items.tenants = tenants = [first] * len(priorities)
    names: dict[bytes, str] = {}
    while True:
        priority_, priority, to_name_, size = unpack_head(frame, at)
        if priority_ != _PRIORITY or to_name_ != to_name:
            raise ValueError("an item of another form")
        at += head_bytes
        encoded = frame[at : at + size]
        at += size
        name = names.get(encoded)
        if name is None:
            name = names[encoded] = encoded.decode()
        priorities.append(priority)
        tenants.append(name)
        if len(payloads) == count:
            break
        behind_, size = unpack_payload(frame, at)
        if behind_ != behind:
            raise ValueError("an item of another form")
        at += behind_bytes
        payloads.append(frame[at : at + size])
        at += size
    if not frame.startswith(ending[7 + first_bytes :], at):
        raise ValueError("an item of another form")
    end: int = at + len(ending) - 7 - first_bytes
    return end


def ack_request(frame: bytes, start: int, most: int) -> tuple[Any, int] | None:
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
    except _MISFITS:
        return None


def dequeue_request(frame: bytes, start: int, most: int) -> tuple[Any, int] | None:
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
    except _MISFITS:
        return None


def ack_and_dequeue_request(frame: bytes, start: int, most: int) -> tuple[Any, int] | None:
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
    except _MISFITS:
        return None


def _wants(
    request: Any, frame: bytes, at: int, most: int, options: Mapping[bytes, str], worker: bytes, total: bytes
) -> int:
    """Read the wants at `at` and the options behind them, and return where these end. The field with the worker's name
    begins with the bytes `worker`, and the bound on all topics with `total`. Raises an error of `_MISFITS`."""
    _, wants = _list(frame, at)
    at += 8
    if wants > most:
        raise ValueError("too many topics")
    request.wants = []
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
        if topic_ != _TOPIC or count_ != _COUNT or stop != STOP:
            raise ValueError("a topic of another form")
        request.wants.append(want)
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


class KnownContext:
    """The context of a connection's last request: its bytes around the request's id, and the fields that these make.
    A context with the same bytes around another id of the same size is as valid, within the same `limits`."""

    __slots__ = ("beginning", "ending", "fields", "id_bytes", "limits")

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self.beginning = self.ending = b""
        self.id_bytes = 0
        self.fields: dict[str, Any] = {}

    def read(self, request: Any, frame: bytes, at: int, limits: Limits) -> bool:
        """Read the context at `at`, if there is one. Return True if the frame ends behind it. Raises Invalid and
        OtherProtocol."""
        context, id_at = None, 0
        try:
            if frame.startswith(_CONTEXT, at):
                context = request.context = RequestContext()
                context_at = at
                at += 3
                for _ in range(_CONTEXT_FIELDS):
                    ttype = frame[at]
                    if ttype == STOP:
                        break
                    if ttype == STRING:
                        head, size = _text(frame, at)
                        text_at = at + 7
                        at = text_at + size
                        setattr(context, _TEXTS[head], frame[text_at:at].decode())
                        if head == _REQUEST_ID:
                            id_at, id_end = text_at, at
                    elif ttype == I64:
                        head, number = _i64(frame, at)
                        setattr(context, _I64S[head], number)
                        at += 11
                    else:
                        head, number = _i32(frame, at)
                        setattr(context, _I32S[head], number)
                        at += 7
                if frame[at] != STOP:
                    return False
                at += 1
        except _MISFITS:
            return False
        if len(frame) != at + len(_STOPS) or not frame.endswith(_STOPS):
            return False
        if context is not None:
            check_context(context, limits)
            if id_at and len(frame) - context_at <= _KEPT_BYTES:
                self.limits = limits
                self.beginning, self.ending, self.id_bytes = frame[context_at:id_at], frame[id_end:], id_end - id_at
                self.fields = dict(context.__dict__)
        return True


READERS: Mapping[str, ReadRequest] = {
    "Enqueue": enqueue_request,
    "Dequeue": dequeue_request,
    "Ack": ack_request,
    "AckAndDequeue": ack_and_dequeue_request,
}
