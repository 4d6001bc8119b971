"""Checks of types that the codec does not make.

thriftpy2 hands over a `string` that is not UTF-8 as `bytes`, and leaves a field of the wrong type at its
default. The rpc seam guarantees, for every request: its own `string` fields and those of its context are
`str` or None. Strings inside items are checked with `text` where the items are looked at: one bad item is
that item's fault. In an answer of another host, `text_fault` finds a string that is not UTF-8 in any place.
"""

from __future__ import annotations

from typing import Any

from foqs.bounds import Limits
from foqs.errors import PROTOCOL_VERSION, Invalid, OtherProtocol
from foqs.wire.protocol import LIST, MAP, STRING, STRUCT


def check_strings(request: Any, names: tuple[str, ...]) -> None:
    """Raises Invalid unless each of these `string` fields of `request` is text or absent."""
    for name in names:
        value = getattr(request, name)
        if value is not None and not isinstance(value, str):
            raise Invalid(f"{name} is not UTF-8")


def check_context(context: Any, limits: Limits) -> None:
    """Raises Invalid unless a RequestContext is of the right types and within the limits. Says no value: one
    is secret. Raises OtherProtocol for a request of a host with another protocol version.
    """
    # Written out: a loop over the names takes twice the time, and every request comes here.
    request_id, most = context.request_id, limits.context_bytes
    if context.token is not None:
        _check_text(context.token, "token", limits.token_bytes)
    if request_id is not None:
        _check_text(request_id, "request_id", most)
    if context.traceparent is not None:
        _check_text(context.traceparent, "traceparent", most)
    if context.host_proof is not None:
        _check_text(context.host_proof, "host_proof", most)
    if context.principal is not None:
        _check_text(context.principal, "principal", limits.token_bytes)
    if request_id is not None and not request_id.isprintable():
        # Line ends and terminal escapes would forge what a log says.
        raise Invalid("context.request_id has characters that cannot be printed")
    timeout_ms = context.timeout_ms
    if timeout_ms is not None and not 1 <= timeout_ms <= limits.timeout_max_ms:
        raise Invalid(f"context.timeout_ms is not within 1 and {limits.timeout_max_ms}")
    if context.hops is not None and context.hops < 0:
        raise Invalid("context.hops is below 0")
    if context.peer_version is not None and context.peer_version != PROTOCOL_VERSION:
        raise OtherProtocol("the host that asks", context.peer_version)


def _check_text(value: object, name: str, max_bytes: int) -> None:
    if not isinstance(value, str):
        raise Invalid(f"context.{name} is not UTF-8")
    if len(value) > max_bytes or (not value.isascii() and len(value.encode()) > max_bytes):
        raise Invalid(f"context.{name} is longer than {max_bytes} bytes")


def text_fault(struct: Any) -> str | None:
    """Return the name of a field of `struct`, or of a struct in it, with a `string` that is not UTF-8; None: no field.
    Such a string is `bytes`, on which the methods of texts fail."""
    for spec in struct.thrift_spec.values():
        value = getattr(struct, spec[1])
        if value and (found := _fault(spec[0], spec[2], value, spec[1])) is not None:
            return found
    return None


def _fault(ttype: int, of: Any, value: Any, name: str) -> str | None:
    if ttype == STRING:
        return None if isinstance(value, str) else name
    if ttype == STRUCT:
        return text_fault(value)
    parts: list[tuple[Any, Any]] = []
    if ttype == LIST:
        parts = [(of, value)]
    elif ttype == MAP:
        parts = [(of[0], value.keys()), (of[1], value.values())]
    for kind, values in parts:
        inner, below = kind if isinstance(kind, tuple) else (kind, None)
        if inner in (STRING, STRUCT, LIST, MAP):
            found = next((fault for one in values if (fault := _fault(inner, below, one, name)) is not None), None)
            if found is not None:
                return found
    return None
