"""The handlers of one worker that have a time limit, and those that are over it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from foqs.client.held import Held


class Over(NamedTuple):
    """Work that is over its time limit since now, and how long it has taken."""

    held: Held
    took_s: float


class TimeLimits:
    """Thread-safe. `found` is called once for each work that is over its limit, from the thread that calls `look`."""

    def __init__(self) -> None:
        self.found: Callable[[list[Over]], object] = lambda over: None
        self._lock = threading.Lock()
        self._begun: dict[Held, float] = {}
        self._over: set[Held] = set()

    def __len__(self) -> int:
        """How many handlers are at work."""
        return len(self._begun)

    def begin(self, held: Held, now: float, stop_at: float) -> None:
        """Work on the item begins, and has until `stop_at`."""
        held.time_is_up()
        held.stop_at = stop_at
        with self._lock:
            self._begun[held] = now

    def end(self, held: Held) -> bool:
        """The handler has ended. Return True if it was over its limit."""
        with self._lock:
            self._begun.pop(held, None)
            was_over = held in self._over
            self._over.discard(held)
            return was_over

    @property
    def over_now(self) -> int:
        """How many handlers are over their limit."""
        return len(self._over)

    @property
    def items_over(self) -> int:
        """How many items have no outcome yet because handlers are over their limit."""
        with self._lock:
            return len({held.id for held in self._over if not held.settling})

    def look(self, now: float) -> float:
        """Set `time_is_up` of the work that is over its limit: its lease is not extended any longer. Return when to
        look again, `inf` if there is no need."""
        found = []
        next_at = inf
        with self._lock:
            for held, begun_at in self._begun.items():
                if held in self._over or held.stop_at is None:
                    continue
                if held.stop_at > now:
                    next_at = min(next_at, held.stop_at)
                    continue
                self._over.add(held)
                held.late = True
                held.time_is_up().set()
                found.append(Over(held, now - begun_at))
        if found:
            self.found(found)
        return next_at

    def over(self) -> Counter[str]:
        """Return how many handlers are over their limit now, by the topics of their items."""
        with self._lock:
            return Counter(held.topic for held in self._over)
