"""The metrics of a host: names, kinds, labels, and the texts that a scrape and docs/reference/metrics.md have."""

from __future__ import annotations

from typing import NamedTuple


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
    _counter(
        "items_enqueued", "Items stored in this host's shards, through any host.", "namespace", of="namespace.enqueued"
    ),
    _counter(
        "items_delivered",
        "Deliveries of items of this host's shards, repeated ones included.",
        "namespace",
        of="namespace.delivered",
    ),
    _counter("items_redelivered", "Deliveries of items that were delivered before.", of="redelivered"),
    _counter(
        "items_nacked",
        "Items that a nack returned to their topic, ready or delayed. A `reject` counts here if the topic's "
        "script keeps the item. An item that the nack moves or removes counts in `foqs_items_dead_total` or "
        "`foqs_items_removed_total` instead.",
        "namespace",
        of="namespace.nacked",
    ),
    _counter(
        "items_released",
        "Items given back unprocessed: the consumer released them, its connection ended before the reply, or "
        "an operator ended their leases.",
        "namespace",
        of="namespace.released",
    ),
    _counter(
        "items_removed",
        "Items removed, by cause: `ack`, `ttl`, `delete`, `cancel`, `dropped` (an at-most-once item whose "
        "lease ended or that was nacked), `rejected` and `exhausted` (rejected, or failed at its last "
        "attempt, in a topic without a dead-letter topic), `hook` (the script of the topic dropped the item, "
        "or gave it up where the topic has no dead-letter topic). There is no other cause.",
        "namespace",
        "cause",
    ),
    _counter(
        "items_dead",
        "Items moved to a dead-letter topic, by the cause of their failure: `failed`, `expired` (the lease "
        "ended by time), `rejected`, `hook` (the script of the topic gave it up), `limit` (ready again with "
        "all attempts used up).",
        "namespace",
        "cause",
    ),
    _counter(
        "attempts_failed",
        "Attempts that failed, whether the item is tried again or not, by cause: `failed`, `expired` (the "
        "lease ended by time), `rejected`, `hook` (the script of the topic ended the item); `limit` is always "
        "0, as it is no attempt. `foqs failing` shows the reasons.",
        "namespace",
        "cause",
    ),
    _counter(
        "items_redriven",
        "Dead letters returned to a topic by `foqs dead redrive`.",
        "namespace",
        of="namespace.redriven",
    ),
    _counter(
        "items_changed", "Items that an operator gave another priority or time.", "namespace", of="namespace.changed"
    ),
    _counter("items_due", "Delayed items that became ready.", of="due"),
    _counter("items_duplicate", "Enqueued items whose `dedup_key` was stored before.", of="duplicates"),
    _counter("item_batches", "Batches of items with their home on this host: `created`, `ended`.", "event"),
    _counter(
        "schedule_times",
        "Times of schedules that this host coordinates: `fired` (also again after a take-over, which stores "
        "nothing), `missed`.",
        "outcome",
    ),
    _counter(
        "quota_items",
        "Items of namespaces with a quota, on the host that got the request: `admitted`, `refused`.",
        "outcome",
    ),
    _counter(
        "items_refused",
        "Items answered with an error. `stale_lease` and `not_found` are late acks, `overloaded` is a full "
        "buffer, `outcome_unknown` is a change with an unknown outcome.",
        "code",
    ),
    _histogram(
        "item_queue_seconds",
        "Time from the moment at which an item was ready, since its enqueue or its due time, to its first "
        "delivery. Later deliveries of the item do not count.",
        "namespace",
    ),
    _histogram(
        "item_attempts",
        "Attempts of an item at its end: by an ack, as a dead letter, or removed as a failure. Items that a "
        "TTL, a delete or a cancel removed do not count.",
        "namespace",
    ),
    _gauge(
        "quota_used_ratio",
        "Items of the namespace in this host's shards over its quota (`stored_items` of `[quotas]`); the sum "
        "over the hosts is the level, and 1 is full. The fullest `admin.namespaces` have series.",
        "namespace",
    ),
    _gauge(
        "quota_items_per_second",
        "The rate that the quota of the namespace allows (`enqueues_per_second` of `[quotas]`), the same on "
        "each host. `sum by (namespace) (rate(foqs_items_enqueued_total[1m])) / max by (namespace) "
        "(foqs_quota_items_per_second)` is the used part. `foqs status` has both numbers.",
        "namespace",
    ),
    _counter("leases_extended", "Leases extended.", "namespace", of="namespace.extended"),
    _counter(
        "leases_expired",
        "Leases that ended by time: the consumer died, or took longer than its lease.",
        "namespace",
        of="namespace.expired",
    ),
    _counter("lease_writes", "Leases written to the database.", of="lease_writes"),
    _counter(
        "lease_writes_saved",
        "Leases that ended before their write. `foqs_lease_writes_total` plus this is the number without the delay.",
        of="lease_writes_saved",
    ),
)
_TOPICS = (
    _gauge(
        "topic_items",
        "Items in this host's shards by `state`: `ready`, `delayed`, `leased`. Ready items that are held have "
        "series of their own. An item that is changing may briefly count as delayed.",
        "namespace",
        "topic",
        "state",
        "held",
    ),
    _gauge(
        "topic_oldest_ready_age_seconds",
        "Age of the oldest ready item since its enqueue, its due time or its death; of held items apart. It "
        "is exact while the host has the oldest items of their lane in memory, else up to 66 s too high (more "
        "where the ready items of a lane are from more than 18 hours); 0: no item is ready.",
        "namespace",
        "topic",
        "held",
    ),
    _gauge(
        "topic_hung_handlers",
        "Handlers of workers that exceed their time limit, as their workers reported to this host in the last "
        "15 s. No series without such handlers.",
        "namespace",
        "topic",
    ),
    _gauge("topics", "Topics in this host's shards that hold items, or held some recently."),
    _counter("topic_enqueued", "Items stored.", "namespace", "topic"),
    _counter("topic_delivered", "Deliveries, repeated ones included.", "namespace", "topic"),
    _counter("topic_acked", "Items acked.", "namespace", "topic"),
    _counter(
        "topic_failed", "Attempts that failed, as `foqs_attempts_failed_total` counts them.", "namespace", "topic"
    ),
    _counter(
        "topic_dead", "Items that became dead letters, counted at the topic that they came from.", "namespace", "topic"
    ),
)
_TENANTS = (
    _counter(
        "tenant_served",
        "What this host delivered of a tenant, in the unit of the topic's `fair.unit`: items, KiB, or ms of "
        "leases. Items that did not reach their consumer, or were released as not begun, are taken off the "
        "next ones.",
        "namespace",
        "topic",
        "tenant",
    ),
    _gauge("tenant_weight", "Weight in effect.", "namespace", "topic", "tenant"),
    _gauge(
        "tenant_ready_items", "Ready items in this host's shards, parked ones included.", "namespace", "topic", "tenant"
    ),
)
_THROTTLES = (
    _gauge(
        "throttle_parked_items",
        "Ready items in this host's shards that wait for tokens or slots of the key.",
        "namespace",
        "throttle",
    ),
    _gauge(
        "throttle_parked_flows",
        "Sets of a topic, a fairness key and throttle keys whose items wait for it.",
        "namespace",
        "throttle",
    ),
    _gauge("throttle_longest_wait_seconds", "Age of the oldest parked flow.", "namespace", "throttle"),
    _gauge("throttle_tokens_held", "Tokens on this host for its next deliveries.", "namespace", "throttle"),
    _gauge(
        "throttle_slots_taken",
        "Live leases of items in this host's shards whose key limits leases.",
        "namespace",
        "throttle",
    ),
    _counter(
        "throttle_shadow_held",
        "Deliveries that a rate with `shadow` would have held: the key's coordinator had no token for them. "
        "`foqs throttle list` has those over a limit on leases, too, and the counts of the last hour.",
        "namespace",
        "throttle",
    ),
    _counter(
        "throttle_overage",
        "Leases of this host that lived longer than the throttle's `timeout_ms`.",
        "namespace",
        "throttle",
    ),
    _counter(
        "throttle_reclaimed",
        "Leases with a limited key that ended by time on this host: their worker is gone, or hangs.",
        "namespace",
        "throttle",
    ),
    _counter(
        "throttle_tokens_lent",
        "Tokens granted to hosts by this one, as the coordinator of throttle keys. Tokens that are given back "
        "are counted again when they are granted again.",
        of="tokens_lent",
    ),
    _counter(
        "throttle_tokens_lost",
        "Tokens that this host was granted and that became void before their use: 1.5 s after its last answer "
        "from the coordinator, or when the coordinator changed.",
        of="lost.tokens",
    ),
)
_HOOKS = (
    _counter(
        "hook_calls",
        "Calls of scripts that ended on this host, failed ones included. Calls of `foqs hook try` count, too.",
        of="hooks.calls",
    ),
    _counter(
        "hook_failures",
        "Calls that failed: `error` (the script raised an error), `timeout`, `memory`, `killed` (the host "
        "ended the process), `invalid` (a result that a script may not return), `open` (not called: the "
        "breaker is open), `unavailable` (not called: too many calls wait, or no process runs).",
        "kind",
    ),
    _counter("hook_kills", "Processes that the host ended because a call was stuck.", of="hooks.kills"),
    _gauge("hook_queued_calls", "Calls that wait for a process.", of="hooks.queued"),
    _gauge("hook_processes", "Processes that are ready to run scripts; 0 before the first call.", of="hooks.children"),
)
_REQUESTS = (
    _histogram(
        "request_duration_seconds",
        "Time from the arrival of a request's frame to its reply. It includes the wait of a Dequeue, "
        "GetRouting or WatchTopics, and of an AckAndDequeue without acks. A forwarded request counts on both "
        "hosts. The namespace is empty if the request names none, as an ack may.",
        "method",
        "namespace",
    ),
    _counter(
        "request_errors",
        "Requests answered with an error as a whole. Errors of single items in a batch are in "
        "`foqs_items_refused_total`.",
        "method",
        "code",
    ),
    _counter("request_bytes", "Bytes of requests.", "method"),
    _counter("answer_bytes", "Bytes of replies.", "method"),
    _counter("requests_lost", "Requests whose caller disconnected before the reply.", of="rpc.lost"),
    _counter(
        "requests_failed",
        "Requests that failed because of a fault in foqs; see `handler.failed` in the log.",
        of="rpc.failed",
    ),
    _counter("answers_too_large", "Replies that did not fit a frame.", of="rpc.too_large"),
    _counter("requests_forwarded", "Requests sent to other hosts for callers.", of="forwarded"),
    _counter("requests_held", "Requests that waited for a shard without an owner, as in a hand-over.", of="held"),
    _counter(
        "frames_refused",
        "Frames that reached no method: `invalid`, `unknown method`, `message type`, `oneway` (other than "
        "`EndWait`), `unauthenticated` (over 64 KiB before the first authenticated request of a connection).",
        "reason",
    ),
    _gauge("connections", "Open connections of clients and other hosts.", of="rpc.connections"),
    _counter("connections_accepted", "Connections accepted.", of="rpc.connections_accepted"),
    _counter(
        "connections_refused",
        "Connections refused because of `server.max_connections` or `server.max_connections_per_address`, or "
        "because the host stops; see `connection.refused` in the log.",
        of="rpc.connections_refused",
    ),
    _counter(
        "connections_closed",
        "Connections that the host closed: `oversized`, `malformed`, `slow frame`, `slow reader`, `idle`.",
        "reason",
    ),
    _gauge(
        "result_waiters",
        "Callers of `GetResult` that wait on this host; `limits.result_waiters` is their bound.",
        of="awaited.count",
    ),
    _gauge("budget_used_bytes", "Memory in use for requests, items and replies.", of="budget.used_bytes"),
    _gauge("budget_limit_bytes", "`host.budget_bytes`.", of="budget.limit_bytes"),
    _counter(
        "budget_waits",
        "Incomplete frames that waited for memory, because the budget was full, or frames of their kind or "
        "address had used their share.",
        of="rpc.budget_waits",
    ),
)
_SHARDS = (
    _gauge(
        "shard_state",
        "1 for the shard's state on this host, 0 for every other state: `assigned`, `opening`, `serving`, "
        "`draining`, `closed`.",
        "shard",
        "state",
    ),
    _gauge(
        "shard_epoch", "Epoch of a shard that this host serves. Only the owner of a shard has this series.", "shard"
    ),
    _gauge(
        "shard_breaker_state",
        "1 for the state of the circuit breaker, 0 for every other state: `closed`, `open`, `half_open`.",
        "shard",
        "state",
    ),
    _counter("shard_breaker_opened", "Times that the circuit breaker opened.", "shard"),
    _gauge("shard_connection_lost", "1 while the database connection is lost.", "shard"),
    _gauge(
        "shard_disk_full",
        "1 from a transaction that failed because the database's disk, table space or file is full, to the "
        "next one that is committed.",
        "shard",
    ),
    _gauge(
        "shard_disk_free_bytes",
        "Free bytes of the disk of the database of a shard that this host serves, read every 5 minutes while "
        "the host is scraped. Only SQLite reports them, and MariaDB with its plugin DISKS and the right FILE.",
        "shard",
    ),
    _gauge(
        "shard_restored_at_seconds",
        "Unix time, by the database's clock, at which an owner found last that the database is an older copy. "
        "No series if that never happened.",
        "shard",
    ),
    _gauge("shard_pending_inserts", "Items that wait for a transaction.", "shard"),
    _gauge(
        "shard_pending_chunks", "Parts of enqueues that wait for a transaction; each holds some of the items.", "shard"
    ),
    _gauge("shard_pending_changes", "Acks, nacks, extensions and deletes that wait for a transaction.", "shard"),
    _gauge("shard_pending_looks", "Items that wait for a look-up in the database.", "shard"),
    _gauge("shard_window_rows", "Ready items in memory.", "shard"),
    _gauge(
        "shard_unindexed_items",
        "Items without a row in the index of ready items; an ack that comes in time saves the row.",
        "shard",
    ),
    _gauge(
        "shard_kept_items",
        "Items that have ended and that their topic keeps (`keep`); they are in no other count of items.",
        "shard",
    ),
    _gauge("shard_progress_items", "Items with a checkpoint, progress or a log, also kept ones.", "shard"),
    _gauge("shard_leases", "Leases in memory: `unwritten` (some may have ended) and `written`.", "shard", "state"),
    _histogram("shard_trip_seconds", "Time of one call to the database: at most one transaction, then reads.", "shard"),
    _histogram(
        "shard_transaction_seconds", "Time of one transaction, its commit included, successful or not.", "shard"
    ),
    _histogram("shard_transaction_rows", "Items and changes in one transaction.", "shard"),
    _gauge(
        "shards_unreachable",
        "Shards of this host whose database does not answer it: its last call failed, or takes longer than "
        "`breaker.hang_ms`. The host stays ready.",
    ),
    _gauge(
        "shards_unserved",
        "Shards of this host that it does not serve although their database answers it or another host: they "
        "open, move, or are refused. The host stays ready.",
    ),
    _counter(
        "shard_moves",
        "Shards `opened`, `released` in order, `lost` to another owner, or `not_opened` (a failed try).",
        "outcome",
    ),
    _histogram(
        "shard_takeover_seconds",
        "Time in which a shard that this host took over had no owner, as its news from ZooKeeper say; 0 if "
        "the shard went from owner to owner. A host that dies stays the owner until its session ends, so add "
        "`zookeeper.session_timeout_ms` for its shards.",
    ),
    _histogram(
        "shard_drain_seconds",
        "Time from the begin of a shard's hand-over on this host to its end. Requests for the shard wait, or "
        "go to the next owner.",
    ),
    _counter("transactions", "Transactions with a known outcome.", of="transactions"),
    _counter("transaction_rows", "Items and changes committed.", of="transaction_rows"),
    _counter("transactions_failed", "Transactions that were certainly not committed.", of="failed_transactions"),
    _counter(
        "transactions_unsettled",
        "Transactions that lost their connection during the commit. The host found out their outcome later.",
        of="unsettled_transactions",
    ),
    _counter(
        "rows_refused", "Rows that a database refused. Their items were answered with an error.", of="refused_rows"
    ),
    _counter("window_hits", "Dequeues that got items from memory at once.", of="window_hits"),
    _counter("window_misses", "Dequeues of topics with ready items that waited for the database.", of="window_misses"),
    _counter("page_reads", "Pages of ready items read.", of="page_reads"),
    _counter("page_rows", "Rows of pages of ready items.", of="page_rows"),
    _counter("body_reads", "Bodies read apart from their page.", of="body_reads"),
    _counter(
        "merge_waits", "Waits of a topic for the next items of one shard (`host.merge_wait_ms`).", of="merge_waits"
    ),
    _counter(
        "merge_skips",
        "Dequeues that were answered without a slow shard. Their items may be out of priority order with that "
        "shard's items.",
        of="merge_skips",
    ),
)
_CLUSTER = (
    _gauge(
        "zookeeper_session_state",
        "1 for the state of the session, 0 for every other state: `connected`, `suspended`, `expired` (lost).",
        "state",
    ),
    _counter(
        "zookeeper_session_changes",
        "Changes of the session, by the new state. `expired` counts lost sessions.",
        "state",
    ),
    _gauge(
        "zookeeper_held",
        "1 while the host does not act on ZooKeeper's records: `loss` (they were lost or are older, and hosts "
        "write them back), `other_cluster`.",
        "reason",
    ),
    _counter(
        "zookeeper_losses",
        "Times that ZooKeeper had lost its data (`lost`), or had an older copy (`restored`).",
        "kind",
    ),
    _histogram("zookeeper_request_seconds", "Time from a request to ZooKeeper to its answer."),
    _gauge("controller", "1 on the host that is elected to write the assignment."),
    _gauge("assignment_version", "Version of the assignment that this host knows; -1: none yet."),
    _gauge("shards_assigned", "Shards that the assignment gives this host."),
    _gauge("cluster_hosts", "Living hosts that this host knows."),
    _gauge("cluster_shards", "Shards of the cluster that are in use, as far as this host knows."),
    _gauge("cluster_shards_moving", "Shards of the cluster that their assigned host does not serve yet."),
    _gauge("cluster_slots_moving", "Slots of `dedup_key`s that move between shards."),
)
_PROCESS = (
    _gauge("ready", "1 while `/readyz` answers 200."),
    _gauge("build_info", "1; the labels have the versions of foqs and of Python.", "version", "python"),
    _gauge("host_info", "1; the labels have `server.id` and the address for clients.", "id", "address"),
    _histogram(
        "event_loop_lag_seconds",
        "Delay of the event loop, measured ten times a second. Every request waits at least that long.",
    ),
    _counter(
        "clock_jumps",
        "Times that the clocks of the machine and the databases differed, or that their difference changed.",
        of="clock_jumps",
    ),
    _gauge(
        "certificate_expires_at_seconds",
        "Unix time at which the certificate that the host shows expires. It changes when SIGHUP reads the "
        "certificate again. No series without TLS.",
    ),
    _gauge(
        "machine_clock_ahead_seconds",
        "Lead of the machine's clock over the databases' clocks. foqs uses the databases' clocks for stored times.",
    ),
)
GROUPS = {
    "items": _ITEMS,
    "topics": _TOPICS,
    "tenants-and-throttles": (*_TENANTS, *_THROTTLES),
    "hooks": _HOOKS,
    "requests": _REQUESTS,
    "shards": _SHARDS,
    "cluster": _CLUSTER,
    "process": _PROCESS,
}
FAMILIES = {family.name: family for group in GROUPS.values() for family in group}
