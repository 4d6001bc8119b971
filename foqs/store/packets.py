"""The packets of MySQL's and MariaDB's protocol that a transaction needs: commands, and replies without rows.

Pure: bytes in, bytes out. A packet is its length (three bytes), a sequence id and a payload. A command is one packet
with the id 0. Its reply is one OK packet a statement, each but the last with the flag for more results, or an ERR
packet as the last one; their ids count on from 1.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

COM_QUERY = 3
MOST_BYTES = 0xFFFFFF - 1
"""Payload of a packet, the command's byte included. A longer one would go on in a second packet."""

_OK, _ERR = 0x00, 0xFF
_MORE_RESULTS = 0x0008
_HEAD_BYTES = 4
_ERR_BYTES = 3
_OK_BYTES = 5
"""Of an OK packet with small numbers, up to its flags."""
_REPLY_BYTES = 1 << 16
"""Bound on a reply's packet, so that a damaged length is an error and not a wait."""
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_command_head = Struct("<IB").pack  # the sequence id 0 is the highest byte of the first number
_u16 = Struct("<H").unpack_from


class Ok(NamedTuple):
    """One statement was run; `more`: the reply to another one of the same command follows."""

    rows: int
    more: bool


_SMALL = 0xFB
"""Numbers below are one byte."""
_OKS = [(Ok(rows, more=False), Ok(rows, more=True)) for rows in range(_SMALL)]


class Err(NamedTuple):
    """A command ended at a statement that failed; no statement after it was run."""

    code: int
    sqlstate: str
    message: str


class BadReply(Exception):
    """The bytes are no reply that a statement without rows may have. The connection cannot be used any more."""


def command(code: int, payload: bytes) -> bytes:
    """Return the packet of a command. Raises ValueError for a payload that does not fit in one."""
    size = len(payload) + 1
    if size > MOST_BYTES:
        raise ValueError(f"a command of {size:,} bytes does not fit in one packet")
    return _command_head(size, code) + payload


def query(text: str) -> bytes:
    """Return the packet of one or several statements."""
    return command(COM_QUERY, text.encode())


class Replies:
    """Reads replies from bytes in pieces of any size.

    Replies to several commands may follow one another: ids begin again after the last packet of each.
    """

    __slots__ = ("_rest", "_sequence")

    def __init__(self) -> None:
        self._rest = b""
        self._sequence = 1

    @property
    def partial(self) -> bool:
        """Whether a packet has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Ok | Err]:
        """Return the replies that end in `data`, in order. Raises BadReply."""
        if self._rest:
            data = self._rest + data
        made: list[Ok | Err] = []
        at, end = 0, len(data)
        while end - at >= _HEAD_BYTES:
            size = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            if not 0 < size <= _REPLY_BYTES:
                raise BadReply(f"a reply of {size:,} bytes")
            body = at + _HEAD_BYTES
            stop = body + size
            if stop > end:
                break
            # A server that ends a connection on its own account counts from 0.
            if data[at + 3] != self._sequence and (data[at + 3] != 0 or data[body] != _ERR):
                raise BadReply(f"packet {data[at + 3]} instead of {self._sequence}")
            if size >= _OK_BYTES and data[body] == _OK and data[body + 1] < _SMALL and data[body + 2] < _SMALL:
                more = data[body + 3] & _MORE_RESULTS != 0
                made.append(_OKS[data[body + 1]][more])
            else:
                reply = _reply(data[body:stop])
                made.append(reply)
                more = isinstance(reply, Ok) and reply.more
            self._sequence = self._sequence + 1 & 0xFF if more else 1
            at = stop
        self._rest = data[at:]
        return made


def error_in(body: bytes) -> Err | None:
    """Return the error of an ERR packet, None for any other. Raises BadReply."""
    if body[:1] != b"\xff":
        return None
    if len(body) < _ERR_BYTES:
        raise BadReply("a packet ends within a number")
    code = _u16(body, 1)[0]
    if body[3:4] == b"#":
        return Err(code, body[4:9].decode("ascii", "replace"), body[9:].decode("utf-8", "replace"))
    return Err(code, "", body[3:].decode("utf-8", "replace"))


def _reply(body: bytes) -> Ok | Err:
    kind = body[0]
    try:
        if kind == _OK:
            rows, at = _number(body, 1)
            _, at = _number(body, at)  # the last id that the server generated
            return Ok(rows, _u16(body, at)[0] & _MORE_RESULTS != 0)
        if (error := error_in(body)) is not None:
            return error
    except (IndexError, StructError):
        raise BadReply("a packet ends within a number") from None
    raise BadReply(f"a packet of kind {kind:#04x}")


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded integer; return it and where it ends."""
    first = body[at]
    at += 1
    if first < _SMALL:
        return first, at
    width = _WIDTHS.get(first)
    if width is None:
        raise BadReply(f"a number that begins with {first:#04x}")
    stop = at + width
    if stop > len(body):
        raise IndexError
    return int.from_bytes(body[at:stop], "little"), stop
