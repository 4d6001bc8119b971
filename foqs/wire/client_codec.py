"""Calls of a method on a server: requests into frames, and the frames that come back into responses."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyBufferedTransport, TMemoryBuffer

from foqs.errors import RequestTooLarge, item_error
from foqs.idl import idl
from foqs.wire.protocol import (
    CALL,
    EXCEPTION,
    GOAWAY,
    REPLY,
    STRUCT,
    VERSION_1,
    GoAway,
    Malformed,
    application_error,
    encode_struct,
    field_head,
    lean,
    message_head,
    read_i32,
    read_message_head,
)

# thriftpy2 has no types for its Cython half.
_Protocol: Any = TCyBinaryProtocol
_Transport: Any = TCyBufferedTransport
_Input: Any = TMemoryBuffer

_LONGEST_FRAME_BYTES = 0x7FFF_FFFF
_REPLY_WORD = VERSION_1 | REPLY
_EXCEPTION_WORD = VERSION_1 | EXCEPTION
_REQUEST = field_head(STRUCT, 1)
_STOPS = b"\0\0"  # of a request and of its message

CheckReply = Callable[[bytes, int], None]
"""(frame, where the reply's struct begins): raises Malformed for a reply that must not reach the codec."""
ReadReply = Callable[[bytes, int], Any]
"""(frame, where the reply's struct begins): returns the response, or None for a reply that it leaves to the codec."""


class RemoteMethod:
    """One method of the service as its callers see it. Raises AttributeError when the IDL has no such method.

    `item` is the class of the items in a response; without it they are lean structs of the IDL. `usual` reads usual
    replies at less cost than the codec.
    """

    __slots__ = (
        "_around", "_before_body", "_head", "_pack_head", "_reply_head", "_result", "_usual", "_wire_name", "name",
        "request",
    )  # fmt: skip

    def __init__(self, name: str, item: Any = None, usual: ReadReply | None = None) -> None:
        self.name = name
        self.request = getattr(idl, f"{name}Request")
        self._usual = usual
        self._result = lean(getattr(idl.Foqs, f"{name}_result"), item)
        self._wire_name = name.encode()
        self._head = message_head(CALL, self._wire_name)
        self._reply_head = message_head(REPLY, self._wire_name)
        self._before_body = len(self._head) + 4  # in the message, with its sequence number
        self._around = self._before_body + len(_REQUEST) + len(_STOPS)
        self._pack_head = Struct(f">I{len(self._head)}sI{len(_REQUEST)}s").pack

    def encode(self, request: Any, seqid: int, frame_bytes: int = _LONGEST_FRAME_BYTES, context: bytes = b"") -> bytes:
        """Return the whole frame, its length included. `request` is a struct or the bytes of its fields, and `context`
        the bytes of its last field. Raises Unencodable, or RequestTooLarge above `frame_bytes`."""
        fields = request if type(request) is bytes else memoryview(encode_struct(request))[:-1]
        size = self._around + len(fields) + len(context)
        if size > frame_bytes:
            raise RequestTooLarge(f"a request of {size} bytes; a frame holds {frame_bytes}")
        return b"".join((self._pack_head(size, self._head, seqid, _REQUEST), fields, context, _STOPS))

    def decode(self, frame: bytes, seqid: int, check: CheckReply | None = None) -> Any:
        """Return the response in `frame`, which has no length before it. Raises Malformed, GoAway, or the typed error
        that the server answered."""
        start = self._before_body
        is_reply = frame.startswith(self._reply_head) and int.from_bytes(frame[start - 4 : start], "big") == seqid
        if not is_reply:
            self._check_exception_head(frame, seqid)
        if is_reply and self._usual is not None and (response := self._usual(frame, start)) is not None:
            return response
        if check is not None:
            check(frame, start)
        # Not over TCyMemoryBuffer: thriftpy2 0.7.1 reads past the end of its data.
        transport = _Transport(_Input(frame))
        reply: Any = self._result() if is_reply else TApplicationException()
        try:
            transport.read(start)
            _Protocol(transport).read_struct(reply)
        except Exception as error:
            raise Malformed(f"the reply to {self.name} cannot be read") from error
        if not is_reply:
            raise application_error(reply)
        if reply.error is not None:
            raise item_error(reply.error)
        if reply.success is None:
            raise Malformed(f"the reply to {self.name} holds nothing")
        return reply.success

    def _check_exception_head(self, frame: bytes, seqid: int) -> None:
        """Raise GoAway or Malformed unless `frame` is Thrift's own error reply to this very call."""
        try:
            word, name_bytes = read_message_head(frame)
            position = 8 + name_bytes
            (answered,) = read_i32(frame, position)
        except StructError:
            raise Malformed(f"the reply to {self.name} has no whole message head") from None
        name = frame[8:position]
        if word == _EXCEPTION_WORD and name == GOAWAY:
            raise GoAway("the host closes the connection: it did not start the request")
        if word not in (_REPLY_WORD, _EXCEPTION_WORD):
            raise Malformed(f"the reply to {self.name} is not a reply of the strict binary protocol")
        if name != self._wire_name or answered != seqid:
            shown = name[:255].decode("utf-8", "replace")
            raise Malformed(f"a reply to {shown!r} number {answered} instead of {self.name} number {seqid}")
        if word == _REPLY_WORD:
            raise Malformed(f"the reply to {self.name} has no whole message head")

    def __repr__(self) -> str:
        return f"RemoteMethod({self.name})"
