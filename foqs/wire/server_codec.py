"""The codec of a server: frames into requests, and answers into frames.

Three ways lead from a frame to a request, with the same result. Enqueues, dequeues and acks of the usual shape are read
by `foqs.wire.usual_requests`, without thriftpy2's codec.

The short way is for the rest of what nearly every frame is: a request of fields in the contract, whose lists
hold structs without containers. The fields of the request are read here, one by one, with every count checked;
only the structs inside are given to the Cython codec, each with a nesting depth of one. At that depth the codec
can meet neither a list nor a map nor a struct, declared or unknown, so it cannot be made to build or to skip
more than the bytes it consumes; and it costs no pass of its own over the frame. Bounds: at most
`limits.request_items` elements a list, at most one list per field of the request, and 20 ns a byte for fields
that come again and again.

Everything else (headers of an unusual form, unknown fields, types that are not the contract's) is scanned whole by
`foqs.wire.scan` before the codec sees it. The codec's own depth check notices a frame that does not fit the short way,
before anything of the unexpected field was consumed.

The codec reads through a buffered transport: over thriftpy2's Cython memory buffer the end of the data is
ignored, and a short frame gets to see bytes of another request. A marker fed behind each frame shows where
reading ended. A transport on which a frame was refused is not used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from secrets import token_bytes
from struct import error as StructError
from struct import unpack
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyBufferedTransport, TCyMemoryBuffer, TTransportException

from foqs.bounds import Limits
from foqs.errors import FoqsError, Invalid
from foqs.idl import idl
from foqs.wire.known_context import KnownContext, RequestContext
from foqs.wire.protocol import (
    BOOL,
    CALL,
    EXCEPTION,
    GOAWAY,
    I32,
    I64,
    INTERNAL_ERROR,
    LIST,
    NAME_AT,
    REPLY,
    STRING,
    STRUCT,
    VERSION_1,
    VERSION_MASK,
    Malformed,
    field_head,
    lean,
    message_head,
    pack_i32,
    pack_u32,
    read_i32,
    read_list_head,
    read_message_head,
    read_u32,
    request_error,
)
from foqs.wire.scan import MAX_DEPTH, check_context, check_strings, scan
from foqs.wire.usual_requests import READERS, ReadRequest

_SCALARS = (STRING, BOOL, I32, I64)

# thriftpy2 has no types for its Cython half.
_Protocol: Any = TCyBinaryProtocol
_Transport: Any = TCyBufferedTransport

_BUFFER_BYTES = 64 * 1024
_KEPT_BYTES = 256 * 1024  # a longer frame may have made the transport's buffer grow
_REQUEST_HEAD = field_head(STRUCT, 1)
_MARKER = token_bytes(8)
# What three bytes at the end of the request's last field are: two STOPs and the marker's first byte.
_LAST_HEAD = b"\0\0" + _MARKER[:1]
_AFTER_LAST_HEAD = _MARKER[1:]
# What the codec raises for bytes it cannot read: the end of the data, a length that is negative or absurd.
CODEC_ERRORS = (TTransportException, MemoryError, SystemError, StructError, OverflowError)

_KEPT_REPLY_BYTES = 1024 * 1024
SUCCESS = field_head(STRUCT, 0)
_ERROR = field_head(STRUCT, 1)
AROUND_BYTES = 4 + len(SUCCESS) + 1  # sequence number, head and STOP


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request that the decoder reads itself. `struct` is the lean class of the struct in it, or of its
    elements."""

    name: str
    ttype: int
    element: int = 0
    struct: Any = None


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """One method of the service."""

    name: str
    request: Any  # lean class
    args: Any  # lean class of the struct around the request
    result: Any  # class of a handler's response
    fields: dict[bytes, Field]  # by the three bytes that begin the field
    strings: tuple[str, ...]  # names of the request's own string fields
    reply_head: bytes  # from the version to the name
    usual: ReadRequest | None  # reads usual requests
    repeats: bool  # a connection has the same request again and again


def served_method(service: Any, name: str) -> ServedMethod:
    """Return the facts that the codec needs of a method, from the IDL. Raises ValueError: the service does not have
    it."""
    if name not in service.thrift_services:
        raise ValueError(f"the IDL has no method {name}")
    args = lean(getattr(service, f"{name}_args"))
    request = args.thrift_spec[1][2]
    specs = request.thrift_spec.items()
    known = {field_head(spec[0], number): _field(spec) for number, spec in specs}
    fields = {head: field for head, field in known.items() if field is not None}
    strings = tuple(spec[1] for _, spec in specs if spec[0] == STRING)
    result = getattr(service, f"{name}_result").thrift_spec[0][2]
    reply_head = message_head(REPLY, name.encode())
    return ServedMethod(name, request, args, result, fields, strings, reply_head, READERS.get(name), name == "Dequeue")


