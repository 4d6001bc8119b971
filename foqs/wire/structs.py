"""Structs that cost less to make than thriftpy2's own.

thriftpy2 generates an `__init__` that assigns every field. The codec calls it for each struct it reads, and then
assigns the fields in the frame a second time. A lean struct is the same class with its defaults on the class instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from foqs.idl import idl
from foqs.wire.protocol import LIST, STRUCT


@cache
def lean(struct: Any, item: Any = None) -> Any:
    """Return a subclass of the idl class `struct` that is made without arguments and holds only assigned fields.

    An instance reads like one of `struct` and encodes the same. It does not compare equal to one (thriftpy2
    compares the assigned fields), and its `repr` shows the assigned fields. Structs inside its fields are lean as
    well; where `item` is given, that class takes the place of idl.Item.
    """
    if item is not None and struct is idl.Item:
        return item
    defaults: dict[str, Any] = {spec[1]: None for spec in struct.thrift_spec.values()}
    defaults.update(struct.default_spec)
    made: Any = type(struct.__name__, (struct,), {"__init__": object.__init__, **defaults})
    made.thrift_spec = {number: _lean_field(spec, item) for number, spec in struct.thrift_spec.items()}
    return made


def _lean_field(spec: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    """One entry of a `thrift_spec`: (type, name, [content,] required)."""
    ttype, name, *inner = spec
    if ttype == STRUCT:
        return (ttype, name, lean(inner[0], item), *inner[1:])
    if ttype == LIST and isinstance(inner[0], tuple) and inner[0][0] == STRUCT:
        return (ttype, name, (STRUCT, lean(inner[0][1], item)), *inner[1:])
    return spec
