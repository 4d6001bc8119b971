"""What a caller gives and gets: items to enqueue, leased items, and what to do with them.

Classes with a `thrift_spec` go through the codec as they are: the client builds no second object for each
item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict

from thriftpy2.thrift import TType

from foqs.bounds import LIMITS, PROGRESS_TEXT_BYTES
from foqs.checks import I64_MAX, LONGEST_MS, check_bool, check_bytes, check_int, check_text, shown_fingerprint
from foqs.client.rules import ItemRules
from foqs.enums import NamedInt, known
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.ids import OnDuplicate
from foqs.rows import FailureCause
from foqs.travel import Value


class Delivery(NamedInt):
    """How often an item may reach a consumer."""

    AT_LEAST_ONCE = 1
    """Comes again until it is acked, deleted or its TTL ends."""
    AT_MOST_ONCE = 2
    """Never comes twice: the end of its lease removes it, unless it is released as not begun."""


class DedupUntil(NamedInt):
    """When a `dedup_key` is free for another item."""

    WINDOW = 1
    """A time after the enqueue that the service sets (a day), or after the delay of the item."""
    STARTED = 2
    """When the item has been delivered: the service has written its first lease."""
    DONE = 3
    """When the item has ended: acked, failed for good, deleted, or at the end of its TTL."""


class ItemState(NamedInt):
    """The state of an item, as seen by `get_item` and `list_items`."""

    READY = 1
    DELAYED = 2
    LEASED = 3
    COMPLETED = 4
    """Acked, and kept by its topic (policy `keep`)."""
    FAILED = 5
    """Failed for good, and kept by its topic. `get_result`: or it is a dead letter."""
    BEHIND = 6
    """It waits for an earlier item of its order key."""


class ItemOptions(TypedDict, total=False):
    """The optional fields of an item, all but topic and payload.

    priority          lower is more urgent; any i32, default 0
    delay_ms          duration before the delivery; 0: at once
    deliver_after_ms  the same as Unix epoch milliseconds; not both. 0, or a time in the past: at once. A number that is
                      clearly a time in seconds, or a duration, is Invalid
    lease_ms          duration of the lease a consumer gets that does not ask for one, 1 or more
    ttl_ms            duration, 1 or more: the item is removed this long after the enqueue, unless it is leased then
    expires_at_ms     the same as Unix epoch milliseconds of the server's clock, such as `Item.expires_at_ms`; not both.
                      A time in the past is a TTL of 1 ms
    metadata          small opaque state that a nack may replace
    headers           fixed text pairs
    delivery          default `Delivery.AT_LEAST_ONCE`
    fairness_key      the tenant inside the topic: tenants with ready items share its deliveries
    throttle_keys     keys of rate limits that the item waits for, a sequence of at most 8 texts (docs/do/api-limit.md)
    weight            share of the tenant against other tenants, 1 to 1,000; the last one stored counts
    rules             in place of the policy of the topic: retries, dead-letter topic, keeping (`ItemRules`)
    dedup_key         while the service remembers it, the same key in the namespace stores nothing again: the id
                      is then that of the first item, a `Duplicate`. Invalid with another topic or payload
    dedup_until       when the key is free again, default `DedupUntil.WINDOW`. Payloads are compared under that alone
    on_duplicate      default `OnDuplicate.KEEP`. With REPLACE, an item that has the key and has not begun gets the
                      payload, metadata, headers, priority and time of this one; the id is `Replaced` then. Payloads
                      are not compared
    order_key         the items of a topic with one key are delivered in order, each when the item before it has ended
                      (docs/do/ordered.md). Not together with a dedup_key; "": none
    batch             the id of the batch that the item is a member of (`create_batch`; docs/do/batches.md)
    """

    priority: int
    delay_ms: int | None
    deliver_after_ms: int | None
    lease_ms: int | None
    ttl_ms: int | None
    expires_at_ms: int | None
    metadata: bytes | None
    headers: Mapping[str, str] | None
    delivery: Delivery
    dedup_key: str | None
    fairness_key: str | None
    throttle_keys: Sequence[str] | None
    weight: int | None
    rules: ItemRules | None
    dedup_until: DedupUntil | None
    on_duplicate: OnDuplicate | None
    order_key: str | None
    batch: int | None


@dataclass(slots=True)
class ItemSpec(Value):
    """One item to enqueue; see `ItemOptions` for the fields.

    >>> ItemSpec("mail", b"hello", priority=-5, delay_ms=60_000).topic
    'mail'
    """

    thrift_spec: ClassVar[Any] = {
        **idl.ItemSpec.thrift_spec,
        15: (TType.STRUCT, "rules", ItemRules, False),
    }

    topic: str
    payload: bytes
    metadata: bytes | None = None
    headers: Mapping[str, str] | None = None
    priority: int = 0
    deliver_after_ms: int | None = None
    delay_ms: int | None = None
    lease_ms: int | None = None
    ttl_ms: int | None = None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    dedup_key: str | None = None
    fairness_key: str | None = None
    throttle_keys: Sequence[str] | None = None
    weight: int | None = None
    expires_at_ms: int | None = None
    rules: ItemRules | None = None
    dedup_until: DedupUntil | None = None
    on_duplicate: OnDuplicate | None = None
    order_key: str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        """Raises Invalid: one text would be sent as a key for each of its characters. The other fields are checked when
        the item is enqueued, each item by itself."""
        if self.throttle_keys is not None and isinstance(self.throttle_keys, str):
            raise Invalid("throttle_keys is one text: it must be a sequence of texts")

    @property
    def size_bytes(self) -> int:
        """At most this much in a request (UTF-8 takes up to four bytes a character)."""
        try:
            size = 128 + 4 * len(self.topic) + len(self.payload)
            if self.metadata is not None:
                size += len(self.metadata)
            if self.headers is not None:
                headers = self.headers
                size += 8 * len(headers) + 4 * (sum(map(len, headers)) + sum(map(len, headers.values())))
            if self.dedup_key is not None:
                size += 4 * len(self.dedup_key)
            if self.fairness_key is not None:
                size += 4 * len(self.fairness_key)
            if self.order_key is not None:
                size += 4 * len(self.order_key)
            if self.throttle_keys is not None:
                size += sum(4 + 4 * len(key) for key in self.throttle_keys)
            if self.rules is not None:
                size += 256 + 4 * len(self.rules.dead_topic or "")
        except Exception:  # noqa: BLE001 - a value that cannot be measured is refused when it is encoded
            return 0
        return size


@dataclass(slots=True)
class Failure(Value):
    """What ended the attempts of a dead letter.

    `topic` is where the item came from, with the `fairness_key` ("": none) and the `throttle_keys` that it had
    there and has again after a redrive. `attempts` are the deliveries there. `cause` is a number of `FailureCause`.
    Reasons that differ only in numbers and quoted texts have one `fingerprint`: 16 hexadecimal digits, as commands
    show it. `died_at_ms` is Unix epoch milliseconds. `worker` had the last lease; None: not known, or it has no name.
    """

    thrift_spec: ClassVar[Any] = {
        **idl.Failure.thrift_spec,
        3: (TType.LIST, "_throttle_keys", TType.STRING, False),
        7: (TType.I64, "_fingerprint", False),
    }

    topic: str = ""
    fairness_key: str = ""
    _throttle_keys: Sequence[str] = ()
    attempts: int = 0
    cause: int = 0
    reason: str = ""
    _fingerprint: int = 0
    died_at_ms: int = 0
    worker: str | None = None

    @property
    def fingerprint(self) -> str:
        return shown_fingerprint(self._fingerprint)

    @property
    def throttle_keys(self) -> tuple[str, ...]:
        return tuple(self._throttle_keys)


@dataclass(slots=True)
class LastFailure(Value):
    """The last attempt of an item that failed. `cause` is a number of `FailureCause`, `failed_at_ms` Unix epoch
    milliseconds; `fingerprint` and `worker` are as in a `Failure`."""

    thrift_spec: ClassVar[Any] = {**idl.LastFailure.thrift_spec, 4: (TType.I64, "_fingerprint", False)}

    attempt: int = 0
    cause: int = 0
    reason: str = ""
    _fingerprint: int = 0
    failed_at_ms: int = 0
    worker: str | None = None

    @property
    def fingerprint(self) -> str:
        return shown_fingerprint(self._fingerprint)


@dataclass(slots=True)
class Ledger(Value):
    """What an item waited for: `waited_ms` from its `deliver_after_ms` to this delivery. `overtaken`: the number of
    items of its topic that its host delivered first, though they did not precede it when it became ready; None where
    that is not known.

    Where tenants take turns, `overtaken` counts items of its own tenant, and `other_tenants` the deliveries of all
    other tenants since it became ready; None elsewhere.

    `more_urgent_elsewhere` is the lowest priority of the items that were ready on other hosts `more_urgent_age_ms` ago,
    if that is below the item's; None where no host said so in the last 10 s."""

    thrift_spec: ClassVar[Any] = idl.Ledger.thrift_spec

    waited_ms: int = 0
    overtaken: int | None = None
    more_urgent_elsewhere: int | None = None
    more_urgent_age_ms: int | None = None
    other_tenants: int | None = None


