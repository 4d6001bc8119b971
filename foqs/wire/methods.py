"""The facts that the codec of a server needs of each method, derived once from the IDL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foqs.idl import idl
from foqs.wire.protocol import BOOL, I32, I64, LIST, REPLY, STRING, STRUCT, field_head, message_head
from foqs.wire.structs import lean
from foqs.wire.usual_request import READERS, ReadRequest

_SCALARS = (STRING, BOOL, I32, I64)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request that the decoder reads itself. `struct` is the lean class of the struct in it, or of its
    elements."""

    name: str
    ttype: int
    element: int = 0
    struct: Any = None


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """One method of the service."""

    name: str
    request: Any  # lean class
    args: Any  # lean class of the struct around the request
    result: Any  # class of a handler's response
    fields: dict[bytes, Field]  # by the three bytes that begin the field
    strings: tuple[str, ...]  # names of the request's own string fields
    reply_head: bytes  # from the version to the name
    usual: ReadRequest | None  # reads usual requests


def served_method(service: Any, name: str) -> ServedMethod:
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
    reply_head = message_head(REPLY, name.encode())
    return ServedMethod(name, request, args, result, fields, strings, reply_head, READERS.get(name))


def _field(spec: tuple[Any, ...]) -> Field | None:
    """Return None for a field that the decoder leaves to the scan and the codec: a frame with such a field takes the
    long way. Unusual acks do, because the scan refuses fields of no type that the codec steps over."""
    ttype, name, inner = spec[0], spec[1], spec[2]
    if ttype in _SCALARS:
        return Field(name, ttype)
    if ttype == STRUCT:
        return Field(name, STRUCT, struct=inner)
    if ttype == LIST and inner == I64:
        return Field(name, LIST, I64)
    if ttype == LIST and isinstance(inner, tuple) and inner[0] == STRUCT and not issubclass(inner[1], idl.AckItem):
        return Field(name, LIST, STRUCT, inner[1])
    return None
