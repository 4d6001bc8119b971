/*
 * The contract of foqs: a priority queue as a service.
 *
 * Transport: framed. Protocol: strict binary. Any Apache Thrift client in any language can talk to it.
 *
 * Units, everywhere in this file:
 *   *_at_ms and deliver_after_ms   Unix epoch, milliseconds (i64)
 *   every other *_ms               a duration in milliseconds (i64)
 *   priority                       i32; lower is more urgent
 *   id, lease                      i64, opaque; ids are positive
 *   names (ns, topic)              UTF-8, 1 to 255 bytes, no control characters, compared byte by byte
 *
 * This file quotes default limits. GetServerInfo returns the limits of a server.
 *
 * The reply to a batch has one outcome per item. A wrong item does not change the outcomes of other items. Equal entries
 * of one request have the same outcome. A request that is wrong as a whole (too many entries, a wrong context, a wrong
 * namespace) throws RequestError. No field is `required`, so the contract can grow. Comments reserve the unused field ids.
 *
 * A host that stops sends GOAWAY on every connection: an exception message (TApplicationException, INTERNAL_ERROR) with
 * the name "Goodbye" and the sequence id 0, without a request. A client that reads GOAWAY instead of a reply knows that
 * the host did not start its request.
 */

namespace py foqs_thrift
namespace java io.foqs.thrift
namespace go foqsthrift
namespace cpp foqs.thrift
namespace js foqs

/** How often an item may reach a consumer. */
enum Delivery {
  UNSPECIFIED = 0,
  /** Delivered again until it is acked or deleted, or its TTL ends. The default. */
  AT_LEAST_ONCE = 1,
  /** Never delivered twice. The end of its lease removes the item, unless the consumer released it as not started. */
  AT_MOST_ONCE = 2,
}

/** The state of an item, as GetItem and ListItems return it. */
enum ItemState {
  UNSPECIFIED = 0,
  /** A consumer may lease it now. */
  READY = 1,
  /** Its deliver_after_ms is in the future. */
  DELAYED = 2,
  /** A consumer holds a lease of it. */
  LEASED = 3,
  /** It was acked, and its topic keeps it (keep.completed_ms). */
  COMPLETED = 4,
  /** It failed for good, and its topic keeps it (keep.failed_ms). GetResult: or it is in a dead-letter topic. */
  FAILED = 5,
  /** It waits for an earlier item of its order key. */
  BEHIND = 6,
}

enum ErrorCode {
  UNSPECIFIED = 0,
  /** The input is wrong. The host refuses the same input each time. Nothing was changed. */
  INVALID = 1,
  /** The item does not exist or was removed, or the caller has no right in its namespace. */
  NOT_FOUND = 2,
  /** The lease of the request is not the item's current lease. Nothing was changed. */
  STALE_LEASE = 3,
  /**
   * A bounded buffer is full, the namespace's quota is used up, or the topic has all items that its policy allows.
   * Nothing was changed. Try again after retry_after_ms.
   */
  OVERLOADED = 4,
  /** The shard (or every shard) cannot be used now, or the topic is closed. Nothing was changed. Try again later. */
  UNAVAILABLE = 5,
  /**
   * The change may have been committed: the host could not find out within the time of the request. An enqueue also gets
   * this code if the shard's database does not answer for twice breaker.hang_ms. retry_after_ms is set then. An item
   * with a dedup_key may be enqueued again.
   */
  OUTCOME_UNKNOWN = 6,
  /** The caller did not prove its identity. */
  UNAUTHENTICATED = 7,
  /** The caller lacks the right (produce, consume or admin) in the namespace of the request. */
  FORBIDDEN = 8,
  /**
   * Between hosts: the asked host does not serve the shard. Nothing was changed. Clients get UNAVAILABLE with
   * retry_after_ms 0 in its place.
   */
  NOT_OWNER = 9,
  /**
   * The namespace's settings have another version than the expected one; or ChangeItems: a consumer has leased the item,
   * or it has ended. Nothing was changed.
   */
  CONFLICT = 10,
}

/** Why an item is in a dead-letter topic. */
enum FailureCause {
  UNSPECIFIED = 0,
  /** A consumer reported with `failed` that its work failed. */
  FAILED = 1,
  /** Its lease ended by time. */
  EXPIRED = 2,
  /** A consumer rejected it. */
  REJECTED = 3,
  /** The script of its topic gave it up. */
  HOOK = 4,
  /** It was ready after its last attempt: the limit was lowered, or nacks without `failed` used the attempts. */
  LIMIT = 5,
}

/**
 * Why an item is not delivered now. ExplainItem lists reasons in the order in which they must end: GONE, EXHAUSTED,
 * SHARD_NOT_SERVED, CLOCK_IN_DOUBT, OWNER_IN_GRACE, BREAKER_OPEN, DELAYED, LEASED, BEHIND_IN_ORDER, PAUSED, THROTTLED,
 * CONCURRENCY, BEHIND_IN_LANE, BEHIND_IN_TURN, PER_WORKER, NO_CONSUMER, NOT_LOADED. The numbers say nothing about the order.
 */
enum Reason {
  UNSPECIFIED = 0,
  /** The item does not exist or was removed, or the caller has no right in its namespace. A topic: no items. */
  GONE = 1,
  /**
   * Its attempts (`count`) are used up, as after a lower limit. The next dequeue that reaches it moves it to the
   * dead-letter topic `key`. Without a key, the dequeue removes it.
   */
  EXHAUSTED = 2,
  /** No host serves the item's shard now. */
  SHARD_NOT_SERVED = 3,
  /** An earlier owner may still run. The shard's host waits until that owner has certainly stopped: until_ms. */
  OWNER_IN_GRACE = 4,
  /** The shard's database fails, is slow, or does not answer. until_ms: of the next trial. */
  BREAKER_OPEN = 5,
  /** Its deliver_after_ms is in the future: until_ms. A topic: `count` items are delayed, and none is ready. */
  DELAYED = 6,
  /**
   * `by` has leased it until until_ms. since_ms: its delivery, or the earliest moment that the shard's owner knows; `count`:
   * extensions of the lease by this owner, if any. A topic: `count` items are leased, and none is ready.
   */
  LEASED = 7,
  /**
   * The settings entry `key` pauses the topic, or its tenant `tenant`. A topic: the entry pauses `count` tenants, and other
   * ones have no ready items, or only items that wait for throttles. by, since_ms: the author and the time of the pause, or of the last change; of several
   * tenants: of the latest pause.
   */
  PAUSED = 8,
  /**
   * The throttle `key` has no token. The next token, for the first item that waits, comes at until_ms; the item's limit has the
   * estimate of its own wait (estimate_ms), in CONCURRENCY too. count: flows that get a token before its flow.
   */
  THROTTLED = 9,
  /** All slots of the throttle `key` are taken. count: flows before its flow. item_ids: some items that hold slots. */
  CONCURRENCY = 10,
  /** At least `count` items of its lane come first. */
  BEHIND_IN_LANE = 11,
  /** `count` turns of other tenants come before its tenant's (about). key: its tenant. */
  BEHIND_IN_TURN = 12,
  /** No consumer waits for the topic at the item's host, and none asked for it there lately. */
  NO_CONSUMER = 13,
  /** Its row or its body is not in the host's memory. A dequeue that needs it reads it. */
  NOT_LOADED = 14,
  /**
   * The consumers that wait for the topic at the item's host, or asked there last, may have no further items. Each of
   * their workers holds `count` items, as the settings entry `key` allows (per_worker). by: one of these workers.
   */
  PER_WORKER = 15,
  /** Clocks have jumped. The shard's host delivers nothing until it knows the right clock. */
  CLOCK_IN_DOUBT = 16,
  /**
   * An earlier item of its order key `key` has not ended. item_ids: the item that it waits for now. count: all items of the
   * key that come first, if the host knows them. until_ms: the retry of that item, or the end of its lease. A topic: `count`
   * items wait for earlier ones, and none is ready.
   */
  BEHIND_IN_ORDER = 17,
}

/** Between hosts: the shard that has the items of an order_key, which is not the shard of its hash slot. */
struct KeyHome {
  /** 0: the shard of the hash slot. */
  1: i32 shard,
  /** The stamp of the slot record that moved the slot away from the shard. */
  2: i64 stamp,
  /** The shard has no item of the key, and takes none. */
  3: optional bool empty,
}

/** Why one item of a request failed. Messages never hold SQL, tracebacks or secrets. */
struct ItemError {
  1: ErrorCode code,
  2: string message,
  /**
   * Duration: retry after it. Set with OVERLOADED, sometimes with UNAVAILABLE. 0: this host does not serve the item's
   * shard; ask another host.
   */
  3: optional i64 retry_after_ms,
  /** Between hosts: of an enqueue with an order_key. */
  4: optional KeyHome home,
}

/** The request as a whole was refused. */
exception RequestError {
  1: ErrorCode code,
  2: string message,
  /** Duration: retry after it. */
  3: optional i64 retry_after_ms,
}

/** In place of headers, which the framed protocol does not have. Optional in every request. */
struct RequestContext {
  /** Credential of the caller; at most 4,096 bytes. Ignored by a server without authentication (auth.principals_file).
      With authentication, a connection needs a first authenticated request of at most 65,536 bytes, such as
      GetServerInfo. A server answers a larger request before it with UNAUTHENTICATED. */
  1: optional string token,
  /** Appears in the logs of all hosts that handle the request; at most 128 bytes, printable. Default: none. */
  2: optional string request_id,
  /** W3C trace context; at most 128 bytes. Default: none. */
  3: optional string traceparent,
  /** Duration for which the caller waits for the reply, 1 to 600,000 (for Dequeue: beyond wait_ms). Default 30,000. */
  4: optional i64 timeout_ms,
  /** Set by hosts: how often the request was forwarded, 0 or more. From 1 on it is not forwarded again. Default 0. */
  5: optional i32 hops,
  /** Set by hosts: proves to another host of the cluster that a host sent the request. Clients leave it out. */
  6: optional string host_proof,
  /** Set by hosts, with host_proof: the principal of the forwarded request. Ignored from a client. */
  7: optional string principal,
  /** Set by hosts: the protocol version of the asking host. A host answers another version with UNAVAILABLE. */
  8: optional i32 peer_version,
  /** Set by hosts while the cluster's secret is replaced: the proof of the new one. host_proof is the previous one's
      then. */
  9: optional string host_proof_next,
  /** Names the client library and its version, such as foqs-python/0.1.0, for ListConsumers and GetStatus; the host keeps
      its first 64 bytes, without characters that cannot be printed. Default: not known. */
  10: optional string client,
  /** Names the program, such as console: in SettingsStamp, for a caller without a proof of its name. The host keeps its first
      64 characters. Default: not known. */
  11: optional string program,
}

// ---------------------------------------------------------------------------------------------- Enqueue

enum DedupUntil {
  UNSPECIFIED = 0,
  /** A time after the enqueue (limits.dedup_window_ms), or after the time at which a delayed item becomes ready. */
  WINDOW = 1,
  /** When the first lease of the item is written. Payloads are not compared. */
  STARTED = 2,
  /** When the item ends, also as a dead letter. A redrive takes the key again. Payloads are not compared. */
  DONE = 3,
}

enum OnDuplicate {
  UNSPECIFIED = 0,
  /** Nothing is stored. */
  KEEP = 1,
  /** If the item has not begun, it gets the payload, metadata, headers, priority and time of this enqueue. Payloads are
      not compared. */
  REPLACE = 2,
}

enum RetryKind {
  UNSPECIFIED = 0,
  /** Each delay is first_ms. */
  CONSTANT = 1,
  /** first_ms + (n - 1) * step_ms before attempt n + 1. */
  LINEAR = 2,
  /** first_ms * factor ^ (n - 1). */
  EXPONENTIAL = 3,
}

/** The delays of a failed item, as `retry` of a topic's policy has them; unset fields are as there by default. */
struct RetryRule {
  1: RetryKind kind,
  2: optional i64 first_ms,
  3: optional i64 step_ms,
  /** 1 to 100. */
  4: optional double factor,
  5: optional i64 longest_ms,
  /** 0 to 1: the part of each delay that is random. */
  6: optional double jitter,
}

/**
 * What an item says in place of its topic's policy. A bound that the policy lists in `enforce` holds all the same. Each
 * distinct set of rules in a topic is a lane of its own; a topic has at most 256 of them on a shard at a time.
 */
struct ItemRules {
  1: optional RetryRule retry_rule,
  /** 0: no limit. */
  2: optional i32 max_attempts,
  /** 0 to 366 days; 0: no limit. */
  3: optional i64 max_total_ms,
  /**
   * A topic of the namespace whose policy has no dead-letter topic, and not the item's own. Unset: the policy's
   * dead-letter topic.
   */
  4: optional string dead_topic,
  /** How long the item is kept after its end, with the result of its ack; 0 to 366 days; 0: not at all. */
  5: optional i64 keep_ms,
  6: optional bool exact_attempts,
}

/**
 * One unit of work as a producer gives it. The topic's policy may have defaults of priority, delay_ms, lease_ms, ttl_ms and
 * delivery. A priority of 0 and AT_LEAST_ONCE count as not set, because every client sends them.
 */
