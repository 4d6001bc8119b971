"""Every metric of a host: its name, what it says, its labels. docs/metrics.md has the same, and a test compares."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """`name` is as Prometheus shows it. `kind` is "counter", "gauge" or "histogram"."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"foqs_{name}_total", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"foqs_{name}", "gauge", text, labels)


def _histogram(name: str, text: str, *labels: str) -> Family:
    return Family(f"foqs_{name}", "histogram", text, labels)


_ITEMS = (
    _counter("items_enqueued", "Items stored.", "namespace"),
    _counter("items_delivered", "Items handed to consumers.", "namespace"),
    _counter("items_redelivered", "Of those handed out, the ones that were handed out before."),
    _counter("items_nacked", "Items given back by a nack.", "namespace"),
    _counter("items_released", "Items given back that were not begun.", "namespace"),
    _counter("items_removed", "Items removed, by cause: ack, ttl, delete, dropped.", "namespace", "cause"),
    _counter("items_due", "Delays that were over."),
    _counter("items_duplicate", "Items of enqueues that were stored before under their dedup_key."),
    _counter("quota_items", "Items of namespaces with a quota, by what it said of them: admitted, refused.", "outcome"),
    _counter("items_refused", "Items answered with an error, by its code.", "code"),
    _counter("leases_extended", "Leases extended.", "namespace"),
    _counter("leases_expired", "Leases that ended by time.", "namespace"),
    _counter("lease_writes", "Leases written to the database."),
    _counter("lease_writes_saved", "Leases that ended before they had to be written."),
)
_TOPICS = (
    _gauge("topic_items", "Items on this host, by state: ready, delayed, leased.", "namespace", "topic", "state"),
    _gauge(
        "topic_oldest_ready_age_seconds",
        "Age of the oldest ready item, up to 66 s more than it is; 0: none is ready.",
        "namespace",
        "topic",
    ),
    _gauge("topics", "Topics that hold items, or did lately."),
)
_REQUESTS = (
    _histogram(
        "request_duration_seconds", "From a request's arrival to its answer, waits included.", "method", "namespace"
    ),
    _counter("request_errors", "Requests answered with an error as a whole.", "method", "code"),
    _counter("request_bytes", "Bytes of requests.", "method"),
    _counter("answer_bytes", "Bytes of answers.", "method"),
    _counter("requests_lost", "Requests whose caller was gone before the answer."),
    _counter("requests_failed", "Requests that met a fault of the host."),
    _counter("answers_too_large", "Answers that did not fit a frame."),
    _counter("requests_forwarded", "Requests sent to other hosts."),
    _counter("requests_held", "Requests that waited for a shard without an owner."),
    _counter("frames_refused", "Frames that were no request of the service.", "reason"),
    _gauge("connections", "Open connections of clients and other hosts."),
    _counter("connections_accepted", "Connections taken."),
    _counter("connections_refused", "Connections refused because there were too many, or at the end."),
    _counter("connections_closed", "Connections that the host closed for cause.", "reason"),
    _gauge("budget_used_bytes", "Bytes held for callers."),
    _gauge("budget_limit_bytes", "Bytes that may be held for callers."),
    _counter("budget_waits", "Frames that waited for room in the budget."),
)
_SHARDS = (
    _gauge("shard_state", "1 for the state that the shard is in on this host.", "shard", "state"),
    _gauge("shard_epoch", "Epoch of a shard that is served.", "shard"),
    _gauge("shard_breaker_state", "1 for the state of the breaker: closed, open, half_open.", "shard", "state"),
    _counter("shard_breaker_opened", "How often the breaker opened.", "shard"),
    _gauge("shard_connection_lost", "1 while the database connection is lost.", "shard"),
    _gauge("shard_pending_inserts", "Items that wait to be stored.", "shard"),
    _gauge("shard_pending_chunks", "Parts of enqueues that wait to be stored.", "shard"),
    _gauge("shard_pending_changes", "Acks, nacks and the like that wait to be written.", "shard"),
    _gauge("shard_pending_looks", "Items that wait to be looked up.", "shard"),
    _gauge("shard_window_rows", "Ready items in memory.", "shard"),
    _gauge("shard_leases", "Leases in memory, unwritten (some may be over) or written.", "shard", "state"),
    _histogram("shard_trip_seconds", "Trips to the database, reads included.", "shard"),
    _histogram("shard_transaction_seconds", "Transactions.", "shard"),
    _histogram("shard_transaction_rows", "Items and changes in a transaction.", "shard"),
    _gauge("shards_unreachable", "Shards that this host is to serve and whose database does not answer it."),
    _counter("shard_moves", "Shards opened, released in order, lost to another owner, not opened.", "outcome"),
    _counter("transactions", "Transactions whose outcome is known."),
    _counter("transaction_rows", "Items and changes committed."),
    _counter("transactions_failed", "Transactions that were certainly not committed."),
    _counter("transactions_unsettled", "Transactions whose outcome had to be found out."),
    _counter("rows_refused", "Rows that a database refused."),
    _counter("window_hits", "Dequeues that got items from memory at once."),
    _counter("window_misses", "Dequeues that had to wait for a page."),
    _counter("page_reads", "Pages of ready items read."),
    _counter("page_rows", "Rows of those pages."),
    _counter("body_reads", "Bodies read apart from their page."),
    _counter("merge_waits", "Topics held up by a shard that lacked its first item."),
    _counter("merge_skips", "Dequeues that went on without such a shard."),
)
_CLUSTER = (
    _gauge("zookeeper_session_state", "1 for the state of the session: connected, suspended, expired.", "state"),
    _counter("zookeeper_session_changes", "How often the session came to a state.", "state"),
    _gauge("controller", "1 on the host that is elected to write the assignment."),
    _gauge("assignment_version", "Version of the assignment as this host knows it; -1: none yet."),
    _gauge("shards_assigned", "Shards that this host is to serve."),
    _gauge("cluster_hosts", "Living hosts as this one knows them."),
    _gauge("cluster_shards", "Shards that are to be served, by any host."),
    _gauge("cluster_shards_moving", "Shards of the cluster that the assigned host does not serve (yet)."),
    _gauge("cluster_slots_moving", "Slots of dedup_keys that move between shards."),
)
_PROCESS = (
    _gauge("ready", "1 while /readyz says so."),
    _gauge("build_info", "1; the version.", "version", "python"),
    _gauge("host_info", "1; the id of the host, and its address as clients are told.", "id", "address"),
    _histogram("event_loop_lag_seconds", "How late the event loop was, asked ten times a second."),
    _counter("clock_jumps", "Times the machine's and the databases' clocks were found to differ."),
    _gauge("machine_clock_ahead_seconds", "How far the machine's clock is ahead of the databases', which decide."),
)
FAMILIES = {family.name: family for family in (*_ITEMS, *_TOPICS, *_REQUESTS, *_SHARDS, *_CLUSTER, *_PROCESS)}
