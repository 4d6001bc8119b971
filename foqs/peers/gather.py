"""Answers of all hosts of a cluster, put together: pages of topics and failures, counts, and explanations.

A page is the first entries behind a cursor, so the first of all hosts' pages are the page of the cluster. A host that
does not answer in time is left out: its items cannot be leased now either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from foqs.engine import dead_letters, explain
from foqs.engine.dead_letters import GroupKey
from foqs.engine.stats import MOST_WORKERS, MostReady, turn_weight
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.fairness.rates import STEP_MS
from foqs.figures import (
    EVENTS,
    MOST_FAILING_WORKERS,
    ActiveTopic,
    FailingGroup,
    FailingTopic,
    HookStats,
    NamespaceRates,
    TenantStats,
    ThrottleStats,
    TopicStats,
    WorkerStats,
    by_rate,
    from_struct,
    merge_into,
    merged,
)
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


class Pages(MergedPages[TopicKey, ActiveTopic]):
    """GetActiveTopics of a cluster."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, lambda topic: (topic.ns, topic.topic), merged)

    def add_answer(self, _address: str, response: Any) -> None:
        self.add([from_struct(ActiveTopic, one) for one in response.topics or ()], more=response.cursor is not None)


Found = tuple[list[FailureGroup], bool]
"""Groups by (fingerprint, cause), and True if there are more."""


class FailureGathering(MergedPages[GroupKey, FailureGroup]):
    """ListFailures of a cluster. Calls `done(groups, more, missing)` when this host and all other hosts have answered.
    `missing`: shards that have no host."""

    def __init__(
        self, limit: int, missing: Iterable[str], done: Callable[[list[FailureGroup], bool, list[str]], None]
    ) -> None:
        super().__init__(limit, lambda group: (group.fingerprint, group.cause), dead_letters.merged)
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


class TopicSums:
    """The figures of this host, to which `add` adds the answer of another host. Tenants that a host does not report by
    name are in the sum of the rest."""

    def __init__(self, here: TopicStats) -> None:
        self._sums: TopicStats | None = None
        self._workers: dict[str, WorkerStats] = {}
        self._tenants: dict[str, TenantStats] = {}
        self._hooks: dict[str, HookStats] = {}
        self._rest: list[TenantStats] = []
        self._add(here)

    def add(self, _address: str, response: Any) -> None:
        """Add the answer of another host."""
        self._add(from_struct(TopicStats, response, policy={}))

    def _add(self, one: TopicStats) -> None:
        self._sums = one if self._sums is None else merged(self._sums, one)
        merge_into(self._workers, one.workers)
        merge_into(self._tenants, one.tenants)
        merge_into(self._hooks, one.hooks)
        self._rest += [] if one.more_tenants is None else [one.more_tenants]

    def stats(self, most: int) -> TopicStats:
        """Return the sums: workers with hung handlers first, then the oldest lease first; up to `most` tenants, the
        most ready items first, and the sums of the rest."""
        workers = sorted(self._workers.values(), key=lambda one: (not one.hung, -one.oldest_lease_ms, one.worker))
        found = MostReady(most)
        for tenant in self._tenants.values():
            found.add(tenant)
        for rest in self._rest:
            found.add_rest(rest)
        assert self._sums is not None, "it began with the figures of this host"
        named, more = found.named(), found.rest_if_any()
        weight = sum(map(turn_weight, named)) + turn_weight(found.rest)
        return self._sums._replace(
            workers=tuple(workers[:MOST_WORKERS]),
            tenants=tuple([_shared(one, weight) for one in named]),
            more_tenants=None if more is None else _shared(more, weight),
            hooks=tuple([self._hooks[name] for name in sorted(self._hooks)]),
        )


def _shared(tenant: TenantStats, weight: int) -> TenantStats:
    """Return the figures with the share of all `weight`."""
    return tenant._replace(share=turn_weight(tenant) / weight if weight else 0.0)


class FailingSums:
    """The failing topics of this host, to which `add` adds the answer of another host. `more`: further ones fail."""

    def __init__(self, here: Iterable[FailingTopic], *, more: bool) -> None:
        self._topics = {one.topic: one for one in here}
        self._more = more

    def add(self, _address: str, response: Any) -> None:
        self._more = self._more or bool(response.more)
        for found in [from_struct(FailingTopic, one) for one in response.topics or ()]:
            known = self._topics.get(found.topic)
            self._topics[found.topic] = found if known is None else _failing_on_both(known, found)

    def topics(self, most: int) -> tuple[list[FailingTopic], bool]:
        """Return up to `most` topics in the order of their first groups, and whether more fail."""
        found = sorted([one for one in self._topics.values() if one.groups], key=lambda one: by_rate(one.groups[0]))
        return found[:most], self._more or len(found) > most


