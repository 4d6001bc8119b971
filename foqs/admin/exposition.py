"""Every metric of a host (name, kind, help and labels), and its values as text, rendered in a thread of its own.

A test compares the metrics with docs/reference/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from foqs.counters import CAUSES, Histogram
from foqs.rows import FailureCause


class Family(NamedTuple):
    """A metric. `name` is its name in Prometheus; `kind` is "counter", "gauge" or "histogram".

    `of` names the value: an attribute of `Counters`; "namespace.x", the attribute x of each `Namespace`; or "object.x",
    where `numbers` in `admin.snapshot` has the object. "": a function of `admin.snapshot` adds the rows."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    of: str = ""


def _counter(name: str, text: str, *labels: str, of: str = "") -> Family:
    return Family(f"foqs_{name}_total", "counter", text, labels, of)


def _gauge(name: str, text: str, *labels: str, of: str = "") -> Family:
    return Family(f"foqs_{name}", "gauge", text, labels, of)


def _histogram(name: str, text: str, *labels: str) -> Family:
    return Family(f"foqs_{name}", "histogram", text, labels)


_ITEMS = (
    _counter("items_enqueued", "Items stored.", "namespace", of="namespace.enqueued"),
    _counter("items_delivered", "Items delivered to consumers.", "namespace", of="namespace.delivered"),
    _counter("items_redelivered", "Deliveries of items that were delivered before.", of="redelivered"),
    _counter("items_nacked", "Items returned to their topic by a nack.", "namespace", of="namespace.nacked"),
    _counter("items_released", "Items given back unprocessed.", "namespace", of="namespace.released"),
    _counter("items_removed", f"Items removed, by cause: {', '.join(CAUSES)}.", "namespace", "cause"),
    _counter(
        "items_dead",
        f"Items moved to a dead-letter topic, by cause: {', '.join(cause.name.lower() for cause in FailureCause)}.",
        "namespace",
        "cause",
    ),
    _counter(
        "attempts_failed",
        f"Attempts that failed, by cause: {', '.join(cause.name.lower() for cause in FailureCause)}.",
        "namespace",
        "cause",
    ),
    _counter("items_redriven", "Dead letters returned to a topic.", "namespace", of="namespace.redriven"),
    _counter("items_changed", "Items whose priority or time was changed.", "namespace", of="namespace.changed"),
    _counter("items_due", "Delayed items that became ready.", of="due"),
    _counter("items_duplicate", "Enqueued items whose dedup_key was stored before.", of="duplicates"),
    _counter("item_batches", "Batches of items, by event: created, ended.", "event"),
    _counter("schedule_times", "Times of schedules, by outcome: fired, missed.", "outcome"),
    _counter("quota_items", "Items of namespaces with a quota, by outcome: admitted, refused.", "outcome"),
    _counter("items_refused", "Items answered with an error, by code.", "code"),
    _histogram("item_queue_seconds", "Time in which an item was ready before its first delivery.", "namespace"),
    _histogram("item_attempts", "Attempts of an item at its end, by an ack or as a failure.", "namespace"),
    _gauge("quota_used_ratio", "Part of a namespace's quota of stored items that this host stores.", "namespace"),
    _gauge("quota_items_per_second", "Rate that the quota of a namespace allows.", "namespace"),
    _counter("leases_extended", "Leases extended.", "namespace", of="namespace.extended"),
    _counter("leases_expired", "Leases that ended by time.", "namespace", of="namespace.expired"),
    _counter("lease_writes", "Leases written to the database.", of="lease_writes"),
    _counter("lease_writes_saved", "Leases that ended before their write.", of="lease_writes_saved"),
)
_TOPICS = (
    _gauge(
        "topic_items",
        "Items on this host, by state: ready, delayed, leased. Ready items may be held: paused, dead.",
        "namespace",
        "topic",
        "state",
        "held",
    ),
    _gauge(
        "topic_oldest_ready_age_seconds",
        "Age of the oldest ready item, of held ones apart; up to 66 s too high if it is not in memory; 0: none.",
        "namespace",
        "topic",
        "held",
    ),
    _gauge("topic_hung_handlers", "Handlers of workers that exceed their time limit.", "namespace", "topic"),
    _gauge("topics", "Topics that hold items, or held some recently."),
    _counter("topic_enqueued", "Items stored.", "namespace", "topic"),
    _counter("topic_delivered", "Items delivered to consumers.", "namespace", "topic"),
    _counter("topic_acked", "Items acked.", "namespace", "topic"),
    _counter("topic_failed", "Attempts that failed.", "namespace", "topic"),
    _counter("topic_dead", "Items that became dead letters.", "namespace", "topic"),
)
_TENANTS = (
    _counter(
        "tenant_served",
        "What tenants were given, in the unit of their topic: items, KiB, or ms of leases.",
        "namespace",
        "topic",
        "tenant",
    ),
    _gauge("tenant_weight", "Weight in effect.", "namespace", "topic", "tenant"),
    _gauge("tenant_ready_items", "Ready items of a tenant, parked ones included.", "namespace", "topic", "tenant"),
)
_THROTTLES = (
    _gauge("throttle_parked_items", "Ready items that wait for tokens or slots.", "namespace", "throttle"),
    _gauge("throttle_parked_flows", "Tenants of topics whose items wait for tokens or slots.", "namespace", "throttle"),
    _gauge("throttle_longest_wait_seconds", "Longest wait of a tenant for tokens or slots.", "namespace", "throttle"),
    _gauge("throttle_tokens_held", "Tokens on this host for its next deliveries.", "namespace", "throttle"),
    _gauge("throttle_slots_taken", "Live leases of items with a limit on leases.", "namespace", "throttle"),
    _counter("throttle_shadow_held", "Deliveries that a shadow throttle would have held.", "namespace", "throttle"),
    _counter("throttle_overage", "Leases that lived longer than the throttle's timeout_ms.", "namespace", "throttle"),
    _counter("throttle_reclaimed", "Limited leases that ended by time.", "namespace", "throttle"),
    _counter(
        "throttle_tokens_lent",
        "Tokens granted by this host as the coordinator of throttle keys.",
        of="tokens_lent",
    ),
    _counter(
        "throttle_tokens_lost",
        "Tokens that this host was granted and that became void before their use.",
        of="lost.tokens",
    ),
)
_HOOKS = (
    _counter("hook_calls", "Calls of scripts that ended, failed ones included.", of="hooks.calls"),
    _counter("hook_failures", "Calls of scripts that failed, by kind.", "kind"),
    _counter("hook_kills", "Processes of scripts that the host ended because a call was stuck.", of="hooks.kills"),
    _gauge("hook_queued_calls", "Calls of scripts that wait for a process.", of="hooks.queued"),
    _gauge("hook_processes", "Processes that are ready to run scripts.", of="hooks.children"),
)
_REQUESTS = (
    _histogram(
        "request_duration_seconds",
        "Time from the arrival of a request to its reply, waits included.",
        "method",
        "namespace",
    ),
    _counter("request_errors", "Requests answered with an error as a whole.", "method", "code"),
    _counter("request_bytes", "Bytes of requests.", "method"),
    _counter("answer_bytes", "Bytes of replies.", "method"),
    _counter("requests_lost", "Requests whose caller disconnected before the reply.", of="rpc.lost"),
    _counter("requests_failed", "Requests that failed because of a fault in foqs.", of="rpc.failed"),
    _counter("answers_too_large", "Replies that did not fit a frame.", of="rpc.too_large"),
    _counter("requests_forwarded", "Requests sent to other hosts.", of="forwarded"),
    _counter("requests_held", "Requests that waited for a shard without an owner.", of="held"),
    _counter("frames_refused", "Frames that were not a request of the service.", "reason"),
    _gauge("connections", "Open connections of clients and other hosts.", of="rpc.connections"),
    _counter("connections_accepted", "Connections accepted.", of="rpc.connections_accepted"),
    _counter(
        "connections_refused",
        "Connections refused because of a limit, or because the host stops.",
        of="rpc.connections_refused",
    ),
    _counter("connections_closed", "Connections that the host closed, by reason.", "reason"),
    _gauge("result_waiters", "Callers that wait for results.", of="awaited.count"),
    _gauge("budget_used_bytes", "Memory in use for requests, items and replies.", of="budget.used_bytes"),
    _gauge("budget_limit_bytes", "Memory that requests, items and replies may use.", of="budget.limit_bytes"),
    _counter("budget_waits", "Frames that waited for memory.", of="rpc.budget_waits"),
)
_SHARDS = (
    _gauge("shard_state", "1 for the state of the shard on this host.", "shard", "state"),
    _gauge("shard_epoch", "Epoch of a shard that this host serves.", "shard"),
    _gauge("shard_breaker_state", "1 for the state of the circuit breaker: closed, open, half_open.", "shard", "state"),
    _counter("shard_breaker_opened", "Times that the circuit breaker opened.", "shard"),
    _gauge("shard_connection_lost", "1 while the database connection is lost.", "shard"),
    _gauge("shard_disk_full", "1 while the database refuses writes because its disk is full.", "shard"),
    _gauge("shard_disk_free_bytes", "Free bytes of the disk of the database, where it reports them.", "shard"),
    _gauge("shard_restored_at_seconds", "Time at which an owner found the database to be an older copy.", "shard"),
    _gauge("shard_pending_inserts", "Items that wait to be stored.", "shard"),
    _gauge("shard_pending_chunks", "Parts of enqueues that wait to be stored.", "shard"),
    _gauge("shard_pending_changes", "Acks, nacks and extensions that wait to be written.", "shard"),
    _gauge("shard_pending_looks", "Items that wait for a look-up.", "shard"),
    _gauge("shard_window_rows", "Ready items in memory.", "shard"),
    _gauge("shard_unindexed_items", "Items without a row in the index of ready items.", "shard"),
    _gauge("shard_kept_items", "Items that have ended and are kept by their topic.", "shard"),
    _gauge("shard_progress_items", "Items with a checkpoint, progress or a log.", "shard"),
    _gauge("shard_leases", "Leases in memory, by state: unwritten, written.", "shard", "state"),
    _histogram("shard_trip_seconds", "Time of one call to the database, reads included.", "shard"),
    _histogram("shard_transaction_seconds", "Time of one transaction.", "shard"),
    _histogram("shard_transaction_rows", "Items and changes in one transaction.", "shard"),
    _gauge("shards_unreachable", "Shards of this host whose database does not answer it."),
    _gauge("shards_unserved", "Shards of this host that it does not serve although their database answers."),
    _counter("shard_moves", "Shards opened, released in order, lost to another owner, or not opened.", "outcome"),
    _histogram("shard_takeover_seconds", "Time in which a shard that this host took over had no owner."),
    _histogram("shard_drain_seconds", "Time from the begin of a shard's hand-over to its end on this host."),
    _counter("transactions", "Transactions with a known outcome.", of="transactions"),
    _counter("transaction_rows", "Items and changes committed.", of="transaction_rows"),
    _counter("transactions_failed", "Transactions that were certainly not committed.", of="failed_transactions"),
    _counter("transactions_unsettled", "Transactions whose outcome was unknown at first.", of="unsettled_transactions"),
    _counter("rows_refused", "Rows that a database refused.", of="refused_rows"),
    _counter("window_hits", "Dequeues that got items from memory at once.", of="window_hits"),
    _counter("window_misses", "Dequeues that waited for a page.", of="window_misses"),
    _counter("page_reads", "Pages of ready items read.", of="page_reads"),
    _counter("page_rows", "Rows of pages of ready items.", of="page_rows"),
    _counter("body_reads", "Bodies read apart from their page.", of="body_reads"),
    _counter("merge_waits", "Waits of a topic for the next items of one shard.", of="merge_waits"),
    _counter("merge_skips", "Dequeues that left out a slow shard.", of="merge_skips"),
)
_CLUSTER = (
    _gauge("zookeeper_session_state", "1 for the state of the session: connected, suspended, expired.", "state"),
    _counter("zookeeper_session_changes", "Changes of the session, by the new state.", "state"),
    _gauge("zookeeper_held", "1 while the host does not act on ZooKeeper's records: loss, other_cluster.", "reason"),
    _counter("zookeeper_losses", "Times that ZooKeeper had lost its data, or had an older copy.", "kind"),
    _histogram("zookeeper_request_seconds", "Time from a request to ZooKeeper to its answer."),
    _gauge("controller", "1 on the host that is elected to write the assignment."),
    _gauge("assignment_version", "Version of the assignment that this host knows; -1: none yet."),
    _gauge("shards_assigned", "Shards that the assignment gives this host."),
    _gauge("cluster_hosts", "Living hosts that this host knows."),
    _gauge("cluster_shards", "Shards of the cluster that are in use."),
    _gauge("cluster_shards_moving", "Shards of the cluster that their assigned host does not serve yet."),
    _gauge("cluster_slots_moving", "Slots of dedup_keys that move between shards."),
)
_PROCESS = (
    _gauge("ready", "1 while /readyz answers 200."),
    _gauge("build_info", "1; the labels have the versions.", "version", "python"),
    _gauge("host_info", "1; the labels have the host's id and the address for clients.", "id", "address"),
    _histogram("event_loop_lag_seconds", "Delay of the event loop, measured ten times a second."),
    _counter("clock_jumps", "Times that the clocks of the machine and the databases differed.", of="clock_jumps"),
    _gauge("certificate_expires_at_seconds", "Time at which the certificate of the port expires; none without TLS."),
    _gauge("machine_clock_ahead_seconds", "Lead of the machine's clock over the databases' clocks, which foqs uses."),
)
_ALL = (*_ITEMS, *_TOPICS, *_TENANTS, *_THROTTLES, *_HOOKS, *_REQUESTS, *_SHARDS, *_CLUSTER, *_PROCESS)
FAMILIES = {family.name: family for family in _ALL}

Value = float | Histogram
Rows = Mapping[str, Sequence[tuple[tuple[str, ...], Value]]]
"""By the name of a metric: values of its labels, and the value."""


def render(rows: Rows, accept: str, families: Mapping[str, Family] = FAMILIES) -> tuple[bytes, str]:
    """Return (text, content type) for an Accept header. The text has every metric, even without a value."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Host(rows, families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Host(Collector):
    def __init__(self, rows: Rows, families: Mapping[str, Family]) -> None:
        self._rows = rows
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for family in self._families.values():
            yield _metric(family, self._rows.get(family.name, ()))


def _metric(family: Family, rows: Sequence[tuple[tuple[str, ...], Value]]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in rows:
            assert isinstance(value, Histogram)
            histogram.add_metric(labels, _cumulative(value), value.total)
        return histogram
    plain = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
        family.name, family.help, labels=family.labels
    )
    for labels, value in rows:
        assert not isinstance(value, Histogram)
        plain.add_metric(labels, value)
    return plain


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    names = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True))
