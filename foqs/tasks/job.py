"""What a task knows and says about its own run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

from foqs.client import AsyncJob
from foqs.tasks.arguments import Filled
from foqs.tasks.clients import Clients
from foqs.tasks.item_batch import BatchEnd, ItemBatch, end_in
from foqs.travel import Local


class Flag(Protocol):
    """An event of a run. In a thread `wait(seconds)` blocks, in a coroutine it is awaited."""

    def is_set(self) -> bool: ...
    def wait(self, timeout_s: float | None = None, /) -> Any: ...


class Job(Local, Filled):
    """The run of a task, which a parameter annotated with this class gets. Methods return at once, in threads and
    coroutines alike: the worker sends what they say soon, and before the outcome of the task.

    id, attempt, headers    of the item; the first attempt is 1
    lease_lost              a `Flag`: another worker may have the task now. Return then: nothing that the job says is
                            sent, and the task runs again, unless another worker has done it
    stopping                a `Flag`: the worker stops, and waits for its grace
    time_is_up              a `Flag`: the task's time limit has passed

    In a plain call of a task, outside a worker, nothing is sent: `id` is 0, no flag is ever set, and there is no batch.
    """

    instead = "send job.id, and end the job in the process of its worker"

    def __init__(self, job: AsyncJob | None = None, *, in_thread: bool = False, clients: Clients | None = None) -> None:
        """`in_thread`: the task runs in a thread, and not in the event loop of the worker. `clients`: of the App."""
        self._job = job
        self._clients = clients
        self._in_thread = in_thread

    @property
    def id(self) -> int:
        return 0 if self._job is None else self._job.id

    @property
    def attempt(self) -> int:
        return 1 if self._job is None else self._job.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self._job is None else self._job.headers

    @property
    def batch(self) -> ItemBatch | None:
        """The batch that the task is a member of, which takes further members from it; None without one."""
        if self._job is None or self._clients is None or self._job.item.batch is None:
            return None
        return ItemBatch(self._clients, self._job.item.batch)

    @property
    def batch_end(self) -> BatchEnd | None:
        """How the batch has ended whose `on_success` or `on_end` this task is; None for another task. Raises Invalid
        for headers that no batch has."""
        return end_in(self.headers)

    # Made when a task asks for them: most tasks do not, and an event costs more than the rest of the job.

    @cached_property
    def lease_lost(self) -> Flag:
        return threading.Event() if self._job is None else self._flag(self._job.lease_lost)

    @cached_property
    def time_is_up(self) -> Flag:
        return threading.Event() if self._job is None else self._flag(self._job.time_is_up)

    @cached_property
    def stopping(self) -> Flag:
        return threading.Event() if self._job is None else self._flag(self._job.stopping)

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
        flag: Flag = event.for_threads() if self._in_thread else event
        return flag
