"""Futures of a Producer, and the count of failures that no caller read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from foqs.client.guard import guarded, kind_of, text_of
from foqs.client.returned import call_to_end
from foqs.errors import Code, FoqsError
from foqs.travel import Local

_CALLBACK = "a callback of an item's future"


class UnreadFailures(FoqsError):
    """Items given to a Producer failed, and no caller read their futures.

    count    how many
    unknown  how many of them may be stored all the same (OutcomeUnknown)
    kinds    how many by their error's code, by name (of another exception: its class)
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


class _Tally:
    """Counts since the last report, and the first error of each kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.first: dict[str, Exception] = {}

    def add(self, error: Exception) -> str:
        kind = error.code.name if isinstance(error, FoqsError) else kind_of(error)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.first.setdefault(kind, error)
        return kind

    def remove(self, kind: str) -> None:
        self.kinds[kind] -= 1
        if not self.kinds[kind]:
            del self.kinds[kind], self.first[kind]


class Unread:
    """Thread-safe. Holds numbers rather than futures: a Producer may live for months and its caller read nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tally = _Tally()

    def failed(self, future: ItemFuture, error: Exception) -> None:
        """Count `error` as the outcome of `future`, unless a caller reads that."""
        future.unread = self, error  # before the look at `read`: a caller that reads now sees it, or is seen here
        self._count(future, error)

    def read(self, future: ItemFuture) -> None:
        with self._lock:
            if future.counted is not None:
                tally, kind = future.counted
                future.counted = None
                tally.remove(kind)

    def left(self, future: ItemFuture, error: Exception) -> None:
        """A caller that wanted to read `future` went away without its outcome."""
        self._count(future, error)

    def take(self) -> UnreadFailures | None:
        """The failures since the last call; None if there are none."""
        with self._lock:
            tally, self._tally = self._tally, _Tally()
            if not tally.kinds:
                return None
            problem = UnreadFailures(tally.kinds, tally.first)
            problem.__cause__ = next(iter(tally.first.values()))
            return problem

    def _count(self, future: ItemFuture, error: Exception) -> None:
        with self._lock:
            if not future.is_read and future.counted is None:
                future.counted = self._tally, self._tally.add(error)


class ItemFuture(Local, Future[int]):
    """Notes whether a caller reads the outcome: by `result`, `exception` or a callback. A read that times out is none.

    Attributes have their defaults in the class, as a Producer makes one of these for each item.
    """

    is_read = False
    unread: tuple[Unread, Exception] | None = None
    counted: tuple[_Tally, str] | None = None
    instead = "send what its result() returns"

    def leave(self) -> None:
        """Called in a forked child, which does not learn the outcome. The callbacks are the parent's."""
        self._condition = threading.Condition()  # a thread of the parent may have held it
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        if not self.done():
            self.set_exception(RuntimeError("the process that forked this one sends the item: ask for its id there"))

    def result(self, timeout: float | None = None) -> int:
        self.is_read = True
        try:
            return super().result(timeout)
        except BaseException:
            self._ended()
            del self  # it keeps the error, whose traceback holds this frame
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.is_read = True
        try:
            return super().exception(timeout)
        finally:
            self._ended()

    def add_done_callback(self, fn: Callable[[Future[int]], Any]) -> None:
        self._read()
        super().add_done_callback(lambda future: guarded(_CALLBACK, call_to_end, _CALLBACK, fn, future))

    def _ended(self) -> None:
        if self.done():
            self._read()
            return
        self.is_read = False
        if self.unread is not None:  # it failed just now
            unread, error = self.unread
            unread.left(self, error)

    def _read(self) -> None:
        self.is_read = True
        if self.unread is not None:
            self.unread[0].read(self)
