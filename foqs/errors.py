"""What can go wrong, as seen by a caller: one code, one message, and whether a retry can help.

Every error knows two things that decide what its receiver may do: `retryable` (the same call may succeed later)
and `outcome_known` (False only when the change may have been made and nobody can tell yet).
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The numbers of `ErrorCode` in the IDL."""

    INVALID = 1
    NOT_FOUND = 2
    STALE_LEASE = 3
    OVERLOADED = 4
    UNAVAILABLE = 5
    OUTCOME_UNKNOWN = 6
    UNAUTHENTICATED = 7
    FORBIDDEN = 8


class FoqsError(Exception):
    """Base of every error of foqs. `retry_after_ms` is a hint, None where there is none. `request_id` is set by the
    client library, for what a host said or did not say: it stands in the hosts' logs."""

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
    """There is no such item (any more)."""

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
    """The item's shard is not served by this host (any more): nothing was changed here, and another host may serve it.
    Callers see the hint 0."""

    def __init__(self, message: str = "the item's shard is not served here now") -> None:
        super().__init__(message, retry_after_ms=0)


class OutcomeUnknown(FoqsError):
    """The change may or may not have been made. Repeating an enqueue could store the item twice."""

    code = Code.OUTCOME_UNKNOWN
    outcome_known = False


class Unauthenticated(FoqsError):
    """The caller did not prove who it is."""

    code = Code.UNAUTHENTICATED


class Forbidden(FoqsError):
    """The caller may not do this."""

    code = Code.FORBIDDEN


_BY_CODE: dict[int, type[FoqsError]] = {
    int(cls.code): cls
    for cls in (
        Invalid, NotFound, StaleLease, Overloaded, Unavailable, OutcomeUnknown, Unauthenticated, Forbidden,
    )
}  # fmt: skip


def from_code(code: int, message: str, retry_after_ms: int | None = None) -> FoqsError:
    """The typed error of an `ErrorCode`; a code this version does not know is a plain `FoqsError`."""
    return _BY_CODE.get(code, FoqsError)(message, retry_after_ms)
