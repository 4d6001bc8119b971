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
 * Limits quoted here are the defaults. GetServerInfo returns those of a server.
 *
 * The reply to a batch has one outcome per item: one bad item does not fail its neighbours, and their outcomes are the
 * same as without it. Equal entries of one request have the same outcome. A request that is wrong as a whole (too many
 * entries, a wrong context, a wrong namespace) throws RequestError. No field is `required`, so the contract can grow; the
 * field ids left free below are reserved by the comments beside them.
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
  /** Delivered again until it is acked, it is deleted or its TTL ends. The default. */
  AT_LEAST_ONCE = 1,
  /** Never delivered twice: the end of its lease removes the item, unless the consumer released it as not started. */
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
}

enum ErrorCode {
  UNSPECIFIED = 0,
  /** The input is wrong; the same input will be refused again. Nothing was changed. */
  INVALID = 1,
  /** There is no such item (any more), or it is in a namespace in which the caller has no right. */
  NOT_FOUND = 2,
  /** The lease given is not the item's current lease. Nothing was changed. */
  STALE_LEASE = 3,
  /**
   * A bounded buffer is full, the namespace's quota is used up, or the topic has all items that its policy allows. Nothing
   * was changed; try again after retry_after_ms.
   */
  OVERLOADED = 4,
  /** The shard (or every shard) cannot be used now, or the topic is closed. Nothing was changed; try again later. */
  UNAVAILABLE = 5,
  /**
   * The change may or may not have been committed; the host could not find out within the time of the request. For an
   * enqueue, also if the shard's database does not answer for twice breaker.hang_ms; retry_after_ms is set then, and an
   * item with a dedup_key may be enqueued again.
   */
  OUTCOME_UNKNOWN = 6,
  /** The caller did not prove its identity. */
  UNAUTHENTICATED = 7,
  /** The caller lacks the right (produce, consume or admin) in the namespace of the request. */
  FORBIDDEN = 8,
  /**
   * Between hosts: the host that was asked does not serve the shard. Nothing was changed. Clients get UNAVAILABLE with
   * retry_after_ms 0 in its place.
   */
  NOT_OWNER = 9,
  /** The namespace's settings have another version than the expected one. Nothing was changed. */
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
  /** It was ready again with all its attempts used up: the limit was lowered, or nacks without `failed` used them. */
  LIMIT = 5,
}

/**
 * Why an item is not delivered now. ExplainItem lists reasons in the order in which they have to end: GONE, ENDED,
 * SHARD_NOT_SERVED, CLOCK_IN_DOUBT, OWNER_IN_GRACE, BREAKER_OPEN, DELAYED, LEASED, PAUSED, THROTTLED, CONCURRENCY,
 * BEHIND_IN_LANE, BEHIND_IN_TURN, PER_WORKER, NO_CONSUMER, NOT_LOADED. The numbers say nothing about the order.
 */
enum Reason {
  UNSPECIFIED = 0,
  /** There is no such item (any more), or it is in a namespace in which the caller has no right. A topic: no items. */
  GONE = 1,
  /**
   * Its attempts (`count`) are used up, as after a lower limit: a dequeue that reaches it delivers it no more, but moves
   * it to the dead-letter topic `key`. Without a key, the dequeue removes it.
   */
  ENDED = 2,
  /** No host serves the item's shard now. */
  SHARD_NOT_SERVED = 3,
  /** The shard's host waits until an earlier owner, which may still run, has certainly stopped: until_ms. */
  OWNER_IN_GRACE = 4,
  /** The shard's database fails, is slow, or does not answer. until_ms: of the next trial. */
  BREAKER_OPEN = 5,
  /** Its deliver_after_ms is in the future: until_ms. A topic: `count` items are delayed, and none is ready. */
  DELAYED = 6,
  /** `by` has leased it until until_ms. A topic: `count` items are leased, and none is ready. */
  LEASED = 7,
  /** The settings entry `key` pauses the topic. */
  PAUSED = 8,
  /** The throttle `key` has no token; the next comes at until_ms. `count`: flows that get tokens before. */
  THROTTLED = 9,
  /** All slots of a throttle key are taken. key: that one; count: flows before its own; item_ids: some that hold slots. */
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
   * The consumers that wait for the topic at the item's host, or asked there last, may have no more items: each of their
   * workers holds `count`, as the settings entry `key` allows (per_worker). by: one of these workers.
   */
  PER_WORKER = 15,
  /** Clocks have jumped: the shard's host delivers nothing until it knows which one is right. */
  CLOCK_IN_DOUBT = 16,
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
      With authentication a server reads requests over 65,536 bytes only after a smaller authenticated one on the same
      connection, such as GetServerInfo, and answers a larger one before it with UNAUTHENTICATED. */
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
}

// ---------------------------------------------------------------------------------------------- Enqueue