def _field(spec: tuple[Any, ...]) -> Field | None:
    """Return None for a field that the decoder leaves to the scan and the codec: a frame with such a field takes the
    long way. Unusual acks do, because the scan refuses fields of no type that the codec steps over."""
    ttype, name, inner = spec[0], spec[1], spec[2]
    if ttype in _SCALARS:
        return Field(name, ttype)
    if ttype == STRUCT:
        return Field(name, STRUCT, struct=inner)
    if ttype == LIST and inner == I64:
        return Field(name, LIST, I64)
    if ttype == LIST and isinstance(inner, tuple) and inner[0] == STRUCT and not issubclass(inner[1], idl.AckItem):
        return Field(name, LIST, STRUCT, inner[1])
    return None


class UnknownCall(Exception):
    """A whole message, but not a call of a method that is served. The connection stays usable."""

    def __init__(self, name: bytes, seqid: int, message_type: int) -> None:
        super().__init__(name, seqid, message_type)
        self.name = name
        self.seqid = seqid
        self.message_type = message_type


class _Unusual(Exception):
    """Not a frame for the short way, which blames no caller: the bytes it read may be the marker, where a frame is
    cut short.
    """


class RequestDecoder:
    """Decodes one frame at a time, on one thread."""

    __slots__ = ("_feed", "_read", "_read_deep", "_read_flat", "_transport", "limits", "methods")

    def __init__(self, service: Any, names: Iterable[str], limits: Limits) -> None:
        """`methods` are found by the bytes that a call of theirs begins with, up to its sequence number. Raises
        ValueError for a name that the service does not have."""
        self.limits = limits
        self.methods = {message_head(CALL, name.encode()): served_method(service, name) for name in names}
        self._renew()

    def refusal(self, frame: bytes) -> Malformed | UnknownCall:
        """Return the error of a frame that does not begin as one of `methods` does, or ends before its request."""
        try:
            word, name_bytes = read_message_head(frame)
            name_end = NAME_AT + name_bytes
            (seqid,) = read_i32(frame, name_end)
        except StructError:
            return Malformed("no whole message head")
        if word & VERSION_MASK != VERSION_1 or not CALL <= word & 0xFFFF <= 4:
            return Malformed("not a strict binary message")
        return UnknownCall(frame[NAME_AT:name_end], seqid, word & 0xFF)

    def request(self, called: ServedMethod, frame: bytes, start: int, known: KnownContext) -> Any:
        """Return the request, its own strings and its context checked. `known` is of the connection's last
        request. Raises Malformed, OtherProtocol, or Invalid when the caller is at fault."""
        usual, limits = called.usual, self.limits
        found = None
        if called is known.called and known.limits is limits and frame.startswith(known.repeated, start):
            found = called.request(), start + len(known.repeated)
            found[0].__dict__.update(known.request)
        elif usual is not None:
            found = usual(frame, start, limits.request_items, known)
            if called.repeats and found is not None:
                known.repeat(called, frame[start : found[1]], found[0])
        if found is not None:
            request, at = found
            id_at, id_end = at + len(known.beginning), len(frame) - len(known.ending)
            if (
                id_end - id_at == known.id_bytes
                and frame.startswith(known.beginning, at)
                and frame.endswith(known.ending)
                and known.limits is limits
                and (name := frame[id_at:id_end]).isascii()
                and (request_id := name.decode()).isprintable()
            ):
                if known.fields is not None:
                    request.context = context = RequestContext()
                    context.__dict__.update(known.fields)
                    if request_id:
                        context.request_id = request_id
                return request
            if known.read(request, frame, at, limits):
                return request
        return self._by_codec(called, frame, start)

    def _by_codec(self, called: ServedMethod, frame: bytes, start: int) -> Any:
        try:
            try:
                request = self._short_way(called, frame, start)
            except (_Unusual, RecursionError):
                request = self._long_way(called, frame, start)
        except CODEC_ERRORS:
            self._renew()
            raise Malformed("the frame ends within a value") from None
        except (Malformed, Invalid):
            self._renew()
            raise
        if len(frame) > _KEPT_BYTES:
            self._renew()
        if request.context is not None:
            check_context(request.context, self.limits)
        return request

    def _renew(self) -> None:
        self._feed = _Feed()
        self._transport = _Transport(self._feed, _BUFFER_BYTES)
        self._read = self._transport.read
        self._read_flat = _Protocol(self._transport, max_depth=1).read_struct
        self._read_deep = _Protocol(self._transport, max_depth=4 * MAX_DEPTH).read_struct

    def _short_way(self, called: ServedMethod, frame: bytes, start: int) -> Any:
        if frame[start : start + 3] != _REQUEST_HEAD:
            raise _Unusual
        self._feed.give(frame)
        read = self._read
        read(start + 3)
        fields = called.fields
        request = called.request()
        for _ in range(len(fields) + 1):
            head = read(3)
            field = fields.get(head)
            if field is None:
                if head == _LAST_HEAD and read(7) == _AFTER_LAST_HEAD:
                    return request
                raise _Unusual
            setattr(request, field.name, self._value(field, len(frame)))
        raise _Unusual

    def _value(self, field: Field, frame_bytes: int) -> Any:
        ttype = field.ttype
        read = self._read
        if ttype == STRING:
            (size,) = read_u32(read(4))
            if size > frame_bytes:
                raise Malformed("a string longer than its frame")
            try:
                return read(size).decode()
            except UnicodeDecodeError:
                raise _Unusual from None
        if ttype == LIST:
            return self._list(field, frame_bytes)
        if ttype == I64:
            return int.from_bytes(read(8), "big", signed=True)
        if ttype == I32:
            return int.from_bytes(read(4), "big", signed=True)
        if ttype == BOOL:
            return read(1) != b"\0"
        return self._read_flat(field.struct())

    def _list(self, field: Field, frame_bytes: int) -> list[Any]:
        element, count = read_list_head(self._read(5))
        if element != field.element or count > self.limits.request_items:
            raise _Unusual
        if not 0 <= count <= frame_bytes:
            raise Malformed("more elements declared than the frame can hold")
        if element == I64:
            return list(unpack(f">{count}q", self._read(8 * count)))
        read_flat, struct = self._read_flat, field.struct
        return [read_flat(struct()) for _ in range(count)]

    def _long_way(self, called: ServedMethod, frame: bytes, start: int) -> Any:
        scan(frame, start, self.limits)
        self._transport.clean()
        self._feed.give(frame)
        self._read(start)
        args = self._read_deep(called.args())
        if self._read(len(_MARKER)) != _MARKER:
            raise Malformed("the frame is shorter than its content declares")
        if args.request is None:
            raise Invalid("no request given")
        check_strings(args.request, called.strings)
        return args.request


