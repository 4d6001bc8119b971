"""Errors of calls, the same for clients and for hosts that call other hosts, and their form on the wire."""

from __future__ import annotations

from typing import Any

from foqs.errors import FoqsError, Invalid, NotSent, OutcomeUnknown, wire_code
from foqs.idl import idl
from foqs.wire.protocol import INVALID_MESSAGE_TYPE, PROTOCOL_ERROR, UNKNOWN_METHOD, WRONG_METHOD_NAME

_MESSAGE_CHARACTERS = 1000
_NOT_STARTED = (UNKNOWN_METHOD, INVALID_MESSAGE_TYPE, WRONG_METHOD_NAME, PROTOCOL_ERROR)
"""Types of Thrift's own error reply that a server sends before it calls a handler."""


class Malformed(Exception):
    """The frame is not one message of the protocol. Its connection cannot be trusted any more."""


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
    """The codec gives a string that is not UTF-8 as bytes."""
    return message if isinstance(message, str) else ""
