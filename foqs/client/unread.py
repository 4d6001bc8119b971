"""The failures of a producer's items that no caller read, and the errors that a future raises."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from foqs.client.guard import is_a, kind_of, text_of
from foqs.errors import Code, FoqsError


class Readable(Protocol):
    """The future of an item."""

    is_read: bool
    unread: tuple[Unread, Exception] | None
    counted: tuple[dict[str, int], str] | None


class Unread:
    """Counts the failures that no caller has read, since the last `take`. Thread-safe. Holds numbers rather than
    futures: a Producer may live for months and its caller read nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._kinds: dict[str, int] = {}
        self._first: dict[str, Exception] = {}

    def failed(self, future: Readable, error: Exception) -> None:
        """Count `error` as the outcome of `future`, unless a caller reads that."""
        future.unread = self, error  # before the look at `read`: a caller that reads now sees it, or is seen here
        self.left(future, error)

    def left(self, future: Readable, error: Exception) -> None:
        """Count the outcome of `future`, as the caller that wanted to read it went away, or there was none."""
        with self._lock:
            if future.is_read or future.counted is not None:
                return
            kind = error.code.name if isinstance(error, FoqsError) else kind_of(error)
            if not self._kinds.get(kind):
                self._first[kind] = error
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            future.counted = self._kinds, kind

    def read(self, future: Readable) -> None:
        with self._lock:
            if future.counted is not None:
                kinds, kind = future.counted
                future.counted = None
                kinds[kind] -= 1

    def take(self) -> UnreadFailures | None:
        """Return the failures since the last call, None if there are none."""
        with self._lock:
            kinds, first = {kind: number for kind, number in self._kinds.items() if number}, self._first
            self._start()
        if not kinds:
            return None
        problem = UnreadFailures(kinds, first)
        problem.__cause__ = first[next(iter(kinds))]
        return problem


class UnreadFailures(FoqsError):
    """Items given to a Producer failed, and no caller read their futures.

    count    how many
    unknown  how many of them may be stored (OutcomeUnknown)
    kinds    how many by the name of the error's code (of another exception: its class)
    """

    def __init__(self, kinds: Mapping[str, int], first: Mapping[str, Exception]) -> None:
        self.kinds = dict(kinds)
        self.count = sum(kinds.values())
        self.unknown = kinds.get(Code.OUTCOME_UNKNOWN.name, 0)
        self.outcome_known = not self.unknown
        if self.unknown:
            self.code = Code.OUTCOME_UNKNOWN
        parts = [f"{n} {kind} (first: {text_of(first[kind])})" for kind, n in kinds.items()]
        doubt = (
            f" {self.unknown} may be stored: enqueued again, they could be stored twice, unless they have a dedup_key."
            if self.unknown
            else ""
        )
        super().__init__(
            f"the Producer did not get {self.count} item{'s' * (self.count != 1)} stored, and no caller read why: "
            f"{'; '.join(parts)}.{doubt} Call result() of each future, or give Producer an on_error"
        )


def raisable(error: BaseException, when: str) -> Exception:
    """Return `error`, or an Exception in its place: SystemExit would end the thread that asks for a result, and no
    future takes StopIteration. `when` completes the text."""
    if is_a(error, Exception) and not is_a(error, StopIteration):
        return error  # type: ignore[return-value]  # it is one
    raisable = RuntimeError(f"{kind_of(error)} was raised {when}")
    raisable.__cause__ = error
    return raisable
