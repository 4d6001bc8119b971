"""The signals that ask a worker to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from foqs.client.guard import renew_after_fork
from foqs.stop_count import StopCount


@contextmanager
def stop_signals(caught: Callable[[int], object]) -> Iterator[None]:
    """Call `caught` with the number of each SIGTERM and SIGINT that counts while in the block, if the main thread is in
    it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = StopCount()

    def heard(number: int, _frame: object) -> None:
        if count.counts(monotonic()):
            caught(number)

    before = _Before({number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield
    finally:
        before.restore()


class _Before:
    """The handlers of signals before the block. A forked child has them again: no thread of it reads the queue, and a
    signal has to end it. The default takes the place of a handler of C code, which Python cannot set again."""

    def __init__(self, before: dict[signal.Signals, Any]) -> None:
        self._before = before
        renew_after_fork(self)

    def after_fork(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def restore(self) -> None:
        self.after_fork()
        self._before = {}
