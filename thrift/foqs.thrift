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
 * Limits quoted here are the defaults. A server says its own through GetServerInfo.
 *
 * A batch answers item by item: one bad item does not fail its neighbours. A request that is wrong as a whole
 * throws RequestError. No field is `required`, so the contract can grow; the field ids left free below are
 * reserved by the comments beside them.
 *
 * A host that stops ends each connection with an exception message (TApplicationException, INTERNAL_ERROR) of the name
 * "Goodbye" and the sequence id 0, which nobody asked for: a request that meets it was not begun.
 */

namespace py foqs_thrift
namespace java io.foqs.thrift
namespace go foqsthrift
namespace cpp foqs.thrift
namespace js foqs

/** How often an item may reach a consumer. */
enum Delivery {
  UNSPECIFIED = 0,
  /** Comes again until it is acked, deleted or its TTL ends. The default. */
  AT_LEAST_ONCE = 1,
  /** Never comes twice: the end of its lease, whatever the reason, removes it (unless released as not begun). */
  AT_MOST_ONCE = 2,
}

/** Where an item stands, as seen by GetItem and ListItems. */
enum ItemState {
  UNSPECIFIED = 0,
  /** May be handed out now. */
  READY = 1,
  /** Not before its deliver_after_ms. */
  DELAYED = 2,
  /** Handed out to a consumer. */
  LEASED = 3,
}

enum ErrorCode {
  UNSPECIFIED = 0,
  /** The input is wrong; the same input will be refused again. Nothing was changed. */
  INVALID = 1,
  /** There is no such item (any more); also where it is in a namespace that the caller has no right in. */
  NOT_FOUND = 2,
  /** The lease given is not the item's current lease. Nothing was changed. */
  STALE_LEASE = 3,
  /** A bounded buffer is full, or the namespace's quota is used up. Nothing was changed; try again after retry_after_ms. */
  OVERLOADED = 4,
  /** The shard (or every shard) cannot be used now. Nothing was changed; try again later. */
  UNAVAILABLE = 5,
  /** The change may or may not have been committed, and could not be settled within the request's time. */
  OUTCOME_UNKNOWN = 6,
  /** The caller did not prove who it is. */
  UNAUTHENTICATED = 7,
  /** The caller may not do this: the right, produce, consume or admin, is missing in the namespace it names. */
  FORBIDDEN = 8,
}

/** Why one item of a request failed. Messages never hold SQL, tracebacks or secrets. */
struct ItemError {
  1: ErrorCode code,
  2: string message,
  /**
   * Duration: when to try again. Set with OVERLOADED, sometimes with UNAVAILABLE; 0 says that the item's shard is not
   * served by this host, so it is another one that should be asked.
   */
  3: optional i64 retry_after_ms,
}

/** The request as a whole was refused. */
exception RequestError {
  1: ErrorCode code,
  2: string message,
  /** Duration: when to try again. */
  3: optional i64 retry_after_ms,
}

/** What would be headers elsewhere: framed binary has none of its own. Optional in every request. */
struct RequestContext {
  /** Credential of the caller; at most 4,096 bytes. Ignored by a server without authentication (auth.principals_file).
      With authentication a server reads requests over 65,536 bytes only after a smaller authenticated one on the same
      connection, such as GetServerInfo, and answers a larger one before it with UNAUTHENTICATED. */
  1: optional string token,
  /** Appears in the logs of all hosts that have to do with it; at most 128 bytes, printable. Default: none. */
  2: optional string request_id,
  /** W3C trace context; at most 128 bytes. Default: none. */
  3: optional string traceparent,
  /** How long the caller waits for the answer, 1 to 600,000 (for Dequeue: beyond wait_ms). Default 30,000. */
  4: optional i64 timeout_ms,
  /** Set by hosts: how often the request was forwarded, 0 or more. From 1 on it is not forwarded again. Default 0. */
  5: optional i32 hops,
  /** Set by hosts: proves to another host of the cluster that a host asks. Clients cannot know it; leave it out. */
  6: optional string host_proof,
  /** Set by hosts, with host_proof: the principal for whom the request is forwarded. Of a client it is ignored. */
  7: optional string principal,
}

