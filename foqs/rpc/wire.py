"""Thrift's strict binary protocol as bytes: type codes, sizes, message heads. Nothing here knows the
service.
"""

from __future__ import annotations

from struct import Struct

STOP, BOOL, BYTE, DOUBLE, I16, I32, I64 = 0, 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
BINARY = 18  # thriftpy2's mark for `binary` in its specs; STRING on the wire

FIXED_BYTES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
# What one value takes at least. A type that is not here is not a type: the Cython codec would skip values of
# it without consuming a byte, two thousand million times if a list says so.
MIN_BYTES = {**FIXED_BYTES, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}

CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
VERSION_1 = 0x8001_0000
VERSION_MASK = 0xFFFF_0000

# TApplicationException.type
UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, INTERNAL_ERROR = 1, 2, 6

read_frame_size = Struct(">i").unpack_from
read_message_head = Struct(">II").unpack_from
read_i32 = Struct(">i").unpack_from
read_u32 = Struct(">I").unpack_from
read_list_head = Struct(">Bi").unpack_from
read_map_head = Struct(">BBi").unpack_from
pack_u32 = Struct(">I").pack
pack_i32 = Struct(">i").pack


class Malformed(Exception):
    """The frame is not one message of the protocol. Its connection cannot be trusted any more."""


def field_head(ttype: int, field_id: int) -> bytes:
    """The three bytes that begin a field."""
    return bytes((ttype,)) + field_id.to_bytes(2, "big")
