"""How long a failed item, or a server that is away, is left alone. The caller gives the randomness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foqs.checks import I64_MAX, check_int, check_number
from foqs.client.guard import SafeLog
from foqs.client.outcome_arguments import delay_argument

log = SafeLog()


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


def checked_delay_ms(backoff: Backoff, attempt: int, rng: Callable[[], float]) -> int:
    """Return the delay by `backoff`, or by the default one if that raises an error or gives no whole milliseconds: it
    may be a class of the user, and the item must not wait for its repair."""
    try:
        delay_ms = delay_argument(backoff.delay_ms(attempt, rng))
        if delay_ms is not None:
            return delay_ms
    except BaseException as error:
        log.error("the backoff of the worker gave no delay; the default one counts", exc_info=error)
    return Backoff().delay_ms(attempt, rng)
