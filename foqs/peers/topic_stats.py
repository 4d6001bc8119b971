"""GetTopicStats of a cluster: every host counts the topic's items in its own shards, and the counts are added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from foqs.engine.stats import MOST_WORKERS, MostReady, TenantCounts, most_ready
from foqs.hooks.call_queues import MOST_ERRORS
from foqs.idl import idl

Counts = tuple[int, int, int]
"""Items that are ready, delayed and leased."""
Workers = Iterable[Any]
"""WorkerStats: names, numbers of leases, the ages of the oldest, and hung handlers."""


class TopicSums:
    """The counts of this host, to which `add` adds the answer of another one. Names of tenants beyond those that a host
    reports are in the sum of the rest."""

    def __init__(self, counts: Counts, workers: Workers, tenants: MostReady, hooks: Sequence[Any] = ()) -> None:
        """`hooks`: HookStats."""
        self.counts = counts
        self._workers: dict[str, tuple[int, int, int]] = {}
        self._tenants = dict(tenants.named())
        self._rest = [tenants.rest]
        self._hooks: dict[str, Any] = {}
        self._add_workers(workers)
        self._add_hooks(hooks)

    def add(self, _address: str, response: Any) -> None:
        """Add the answer of another host."""
        ready, delayed, leased = self.counts
        more = (response.ready or 0, response.delayed or 0, response.leased or 0)
        self.counts = (ready + more[0], delayed + more[1], leased + more[2])
        self._add_workers(response.workers or ())
        self._add_hooks(response.hooks or ())
        for one in response.tenants or ():
            known, more_of_it = self._tenants.get(one.fairness_key, TenantCounts()), _counts_of(one)
            self._tenants[one.fairness_key] = TenantCounts(
                known.ready + more_of_it.ready,
                known.parked + more_of_it.parked,
                max(known.weight, more_of_it.weight),
                known.served + more_of_it.served,
            )
        if response.more_tenants is not None:
            self._rest.append(_counts_of(response.more_tenants))

    def workers(self) -> list[Any]:
        """Return WorkerStats: those with hung handlers first, then the oldest lease first."""
        first = sorted(self._workers.items(), key=lambda one: (not one[1][2], -one[1][1], one[0]))[:MOST_WORKERS]
        return [idl.WorkerStats(name, *counts) for name, counts in first]

    def hooks(self) -> list[Any]:
        """Return HookStats of all hosts."""
        return [self._hooks[name] for name in sorted(self._hooks)]

    def tenants(self, most: int) -> tuple[list[Any], Any]:
        """Return TenantStats of up to `most` tenants, the most ready items first, and of the sums of the rest; None if
        there is no further tenant."""
        found = most_ready(self._tenants.items(), most)
        for rest in self._rest:
            found.add_rest(rest)
        named = found.named()
        weight = sum(counts.turn_weight for _, counts in named) + found.rest.turn_weight
        stats = [_stats(name, counts, weight) for name, counts in named]
        return stats, None if found.rest == TenantCounts() else _stats("", found.rest, weight)

    def _add_workers(self, workers: Workers) -> None:
        for one in workers:
            held, oldest_ms, hung = self._workers.get(one.worker, (0, 0, 0))
            oldest_ms = max(oldest_ms, one.oldest_lease_ms or 0)
            # A worker reports to one host at a time, all of its hung handlers: an older report counts no second time.
            self._workers[one.worker] = held + (one.held or 0), oldest_ms, max(hung, one.hung or 0)

    def _add_hooks(self, hooks: Iterable[Any]) -> None:
        for one in hooks:
            known = self._hooks.get(one.hook)
            if known is None:
                one.calls, one.failures, one.last_errors = one.calls or 0, one.failures or 0, one.last_errors or []
                one.retry_after_ms = one.retry_after_ms or 0
                self._hooks[one.hook] = one
                continue
            known.calls += one.calls or 0
            known.failures += one.failures or 0
            known.breaker_open = known.breaker_open or bool(one.breaker_open)
            known.retry_after_ms = max(known.retry_after_ms, one.retry_after_ms or 0)
            known.last_errors = sorted([*known.last_errors, *(one.last_errors or ())])[-MOST_ERRORS:]


def hook_stats(
    hook: str, script: str, calls: int, failures: int, breaker_open: bool, retry_after_ms: int,
    last_errors: Iterable[tuple[int, str]],
) -> Any:  # fmt: skip
    """Return HookStats of this host; `last_errors` have times in ms."""
    errors = [f"{_utc(at_ms)} {text}" for at_ms, text in last_errors]
    return idl.HookStats(hook, script, calls, failures, breaker_open, retry_after_ms, errors)


def _utc(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _counts_of(stats: Any) -> TenantCounts:
    return TenantCounts(stats.ready or 0, stats.parked or 0, stats.weight or 0, stats.served or 0.0)


def _stats(name: str, counts: TenantCounts, weight: int) -> Any:
    share = counts.turn_weight / weight if weight else 0.0
    return idl.TenantStats(name, counts.weight, counts.ready, counts.parked, counts.served, share)