def _failing_on_both(one: FailingTopic, other: FailingTopic) -> FailingTopic:
    groups = {(group.cause, group.fingerprint): group for group in one.groups}
    for group in other.groups:
        key = group.cause, group.fingerprint
        known = groups.get(key)
        groups[key] = group if known is None else _group_of_both(known, group)
    return merged(one, other)._replace(groups=tuple(sorted(groups.values(), key=by_rate)))


def _group_of_both(one: FailingGroup, other: FailingGroup) -> FailingGroup:
    newer = max(one, other, key=lambda group: group.last_failed_at_ms)
    both = merged(newer, one if newer is other else other)
    named, more = both.workers[:MOST_FAILING_WORKERS], len(both.workers) > MOST_FAILING_WORKERS
    return both._replace(workers=named, more_workers=both.more_workers or more)


class ThrottleReports:
    """The stats of this host by key, to which `add` adds the answer of another one."""

    def __init__(self, here: dict[str, ThrottleStats]) -> None:
        self.stats = here

    def add(self, _address: str, response: Any) -> None:
        merge_into(self.stats, [from_struct(ThrottleStats, one) for one in response.throttles or ()])


class RateSums:
    """The traffic of this host in `steps` steps from number `first` on, to which `add` adds the answer of another one.
    `since_ms`: the latest start of a host. `more`: further namespaces had traffic."""

    def __init__(self, here: Iterable[NamespaceRates], first: int, steps: int, since_ms: int, *, more: bool) -> None:
        self.since_ms = since_ms
        self._found = {one.ns: one for one in here}
        self._first = first
        self._steps = steps
        self._more = more

    def add(self, _address: str, response: Any) -> None:
        later = (response.first_at_ms or 0) // STEP_MS - self._first
        for one in [from_struct(NamespaceRates, one) for one in response.namespaces or ()]:
            aligned: dict[str, Any] = {kind: self._aligned(getattr(one, kind), later) for kind in EVENTS}
            merge_into(self._found, [one._replace(**aligned)])
        self.since_ms = max(self.since_ms, response.covers_from_ms or 0)
        self._more = self._more or bool(response.more)

    def _aligned(self, counts: tuple[int, ...], later: int) -> tuple[int, ...]:
        """Return the counts of the steps of this host. The given ones begin `later`, by that many steps."""
        if not counts or (not later and len(counts) == self._steps):
            return counts
        return tuple([counts[at] if 0 <= at < len(counts) else 0 for at in range(-later, self._steps - later)])

    def rates(self, limit: int, ns: str | None) -> tuple[list[NamespaceRates], bool]:
        """Return up to `limit` namespaces, the most traffic first, and whether there are more. `ns` is among them."""
        if ns is not None:
            return [self._found.get(ns, NamespaceRates(ns))], False
        found = sorted([(-sum([sum(getattr(one, kind)) for kind in EVENTS]), one) for one in self._found.values()])
        return [one for _, one in found[:limit]], self._more or len(found) > limit


# ------------------------------------------------------------------------------------- explanations


def nearest(answers: Iterable[Any], unowned: Iterable[int], missing: Iterable[str]) -> Any:
    """Return the answer of the host that is nearest to a delivery, with the tenants that wait on any host. If no host
    has items of the topic, the items may be on `unowned` shards, or on the hosts in `missing`, which did not
    answer."""
    answers = list(answers)
    answer = max(answers, key=_distance)
    answer.tenants = _most_waiting(answers) or None
    answer.tenants_ready = max([one.tenants_ready for one in answers if one.tenants_ready is not None], default=None)
    shards = [f"shard {number} is not served" for number in sorted(unowned)]
    hosts = [f"host {address} did not answer" for address in missing]
    if not answer.reasons or answer.reasons[0].code != idl.Reason.GONE or not (shards or hosts):
        return answer
    why = f"No host that answered has items of the topic, and {', '.join(shards + hosts)}: see foqs cluster status."
    rest = [reason for reason in answer.reasons if reason.code != idl.Reason.GONE]
    return idl.ExplainItemResponse([idl.ExplainReason(idl.Reason.SHARD_NOT_SERVED, why), *rest])


def _most_waiting(answers: Iterable[Any]) -> list[Any]:
    """Return the groups of tenants that wait. A tenant has items on several hosts, so numbers are not added."""
    groups: dict[tuple[int, str], Any] = {}
    for one in [one for answer in answers for one in answer.tenants or ()]:
        known = groups.setdefault((one.code, one.key), one)
        if one.count > known.count:
            groups[one.code, one.key] = one
    return sorted(groups.values(), key=lambda one: -one.count)


def _distance(answer: Any) -> int:
    return explain.rank(answer.reasons[0].code) if answer.reasons else _NEAREST
