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
    """Return `nack` without the part that `why`, the text of the error, begins with, or without metadata and delay if
    it names none. The reason names the refused part. None if there is nothing to leave out, so repeated calls end.

    `delay_ms` takes the place of a delay that a handler asked for: the item has failed then, so a retry rule counts.
    """
    named = why.partition(" ")[0]
    if named == _REASON:
        return _with_shorter_reason(nack)
    parts = (named,) if named in (_METADATA, _DELAY) else (_METADATA, _DELAY)
    left_out = [part for part in parts if getattr(nack, part) is not None]
    if not left_out:
        return None
    reason = _noted(nack.reason, left_out, why)
    repaired = replace(nack, reason=reason, metadata=None if _METADATA in left_out else nack.metadata)
    if _DELAY in left_out:
        return replace(repaired, failed=True, delay_ms=None if nack.failed else delay_ms)
    return repaired


def _with_shorter_reason(nack: Nack) -> Nack | None:
    if nack.reason is None:
        return None
    shorter = bounded(nack.reason, SHORT_REASON_BYTES)
    return replace(nack, reason=None if shorter == nack.reason else shorter)


def _noted(reason: str | None, left_out: list[str], why: str) -> str:
    note = bounded(f"sent without {' and '.join(left_out)}, which was refused: {why}", _NOTE_BYTES)
    if not reason:
        return note
    return f"{bounded(reason, REASON_BYTES - len(note.encode()) - 2)}; {note}"
