"""GetTopicStats of a cluster: every host counts the topic's items in its own shards."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from foqs.errors import FoqsError

Counts = tuple[int, int, int]
"""Items that are ready, delayed and leased."""
Counted = Callable[[Counts, list[str]], None]
"""(counts of all hosts, addresses of the hosts that did not answer)."""


class TopicCounts:
    """Adds the answers of the hosts at `addresses` to the `counts` of this one, and calls `done` when it has them."""

    def __init__(self, counts: Counts, addresses: Collection[str], done: Counted) -> None:
        self._counts = counts
        self._left = len(addresses)
        self._missing: list[str] = []
        self._done = done
        if not addresses:
            done(counts, [])

    def answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        """Take the answer of a host."""
        if error is not None:
            self._missing.append(address)
        else:
            ready, delayed, leased = self._counts
            more = (response.ready or 0, response.delayed or 0, response.leased or 0)
            self._counts = (ready + more[0], delayed + more[1], leased + more[2])
        self._left -= 1
        if not self._left:
            self._done(self._counts, sorted(self._missing))