struct ItemSpec {
  /** Queue inside the namespace; it exists while it holds items and needs no creation. */
  1: string topic,
  /** Opaque to foqs; 0 bytes to 1 MiB. */
  2: binary payload,
  /** Opaque small state that a nack may replace (partial progress); at most 4 KiB. Default: none. */
  3: optional binary metadata,
  /** Fixed text pairs; keys and values together at most 4 KiB. Default: none. */
  4: optional map<string, string> headers,
  /** Lower is more urgent; any i32. */
  5: i32 priority = 0,
  /** Epoch milliseconds: earliest delivery. A time in the past means now. 1,000 to 10^11 is INVALID: such a number is a time in
      seconds, or a duration. At most 366 days ahead. Default: now. */
  6: optional i64 deliver_after_ms,
  /** Duration from the enqueue, 0 to 366 days; instead of deliver_after_ms (both is INVALID). Default: 0. */
  7: optional i64 delay_ms,
  /** Duration of a lease if the consumer gives none, 100 ms to 12 h. Default: the server's, 30,000. */
  8: optional i64 lease_ms,
  /** Duration from the enqueue until the item is removed, unless it is leased then; 1 ms to 366 days. Default: never. */
  9: optional i64 ttl_ms,
  10: Delivery delivery = Delivery.AT_LEAST_ONCE,
  /**
   * Idempotency key, 1 to 255 bytes. While the server remembers it (limits: dedup_window_ms), a second enqueue with the
   * same key in the same namespace returns the id of the first item and stores nothing. With another topic or payload
   * it is INVALID; the other fields are not compared. UNAVAILABLE while the shard that holds the key is down. The
   * enqueue may be repeated after OUTCOME_UNKNOWN. Default: none.
   */
  11: optional string dedup_key,
  /**
   * The tenant inside the topic: tenants with ready items share its deliveries by weight. 1 to 255 bytes, no control
   * characters. Default: the tenant without a name.
   */
  12: optional string fairness_key,
  /**
   * Rate limits of the item. It is delivered when each of these keys with a throttle in the settings has a token. At most 8,
   * none twice, each as fairness_key and without "*" at its end; together at most 512 bytes, with one between two keys.
   * Many items should share a key: each set of keys is a lane of its own. Default: none.
   */
  13: optional list<string> throttle_keys,
  /**
   * The tenant's share against other tenants, 1 to 1,000. On each shard the weight of the tenant's last stored item with a
   * weight counts. Weights in the settings come first. Default: no change; 1 at first.
   */
  14: optional i32 weight,
  /** Default: none, so the policy of the topic decides. */
  15: optional ItemRules rules,
  /** When the dedup_key is free again. Default: WINDOW. Needs a dedup_key. */
  16: optional DedupUntil dedup_until,
  /** What happens if an item has the dedup_key. Default: KEEP. Needs a dedup_key. */
  17: optional OnDuplicate on_duplicate,
  /**
   * Epoch milliseconds: the end of the TTL, in place of ttl_ms (both is INVALID). For copies of items: it depends only on
   * the server's clock. At most 366 days ahead. A time in the past is a TTL of 1 ms.
   */
  18: optional i64 expires_at_ms,
  /**
   * Of the items of a topic with one order key, the next is delivered only after the item before it has ended: it was acked or
   * removed, or is a dead letter. They are in the order in which they were stored; items of one request keep their order. A
   * delayed item enters the order when it becomes due. 1 to 255 bytes, no control characters. Not with a dedup_key: an enqueue
   * is not repeated after OUTCOME_UNKNOWN, as without a key. UNAVAILABLE while the shard of the key is down. Default: none.
   */
  19: optional string order_key,
  /**
   * The batch (CreateBatch) that the item becomes a member of. The item is stored after the home of the batch has committed it
   * as a member. INVALID if the batch has ended or was cancelled, and if the namespace has no such batch; UNAVAILABLE while its
   * home is down. Default: none.
   */
  20: optional i64 batch,
}

struct EnqueueRequest {
  1: string ns,
  /** 1 to 10,000 items. If any item has headers: at most 400,000 fields and header texts in the request. */
  2: list<ItemSpec> items,
  15: optional RequestContext context,
  /** Between hosts: one for each item. */
  16: optional list<KeyHome> homes,
}

/** Exactly one of id and error is set. */
struct EnqueueOutcome {
  /** The item is committed under this id. */
  1: optional i64 id,
  2: optional ItemError error,
  /** An earlier enqueue with the same dedup_key stored the item, which may have been removed since. */
  3: optional bool duplicate,
  /** The item had not begun, and has the payload, metadata, headers, priority and time of this enqueue now. */
  4: optional bool replaced,
}

struct EnqueueResponse {
  /** One per item, in the order of the request. */
  1: list<EnqueueOutcome> outcomes,
}

// ---------------------------------------------------------------------------------------------- Dequeue

struct TopicCount {
  1: string topic,
  /**
   * At most this many items, 1 to 10,000. The counts of a request without `most` are at most 10,000 together. In a request
   * that only reports `hung`, the counts of all topics are 0.
   */
  2: i32 count,
  /**
   * Items of the topic that the worker process holds, over all hosts, for topics with the policy per_worker. A process with
   * several requests at a time adds the counts of its other requests. The number holds until the reply: a process that
   * holds fewer items ends the wait (DequeueRequest.wait_ms), and asks again. Default: the host counts the leases that it
   * gave to the worker with this name (DequeueRequest.worker).
   */
  3: optional i32 holding,
  /**
   * Handlers of the worker process that exceed the worker's time limit on an item of the topic, for GetTopicStats. Needs
   * DequeueRequest.worker. The host forgets the report after 15 s. Default: no report.
   */
  4: optional i32 hung,
  /**
   * Weight of the topic among the topics with items, where they share `most`, 1 to 1,000. Needs `most`. A host that does
   * not know the field shares evenly. Default: 1.
   */
  5: optional i32 weight,
}

struct DequeueRequest {
  1: string ns,
  /** Topics, 1 to 1,000, none twice. Without `most` the topics are emptied in this order. */
  2: list<TopicCount> wants,
  /** Duration of the leases, 100 ms to 12 h. Default: each item's own, else the server's. */
  3: optional i64 lease_ms,
  /**
   * Duration to wait for a first item, 0 to 600,000. Default 0: reply at once. The wait ends if the caller sends the
   * oneway message EndWait, without arguments, behind the request on the same connection. EndWait gets no reply.
   */
  4: optional i64 wait_ms,
  /** Bound on the reply's payloads, metadata and headers together, in bytes. The first item always fits. Default: a frame. */
  5: optional i64 max_bytes,
  /** Names the worker process, for GetTopicStats and ReleaseLeases; 1 to 128 bytes, no control characters. */
  6: optional string worker,
  /** The items of the reply have a `ledger`. Default: no. */
  7: optional bool ledger,
  /**
   * The consumer begins this many items of the reply at once, from the first item on; 0 or more. The server marks the later
   * items as with ExtendItem.begun = false. Default: it begins all.
   */
  8: optional i32 begins,
  /**
   * At most this many items over all topics of `wants`, 1 to 10,000. The topics with ready items on the answering host share
   * it evenly, or by their weights. If it is too small for that, the host chooses topics at random: by their weights too.
   * Default: the sum of the counts.
   */
  9: optional i32 most,
  15: optional RequestContext context,
}

/** What ended the attempts of an item in a dead-letter topic. */
struct Failure {
  /** The topic that the item came from. */
  1: string topic,
  /** Its fairness key and throttle keys in that topic. A redrive restores them. */
  2: string fairness_key,
  3: list<string> throttle_keys,
  /** Deliveries in that topic. */
  4: i32 attempts,
  5: FailureCause cause,
  /** From the last nack; at most 1,024 bytes, cut at a character. */
  6: string reason,
  /** Equal for reasons that differ only in digits, hexadecimal numbers, quoted texts and UUIDs. */
  7: i64 fingerprint,
  /** Epoch milliseconds. */
  8: i64 died_at_ms,
  /** The worker that had the last lease, as it named itself. Default: not known, or it has no name. */
  9: optional string worker,
}

/** An attempt of an item that failed. */
struct LastFailure {
  /** Its number. */
  1: i32 attempt,
  2: FailureCause cause,
  /** From the nack; at most 1,024 bytes, cut at a character. */
  3: string reason,
  /** As in Failure. */
  4: i64 fingerprint,
  /** Epoch milliseconds. */
  5: i64 failed_at_ms,
  /** The worker that had the lease, as it named itself. Default: not known, or it has no name. */
  6: optional string worker,
}

/** How long an item waited, and for which deliveries, as far as the delivering host knows. */
struct Ledger {
  /** Duration from deliver_after_ms to this delivery. */
  1: i64 waited_ms,
  /**
   * Deliveries of the topic by the host since the item became ready, minus the items that were before it then. If
   * tenants take turns, only items of its own tenant count: a turn of another tenant overtakes nothing. An earlier item
   * that ended without a delivery, or still waits for a throttle, hides one overtaking item. The field is absent if the
   * host does not know the number: the item was ready before a consumer asked for ledgers of the topic, items outside
   * of memory may have been before it, or such items may be in more than 256 lanes.
   */
  2: optional i64 overtaken,
  /**
   * The lowest priority of the topic's ready items on other hosts, if it is below the priority of this item. Hosts ask
   * each other twice a second while consumers want ledgers of the topic. The field is absent if no host reported such an
   * item in the last 10 s. A host does not report an item outside of its memory, behind a throttle, or in a shard that
   * does not answer. The field is absent if tenants take turns at any priority (fair.scope "tenant").
   */
  3: optional i32 more_urgent_elsewhere,
  /** Duration since that report; set with more_urgent_elsewhere. */
  4: optional i64 more_urgent_age_ms,
  /** If tenants take turns: the host's deliveries of other tenants since then. Absent if `overtaken` is. */
  5: optional i64 other_tenants,
}

/** How far the work on an item is. */
struct Progress {
  /** Steps that are done; at least 0. */
  1: i64 done,
  /** All steps; at least 0. Default: not known. */
  2: optional i64 total,
  /** At most 256 bytes. */
  3: optional string text,
}

/** An item as a consumer or an operator sees it. */
struct Item {
  /** Positive; never used twice. */
  1: i64 id,
  /** Names this delivery in Ack, Nack and ExtendLease; 0 if nothing is leased. */
  2: i64 lease,
  /** 1 at the first delivery; a lower bound after a host crashed. 0: never delivered. */
  3: i32 attempt,
  4: string ns,
  5: string topic,
  6: i32 priority,
  7: binary payload,
  8: optional binary metadata,
  9: optional map<string, string> headers,
  10: Delivery delivery,
  /** Epoch milliseconds; the time of the enqueue if the producer gave no delay. */
  11: i64 deliver_after_ms,
  12: i64 enqueued_at_ms,
  /** Epoch milliseconds; 0 if nothing is leased. */
  13: i64 lease_expires_at_ms,
  /** Epoch milliseconds; set if the item has a TTL. */
  14: optional i64 expires_at_ms,
  /** The item's state; only in ListItems. */
  15: optional ItemState state,
  // 16: dedup_key
  /** As enqueued; unset without a key, like the next field. */
  17: optional string fairness_key,
  18: optional list<string> throttle_keys,
  /** Of a COMPLETED item, if its ack brought one and its topic keeps results (keep.results); only in GetItem. */
  19: optional binary result,
  /** Epoch milliseconds; of a COMPLETED or FAILED item. */
  20: optional i64 ended_at_ms,
  /** Of an item in a dead-letter topic, or of a FAILED one; only in GetItem and ListItems. */
  21: optional Failure failure,
  /** Only in the reply to a dequeue that asked for it. */
  22: optional Ledger ledger,
  /** The last one that a consumer of the item gave, also through a redrive. A dequeue counts it in max_bytes. */
  23: optional binary checkpoint,
  /** As a consumer of the item gave it; only in GetItem and ListItems, like the next field. */
  24: optional Progress progress,
  /** The last lines that its consumers gave, of 8 KiB in all. */
  25: optional list<string> log,
  /** As enqueued. Of a dead letter: the rules that it has after a redrive; only in GetItem and ListItems. */
  26: optional ItemRules rules,
  /**
   * Its last attempt that failed, since the enqueue or the last redrive; only in GetItem and ListItems. Absent if `failure`
   * is newer.
   */
  27: optional LastFailure last_failure,
  /** As enqueued; unset without a key. A dead letter has it too: a redrive restores its place in the order. */
  28: optional string order_key,
  /** As enqueued; unset without a batch. */
  29: optional i64 batch,
}

struct DequeueResponse {
  /**
   * Leased items. The items of a topic are in lane order (priority, deliver_after_ms, id). Without `most`, topics are in the
   * order of `wants`.
   */
  1: list<Item> items,
  /**
   * Ids of AT_MOST_ONCE items selected for this reply whose leases may or may not have been committed. Each is
   * delivered in another reply, or never. Default: none.
   */
  2: optional list<i64> doubtful,
  /** Between hosts, without items: the host had no ready item at this version (see WatchTopicsResponse). Default: none. */
  3: optional i64 news_version,
  /** Only without items: duration after which one of the topics may have an item. Default: unknown. */
  4: optional i64 retry_after_ms,
  /**
   * Only without items: "paused" if the policy of one of the topics pauses it, "throttled: <key>" or "concurrency: <key>"
   * if a throttle blocks its items, "per_worker" if the worker holds all items that it may, "paused_tenants" if a topic
   * has ready items here of paused tenants alone. Default: none.
   */
  5: optional string reason,
  /** The values of per_worker, by topic of `wants` with such a policy. Default: no topic has it. */
  6: optional map<string, i32> per_worker,
}

