# Written by hand, as is its twin.
"""What asynchronous code waits with, by the names of its blocking twin. The event loop is the lock of all its state."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from queue import Empty
from typing import Any, Generic, TypeVar

from foqs.errors import Invalid

T = TypeVar("T")

AWAITS = True
"""Handlers are coroutine functions."""
CANCEL_S = 1.0
"""A handler whose task was cancelled has this long to end."""
TIMEOUT_MAX = 3600.0
"""The longest wait in seconds."""
_making = threading.Lock()
Mutex = asyncio.Lock
"""Is held over waits, other than a `Lock`."""


class WrongLoop(Invalid):
    """An asynchronous client belongs to the event loop in which it made its first call."""


class Owner:
    """The event loop that a client or a producer belongs to."""

    def __init__(self, what: str = "client") -> None:
        self._what = what
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
            raise WrongLoop(
                f"this {self._what} works in the process that forked this one: make another one in the child"
            )
        else:
            raise WrongLoop(f"this {self._what} belongs to another event loop: make one in each event loop")

    @property
    def here(self) -> bool:
        """True if it belongs to an event loop of this process."""
        return self._loop is not None and self._pid == os.getpid()


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
            if timeout_s is None:
                await waiter
            else:
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
        if timeout_s is None:
            while not ready():
                await self.wait()
            return True
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
                try:
                    waiter.set_result(None)
                except RuntimeError:  # its event loop is closed
                    continue
                count -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    def __init__(self) -> None:
        self._set = False
        self._change = Condition()
        self._for_threads: threading.Event | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._change.notify_all()
        if self._for_threads is not None:
            self._for_threads.set()

    def for_threads(self) -> threading.Event:
        """Return the event of threads that is set with this one, always the same. Any thread may call this."""
        with _making:
            if self._for_threads is None:
                self._for_threads = self._made_for_threads()
        if self._set:  # after the assignment, as `set` looks for it after this
            self._for_threads.set()
        return self._for_threads

    def _made_for_threads(self) -> threading.Event:
        return threading.Event()

    async def wait(self, timeout_s: float | None = None) -> bool:
        return await self._change.wait_for(self.is_set, timeout_s)


class SeenEvent(Event):
    """`seen`: a caller was answered that it is set."""

    seen = False

    def is_set(self) -> bool:  # `wait` asks it
        found = super().is_set()
        if found:  # not `|=`: a thread that has found it not set could write that over the answer of another one
            self.seen = True
        return found

    def _made_for_threads(self) -> threading.Event:
        return _SeenByThread(self.is_set)


class _SeenByThread(threading.Event):
    """`see` is called when a thread finds it set."""

    def __init__(self, see: Callable[[], object]) -> None:
        super().__init__()
        self._see = see

    def is_set(self) -> bool:
        return super().is_set() and bool(self._see())

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout) and bool(self._see())


async def until_done(future: asyncio.Future[Any]) -> None:
    """Wait for the end of a future or a task, which goes on if this is cancelled: as `asyncio.shield`, in less time.
    Nothing is logged about an exception that comes after that."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(ended: asyncio.Future[Any]) -> None:
        if not done.done():
            done.set_result(None)
        elif not ended.cancelled():
            ended.exception()  # or asyncio logs that nothing has read it

    future.add_done_callback(wake)
    await done


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
            self._task = quiet_task(self._work(), self._name)
            self.running = True

    async def end(self) -> None:
        """Cancel the task, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


async def run_to_end(
    failed: Callable[[BaseException], object], work: Callable[..., Coroutine[Any, Any, object]], *args: object
) -> None:
    """Run the work of a task. What ends it by an error is given to `failed`."""
    try:
        await work(*args)
    except asyncio.CancelledError as error:
        failed(error)
        raise
    except GeneratorExit:  # the event loop was left with the task in it, and may be closed
        with suppress(RuntimeError):
            failed(asyncio.CancelledError())
        raise
    except BaseException as error:  # noqa: BLE001 - `failed` reports it, and SystemExit would end the event loop
        failed(error if _runs() else asyncio.CancelledError())  # a wait may have replaced the GeneratorExit


def _runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def quiet_task(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Return a task of a client, a producer or a worker. The end of a program that did not close them says nothing of
    their tasks: a client warns by itself, and the other ones log their losses."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does
    return task


class Guarded:
    """Work in a task, with the methods of a thread."""

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._run = run
        self._task: asyncio.Task[None] | None = None

    @property
    def ident(self) -> int | None:
        """None before the start."""
        return None if self._task is None else id(self._task)

    def start(self) -> None:
        self._task = quiet_task(self._run(), self._name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def join(self, timeout_s: float | None = None) -> None:
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout_s)


def guarded_task(
    name: str,
    failed: Callable[[BaseException], object],
    work: Callable[..., Coroutine[Any, Any, object]],
    *args: object,
) -> Guarded:
    """Return a task for `work`, not started. What ends it by an error is given to `failed`."""
    return Guarded(name, partial(run_to_end, failed, work, *args))


def current_ident() -> int:
    return id(asyncio.current_task())


def current_name() -> str:
    """Return the name of the task that runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return "an event loop that was left"
    return "a callback of the event loop" if task is None else task.get_name()


class SimpleQueue(Generic[T]):
    def __init__(self) -> None:
        self._queue = asyncio.Queue[T]()
        self.put = self._queue.put_nowait
        self.qsize = self._queue.qsize

    async def get(self, block: bool = True, timeout_s: float | None = None) -> T:
        """Raises queue.Empty after `timeout_s`."""
        if timeout_s is None:
            return await self._queue.get()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._queue.get()
        except TimeoutError:
            raise Empty from None

    def get_nowait(self) -> T:
        """Raises queue.Empty."""
        try:
            return self._queue.get_nowait()
        except asyncio.QueueEmpty:
            raise Empty from None


def from_signal(call: Callable[[T], object]) -> Callable[[T], object]:
    """Return `call` as a handler of a signal may use it, which runs between any two steps of the main thread."""
    loop = asyncio.get_running_loop()
    return lambda value: loop.call_soon_threadsafe(call, value)


@asynccontextmanager
async def when_cancelled(call: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Call `call` if the block is cancelled, before it ends."""
    try:
        yield
    except asyncio.CancelledError:
        await call()
        raise


def of_process(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that makes one thing for each worker: event loops share none."""
    return make


def at_exit(_call: Callable[..., object], *_args: object, **_kwargs: object) -> None:
    """Nothing can be awaited when the process ends: the event loop has ended before."""


not_at_exit = at_exit


def renew_after_fork(_thing: object) -> None:
    """A forked child has no use for an asynchronous client: its event loop is the parent's. See `Owner`."""


def when_forgotten(_thing: object, _close: Callable[[], object]) -> None:
    """The tasks of a client that is not closed end with its event loop."""
