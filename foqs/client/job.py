"""The job that a Worker gives to a handler beside the item."""

from __future__ import annotations

import threading
from collections.abc import Callable

from foqs.client.held import Held
from foqs.client.items import Item


class Retry(Exception):
    """Raised by a handler that wants its item again: after `delay_ms` (default: the worker's backoff), with
    `metadata` in place of the item's (default: `job.metadata`, else kept)."""

    def __init__(self, delay_ms: int | None = None, metadata: bytes | None = None) -> None:
        super().__init__("the handler asks for another attempt")
        self.delay_ms = delay_ms
        self.metadata = metadata


class Job:
    """One handler at work on one item.

    item        the leased item
    lease_lost  an Event: the lease is over, or could not be extended in time; another consumer may get the item
    stopping    an Event: the worker is asked to stop, and waits for its grace
    metadata    set it to record progress: it replaces the item's metadata if this attempt fails
    """

    def __init__(self, held: Held, extend: Callable[[Held, int], None], stopping: threading.Event) -> None:
        """`extend(held, lease_ms)` extends the lease at once."""
        self.item: Item = held.item
        self.stopping = stopping
        self.metadata: bytes | None = None
        self._held = held
        self._extend = extend

    @property
    def lease_lost(self) -> threading.Event:
        return self._held.event()

    def extend(self, lease_ms: int) -> None:
        """Makes the lease end `lease_ms` from now at the earliest (the worker extends it as well, by itself).
        Raises StaleLease or NotFound when it is lost.
        """
        self._extend(self._held, lease_ms)


Call = Callable[[Item, Job], object]
