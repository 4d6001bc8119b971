"""When a failed item is delivered again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b


class RetryKind(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The delay before attempt n + 1 is `first_ms` (constant), `first_ms + (n - 1) * step_ms` (linear) or
    `first_ms * factor ** (n - 1)` (exponential), at most `longest_ms`. `jitter` is the part of it that is random, 0 to
    1: with 0.5 the delay is between half of it and all of it."""

    kind: RetryKind
    first_ms: int
    step_ms: int
    factor: float
    longest_ms: int
    jitter: float

    def delay_ms(self, attempt: int, item_id: int) -> int:
        """Return the delay after the failure of `attempt` (1 or more). The same attempt of an item always gets the same
        delay, so a repeated nack does not move it."""
        full_ms = min(self._full_ms(attempt), self.longest_ms)
        return round(full_ms * (1 - self.jitter * _share(item_id, attempt)))

    def _full_ms(self, attempt: int) -> float:
        if self.kind is RetryKind.CONSTANT:
            return self.first_ms
        if self.kind is RetryKind.LINEAR:
            return self.first_ms + (attempt - 1) * self.step_ms
        try:
            return self.first_ms * self.factor ** (attempt - 1)
        except OverflowError:
            return self.longest_ms


def _share(item_id: int, attempt: int) -> float:
    """Return a number from 0 (included) to 1 (excluded), spread evenly over items and attempts."""
    digest = blake2b(b"%d %d" % (item_id, attempt), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
