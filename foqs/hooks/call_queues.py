"""Calls that wait for a process, in a queue for each hook of a topic. Pure.

The queue whose calls took the least time is served next (start-time fair queueing by microseconds). A queue whose
script is new, was slow or was ended by its bounds is a suspect: a process of its own serves suspects, so they hold up
no proven script. A suspect has one message in flight.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from foqs.hooks.breaker import Breaker
from foqs.hooks.frames import FLUSH_CALLS, SLICE_MS
from foqs.hooks.protocol import HookCall, HookKey

QUICK_US = 1_000
"""A script whose calls take longer, on average, is a suspect."""
PROBATION_CALLS = 8
"""A suspect that answers so many calls in a row quickly is one no more."""
_SHARE = 8  # of the new value in the average
CALL_US = 10
"""What a call takes in the process besides its script."""


class Waiting:
    """A call that has no outcome yet. `request` and `at` say where its outcome goes.

    `queued`: it is in a queue, and no process has it. `repeats`: how often a process ended that had it in flight.
    `over`: it has its outcome."""

    __slots__ = ("at", "call", "over", "queued", "repeats", "request")

    def __init__(self, call: HookCall, request: object, at: int) -> None:
        self.call = call
        self.request = request
        self.at = at
        self.repeats = 0
        self.over = False
        self.queued = False


class CallQueue:
    """The calls of a hook of a topic. `breaker`: None for calls that have none. `spent_us`: its place in the turns."""

    __slots__ = (
        "average_us", "breaker", "calls", "digest", "in_flight", "key", "listed", "quick_calls", "spent_us", "suspect",
    )  # fmt: skip

    def __init__(self, key: HookKey, breaker: Breaker | None) -> None:
        self.key = key
        self.breaker = breaker
        self.calls: deque[Waiting] = deque()
        self.digest = b""
        self.suspect = True
        self.quick_calls = 0
        self.average_us = 0.0
        self.spent_us = 0.0
        self.in_flight = 0  # messages
        self.listed = False

    @property
    def idle(self) -> bool:
        return not self.calls and not self.in_flight

    @property
    def alone(self) -> bool:
        """Whether it has at most one message in flight."""
        return self.suspect or (self.breaker is not None and self.breaker.is_open)

    def begin(self, digest: bytes, average_us: float | None) -> None:
        """Note another script of the next calls. `average_us`: of its calls in other topics, if it is proven there."""
        self.digest = digest
        self.suspect = average_us is None
        self.quick_calls = 0 if self.suspect else PROBATION_CALLS
        self.average_us = average_us or 0.0

    def took(self, elapsed_us: int) -> None:
        """Learn from a call that returned."""
        known = self.average_us > 0.0
        self.average_us += (elapsed_us - self.average_us) / (_SHARE if known else 1)
        self.average_us = max(self.average_us, 1.0)
        if max(elapsed_us, self.average_us) <= QUICK_US:
            self.quick_calls += 1
            if self.quick_calls >= PROBATION_CALLS:
                self.suspect = False
        elif self.average_us > QUICK_US or elapsed_us > SLICE_MS * 1_000:
            self.quick_calls = 0
            self.suspect = True

    def ended(self, elapsed_us: int) -> None:
        """Learn from a call that its bounds ended, or that ended its process."""
        self.average_us = max(self.average_us, float(elapsed_us), 2.0 * QUICK_US)
        self.quick_calls = 0
        self.suspect = True

    @property
    def portion(self) -> int:
        """Most calls of the next message: those that fit in a part of a slice; one call of an unknown script."""
        if not self.average_us:
            return 1
        slice_us = SLICE_MS * 1_000 // (5 if self.suspect else 2)
        return max(1, min(FLUSH_CALLS, int(slice_us / self.expected_us)))

    @property
    def expected_us(self) -> float:
        """What a call takes, with the work around it."""
        return self.average_us + CALL_US


class Portion:
    """Calls of one message, of one queue. Those with a reply leave it. `each_us`: what a call was expected to take."""

    __slots__ = ("calls", "each_us", "queue", "timeout_ms")

    def __init__(self, queue: CallQueue, calls: list[Waiting], timeout_ms: int) -> None:
        self.queue = queue
        self.calls = calls
        self.timeout_ms = timeout_ms
        self.each_us = queue.expected_us

    @property
    def expected_us(self) -> float:
        return self.each_us * len(self.calls)


class Turns:
    """The queues of one class that have calls which may be sent, by what they spent."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, CallQueue]] = []
        self._number = 0
        self._now_us = 0.0

    def list(self, queue: CallQueue) -> None:
        """Give the queue a turn. It gets no credit for the time in which it had no calls."""
        queue.listed = True
        queue.spent_us = max(queue.spent_us, self._now_us)
        self._number += 1
        heappush(self._heap, (queue.spent_us, self._number, queue))

    def next(self) -> CallQueue | None:
        """Take the queue whose turn it is out of the list."""
        if not self._heap:
            return None
        self._now_us, _, queue = heappop(self._heap)
        queue.listed = False
        return queue

    def __len__(self) -> int:
        return len(self._heap)