// ---------------------------------------------------------------------------------------------- Enqueue

/** One unit of work as a producer gives it. */
struct ItemSpec {
  /** Queue inside the namespace; exists while it holds items, nobody creates it. */
  1: string topic,
  /** Opaque to foqs; 0 bytes to 1 MiB. */
  2: binary payload,
  /** Opaque small state that a nack may replace (partial progress); at most 4 KiB. Default: none. */
  3: optional binary metadata,
  /** Fixed text pairs; keys and values together at most 4 KiB. Default: none. */
  4: optional map<string, string> headers,
  /** Lower is more urgent; any i32. */
  5: i32 priority = 0,
  /** Epoch milliseconds; not before this. In the past means now. At most 366 days ahead. Default: now. */
  6: optional i64 deliver_after_ms,
  /** Duration from the enqueue, 0 to 366 days; instead of deliver_after_ms (both is INVALID). Default: 0. */
  7: optional i64 delay_ms,
  /** Lease a consumer gets when it does not ask for one, 100 ms to 12 h. Default: the server's, 30,000. */
  8: optional i64 lease_ms,
  /** Removed this long after the enqueue unless leased then, 1 ms to 366 days. Default: never. */
  9: optional i64 ttl_ms,
  10: Delivery delivery = Delivery.AT_LEAST_ONCE,
  /**
   * Makes the enqueue idempotent, 1 to 255 bytes: as long as the server remembers the key (limits: dedup_window_ms), the
   * same one in the same namespace gives the id of the first item and stores nothing; with another topic or payload it
   * is INVALID. Every other field counts only when the item is stored. UNAVAILABLE while the one shard that knows the
   * key is down. May be repeated after OUTCOME_UNKNOWN. Default: none.
   */
  11: optional string dedup_key,
  // 12: fairness_key   13: throttle_keys   14-20: retry and dead-letter policy
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
  /** The item was stored before, by an enqueue with the same dedup_key; it may be gone since. */
  3: optional bool duplicate,
}

struct EnqueueResponse {
  /** One per item, in the order of the request. */
  1: list<EnqueueOutcome> outcomes,
}

// ---------------------------------------------------------------------------------------------- Dequeue

struct TopicCount {
  1: string topic,
  /** At most this many items, 1 to 10,000 over the whole request. */
  2: i32 count,
}

struct DequeueRequest {
  1: string ns,
  /** Topics in the order in which they are emptied; 1 to 1,000 of them, none twice. */
  2: list<TopicCount> wants,
  /** Duration of the leases, 100 ms to 12 h. Default: each item's own, else the server's. */
  3: optional i64 lease_ms,
  /** Wait this long for a first item, 0 to 600,000. Default 0: answer at once. */
  4: optional i64 wait_ms,
  /** Bound on the answer's payloads, metadata and headers together, in bytes; the first item always fits. Default: what fits a frame. */
  5: optional i64 max_bytes,
  15: optional RequestContext context,
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
  /** Only in ListItems: the item's state. */
  15: optional ItemState state,
  // 16: dedup_key   17: fairness_key   18: throttle_keys   19: result
}

struct DequeueResponse {
  /** Leased items: topics in the order of `wants`, each in lane order (priority, deliver_after_ms, id). */
  1: list<Item> items,
  /**
   * Ids of AT_MOST_ONCE items that were meant for this answer, and of which nobody can tell in time whether their lease
   * was committed: each comes with another answer, or never. Default: none.
   */
  2: optional list<i64> doubtful,
  /** Between hosts, with no items: nothing was found as of this version (see WatchTopicsResponse). Default: none. */
  3: optional i64 news_version,
}

// ------------------------------------------------------------------------------ Ack, Nack, ExtendLease

struct AckItem {
  1: i64 id,
  2: i64 lease,
  // 3: result
}

struct AckRequest {
  /** 1 to 10,000; one id at most once. */
  1: list<AckItem> items,
  /** When given, an item of another namespace is NOT_FOUND. */
  2: optional string ns,
  15: optional RequestContext context,
}