// ------------------------------------------------------------------------------ Ack, Nack, ExtendLease

/** INVALID without an id or a lease, as NackItem and ExtendItem. */
struct AckItem {
  1: i64 id,
  2: i64 lease,
  /** What the work brought, at most 64 KiB (result_bytes). Callers of GetResult get it. */
  3: optional binary result,
}

struct AckRequest {
  /**
   * 1 to 10,000. Equal entries have one outcome, each time. Entries with the same id and different leases are judged
   * separately.
   */
  1: list<AckItem> items,
  /** If it is set, an item of another namespace is NOT_FOUND. */
  2: optional string ns,
  15: optional RequestContext context,
}

/** What happens to an item after a nack with `failed` or `reject`. */
struct AfterFailure {
  /** Duration until the next delivery, at the earliest. Unset: there is none. */
  1: optional i64 again_in_ms,
  /** All attempts that the item's rules or its topic's policy allow. Unset: no limit. */
  2: optional i32 max_attempts,
  /** The topic in which the item is a dead letter. Unset: in none; without again_in_ms it has ended. */
  3: optional string dead_topic,
}

struct ItemOutcome {
  /** Unset: success. */
  1: optional ItemError error,
  /** Of a nack with `failed` or `reject` that was carried out. Default: the host does not know. */
  2: optional AfterFailure after,
}

struct AckResponse {
  /** One per item, in the order of the request. */
  1: list<ItemOutcome> outcomes,
}

struct NackItem {
  1: i64 id,
  2: i64 lease,
  /** Duration until the next delivery, 0 to 366 days. Default 0: at once, at its old place in the order (except with `failed`). */
  3: optional i64 delay_ms,
  /** Replaces the item's metadata; at most 4 KiB. Default: kept. */
  4: optional binary metadata,
  /** The consumer did not start the item: no delay, and the attempt does not count. Excludes delay_ms and metadata. */
  5: optional bool release,
  /** For logs and for the failure of a dead letter; at most 1,024 bytes. */
  6: optional string reason,
  /**
   * The consumer's work failed. The retry rule of the topic's policy sets the delay; without a rule, delay_ms sets it. After
   * the last attempt the item moves to the dead-letter topic. Without a delay the item is ready at once, behind the present
   * items of its priority: its deliver_after_ms becomes the present. A begun item whose lease ends by time gets the same
   * place.
   */
  7: optional bool failed,
  /**
   * The work can never succeed. The item moves to the dead-letter topic at once, or is removed if the topic has none. At
   * most one of release, failed, reject and uncounted. Excludes delay_ms and metadata.
   */
  8: optional bool reject,
  /**
   * The attempt does not count: the consumer began the work, and another service asks it to come again later. Such an item
   * returns after delay_ms however often that happens, and keeps the throttle tokens that its delivery took.
   */
  9: optional bool uncounted,
}

struct NackRequest {
  /**
   * 1 to 10,000. Of entries with the same id and lease, the host carries out the first valid entry, even if other fields
   * differ. The later entries have its outcome.
   */
  1: list<NackItem> items,
  2: optional string ns,
  15: optional RequestContext context,
}

struct NackResponse {
  1: list<ItemOutcome> outcomes,
}

struct ExtendItem {
  1: i64 id,
  2: i64 lease,
  /**
   * Duration of the lease from now, 100 ms to 12 h. Default: the first duration of the lease; with `begun`, the end of the
   * lease does not change. If the topic's policy has stuck_after_ms, the lease ends at this time after the delivery. A later
   * extension is STALE_LEASE. A new owner of the shard counts from its opening.
   */
  3: optional i64 lease_ms,
  /**
   * False: the consumer has not begun the item, so the attempt does not count if the lease ends by time. True: the consumer
   * has begun it. Default: no change. An item without a report counts as begun. The mark is in the owner's memory: after a
   * change of owner the attempt counts.
   */
  4: optional bool begun,
  /**
   * State of the work, for the next delivery of the item; at most 64 KiB. Default: as before. With this field or one of the
   * next two, and without lease_ms, the end of the lease does not change. The host writes all three at most 1 s later, while
   * the database answers.
   */
  5: optional binary checkpoint,
  /** Default: as before. */
  6: optional Progress progress,
  /** Lines to add to the item's log; at most 8 KiB in all. The last 8 KiB stay with the item, and with its result. */
  7: optional list<string> log,
  /** The answer waits until checkpoint, progress and log are committed. */
  8: optional bool durable,
}

struct ExtendLeaseRequest {
  /**
   * 1 to 10,000. Equal entries have one outcome. The host carries out entries with the same id and lease and different other
   * fields in order.
   */
  1: list<ExtendItem> items,
  2: optional string ns,
  15: optional RequestContext context,
}

struct ExtendLeaseResponse {
  1: list<ItemOutcome> outcomes,
}

// --------------------------------------------------------------------------------------- Ack and Dequeue

/**
 * An Ack and a Dequeue in one request: a worker sends its acks with its request for further items. The dequeue begins
 * when each ack has its outcome.
 */
struct AckAndDequeueRequest {
  /** Namespace of the topics. An item of `acks` in another namespace is NOT_FOUND. */
  1: string ns,
  /**
   * 0 to 10,000; as in Ack. An ack that is not committed within about a second does not delay the items: it is UNAVAILABLE
   * (nothing was changed) or OUTCOME_UNKNOWN. Repeat it with Ack.
   */
  2: list<AckItem> acks,
  /** As in Dequeue, like the next fields. */
  3: list<TopicCount> wants,
  4: optional i64 lease_ms,
  /** Used only without acks. With acks the host does not wait for a first item: the outcomes would wait too. */
  5: optional i64 wait_ms,
  6: optional i64 max_bytes,
  7: optional string worker,
  /** As DequeueRequest.begins. */
  8: optional i32 begins,
  /** As DequeueRequest.ledger. */
  9: optional bool ledger,
  /** As DequeueRequest.most. */
  10: optional i32 most,
  15: optional RequestContext context,
}

/** RequestError: no ack was carried out, and nothing was leased. */
struct AckAndDequeueResponse {
  /** One per ack, in the order of the request. Success means that the removal is committed, as in AckResponse. */
  1: list<ItemOutcome> outcomes,
  /** As in DequeueResponse, like the next field. */
  2: list<Item> items,
  3: optional list<i64> doubtful,
  /** Why the dequeue failed, for example because the host shuts down. The outcomes of the acks are valid. Default: no failure. */
  4: optional ItemError error,
  /** As in DequeueResponse, like the next fields. */
  5: optional i64 retry_after_ms,
  6: optional string reason,
  7: optional map<string, i32> per_worker,
}

// -------------------------------------------------------------------------------- Looking and operating

struct GetActiveTopicsRequest {
  /** Only this namespace. Default: all namespaces in which the caller has a right. */
  1: optional string ns,
  /** 1 to 10,000 topics per reply. Default 1,000. */
  2: optional i32 limit,
  /** From the previous reply. */
  3: optional string cursor,
  /** Topics with items in any state, and their counts by state. Default: topics with ready items only. */
  4: optional bool all,
  /** Only topics that have dead letters, or take them. A host of an older version returns all topics. */
  5: optional bool dead,
  /** Set the events of the last minute, `paused` and `closed`. With `all`, topics without items that had events then are there, too. */
  6: optional bool rates,
  15: optional RequestContext context,
}

/** A topic with at least one ready item; with `all`, with at least one item in any state. */
struct ActiveTopic {
  1: string ns,
  2: string topic,
  /** Items ready now; approximate. */
  3: i64 ready,
  /** Epoch milliseconds: the time from which the oldest ready item may be delivered; approximate (within about a minute).
      0: no item is ready. */
  4: i64 oldest_ready_at_ms,
  /** host:port of the hosts with such items. */
  5: list<string> hosts,
  /** Items; approximate. Set with `all`, like the next field. */
  6: optional i64 delayed,
  7: optional i64 leased,
  /**
   * Events of the last minute: of the last six whole steps of 10 s, as NamespaceRates counts them. Set with `rates`, like the
   * next fields. Default: unknown, because a host is of an older version, or counts other topics: it counts up to 10,000 topics.
   */
  8: optional i64 enqueued_minute,
  9: optional i64 delivered_minute,
  10: optional i64 acked_minute,
  11: optional i64 failed_minute,
  /** The topic's policy pauses it, and closes it. */
  12: optional bool paused,
  13: optional bool closed,
  /** Ready items that a pause of the topic, or of tenants, holds back. Set with `all`, like all further fields. */
  14: optional i64 ready_paused,
  /** Further ready items that wait for a throttle. A topic without consumers may have more of them. */
  15: optional i64 ready_throttled,
  /** It has dead letters, or takes them. */
  16: optional bool dead,
}

struct GetActiveTopicsResponse {
  /** Ordered by namespace, then topic. */
  1: list<ActiveTopic> topics,
  /** Set if the list continues. */
  2: optional string cursor,
}

struct GetTopicStatsRequest {
  1: string ns,
  2: string topic,
  /** Tenants in the answer, 1 to 1,000. Default 100. */
  3: optional i32 limit,
  // 4: cursor
  15: optional RequestContext context,
}

/** A tenant: the items of a topic with one fairness key. */
struct TenantStats {
  /** "" for items without one. */
  1: string fairness_key,
  /** The weight in effect, 1 to 1,000: from the settings, else from the last stored item with a weight, else 1. */
  2: i32 weight,
  /** Items; approximate. */
  3: i64 ready,
  /** Ready items that wait for a throttle; of a paused tenant: all of them. */
  4: i64 parked,
  // 5: leased   6: delivered_10s   7: busy_ms_10s   8: oldest_ready_at_ms
  /** Its service, in the unit of the topic's policy (fair.unit: items, KiB or ms), since its hosts have items of it. */
  9: double served,
  /** Its share of the topic's turns, 0 to 1: its weight over the weights of all tenants with ready items that wait for no
      throttle. 0 if it has no such items. */
  10: double share,
  /** The topic's policy pauses it (paused_tenants). */
  11: optional bool paused,
  /** The throttle key for which most of its parked items wait. Default: none. */
  12: optional string waits_for,
}

/** The leases of a worker process in a topic. */
struct WorkerStats {
  /** As in DequeueRequest. Empty: consumers without a name, and leases that an earlier owner of the shard gave. */
  1: string worker,
  2: i64 held,
  /** Age of the oldest of these leases, as far as the owner knows, like stuck_after_ms. */
  3: i64 oldest_lease_ms,
  /** Its handlers that hang, by its report of the last 15 s (TopicCount.hung). Their leases may have ended. */
  4: i64 hung,
}

/** A script that the topic's policy names: its calls since the hosts started, over all hosts. */
struct HookStats {
  /** on_enqueue or on_failure. */
  1: string hook,
  /** Name of the settings entry `script.<name>`. */
  2: string script,
  3: i64 calls,
  4: i64 failures,
  /** True if some host does not call the script, because its last calls failed. */
  5: bool breaker_open,
  /** Duration until that host calls it again; 0 if no breaker is open. */
  6: i64 retry_after_ms,
  /** At most 5, the newest last: time (UTC), kind and text. */
  7: list<string> last_errors,
}

/** A topic that has no items has counts of 0. */
struct GetTopicStatsResponse {
  /** Items; approximate, like the next two: hosts count their items at different moments. */
  1: i64 ready,
  2: i64 delayed,
  3: i64 leased,
  /** Ended items that the topic keeps (keep in its policy). Dead letters are not among them. */
  4: i64 completed,
  5: i64 failed,
  /** True if hosts deliver no item of the topic. */
  6: bool paused,
  /** True if hosts refuse enqueues to the topic. */
  7: bool closed,
  /** JSON of the effective policy: a value of each field, in the form of an entry `topic.` of the settings. */
  8: string policy,
  /** By field of the policy: the settings key of its value. A field without a key has the built-in value. */
  9: map<string, string> policy_layers,
  /** At most `limit` tenants, by the number of ready items, the most first. Empty if tenants take no turns. */
  10: list<TenantStats> tenants,
  /** At most 1,000 workers: first workers with handlers that hang, then by the age of the oldest lease. Only leases in the
      owners' memory count. */
  11: list<WorkerStats> workers,
  /** One for each hook of the topic's policy. */
  12: list<HookStats> hooks,
  // 13: cursor
  /** host:port of the hosts that did not answer in time. Their items are not counted. */
  14: list<string> missing,
  /** Sums over all further tenants: tenants beyond `limit`, and of each host the tenants beyond its 1,000 with the most ready
      items (some of them are in `tenants`, too). Its weight counts tenants with ready items that wait for no throttle. */
  16: optional TenantStats more_tenants,
  /**
   * Reasons by field of the policy, for values in the settings, or built-in values, without effect. An example is
   * max_attempts of a topic that takes dead letters. `policy` has the values in effect.
   */
  17: map<string, string> overruled,
  /** Attempts that failed in the last minute, 10 minutes and hour; see ListFailing. */
  18: i64 attempts_failed_minute,
  19: i64 attempts_failed_10_minutes,
  20: i64 attempts_failed_hour,
  /** As in ActiveTopic, like the next three. */
  21: optional i64 enqueued_minute,
  22: optional i64 delivered_minute,
  23: optional i64 acked_minute,
  24: optional i64 failed_minute,
  /** As in ActiveTopic. Default: not counted. */
  25: optional i64 ready_paused,
  26: optional i64 ready_throttled,
  /** Items that wait for an earlier item of their order keys. They do not count in the other numbers. Default: not counted. */
  27: optional i64 behind,
}

