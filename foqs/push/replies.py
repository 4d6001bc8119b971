"""What the reply of an endpoint does with the item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Literal

from foqs.bounds import LIMITS

MOST_BODY_BYTES = LIMITS.result_bytes
"""A longer body of a reply is not read to its end, and is no result."""
LEAST_AFTER_MS, MOST_AFTER_MS = 1_000, 3_600_000
"""A `Retry-After` counts as at least and at most this: an endpoint that says 0 is not asked again at once."""

End = Literal["ack", "release", "fail", "reject"]


@dataclass(frozen=True)
class Reply:
    """The answer of an endpoint. `status`: None if no whole reply came, and `error` says why. `body`: None if it is
    longer than 64 KiB. `retry_after`: that header."""

    status: int | None = None
    body: bytes | None = b""
    retry_after: str | None = None
    error: str = ""


@dataclass(frozen=True)
class Settlement:
    """What happens to the item. `release`: it comes again after `delay_ms`, without an attempt counted. `reason` of the
    other ends than `ack`, for operators. `result` of an ack, if there is one."""

    end: End
    reason: str = ""
    delay_ms: int = 0
    result: bytes | None = None


_ENDS: Mapping[int, End] = dict.fromkeys((401, 403, 404, 408, 409, 425, 429), "fail")
"""Of the statuses 4xx: these may go away. Each other one rejects."""
_AFTER = frozenset((429, 503))
"""Statuses whose `Retry-After` counts."""
_OF_HUNDREDS: Mapping[int, End] = {2: "ack", 4: "reject"}
"""By the first digit of the status. Each other one fails."""


def settlement(reply: Reply, now_s: float) -> Settlement:
    """Return what happens to the item. `now_s`: Unix epoch seconds."""
    status = reply.status
    if status is None:
        return Settlement("fail", reply.error)
    reason = f"status {status}{_phrase(status)}"
    if status in _AFTER and (after_ms := after_of(reply.retry_after, now_s)) is not None:
        return Settlement("release", reason, after_ms)
    end = _ENDS.get(status) or _OF_HUNDREDS.get(status // 100, "fail")
    return Settlement("ack", result=reply.body or None) if end == "ack" else Settlement(end, reason)


def after_of(value: str | None, now_s: float) -> int | None:
    """Return the milliseconds that a `Retry-After` says, within the bounds; None if it says none. It has seconds, or
    the date of an HTTP header.

    >>> after_of("120", 0.0), after_of("Thu, 01 Jan 1970 00:02:00 GMT", 60.0), after_of("soon", 0.0)
    (120000, 60000, None)
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        after_ms = MOST_AFTER_MS if len(text) > 9 else int(text) * 1000
    else:
        try:
            date = parsedate_to_datetime(text)
            after_ms = round((date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now_s) * 1000)
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(after_ms, LEAST_AFTER_MS), MOST_AFTER_MS)


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""
