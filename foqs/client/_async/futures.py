# Written by hand, as is its twin.
"""The future of one item of an AsyncProducer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

from foqs.client.unread import Unread
from foqs.travel import Local


class ItemFuture(Local, asyncio.Future[int]):
    """Notes whether a caller reads the outcome: by `await`, `result`, `exception` or a callback."""

    is_read = False
    unread: tuple[Unread, Exception] | None = None
    counted: tuple[dict[str, int], str] | None = None
    instead = "await it, and send the result"
    _begun = False

    def set_running_or_notify_cancel(self) -> bool:
        """Note that the item is sent. Return False if the caller has cancelled it."""
        self._begun = not self.cancelled()
        return self._begun

    def running(self) -> bool:
        return self._begun and not self.done()

    def leave(self) -> None:
        """A forked child has another event loop."""

    def set_result(self, result: int) -> None:
        if not self.cancelled():  # while the item was sent
            super().set_result(result)

    def set_exception(self, exception: type | BaseException) -> None:
        if not self.cancelled():
            super().set_exception(exception)
            self._log_traceback = False  # close() of the producer counts it

    def result(self) -> int:
        self._read_at_end()
        return super().result()

    def exception(self) -> BaseException | None:
        self._read_at_end()
        return super().exception()

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._read()
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """The caller may have waited, and no longer do so."""
        removed = super().remove_done_callback(fn)
        self.is_read = self.is_read and self.done()
        return removed

    def __await__(self) -> Generator[Any, None, int]:
        try:
            return (yield from super().__await__())
        finally:
            self._read_at_end()

    __iter__ = __await__

    def _read_at_end(self) -> None:
        if self.done():
            self._read()

    def _read(self) -> None:
        self.is_read = True
        if self.unread is not None:
            self.unread[0].read(self)
