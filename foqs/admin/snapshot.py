"""Copy the values of a host's metrics on its event loop, in short slices of time.

Values of one scrape may be a few milliseconds apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from heapq import nlargest
from platform import python_version
from time import perf_counter

from foqs import __version__
from foqs.admin.exposition import Rows, Value
from foqs.admin.families import FAMILIES
from foqs.admin.readiness import View
from foqs.admin.series import (
    PAUSED,
    TenantSeries,
    ThrottleSeries,
    TopicCounts,
    TopicSeries,
    count_keys,
    count_tenants,
    hung_rows,
    topic_rows,
)
from foqs.config.schema import AdminSection
from foqs.counters import CAUSES, NO_NAME, Counters, Namespaces
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.engine.stats import lanes_of, pause_of
from foqs.errors import Code
from foqs.fairness.keys import TopicKey
from foqs.hooks.protocol import Kind
from foqs.item import Item
from foqs.prefetch.lane import Lane
from foqs.rows import FailureCause
from foqs.rpc.call import CLOSED, REFUSED, RpcCounters
from foqs.server.clock import monotonic_ms
from foqs.shardmgr.continuity import Finding
from foqs.shardmgr.controller import moving
from foqs.shardmgr.facts import Session, ShardUse
from foqs.shardmgr.lifecycle import BreakerState, ShardState

_SLICE_S = 0.001
_TOPICS = 64  # between two looks at the clock

_OF_NAMESPACE = {name: one.of[len("namespace.") :] for name, one in FAMILIES.items() if one.of.startswith("namespace.")}

Add = Callable[..., None]
"""(name of the metric without foqs_, value, labels ...)"""


class _Slices:
    """Yields to the event loop between slices."""

    def __init__(self) -> None:
        self._until = perf_counter() + _SLICE_S

    async def rest(self) -> None:
        """Yield if this slice was long enough."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + _SLICE_S


class Series:
    """Bounds of the series of a host, and their counts from one scrape to the next."""

    def __init__(self, config: AdminSection) -> None:
        self.most_namespaces = config.namespaces
        self.most_topics = config.topics
        self.topics = TopicSeries(config.topics)
        self.tenants = TenantSeries(config.tenants)
        self.throttles = ThrottleSeries(config.throttles)


async def gather(view: View, series: Series) -> Rows:
    """Return rows for all FAMILIES; rows about the cluster are empty on a host without one."""
    rows: dict[str, list[tuple[tuple[str, ...], Value]]] = {name: [] for name in FAMILIES}

    def add(name: str, value: Value, *labels: str) -> None:
        rows[f"foqs_{name}"].append((labels, value))

    slices, node = _Slices(), view.node
    numbers = {
        "": node.engine.state.counters,
        "rpc": node.server.counters,
        "hooks": node.hook_pool,
        "budget": node.engine.state.budget,
        "awaited": node.engine.state.awaited,
        "lost": node.engine.state.throttling.lost,
    }
    for name, family in FAMILIES.items():
        place, _, attribute = family.of.rpartition(".")
        if attribute and place != "namespace":
            rows[name].append(((), getattr(numbers[place], attribute)))
    _process(add, view)
    _items(add, node.engine.state.counters)
    await slices.rest()
    await _namespaces(add, node.engine.state.counters.namespaces, slices)
    _requests(add, node.server.counters)
    for kind in Kind:
        add("hook_failures_total", node.hook_pool.failures[kind], kind.value)
    if view.seat is not None:
        _cluster(add, view)
    shards, free_bytes = list(node.engine.state.shards.values()), node.vitals.free_bytes()
    for shard in shards:
        await slices.rest()
        _shard(add, shard, free_bytes.get(shard.number))
    topics, window_rows = await _topics(node.engine.state, series.topics, slices)
    _quotas(add, view, series.most_namespaces)
    for shard in shards:
        add("shard_window_rows", window_rows[shard.number], str(shard.number))
    hung: Counter[TopicKey] = Counter()
    for key, _, handlers in node.engine.state.hung.all(node.now_ms()):
        hung[key] += handlers
    tenants = await count_tenants(node.engine.state, slices.rest)
    throttles = await count_keys(node.engine.state.throttling, slices.rest, monotonic_ms())
    for found in (
        await asyncio.to_thread(topic_rows, topics, series.most_topics, node.now_ms()),
        hung_rows(hung, series.most_topics),
        series.topics.rows(node.engine.state.topics),
        await asyncio.to_thread(series.tenants.rows, tenants),
        await asyncio.to_thread(series.throttles.rows, throttles),
    ):
        for name, some in found.items():
            rows[name] += some
    return rows