/**
 * One unit of work as a producer gives it. Where the topic's policy has a value of priority, delay_ms, lease_ms, ttl_ms or
 * delivery, that is the default. A priority of 0 and AT_LEAST_ONCE count as not set, because every client sends them.
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
  /** Epoch milliseconds: earliest delivery. In the past means now, but 1,000 to 10^11 (a time in seconds, or a duration) is
      INVALID. At most 366 days ahead. Default: now. */
  6: optional i64 deliver_after_ms,
  /** Duration from the enqueue, 0 to 366 days; instead of deliver_after_ms (both is INVALID). Default: 0. */
  7: optional i64 delay_ms,
  /** Duration of a lease when the consumer does not give one, 100 ms to 12 h. Default: the server's, 30,000. */
  8: optional i64 lease_ms,
  /** Removed this long after the enqueue unless leased then, 1 ms to 366 days. Default: never. */
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
   * Rate limits that the item waits for: it is delivered when each of these keys that has a throttle in the settings
   * has a token. At most 8, none twice, each as fairness_key and without "*" at its end, together at most 512 bytes with
   * one between two keys. Made for keys that many items share: each set of keys is a lane of its own. Default: none.
   */
  13: optional list<string> throttle_keys,
  /**
   * The tenant's share against other tenants, 1 to 1,000: that of its last stored item that has one counts, on each
   * shard. Weights in the settings come first. Default: no change; 1 at first.
   */
  14: optional i32 weight,
  // 15: rules   16, 17, 19, 20: retry and dead-letter policy
  /**
   * Epoch milliseconds: the end of the TTL, in place of ttl_ms (both is INVALID). For copies of items: it depends on no
   * clock but the server's. At most 366 days ahead. A time in the past is a TTL of 1 ms.
   */
  18: optional i64 expires_at_ms,
}

struct EnqueueRequest {
  1: string ns,
  /** 1 to 10,000 items; where any has headers, at most 400,000 fields and header texts in the request. */
  2: list<ItemSpec> items,
  15: optional RequestContext context,
}

/** Exactly one of id and error is set. */
struct EnqueueOutcome {
  /** The item is committed under this id. */
  1: optional i64 id,
  2: optional ItemError error,
  /** An earlier enqueue with the same dedup_key stored the item, which may have been removed since. */
  3: optional bool duplicate,
}

struct EnqueueResponse {
  /** One per item, in the order of the request. */
  1: list<EnqueueOutcome> outcomes,
}

// ---------------------------------------------------------------------------------------------- Dequeue

struct TopicCount {
  1: string topic,
  /**
   * At most this many items, 1 to 10,000. The counts of a request without `most` are at most 10,000 together. 0 with `hung`,
   * then of all topics: a report only.
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
   * Handlers of the worker process that have worked on an item of the topic for longer than the worker allows, for
   * GetTopicStats. Needs DequeueRequest.worker. The host forgets it after 15 s. Default: the host hears nothing of that.
   */
  4: optional i32 hung,
}

struct DequeueRequest {
  1: string ns,
  /** Topics, 1 to 1,000 of them, none twice. Without `most` the first ones are emptied first. */
  2: list<TopicCount> wants,
  /** Duration of the leases, 100 ms to 12 h. Default: each item's own, else the server's. */
  3: optional i64 lease_ms,
  /**
   * Duration to wait for a first item, 0 to 600,000. Default 0: reply at once. The wait ends when the caller sends the
   * oneway message EndWait, without arguments, behind the request on the same connection. That message gets no reply.
   */
  4: optional i64 wait_ms,
  /** Bound on the reply's payloads, metadata and headers together, in bytes; the first item always fits. Default: what fits a frame. */
  5: optional i64 max_bytes,
  /** Names the worker process, for GetTopicStats and ReleaseLeases; 1 to 128 bytes, no control characters. */
  6: optional string worker,
  /** The items of the reply have a `ledger`. Default: no. */
  7: optional bool ledger,
  /**
   * The consumer begins this many items of the reply at once, the first ones; 0 or more. The later ones are marked as with
   * ExtendItem.begun = false. Default: it begins all.
   */
  8: optional i32 begins,
  /**
   * At most this many items over all topics of `wants`, 1 to 10,000. The topics with ready items on the host that answers share
   * it evenly; where it is too small for that, chance decides which of them get an item. Default: the sum of the counts.
   */
  9: optional i32 most,
  15: optional RequestContext context,
}

/** What ended the attempts of an item in a dead-letter topic. */
struct Failure {
  /** The topic that the item came from. */
  1: string topic,
  /** The fairness key and the throttle keys that it had there, and has again after a redrive. */
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
}

/** What an item waited for, as the host that delivers it knows. */
struct Ledger {
  /** Duration from deliver_after_ms to this delivery. */
  1: i64 waited_ms,
  /**
   * Deliveries of the topic by the host since the item became ready, without one for each item that came before it then.
   * Where tenants take turns, only the items of its own tenant count; a turn of another tenant overtakes nothing. Each
   * item that came before it and ended without a delivery, or still waits for a throttle, hides one that overtook it.
   * Absent where that is not known: the item was ready before a consumer asked for ledgers of the topic, or items that
   * were not in memory may have come before it, or those that may are in more than 256 lanes.
   */
  2: optional i64 overtaken,
  /**
   * The lowest priority of the topic's items that are ready on other hosts, if it is below the priority of this item.
   * Hosts ask each other twice a second while consumers want ledgers of the topic. Absent where no host said so in the
   * last 10 s: its first items may not be in its memory, wait for a throttle, or be in a shard that does not answer.
   * Absent where tenants take turns whatever their items' priorities (fair.scope "tenant").
   */
  3: optional i32 more_urgent_elsewhere,
  /** Duration since that host said so; set with more_urgent_elsewhere. */
  4: optional i64 more_urgent_age_ms,
  /** Where tenants take turns: deliveries of other tenants by the host since then. Absent where `overtaken` is. */
  5: optional i64 other_tenants,
}