/** Either an id, or a namespace and a dedup_key that was enqueued with. */
struct GetItemRequest {
  1: optional i64 id,
  2: optional string ns,
  3: optional string dedup_key,
  15: optional RequestContext context,
}

/** Leases nothing: `item.lease` is 0. Between hosts, of a dedup_key: `item.id` alone. */
struct GetItemResponse {
  1: Item item,
  2: ItemState state,
}

/** How an item ended. The caller may wait for its end. */
struct GetResultRequest {
  1: i64 id,
  /** 0 to 60,000 (result_wait_max_ms). 0 answers with the present state. Default 0. */
  2: optional i64 wait_ms,
  15: optional RequestContext context,
}

/**
 * COMPLETED and FAILED are the ends. Another state is that of an item which has not ended by the end of the wait. NOT_FOUND:
 * there is no such item, its topic does not keep it, or it ended in another way (its TTL, a delete, a script, the lease of
 * an at-most-once item). A caller that waited gets that way in the message. It also gets the result of an item that is not
 * kept, unless the item's shard got another owner in the meantime.
 */
struct GetResultResponse {
  1: ItemState state,
  /** Of a COMPLETED item, as its ack brought it. Default: none. */
  2: optional binary result,
  /** Epoch milliseconds; of an item that has ended. */
  3: optional i64 ended_at_ms,
  /** Of a FAILED item. */
  4: optional Failure failure,
  /** As its consumers gave it; of an item that is not kept, until it ends. */
  5: optional Progress progress,
  6: optional list<string> log,
}

/** Conditions on an item, in ListItems. It must meet all conditions that are set. */
struct ItemFilter {
  /** Bounds on the priority, both included. */
  1: optional i32 min_priority,
  2: optional i32 max_priority,
  /** Epoch milliseconds: the item was enqueued before this time. 1,000 to 10^11 is INVALID, as in ItemSpec. */
  3: optional i64 enqueued_before_ms,
  /** Epoch milliseconds: the item was enqueued at this time or later. 1,000 to 10^11 is INVALID. */
  4: optional i64 enqueued_after_ms,
  /** The item has each of these pairs; at most 4 KiB. */
  5: optional map<string, string> headers,
  /**
   * The reason in its failure or in its last_failure, as ListItems returns them, contains this text of 1 to 1,024 bytes;
   * upper and lower case differ.
   */
  6: optional string failure_contains,
  /** The item has this order key. */
  7: optional string order_key,
  /** The item is of this batch. */
  8: optional i64 batch,
}

struct ListItemsRequest {
  1: string ns,
  2: string topic,
  /** Only items in this state. Default: all. */
  3: optional ItemState state,
  /** 1 to 1,000 items per reply. Default 100. */
  4: optional i32 limit,
  5: optional string cursor,
  /** Only this shard, which the called host must serve. Default: all shards of the cluster that are not disabled. */
  6: optional i32 shard,
  /**
   * Only items that were enqueued with this fairness key; "": items without a key. Dead letters have the key in their
   * failure, and none of their own (see ListFailures). A host of an earlier version ignores it. Default: all.
   */
  7: optional string fairness_key,
  /**
   * Only items that meet these conditions. One request looks at no more than 10,000 items, and takes about a second (half
   * of its time-out, if that is less). Then the reply has the items found so far, which may be none, and a cursor. A host
   * of an earlier version ignores the filter: check the items. Default: all.
   */
  8: optional ItemFilter filter,
  /** Between hosts, with a filter: look at no more than this many items, 1 to 10,000. Default: 10,000. */
  9: optional i32 most_looked_at,
  15: optional RequestContext context,
}

struct ListItemsResponse {
  /** By shard; READY items in lane order, then DELAYED and LEASED items by due time, then BEHIND ones. Not a snapshot. */
  1: list<Item> items,
  /** Set if the list may continue. With a filter, also if this page has no items. */
  2: optional string cursor,
  /** With a filter: how many items were looked at for this page. */
  3: optional i64 looked_at,
}

struct DeleteItemsRequest {
  /** 1 to 10,000; deleted in any state, also during a live lease. Equal ids have one outcome, each time. */
  1: list<i64> ids,
  15: optional RequestContext context,
}

struct DeleteItemsResponse {
  1: list<ItemOutcome> outcomes,
}

/**
 * Gives READY and DELAYED items another priority, another time, or both: each leaves its place in its lane and enters at
 * the new one, as a fresh item would. Attempts, TTL, dedup_key and the time of its enqueue stay. Equal requests have the
 * same end, so a request may be repeated after OUTCOME_UNKNOWN. One outcome each: CONFLICT for a leased item (the message
 * names its worker and the end of the lease) and for a kept one; INVALID if the item's TTL ends by the new time.
 */
struct ChangeItemsRequest {
  /** 1 to 10,000. Equal ids have one outcome, each time. */
  1: list<i64> ids,
  /** Default: it stays. At least one of the next three is set. */
  2: optional i32 priority,
  /**
   * Duration from now, 0 to 366 days. 0 makes a DELAYED item READY, and leaves a READY one at its place. The delay of a
   * repeated request begins again. Default: the item keeps its time.
   */
  3: optional i64 delay_ms,
  /** Epoch milliseconds: earliest delivery, in place of delay_ms (both is INVALID). A time in the past is a delay_ms of 0;
      see ItemSpec. */
  4: optional i64 deliver_after_ms,
  15: optional RequestContext context,
}

struct ChangeItemsResponse {
  1: list<ItemOutcome> outcomes,
}

/**
 * Ends leases of a topic on all hosts as if by time, so their attempts count against max_attempts. They do not count as
 * failures of the topic (ListFailing), and the items' last_failure names the operator. At-most-once items are removed then.
 * Leases that begin while the call runs may stay.
 */
struct ReleaseLeasesRequest {
  1: string ns,
  2: string topic,
  /** Only leases of this worker (DequeueRequest.worker). Leases from an earlier owner of the shard have no worker. */
  3: optional string worker,
  /** Only leases of at least this age (ms), 0 or more; as far as the owner knows, like stuck_after_ms. */
  4: optional i64 held_longer_than_ms,
  /** Why, for people: the items' last_failure has it. Its bound is that of NackItem.reason. */
  5: optional string reason,
  15: optional RequestContext context,
}

struct ReleaseLeasesResponse {
  /** Leases that this call ended. */
  1: i64 released,
  /** host:port of hosts that did not answer in time. Their leases may have ended. */
  2: list<string> missing,
}

/** A condition that ends before an item is delivered. */
struct ExplainReason {
  1: Reason code,
  /** One or two sentences for a person, with a command that shows more. No command in it changes anything. */
  2: string text,
  /** Epoch milliseconds: the end of the condition, as far as the host knows. It may be in the past. */
  3: optional i64 until_ms,
  /** See Reason. */
  4: optional string key,
  5: optional i64 count,
  /** CONCURRENCY: items whose leases hold slots of the key, as far as the host knows; at most 10. BEHIND_IN_ORDER: see there. */
  6: optional list<i64> item_ids,
  /**
   * The worker (DequeueRequest.worker) that holds the lease, as far as the owner knows. PAUSED: as in SettingsStamp. A
   * topic without items (GONE) that is closed: the author of that.
   */
  7: optional string by,
  /** Epoch milliseconds: when `by` changed the settings, or has leased the item. */
  8: optional i64 since_ms,
  /** A fairness key; "": items without one. */
  9: optional string tenant,
}

enum LimitKind {
  UNSPECIFIED = 0,
  /** A throttle's `per_second` and `burst`. */
  RATE = 1,
  /** A throttle's `concurrency`. */
  CONCURRENCY = 2,
  /** `per_worker` of the topic's policy. */
  PER_WORKER = 3,
  /** The turns of the topic's tenants. */
  FAIR_SHARE = 4,
}

/** A limit that counts for an item, whether or not it holds the item now: as the host of its shard knows it. */
struct ExplainLimit {
  1: LimitKind kind,
  /** RATE, CONCURRENCY: the throttle key. PER_WORKER: the settings entry. FAIR_SHARE: the fairness key. */
  2: string key,
  /** The limit, its use and the wait, for a person. */
  3: string text,
  /** RATE: deliveries a second. CONCURRENCY: leases. PER_WORKER: items of a worker. FAIR_SHARE: of all turns, 0 to 1. */
  4: optional double bound,
  /** RATE: deliveries at once. */
  5: optional i64 burst,
  /** CONCURRENCY: leases with the key, on the answering host if another host lends its slots. */
  6: optional i64 used,
  /**
   * RATE: tokens on the host, and in the bucket if the host makes them. CONCURRENCY: free slots of the item's shard.
   * PER_WORKER: consumers that wait on the host and may have more items.
   */
  7: optional i64 free,
  /** About this number of tokens, slots or turns go to other items first. */
  8: optional i64 before,
  /** Estimate of the wait for this limit alone, if the item was ready now. 0: no wait. Default: unknown. */
  9: optional i64 estimate_ms,
  /** Epoch milliseconds. RATE: the next token may come. */
  10: optional i64 until_ms,
  /** The throttle is in shadow: it counts deliveries and holds none back. */
  11: optional bool shadow,
  /** Of a throttle in shadow, as far as the answering host counts it. */
  12: optional ShadowHour hour,
  /** CONCURRENCY: the item with the oldest lease that the host knows, its worker, and when it was leased (epoch ms). */
  13: optional i64 item_id,
  14: optional string by,
  15: optional i64 since_ms,
}

/** Tenants of a topic with ready items, none of which may be delivered now, on one host. */
struct ExplainTenants {
  /** PAUSED, THROTTLED or CONCURRENCY. */
  1: Reason code,
  /** The settings entry that pauses them, or the throttle without its prefix "throttle.". */
  2: string key,
  /** The number of tenants. */
  3: i32 count,
  /** Fairness keys of some of them; "": items without one. */
  4: list<string> tenants,
  /** For a person. */
  5: string text,
}

/** Lists the schedules of a namespace, in the order of their names. */
struct ListSchedulesRequest {
  1: string ns,
  /** Only names with this prefix. Default: all. */
  2: optional string prefix,
  /** 1 to 1,000. Default 100. */
  3: optional i32 limit,
  /** From the previous reply. Default: from the first name on. */
  4: optional string cursor,
  15: optional RequestContext context,
}

struct ScheduleStats {
  1: string name,
  /** The value of the setting schedule.<name>: JSON. */
  2: string setting,
  /** The next times that fire, at most five: epoch milliseconds. */
  3: list<i64> next_at_ms,
  /** The last time that fired, and its item. Default: unknown, or none yet. */
  4: optional i64 last_at_ms,
  5: optional i64 last_id,
  /** Times that did not fire since the coordinator has the schedule: after an outage (at most 100 of each), or refused,
      or skipped. */
  6: i64 missed,
  7: bool paused,
  /** Address of the host that fires it; empty if no host that answered does. */
  8: string coordinator,
  /** Why the last time is not stored: it is tried again, or was refused. Default: it is stored. */
  9: optional string error,
}

struct ListSchedulesResponse {
  1: list<ScheduleStats> schedules,
  /** Addresses of hosts that did not answer. */
  2: list<string> missing,
  3: optional string cursor,
}

/** Stores an item of a schedule now. NOT_FOUND: there is no such schedule. */
struct RunScheduleRequest {
  1: string ns,
  2: string name,
  /** As ItemSpec.dedup_key. */
  3: optional string dedup_key,
  15: optional RequestContext context,
}

struct RunScheduleResponse {
  1: i64 id,
}

/** Lists the throttle keys of a namespace that are in use, in the order of their names. */
struct GetThrottlesRequest {
  1: string ns,
  /** Only keys with this prefix; at most 255 bytes. Default: all. */
  2: optional string prefix,
  /** 1 to 1,000. Default 100. */
  3: optional i32 limit,
  /** From the previous reply. Default: from the first key on. */
  4: optional string cursor,
  15: optional RequestContext context,
}

/** What a limit in shadow counted since its first delivery, at most for an hour: summed over the hosts that answered. */
struct ShadowHour {
  /** Deliveries that the limit would have held back. */
  1: i64 held,
  /** All deliveries that it limits. */
  2: i64 seen,
  /** Duration: over which they were counted. The counts begin again when the throttle changes. */
  3: i64 for_ms,
}