@dataclass(slots=True)
class Progress(Value):
    """How far the work on an item is: `done` steps of `total`, if that is known. `text`: at most 256 bytes."""

    thrift_spec: ClassVar[Any] = idl.Progress.thrift_spec

    done: int = 0
    total: int | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        """Raises Invalid."""
        check_int("progress.done", self.done, 0, I64_MAX)
        check_int("progress.total", self.total, 0, I64_MAX, none=True)
        check_text("progress.text", self.text, most_bytes=PROGRESS_TEXT_BYTES, none=True, empty=True)


@dataclass(slots=True, eq=False, repr=False)
class Item(Value):
    """An item as a consumer or an operator sees it. Read only by convention; compared by identity.

    `lease` names this delivery (0 where nothing is leased). `attempt` is 1 at the first delivery and a lower
    bound after a host crashed. `*_at_ms` and `deliver_after_ms` are Unix epoch milliseconds of the server's
    clock. `state` is set by `get_item` and `list_items` only, and so are `ended_at_ms`, of a COMPLETED or FAILED item,
    and `failure`, of a FAILED item or a dead letter. `result` is set by `get_item` only, `ledger` by a dequeue that
    asks for it. `order_key` is "" where the item has none, and `batch` None. `fairness_key` is "" and `throttle_keys`
    () there too, and in a dead-letter topic: its failure has them. There `rules` are set by `get_item` and `list_items`
    only.
    `checkpoint` is the last one that a consumer of the item gave; `progress` and `log` are set by `get_item` and
    `list_items` only, and so is `last_failure`: its last attempt that failed since the enqueue or the last redrive,
    None where `failure` is newer.
    """

    thrift_spec: ClassVar[Any] = {
        **idl.Item.thrift_spec,
        18: (TType.LIST, "_throttle_keys", TType.STRING, False),
        21: (TType.STRUCT, "failure", Failure, False),
        22: (TType.STRUCT, "ledger", Ledger, False),
        24: (TType.STRUCT, "progress", Progress, False),
        25: (TType.LIST, "_log", TType.STRING, False),
        26: (TType.STRUCT, "rules", ItemRules, False),
        27: (TType.STRUCT, "last_failure", LastFailure, False),
    }

    id: int = 0
    lease: int = 0
    attempt: int = 0
    ns: str = ""
    topic: str = ""
    priority: int = 0
    payload: bytes = b""
    metadata: bytes | None = None
    headers: dict[str, str] | None = None
    delivery: int = 0
    deliver_after_ms: int = 0
    enqueued_at_ms: int = 0
    lease_expires_at_ms: int = 0
    expires_at_ms: int | None = None
    state: int | None = None
    failure: Failure | None = None
    fairness_key: str = ""
    _throttle_keys: Sequence[str] = ()
    ledger: Ledger | None = None
    result: bytes | None = None
    ended_at_ms: int | None = None
    checkpoint: bytes | None = None
    progress: Progress | None = None
    _log: Sequence[str] = ()
    rules: ItemRules | None = None
    last_failure: LastFailure | None = None
    order_key: str = ""
    batch: int | None = None

    @property
    def throttle_keys(self) -> tuple[str, ...]:
        return tuple(self._throttle_keys)

    @property
    def log(self) -> tuple[str, ...]:
        return tuple(self._log)

    @property
    def at_most_once(self) -> bool:
        return self.delivery == Delivery.AT_MOST_ONCE

    def __repr__(self) -> str:
        return (
            f"Item({self.id} topic={self.topic!r} priority={self.priority} attempt={self.attempt} "
            f"payload={len(self.payload)} bytes)"
        )