/** An item as a consumer or an operator sees it. */
struct Item {
  /** Positive; never used twice. */
  1: i64 id,
  /** Names this delivery in Ack, Nack and ExtendLease; 0 where nothing is leased. */
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
  /** Epoch milliseconds; the enqueue's time when no delay was asked for. */
  11: i64 deliver_after_ms,
  12: i64 enqueued_at_ms,
  /** Epoch milliseconds; 0 where nothing is leased. */
  13: i64 lease_expires_at_ms,
  /** Epoch milliseconds; set when the item has a TTL. */
  14: optional i64 expires_at_ms,
  /** The item's state; only in ListItems. */
  15: optional ItemState state,
  // 16: dedup_key
  /** As enqueued; unset where there are none. */
  17: optional string fairness_key,
  18: optional list<string> throttle_keys,
  // 19: result   20: ended_at_ms
  /** Of an item in a dead-letter topic; only in GetItem and ListItems. */
  21: optional Failure failure,
  /** Only in the reply to a dequeue that asked for it. */
  22: optional Ledger ledger,
}

struct DequeueResponse {
  /**
   * Leased items, each topic's in lane order (priority, deliver_after_ms, id). Without `most`, topics are in the order of
   * `wants`.
   */
  1: list<Item> items,
  /**
   * Ids of AT_MOST_ONCE items selected for this reply whose leases may or may not have been committed. Each is
   * delivered in another reply, or never. Default: none.
   */
  2: optional list<i64> doubtful,
  /** Between hosts, with no items: the host had none ready as of this version (see WatchTopicsResponse). Default: none. */
  3: optional i64 news_version,
  /** Only without items: when the topic that can deliver first may have an item again, in milliseconds. Default: unknown. */
  4: optional i64 retry_after_ms,
  /**
   * Only without items: "paused" when the policy of one of the topics holds its items back, "throttled: <key>" or
   * "concurrency: <key>" when a throttle does, "per_worker" when the worker holds enough. Default: none.
   */
  5: optional string reason,
  /** By topic of `wants` whose policy has per_worker: its value. Default: none has. */
  6: optional map<string, i32> per_worker,
}

// ------------------------------------------------------------------------------ Ack, Nack, ExtendLease

/** INVALID without an id or a lease, as NackItem and ExtendItem. */
struct AckItem {
  1: i64 id,
  2: i64 lease,
  // 3: result
}

struct AckRequest {
  /**
   * 1 to 10,000. An id and lease that come twice have one outcome, twice. An id that comes with two leases is two entries:
   * each is judged by itself.
   */
  1: list<AckItem> items,
  /** When given, an item of another namespace is NOT_FOUND. */
  2: optional string ns,
  15: optional RequestContext context,
}

struct ItemOutcome {
  /** Unset: success. */
  1: optional ItemError error,
}

struct AckResponse {
  /** One per item, in the order of the request. */
  1: list<ItemOutcome> outcomes,
}

struct NackItem {
  1: i64 id,
  2: i64 lease,
  /** Duration until the next delivery, 0 to 366 days. Default 0: at once, at its old place in the order (but see failed). */
  3: optional i64 delay_ms,
  /** Replaces the item's metadata; at most 4 KiB. Default: kept. */
  4: optional binary metadata,
  /** The consumer did not start on the item: no delay, and the attempt is not counted. Excludes delay_ms and metadata. */
  5: optional bool release,
  /** For logs and for the failure of a dead letter; at most 1,024 bytes. */
  6: optional string reason,
  /**
   * The consumer's work failed: the retry rule of the topic's policy sets the delay (delay_ms counts only where the
   * policy has no rule), and after the last attempt the item goes to the dead-letter topic. Without a delay the item is
   * ready at once, behind the items of its priority that are there: its deliver_after_ms becomes the present. A begun
   * item whose lease ends by time goes there, too.
   */
  7: optional bool failed,
  /**
   * The work can never succeed: the item goes to the dead-letter topic at once, or is removed where the topic has none.
   * At most one of release, failed and reject. Excludes delay_ms and metadata.
   */
  8: optional bool reject,
}

struct NackRequest {
  /**
   * 1 to 10,000. Of entries with the same id and lease the first one that is not INVALID is carried out, even if the other
   * fields differ; the later ones have its outcome.
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
   * Duration of the lease from now, 100 ms to 12 h. Default: the duration it was given at first; with `begun`, the end of
   * the lease does not change. Where the topic's policy has stuck_after_ms, the lease ends at most that long after the
   * delivery (a new owner of the shard counts from its opening), and an extension after that time is STALE_LEASE.
   */
  3: optional i64 lease_ms,
  /**
   * False: the consumer has not begun the item, so the attempt is not counted if the lease ends by time. True: it has.
   * Default: no change. An item of which nothing was said counts as begun. The mark is in the owner's memory: after a
   * change of owner the attempt counts.
   */
  4: optional bool begun,
}