struct ThrottleStats {
  1: string key,
  /** The settings key of the throttle; empty if the settings no longer have a throttle for the key. */
  2: string setting,
  3: optional double per_second,
  4: optional i64 burst,
  /** Tokens that no host holds. Default: unknown, as the key's coordinator did not answer or has no account of the key. */
  5: optional double tokens,
  /** Most live leases at a time. Default: the throttle has no such limit. */
  6: optional i32 concurrency,
  /** Live leases with this key, by the shards' reports of the last half second. Default: unknown, as `tokens`. */
  7: optional i64 taken,
  /** Further leases that the limit allows. Default: as `taken`. */
  8: optional i64 free,
  /** Leases that lived longer than the throttle's timeout_ms, since the hosts started. */
  9: i64 overage,
  /** Leases that ended by time, since the hosts started, and slots of shards that a coordinator gave up. */
  10: i64 reclaimed,
  /** Flows (items of one topic, fairness key, set of throttle keys and host) that wait for this key. */
  11: i64 parked_flows,
  /** Items of these flows, a lower bound: a host counts the items of at most 10,000 flows. */
  12: i64 parked_items,
  /** Age of the oldest parked flow. */
  13: i64 longest_wait_ms,
  /** Deliveries over the limit of a throttle with `shadow`, since the hosts began to use the key. */
  14: i64 shadow_held,
  /** host:port of the key's coordinator, which makes the tokens; empty if it is unknown. */
  15: string coordinator,
  /** Of a throttle with `shadow` and a rate. Default: no delivery was counted in the last hour, like the next field. */
  16: optional ShadowHour shadow_rate,
  /**
   * Of a throttle with `shadow` and `concurrency`. A delivery that begins while more leases live than the limit counts as
   * held. The key's coordinator counts; the counts of one that ended are lost.
   */
  17: optional ShadowHour shadow_leases,
}

struct GetThrottlesResponse {
  1: list<ThrottleStats> throttles,
  /** Set if the list continues. */
  2: optional string cursor,
  /** host:port of hosts that did not answer. */
  3: list<string> missing,
}

/**
 * Facts about all hosts, for `foqs status`. The host that gets the request asks all other hosts, and waits 2 s for them. A caller whose
 * rights do not cover all namespaces gets the items, topics and quotas of its namespaces only.
 */
struct GetStatusRequest {
  15: optional RequestContext context,
}

/** A shard on a host that has to serve it. */
struct ShardStatus {
  1: i32 shard,
  /** assigned, opening, serving, draining or closed. */
  2: string state,
  /** Server and name of its database, without the credential. Empty: a file, or the caller may not see it. */
  3: string place,
  /** unreachable, denied (the server has no such database or table, or denies the account), read_only, cut_off (another
      host reaches the database), breaker_open, hanging, disk_full or clock; empty: none. */
  4: string trouble,
  /** Age of the oldest call to the database that has no answer. */
  5: i64 waiting_ms,
  /** Items that are ready, delayed or leased. Ended items that are kept are not counted. */
  6: i64 items,
  /** Share of the last half minute in which a call to the database was open, 0 to 1. */
  7: double busy,
  /** How many times the present rate of rows the database could write, with full transactions. Default: unknown. */
  8: optional double growth,
  /** Bytes of the shard's tables and indexes, or of its file. Default: the database does not report it. */
  9: optional i64 used_bytes,
  /** Free bytes of the file system with the data. Default: as `used_bytes`. */
  10: optional i64 free_bytes,
  /** Mean time of a transaction in the last half minute. Default: there was none. */
  11: optional i64 transaction_ms,
}

/** A topic of a host that an operator may have to look at. */
struct TopicStatus {
  1: string ns,
  2: string topic,
  /** Ready items. Where it is not paused, items of paused tenants are left out, of the times as well. */
  3: i64 ready,
  /** Epoch milliseconds; up to 66 s too early if the item is not in memory. 0: no item is ready. */
  4: i64 oldest_ready_at_ms,
  /** Epoch milliseconds, up to 66 s too early: when the last of the items that are ready became so. 0: as above. */
  5: i64 newest_ready_at_ms,
  /** True if a pause of the topic, or of tenants, holds all its ready items. */
  6: bool paused,
  /** True if a consumer waits for the topic, or asked for it in the last minute. */
  7: bool consumed,
  /** True if it has dead letters, or takes them. */
  8: bool dead,
  /** Attempts that failed in the last 10 minutes, as in ListFailing. Default: none. */
  9: optional i64 failed_10_minutes,
  /** Attempts that ended with an ack then, since the topic's first failure. */
  10: optional i64 acked_10_minutes,
  /** The most frequent of these failures: its reason, behind its cause if that is not FAILED, as `expired`. Default: none. */
  11: optional string failure,
}

/** A bound on stored items: of a namespace (quotas), or of a topic (max_stored). */
struct QuotaStatus {
  1: string ns,
  /** Empty: the namespace. */
  2: string topic,
  3: i64 used,
  4: i64 most,
}

/** The rate of a namespace with enqueues_per_second (quotas). */
struct RateStatus {
  1: string ns,
  /** Items a second that the host stored in the last half minute. The sum over the hosts is the rate. */
  2: double used,
  3: double most,
}

struct HostStatus {
  /** host:port for clients. */
  1: string address,
  /** server.id. */
  2: string host,
  /** Empty: an older host, which reports nothing. */
  3: string version,
  /** By the host's clock. */
  4: i64 now_ms,
  /** What a host that is not ready lacks, as /readyz has it. */
  5: list<string> missing,
  /** Why the host waits for the right time. Empty: it does not. */
  6: string clock,
  /** connected, suspended or expired; none: not connected yet. Empty: a host without a cluster. */
  7: string session,
  /** Id of the host that places shards, as far as this one knows. Empty: none, or no cluster. */
  8: string controller,
  /** Enabled shards that no host serves, as far as this one knows. */
  9: list<i32> unserved,
  /** id at host:port of hosts that ended in the last hour without giving up their shards first, as far as this one knows. */
  10: list<string> gone,
  11: i64 ready,
  12: i64 delayed,
  13: i64 leased,
  /** Items that have ended and are kept by their topics. */
  14: i64 kept,
  /** Items in topics that have dead letters. They count in the other numbers, too. */
  15: i64 dead,
  16: i64 budget_used_bytes,
  17: i64 budget_limit_bytes,
  /** Share of the last half minute in which the event loop used a processor, 0 to 1. */
  18: double loop_busy,
  /** Timers of the event loop that were late by 250 ms or more in that time, and the longest delay. */
  19: i32 loop_late,
  20: i64 loop_lag_ms,
  /** Share of that time in which the event loop waited for a processor. Default: the system does not report it. */
  21: optional double loop_waiting,
  /** Items stored or delivered a second in that time, whichever are more. */
  22: double items_per_s,
  /** Items that quotas of namespaces refused in that time, on this host. */
  23: i64 quota_refused,
  /** Handlers that hang, as workers reported to this host. */
  24: i64 hung,
  25: list<ShardStatus> shards,
  /** At most 20 each: the oldest ones, topics without consumers, paused ones, topics with dead letters, topics whose attempts fail. */
  26: list<TopicStatus> topics,
  /** The fullest 100 on this host. */
  27: list<QuotaStatus> quotas,
  /**
   * Why the host does not act on ZooKeeper's records: lost, restored (an older copy), merge (the hosts write back what they
   * know), foreign (another cluster's). Default: it does, or has no cluster.
   */
  28: optional string held,
  /** Epoch milliseconds: the end of the host's certificate. Default: no TLS. */
  29: optional i64 certificate_ends_at_ms,
  /** RequestContext.client of the consumers of the last 10 minutes; at most 10. */
  30: list<string> clients,
  /** The fullest 100 on this host, of the namespaces that have counters of their own (admin.namespaces). */
  31: list<RateStatus> rates,
  /** Digests of the sections of foqs.toml that all hosts need alike, by the names of the sections. */
  32: optional map<string, string> alike,
}

struct GetStatusResponse {
  1: list<HostStatus> hosts,
  /** host:port of hosts that did not answer. */
  2: list<string> missing,
}

/** Lists the consumers of the last 10 minutes and the workers that hold leases: what needs attention first. */
struct ListConsumersRequest {
  /** Default: all namespaces that the caller may see. */
  1: optional string ns,
  /** Only consumers of this topic. Default: all. */
  2: optional string topic,
  /** 1 to 1,000. Default 1,000. */
  3: optional i32 limit,
  15: optional RequestContext context,
}

/** The consumers of a namespace with one name. */
struct ConsumerStats {
  1: string ns,
  /** As in DequeueRequest. Empty: consumers without a name, and leases that an earlier owner of the shard gave. */
  2: string worker,
  /** host:port of the hosts that it asked in the last 10 minutes. */
  3: list<string> hosts,
  /** Addresses from which it asked, without the ports; at most 10. */
  4: list<string> peers,
  /** Topics that it asked for, or holds items of; at most 50. */
  5: list<string> topics,
  /** Live leases, and the age of the oldest. */
  6: i64 held,
  7: i64 oldest_lease_ms,
  /** Time since its last request for items. A request that waits counts as 0. Default: none in the last 10 minutes. */
  8: optional i64 asked_ago_ms,
  /** Its handlers that hang, by its report of the last 15 s. Their leases may have ended. */
  9: i64 hung,
  /** RequestContext.client of its requests; at most 10. */
  10: list<string> clients,
}

struct ListConsumersResponse {
  /** Hung handlers first, then the oldest leases, then the last requests. */
  1: list<ConsumerStats> consumers,
  /** True if there are more. */
  2: bool more,
  /** host:port of hosts that did not answer. */
  3: list<string> missing,
}

/** Asks for the traffic of namespaces in the last hour, by steps of 10 s, over all hosts. */
struct GetRatesRequest {
  /** Default: all namespaces that the caller may see. */
  1: optional string ns,
  /** The number of steps, 1 to 360. Default 360. */
  2: optional i32 steps,
  /** The most namespaces in the answer, 1 to 1,000. Default 100. */
  3: optional i32 limit,
  /** Count the items of `ns` too. A host of an older version does not. */
  4: optional bool items,
  15: optional RequestContext context,
}

/** A topic and its oldest ready item. */
struct OldestTopic {
  1: string topic,
  /** As in ActiveTopic. */
  2: i64 oldest_ready_at_ms,
}

/**
 * Counts of a namespace, one for each step, the oldest step first. A list without elements: there was nothing in any step. Each host
 * counts for the shards that it serves, and forgets the counts when it stops.
 */
struct NamespaceRates {
  1: string ns,
  /** Items that were stored by an enqueue or a schedule. Duplicates, retries and redrives are left out. */
  2: list<i64> enqueued,
  /** Deliveries to consumers. An item counts each time, also if its consumer releases it; an at-most-once item counts once. */
  3: list<i64> delivered,
  /** Items that an ack removed, or that their topic keeps as COMPLETED. An item that was removed without an ack is left out. */
  4: list<i64> acked,
  /** Attempts that failed, as in GetTopicStats: nacks with failed or reject, and leases of begun attempts that ended by time. */
  5: list<i64> failed,
  /** Items; approximate. Set with `items`, like all further fields. */
  6: optional i64 ready,
  7: optional i64 delayed,
  8: optional i64 leased,
  /** The 5 topics with the oldest ready items, the oldest first. */
  9: optional list<OldestTopic> oldest,
  /** Of the ready items: held by a pause, waiting for a throttle, and dead letters that neither holds. As in ActiveTopic. */
  10: optional i64 ready_paused,
  11: optional i64 ready_throttled,
  12: optional i64 ready_dead,
}

struct GetRatesResponse {
  /** 10,000. */
  1: i64 step_ms,
  /**
   * Epoch milliseconds by the clock of the host that answers: when the first step began, a multiple of step_ms. The last step has
   * just ended; it may lack the counts of a host whose clock is behind.
   */
  2: i64 first_at_ms,
  /** The later of first_at_ms and the latest start of a host that answered. Steps before it may lack what that host did. */
  3: i64 covers_from_ms,
  /** The most traffic first. A namespace in the request is there also without traffic. */
  4: list<NamespaceRates> namespaces,
  /**
   * True if further namespaces had traffic. Then the counts of a namespace that is not among the first `limit` of each host may be
   * too low, without `ns`. A host has steps of the 1,000 namespaces with traffic last.
   */
  5: bool more,
  /** host:port of hosts that did not answer. */
  6: list<string> missing,
}

/** An id, or ns and topic. The reasons of a topic are of the host that is nearest to a delivery. */
struct ExplainItemRequest {
  1: optional i64 id,
  2: optional string ns,
  3: optional string topic,
  15: optional RequestContext context,
}