def looked_at(item: Item, state: int | None) -> Item:
    """Return an item of an answer to an operator, with its state, and with members of enums in place of numbers."""
    item.state = None if state is None else known(ItemState, state)
    item.delivery = known(Delivery, item.delivery)
    if item.failure is not None:
        item.failure.cause = known(FailureCause, item.failure.cause)
    if item.last_failure is not None:
        item.last_failure.cause = known(FailureCause, item.last_failure.cause)
    return item


class Items(list[Item]):
    """The items of a dequeue. `reason`: why there are none, if the host says so: "paused" (the policy of a topic holds
    its items back), "paused_tenants" (it does so for all tenants with items), "throttled: <key>" (a rate limit does),
    "concurrency: <key>" (a limit on leases does), or "per_worker" (the worker holds enough). None: none is
    ready. `retry_after_ms`: when the topic that can deliver first may have an item again, if the host knows."""

    reason: str | None = None
    retry_after_ms: int | None = None


class Leased(Protocol):
    """What ack, nack and extend need of an item: an `Item`, or a `Lease` kept elsewhere."""

    @property
    def id(self) -> int: ...
    @property
    def lease(self) -> int: ...


class Lease(NamedTuple):
    """One delivery of one item, by its numbers."""

    id: int
    lease: int


@dataclass(slots=True)
class Ack(Value):
    """One item to ack with `ack_many`, with a result of at most 64 KiB for the callers of `get_result`. Make it with
    `Ack.of(item, result)`. Without a result, the item itself will do."""

    thrift_spec: ClassVar[Any] = idl.AckItem.thrift_spec

    id: int
    lease: int
    result: bytes | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a result of the wrong type, or that is too long."""
        check_result("result", self.result)

    @property
    def size_bytes(self) -> int:
        """At most this much in a request."""
        return 64 + len(self.result or b"")

    @classmethod
    def of(cls, item: Leased, result: bytes | None = None) -> Ack:
        return cls(item.id, item.lease, result)


@dataclass(slots=True)
class Extension(Value):
    """What `extend_many` sends about one leased item. Make it with `Extension.of(item, ...)`.

    lease_ms    the lease ends this long from now. Without it, and with any other field, the end of the lease stays
    checkpoint  the state of the work, for the next delivery of the item: at most 64 KiB
    progress    for operators, and for callers of `get_result`
    log         lines for them; the last 8 KiB of all stay with the item
    durable     the answer comes when the three are committed, and not up to a second before that
    """

    thrift_spec: ClassVar[Any] = {
        **idl.ExtendItem.thrift_spec,
        6: (TType.STRUCT, "progress", Progress, False),
    }

    id: int
    lease: int
    lease_ms: int | None = None
    begun: bool | None = None
    checkpoint: bytes | None = None
    progress: Progress | None = None
    log: Sequence[str] | None = None
    durable: bool | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a value of the wrong type, or that is too long."""
        check_int("lease_ms", self.lease_ms, 1, LONGEST_MS, none=True)
        check_checkpoint("checkpoint", self.checkpoint)
        if self.progress is not None and not isinstance(self.progress, Progress):
            raise Invalid(f"progress is of type {type(self.progress).__name__}: it must be a Progress")
        check_lines("log", self.log)

    @property
    def size_bytes(self) -> int:
        """At most this much in a request."""
        said = 0 if self.progress is None else 4 * len(self.progress.text or "")
        return 128 + len(self.checkpoint or b"") + said + sum(8 + 4 * len(line) for line in self.log or ())

    @classmethod
    def of(
        cls,
        item: Leased,
        lease_ms: int | None = None,
        *,
        checkpoint: bytes | None = None,
        progress: Progress | None = None,
        log: Sequence[str] | None = None,
        durable: bool = False,
    ) -> Extension:
        return cls(item.id, item.lease, lease_ms, None, checkpoint, progress, log, durable or None)