struct ExtendLeaseRequest {
  /**
   * 1 to 10,000. Equal entries have one outcome. Entries with the same id and lease that differ in other fields are carried
   * out one after the other.
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
 * An Ack and a Dequeue in one request: a worker's outcomes travel with its request for more. The dequeue begins when
 * each ack has its outcome. A host that does not know the call refuses it as an unknown method: nothing was changed.
 */
struct AckAndDequeueRequest {
  /** Of the topics. An item of `acks` that is in another namespace is NOT_FOUND. */
  1: string ns,
  /**
   * 0 to 10,000; as in Ack. An ack that is not committed within about a second is UNAVAILABLE (nothing was
   * changed) or OUTCOME_UNKNOWN, so that it does not delay the items: repeat it with Ack.
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
  /** Why the dequeue failed, for example because the host shuts down. The outcomes hold all the same. Default: it did not. */
  4: optional ItemError error,
  /** As in DequeueResponse, like the next fields. */
  5: optional i64 retry_after_ms,
  6: optional string reason,
  7: optional map<string, i32> per_worker,
}

// -------------------------------------------------------------------------------- Looking and operating

struct GetActiveTopicsRequest {
  /** Only this namespace. Default: all in which the caller has a right. */
  1: optional string ns,
  /** 1 to 10,000 topics per reply. Default 1,000. */
  2: optional i32 limit,
  /** From the previous reply. */
  3: optional string cursor,
  /** Topics with items in any state, and their counts by state. Default: topics with ready items only. */
  4: optional bool all,
  15: optional RequestContext context,
}

/** A topic with at least one item ready now; with `all`, in any state. */
struct ActiveTopic {
  1: string ns,
  2: string topic,
  /** Items ready now; approximate. */
  3: i64 ready,
  /** Epoch milliseconds: since when the longest-waiting ready item may be delivered; approximate (within about a minute).
      0: no item is ready. */
  4: i64 oldest_ready_at_ms,
  /** host:port of the hosts that have such items. */
  5: list<string> hosts,
  /** Items; approximate. Set with `all`, like the next field. */
  6: optional i64 delayed,
  7: optional i64 leased,
}

struct GetActiveTopicsResponse {
  /** Ordered by namespace, then topic. */
  1: list<ActiveTopic> topics,
  /** Set when there is more. */
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
  /** In effect, 1 to 1,000: of the settings, else of the last stored item that had one, else 1. */
  2: i32 weight,
  /** Items; approximate. */
  3: i64 ready,
  /** Ready items that wait for a throttle. */
  4: i64 parked,
  // 5: leased   6: delivered_10s   7: busy_ms_10s   8: oldest_ready_at_ms
  /** Its service, in the unit of the topic's policy (fair.unit: items, KiB or ms), since its hosts have items of it. */
  9: double served,
  /** Of the topic's turns, 0 to 1: its weight over those of all tenants with ready items that wait for no throttle. 0 if it
      has no such items. */
  10: double share,
}

/** The leases that one worker process holds in a topic. */
struct WorkerStats {
  /** As in DequeueRequest. Empty: consumers without a name, and leases that an earlier owner of the shard gave. */
  1: string worker,
  2: i64 held,
  /** Duration since the oldest of them was given; as far as the owner knows, like stuck_after_ms. */
  3: i64 oldest_lease_ms,
  /** Its handlers that hang, as it said in the last 15 s (TopicCount.hung); their leases may have ended. */
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
  /** On some host the script is not called, because its last calls failed. */
  5: bool breaker_open,
  /** Duration until that host calls it again; 0 where no breaker is open. */
  6: i64 retry_after_ms,
  /** At most 5, the last one last: time (UTC), kind and text. */
  7: list<string> last_errors,
}

/** A topic that has no items has counts of 0. */
struct GetTopicStatsResponse {
  /** Items; approximate, like the next two: each host counts its own at another moment. */
  1: i64 ready,
  2: i64 delayed,
  3: i64 leased,
  // 4: completed   5: failed
  /** Nothing is delivered. */
  6: bool paused,
  /** Nothing may be enqueued. */
  7: bool closed,
  /** JSON of the effective policy: a value of each field, in the form of an entry `topic.` of the settings. */
  8: string policy,
  /** By field of the policy: the key of the settings that its value is from. A field without one has the built-in value. */
  9: map<string, string> policy_layers,
  /** Those with the most ready items first, up to `limit`. Empty where tenants take no turns. */
  10: list<TenantStats> tenants,
  /** Those with handlers that hang, then the oldest lease first, at most 1,000; only leases in the owners' memory. */
  11: list<WorkerStats> workers,
  /** One for each hook of the topic's policy. */
  12: list<HookStats> hooks,
  // 13: cursor
  /** host:port of the hosts that did not answer in time: their items are not counted. */
  14: list<string> missing,
  /** Sums over all further tenants: those beyond `limit`, and of each host those beyond its 1,000 with the most ready items
      (some of them are in `tenants`, too). Its weight counts tenants with ready items that wait for no throttle. */
  16: optional TenantStats more_tenants,
  /**
   * Fields of the policy whose values in the settings, or built-in values, have no effect, by name, with the reason: such as
   * max_attempts of a topic that takes dead letters. `policy` has the values in effect.
   */
  17: map<string, string> overruled,
}

struct GetItemRequest {
  1: i64 id,
  15: optional RequestContext context,
}

/** Leases nothing: `item.lease` is 0. */
struct GetItemResponse {
  1: Item item,
  2: ItemState state,
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
  15: optional RequestContext context,
}

struct ListItemsResponse {
  /** By shard; READY items in lane order, then DELAYED and LEASED items by due time. Not a snapshot. */
  1: list<Item> items,
  /** Set when there may be more. */
  2: optional string cursor,
}

struct DeleteItemsRequest {
  /** 1 to 10,000; deleted in any state, a live lease included. An id that comes twice has one outcome, twice. */
  1: list<i64> ids,
  15: optional RequestContext context,
}

struct DeleteItemsResponse {
  1: list<ItemOutcome> outcomes,
}

/**
 * Ends leases of a topic as if by time, so their attempts count, on all hosts. At-most-once items are removed then. Leases
 * that were given while the call runs may stay.
 */
struct ReleaseLeasesRequest {
  1: string ns,
  2: string topic,
  /** Only leases of this worker (DequeueRequest.worker). Leases that an earlier owner of the shard gave have no worker. */
  3: optional string worker,
  /** Only leases that were given so long ago (ms), 0 or more; as far as the owner knows, like stuck_after_ms. */
  4: optional i64 held_longer_than_ms,
  15: optional RequestContext context,
}

struct ReleaseLeasesResponse {
  /** Leases that this call ended. */
  1: i64 released,
  /** host:port of hosts that did not answer in time: their leases may have been ended or not. */
  2: list<string> missing,
}

/** A condition that ends before an item is delivered. */
struct ExplainReason {
  1: Reason code,
  /** One or two sentences for a person, with a command that shows more. No command in it changes anything. */
  2: string text,
  /** Unix epoch, milliseconds: when it ends by itself, as far as the host knows; it may have passed. */
  3: optional i64 until_ms,
  /** See Reason. */
  4: optional string key,
  5: optional i64 count,
  /** Items whose leases hold slots of the key, as far as the host knows; at most 10. */
  6: optional list<i64> item_ids,
  /** The worker (DequeueRequest.worker) that holds the lease, as far as the owner knows. */
  7: optional string by,
}

/** Throttle keys of a namespace, as far as they are in use: in the order of their names. */
struct GetThrottlesRequest {
  1: string ns,
  /** Only keys that begin with it; at most 255 bytes. Default: all. */
  2: optional string prefix,
  /** 1 to 1,000. Default 100. */
  3: optional i32 limit,
  /** From the answer before. Default: from the first key on. */
  4: optional string cursor,
  15: optional RequestContext context,
}

struct ThrottleStats {
  1: string key,
  /** The settings key of the throttle; empty if the key has none any more. */
  2: string setting,
  3: optional double per_second,
  4: optional i64 burst,
  /** Tokens that no host holds. Default: unknown, as the key's coordinator did not answer or knows of no use. */
  5: optional double tokens,
  /** How many leases may live at a time. Default: the throttle has no such limit. */
  6: optional i32 concurrency,
  /** Live leases with this key, and how many more there may be, as shards reported in the last half second. Default:
      unknown, as `tokens`. */
  7: optional i64 taken,
  8: optional i64 free,
  /** Leases that lived longer than the throttle's timeout_ms, since the hosts started. */
  9: i64 overage,
  /** Leases that ended by time, since the hosts started, and shards whose slots were given up. */
  10: i64 reclaimed,
  /** Sets of items (by topic, fairness key, throttle keys and host) that wait for a token of this key. */
  11: i64 parked_flows,
  /** Their items, at least: a host counts those of 10,000 such sets. */
  12: i64 parked_items,
  /** Milliseconds since when one of them waits. */
  13: i64 longest_wait_ms,
  /** Deliveries that a throttle with `shadow` would have held back since the hosts began to use the key. */
  14: i64 shadow_held,
  /** host:port of the host that makes the tokens; empty if it is unknown. */
  15: string coordinator,
}

struct GetThrottlesResponse {
  1: list<ThrottleStats> throttles,
  /** Continues the list. Not set at its end. */
  2: optional string cursor,
  /** host:port of hosts that did not answer. */
  3: list<string> missing,
}

/** An id, or ns and topic. A topic is explained by the items on the host that is nearest to a delivery. */
struct ExplainItemRequest {
  1: optional i64 id,
  2: optional string ns,
  3: optional string topic,
  15: optional RequestContext context,
}

struct ExplainItemResponse {
  /** In the order in which they have to end. Empty: deliverable now. */
  1: list<ExplainReason> reasons,
  /**
   * Duration, an estimate: items ahead in its lane, times all weights over its tenant's weight, over the host's rate of
   * deliveries of the topic in the last 10 s. Absent when the number of items ahead or the rate is not known. A host
   * measures the rate of topics that were explained in the last minute: the first answer has none.
   */
  2: optional i64 eta_ms,
  /** Absent for a topic, for an item that is gone, and where the item's shard could not be read. */
  3: optional ItemState state,
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
   * By shard that this host serves: rows changed since the shard was opened. Without the shards whose database does not
   * work now: it does not answer, fails, or is full.
   */
  3: optional map<i32, i64> shard_rows,
  /** By shard that this host serves: items in any state, counted up to a second ago. Set with count_items. */
  4: optional map<i32, i64> shard_items,
  /** Epoch milliseconds: the host's clock, which follows its databases' clocks. All times of items are by it. */
  5: optional i64 now_ms,
}

/** The host that serves a shard. */
struct ShardRoute {
  /** The number in the 15 bits under the sign of an item's id. */
  1: i32 shard,
  /** host:port */
  2: string host,
  /** The higher epoch belongs to the newer of two routes to one shard. */
  3: i64 epoch,
}

struct GetRoutingRequest {
  /** From the previous reply: with wait_ms, the host replies when its routing differs from this one. Default: none. */
  1: optional i64 version,
  /** Duration to wait for another routing than `version`, 0 to 600,000. Default 0: reply at once. */
  2: optional i64 wait_ms,
  15: optional RequestContext context,
}

struct GetRoutingResponse {
  /** Hash of the content: hosts with the same routing return the same version. It does not say which is newer. */
  1: i64 version,
  /** By shard. No host serves a missing one now. A host without a cluster lists its own shards. */
  2: list<ShardRoute> shards,
  /** host:port of every live host, hosts without a shard included. */
  3: list<string> hosts,
  /** The shard of each of the 1,024 slots of dedup_keys. Not set while the slots have no owners. */
  4: optional list<i32> slots,
}

/** Between hosts: a topic with ready items on the replying host. */
struct TopicNews {
  1: string ns,
  2: string topic,
  /** Items ready; approximate. */
  3: i32 ready,
}

/** Between hosts: asks for the topics with ready items that no consumer of that host takes. */
struct WatchTopicsRequest {
  /** From the previous reply: only changes since. Default: all topics. */
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
  2: i64 content,
  /** Of the stored item. */
  3: i64 id,
  4: i64 expires_at_ms,
}

/** Between hosts: moves a slot of dedup_keys from this shard to another one. The host replies when the shard accepts no
    more keys of the slot. UNAVAILABLE when the host does not serve the shard, or it has applied a later slot record. */
struct GiveSlotRequest {
  1: i32 shard,
  /** 0 to 1,023. */
  2: i32 slot,
  /** Of the slot record that moves the slot. */
  3: i64 stamp,
  /** 16 bytes: the lowest digest to return. Default: all. */
  4: optional binary low,
  /** 1 to 10,000. Default 1. */
  5: optional i32 limit,
  15: optional RequestContext context,
}

struct GiveSlotResponse {
  /** Ordered by digest. A list of `limit` keys may have more after it. */
  1: list<RememberedKey> keys,
}

/** Between hosts: takes tokens of a namespace with a quota, or of a topic with a bound (max_stored), one for each enqueued
    item. UNAVAILABLE when this host is not the quota's coordinator. */
struct TakeTokensRequest {
  1: string ns,
  /** Names the asking host, with another name after each start. At most 255 bytes. */
  2: string holder,
  /** Higher than in any earlier request of the holder. */
  3: i64 number,
  /** Tokens wanted; 0 or more, like the next two. */
  4: i64 wanted,
  /** Tokens that the holder has, including those spent on items that may still be refused. */
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

/** Tokens of one throttle key that a host asks for, one for each item it delivers. Numbers are 0 or more. */
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
  /** Duration: the tokens that the holder had and that are in neither number were spent at least so long before. */
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
  /** That of the shard's owner. */
  4: i64 epoch,
  /** Higher than in any earlier report under this epoch. */
  5: i64 number,
  /** Slots of the shard, without those that this report returns. */
  6: i32 has,
  /** Of these, those with a lease. */
  7: i32 leased,
  8: i32 wanted,
  // 9 is reserved
  /** The lowest priority of the items that wait for a slot. Default 0. */
  10: optional i32 priority,
  /** Duration since the first of them waits. Default 0. */
  11: optional i64 waiting_ms,
}

/** The answer to a SlotAsk. Nothing is set if the answering host does not coordinate the key now. */
struct SlotGrant {
  1: optional i32 granted,
  /** Other shards wait for slots of the key: a slot that is freed is returned at once. */
  2: optional bool contended,
  /** Duration: ask again after it for slots that were wanted and not granted. */
  3: optional i64 retry_after_ms,
}

/** Between hosts: takes tokens of throttle keys, and slots of those that limit leases. */
struct LendRequest {
  /** Names the asking host, with another name after each start. At most 255 bytes. */
  1: string holder,
  /** Together with `slots` 1 to 10,000. */
  2: list<TokenAsk> tokens,
  3: optional list<SlotAsk> slots,
  15: optional RequestContext context,
}

struct LendResponse {
  /** In the order of the request. A grant without fields: the question is wrong, or the host does not lend the key. */
  1: list<TokenGrant> tokens,
  /** In the order of the request. */
  2: optional list<SlotGrant> slots,
}

struct SlotKey {
  1: string ns,
  /** A throttle key: at most 255 bytes. */
  2: string key,
  /** Of the namespace's settings: hosts with an older version do not know which leases count. */
  3: optional i64 version,
}

/** Between hosts: a new coordinator of throttle keys asks how many leases have them. */
struct CountSlotsRequest {
  /** 1 to 1,000. */
  1: list<SlotKey> keys,
  /** Which shards. */
  2: list<i32> shards,
  15: optional RequestContext context,
}

/** The leases of one shard, which has no other slot of these keys. */
struct SlotCount {
  1: i32 shard,
  2: i64 epoch,
  /** As SlotAsk.number. */
  3: i64 number,
  /** In the order of the request; -1 where the owner does not know yet, and for a wrong key. */
  4: list<i32> leased,
}

struct CountSlotsResponse {
  /** Those of the host whose databases confirmed that it owns them. */
  1: list<SlotCount> shards,
}

/** A shard whose owner reports at once: a slot is kept for it, or other shards wait for its slots. */
struct SlotNews {
  1: string ns,
  2: string key,
  3: i32 shard,
}

/** Between hosts: from the coordinator of throttle keys to the owners of shards. */
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
  /** Thousandths of what the host delivered since it started, in the unit of the topic's policy (fair.unit); 0 or more. */
  2: i64 served,
}

