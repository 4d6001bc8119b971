"""How long a client waits before it repeats a request; whether it does: `foqs.second_answer`."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PAUSE_MS = 20.0
LONGEST_PAUSE_MS = 2_000.0


def pause_ms(tries: int, retry_after_ms: int | None, rng: Callable[[], float]) -> float:
    """Return the wait after the `tries`-th failure (from 1). `retry_after_ms`, the server's hint, is a lower bound;
    `rng` gives [0, 1)."""
    if retry_after_ms is not None and retry_after_ms > 0:
        return retry_after_ms * (1 + rng() / 2)
    longest = min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2.0 ** min(tries - 1, 30))
    return longest * (0.5 + rng() / 2)
