"""Calls that wait for a process, in a queue for each hook of a topic. Pure: the caller's clock is passed in.

The queue whose calls took the least time is served next (start-time fair queueing by microseconds). A queue whose
script is new, was slow or was ended by its bounds is a suspect: a process of its own serves suspects, so they hold up
no proven script. A suspect has one message in flight. A breaker stops the calls of a hook that fails again and again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from foqs.figures import MOST_ERRORS
from foqs.hooks.frames import FLUSH_CALLS, NAMESPACES, SCRIPTS, SLICE_MS, text_of
from foqs.hooks.protocol import Entries, Failed, HookCall, HookKey, Kind

FAILURES_IN_A_ROW = 3
OPEN_MS = 10_000
UNBOUNDED = 1 << 30
_ERROR_CHARACTERS = 300


class HookError(NamedTuple):
    """A failure of a script. `at_ms`: epoch milliseconds."""

    at_ms: int
    kind: Kind
    text: str


class Breaker:
    """Of one hook of a topic. `FAILURES_IN_A_ROW` failures open it for `OPEN_MS`; then one call is tried, whose success
    closes it and whose failure opens it again.

    `script` is the name of the script that was called last. `last_errors`: the last one comes last."""

    __slots__ = ("_failed", "_open_until_ms", "_trying", "calls", "failures", "last_errors", "script")

    def __init__(self) -> None:
        self.script = ""
        self.calls = 0
        self.failures = 0
        self.last_errors: deque[HookError] = deque(maxlen=MOST_ERRORS)
        self._failed = 0
        self._open_until_ms: int | None = None
        self._trying = False

    @property
    def is_open(self) -> bool:
        """Return True while calls are stopped, and until the outcome of the call that is tried."""
        return self._open_until_ms is not None

    def retry_after_ms(self, now_ms: int) -> int:
        """Return the time until a call is tried; 0 while calls run, or while a call is tried."""
        return 0 if self._open_until_ms is None else max(0, self._open_until_ms - now_ms)

    def room(self, now_ms: int) -> int:
        """Return the number of calls that may begin now. None may while one is tried: they wait for its outcome."""
        if self._open_until_ms is None:
            return UNBOUNDED
        return int(not self._trying and now_ms >= self._open_until_ms)

    def begin(self) -> None:
        """Note that a call begins."""
        self._trying = self._open_until_ms is not None

    def abandon(self) -> None:
        """Note that a call that began has no outcome."""
        self._trying = False

    def succeeded(self, script: str) -> None:
        self.script = script
        self.calls += 1
        self._failed = 0
        if self._trying:
            self._trying = False
            self._open_until_ms = None

    def failed(self, script: str, failure: Failed, now_ms: int, at_ms: int) -> bool:
        """Count a failure that blames the script. `now_ms`: by the clock of `room`; `at_ms`: by the host's clock.

        Return True if the failure opened the breaker."""
        self.script = script
        self.calls += 1
        self.failures += 1
        self._failed += 1
        self.last_errors.append(HookError(at_ms, failure.kind, failure.text[:_ERROR_CHARACTERS]))
        closed = self._open_until_ms is None
        if self._trying or (closed and self._failed >= FAILURES_IN_A_ROW):
            self._trying = False
            self._failed = 0
            self._open_until_ms = now_ms + OPEN_MS
            return True
        return False


QUICK_US = 1_000
"""A script whose calls take longer, on average, is a suspect."""
PROBATION_CALLS = 8
"""A suspect that answers this number of calls in a row quickly is proven."""
_SHARE = 8  # of the new value in the average
CALL_US = 10
"""Time of a call in the process without its script."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A call that has no outcome yet. `request` and `at` say where its outcome goes.

    `queued`: it is in a queue, and no process has it. `repeats`: how often a process ended that had it in flight.
    `over`: it has its outcome."""

    call: HookCall
    request: object
    at: int
    repeats: int = 0
    over: bool = False
    queued: bool = False


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
        """Return True if it has at most one message in flight."""
        return self.suspect or (self.breaker is not None and self.breaker.is_open)

    def begin(self, digest: bytes, average_us: float | None) -> None:
        """Note another script of the next calls. `average_us`: of its calls in other topics, if it is proven there."""
        self.digest = digest
        self.suspect = average_us is None
        self.quick_calls = 0 if self.suspect else PROBATION_CALLS
        self.average_us = average_us or 0.0

    def took(self, elapsed_us: int) -> None:
        """Learn from a call that returned."""
        average_us = self.average_us
        average_us += (elapsed_us - average_us) / (_SHARE if average_us > 0.0 else 1)
        average_us = max(average_us, 1.0)
        self.average_us = average_us
        if elapsed_us <= QUICK_US and average_us <= QUICK_US:
            self.quick_calls += 1
            if self.quick_calls >= PROBATION_CALLS:
                self.suspect = False
        elif average_us > QUICK_US or elapsed_us > SLICE_MS * 1_000:
            self.quick_calls = 0
            self.suspect = True

    def ended(self, elapsed_us: int) -> None:
        """Learn from a call that its bounds ended, or that ended its process."""
        self.average_us = max(self.average_us, float(elapsed_us), 2.0 * QUICK_US)
        self.quick_calls = 0
        self.suspect = True

    @property
    def portion(self) -> int:
        """Most calls of the next message: a part of a slice full; one call of an unknown script."""
        if not self.average_us:
            return 1
        slice_us = SLICE_MS * 1_000 // (5 if self.suspect else 2)
        return max(1, min(FLUSH_CALLS, int(slice_us / self.expected_us)))

    @property
    def expected_us(self) -> float:
        """What a call takes, with the work around it."""
        return self.average_us + CALL_US


class Portion:
    """Calls of one message, of one queue. A call with a reply leaves it. `each_us`: expected time of a call."""

    __slots__ = ("calls", "each_us", "queue", "timeout_ms")

    def __init__(self, queue: CallQueue, calls: list[Waiting], timeout_ms: int) -> None:
        self.queue = queue
        self.calls = calls
        self.timeout_ms = timeout_ms
        self.each_us = queue.expected_us

    @property
    def expected_us(self) -> float:
        return self.each_us * len(self.calls)


class FairQueues:
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


_LOADED_BYTES_A_MS = 10_000


class Known:
    """The scripts and settings that a process knows, by number, and the messages that send it more. The host chooses
    the numbers. The process forgets nothing by itself, so both sides know the same after each message."""

    def __init__(self) -> None:
        self._scripts: OrderedDict[tuple[str, bytes], _Script] = OrderedDict()
        self._entries: OrderedDict[str, _Entries] = OrderedDict()
        self._number = 0

    def messages(self, calls: Sequence[Waiting], timeout_ms: int) -> tuple[list[str], int]:
        """Return the messages that run calls of one script, with one version of the settings; and the milliseconds that
        the process may take for new scripts and settings."""
        call = calls[0].call
        sent: list[str] = []
        entries = self._entries_of(call.entries, sent)
        script = self._script_of(call, sent)
        loaded_bytes = 0
        if script.entries != entries.number:  # its Lua state takes the entries over
            script.entries = entries.number
            loaded_bytes = entries.size_bytes
        loaded_bytes += sum(map(len, sent))
        items = [one.call.item for one in calls]
        names = list(items[0])
        if all(list(item) == names for item in items):
            columns = list(map(list, zip(*[item.values() for item in items], strict=True)))
        else:
            names = list(dict.fromkeys([name for item in items for name in item]))
            columns = [[item.get(name) for item in items] for name in names]
        function = "" if call.compiles else call.key.hook
        run = ["run", script.number, entries.number, function, timeout_ms, names, columns, len(items)]
        sent.append(text_of(run))
        return sent, loaded_bytes // _LOADED_BYTES_A_MS

    def _script_of(self, call: HookCall, sent: list[str]) -> _Script:
        identity = (call.script.ns, call.script.digest)
        script = self._scripts.get(identity)
        if script is not None:
            self._scripts.move_to_end(identity)
            return script
        if len(self._scripts) == SCRIPTS:
            _, oldest = self._scripts.popitem(last=False)
            sent.append(text_of(["forget_script", oldest.number]))
        self._number += 1
        script = self._scripts[identity] = _Script(self._number)
        sent.append(text_of(["script", script.number, call.script.name, call.script.source]))
        return script

    def _entries_of(self, given: Entries, sent: list[str]) -> _Entries:
        known = self._entries.get(given.ns)
        if known is not None and known.given is given:
            self._entries.move_to_end(given.ns)
            return known
        if known is not None:
            sent.append(text_of(["forget_entries", self._entries.pop(given.ns).number]))
        elif len(self._entries) == NAMESPACES:
            _, oldest = self._entries.popitem(last=False)
            sent.append(text_of(["forget_entries", oldest.number]))
        self._number += 1
        text = text_of(["entries", self._number, dict(given.values)])
        sent.append(text)
        made = self._entries[given.ns] = _Entries(given, self._number, len(text))
        return made


@dataclass(slots=True)
class _Script:
    """`entries`: the number of the settings that the script's Lua state has."""

    number: int
    entries: int = 0


class _Entries(NamedTuple):
    given: Entries
    number: int
    size_bytes: int
