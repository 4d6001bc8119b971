"""Signals to a process that serves.

Not by the event loop's own handlers: it takes them away when it closes, and then a signal that comes while the
interpreter still ends would make a failure of an end in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_ENDING, signal.SIGHUP)


def on_stop(stop: Callable[[], None]) -> None:
    """Has SIGTERM and SIGINT call `stop` on the running loop."""
    for number in _ENDING:
        _on(number, stop)


def on_hangup(do: Callable[[], None]) -> None:
    """Has SIGHUP call `do` on the running loop."""
    _on(signal.SIGHUP, do)


def _on(number: signal.Signals, do: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def heard(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(do)

    signal.signal(number, heard)
    _wake(loop)


def _wake(loop: asyncio.AbstractEventLoop) -> None:
    """Has signals wake the loop: one that comes just before it waits would else be heard when it wakes the next time.
    uvloop sees to that by itself, asyncio's own loop only for handlers of its own."""
    known = signal.set_wakeup_fd(-1)
    if known == -1:
        woken, known = os.pipe()  # both stay open as long as the process: what is written after the loop is no error
        for end in (woken, known):
            os.set_blocking(end, False)
        loop.add_reader(woken, os.read, woken, 4096)
    signal.set_wakeup_fd(known, warn_on_full_buffer=False)


@contextmanager
def last_work() -> Iterator[None]:
    """After it signals change nothing any more: the interpreter would give them back their defaults while it ends."""
    try:
        yield
    finally:
        # Blocked first: one that was noticed and has no handler any more is told of as an error.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        for number in _HEARD:
            signal.signal(number, signal.SIG_IGN)