struct ExplainItemResponse {
  /** In the order in which they must end. Empty: the item may be delivered now, or it is COMPLETED or FAILED. */
  1: list<ExplainReason> reasons,
  /**
   * Estimate of the duration until the delivery. It is (items ahead in the lane) * (sum of weights / weight of the tenant) /
   * (rate of the topic's deliveries on the host in the last 10 s). Absent if the number of items ahead or the rate is
   * unknown. A host measures the rate of topics that were explained in the last minute, so the first answer has no estimate.
   */
  2: optional i64 eta_ms,
  /** Absent for a topic, for an item that is gone, and if the item's shard could not be read. */
  3: optional ItemState state,
  /** Of an item. */
  4: optional LastFailure last_failure,
  /** Of an item: all limits that count for it, in any state that it has. Default: there is none. */
  5: optional list<ExplainLimit> limits,
  /**
   * Of a topic: tenants that wait, the most numerous group first, also if items of other tenants are deliverable. Of hosts
   * with one group, the host with most tenants answers. Default: none waits.
   */
  6: optional list<ExplainTenants> tenants,
  /** Of a topic: tenants with ready items on the host where they are most. Default: its tenants take no turns. */
  7: optional i64 tenants_ready,
}

struct GetServerInfoRequest {
  /** Include shard_items in the reply. Default: no. */
  1: optional bool count_items,
  15: optional RequestContext context,
}

struct GetServerInfoResponse {
  1: string version,
  /**
   * payload_bytes, metadata_bytes, headers_bytes, name_bytes, request_items, frame_bytes,
   * lease_min_ms, lease_max_ms, lease_default_ms, delay_max_ms, ttl_max_ms, wait_max_ms, timeout_max_ms,
   * dedup_window_ms, worker_bytes, throttle_keys, throttle_keys_bytes, settings_bytes,
   * settings_value_bytes, script_bytes
   */
  2: map<string, i64> limits,
  /**
   * Changed rows since the shard was opened, by shard that this host serves. Shards are left out if their database does not
   * answer, fails, or is full.
   */
  3: optional map<i32, i64> shard_rows,
  /** Items in any state, by shard that this host serves; at most a second old. Set with count_items. */
  4: optional map<i32, i64> shard_items,
  /** Epoch milliseconds: the host's clock, which follows its databases' clocks. All times of items follow this clock. */
  5: optional i64 now_ms,
  /** The caller, as the host's principals file names it. Unset where authentication is off. */
  6: optional string principal,
  /**
   * "produce", "consume" and "admin" of the caller, by namespace, as the principals file has them. A key that ends with "*" means
   * all namespaces with the prefix, and "*" alone means all. A right holds in a namespace if any key that fits has it. Empty: the
   * caller has no right. Unset where authentication is off: every caller may do everything.
   */
  7: optional map<string, list<string>> rights,
  /** Order keys with items that are in their order, by shard that this host serves. Set with count_items. */
  8: optional map<i32, i64> shard_order_keys,
}

/** The host that serves a shard. */
struct ShardRoute {
  /** The number in the 15 bits below the sign bit of an item's id. */
  1: i32 shard,
  /** host:port */
  2: string host,
  /** The higher epoch belongs to the newer of two routes to one shard. */
  3: i64 epoch,
}

struct GetRoutingRequest {
  /** From the previous reply. With wait_ms, the host replies when its routing differs from this version. Default: none. */
  1: optional i64 version,
  /** Duration to wait for another routing than `version`, 0 to 600,000. Default 0: reply at once. */
  2: optional i64 wait_ms,
  15: optional RequestContext context,
}

struct GetRoutingResponse {
  /** Hash of the content: hosts with the same routing return the same version. Versions have no order. */
  1: i64 version,
  /** By shard. No host serves a missing shard now. A host without a cluster lists its own shards. */
  2: list<ShardRoute> shards,
  /** host:port of every live host, also of hosts without a shard. */
  3: list<string> hosts,
  /** The shard of each of the 1,024 slots of dedup_keys. Not set while the slots have no owners. */
  4: optional list<i32> slots,
  /** One host at a time has time for all small requests: clients may send them to the host whose turn it is. Default: no. */
  5: optional bool quiet,
}

/** Between hosts: a topic with ready items on the replying host. */
struct TopicNews {
  1: string ns,
  2: string topic,
  /** Items ready; approximate. */
  3: i32 ready,
}

/** Between hosts: asks for the topics with ready items that no consumer of the asked host takes. */
struct WatchTopicsRequest {
  /** From the previous reply: only later changes. Default: all topics. */
  1: optional i64 version,
  /** Duration to wait for a change, 0 to 600,000. Default 0. */
  2: optional i64 wait_ms,
  15: optional RequestContext context,
}

struct WatchTopicsResponse {
  1: i64 version,
  /** The list replaces all earlier ones of this host. */
  2: bool whole,
  3: list<TopicNews> topics,
}

/** Between hosts: the record of a dedup_key in a shard. */
struct RememberedKey {
  /** 16 bytes. */
  1: binary digest,
  2: optional i64 content,
  /** Of the stored item. */
  3: i64 id,
  4: i64 expires_at_ms,
}

/** Between hosts: an order_key of a slot, and the shard that has its items. */
struct OrderHome {
  /** 16 bytes. */
  1: binary digest,
  /** 0: the shard that gives the slot away. */
  2: i32 shard,
  /** As in KeyHome. */
  3: i64 stamp,
}

/** Between hosts: moves a slot of dedup_keys from this shard to another shard. The host replies when the shard no longer
    accepts keys of the slot. UNAVAILABLE if the host does not serve the shard, or has applied a later slot record. */
struct GiveSlotRequest {
  1: i32 shard,
  /** 0 to 1,023. */
  2: i32 slot,
  /** The stamp of the slot record that moves the slot. */
  3: i64 stamp,
  /** 16 bytes: the lowest digest to return. Default: all. */
  4: optional binary low,
  /** 1 to 10,000. Default 1. */
  5: optional i32 limit,
  15: optional RequestContext context,
}

struct GiveSlotResponse {
  /** Ordered by digest. */
  1: list<RememberedKey> keys,
  /** The order_keys with items, in the range of `keys`. */
  2: optional list<OrderHome> homes,
  /** 16 bytes: the lowest digest that may follow. Not set: none follows. */
  3: optional binary rest,
}

/** Removes the item that has a dedup_key, and frees the key. NOT_FOUND: no item has it. */
struct CancelItemRequest {
  1: string ns,
  2: string dedup_key,
  /** Also while a consumer has the item: it learns that the lease is lost at its next extension or ack. */
  3: optional bool leased,
  /** Between hosts: the item that has the key. */
  4: optional i64 id,
  15: optional RequestContext context,
}

struct CancelItemResponse {
  /** The item that had the key. */
  1: optional i64 id,
  /** False: it has ended, or a consumer has it and the request did not say `leased`. */
  2: bool removed,
}

struct ReplaceItem {
  1: i64 id,
  /** Has a dedup_key. */
  2: ItemSpec item,
}

/** Between hosts: gives items that have not begun new payloads, metadata, headers, priorities and times. */
struct ReplaceItemsRequest {
  /** 1 to 10,000. */
  1: list<ReplaceItem> items,
  2: string ns,
  15: optional RequestContext context,
}

struct ReplaceItemsResponse {
  /** One per item. CONFLICT: it has begun. NOT_FOUND: it has ended. */
  1: list<ItemOutcome> outcomes,
}

/** Between hosts: takes keys for items that are redriven, and frees keys of items that have started or ended. */
struct ChangeKeysRequest {
  /** The shard with the slots of the keys. */
  1: i32 shard,
  /** With `content`: a key to take, if it is free. Without: a key to free, if the item has it. `expires_at_ms` is 2^60
      and the number of redrives that took the key. */
  2: list<RememberedKey> keys,
  15: optional RequestContext context,
}

struct ChangeKeysResponse {
  /** One for each key: the id of the item that has it, or that had it. `error` if nothing was changed. */
  1: list<EnqueueOutcome> outcomes,
}

/** Between hosts: takes tokens of a namespace with a quota, or of a topic with a bound (max_stored), one for each enqueued
    item. UNAVAILABLE if this host is not the quota's coordinator. */
struct TakeTokensRequest {
  1: string ns,
  /** Names the asking host, with another name after each start. At most 255 bytes. */
  2: string holder,
  /** Higher than in any earlier request of the holder. */
  3: i64 number,
  /** Tokens wanted; 0 or more, like the next two. */
  4: i64 wanted,
  /** Tokens that the holder has, including spent tokens of items that may still be refused. */
  5: i64 held,
  /** Tokens that the holder returns; not part of `held`. */
  6: i64 back,
  /** Tokens of this topic. Default: of the namespace. */
  7: optional string topic,
  15: optional RequestContext context,
}

struct TakeTokensResponse {
  1: i64 granted,
  /** True: the held tokens stay valid. False: they are void. */
  2: bool kept,
  /** Duration: the rest of `wanted` may be available after it. */
  3: i64 retry_after_ms,
}

/** A host's question for tokens of one throttle key, one for each delivered item. Numbers are 0 or more. */
struct TokenAsk {
  1: string ns,
  /** The throttle key: at most 255 bytes. */
  2: string key,
  /** Higher than in any earlier question of the holder. */
  3: i64 number,
  4: i64 wanted,
  /** Tokens that the holder has. */
  5: i64 held,
  /** Tokens that the holder returns; not part of `held`. */
  6: i64 back,
  /** Duration, a lower bound: time since the holder spent the tokens that are in neither number. */
  7: optional i64 spent_ago_ms,
}

/** The answer to a TokenAsk. Nothing is set if the answering host does not coordinate the key now. */
struct TokenGrant {
  1: optional i64 granted,
  /** True: the held tokens stay valid. False: they are void. */
  2: optional bool kept,
  /** Duration: another token may be available after it. */
  3: optional i64 retry_after_ms,
}

/** A report of a shard's owner about the slots of a throttle key, and its question for more of them. */
struct SlotAsk {
  1: string ns,
  /** The throttle key: at most 255 bytes. */
  2: string key,
  3: i32 shard,
  /** The epoch of the shard's owner. */
  4: i64 epoch,
  /** Higher than in any earlier report under this epoch. */
  5: i64 number,
  /** Slots of the shard, without the slots that this report returns. */
  6: i32 has,
  /** Slots of `has` with a lease. */
  7: i32 leased,
  8: i32 wanted,
  // 9 is reserved
  /** The lowest priority of the items that wait for a slot. Default 0. */
  10: optional i32 priority,
  /** Age of the oldest wait of these items. Default 0. */
  11: optional i64 waiting_ms,
  /** Leases that began since the last report. Unset by a host of an earlier version. */
  12: optional i32 begun,
}

/** The answer to a SlotAsk. Nothing is set if the answering host does not coordinate the key now. */
struct SlotGrant {
  1: optional i32 granted,
  /** True if other shards wait for slots of the key: the owner returns a freed slot at once. */
  2: optional bool contended,
  /** Duration: ask again after it for wanted slots that were not granted. */
  3: optional i64 retry_after_ms,
}

/** Between hosts: takes tokens of throttle keys, and slots of keys that limit leases. */
struct LendRequest {
  /** Names the asking host, with another name after each start. At most 255 bytes. */
  1: string holder,
  /** Together with `slots` 1 to 10,000. */
  2: list<TokenAsk> tokens,
  3: optional list<SlotAsk> slots,
  15: optional RequestContext context,
}

struct LendResponse {
  /** In the order of the request. A grant has no fields if the question is wrong, or the host does not lend the key. */
  1: list<TokenGrant> tokens,
  /** In the order of the request. */
  2: optional list<SlotGrant> slots,
}

struct SlotKey {
  1: string ns,
  /** A throttle key: at most 255 bytes. */
  2: string key,
  /** The version of the namespace's settings. A host with an older version does not know which leases count. */
  3: optional i64 version,
}

/** Between hosts: a new coordinator of throttle keys asks for the number of leases with each key. */
struct CountSlotsRequest {
  /** 1 to 1,000. */
  1: list<SlotKey> keys,
  /** The shards that the host counts. */
  2: list<i32> shards,
  15: optional RequestContext context,
}

/** The leases of one shard. The shard has no other slot of these keys. */
struct SlotCount {
  1: i32 shard,
  2: i64 epoch,
  /** Number of the report, as SlotAsk.number. */
  3: i64 number,
  /** In the order of the request; -1 if the owner does not know yet, and for a wrong key. */
  4: list<i32> leased,
}

struct CountSlotsResponse {
  /** The host's shards whose databases confirmed its ownership. */
  1: list<SlotCount> shards,
}

/** A shard whose owner must report at once: a slot is kept for it, or other shards wait for its slots. */
struct SlotNews {
  1: string ns,
  2: string key,
  3: i32 shard,
}

/** Between hosts: news of slots, from the coordinator of throttle keys to the owners of shards. */
struct TellSlotsRequest {
  /** 1 to 10,000. */
  1: list<SlotNews> news,
  15: optional RequestContext context,
}

struct TellSlotsResponse {
}

/** The items of a topic with one fairness key. */
struct TenantShare {
  /** "" for items without one. */
  1: string fairness_key,
  /** The host's deliveries since its start, in thousandths of the unit of the topic's policy (fair.unit); 0 or more. */
  2: i64 served,
}

/** A host's deliveries of a topic, by tenant. */
struct TopicShare {
  1: string ns,
  2: string topic,
  /** At most 256. */
  3: list<TenantShare> tenants,
}

/** A topic, and the priority of its most urgent ready item on a host. */
struct TopicUrgency {
  1: string ns,
  2: string topic,
  /** Unset in a request, and if the host knows no ready item; see Ledger.more_urgent_elsewhere. */
  3: optional i32 priority,
}

