"""What a task knows and says about its own run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from foqs.client import AsyncJob
from foqs.travel import Local


class Flag(Protocol):
    """An event of a run. In a thread `wait(seconds)` blocks, in a coroutine it is awaited."""

    def is_set(self) -> bool: ...
    def wait(self, timeout_s: float | None = None, /) -> Any: ...


class Job(Local):
    """The run of a task, which a parameter annotated with this class gets. Methods return at once, in threads and
    coroutines alike: the worker sends what they say soon, and before the outcome of the task.

    id, attempt, headers    of the item; the first attempt is 1
    lease_lost              a `Flag`: another worker may have the task now. Return then: nothing that the job says is
                            sent, and the task runs again, unless another worker has done it
    stopping                a `Flag`: the worker stops, and waits for its grace
    time_is_up              a `Flag`: the task's time limit has passed

    In a plain call of a task, outside a worker, nothing is sent: `id` is 0, and no flag is ever set.
    """

    instead = "send job.id, and end the job in the process of its worker"

    def __init__(
        self, job: AsyncJob | None = None, threads: Callable[[Callable[[], object]], object] | None = None
    ) -> None:
        """`threads(call)` has `call` called in the event loop of the worker, for a task that runs in a thread."""
        self._job = job
        self._threads = threads
        self.id = 0 if job is None else job.id
        self.attempt = 1 if job is None else job.attempt
        self.headers: Mapping[str, str] = {} if job is None else job.headers
        self.lease_lost = self._flag(job and job.lease_lost)
        self.time_is_up = self._flag(job and job.time_is_up)
        self.stopping = self._flag(job and job.stopping)

    def time_left_ms(self) -> float | None:
        """The rest of the task's time limit, at least 0; None without a limit."""
        return None if self._job is None else self._job.time_left_ms()

    @property
    def last_checkpoint(self) -> bytes | None:
        """The last checkpoint, of this attempt or an earlier one; None before the first."""
        return None if self._job is None else self._job.last_checkpoint

    def progress(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Show that `done` steps of `total` are done; `text`: at most 256 bytes. Raises Invalid for a wrong value."""
        if self._job is not None:
            self._job.progress(done, total, text)

    def checkpoint(self, state: bytes) -> None:
        """Keep `state`, at most 64 KiB, for the next attempt. Raises Invalid for a wrong value."""
        if self._job is not None:
            self._job.checkpoint(state)

    def log(self, text: str) -> None:
        """Add a line to the log of the item, of which the last 8 KiB stay. Raises Invalid for a wrong value."""
        if self._job is not None:
            self._job.log(text)

    def release(self) -> None:
        """Have the task come again at once, without an attempt counted, however it ends now."""
        if self._job is not None:
            self._job.release()

    def _flag(self, event: Any) -> Flag:
        if event is not None and self._threads is None:
            return event  # type: ignore[no-any-return]
        if event is None or self._threads is None:
            return threading.Event()
        flag = _FlagOfThread(event.is_set)
        self._threads(lambda: event.then(flag.set))
        return flag


class _FlagOfThread(threading.Event):
    """`found` is called when the task finds it set: the worker has to know that."""

    def __init__(self, found: Callable[[], object]) -> None:
        super().__init__()
        self._found = found

    def is_set(self) -> bool:
        return super().is_set() and bool(self._found())

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout) and bool(self._found())
