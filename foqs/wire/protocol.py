"""Thrift's strict binary protocol, framed: type codes, sizes, heads of frames, messages and fields."""

from __future__ import annotations

from struct import Struct

STOP, BOOL, BYTE, DOUBLE, I16, I32, I64 = 0, 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
BINARY = 18  # thriftpy2's mark for `binary` in its specs; STRING on the wire

FIXED_BYTES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
# The least that one value takes. Any other type code is refused: for one that does not exist, the Cython codec would
# skip two thousand million list elements without consuming a byte.
MIN_BYTES = {**FIXED_BYTES, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}

CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
END_WAIT = b"EndWait"
"""The name of the oneway message that clients send behind a dequeue."""
VERSION_1 = 0x8001_0000
VERSION_MASK = 0xFFFF_0000

# TApplicationException.type
UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, WRONG_METHOD_NAME = 1, 2, 3
INTERNAL_ERROR, PROTOCOL_ERROR = 6, 7

GOAWAY = b"Goodbye"
"""The method name of the exception message that ends a connection: a server that stops sends it unrequested. The
server has not started any request it had not answered before. A client of another library takes the message for the
reply to its next request, which was not started either."""

FRAME_HEAD_BYTES = 4
SMALL_BYTES = 64 * 1024
"""The largest request that a host reads before the first authenticated one of a connection."""

read_frame_size = Struct(">i").unpack_from
read_message_head = Struct(">II").unpack_from
read_i32 = Struct(">i").unpack_from
read_u32 = Struct(">I").unpack_from
read_list_head = Struct(">Bi").unpack_from
read_map_head = Struct(">BBi").unpack_from
pack_u32 = Struct(">I").pack
pack_i32 = Struct(">i").pack


def message_head(message_type: int, name: bytes) -> bytes:
    """Return a message up to its sequence number."""
    return pack_u32(VERSION_1 | message_type) + pack_u32(len(name)) + name


def end_wait() -> bytes:
    """Return the whole frame of the oneway message that ends the wait of the request before it."""
    message = message_head(ONEWAY, END_WAIT) + bytes(4) + b"\0"
    return pack_u32(len(message)) + message


def field_head(ttype: int, field_id: int) -> bytes:
    """Return the three bytes that begin a field."""
    return bytes((ttype,)) + field_id.to_bytes(2, "big")
