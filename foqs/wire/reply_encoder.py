"""Answers into frames."""

from __future__ import annotations

from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyMemoryBuffer

from foqs.errors import FoqsError
from foqs.wire.errors import request_error
from foqs.wire.methods import ServedMethod
from foqs.wire.protocol import EXCEPTION, GOAWAY, INTERNAL_ERROR, STRUCT, field_head, message_head, pack_i32, pack_u32

_Protocol: Any = TCyBinaryProtocol  # thriftpy2 has no types for its Cython half

_BUFFER_BYTES = 64 * 1024
_KEPT_BYTES = 1024 * 1024
_SUCCESS = field_head(STRUCT, 0)
_ERROR = field_head(STRUCT, 1)
_AROUND_BYTES = 4 + len(_SUCCESS) + 1  # sequence number, head and STOP


class TooLarge(Exception):
    """The answer would be longer than a frame may be."""


class ReplyEncoder:
    """Encodes one answer at a time, on one thread. Every answer is given whole, with the frame's length
    before it.
    """

    __slots__ = ("_buffer", "_frame_bytes", "_protocol")

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._renew()

    def success(self, called: ServedMethod, seqid: int, response: Any) -> bytes:
        """`response` is the struct that the method answers with, or its bytes. Raises TooLarge; TypeError when it is
        neither; and the errors of thriftpy2."""
        if type(response) is bytes:
            size = len(called.reply_head) + _AROUND_BYTES + len(response)
            if size > self._frame_bytes:
                raise TooLarge
            return b"".join((pack_u32(size), called.reply_head, pack_i32(seqid), _SUCCESS, response, b"\0"))
        if not isinstance(response, called.result):
            given = type(response).__name__
            raise TypeError(f"{called.name} answers with {called.result.__name__}, not {given}")
        return self._frame(called.reply_head + pack_i32(seqid) + _SUCCESS, response, b"\0")

    def error(self, called: ServedMethod, seqid: int, error: FoqsError, request: Any) -> bytes:
        """Return the declared exception, a RequestError, as the reply to `request` (None: it could not be decoded)."""
        return self._frame(called.reply_head + pack_i32(seqid) + _ERROR, request_error(error, request), b"\0")

    def refusal(self, name: bytes, seqid: int, kind: int, message: str) -> bytes:
        """The TApplicationException for a call that reaches no method."""
        head = message_head(EXCEPTION, name) + pack_i32(seqid)
        return self._frame(head, TApplicationException(kind, message), b"")

    def goaway(self) -> bytes:
        """The last message of a connection, which no call asked for (see `GOAWAY`)."""
        return self.refusal(GOAWAY, 0, INTERNAL_ERROR, "the host closes this connection: nothing was begun")

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
