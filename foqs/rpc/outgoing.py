"""Requests into frames, and the frames that come back into responses: the codec of a host that calls another one.

A reply is scanned like a request before the codec sees it: what answers may be something else than a host.
"""

from __future__ import annotations

from functools import cache
from struct import error as StructError
from typing import Any, NamedTuple

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyBufferedTransport, TCyMemoryBuffer, TMemoryBuffer

from foqs.errors import FoqsError, Invalid, OutcomeUnknown, from_code
from foqs.idl import GOODBYE, idl
from foqs.limits import Limits
from foqs.rpc.decode import CODEC_ERRORS
from foqs.rpc.methods import message_head
from foqs.rpc.peer import NotSent
from foqs.rpc.scan import scan
from foqs.rpc.structs import lean
from foqs.rpc.wire import (
    CALL,
    EXCEPTION,
    INVALID_MESSAGE_TYPE,
    REPLY,
    UNKNOWN_METHOD,
    VERSION_1,
    Malformed,
    pack_i32,
    pack_u32,
    read_i32,
    read_message_head,
)

# thriftpy2 has no types for its Cython half.
_Protocol: Any = TCyBinaryProtocol
_Transport: Any = TCyBufferedTransport
_Input: Any = TMemoryBuffer

_REPLY_WORDS = (VERSION_1 | REPLY, VERSION_1 | EXCEPTION)
_GOODBYE = GOODBYE.encode()
_BYTES_PER_VALUE = 4
"""Few values take less. A reply may hold more of them than a request: it gathers items of many requests."""


class RequestTooLarge(Invalid):
    """The request does not fit a frame; nothing was sent."""


class _Method(NamedTuple):
    head: bytes
    name: bytes
    args: Any
    result: Any  # lean class


@cache
def _method(name: str) -> _Method:
    """AttributeError when the IDL has no such method."""
    result = lean(getattr(idl.Foqs, f"{name}_result"))
    return _Method(message_head(CALL, name.encode()), name.encode(), getattr(idl.Foqs, f"{name}_args"), result)


def encode(name: str, request: Any, seqid: int, limits: Limits) -> bytes:
    """The whole frame, length included. Raises RequestTooLarge; what thriftpy2 raises for what is no such request."""
    method = _method(name)
    buffer = TCyMemoryBuffer()
    _Protocol(buffer).write_struct(method.args(request))
    body = bytes(buffer.getvalue())
    size = len(method.head) + 4 + len(body)
    if size > limits.frame_bytes:
        raise RequestTooLarge(f"a request of {size} bytes; a frame holds {limits.frame_bytes}")
    return b"".join((pack_u32(size), method.head, pack_i32(seqid), body))


def decode(name: str, frame: bytes, seqid: int, limits: Limits) -> Any:
    """The response, made lean. Raises Malformed, NotSent for a goodbye, or the typed error of what the peer
    answered."""
    method = _method(name)
    word, start = _head(method, frame, seqid)
    reply: Any = method.result() if word == _REPLY_WORDS[0] else TApplicationException()
    try:
        scan(frame, start, limits, max(limits.request_items, len(frame) // _BYTES_PER_VALUE))
    except Invalid as error:
        raise Malformed(error.message) from None
    transport = _Transport(_Input(frame))
    try:
        transport.read(start)
        _Protocol(transport).read_struct(reply)
    except CODEC_ERRORS:
        raise Malformed("the reply cannot be read") from None
    if isinstance(reply, TApplicationException):
        raise _application_error(reply)
    if reply.error is not None:
        raise item_error(reply.error)
    if reply.success is None:
        raise Malformed("the reply holds nothing")
    return reply.success


def item_error(error: Any) -> FoqsError:
    """The typed error of an ItemError or RequestError."""
    message = error.message if isinstance(error.message, str) else ""
    return from_code(error.code or 0, message, error.retry_after_ms)


def _head(method: _Method, frame: bytes, seqid: int) -> tuple[int, int]:
    """(first word, where the struct begins) of a reply to this very call."""
    try:
        word, name_bytes = read_message_head(frame)
        position = 8 + name_bytes
        (answered,) = read_i32(frame, position)
    except StructError:
        raise Malformed("no whole message head") from None
    if word == _REPLY_WORDS[1] and frame[8:position] == _GOODBYE:
        raise NotSent("the host closed the connection")
    if word not in _REPLY_WORDS or frame[8:position] != method.name:
        raise Malformed("no reply to this method")
    if answered != seqid:
        raise Malformed("a reply to another call")
    return word, position + 4


def _application_error(error: Any) -> FoqsError:
    if error.type in (UNKNOWN_METHOD, INVALID_MESSAGE_TYPE):
        return Invalid("the host does not know this method")
    return OutcomeUnknown("the host failed")
