"""What blocking code waits with, by the names of its asynchronous twin."""

import threading
from atexit import register as at_exit
from atexit import unregister as not_at_exit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Condition, Event, RLock
from threading import Lock as Mutex
from threading import Thread as Guarded
from threading import get_ident as current_ident
from typing import TypeVar
from weakref import ref

from foqs.client.guard import Background, guarded_thread, renew_after_fork, run_to_end

T = TypeVar("T")

AWAITS = False
CANCEL_S = 0.0  # a thread cannot be cancelled
Lock = RLock  # a signal handler may call the client
of_process = cache
_watched: set[ref[object]] = set()


def when_forgotten(thing: object, close: Callable[[], object]) -> None:
    """Call `close` when the thing is gone: a client that is just forgotten leaves no thread.

    `weakref.finalize` goes through all finalizers at the end of the process, and fails if a thread drops a client then.
    """

    def gone(known: ref[object]) -> None:
        _watched.discard(known)
        close()

    _watched.add(ref(thing, gone))


class SeenEvent(Event):
    """`seen`: a caller was answered that it is set."""

    seen = False

    def is_set(self) -> bool:
        found = super().is_set()
        if found:  # not `|=`: a thread that has found it not set could write that over the answer of another one
            self.seen = True
        return found

    def wait(self, timeout: float | None = None) -> bool:
        found = super().wait(timeout)
        if found:
            self.seen = True
        return found


def current_name() -> str:
    return threading.current_thread().name


def from_signal(call: Callable[[T], object]) -> Callable[[T], object]:
    return call


@contextmanager
def when_cancelled(_call: Callable[[], None]) -> Iterator[None]:
    """A thread is not cancelled."""
    yield


__all__ = [
    "AWAITS",
    "CANCEL_S",
    "TIMEOUT_MAX",
    "Background",
    "Condition",
    "Event",
    "Guarded",
    "Lock",
    "Mutex",
    "SeenEvent",
    "SimpleQueue",
    "at_exit",
    "current_ident",
    "current_name",
    "from_signal",
    "guarded_thread",
    "not_at_exit",
    "of_process",
    "renew_after_fork",
    "run_to_end",
    "when_cancelled",
    "when_forgotten",
]