async def _topics(
    state: State, series: TopicSeries, slices: _Slices
) -> tuple[dict[TopicKey, TopicCounts], Counter[int]]:
    """Return the counts of topics with items, and the number of items in the windows of each shard."""
    counts: dict[TopicKey, TopicCounts] = {}
    window_rows: Counter[int] = Counter()
    for at, key in enumerate(list(state.topics)):
        if not at % _TOPICS:
            await slices.rest()
        topic = state.topics.get(key)
        if topic is not None and topic.totals is not None:
            series.add(key, topic.totals.take())
        pause, dead = pause_of(state, key), state.policies.takes_dead(key)
        for part, lanes in enumerate(lanes_of(state, key)):
            if part:
                await slices.rest()
            for lane in lanes:
                if lane.term.shard is None:
                    continue  # closed since the walk began
                if lane.total:
                    why = PAUSED if pause is not None and pause(lane) else ""
                    of_topic = counts.setdefault(key, TopicCounts())
                    of_topic.add(lane.ready, lane.leased, lane.total, _oldest_ms(lane), why)
                    dead = dead or lane.dead
                if lane.window is not None:
                    window_rows[lane.term.shard.number] += len(lane.window)
        if dead and key in counts:
            counts[key].are_dead()
    series.add_rest(state.topics.take_forgotten())
    return counts, window_rows


def _oldest_ms(lane: Lane[Item]) -> int | None:
    return lane.oldest_ready_at_ms() if lane.ready else None


def _process(add: Add, view: View) -> None:
    add("ready", not view.missing())
    add("build_info", 1, __version__, python_version())
    add("shards_unreachable", len(view.unreachable()))
    add("shards_unserved", view.unserved())
    add("host_info", 1, view.id, view.node.address)
    add("event_loop_lag_seconds", view.node.vitals.lag.seconds.copy())
    if (contexts := view.node.certificates.contexts) is not None:
        add("certificate_expires_at_seconds", contexts.dates.ends_s)
    add("machine_clock_ahead_seconds", view.node.machine_ahead_ms() / 1000)


def _items(add: Add, counters: Counters) -> None:
    add("quota_items_total", counters.quota_admitted, "admitted")
    add("quota_items_total", counters.quota_refused, "refused")
    add("item_batches_total", counters.batches_created, "created")
    add("item_batches_total", counters.batches_ended, "ended")
    add("schedule_times_total", counters.schedules_fired, "fired")
    add("schedule_times_total", counters.schedules_missed, "missed")
    for outcome in ("opened", "released", "lost", "not_opened"):
        add("shard_moves_total", getattr(counters, f"shards_{outcome}"), outcome)
    for code in Code:
        add("items_refused_total", counters.refused[code], code.name.lower())


async def _namespaces(add: Add, namespaces: Namespaces, slices: _Slices) -> None:
    for name, namespace in list(namespaces):
        for method, seconds in namespace.seconds.items():
            add("request_duration_seconds", seconds.copy(), method, name)
        if name != NO_NAME:
            for metric, attribute in _OF_NAMESPACE.items():
                add(metric.removeprefix("foqs_"), getattr(namespace, attribute), name)
            add("item_queue_seconds", namespace.queue_seconds.copy(), name)
            add("item_attempts", namespace.attempts, name)
            for cause in CAUSES:
                add("items_removed_total", namespace.removed[cause], name, cause)
            for failure in FailureCause:
                cause = failure.name.lower()
                add("items_dead_total", namespace.dead[cause], name, cause)
                add("attempts_failed_total", namespace.failed[cause], name, cause)
        await slices.rest()