/** What a host delivered of a topic. */
struct TopicShare {
  1: string ns,
  2: string topic,
  /** At most 256. */
  3: list<TenantShare> tenants,
}

/** A topic, and the most urgent of its items that are ready on a host. */
struct TopicUrgency {
  1: string ns,
  2: string topic,
  /** Unset in a request, and where the host knows of none; see Ledger.more_urgent_elsewhere. */
  3: optional i32 priority,
}

/** Between hosts, twice a second: what the asking host delivered of topics whose tenants the hosts balance, and which
    topics' consumers want ledgers. */
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
  /** By shard, including items being enqueued. A shard whose database does not answer in time is left out. */
  1: map<i32, i64> shards,
}

struct GetSettingsRequest {
  1: string ns,
  /** Only entries whose keys begin with it. Default: all. */
  2: optional string prefix,
  15: optional RequestContext context,
}

/** The settings of a namespace, as the answering host acts on them. */
struct GetSettingsResponse {
  /** 0: they were never written. Each change adds 1. */
  1: i64 version,
  2: map<string, string> entries,
}

/**
 * Changes the settings of a namespace in one step. A key is 1 to 512 bytes without control characters; a value has at
 * most 4,096 bytes (a script 65,536), and all entries together at most 900,000, as stored. `topic.<name>` and
 * `topic.<prefix>*` are policies of topics (JSON), `throttle.<key>` and `throttle.<prefix>*` limits on deliveries with a throttle key (JSON),
 * `weight.<key>` and `weight.<prefix>*` weights of fairness keys (1 to 1,000), `script.<name>` scripts of hooks (Lua); keys without such a prefix are free text.
 * INVALID lists every error, one a line. CONFLICT: the version is not expected_version. In both cases nothing was
 * changed.
 */
