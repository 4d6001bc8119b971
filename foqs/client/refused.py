"""The nack that a worker sends in place of a nack that the server, or the codec, refused. Pure.

A nack that is not sent again loses the reason of the failure, and the item waits until its lease ends.
"""

from __future__ import annotations

from dataclasses import replace

from foqs.client.ack_policy import REASON_BYTES, bounded
from foqs.client.items import Nack

SHORT_REASON_BYTES = 64
_NOTE_BYTES = 300
_METADATA, _DELAY, _REASON = "metadata", "delay_ms", "reason"


def without_refused(nack: Nack, why: str, delay_ms: int) -> Nack | None:
    """Return `nack` without the part that `why`, the text of the error, begins with. If it names none, that is the
    metadata if there are any, else the delay. The reason names the refused part. None if there is nothing to leave out,
    so repeated calls end.

    `delay_ms` takes the place of a delay that a handler asked for: the item has failed then, so a retry rule counts.
    """
    named = why.partition(" ")[0]
    if named == _REASON:
        return _with_shorter_reason(nack)
    parts = (named,) if named in (_METADATA, _DELAY) else (_METADATA, _DELAY)
    refused = next((part for part in parts if getattr(nack, part) is not None), None)
    if refused is None:
        return None
    reason = _noted(nack.reason, refused, why)
    if refused == _METADATA:
        return replace(nack, reason=reason, metadata=None)
    return replace(nack, reason=reason, failed=True, delay_ms=None if nack.failed else delay_ms)


def _with_shorter_reason(nack: Nack) -> Nack | None:
    if nack.reason is None:
        return None
    shorter = bounded(nack.reason, SHORT_REASON_BYTES)
    return replace(nack, reason=None if shorter == nack.reason else shorter)


def _noted(reason: str | None, part: str, why: str) -> str:
    note = bounded(f"sent without {part}, which was refused: {why}", _NOTE_BYTES)
    if not reason:
        return note
    return f"{bounded(reason, REASON_BYTES - len(note.encode()) - 2)}; {note}"