/** Between hosts, twice a second: the asking host's deliveries of topics whose tenants the hosts balance, and the topics
    whose consumers want ledgers. */
struct TellSharesRequest {
  /** Id of the asking host. At most 255 bytes. */
  1: string host,
  /** At most 4,096 tenants in all. */
  2: list<TopicShare> topics,
  /** At most 1,000. Default: none. */
  3: optional list<TopicUrgency> urgent,
  15: optional RequestContext context,
}

struct TellSharesResponse {
  /** In the order of the request. */
  1: optional list<TopicUrgency> urgent,
}

/** Between hosts: counts the items of a namespace, or of a topic, in the shards of a host. */
struct CountItemsRequest {
  1: string ns,
  /** Default: all topics. */
  2: optional string topic,
  15: optional RequestContext context,
}

struct CountItemsResponse {
  /** By shard, including items in flight. A shard whose database does not answer in time is left out. */
  1: map<i32, i64> shards,
}

struct GetSettingsRequest {
  1: string ns,
  /** Only entries whose keys have this prefix. Default: all. */
  2: optional string prefix,
  15: optional RequestContext context,
}

/** The time and the author of the value of a settings entry. */
struct SettingsStamp {
  /** Epoch milliseconds of the host that made the change. 0: unknown. */
  1: i64 changed_at_ms,
  /**
   * The principal of the caller. Without authentication the first name of its certificate, or its program and host ("console
   * at 10.0.0.5"), or its host:port. Empty: unknown.
   */
  2: string by,
}

/** The settings of a namespace, as the answering host acts on them. */
struct GetSettingsResponse {
  /** 0 before the first change. Each change adds 1. */
  1: i64 version,
  2: map<string, string> entries,
  /**
   * By key: of entries that were changed by hosts that keep stamps. The oldest stamps are dropped if all of them take
   * more than half of the bytes that the entries leave of 998,000.
   */
  3: optional map<string, SettingsStamp> stamps,
}

/**
 * Lists what the last versions of a namespace's settings changed, the newest first. The log has the last 100 versions, in
 * at most 262,144 bytes as stored, or less where the settings themselves are large: the oldest versions make room.
 */
struct GetSettingsLogRequest {
  1: string ns,
  /** Only versions that changed keys with this prefix, and only these changes. Default: all. */
  2: optional string prefix,
  /** 1 to 100. Default 100. */
  3: optional i32 limit,
  15: optional RequestContext context,
}

/** The value of an entry before or after a change. Exactly one of text and size_bytes is set. */
struct LoggedValue {
  1: optional string text,
  /** The value was too large for the log. This is its size, and its digest (BLAKE2b, 32 hexadecimal digits). */
  2: optional i64 size_bytes,
  3: optional string digest,
}

struct ChangedEntry {
  1: string key,
  /** Not set: the change added the entry. */
  2: optional LoggedValue before,
  /** Not set: the change removed the entry. */
  3: optional LoggedValue after,
}

struct SettingsVersion {
  1: i64 version,
  2: SettingsStamp stamp,
  /** In the order of the keys. Empty: each entry got the value that it had. */
  3: list<ChangedEntry> changes,
  /** Further keys that the version changed, for which the log had no room. */
  4: optional i32 left_out,
}

struct GetSettingsLogResponse {
  /** The version that the answering host acts on. */
  1: i64 version,
  /** A version between these that is missing was made by a host of an older foqs, which keeps no log. */
  2: list<SettingsVersion> versions,
}

/**
 * Changes the settings of a namespace in one step. A key is 1 to 512 bytes without control characters. A value has at
 * most 4,096 bytes (a script 65,536). All entries together have at most 900,000 bytes, as stored. Keys:
 *
 *   topic.<name>, topic.<prefix>*         policies of topics (JSON)
 *   throttle.<key>, throttle.<prefix>*    limits on deliveries with a throttle key (JSON)
 *   weight.<key>, weight.<prefix>*        weights of fairness keys (1 to 1,000)
 *   script.<name>                         scripts of hooks (Lua)
 *   any other key                         free text
 *
 * INVALID lists every error, one a line. CONFLICT: the version is not expected_version. In both cases nothing was
 * changed.
 */
struct PutSettingsRequest {
  1: string ns,
  /** Entries to add, or to write in place of entries with the same key. */
  2: map<string, string> entries,
  /** Keys of existing entries to remove. None of them is in `entries`. */
  3: list<string> remove,
  /** Default: change any version. */
  4: optional i64 expected_version,
  15: optional RequestContext context,
}

struct PutSettingsResponse {
  1: i64 version,
  /** host:port of the hosts that act on this version or a later one. */
  2: list<string> applied,
  /** host:port of the living hosts that did not confirm the version within 2 s. */
  3: list<string> missing,
  /**
   * Values of the changed entries without effect, one text each. An example: retries of a topic that takes dead letters.
   * Also keys that look like misspelt ones of foqs, such as topc.mail, and topics with a * that is no pattern.
   */
  4: list<string> warnings,
}

/** Between hosts: waits until the host acts on this version of a namespace's settings, or a later one. */
struct AwaitSettingsRequest {
  1: string ns,
  2: i64 version,
  /** Duration, 0 to 600,000. Default 0. */
  3: optional i64 wait_ms,
  15: optional RequestContext context,
}

struct AwaitSettingsResponse {
  /** The version that the host acts on. It is lower than the requested version if wait_ms has passed. */
  1: i64 version,
}

/**
 * Runs a script on a sample of an item, and stores nothing. `elapsed_us`, `memory_bytes` and `error` describe the call. The
 * request fails only if the host cannot run the script. The call does not count for the topic's breaker.
 */
struct TryHookRequest {
  1: string ns,
  /** on_enqueue or on_failure. */
  2: string hook,
  /** The name of a settings entry `script.<name>`. Exactly one of script and source is set. */
  3: optional string script,
  4: optional string source,
  /** The item of the call. The script reads its topic, headers, priority and the size of its payload. */
  5: ItemSpec sample,
  /** on_failure: the attempt that failed. Default: 1. */
  6: optional i32 attempt,
  /** on_failure: FAILED, EXPIRED or REJECTED. Default: FAILED. */
  7: optional FailureCause cause,
  /** on_failure: the consumer's reason. Default: none. */
  8: optional string reason,
  15: optional RequestContext context,
}

struct TryHookResponse {
  /** on_enqueue: the sample with the fields that the script set, unless it refused the item or failed. */
  1: optional ItemSpec item,
  /** on_enqueue: why the script refuses the item. */
  2: optional string refuse,
  /** on_failure: retry, dead or drop. Not set: the policy decides. */
  3: optional string action,
  /** on_failure: duration. Not set: the policy decides. */
  4: optional i64 delay_ms,
  /** Processor time of the call, in microseconds. */
  5: i64 elapsed_us,
  /** Memory of the script's data after the call. */
  6: i64 memory_bytes,
  /** Why the call failed. Not set: it succeeded. */
  7: optional string error,
}

// ---------------------------------------------------------------------------------------- Dead letters

/** Dead letters that belong together: the same cause, and reasons with the same fingerprint. */
struct FailureGroup {
  1: FailureCause cause,
  2: i64 fingerprint,
  3: i64 count,
  /** Epoch milliseconds. */
  4: i64 first_died_at_ms,
  /** Epoch milliseconds. */
  5: i64 last_died_at_ms,
  /** One of the items. */
  6: i64 sample_id,
  /** The reason of that item. */
  7: string sample_reason,
}

/** Conditions on a dead letter. It must meet all conditions that are set. */
struct FailureFilter {
  1: optional i64 fingerprint,
  2: optional FailureCause cause,
  /** 1 to 1,024 bytes; upper and lower case differ. */
  3: optional string reason_contains,
  /** Epoch milliseconds: the item died before this time. 1,000 to 10^11 is INVALID, as in ItemSpec. */
  4: optional i64 died_before_ms,
  /** Epoch milliseconds: the item died at this time or later. 1,000 to 10^11 is INVALID. */
  5: optional i64 died_after_ms,
  /** The fairness key in the topic that it came from; "": items without a key. At most 255 bytes. */
  6: optional string fairness_key,
  /** The item has each of these pairs; at most 4 KiB. */
  7: optional map<string, string> headers,
  /** Bounds on the deliveries in the topic that it came from; 0 or more. */
  8: optional i32 min_attempts,
  9: optional i32 max_attempts,
  10: optional string origin_topic,
  /**
   * It is this item. With its fingerprint, hosts look at this item alone. A host of an earlier version ignores it: look
   * at the items of a dry run.
   */
  11: optional i64 item_id,
}

struct ListFailuresRequest {
  1: string ns,
  /** The dead-letter topic. */
  2: string topic,
  /** Only this cause. Default: all. */
  3: optional FailureCause cause,
  /** 1 to 1,000 groups per reply. Default 100. */
  4: optional i32 limit,
  /** From the previous reply. */
  5: optional string cursor,
  /** Only items with this fairness key in the topic that they came from; "": items without a key. Default: all. */
  6: optional string fairness_key,
  15: optional RequestContext context,
}

struct ListFailuresResponse {
  /** Ordered by fingerprint, then cause. Not a snapshot. */
  1: list<FailureGroup> groups,
  /** Set if the list continues. */
  2: optional string cursor,
  /** host:port of the hosts that did not answer, and `shard N` for a shard without a host. Their items are not counted. */
  3: list<string> missing,
}

/**
 * What fails now, whether items are dead letters or are tried again: attempts that failed, counted by the hosts that had
 * the items, since they started. A host counts 200 topics, and in each topic 10 groups and the rest of its failures.
 */
struct ListFailingRequest {
  1: string ns,
  /** Only this topic. Default: all. */
  2: optional string topic,
  /** 1 to 1,000 topics. Default 100. */
  3: optional i32 limit,
  15: optional RequestContext context,
}

/**
 * Failed attempts with the same cause, and reasons with the same fingerprint. The numbers of a group may be too low if it
 * was rare for a time; the sums of a topic are right. Bounds in time are up to a sixth longer: the last minute has 60 to
 * 70 s, 10 minutes have 10 to 11 min.
 */
struct FailingGroup {
  /** UNSPECIFIED: the rest of the topic's failures, which have no groups. */
  1: FailureCause cause,
  /** 16 hexadecimal digits. */
  2: string fingerprint,
  3: i64 last_minute,
  4: i64 last_10_minutes,
  5: i64 last_hour,
  /** Since first_failed_at_ms. */
  6: i64 failures,
  /** Of `failures`: the item became a dead letter, or was removed. The items of all further ones are tried again. */
  7: i64 ended,
  /** Epoch milliseconds. A group without a failure for an hour is forgotten, and begins again. */
  8: i64 first_failed_at_ms,
  /** Epoch milliseconds. */
  9: i64 last_failed_at_ms,
  /** The highest number of an attempt. */
  10: i32 attempts,
  /** Of the last one, like the next two; at most 200 bytes. */
  11: string reason,
  12: i64 item_id,
  /** Empty: not known, or it has no name. */
  13: string worker,
  /** At most 8, by name. */
  14: list<string> workers,
  /** True if there are more than `workers`. */
  15: bool more_workers,
}

struct FailingTopic {
  1: string topic,
  /** Attempts that ended with an ack, since the topic's first failure; likewise the next. */
  2: i64 acked_10_minutes,
  3: i64 acked_hour,
  /** The most failures in the last minute first, then of the last 10 minutes and hour. */
  4: list<FailingGroup> groups,
}

struct ListFailingResponse {
  /** In the order of their first groups. */
  1: list<FailingTopic> topics,
  /** True if more topics fail. */
  2: bool more,
  /** host:port of the hosts that did not answer. Their failures are not counted. */
  3: list<string> missing,
}

/**
 * Returns dead letters to the topics that they came from. They are ready then, with attempt 0, their own priority, and the
 * TTL of that topic's policy (ttl_ms), if it has one. Leased items stay and are counted. Items without a failure, which a
 * producer enqueued there, also stay and are counted. One transaction moves an item and removes its failure, so a repeated
 * request redrives other items. Items of a topic that is closed, or full (max_stored), stay: `refused` counts them. With
 * to_topic, the first such item ends the request. A paused topic takes its items.
 */
struct RedriveItemsRequest {
  1: string ns,
  /** The dead-letter topic. */
  2: string topic,
  /** At most this many items. 0: all. */
  3: i64 count = 0,
  /** Default: all dead letters of the topic. */
  4: optional FailureFilter filter,
  /** At most this many of each group (cause and fingerprint) over all shards, 1 or more. It covers the first 10,000 groups. */
  5: optional i32 per_fingerprint,
  /** All items move to this topic. Default: each item moves to the topic that it came from. */
  6: optional string to_topic,
  /** At most about this many items a second, 1 to 1,000,000. Default: no bound. */
  7: optional i32 pace_per_second,
  /** Count the items and change nothing. Default: no. */
  8: optional bool dry_run,
  /** Between hosts, like the next three: only this shard, and one page of at most 500 items (count). */
  9: optional i32 shard,
  10: optional string cursor,
  /** Redriven items of each group (count). Default: none. */
  11: optional list<FailureGroup> taken,
  15: optional RequestContext context,
}

