"""Answers into frames."""

from __future__ import annotations

from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyMemoryBuffer

from foqs.idl import GOODBYE
from foqs.rpc.methods import Method, message_head
from foqs.rpc.wire import EXCEPTION, INTERNAL_ERROR, STRUCT, field_head, pack_i32, pack_u32

_Protocol: Any = TCyBinaryProtocol  # thriftpy2 has no types for its Cython half

_BUFFER_BYTES = 64 * 1024
_KEPT_BYTES = 1024 * 1024
_SUCCESS = field_head(STRUCT, 0)
_ERROR = field_head(STRUCT, 1)


class TooLarge(Exception):
    """The answer would be longer than a frame may be."""


class Encoder:
    """Encodes one answer at a time, on one thread. Every answer is given whole, with the frame's length
    before it.
    """

    __slots__ = ("_buffer", "_frame_bytes", "_protocol")

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._renew()

    def success(self, called: Method, seqid: int, response: Any) -> bytes:
        """Raises TooLarge; TypeError when `response` is not what the method answers with; what thriftpy2
        raises.
        """
        if not isinstance(response, called.result):
            given = type(response).__name__
            raise TypeError(f"{called.name} answers with {called.result.__name__}, not {given}")
        return self._frame(called.reply_head + pack_i32(seqid) + _SUCCESS, response, b"\0")

    def error(self, called: Method, seqid: int, error: Any) -> bytes:
        """`error` is the declared exception, an idl.RequestError."""
        return self._frame(called.reply_head + pack_i32(seqid) + _ERROR, error, b"\0")

    def refusal(self, name: bytes, seqid: int, kind: int, message: str) -> bytes:
        """The TApplicationException for a call that reaches no method."""
        head = message_head(EXCEPTION, name) + pack_i32(seqid)
        return self._frame(head, TApplicationException(kind, message), b"")

    def goodbye(self) -> bytes:
        """What no call asked for: the last message of a connection (see foqs.idl)."""
        return self.refusal(GOODBYE.encode(), 0, INTERNAL_ERROR, "the host closes this connection: nothing was begun")

    def _renew(self) -> None:
        self._buffer = TCyMemoryBuffer(b"", _BUFFER_BYTES)
        self._protocol = _Protocol(self._buffer)

    def _frame(self, head: bytes, struct: Any, tail: bytes) -> bytes:
        buffer = self._buffer
        self._protocol.write_struct(struct)
        body = buffer.getvalue()
        if len(body) <= _KEPT_BYTES:
            buffer.clean()
        else:
            self._renew()
        size = len(head) + len(body) + len(tail)
        if size > self._frame_bytes:
            raise TooLarge
        return b"".join((pack_u32(size), head, body, tail))
