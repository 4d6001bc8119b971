"""The future of one item of a Producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from foqs.client.guard import call_to_end, guarded
from foqs.client.unread import Unread
from foqs.travel import Local

_CALLBACK = "a callback of an item's future"


class ItemFuture(Local, Future[int]):
    """Notes whether a caller reads the outcome: by `result`, `exception` or a callback. A read that times out is none.

    Attributes have their defaults in the class, as a Producer makes one of these for each item.
    """

    is_read = False
    unread: tuple[Unread, Exception] | None = None
    counted: tuple[dict[str, int], str] | None = None
    instead = "send what its result() returns"

    def leave(self) -> None:
        """End in a forked child, which does not learn the outcome. The callbacks belong to the parent."""
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
