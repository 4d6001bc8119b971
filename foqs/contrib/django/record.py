"""What the attempts of a task leave with its item: as the checkpoint until the task ends, and with the result."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MOST_ATTEMPTS = 100
"""The last ones are recorded."""
_LAST_MS = 250_000_000_000_000
"""Dates end soon after it, in the year 9999."""
_TRACEBACK_CHARS = 8_000
"""The end of a longer traceback is kept: it has the exception."""


class Attempt(NamedTuple):
    """One run of a task: the attempt `number` of its item, from `at_ms` until `end_ms` (0: it has not ended), in Unix
    epoch milliseconds of the worker's clock. `error` is the path of the class of its exception, "" without one."""

    number: int
    worker: str
    at_ms: int
    end_ms: int = 0
    error: str = ""
    traceback: str = ""

    def failed(self, error: BaseException) -> Attempt:
        kind = type(error)
        text = "".join(traceback.format_exception(error))
        return self._replace(error=f"{kind.__module__}.{kind.__qualname__}", traceback=text[-_TRACEBACK_CHARS:])


def packed(
    attempts: Sequence[Attempt], most_bytes: int, encode: Callable[[dict[str, Any]], bytes], **more: Any
) -> bytes:
    """Return the attempts and `more` as `encode` writes them. If that has more than `most_bytes`, the oldest tracebacks
    are left out, and at last the attempts."""
    kept = list(attempts[-MOST_ATTEMPTS:])
    body = encode({**more, "attempts": kept})
    for at, attempt in enumerate(kept):
        if len(body) > most_bytes and attempt.traceback:
            kept[at] = attempt._replace(traceback="")
            body = encode({**more, "attempts": kept})
    return body if len(body) <= most_bytes else encode({**more, "attempts": []})


def unpacked(said: Any) -> list[Attempt]:
    """Return the attempts of what `packed` has written, none of anything else: any client may have written it."""
    try:
        attempts = [
            Attempt(int(number), str(worker), int(at_ms), int(end_ms), str(error), str(text))
            for number, worker, at_ms, end_ms, error, text in said["attempts"]
        ]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return []
    return attempts if all(0 <= ms <= _LAST_MS for one in attempts for ms in (one.at_ms, one.end_ms)) else []
