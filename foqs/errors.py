"""Errors as callers see them: one code, one message, and whether a retry can help.

Two attributes decide what the receiver may do: `retryable` (the same call may succeed later) and `outcome_known` (False
only if the change may have been made, and the host cannot tell).
"""

from __future__ import annotations

from typing import Any, TypeVar

from foqs.enums import NamedInt
from foqs.order import KeyHome
from foqs.travel import TravellingError

PROTOCOL_VERSION = 1
"""The version of the requests and answers between hosts. A change that older hosts would misread needs a higher one."""


class Code(NamedInt):
    """The numbers of `ErrorCode` in the IDL."""

    INVALID = 1
    NOT_FOUND = 2
    STALE_LEASE = 3
    OVERLOADED = 4
    UNAVAILABLE = 5
    OUTCOME_UNKNOWN = 6
    UNAUTHENTICATED = 7
    FORBIDDEN = 8
    NOT_OWNER = 9
    CONFLICT = 10


class FoqsError(TravellingError):
    """Base of every error of foqs. `retry_after_ms` is a hint, or None. The client library sets `request_id` on the
    errors of a request: the hosts' logs have the same id."""

    code: Code = Code.UNAVAILABLE
    retryable = False
    outcome_known = True
    request_id: str | None = None

    def __init__(self, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms


class Invalid(FoqsError):
    """The input is wrong and will be refused again."""

    code = Code.INVALID


class NotFound(FoqsError):
    """There is no such item, or it was removed."""

    code = Code.NOT_FOUND


class StaleLease(FoqsError):
    """The lease given is not the item's current lease."""

    code = Code.STALE_LEASE


class Overloaded(FoqsError):
    """A bounded buffer is full; nothing was changed."""

    code = Code.OVERLOADED
    retryable = True


class Unavailable(FoqsError):
    """The shard, the host or the connection cannot be used now; nothing was changed."""

    code = Code.UNAVAILABLE
    retryable = True


class NotServed(Unavailable):
    """The host does not serve the item's shard now: nothing was changed, and another host may serve it.

    On the wire it is NOT_OWNER between hosts, and for clients UNAVAILABLE with `retry_after_ms` 0; see `wire_code`.
    """

    def __init__(self, message: str = "the item's shard is not served here now") -> None:
        super().__init__(message, retry_after_ms=0)


class KeyElsewhere(NotServed):
    """The items of an order key are in another shard than its hash slot (`home`), or they no longer are. Between
    hosts."""

    def __init__(self, home: KeyHome) -> None:
        where = "not in this shard" if home.empty else f"in shard {home.shard}"
        super().__init__(f"the items of the order_key are {where}")
        self.home = home


class OtherProtocol(Unavailable):
    """Another host of the cluster has another protocol version: neither host takes requests of the other."""

    def __init__(self, host: str, version: int) -> None:
        lower = version < PROTOCOL_VERSION
        remedy = f"upgrade foqs on {host}, or stop that host" if lower else "upgrade foqs on this host"
        super().__init__(
            f"{host} has protocol version {version} of foqs, and this host has version {PROTOCOL_VERSION}: {remedy}"
        )


class OutcomeUnknown(FoqsError):
    """The change may or may not have been made. Repeating an enqueue could store the item twice."""

    code = Code.OUTCOME_UNKNOWN
    outcome_known = False


class NotSent(Unavailable):
    """The other side did not receive the whole request: nothing was changed."""


class Unreachable(NotSent):
    """No connection was made: the server refuses it, or TLS, or the address leads to no server."""


class LostReply(OutcomeUnknown):
    """The request was sent, and no usable reply came."""


class RequestTooLarge(Invalid):
    """The request does not fit a frame; nothing was sent."""


class Conflict(FoqsError):
    """The settings have another version than the caller expects: read them again. Or an item cannot be changed now,
    because a consumer has leased it, or because it has ended."""

    code = Code.CONFLICT


class Unauthenticated(FoqsError):
    """The caller did not prove that it is a principal."""

    code = Code.UNAUTHENTICATED


class Forbidden(FoqsError):
    """The caller may not do this."""

    code = Code.FORBIDDEN


E = TypeVar("E", bound=FoqsError)


def named(error: E, request_id: str) -> E:
    """Return `error` with `request_id`, in its traceback too, if it has none: the hosts' logs have the same id."""
    if error.request_id is None:
        error.request_id = request_id
        error.add_note(f"request id: {request_id}")
    return error


def caused(error: E, cause: BaseException) -> E:
    """Return `error`, chained to its cause without being raised; about the same request."""
    error.__cause__ = cause
    if isinstance(cause, FoqsError) and cause.request_id is not None:
        named(error, cause.request_id)
    return error


_BY_CODE: dict[int, type[FoqsError]] = {
    int(cls.code): cls
    for cls in (
        Invalid, NotFound, StaleLease, Overloaded, Unavailable, OutcomeUnknown, Unauthenticated, Forbidden,
        Conflict,
    )
}  # fmt: skip


def from_code(code: int, message: str, retry_after_ms: int | None = None) -> FoqsError:
    """Return the typed error of an `ErrorCode`; a code this version does not know is a plain `FoqsError`."""
    if code == Code.NOT_OWNER or (code == Code.UNAVAILABLE and retry_after_ms == 0):
        return NotServed(message)
    return _BY_CODE.get(code, FoqsError)(message, retry_after_ms)


def item_error(error: Any) -> FoqsError:
    """Return the typed error of an ItemError or RequestError."""
    home = getattr(error, "home", None)
    if home is not None:
        return KeyElsewhere(KeyHome(home.shard or 0, home.stamp or 0, bool(home.empty)))
    message = error.message if isinstance(error.message, str) else ""
    return from_code(error.code or 0, message, error.retry_after_ms)


def wire_code(error: FoqsError, request: Any) -> int:
    """Return the `ErrorCode` of an answer to `request` (None: it could not be decoded).

    NOT_OWNER is for hosts only, which send `peer_version`.
    """
    context = None if request is None else request.context
    if isinstance(error, NotServed) and context is not None and context.peer_version is not None:
        return int(Code.NOT_OWNER)
    return int(error.code)
