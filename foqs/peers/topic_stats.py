"""GetTopicStats of a cluster: every host counts the topic's items in its own shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from foqs.engine.release import MOST_WORKERS
from foqs.errors import FoqsError
from foqs.idl import idl

Counts = tuple[int, int, int]
"""Items that are ready, delayed and leased."""
Workers = Iterable[Any]
"""WorkerStats: names, numbers of leases, and the ages of the oldest."""
Counted = Callable[[Counts, list[Any], list[str]], None]
"""(counts of all hosts, WorkerStats of all hosts, addresses of the hosts that did not answer)."""


class TopicCounts:
    """Adds the answers of the hosts at `addresses` to the `counts` and `workers` of this one, and calls `done` when it
    has them."""

    def __init__(self, counts: Counts, workers: Workers, addresses: Collection[str], done: Counted) -> None:
        self._counts = counts
        self._workers: dict[str, tuple[int, int]] = {}
        self._left = len(addresses)
        self._missing: list[str] = []
        self._done = done
        self._add(workers)
        if not addresses:
            self._end()

    def answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        """Take the answer of a host."""
        if error is not None:
            self._missing.append(address)
        else:
            ready, delayed, leased = self._counts
            more = (response.ready or 0, response.delayed or 0, response.leased or 0)
            self._counts = (ready + more[0], delayed + more[1], leased + more[2])
            self._add(response.workers or ())
        self._left -= 1
        if not self._left:
            self._end()

    def _add(self, workers: Workers) -> None:
        for one in workers:
            held, oldest_ms = self._workers.get(one.worker, (0, 0))
            self._workers[one.worker] = held + one.held, max(oldest_ms, one.oldest_lease_ms)

    def _end(self) -> None:
        oldest_first = sorted(self._workers.items(), key=lambda one: (-one[1][1], one[0]))[:MOST_WORKERS]
        workers = [idl.WorkerStats(name, held, oldest_ms) for name, (held, oldest_ms) in oldest_first]
        self._done(self._counts, workers, sorted(self._missing))
