# Written by hand, as is its twin.
"""What asynchronous code waits with, by the names of its blocking twin. The event loop is the lock of all its state."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from foqs.errors import Invalid


class WrongLoop(Invalid):
    """An asynchronous client belongs to the event loop in which it made its first call."""


class Owner:
    """The event loop that a client belongs to."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def check(self) -> None:
        """Raises WrongLoop if another loop runs than at the first call. Raises RuntimeError if none runs."""
        running = asyncio.get_running_loop()
        if running is self._loop:
            return
        if self._loop is None:
            self._loop, self._pid = running, os.getpid()
        elif self._pid != os.getpid():
            raise WrongLoop("this client works in the process that forked this one: make another one in the child")
        else:
            raise WrongLoop("this client belongs to another event loop: make one in each event loop")


class Lock:
    """Guards nothing: no other task runs between two awaits."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Condition(Lock):
    """Wakes tasks. It passes on the wake-up of a task that was cancelled."""

    def __init__(self, _lock: Lock | None = None) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True after a wake-up, False after the time."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.notify()
            raise
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)
        return True

    async def wait_for(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return the last answer of `ready`: True, or False after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not ready():
                    await self.wait()
        except TimeoutError:
            return ready()
        return True

    def notify(self, count: int = 1) -> None:
        for waiter in self._waiters:
            if count and not waiter.done():
                waiter.set_result(None)
                count -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    def __init__(self) -> None:
        self._set = False
        self._change = Condition()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._change.notify_all()

    async def wait(self, timeout_s: float | None = None) -> bool:
        return await self._change.wait_for(self.is_set, timeout_s)


class Background:
    """A task that is started when it is needed. The work sets `running` to False before it ends."""

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self.running = False
        self._name = name
        self._work = work
        self._task: asyncio.Task[object] | None = None

    def begin(self) -> None:
        """Start the task unless it runs."""
        if not self.running:
            self._task = asyncio.get_running_loop().create_task(self._work(), name=self._name)
            self.running = True

    async def end(self) -> None:
        """Cancel the task, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


def renew_after_fork(_thing: object) -> None:
    """A forked child has no use for an asynchronous client: its event loop is the parent's. See `Owner`."""


def when_forgotten(_thing: object, _close: Callable[[], object]) -> None:
    """The tasks of a client that is not closed end with its event loop."""