def check_checkpoint(name: str, value: object) -> None:
    """Raises Invalid."""
    check_bytes(name, value, none=True)
    if isinstance(value, bytes) and len(value) > LIMITS.checkpoint_bytes:
        why = f"{name} has {len(value)} bytes, more than {LIMITS.checkpoint_bytes}"
        raise Invalid(f"{why}: store it elsewhere, and give a reference")


def check_lines(name: str, value: object) -> None:
    """Raises Invalid."""
    if value is None:
        return
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise Invalid(f"{name} is of type {type(value).__name__}: it must be a sequence of lines")
    for line in value:
        check_text(f"a line of {name}", line, empty=True)


def check_result(name: str, value: object) -> None:
    """Raises Invalid."""
    check_bytes(name, value, none=True)
    if isinstance(value, bytes) and len(value) > LIMITS.result_bytes:
        why = f"{name} has {len(value)} bytes, more than {LIMITS.result_bytes}"
        raise Invalid(f"{why}: store it elsewhere, and give a reference")


@dataclass(slots=True)
class Nack(Value):
    """One item to give back with `nack_many`. Make it with `Nack.of(item, ...)`.

    `delay_ms` is a duration (0 or None: at once, at the item's old place in the order); `metadata` replaces the
    item's; `release` says that work was not begun: no delay, no metadata, and the attempt is not counted;
    `reason` is for the server's logs and the failure of a dead letter, at most 1,024 bytes.

    `failed`: the work failed, so the retry rule of the topic's policy sets the delay (`delay_ms` counts where there is
    no rule), and the last attempt makes it a dead letter. `reject`: the work can never succeed, so the item is a dead
    letter at once (no delay, no metadata). `uncounted`: the attempt is not counted, for work that another service asks
    to repeat after `delay_ms`. At most one of `release`, `failed`, `reject` and `uncounted`.
    """

    thrift_spec: ClassVar[Any] = idl.NackItem.thrift_spec

    id: int
    lease: int
    delay_ms: int | None = None
    metadata: bytes | None = None
    release: bool | None = None
    reason: str | None = None
    failed: bool | None = None
    reject: bool | None = None
    uncounted: bool | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a value of the wrong type, or out of range, and for values that exclude each other."""
        check_int("delay_ms", self.delay_ms, 0, I64_MAX, zero="at once", none=True)
        check_bytes("metadata", self.metadata, none=True)
        check_text("reason", self.reason, none=True, empty=True)
        given = []
        for name in ("release", "failed", "reject", "uncounted"):
            if (value := getattr(self, name)) is not None:
                check_bool(name, value)
                given += [name] * value
        if len(given) > 1:
            raise Invalid(f"{' and '.join(given)} are given: give at most one of release, failed, reject and uncounted")
        if given in (["release"], ["reject"]) and (self.delay_ms or self.metadata is not None):
            raise Invalid(f"{given[0]} excludes delay_ms and metadata")

    @property
    def size_bytes(self) -> int:
        """At most this much in a request."""
        try:
            return 64 + len(self.metadata or b"") + 4 * len(self.reason or "")
        except Exception:  # noqa: BLE001 - as in `ItemSpec`
            return 0

    @classmethod
    def of(
        cls,
        item: Leased,
        *,
        delay_ms: int | None = None,
        metadata: bytes | None = None,
        release: bool = False,
        reason: str | None = None,
        failed: bool = False,
        reject: bool = False,
        uncounted: bool = False,
    ) -> Nack:
        return cls(
            item.id, item.lease, delay_ms, metadata, release or None, reason, failed or None, reject or None,
            uncounted or None,
        )  # fmt: skip


def counts_of(
    topics: str | Sequence[str] | Mapping[str, int], count: int, most: int | None = None
) -> Mapping[str, int]:
    """Return how many items of each topic are wanted; `count` of each where `topics` does not say. `most`: of all of
    them together; 0 or None is no limit."""
    if isinstance(topics, str):
        return {topics: min(count, most) if most else count}
    counts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, count)
    return {topic: min(wanted, most) for topic, wanted in counts.items()} if most else counts
