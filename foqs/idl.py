"""The Thrift contract as Python classes, loaded from `thrift/foqs.thrift`, and the context of a request in it.

`idl` is the module thriftpy2 makes of the IDL: `idl.Item`, `idl.EnqueueRequest`, `idl.Foqs`, ...
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import thriftpy2

_HERE = Path(__file__).resolve().parent
# A wheel carries the IDL inside the package; a checkout keeps it next to the package.
_CANDIDATES = (_HERE / "thrift" / "foqs.thrift", _HERE.parent / "thrift" / "foqs.thrift")

IDL_PATH = next(path for path in _CANDIDATES if path.is_file())
idl: Any = thriftpy2.load(str(IDL_PATH), module_name="foqs_thrift")

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