struct ItemOutcome {
  /** Unset: it was done. */
  1: optional ItemError error,
}

struct AckResponse {
  /** One per item, in the order of the request. */
  1: list<ItemOutcome> outcomes,
}

struct NackItem {
  1: i64 id,
  2: i64 lease,
  /** Deliver again after this long, 0 to 366 days. Default 0: at once, at its old place in the order. */
  3: optional i64 delay_ms,
  /** Replaces the item's metadata; at most 4 KiB. Default: kept. */
  4: optional binary metadata,
  /** Given back without having been begun: no delay, and the attempt is not counted. Excludes delay_ms and metadata. */
  5: optional bool release,
  /** For logs; at most 1,024 bytes. */
  6: optional string reason,
}

struct NackRequest {
  /** 1 to 10,000; one id at most once. */
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
  /** The lease then ends this long from now, 100 ms to 12 h. Default: as long as it was given at first. */
  3: optional i64 lease_ms,
}

struct ExtendLeaseRequest {
  /** 1 to 10,000; one id at most once. */
  1: list<ExtendItem> items,
  2: optional string ns,
  15: optional RequestContext context,
}

struct ExtendLeaseResponse {
  1: list<ItemOutcome> outcomes,
}

// -------------------------------------------------------------------------------- Looking and operating

struct GetActiveTopicsRequest {
  /** Only this namespace. Default: all (that the caller has a right in). */
  1: optional string ns,
  /** 1 to 10,000 topics an answer. Default 1,000. */
  2: optional i32 limit,
  /** From the answer before. */
  3: optional string cursor,
  15: optional RequestContext context,
}

/** A topic with at least one item ready now. */
struct ActiveTopic {
  1: string ns,
  2: string topic,
  /** Items ready now; approximate. */
  3: i64 ready,
  /** Epoch milliseconds: since when the longest-waiting ready item may be delivered; approximate (within about a minute). */
  4: i64 oldest_ready_at_ms,
  /** host:port of the hosts that have it. */
  5: list<string> hosts,
}

struct GetActiveTopicsResponse {
  /** Ordered by namespace, then topic. */
  1: list<ActiveTopic> topics,
  /** Set when there is more. */
  2: optional string cursor,
}

struct GetItemRequest {
  1: i64 id,
  15: optional RequestContext context,
}

/** Leases nothing. `item.lease` is 0: looking gives no right to ack. */
struct GetItemResponse {
  1: Item item,
  2: ItemState state,
}

struct ListItemsRequest {
  1: string ns,
  2: string topic,
  /** Only items in this state. Default: all. */
  3: optional ItemState state,
  /** 1 to 1,000 items an answer. Default 100. */
  4: optional i32 limit,
  5: optional string cursor,
  /** Only this shard, which the host that is asked has to serve. Default: all of the cluster. */
  6: optional i32 shard,
  15: optional RequestContext context,
}

struct ListItemsResponse {
  /** By shard; READY ones in lane order, then DELAYED and LEASED ones by the time they are due. Not a snapshot. */
  1: list<Item> items,
  /** Set when there may be more. */
  2: optional string cursor,
}

struct DeleteItemsRequest {
  /** 1 to 10,000; deleted in any state, a live lease included. */
  1: list<i64> ids,
  15: optional RequestContext context,
}

struct DeleteItemsResponse {
  1: list<ItemOutcome> outcomes,
}

struct GetServerInfoRequest {
  /** Have shard_items in the answer. Default: no. */
  1: optional bool count_items,
  15: optional RequestContext context,
}

struct GetServerInfoResponse {
  1: string version,
  /**
   * payload_bytes, metadata_bytes, headers_bytes, name_bytes, request_items, frame_bytes,
   * lease_min_ms, lease_max_ms, lease_default_ms, delay_max_ms, ttl_max_ms, wait_max_ms, timeout_max_ms,
   * dedup_window_ms
   */
  2: map<string, i64> limits,
  /** Of each shard that this host serves: rows changed since it was opened. */
  3: optional map<i32, i64> shard_rows,
  /** Of each shard that this host serves: items in any state, up to a second old. Only when asked for. */
  4: optional map<i32, i64> shard_items,
}

