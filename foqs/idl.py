"""The Thrift contract as Python classes, loaded from `thrift/foqs.json`, and the context of a request in it.

`idl` is the module that thriftpy2 would make of `thrift/foqs.thrift`: `idl.Item`, `idl.EnqueueRequest`, `idl.Foqs`, ...
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from thriftpy2.thrift import TException, TPayload, TType, gen_init

_HERE = Path(__file__).resolve().parent
# A wheel carries the IDL inside the package; a checkout keeps it next to the package.
_CANDIDATES = (_HERE / "thrift" / "foqs.thrift", _HERE.parent / "thrift" / "foqs.thrift")

IDL_PATH = next(path for path in _CANDIDATES if path.is_file())


def _load(written: dict[str, Any]) -> ModuleType:
    """Return the module of an IDL that `script/idl.py` wrote as JSON."""
    module = ModuleType("foqs_thrift")
    known: dict[str, Any] = vars(module)
    for name, values in written["enums"].items():
        names = {value: each for each, value in values.items()}
        known[name] = _class(name, object, _ttype=TType.I32, _NAMES_TO_VALUES=values, _VALUES_TO_NAMES=names, **values)
    for name, (raised, _) in written["structs"].items():
        known[name] = _class(name, TException if raised else TPayload, _ttype=TType.STRUCT)
    for name, (_, fields) in written["structs"].items():
        _fill(known[name], fields, known)
    for name, methods in written["services"].items():
        service = known[name] = _class(name, object, thrift_services=list(methods))
        for method, parts in methods.items():
            for part, fields in zip(("args", "result"), parts, strict=True):
                made = _class(f"{method}_{part}", TPayload, _ttype=TType.STRUCT)
                setattr(service, made.__name__, _fill(made, fields, known))
    return module


def _class(name: str, base: type, **attributes: Any) -> Any:
    return type(name, (base,), {"__module__": "foqs_thrift", **attributes})


def _fill(struct: Any, fields: list[list[Any]], known: dict[str, Any]) -> Any:
    struct.thrift_spec = {number: _spec(name, kind, known) for number, name, kind, _ in fields}
    # The first parameter of a result is what the method returns, as in thriftpy2.
    struct.default_spec = [(name, default) for _, name, _, default in sorted(fields, key=lambda field: field[0] != 0)]

    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        gen_init(struct, default_spec=struct.default_spec)  # compiles it: for few structs of a process
        struct.__init__(self, *args, **kwargs)

    struct.__init__ = first
    return struct


def _spec(name: str, kind: Any, known: dict[str, Any]) -> tuple[Any, ...]:
    """Return an entry of a `thrift_spec`: (type, name, [content,] required)."""
    kind = _type(kind, known)
    return (kind[0], name, kind[1], False) if isinstance(kind, tuple) else (kind, name, False)


def _type(kind: Any, known: dict[str, Any]) -> Any:
    if isinstance(kind, list):
        return tuple([_type(one, known) for one in kind])
    return known[kind] if isinstance(kind, str) else kind


idl: Any = _load(json.loads(IDL_PATH.with_suffix(".json").read_text()))
sys.modules["foqs_thrift"] = idl  # structs are pickled by it

_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/"""


def request_id_of(request: Any) -> str:
    """Return the id in the context of a request. A request without one gets one."""
    context = request.context
    if context is None:
        context = request.context = idl.RequestContext()
    if not context.request_id:
        context.request_id = f"{random.getrandbits(48):012x}"
    found: str = context.request_id
    return found


def is_forwarded(request: Any) -> bool:
    """Return True if another host forwarded the request: it takes one hop, never more."""
    context = request.context
    return context is not None and bool(context.hops)


def trace_of(context: Any) -> dict[str, str]:
    """Return the fields of a log line about a request with this context: its `trace_id`, or none without a valid W3C
    `traceparent`."""
    parent = None if context is None else context.traceparent
    found = None if parent is None else _TRACEPARENT.fullmatch(parent)
    return {} if found is None else {"trace_id": found[1]}


class LeasedBytes:
    """A DequeueResponse with leased items and nothing else: `body` has its bytes, and `read` returns the struct."""

    __slots__ = ("body", "read")

    def __init__(self, body: bytes, read: Callable[[], Any]) -> None:
        self.body = body
        self.read = read
