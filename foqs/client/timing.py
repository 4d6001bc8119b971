"""When to send: a batch that is due, and a request that failed. Pure: the caller gives the time and the randomness."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from foqs.checks import I64_MAX, LONGEST_MS, check_int, check_number
from foqs.client.guard import guarded
from foqs.errors import FoqsError

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
WaitStrategy = Callable[["RetryCallState"], float]
StopStrategy = Callable[["RetryCallState"], bool]


class Batcher(Generic[T]):
    """Entries in the order in which they came, numbered from 0. A batch is due when it is full, or when its oldest
    entry has waited for `linger_ms`.

    Invariants: `bytes` is the sum of the sizes held; `first` is the number of the oldest entry held (or of
    the next one). A batch is never empty, and never above `max_items`; above `max_bytes` only when it is a
    single entry.
    """

    def __init__(self, max_items: int, max_bytes: int, linger_ms: float) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.linger_ms = linger_ms
        self.bytes = 0
        self.first = 0
        self._entries: deque[tuple[T, int, float]] = deque()
        self._hurried = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: T, size_bytes: int, now_ms: float) -> bool:
        """Return True if a batch is due earlier than before, so that a thread that waits for it looks again."""
        before_ms = self.due_at_ms()
        self._entries.append((entry, size_bytes, now_ms))
        self.bytes += size_bytes
        full = len(self._entries) >= self.max_items or self.bytes >= self.max_bytes
        return before_ms is None or (full and before_ms > 0)

    def deliver_now(self) -> int:
        """Stop the linger of the entries held now. Return the number of the first later entry."""
        self._hurried = self.first + len(self._entries)
        return self._hurried

    def due_at_ms(self) -> float | None:
        """Return the time from which `take` has a reason, None while nothing is held."""
        if not self._entries:
            return None
        full = len(self._entries) >= self.max_items or self.bytes >= self.max_bytes
        if full or self.first < self._hurried:
            return 0.0
        return self._entries[0][2] + self.linger_ms

    def take(self) -> list[T]:
        """Return the next batch, due or not."""
        batch: list[T] = []
        size = 0
        while self._entries and len(batch) < self.max_items:
            entry, entry_bytes, _ = self._entries[0]
            if batch and size + entry_bytes > self.max_bytes:
                break
            self._entries.popleft()
            batch.append(entry)
            size += entry_bytes
        self.bytes -= size
        self.first += len(batch)
        return batch

    def drain(self) -> list[T]:
        """Return all entries, and hold none."""
        return [entry for batch in iter(self.take, []) for entry in batch]

    def waiting(self) -> list[T]:
        """Return the entries that no batch has yet."""
        return [entry for entry, _, _ in self._entries]

    def __repr__(self) -> str:
        return f"Batcher({len(self)} entries, {self.bytes} bytes, first is number {self.first})"


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first_ms`, then multiplied by `factor` after each attempt, never above `longest_ms`; a random part of
    `jitter` (0 to 1) of it is left out, so that what failed together does not come back together.

    >>> Backoff(first_ms=100, longest_ms=1_000, jitter=0).delay_ms(3, lambda: 0.0)
    400
    """

    first_ms: int = 1_000
    factor: float = 2.0
    longest_ms: int = 300_000
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """Raises Invalid."""
        check_int("first_ms", self.first_ms, 0, I64_MAX, zero="at once")
        check_number("factor", self.factor, 1)
        check_int("longest_ms", self.longest_ms, 0, I64_MAX, zero="at once")
        check_number("jitter", self.jitter, 0, 1)

    def delay_ms(self, attempt: int, rng: Callable[[], float]) -> int:
        """After the `attempt`-th failure (from 1); `rng` gives [0, 1)."""
        delay = float(self.first_ms)
        for _ in range(1, attempt):
            delay *= self.factor
            if delay >= self.longest_ms:
                break
        return int(min(delay, self.longest_ms) * (1 - self.jitter * rng()))


def _state(tries: int, error: Exception, begun_s: float, now_s: float) -> RetryCallState:
    """Return what strategies of tenacity know of a call: its begin, its failures, and the last error."""
    from tenacity import RetryCallState

    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    state.attempt_number, state.start_time = tries, begun_s
    state.set_exception((type(error), error, None))
    state.outcome_timestamp = now_s
    return state


class Strategies:
    """When a failed request is sent again, as `wait` and `stop` say, which are strategies of tenacity: the pause in
    seconds by the state of the call, and True if the call ends. Without `wait` the pauses are the client's own."""

    def __init__(self, wait: WaitStrategy | None, stop: StopStrategy | None) -> None:
        self._wait = wait
        self._stop = stop

    def pause_s(
        self, tries: int, error: FoqsError, hint_ms: int | None, begun_s: float, now_s: float, rng: Callable[[], float]
    ) -> float | None:
        """Return the wait before the request is repeated after its `tries`-th failure (from 1), None: it is not. The
        server's hint `hint_ms` is a lower bound. A strategy that fails does not count."""
        own_s = pause_ms(tries, hint_ms, rng) / 1000
        if self._wait is None and self._stop is None:
            return own_s
        state = _state(tries, error, begun_s, now_s)
        given_s = None if self._wait is None else guarded("retry_wait of the client", _seconds, self._wait, state)
        state.upcoming_sleep = own_s if given_s is None else max(given_s, (hint_ms or 0) / 1000)
        if self._stop is not None and guarded("retry_stop of the client", self._stop, state):
            return None
        return state.upcoming_sleep


def _seconds(wait: WaitStrategy, state: RetryCallState) -> float:
    seconds = wait(state)
    check_number("the wait of retry_wait", seconds, 0, LONGEST_MS / 1000)
    return float(seconds)


REQUEST_AGAIN = Backoff(first_ms=20, longest_ms=2_000)


def pause_ms(tries: int, retry_after_ms: int | None, rng: Callable[[], float]) -> float:
    """Return the wait before a request is repeated, after its `tries`-th failure (from 1). `retry_after_ms`, the
    server's hint, is a lower bound; `rng` gives [0, 1)."""
    if retry_after_ms is not None and retry_after_ms > 0:
        return retry_after_ms * (1 + rng() / 2)
    return REQUEST_AGAIN.delay_ms(tries, rng)