class _Feed:
    """Source of the buffered transport: one frame, then the marker, then nothing."""

    __slots__ = ("_frame", "_marker", "_position")

    def give(self, frame: bytes) -> None:
        self._frame = frame
        self._position = 0
        self._marker = _MARKER

    def read(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes`: the transport copies without looking."""
        frame, position = self._frame, self._position
        if position == 0 and len(frame) + len(_MARKER) <= max_bytes:
            self._position, self._marker = len(frame), b""
            return frame + _MARKER
        if position < len(frame):
            self._position = position + max_bytes
            return frame[position : position + max_bytes]
        marker, self._marker = self._marker[:max_bytes], self._marker[max_bytes:]
        return marker


class TooLarge(Exception):
    """The answer would be longer than a frame may be."""


class ReplyEncoder:
    """Encodes one answer at a time, on one thread. Every answer is given whole, with the frame's length
    before it.
    """

    __slots__ = ("_buffer", "_protocol", "frame_bytes")

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self._renew()

    def success(self, called: ServedMethod, seqid: bytes, response: Any) -> bytes:
        """`seqid` is the sequence number as it came. `response` is the struct that the method answers with. Raises
        TooLarge; TypeError for another struct; and the errors of thriftpy2."""
        if not isinstance(response, called.result):
            given = type(response).__name__
            raise TypeError(f"{called.name} answers with {called.result.__name__}, not {given}")
        return self._frame(called.reply_head + seqid + SUCCESS, response, b"\0")

    def error(self, called: ServedMethod, seqid: bytes, error: FoqsError, request: Any) -> bytes:
        """Return the declared exception, a RequestError, as the reply to `request` (None: it could not be decoded)."""
        return self._frame(called.reply_head + seqid + _ERROR, request_error(error, request), b"\0")

    def refusal(self, name: bytes, seqid: int, kind: int, message: str) -> bytes:
        """Return the TApplicationException for a call that reaches no method."""
        head = message_head(EXCEPTION, name) + pack_i32(seqid)
        return self._frame(head, TApplicationException(kind, message), b"")

    def goaway(self) -> bytes:
        """Return the last message of a connection, which no call asked for (see `GOAWAY`)."""
        return self.refusal(GOAWAY, 0, INTERNAL_ERROR, "the host closes this connection: nothing was begun")

    def _renew(self) -> None:
        self._buffer = TCyMemoryBuffer(b"", _BUFFER_BYTES)
        self._protocol = _Protocol(self._buffer)

    def _frame(self, head: bytes, struct: Any, tail: bytes) -> bytes:
        buffer = self._buffer
        self._protocol.write_struct(struct)
        body = buffer.getvalue()
        if len(body) <= _KEPT_REPLY_BYTES:
            buffer.clean()
        else:
            self._renew()
        size = len(head) + len(body) + len(tail)
        if size > self.frame_bytes:
            raise TooLarge
        return b"".join((pack_u32(size), head, body, tail))
