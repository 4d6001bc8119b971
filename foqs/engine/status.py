"""Measure what `foqs status` says about the items of a host: how many, and the topics and quotas to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple

from foqs.bounds import Quota
from foqs.engine.state import State, in_slices
from foqs.engine.stats import lanes_of, last_asked_ms, pause_of
from foqs.fairness.keys import TopicKey
from foqs.figures import FailingGroup, QuotaStatus, RateStatus, TopicStatus
from foqs.item import Item
from foqs.prefetch.lane import Lane
from foqs.rows import FailureCause

CONSUMED_MS = 60_000
"""A topic that was asked for in this time has consumers."""
MOST_TOPICS = 20
"""Topics of a kind that are reported."""
MOST_QUOTAS = 100
_TOPICS = 200
"""Topics that are looked at in one slice of the event loop."""
_FAILING = 50
"""Likewise, of topics with failed attempts: each has up to 11 groups."""


class Measured(NamedTuple):
    """Items by state (approximate), `dead` in topics that have or take dead letters. These count in the other numbers,
    too."""

    ready: int
    delayed: int
    leased: int
    kept: int
    dead: int
    topics: tuple[TopicStatus, ...]
    quotas: tuple[QuotaStatus, ...]


@in_slices
def measure(
    state: State,
    within: Container[str] | None,
    quota: Callable[[str], Quota | None],
    now_ms: int,
    done: Callable[[Measured], None],
) -> Iterator[None]:
    """Report the items of all namespaces, or of all `within`. `quota` returns that of a namespace."""
    ready = leased = total = dead = 0
    failing = yield from _failing(state, within, now_ms)
    topics: list[TopicStatus] = []
    quotas: list[QuotaStatus] = []
    for at, key in enumerate(list(state.topics)):
        if at % _TOPICS == _TOPICS - 1:
            yield
        if within is not None and key[0] not in within:
            continue
        of_topic, counts = yield from _walk(state, key, now_ms)
        ready, leased, total = ready + counts.ready, leased + counts.leased, total + counts.total
        if of_topic.dead:
            dead += counts.total
        most = state.policies.of(key).max_stored if key[0] in state.policies.namespaces else None
        if most is not None:
            quotas.append(QuotaStatus(*key, counts.total, most))
        fails = failing.pop(key, {})
        if of_topic.ready or fails:
            topics.append(of_topic._replace(**fails) if fails else of_topic)
    topics += [TopicStatus(*key, **fails) for key, fails in failing.items()]  # without items here
    stored: Counter[str] = Counter()
    kept = 0
    for shard in list(state.serving):
        stored.update({ns: items for ns, items in shard.memory.totals.items() if within is None or ns in within})
        of_shard = shard.queue.kept
        kept += of_shard.count if within is None else sum([n for key, n in of_shard.topics.items() if key[0] in within])
    for ns, items in stored.items():
        bound = quota(ns)
        if bound is not None and bound.stored_items is not None:
            quotas.append(QuotaStatus(ns, "", items, bound.stored_items))
    quotas = nlargest(MOST_QUOTAS, quotas, key=lambda one: (one.used / max(1, one.most), one.ns, one.topic))
    delayed = max(0, total - ready - leased)
    done(Measured(ready, delayed, leased, kept, dead, tuple(notable(topics)), tuple(quotas)))


def _failing(
    state: State, within: Container[str] | None, now_ms: int
) -> Generator[None, None, dict[TopicKey, dict[str, Any]]]:
    """Return the fields about failed attempts of the `MOST_TOPICS` topics with the most in the last 10 minutes."""
    failing = state.topics.failing
    counts: dict[TopicKey, int] = {}
    for at, key in enumerate([key for key in failing if within is None or key[0] in within], 1):
        counts[key] = failing.sums(key, now_ms)[1]
        if not at % _FAILING:
            yield
    found: dict[TopicKey, dict[str, Any]] = {}
    for key in nlargest(MOST_TOPICS, counts, key=lambda key: (counts[key], key)):
        topic = failing[key].figure(now_ms) if counts[key] and key in failing else None
        if topic is not None:
            groups = [group for group in topic.groups if group.cause]
            found[key] = {
                "failed_10_minutes": counts[key],
                "acked_10_minutes": topic.acked_10_minutes,
                "failure": max([(group.last_10_minutes, _failure(group)) for group in groups], default=(0, ""))[1],
            }
    return found


def _failure(group: FailingGroup) -> str:
    if group.cause == FailureCause.FAILED:
        return group.reason
    cause = FailureCause(group.cause).name.lower()
    return f"{cause}: {group.reason}" if group.reason else cause


def rates_of(
    stored: Iterable[RateStatus], within: Container[str] | None, quota: Callable[[str], Quota | None]
) -> tuple[RateStatus, ...]:
    """Return the rates of namespaces that have a bound on theirs, the fullest `MOST_QUOTAS`."""
    bounds = [(one, quota(one.ns)) for one in stored if within is None or one.ns in within]
    rates = [one._replace(most=bound.per_second) for one, bound in bounds if bound is not None and bound.per_second]
    return tuple(nlargest(MOST_QUOTAS, rates, key=lambda one: (one.used / one.most, one.ns)))


class _Counts(NamedTuple):
    """`ready`: with the items that wait for an earlier one of their order key."""

    ready: int
    leased: int
    total: int


class _Ready:
    """Ready items of some lanes of a topic."""

    __slots__ = ("items", "newest_ms", "oldest_ms")

    def __init__(self) -> None:
        self.items = self.oldest_ms = self.newest_ms = 0

    def add(self, lane: Lane[Item]) -> None:
        oldest_ms = lane.oldest_ready_at_ms()
        self.oldest_ms = min(oldest_ms, self.oldest_ms or oldest_ms)
        self.newest_ms = max(lane.newest_ready_at_ms(), self.newest_ms)
        self.items += lane.ready


def _walk(state: State, key: TopicKey, now_ms: int) -> Generator[None, None, tuple[TopicStatus, _Counts]]:
    """Return the figures of a topic, and counts of all its items. The figures leave out items that a pause holds,
    unless it holds all ready ones."""
    free, held, leased, behind, total, dead = _Ready(), _Ready(), 0, 0, 0, False
    pause = pause_of(state, key)
    for part, lanes in enumerate(lanes_of(state, key)):
        if part:
            yield
        for lane in lanes:
            if lane.ready:
                (held if pause is not None and pause(lane) else free).add(lane)
            dead = dead or bool(lane.dead and lane.total)
            leased, behind, total = leased + lane.leased, behind + lane.behind, total + lane.total
    said = free if free.items else held
    consumed, dead = bool(said.items) and _consumed(state, key, now_ms), dead or state.policies.takes_dead(key)
    status = TopicStatus(*key, said.items, said.oldest_ms, said.newest_ms, said is held, consumed, dead)
    return status, _Counts(free.items + held.items + behind, leased, total)


def _consumed(state: State, key: TopicKey, now_ms: int) -> bool:
    topic = state.topics.get(key)
    if key in state.waiting or key in state.holdings.parked or key in state.holdings.full:
        return True
    return topic is not None and now_ms - last_asked_ms(topic) < CONSUMED_MS


def notable(topics: Collection[TopicStatus]) -> list[TopicStatus]:
    """Return the topics to look at, `MOST_TOPICS` of each kind: the oldest ones, without consumers, paused ones,
    topics with dead letters, and topics with failed attempts."""
    ready = [one for one in topics if one.ready]
    paused = [one for one in ready if one.paused]
    dead = [one for one in ready if one.dead and not one.paused]
    live = [one for one in ready if not (one.paused or one.dead)]
    chosen = {
        *[one for one in topics if one.failed_10_minutes],
        *nsmallest(MOST_TOPICS, live, key=lambda one: (one.oldest_ready_at_ms, one.ns, one.topic)),
        *nlargest(MOST_TOPICS, [one for one in live if not one.consumed], key=_most_ready),
        *nlargest(MOST_TOPICS, paused, key=_most_ready),
        *nlargest(MOST_TOPICS, dead, key=_most_ready),
    }
    return sorted(chosen)


def _most_ready(topic: TopicStatus) -> tuple[int, str, str]:
    return topic.ready, topic.ns, topic.topic
