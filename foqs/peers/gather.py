"""Answers of all hosts of a cluster, put together: pages of topics and failures, counts, and explanations.

A page is the first entries behind a cursor, so the first of all hosts' pages are the page of the cluster. A host that
does not answer in time is left out: its items cannot be leased now either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from foqs.engine import explain
from foqs.engine.dead_letters import GroupKey, merged
from foqs.engine.stats import MOST_WORKERS, KeyStats, MostReady, TenantCounts, most_ready
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.hooks.call_queues import MOST_ERRORS
from foqs.idl import idl
from foqs.rows import FailureGroup

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")

ANSWER_MS = 2_000
_NEAREST = 1 << 30


class MergedPages(Generic[K, V]):
    """The pages of several hosts, each of up to `limit` entries. Entries with one `key` are `joined`."""

    def __init__(self, limit: int, key: Callable[[V], K], joined: Callable[[V, V], V]) -> None:
        self._limit = limit
        self._key = key
        self._joined = joined
        self._entries: dict[K, V] = {}
        self._more = False

    def add(self, entries: Iterable[V], *, more: bool) -> None:
        """`more`: the host has entries behind the last one."""
        for entry in entries:
            key = self._key(entry)
            known = self._entries.get(key)
            self._entries[key] = entry if known is None else self._joined(known, entry)
        self._more = self._more or more

    def page(self) -> tuple[list[V], bool]:
        """Return the first entries, and True if there are more behind the last one."""
        keys = sorted(self._entries)
        return [self._entries[key] for key in keys[: self._limit]], self._more or len(keys) > self._limit


# ------------------------------------------------------------------------------------- topics


class Pages(MergedPages[TopicKey, Any]):
    """GetActiveTopics of a cluster."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, lambda topic: (topic.ns, topic.topic), _joined)

    def add_answer(self, _address: str, response: Any) -> None:
        self.add(response.topics or (), more=response.cursor is not None)


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
"""Groups by (fingerprint, cause), and True if there are more."""


class FailureGathering(MergedPages[GroupKey, FailureGroup]):
    """ListFailures of a cluster. Calls `done(groups, more, missing)` when this host and all other hosts have answered.
    `missing`: shards that have no host."""

    def __init__(
        self, limit: int, missing: Iterable[str], done: Callable[[list[FailureGroup], bool, list[str]], None]
    ) -> None:
        super().__init__(limit, lambda group: (group.fingerprint, group.cause), merged)
        self._missing = list(missing)
        self._done = done
        self._left = 2

    def here(self, address: str, found: Found | FoqsError) -> None:
        """Add the page of this host, or note that its databases did not answer."""
        if isinstance(found, FoqsError):
            self.end([address])
        else:
            self.add(found[0], more=found[1])
            self.end([])

    def add_answer(self, _address: str, response: Any) -> None:
        self.add([group_of(group) for group in response.groups or ()], more=response.cursor is not None)

    def end(self, missing: Iterable[str]) -> None:
        """Note that this host, or the last of the other hosts, has answered or is `missing`."""
        self._missing += missing
        self._left -= 1
        if not self._left:
            self._done(*self.page(), sorted(self._missing))


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


# ------------------------------------------------------------------------------------- counts

Counts = tuple[int, int, int]
"""Items that are ready, delayed and leased."""
Workers = Iterable[Any]
"""WorkerStats: names, numbers of leases, the ages of the oldest, and hung handlers."""


class TopicSums:
    """The counts of this host, to which `add` adds the answer of another host. Tenants that a host does not report by
    name are in the sum of the rest."""

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
        """Return WorkerStats: workers with hung handlers first, then by the age of the oldest lease."""
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


# ------------------------------------------------------------------------------------- explanations


def nearest(answers: Iterable[Any], unowned: Iterable[int], missing: Iterable[str]) -> Any:
    """Return the answer of the host that is nearest to a delivery. If no host has items of the topic, the items may be
    on `unowned` shards, or on the hosts in `missing`, which did not answer."""
    answer = max(answers, key=_distance)
    shards = [f"shard {number} is not served" for number in sorted(unowned)]
    hosts = [f"host {address} did not answer" for address in missing]
    if not answer.reasons or answer.reasons[0].code != idl.Reason.GONE or not (shards or hosts):
        return answer
    why = f"No host that answered has items of the topic, and {', '.join(shards + hosts)}: see foqs cluster status."
    rest = [reason for reason in answer.reasons if reason.code != idl.Reason.GONE]
    return idl.ExplainItemResponse([idl.ExplainReason(idl.Reason.SHARD_NOT_SERVED, why), *rest])


def _distance(answer: Any) -> int:
    return explain.rank(answer.reasons[0].code) if answer.reasons else _NEAREST