struct PutSettingsRequest {
  1: string ns,
  /** Added, or in place of entries with the same key. */
  2: map<string, string> entries,
  /** Keys of entries that exist, none of which is in `entries`. */
  3: list<string> remove,
  /** Default: change any version. */
  4: optional i64 expected_version,
  15: optional RequestContext context,
}

struct PutSettingsResponse {
  1: i64 version,
  /** host:port of the hosts that act on this version or a later one. */
  2: list<string> applied,
  /** host:port of the living hosts that did not say so within 2 s. */
  3: list<string> missing,
  /** What the changed entries say in vain, one text each: such as retries of a topic that takes dead letters. */
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
  /** The version that the host acts on, which is lower when wait_ms has passed. */
  1: i64 version,
}

/**
 * Runs a script on a sample of an item, and stores nothing. `elapsed_us`, `memory_bytes` and `error` say how it went; the
 * request fails only if the script could not be run. It does not count for the topic's breaker.
 */
struct TryHookRequest {
  1: string ns,
  /** on_enqueue or on_failure. */
  2: string hook,
  /** Either the name of a settings entry `script.<name>`, or a source: exactly one. */
  3: optional string script,
  4: optional string source,
  /** The script reads its topic, headers, priority and the size of its payload. */
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
  /** Processor time of the call. */
  5: i64 elapsed_us,
  /** Memory that the script's data takes after the call. */
  6: i64 memory_bytes,
  /** The call failed. */
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

/** The conditions that a dead letter has to meet, all that are set. */
struct FailureFilter {
  1: optional i64 fingerprint,
  2: optional FailureCause cause,
  /** 1 to 1,024 bytes; upper and lower case differ. */
  3: optional string reason_contains,
  /** Epoch milliseconds, like the next field: 1,000 to 10^11 is INVALID, as in ItemSpec. It died before. */
  4: optional i64 died_before_ms,
  /** Epoch milliseconds: it died at this time or after. */
  5: optional i64 died_after_ms,
  /** The fairness key in the topic that it came from; "": items without one. At most 255 bytes. */
  6: optional string fairness_key,
  /** The item has each of these pairs; at most 4 KiB. */
  7: optional map<string, string> headers,
  /** Of the failure: deliveries in the topic that it came from; 0 or more. */
  8: optional i32 min_attempts,
  9: optional i32 max_attempts,
  10: optional string origin_topic,
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
  /** Only items with this fairness key in the topic that they came from; "": items without one. Default: all. */
  6: optional string fairness_key,
  15: optional RequestContext context,
}

struct ListFailuresResponse {
  /** Ordered by fingerprint, then cause. Not a snapshot. */
  1: list<FailureGroup> groups,
  /** Set when there is more. */
  2: optional string cursor,
  /** host:port of the hosts that did not answer, and `shard N` for a shard without a host: their items are not counted. */
  3: list<string> missing,
}

/**
 * Returns dead letters to the topics that they came from: ready now, with attempt 0, their own priority, and the TTL of
 * the policy of that topic (ttl_ms), else none. Leased items stay and are counted, and so do items of the topic that have
 * no failure, because a producer enqueued them there. An item leaves the topic by the transaction that removes its
 * failure: a repeated request redrives other items. Items of a topic that is closed, or full (max_stored), stay: `refused`
 * counts them. With to_topic, the first such item ends the request. A paused topic takes its items.
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
  /** Items go to this topic. Default: each to the topic that it came from. */
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

/** Dead letters that stay, because the topic that they would go to takes no more. */
struct RefusedTopic {
  1: string topic,
  /** Dead letters that the request looked at, for this topic. */
  2: i64 items,
  /** UNAVAILABLE: the topic is closed. OVERLOADED: it is full. The message names the command that ends it. */
  3: ItemError error,
}

/** A request ends with its timeout_ms at the latest. */
struct RedriveItemsResponse {
  /** So many items were redriven for certain. */
  1: i64 at_least,
  /** And no more than so many. It differs from at_least when the owner of a shard failed during the request. */
  2: i64 at_most,
  /** Matching items that stay because a consumer has leased them. */
  3: i64 skipped_leased,
  /** The request ended, by its time or its count, before it had looked at all dead letters: matching ones may be left. */
  4: bool more,
  /** Shards that could not be searched to their end. */
  5: list<i32> missing_shards,
  /** Between hosts, like the next one: set when the shard has more. */
  6: optional string cursor,
  /** What this page redrove of each group (count). */
  7: optional list<FailureGroup> taken,
  /** In the order of their names. */
  8: list<RefusedTopic> refused,
}

service Foqs {
  EnqueueResponse Enqueue(1: EnqueueRequest request) throws (1: RequestError error),
  DequeueResponse Dequeue(1: DequeueRequest request) throws (1: RequestError error),
  AckResponse Ack(1: AckRequest request) throws (1: RequestError error),
  NackResponse Nack(1: NackRequest request) throws (1: RequestError error),
  ExtendLeaseResponse ExtendLease(1: ExtendLeaseRequest request) throws (1: RequestError error),
  GetActiveTopicsResponse GetActiveTopics(1: GetActiveTopicsRequest request) throws (1: RequestError error),
  GetItemResponse GetItem(1: GetItemRequest request) throws (1: RequestError error),
  ListItemsResponse ListItems(1: ListItemsRequest request) throws (1: RequestError error),
  DeleteItemsResponse DeleteItems(1: DeleteItemsRequest request) throws (1: RequestError error),
  GetServerInfoResponse GetServerInfo(1: GetServerInfoRequest request) throws (1: RequestError error),
  GetRoutingResponse GetRouting(1: GetRoutingRequest request) throws (1: RequestError error),
  WatchTopicsResponse WatchTopics(1: WatchTopicsRequest request) throws (1: RequestError error),
  GiveSlotResponse GiveSlot(1: GiveSlotRequest request) throws (1: RequestError error),
  TakeTokensResponse TakeTokens(1: TakeTokensRequest request) throws (1: RequestError error),
  LendResponse Lend(1: LendRequest request) throws (1: RequestError error),
  CountSlotsResponse CountSlots(1: CountSlotsRequest request) throws (1: RequestError error),
  TellSlotsResponse TellSlots(1: TellSlotsRequest request) throws (1: RequestError error),
  CountItemsResponse CountItems(1: CountItemsRequest request) throws (1: RequestError error),
  TellSharesResponse TellShares(1: TellSharesRequest request) throws (1: RequestError error),
  ListFailuresResponse ListFailures(1: ListFailuresRequest request) throws (1: RequestError error),
  RedriveItemsResponse RedriveItems(1: RedriveItemsRequest request) throws (1: RequestError error),
  AckAndDequeueResponse AckAndDequeue(1: AckAndDequeueRequest request) throws (1: RequestError error),
  GetTopicStatsResponse GetTopicStats(1: GetTopicStatsRequest request) throws (1: RequestError error),
  GetSettingsResponse GetSettings(1: GetSettingsRequest request) throws (1: RequestError error),
  PutSettingsResponse PutSettings(1: PutSettingsRequest request) throws (1: RequestError error),
  AwaitSettingsResponse AwaitSettings(1: AwaitSettingsRequest request) throws (1: RequestError error),
  ReleaseLeasesResponse ReleaseLeases(1: ReleaseLeasesRequest request) throws (1: RequestError error),
  GetThrottlesResponse GetThrottles(1: GetThrottlesRequest request) throws (1: RequestError error),
  ExplainItemResponse ExplainItem(1: ExplainItemRequest request) throws (1: RequestError error),
  TryHookResponse TryHook(1: TryHookRequest request) throws (1: RequestError error),
}
