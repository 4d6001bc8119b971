"""The audit log: requests that were refused because a proof or a right is missing, and administrative requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from foqs.bounds import LogThrottle
from foqs.idl import trace_of
from foqs.rpc.call import Call

log = structlog.get_logger("foqs.audit")

REFUSED_A_SECOND = 10
ADMIN_A_SECOND = 100
_IDS = 10
_TEXT = 64


class Audit:
    """Bounded, so that no caller fills a disk with it: `left_out` in a line counts the lines that were not written
    before it. `now_s` is monotonic."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._refusals = LogThrottle(REFUSED_A_SECOND)
        self._admin = LogThrottle(ADMIN_A_SECOND)

    def refused(self, call: Call, why: str) -> None:
        left_out = self._refusals.take(self._now_s())
        if left_out is not None:
            log.warning("audit.refused", why=why, **_said(call), left_out=left_out)

    def admin(self, call: Call) -> None:
        """The request was started; its outcome is not part of the line."""
        left_out = self._admin.take(self._now_s())
        if left_out is not None:
            log.info("audit.admin", **_SUBJECTS[call.method](call.request), **_said(call), left_out=left_out)


def _items(request: Any) -> dict[str, Any]:
    ids = request.ids or ()
    return {"items": len(ids), "first": ids[:_IDS]}


def _settings(request: Any) -> dict[str, Any]:
    """Return the first keys that are set and removed, without their values."""
    keys, remove = list(request.entries or ()), list(request.remove or ())
    return {
        "ns": _short(request.ns or ""),
        "entries": len(keys),
        "first": [_short(key) for key in keys[:_IDS]],
        "remove": len(remove),
        "first_removed": [_short(key) for key in remove[:_IDS]],
    }


def _topic(request: Any) -> dict[str, Any]:
    return {"ns": _short(request.ns or ""), "topic": _short(request.topic or "")}


def _redrive(request: Any) -> dict[str, Any]:
    return {**_topic(request), "count": request.count, "dry_run": bool(request.dry_run)}


_SUBJECTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "DeleteItems": _items,
    "PutSettings": _settings,
    "ReleaseLeases": _topic,
    "RedriveItems": _redrive,
}
"""The fields about the subject of each administrative request."""


def _short(text: str | bytes) -> str:
    return _one_line(str(text)[:_TEXT])


def _said(call: Call) -> dict[str, Any]:
    """Return the fields about the caller: the first name of a certificate, and nothing of a token."""
    context = call.request.context
    said: dict[str, Any] = {"method": call.method, "address": call.peer}
    if context is not None and context.principal is not None:
        said["who"] = context.principal
    elif call.certified:
        said["certificate"] = _one_line(call.certified[0][:128])
    if context is not None and context.request_id is not None:
        said["request_id"] = context.request_id
    return {**said, **trace_of(context)}


def _one_line(text: str) -> str:
    """Return the caller's text so that it cannot look like a line of the log."""
    return text if text.isprintable() else ascii(text)
