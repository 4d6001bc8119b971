"""What the codec has to know of each method, worked out once from the IDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foqs.rpc.structs import lean
from foqs.rpc.wire import BOOL, I32, I64, LIST, REPLY, STRING, STRUCT, VERSION_1, field_head, pack_u32

_SCALARS = (STRING, BOOL, I32, I64)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request that the decoder reads itself. `struct` is the lean class of what the field
    holds.
    """

    name: str
    ttype: int
    element: int = 0
    struct: Any = None


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the service."""

    name: str
    request: Any  # lean class
    args: Any  # lean class of the struct around the request
    result: Any  # class of what a handler answers with
    fields: dict[bytes, Field]  # by the three bytes that begin the field
    strings: tuple[str, ...]  # names of the request's own string fields
    reply_head: bytes  # from the version to the name


def method(service: Any, name: str) -> Method:
    """Raises ValueError when the service has no such method."""
    if name not in service.thrift_services:
        raise ValueError(f"the IDL has no method {name}")
    args = lean(getattr(service, f"{name}_args"))
    request = args.thrift_spec[1][2]
    specs = request.thrift_spec.items()
    known = {field_head(spec[0], number): _field(spec) for number, spec in specs}
    fields = {head: field for head, field in known.items() if field is not None}
    strings = tuple(spec[1] for _, spec in specs if spec[0] == STRING)
    result = getattr(service, f"{name}_result").thrift_spec[0][2]
    return Method(name, request, args, result, fields, strings, message_head(REPLY, name.encode()))


def message_head(message_type: int, name: bytes) -> bytes:
    """A message up to its sequence number."""
    return pack_u32(VERSION_1 | message_type) + pack_u32(len(name)) + name


def _field(spec: tuple[Any, ...]) -> Field | None:
    """None for a shape the decoder leaves to the scan and the codec: a frame that uses such a field takes
    that way.
    """
    ttype, name, inner = spec[0], spec[1], spec[2]
    if ttype in _SCALARS:
        return Field(name, ttype)
    if ttype == STRUCT:
        return Field(name, STRUCT, struct=inner)
    if ttype == LIST and inner == I64:
        return Field(name, LIST, I64)
    if ttype == LIST and isinstance(inner, tuple) and inner[0] == STRUCT:
        return Field(name, LIST, STRUCT, inner[1])
    return None
