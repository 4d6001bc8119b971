"""What the requests of a connection have in common. Their contexts differ in the request's id only, a consumer asks for
the same topics again and again, and the items of a producer differ in their payloads and priorities."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any

from foqs.bounds import Limits
from foqs.idl import idl
from foqs.wire.protocol import I32, I64, STOP, STRING, STRUCT, field_head, lean
from foqs.wire.scan import check_context

MISFITS = (StructError, IndexError, KeyError, ValueError)
"""The end of the data, a field that is not expected, a string that is not UTF-8."""

RequestContext = lean(idl.RequestContext)

_CONTEXT, _REQUEST_ID, _STOPS = field_head(STRUCT, 15), field_head(STRING, 2), b"\0\0"
_KEPT_BYTES = 1024
"""Of the longest context and the longest request that a connection keeps."""

_text = Struct(">3sI").unpack_from
_i32 = Struct(">3si").unpack_from
_i64 = Struct(">3sq").unpack_from


def fields_of(struct: Any, ttype: int) -> dict[bytes, str]:
    """Return the names of a struct's fields of this type, by the bytes that begin each."""
    return {field_head(ttype, number): spec[1] for number, spec in struct.thrift_spec.items() if spec[0] == ttype}


_TEXTS, _I64S, _I32S = (fields_of(RequestContext, ttype) for ttype in (STRING, I64, I32))
_FIELDS = len(_TEXTS) + len(_I64S) + len(_I32S)


class KnownContext:
    """The context of a connection's last request: its bytes around the request's id, and its fields (None without a
    context). A context with the same bytes around another id of the same size is as valid, within the same `limits`.
    `repeated` is what the last request of the method `called` had before its context, and `request` has its fields.

    The last usual enqueue of one item had `to_payload` before the length of the payload, and `behind_priority` between
    the priority and the context. `ns` is its namespace, and `spec` has the other fields of its item (None: there was no
    such enqueue)."""

    __slots__ = (
        "beginning", "behind_priority", "called", "ending", "fields", "id_bytes", "limits", "ns", "repeated", "request",
        "spec", "to_payload",
    )  # fmt: skip

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self.beginning = self.ending = b""
        self.id_bytes = 0
        self.fields: dict[str, Any] | None = None
        self.called: Any = None
        self.repeated = b""
        self.request: dict[str, Any] = {}
        self.ns = ""
        self.spec: dict[str, Any] | None = None
        self.to_payload = self.behind_priority = b""

    def repeat(self, called: Any, repeated: bytes, request: Any) -> None:
        """Keep a request, which has no context yet."""
        if len(repeated) <= _KEPT_BYTES:
            self.called, self.repeated, self.request = called, repeated, dict(request.__dict__)

    def enqueued(self, ns: str, spec: Any, to_payload: bytes, behind_priority: bytes) -> None:
        """Keep an enqueue of one item."""
        if len(to_payload) + len(behind_priority) <= _KEPT_BYTES:
            self.ns, self.spec = ns, {**spec.__dict__, "payload": b""}
            self.to_payload, self.behind_priority = to_payload, behind_priority

    def read(self, request: Any, frame: bytes, at: int, limits: Limits) -> bool:
        """Read the context at `at`, if there is one. Return True if the frame ends behind it. Raises Invalid and
        OtherProtocol."""
        context, end = None, at
        id_at = id_end = len(frame) - len(_STOPS)
        if frame.startswith(_CONTEXT, at):
            context = request.context = RequestContext()
            try:
                end, id_at, id_end = _read_fields(context, frame, at + len(_CONTEXT))
            except MISFITS:
                return False
        if len(frame) != end + len(_STOPS) or not frame.endswith(_STOPS):
            return False
        if context is not None:
            check_context(context, limits)
        if len(frame) - at <= _KEPT_BYTES:
            if self.limits is not limits:
                self.limits, self.called = limits, None  # the kept request is of other limits
            self.beginning, self.id_bytes, self.ending = frame[at:id_at], id_end - id_at, frame[id_end:]
            self.fields = None if context is None else dict(context.__dict__)
        return True


def _read_fields(context: Any, frame: bytes, at: int) -> tuple[int, int, int]:
    """Read the fields of a context at `at`. Return where it ends, and where the request's id begins and ends (without
    an id, before the end of the context). Raises an error of `MISFITS`."""
    id_at = id_end = 0
    for _ in range(_FIELDS):
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
        raise ValueError("a field that is not expected")
    return at + 1, id_at or at, id_end or at
