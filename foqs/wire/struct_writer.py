"""Structs as bytes; an error names the field whose value does not fit the contract."""

from __future__ import annotations

from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TDecodeException
from thriftpy2.transport import TCyMemoryBuffer

from foqs.wire.errors import Unencodable

_Protocol: Any = TCyBinaryProtocol  # thriftpy2 has no types for its Cython half

_BITS = {"BYTE": 8, "I08": 8, "I16": 16, "I32": 32, "I64": 64}
_SHOWN_BITS = 256
_WANTED = {
    "STRING": "it must be text",
    "BINARY": "it must be bytes",
    "LIST<STRING>": "it must be a list of texts",
    "MAP<STRING, STRING>": "it must be a mapping of texts to texts",
}


def encode_struct(struct: Any) -> bytes:
    """Raises Unencodable when a field holds a value of the wrong type or size."""
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
        given = f"is {value}" if value.bit_length() <= _SHOWN_BITS else f"has {value.bit_length()} bits"
    else:
        given = f"is of type {type(value).__name__}"
    return f"{field} {given}: it must be an integer from {-(1 << bits - 1)} to {(1 << bits - 1) - 1}"
