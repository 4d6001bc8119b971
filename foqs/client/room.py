"""When a worker asks for items, for how many, and which acks go with the request."""

from __future__ import annotations

import threading
from collections.abc import Callable

from foqs.client.leases import Leases
from foqs.client.settler import Ending


class Room:
    """Where the settler's thread passes due acks to the worker's thread, while that one waits for room: the acks make
    the room, and go with the request for the items that take it. A worker with room asks at once, without acks.

    `queued` is how many items wait for a handler; above `refill_at` requests are put off."""

    def __init__(self, leases: Leases, stopping: threading.Event, queued: Callable[[], int], refill_at: int) -> None:
        self._leases = leases
        self._stopping = stopping
        self._queued = queued
        self._refill_at = refill_at
        self._waits = False
        self._acks: list[Ending] = []

    def wait(self) -> tuple[int, list[Ending]]:
        """Return the room for items, and the acks to send with the request; these make more room. Returns at once when
        the worker stops."""
        leases = self._leases
        with leases.change:
            self._waits = True
            leases.change.wait_for(self._ends)
            self._waits = False
            acks, self._acks = self._acks, []
            return leases.room, acks

    def offer(self, acks: list[Ending]) -> bool:
        """Give `acks` to the thread in `wait`. Return whether it takes them."""
        with self._leases.change:
            waits = self._waits and not self._acks and not self._stopping.is_set() and self.low
            if not waits or self._leases.room + len(acks) <= 0:
                return False
            self._acks = acks
            self._leases.change.notify_all()
            return True

    @property
    def low(self) -> bool:
        """Whether few items wait for a handler."""
        return self._queued() <= self._refill_at

    def _ends(self) -> bool:
        return self._stopping.is_set() or bool(self._acks) or (self._leases.room > 0 and self.low)