/** Who serves a shard. */
struct ShardRoute {
  /** The number in the 15 bits under the sign of an item's id. */
  1: i32 shard,
  /** host:port */
  2: string host,
  /** Of two routes to one shard, the one with the higher epoch is the newer. */
  3: i64 epoch,
}

struct GetRoutingRequest {
  /** From the answer before: with wait_ms, the answer is held while the routing is still this one. Default: none. */
  1: optional i64 version,
  /** Wait this long for another routing than `version`, 0 to 600,000. Default 0: answer at once. */
  2: optional i64 wait_ms,
  15: optional RequestContext context,
}

struct GetRoutingResponse {
  /** Names this content: hosts that see the same say the same. Says nothing of which is newer. */
  1: i64 version,
  /** By shard; one that is missing is served by nobody now. A host that is alone names what it serves itself. */
  2: list<ShardRoute> shards,
  /** host:port of every living host, those without a shard included. */
  3: list<string> hosts,
  /** The shard of each of the 1,024 slots that dedup_keys fall into. Not set while they are not shared out. */
  4: optional list<i32> slots,
}

/** Between hosts: a topic that has something ready on the host that says so. */
struct TopicNews {
  1: string ns,
  2: string topic,
  /** Items ready; approximate. */
  3: i32 ready,
}

/** Between hosts: which topics have something ready there that none of its own consumers takes. */
struct WatchTopicsRequest {
  /** From the answer before. Default: all there is. */
  1: optional i64 version,
  /** Wait this long for news, 0 to 600,000. Default 0. */
  2: optional i64 wait_ms,
  15: optional RequestContext context,
}

struct WatchTopicsResponse {
  1: i64 version,
  /** What was told before counts no more. */
  2: bool whole,
  3: list<TopicNews> topics,
}

/** Between hosts: what a shard remembers of a dedup_key. */
struct RememberedKey {
  /** 16 bytes. */
  1: binary digest,
  2: i64 content,
  /** Of the item. */
  3: i64 id,
  4: i64 expires_at_ms,
}

/** Between hosts: a slot of dedup_keys goes from this shard to another one. Answered when the shard takes none of its
    keys any more. UNAVAILABLE when the shard is not served here, or has obeyed a later record of the slots. */
struct GiveSlotRequest {
  1: i32 shard,
  /** 0 to 1,023. */
  2: i32 slot,
  /** Of the record that says so. */
  3: i64 stamp,
  /** 16 bytes: only digests from this one on. Default: all. */
  4: optional binary low,
  /** 1 to 10,000. Default 1. */
  5: optional i32 limit,
  15: optional RequestContext context,
}

struct GiveSlotResponse {
  /** By digest. As many as `limit`: there may be more behind the last. */
  1: list<RememberedKey> keys,
}

/** Between hosts: tokens of a namespace that has a quota, one for each item to be enqueued. UNAVAILABLE when its home is
    not here. */
struct TakeTokensRequest {
  1: string ns,
  /** Who asks: another one after each start. At most 255 bytes. */
  2: string holder,
  /** Higher than that of any question before. */
  3: i64 number,
  /** 0 or more, as the next two. */
  4: i64 wanted,
  /** What it has, with what it spent on items that may yet be refused. */
  5: i64 held,
  /** What it gives back, not part of that. */
  6: i64 back,
  15: optional RequestContext context,
}

struct TakeTokensResponse {
  1: i64 granted,
  /** What was held may be spent still; else it is void. */
  2: bool kept,
  /** Duration: when there may be the rest of what was wanted. */
  3: i64 retry_after_ms,
}

/** Between hosts: how many items of a namespace the shards there hold. */
struct CountItemsRequest {
  1: string ns,
  15: optional RequestContext context,
}

struct CountItemsResponse {
  /** By shard, with those on their way in; one whose database does not answer in time is left out. */
  1: map<i32, i64> shards,
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
  CountItemsResponse CountItems(1: CountItemsRequest request) throws (1: RequestError error),
}