/** Dead letters that stay, because their target topic is closed or full. */
struct RefusedTopic {
  1: string topic,
  /** Dead letters for this topic that the request examined. */
  2: i64 items,
  /** UNAVAILABLE: the topic is closed. OVERLOADED: it is full. The message names the command that ends this state. */
  3: ItemError error,
}

/** A dead letter that returned. */
struct RedrivenItem {
  1: i64 id,
  /** The topic that it is in now. */
  2: string topic,
}

/** A request ends with its timeout_ms at the latest. */
struct RedriveItemsResponse {
  /** Lower bound on the number of redriven items. */
  1: i64 at_least,
  /** Upper bound on this number. It differs from at_least if the owner of a shard failed during the request. */
  2: i64 at_most,
  /** Matching items that stay because a consumer has leased them. */
  3: i64 skipped_leased,
  /** True if the request ended, by its time or its count, before it examined all dead letters. */
  4: bool more,
  /** Shards that were not searched to their end. */
  5: list<i32> missing_shards,
  /** Between hosts, like the next field: set if the shard has further dead letters. */
  6: optional string cursor,
  /** Items that this page redrove, by group (count). */
  7: optional list<FailureGroup> taken,
  /** In the order of their names. */
  8: list<RefusedTopic> refused,
  /** Dead letters that stay, because another item has their dedup_key (DedupUntil.DONE). */
  9: optional i64 skipped_duplicate,
  /** The first 100 redriven items; of a dry run, items that would be redriven. A host of an earlier version names none. */
  10: optional list<RedrivenItem> items,
}

// ---------------------------------------------------------------------------------------------- Batches

enum BatchState {
  UNSPECIFIED = 0,
  /** It does not end before CloseBatch. */
  OPEN = 1,
  /** It ends with its last member. */
  CLOSED = 2,
  /** It has ended: each member was acked. */
  SUCCEEDED = 3,
  /** It has ended, and some members were not acked. */
  ENDED = 4,
  /** Its ttl_ms ended it. Members may live, and end later. */
  EXPIRED = 5,
  /** CancelBatch; it has ended when ended_at_ms is set. Until then, consumers have members. */
  CANCELLED = 6,
}

/**
 * Items that end together. A member is an item with ItemSpec.batch, or a batch with `parent`. When each member is acked,
 * on_success is enqueued. When each member has ended in any way, on_end is enqueued, with these headers in addition to its
 * own: `foqs-batch` (the id), `foqs-batch-state` (a BatchState), `foqs-batch-counts` (JSON, as BatchCounts) and
 * `foqs-batch-failed` (the first 100 ids of members that failed, with commas between them). on_success has the first one.
 * A batch ends only after CloseBatch, after ttl_ms, or after CancelBatch. Each callback is stored exactly once, in the
 * transaction that ends the batch, and is delivered as any item is. Members may be added until the batch ends; a member that
 * adds members does so before it ends. A member counts as failed when it is a dead letter; a redrive before the end of the
 * batch makes it live again, and a redrive after it changes nothing.
 */
struct CreateBatchRequest {
  1: string ns,
  /**
   * Checked as by Enqueue, with the present policy of its topic. INVALID with dedup_key, order_key, batch, deliver_after_ms or
   * expires_at_ms: delay_ms and ttl_ms count from the end of the batch. Scripts, quotas and limits of the topic's items do
   * not hold it up.
   */
  2: optional ItemSpec on_success,
  /** As on_success; with at most 1,800 bytes of headers. */
  3: optional ItemSpec on_end,
  /** Duration from now on, 1 s to 366 days; then the batch ends as EXPIRED. Default: 7 days. */
  4: optional i64 ttl_ms,
  /** A batch of the namespace that this one becomes a member of, as an item does. */
  5: optional i64 parent,
  15: optional RequestContext context,
}

struct CreateBatchResponse {
  1: i64 id,
}

/** The batch gets no further members except from members, and may end. Closing it again changes nothing. */
struct CloseBatchRequest {
  1: string ns,
  2: i64 id,
  15: optional RequestContext context,
}

struct CloseBatchResponse {
}

/**
 * Closes the batch, refuses new members, and removes the members that no consumer has (as cancelled). The batch ends when the
 * other ones have ended; a batch that is a member is cancelled, too. A batch that has ended stays as it is.
 */
struct CancelBatchRequest {
  1: string ns,
  2: i64 id,
  15: optional RequestContext context,
}

struct CancelBatchResponse {
}

/** How the members of a batch have ended. */
struct BatchCounts {
  /** All members, as far as the home of the batch knows. */
  1: i64 members,
  2: i64 completed,
  3: i64 failed,
  /** The TTL of the item ended. */
  4: i64 expired,
  5: i64 deleted,
  6: i64 cancelled,
  /** By the script of the topic. */
  7: i64 dropped,
  /** Of at-most-once items. */
  8: i64 lease_ended,
}

struct GetBatchRequest {
  1: string ns,
  2: i64 id,
  15: optional RequestContext context,
}

/** NOT_FOUND: the namespace has no such batch, or it ended more than limits.batch_keep_ms ago. */
struct GetBatchResponse {
  1: i64 id,
  2: BatchState state,
  3: i64 created_at_ms,
  /** When its ttl_ms ends. */
  4: i64 expires_at_ms,
  5: optional i64 ended_at_ms,
  6: optional i64 parent,
  /** They follow the members with a delay of about 0.3 s. */
  7: BatchCounts counts,
  /** The first 100 members that failed. */
  8: list<i64> failed_ids,
  /** The items that were stored at its end. */
  9: optional i64 success_id,
  10: optional i64 end_id,
}

/** Between hosts: what a shard says of its members of a batch. */
struct MemberReport {
  1: i64 batch,
  2: i32 shard,
  /** Of the shard's owner. */
  3: i64 epoch,
  /** Grows with each report of this owner. */
  4: i64 serial,
  /** `members` includes the items that the shard stores when the home has committed the report. */
  5: BatchCounts counts,
  6: list<i64> failed_ids,
  /** Set if items wait for the answer: INVALID if the batch takes no members of this namespace. */
  7: optional string ns,
}

/** Between hosts: reports to the homes of batches. */
struct ReportMembersRequest {
  /** The shard that is the home of the batches. */
  1: i32 shard,
  /** 1 to 1,000. */
  2: list<MemberReport> reports,
  15: optional RequestContext context,
}

struct ReportMembersResponse {
  /** One for each report; without a code: committed. */
  1: list<ItemError> outcomes,
}

struct MemberQuestion {
  1: i64 batch,
  /** Remove the members that no consumer has. */
  2: optional bool cancel,
  /** The batch is removed: forget its members. */
  3: optional bool forget,
}

/** Between hosts: asks a shard for reports. */
struct AskMembersRequest {
  1: i32 shard,
  /** 1 to 1,000. */
  2: list<MemberQuestion> questions,
  15: optional RequestContext context,
}

/** The reports follow as ReportMembers. */
struct AskMembersResponse {
  /** Batches of `forget` that the shard has no member of. */
  1: list<i64> forgotten,
}

service Foqs {
  /** Stores items. */
  EnqueueResponse Enqueue(1: EnqueueRequest request) throws (1: RequestError error),
  /** Leases ready items to the caller, and waits for a first one. */
  DequeueResponse Dequeue(1: DequeueRequest request) throws (1: RequestError error),
  /** Ends items whose work is done. */
  AckResponse Ack(1: AckRequest request) throws (1: RequestError error),
  /** Ends leases without success, so that the items come again, or are dead letters after their last attempt. */
  NackResponse Nack(1: NackRequest request) throws (1: RequestError error),
  /** Extends leases, and keeps checkpoints, progress and logs with the items. */
  ExtendLeaseResponse ExtendLease(1: ExtendLeaseRequest request) throws (1: RequestError error),
  /** Lists the topics of a namespace with their items. */
  GetActiveTopicsResponse GetActiveTopics(1: GetActiveTopicsRequest request) throws (1: RequestError error),
  /** Returns an item, by its id or its dedup_key, without leasing it. */
  GetItemResponse GetItem(1: GetItemRequest request) throws (1: RequestError error),
  CancelItemResponse CancelItem(1: CancelItemRequest request) throws (1: RequestError error),
  /** Returns how an item ended, with the result of its ack, and waits for the end. */
  GetResultResponse GetResult(1: GetResultRequest request) throws (1: RequestError error),
  /** Lists items of a topic without leasing them. */
  ListItemsResponse ListItems(1: ListItemsRequest request) throws (1: RequestError error),
  /** Removes items in any state. */
  DeleteItemsResponse DeleteItems(1: DeleteItemsRequest request) throws (1: RequestError error),
  ChangeItemsResponse ChangeItems(1: ChangeItemsRequest request) throws (1: RequestError error),
  /** Returns the limits of the server, its version, and what the caller may do. */
  GetServerInfoResponse GetServerInfo(1: GetServerInfoRequest request) throws (1: RequestError error),
  /** Returns which host serves which shard, and waits for a change. */
  GetRoutingResponse GetRouting(1: GetRoutingRequest request) throws (1: RequestError error),
  WatchTopicsResponse WatchTopics(1: WatchTopicsRequest request) throws (1: RequestError error),
  GiveSlotResponse GiveSlot(1: GiveSlotRequest request) throws (1: RequestError error),
  ReplaceItemsResponse ReplaceItems(1: ReplaceItemsRequest request) throws (1: RequestError error),
  ChangeKeysResponse ChangeKeys(1: ChangeKeysRequest request) throws (1: RequestError error),
  TakeTokensResponse TakeTokens(1: TakeTokensRequest request) throws (1: RequestError error),
  LendResponse Lend(1: LendRequest request) throws (1: RequestError error),
  CountSlotsResponse CountSlots(1: CountSlotsRequest request) throws (1: RequestError error),
  TellSlotsResponse TellSlots(1: TellSlotsRequest request) throws (1: RequestError error),
  CountItemsResponse CountItems(1: CountItemsRequest request) throws (1: RequestError error),
  TellSharesResponse TellShares(1: TellSharesRequest request) throws (1: RequestError error),
  /** Groups the dead letters of a topic by cause and reason. */
  ListFailuresResponse ListFailures(1: ListFailuresRequest request) throws (1: RequestError error),
  /** Lists the failures of the last hour, of items that are tried again too. */
  ListFailingResponse ListFailing(1: ListFailingRequest request) throws (1: RequestError error),
  RedriveItemsResponse RedriveItems(1: RedriveItemsRequest request) throws (1: RequestError error),
  /** Acks items and leases new ones in one request. */
  AckAndDequeueResponse AckAndDequeue(1: AckAndDequeueRequest request) throws (1: RequestError error),
  /** Returns the counts, the policy, the workers and the tenants of a topic. */
  GetTopicStatsResponse GetTopicStats(1: GetTopicStatsRequest request) throws (1: RequestError error),
  /** Returns the settings of a namespace. */
  GetSettingsResponse GetSettings(1: GetSettingsRequest request) throws (1: RequestError error),
  GetSettingsLogResponse GetSettingsLog(1: GetSettingsLogRequest request) throws (1: RequestError error),
  PutSettingsResponse PutSettings(1: PutSettingsRequest request) throws (1: RequestError error),
  AwaitSettingsResponse AwaitSettings(1: AwaitSettingsRequest request) throws (1: RequestError error),
  ReleaseLeasesResponse ReleaseLeases(1: ReleaseLeasesRequest request) throws (1: RequestError error),
  ListSchedulesResponse ListSchedules(1: ListSchedulesRequest request) throws (1: RequestError error),
  RunScheduleResponse RunSchedule(1: RunScheduleRequest request) throws (1: RequestError error),
  GetThrottlesResponse GetThrottles(1: GetThrottlesRequest request) throws (1: RequestError error),
  /** Says why an item, or any item of a topic, is not delivered. */
  ExplainItemResponse ExplainItem(1: ExplainItemRequest request) throws (1: RequestError error),
  TryHookResponse TryHook(1: TryHookRequest request) throws (1: RequestError error),
  /** Returns facts about all hosts. */
  GetStatusResponse GetStatus(1: GetStatusRequest request) throws (1: RequestError error),
  ListConsumersResponse ListConsumers(1: ListConsumersRequest request) throws (1: RequestError error),
  /** Returns the traffic of namespaces in the last hour. */
  GetRatesResponse GetRates(1: GetRatesRequest request) throws (1: RequestError error),
  /** Creates a batch, which enqueues its callbacks when its members have ended. */
  CreateBatchResponse CreateBatch(1: CreateBatchRequest request) throws (1: RequestError error),
  /** Closes a batch, so that it may end. */
  CloseBatchResponse CloseBatch(1: CloseBatchRequest request) throws (1: RequestError error),
  CancelBatchResponse CancelBatch(1: CancelBatchRequest request) throws (1: RequestError error),
  /** Returns the state of a batch and the counts of its members. */
  GetBatchResponse GetBatch(1: GetBatchRequest request) throws (1: RequestError error),
  ReportMembersResponse ReportMembers(1: ReportMembersRequest request) throws (1: RequestError error),
  AskMembersResponse AskMembers(1: AskMembersRequest request) throws (1: RequestError error),
}
