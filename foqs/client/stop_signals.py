"""Signals that ask a process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def stop_signals() -> Iterator[SimpleQueue[int | None]]:
    """A queue that gets the numbers of SIGTERM and SIGINT while in the block (of the main thread)."""
    caught: SimpleQueue[int | None] = SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {
        number: signal.signal(number, lambda got, _frame: caught.put(got)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
