"""What a push process measures of its requests: their ends and times, by target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Literal

from foqs.counters import Histogram
from foqs.push.replies import End

SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Outcome = End | Literal["cut off"]
"""`cut off`: the process, or the target, ended within the request. The item comes again, without an attempt counted."""


class Meter:
    """Counts on the event loop of the process. `requests` is by target and outcome, `seconds` and `in_flight` by
    target."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, Outcome]] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(partial(Histogram, SECONDS))
        self.in_flight: Counter[str] = Counter()

    @contextmanager
    def request(self, target: str) -> Iterator[list[Outcome]]:
        """Measure one request. Its outcome is put into the list; without one it was cut off."""
        ended: list[Outcome] = []
        began = monotonic()
        self.in_flight[target] += 1
        try:
            yield ended
        finally:
            self.in_flight[target] -= 1
            self.seconds[target].observe(monotonic() - began)
            self.requests[target, ended[0] if ended else "cut off"] += 1
