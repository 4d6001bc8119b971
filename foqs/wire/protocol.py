"""Thrift's strict binary protocol, framed: type codes, heads of frames, messages and fields, structs as bytes, and the
errors of calls on the wire. Clients use it, and hosts for both of their directions."""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TDecodeException
from thriftpy2.transport import TCyMemoryBuffer

from foqs.checks import SHOWN_BITS
from foqs.errors import FoqsError, Invalid, NotSent, OutcomeUnknown, wire_code
from foqs.idl import idl

STOP, BOOL, BYTE, DOUBLE, I16, I32, I64 = 0, 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
BINARY = 18  # thriftpy2's mark for `binary` in its specs; STRING on the wire

FIXED_BYTES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
# The least bytes of a value. Any other type code is refused: for one that does not exist, the Cython codec would
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
NAME_AT, SEQID_BYTES = 8, 4
"""Where the name begins in a message, and the size of the sequence number behind it."""
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


_MESSAGE_CHARACTERS = 1000
_NOT_STARTED = (UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, WRONG_METHOD_NAME, PROTOCOL_ERROR)
"""Types of Thrift's own error reply that a server sends before it calls a handler."""

_Protocol: Any = TCyBinaryProtocol  # thriftpy2 has no types for its Cython half

_BITS = {"BYTE": 8, "I08": 8, "I16": 16, "I32": 32, "I64": 64}
_WANTED = {
    "STRING": "it must be text",
    "BINARY": "it must be bytes",
    "LIST<STRING>": "it must be a list of texts",
    "MAP<STRING, STRING>": "it must be a mapping of texts to texts",
}


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


class Malformed(Exception):
    """The frame is not one message of the protocol. Its connection cannot be trusted from now on."""


class GoAway(NotSent):
    """The server stops: it did not start the request, and starts no other one of that connection."""


class Unencodable(Invalid):
    """A value of the wrong type or size; found before anything was sent."""


def application_error(error: Any) -> FoqsError:
    """Return the typed error of Thrift's own error reply, a TApplicationException."""
    message = _text(error.message) or f"type {error.type}"
    if error.type in _NOT_STARTED:
        return Invalid(f"the server refused the call: {message}")
    return OutcomeUnknown(f"the server failed: {message}")


def request_error(error: FoqsError, request: Any) -> Any:
    """Return `error` as the RequestError of the reply to `request` (None: it could not be decoded)."""
    message = error.message[:_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
    return idl.RequestError(wire_code(error, request), message, error.retry_after_ms)


def _text(message: object) -> str:
    """Return the text of a message. (The codec gives a string that is not UTF-8 as bytes.)"""
    return message if isinstance(message, str) else ""


@cache
def lean(struct: Any, item: Any = None) -> Any:
    """Return a subclass of the idl class `struct` that is made without arguments and holds only assigned fields.

    It costs less to make: thriftpy2 generates an `__init__` that assigns every field, and the codec then assigns the
    fields in the frame a second time. A lean struct has its defaults on the class instead. An instance reads like one
    of `struct` and encodes the same. It does not compare equal to one (thriftpy2 compares the assigned fields), and its
    `repr` shows the assigned fields. Structs inside its fields are lean as well; where `item` is given, that class
    takes the place of idl.Item.
    """
    if item is not None and struct is idl.Item:
        return item
    defaults: dict[str, Any] = {spec[1]: None for spec in struct.thrift_spec.values()}
    defaults.update(struct.default_spec)
    made: Any = type(struct.__name__, (struct,), {"__init__": object.__init__, **defaults})
    made.thrift_spec = {number: _lean_field(spec, item) for number, spec in struct.thrift_spec.items()}
    return made


def _lean_field(spec: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    """Return a lean entry of a `thrift_spec`: (type, name, [content,] required)."""
    ttype, name, *inner = spec
    if ttype == STRUCT:
        return (ttype, name, lean(inner[0], item), *inner[1:])
    if ttype == LIST and isinstance(inner[0], tuple) and inner[0][0] == STRUCT:
        return (ttype, name, (STRUCT, lean(inner[0][1], item)), *inner[1:])
    return spec


def encode_struct(struct: Any) -> bytes:
    """Return a struct as bytes. Raises Unencodable: a field holds a value of the wrong type or size."""
    buffer = TCyMemoryBuffer()
    try:
        _Protocol(buffer).write_struct(struct)
    except TDecodeException as error:
        raise Unencodable(_misfit(error.field, error.type_repr or "", error.value)) from None
    except Exception as error:
        raise Unencodable(f"cannot be encoded: {type(error).__name__}") from error
    encoded: bytes = buffer.getvalue()
    return encoded


def _misfit(field: str, kind: str, value: object) -> str:
    """Say why `value` cannot be the field. Shows a number that is out of range, but no text: payloads stay out of logs.

    >>> _misfit("priority", "I32", 1 << 40)
    'priority is 1099511627776: it must be an integer from -2147483648 to 2147483647'
    """
    bits = _BITS.get(kind)
    if bits is None:
        if kind == "STRING" and isinstance(value, str):
            return f"{field} is not valid Unicode"
        kinds = dict if kind.startswith("MAP") else list | tuple if kind.startswith("LIST") else ()
        fits = isinstance(value, kinds)
        given = "holds a wrong value" if fits else f"is of type {type(value).__name__}"
        return f"{field} {given}: {_WANTED.get(kind, f'it must be {kind}')}"
    if isinstance(value, int):
        given = f"is {value}" if value.bit_length() <= SHOWN_BITS else f"has {value.bit_length()} bits"
    else:
        given = f"is of type {type(value).__name__}"
    return f"{field} {given}: it must be an integer from {-(1 << bits - 1)} to {(1 << bits - 1) - 1}"