def _quotas(add: Add, view: View, most: int) -> None:
    """Add the level of each namespace with a quota on stored items, of the `most` fullest ones; and the bounds on
    rates, of the namespaces whose counters have series."""
    state, quota = view.node.engine.state, view.node.lending.quotas.of
    stored: Counter[str] = Counter()
    for shard in state.serving:
        stored.update(shard.memory.totals)
    bounds = {ns: bound.stored_items for ns in stored if (bound := quota(ns)) is not None}
    levels = {ns: stored[ns] / items for ns, items in bounds.items() if items}
    for ns in nlargest(most, levels, key=lambda ns: (levels[ns], ns)):
        add("quota_used_ratio", levels[ns], ns)
    for ns, _ in state.counters.namespaces:
        if (bound := quota(ns)) is not None and bound.per_second is not None:
            add("quota_items_per_second", bound.per_second, ns)


def _requests(add: Add, rpc: RpcCounters) -> None:
    for name, method in rpc.methods.items():
        add("request_bytes_total", method.request_bytes, name)
        add("answer_bytes_total", method.answer_bytes, name)
        for code in Code:
            add("request_errors_total", method.errors[code], name, code.name.lower())
    for reason in REFUSED:
        add("frames_refused_total", rpc.refused[reason], reason)
    for reason in CLOSED:
        add("connections_closed_total", rpc.closed[reason], reason)


def _shard(add: Add, shard: Shard, free_bytes: int | None) -> None:
    owner, queue = shard.owner, shard.queue
    number = str(shard.number)
    for state in ShardState:
        add("shard_state", owner.state is state, number, state.value)
    for breaker in BreakerState:
        add("shard_breaker_state", owner.breaker.state is breaker, number, breaker.value)
    add("shard_breaker_opened_total", owner.breaker.opened, number)
    add("shard_connection_lost", owner.lost, number)
    add("shard_disk_full", owner.disk_full, number)
    if owner.state in (ShardState.SERVING, ShardState.DRAINING):
        add("shard_epoch", owner.epoch, number)
        if free_bytes is not None:
            add("shard_disk_free_bytes", free_bytes, number)
        if owner.restored_ms:
            add("shard_restored_at_seconds", owner.restored_ms / 1000, number)
    add("shard_pending_inserts", queue.chunk_rows, number)
    add("shard_pending_chunks", len(queue.chunks), number)
    add("shard_pending_changes", len(queue.changes), number)
    add("shard_pending_looks", queue.looks.count, number)
    add("shard_unindexed_items", shard.memory.tail.count, number)
    add("shard_kept_items", queue.kept.count, number)
    add("shard_progress_items", len(shard.memory.noted), number)
    add("shard_leases", len(queue.unwritten), number, "unwritten")
    add("shard_leases", len(shard.memory.written), number, "written")
    add("shard_trip_seconds", shard.batch_metrics.seconds.copy(), number)
    add("shard_transaction_seconds", shard.batch_metrics.transaction_seconds.copy(), number)
    add("shard_transaction_rows", shard.batch_metrics.transaction_rows.copy(), number)


_HELD = {"loss": (Finding.LOST, Finding.RESTORED, Finding.MERGE), "other_cluster": (Finding.FOREIGN,)}


def _cluster(add: Add, view: View) -> None:
    seat = view.seat
    assert seat is not None
    facts = seat.facts
    for state in Session:
        add("zookeeper_session_state", seat.state is state, state.value)
        add("zookeeper_session_changes_total", seat.changes[state], state.value)
    if view.keeper is not None:
        for reason, findings in _HELD.items():
            add("zookeeper_held", view.keeper.hold in findings, reason)
        for kind in (Finding.LOST, Finding.RESTORED):
            add("zookeeper_losses_total", view.keeper.events[kind], kind.value)
    if view.round_trips is not None:
        add("zookeeper_request_seconds", view.round_trips.copy())
    add("shard_takeover_seconds", view.node.vitals.pauses.seconds.copy())
    add("shard_drain_seconds", view.node.runner.drain_seconds.copy())
    add("controller", seat.fresh and facts.controller == view.id)
    add("assignment_version", facts.assignment.version)
    add("shards_assigned", len(view.wanted()))
    add("cluster_hosts", len(facts.hosts))
    add("cluster_shards", sum(shard.use is not ShardUse.DISABLED for shard in facts.shards.values()))
    add("cluster_shards_moving", len(moving(facts)))
    add("cluster_slots_moving", len(facts.slots.moves))
