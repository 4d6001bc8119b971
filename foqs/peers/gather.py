"""GetActiveTopics of a cluster: every host is asked for the same page, and the pages are merged.

A page is the first topics behind a cursor, so the first of all pages are the page of the cluster. A host that does not
answer in time is left out: its items cannot be leased now either.

ListFailures of a cluster: every host is asked for the same page of groups, and the pages are merged.

A page is the first groups behind a cursor, so the first of all pages are the page of the cluster.

GetTopicStats of a cluster: every host counts the topic's items in its own shards, and the counts are added up.

GetThrottles of a cluster: hosts report the keys whose flows they have, and those that they coordinate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from foqs.engine.dead_letters import GroupKey, merged
from foqs.engine.stats import MOST_WORKERS, KeyStats, MostReady, TenantCounts, most_ready
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.hooks.call_queues import MOST_ERRORS
from foqs.idl import idl
from foqs.rows import FailureGroup

ANSWER_MS = 2_000


class Pages:
    """The pages of several hosts, each of up to `limit` topics. One of `add` and `add_answer` is called for each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._topics: dict[TopicKey, Any] = {}
        self._more = False

    def add(self, topics: Iterable[Any], *, more: bool) -> None:
        """`more`: the host has topics behind the last one."""
        for topic in topics:
            known = self._topics.setdefault((topic.ns, topic.topic), topic)
            if known is not topic:
                self._topics[topic.ns, topic.topic] = _joined(known, topic)
        self._more = self._more or more

    def add_answer(self, _address: str, response: Any) -> None:
        self.add(response.topics or (), more=response.cursor is not None)

    def page(self) -> tuple[list[Any], bool]:
        """Return the first topics, and whether there are more behind the last one."""
        keys = sorted(self._topics)
        return [self._topics[key] for key in keys[: self._limit]], self._more or len(keys) > self._limit


def _joined(one: Any, other: Any) -> Any:
    """Return the same topic of two hosts as one."""
    oldest_ms = min(filter(None, (one.oldest_ready_at_ms, other.oldest_ready_at_ms)), default=0)
    hosts = sorted({*(one.hosts or ()), *(other.hosts or ())})
    ready = (one.ready or 0) + (other.ready or 0)
    return idl.ActiveTopic(
        one.ns, one.topic, ready, oldest_ms, hosts, _sum(one.delayed, other.delayed), _sum(one.leased, other.leased)
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


Found = tuple[list[FailureGroup], bool]
"""Groups by (fingerprint, cause), and whether there are more."""


class FailureGathering:
    """Calls `done(groups, more, missing)` when all `hosts` have answered. `missing`: shards that have no host."""

    def __init__(
        self,
        hosts: Iterable[str],
        missing: Iterable[str],
        limit: int,
        done: Callable[[list[FailureGroup], bool, list[str]], None],
    ) -> None:
        self._waiting = set(hosts)
        self._missing = list(missing)
        self._limit = limit
        self._done = done
        self._groups: dict[GroupKey, FailureGroup] = {}
        self._more = False

    def add(self, host: str, found: Found | FoqsError) -> None:
        """Merge the page of a host, or note that it did not answer."""
        if isinstance(found, FoqsError):
            self._missing.append(host)
        else:
            groups, more = found
            for group in groups:
                key = (group.fingerprint, group.cause)
                self._groups[key] = merged(self._groups.get(key), group)
            self._more = self._more or more
        self._waiting.discard(host)
        if not self._waiting:
            keys = sorted(self._groups)
            page = [self._groups[key] for key in keys[: self._limit]]
            self._done(page, self._more or len(keys) > self._limit, sorted(self._missing))

    def answered_by(self, host: str) -> Callable[[Any, FoqsError | None], None]:
        """Return what takes the answer of another host."""
        return partial(self._answered, host)

    def _answered(self, host: str, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            self.add(host, error)
        else:
            self.add(host, ([group_of(group) for group in response.groups or ()], response.cursor is not None))


def group_of(struct: Any) -> FailureGroup:
    """Return the value of a FailureGroup of the contract."""
    return FailureGroup(
        struct.fingerprint or 0,
        struct.cause or 0,
        struct.count or 0,
        struct.first_died_at_ms or 0,
        struct.last_died_at_ms or 0,
        struct.sample_id or 0,
        (struct.sample_reason or "").encode(),
    )


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


def _counts_of(stats: Any) -> TenantCounts:
    return TenantCounts(stats.ready or 0, stats.parked or 0, stats.weight or 0, stats.served or 0.0)


def _stats(name: str, counts: TenantCounts, weight: int) -> Any:
    share = counts.turn_weight / weight if weight else 0.0
    return idl.TenantStats(name, counts.weight, counts.ready, counts.parked, counts.served, share)


Reported = dict[str, KeyStats]


class ThrottleReports:
    """The stats of this host by key, to which `add` adds the answer of another one. `coordinators` has the address of
    each key's coordinator; this host is at `address`."""

    def __init__(self, here: Reported, address: str) -> None:
        self.stats = here
        self.coordinators = {key: address for key, one in here.items() if (one.tokens, one.taken) != (None, None)}

    def add(self, _address: str, response: Any) -> None:
        for one in response.throttles or ():
            self._add(one)

    def _add(self, one: Any) -> None:
        known = self.stats.get(one.key) or KeyStats()
        if (one.tokens, one.taken) != (None, None):
            self.coordinators[one.key] = one.coordinator or ""
        self.stats[one.key] = KeyStats(
            known.parked_flows + (one.parked_flows or 0),
            known.parked_items + (one.parked_items or 0),
            max(known.longest_wait_ms, one.longest_wait_ms or 0),
            known.shadow_held + (one.shadow_held or 0),
            known.tokens if one.tokens is None else one.tokens,
            known.taken if one.taken is None else one.taken,
            known.free if one.free is None else one.free,
            known.overage + (one.overage or 0),
            known.reclaimed + (one.reclaimed or 0),
        )
