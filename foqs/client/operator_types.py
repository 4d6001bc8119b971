"""Answers of a service to an operator: explanations, groups of dead letters. `foqs.figures` has figures, and
`foqs.client.settings_types` has settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from thriftpy2.thrift import TType

from foqs import item_filter
from foqs.bounds import REASON_BYTES
from foqs.checks import I32_MAX, I64_MAX, check_int, check_text, check_time_ms, parse_fingerprint, shown_fingerprint
from foqs.client.arguments import check_cause
from foqs.client.items import Failure, Item, ItemSpec, ItemState, LastFailure, Progress
from foqs.enums import NamedInt, known
from foqs.errors import Conflict, FoqsError, Invalid, NotFound, Unavailable, item_error
from foqs.figures import (
    EVENTS,
    ActiveTopic,
    ConsumerStats,
    FailingTopic,
    HostStatus,
    NamespaceRates,
    ShadowHour,
    ThrottleStats,
    from_struct,
)
from foqs.idl import idl
from foqs.rows import FailureCause
from foqs.travel import Value


class ServerInfo(NamedTuple):
    """`limits` by name: payload_bytes, request_items, lease_max_ms, ... `now_ms` is the time of the server's clock,
    Unix epoch milliseconds. All times of items are by that clock. `principal` is the caller, and `rights` are its
    rights by namespace, as the server's principals file has them: `shop`, `eu-*` for all with the prefix, `*` for all.
    Both are None where authentication is off: every caller may do everything."""

    version: str
    limits: dict[str, int]
    now_ms: int
    principal: str | None = None
    rights: Mapping[str, tuple[str, ...]] | None = None

    def may(self, right: Literal["produce", "consume", "admin"], namespace: str | None = None) -> bool:
        """Return True if the caller has the right in the namespace; in all namespaces if it is None."""
        if self.rights is None:
            return True
        return any(right in rights and _fits(pattern, namespace) for pattern, rights in self.rights.items())


def _fits(pattern: str, namespace: str | None) -> bool:
    if namespace is None:
        return pattern == "*"
    return namespace.startswith(pattern[:-1]) if pattern.endswith("*") else namespace == pattern


class Status(NamedTuple):
    """The facts of the hosts that answered; `missing` are the `host:port` of the other ones. `foqs.doctor.verdict`
    judges the facts."""

    hosts: tuple[HostStatus, ...]
    missing: tuple[str, ...]


class Consumers(NamedTuple):
    """What needs attention comes first: hung handlers, then the oldest leases. `more`: further ones are left out.
    `missing` are the `host:port` of hosts that did not answer."""

    consumers: tuple[ConsumerStats, ...]
    more: bool
    missing: tuple[str, ...]


class TopicsPage(NamedTuple):
    """`cursor` continues behind the last topic; None: there are no further topics."""

    topics: tuple[ActiveTopic, ...]
    cursor: str | None


class Rates(NamedTuple):
    """The traffic of namespaces in steps of `step_ms`, the most traffic first: each list of counts has one for each
    step. The first step began at `first_at_ms`, Unix epoch by the server's clock, and the last one has ended. Some host
    that answered counts only since `covers_from_ms`, so steps before it may lack what this host did. `more`: further
    namespaces had traffic, and the counts of some that are listed may be too low. `missing` are the `host:port` of
    hosts that did not answer."""

    step_ms: int
    first_at_ms: int
    covers_from_ms: int
    namespaces: tuple[NamespaceRates, ...]
    more: bool
    missing: tuple[str, ...]


def rates_of(response: Any, steps: int) -> Rates:
    """Return the rates of a response, with a count for each of the steps."""
    nothing = (0,) * steps
    found = [from_struct(NamespaceRates, one) for one in response.namespaces or ()]
    counts: list[dict[str, Any]] = [{kind: getattr(one, kind) or nothing for kind in EVENTS} for one in found]
    rows = [one._replace(**kinds) for one, kinds in zip(found, counts, strict=True)]
    return Rates(
        response.step_ms, response.first_at_ms, response.covers_from_ms, tuple(rows), bool(response.more),
        tuple(response.missing or ()),
    )  # fmt: skip


class Throttles(NamedTuple):
    """`missing` are the `host:port` of hosts that did not answer."""

    throttles: tuple[ThrottleStats, ...]
    missing: tuple[str, ...]


class Schedule(NamedTuple):
    """A setting `schedule.<name>`: `setting` is its value, JSON. `next_at_ms` are the next times that fire, at most
    five; `last_at_ms` is the last one that fired and `last_id` its item: None if there is none, or if `coordinator`,
    the `host:port` that fires it, is "": it did not answer. `missed` times did not fire since it has the schedule.
    `error`: why the last time is not stored, "" if it is."""

    name: str
    setting: str
    next_at_ms: tuple[int, ...]
    last_at_ms: int | None
    last_id: int | None
    missed: int
    paused: bool
    coordinator: str
    error: str


class Schedules(NamedTuple):
    """`missing` are the `host:port` of hosts that did not answer."""

    schedules: tuple[Schedule, ...]
    missing: tuple[str, ...]


class Reason(NamedInt):
    """What keeps an item from being delivered. The numbers are no order: see `Explanation.reasons`."""

    GONE = 1
    EXHAUSTED = 2
    SHARD_NOT_SERVED = 3
    OWNER_IN_GRACE = 4
    BREAKER_OPEN = 5
    DELAYED = 6
    LEASED = 7
    PAUSED = 8
    THROTTLED = 9
    CONCURRENCY = 10
    BEHIND_IN_LANE = 11
    BEHIND_IN_TURN = 12
    NO_CONSUMER = 13
    NOT_LOADED = 14
    PER_WORKER = 15
    CLOCK_IN_DOUBT = 16
    BEHIND_IN_ORDER = 17


@dataclass(frozen=True, slots=True)
class ExplainReason:
    """`text` says it in words, with a command that shows more and changes nothing. `until_ms` is Unix epoch
    milliseconds: when it ends by itself, as far as the host knows. `key`, `count`, `by`, `since_ms`, `tenant` and
    `item_ids` depend on `code`: see `Reason` in thrift/foqs.thrift. A code of a newer server is an int."""

    code: Reason | int
    text: str
    until_ms: int | None = None
    key: str | None = None
    count: int | None = None
    by: str | None = None
    since_ms: int | None = None
    tenant: str | None = None
    item_ids: tuple[int, ...] | None = None


class LimitKind(NamedInt):
    """What a limit bounds: see `ExplainLimit`."""

    RATE = 1
    CONCURRENCY = 2
    PER_WORKER = 3
    FAIR_SHARE = 4


_LIMITS: dict[int, LimitKind] = {Reason.THROTTLED: LimitKind.RATE, Reason.CONCURRENCY: LimitKind.CONCURRENCY}


@dataclass(frozen=True, slots=True)
class ExplainLimit:
    """A limit that counts for an item, whether or not it holds the item now. `text` says the limit, its use and the
    wait in words; `estimate_ms` is the wait for this limit alone, if the item was ready now (0: none; None: not known).
    The other fields depend on `kind`: see `ExplainLimit` in thrift/foqs.thrift. `hour`: the counts of a throttle in
    shadow. A kind of a newer server is an int."""

    kind: LimitKind | int
    key: str
    text: str
    bound: float | None = None
    burst: int | None = None
    used: int | None = None
    free: int | None = None
    before: int | None = None
    estimate_ms: int | None = None
    until_ms: int | None = None
    shadow: bool = False
    hour: ShadowHour | None = None
    item_id: int | None = None
    by: str | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ExplainTenants:
    """`count` tenants of a topic have ready items, none of which may be delivered: `code` is PAUSED, THROTTLED or
    CONCURRENCY, and `key` the settings entry or the throttle. `tenants` names some of them. `text` says it in words."""

    code: Reason | int
    key: str
    count: int
    tenants: tuple[str, ...]
    text: str


class Explanation(NamedTuple):
    """`reasons` in the order in which they have to end, none if the item is deliverable now. `eta_ms` is an estimate of
    the time until its delivery, None when it is not known; `state` that of an item, as far as it could be read.
    `limits` are all that count for an item, in any state. Of a topic, `tenants` are groups of tenants that wait, also
    if items of other tenants are deliverable, and `tenants_ready` is the number of tenants with ready items."""

    reasons: tuple[ExplainReason, ...]
    eta_ms: int | None = None
    state: ItemState | None = None
    last_failure: LastFailure | None = None
    limits: tuple[ExplainLimit, ...] = ()
    tenants: tuple[ExplainTenants, ...] = ()
    tenants_ready: int | None = None

    @classmethod
    def of(cls, response: Any) -> Explanation:
        reasons = tuple(
            ExplainReason(
                known(Reason, one.code),
                one.text or "",
                one.until_ms,
                one.key,
                one.count,
                one.by,
                one.since_ms,
                one.tenant,
                tuple(one.item_ids) if one.item_ids else None,
            )
            for one in response.reasons or ()
        )
        limits = tuple(_limit(one) for one in response.limits or ())
        tenants = tuple(
            ExplainTenants(known(Reason, one.code), one.key, one.count, tuple(one.tenants or ()), one.text or "")
            for one in response.tenants or ()
        )
        found, last = response.last_failure, None
        if found is not None:
            last = LastFailure(*[getattr(found, name) for name in _LAST_FAILURE])
            last.cause = known(FailureCause, last.cause or 0)
        state = None if response.state is None else ItemState(response.state)
        return cls(reasons, response.eta_ms, state, last, limits, tenants, response.tenants_ready)

    def wait_ms(self, reason: ExplainReason) -> int | None:
        """Return the estimate of the wait (ms) of the item itself for a token or a slot, None for other reasons, and
        if it is not known. (`until_ms` of such a reason is the time of the next token, which may be another item's.)"""
        kind = _LIMITS.get(reason.code)
        found = [one.estimate_ms for one in self.limits if one.key == reason.key and one.kind == kind]
        return found[0] if found else None


def _limit(one: Any) -> ExplainLimit:
    given = {field.name: getattr(one, field.name) for field in fields(ExplainLimit)}
    given["hour"] = None if one.hour is None else from_struct(ShadowHour, one.hour)
    return ExplainLimit(**given | {"kind": known(LimitKind, one.kind), "shadow": bool(one.shadow)})


_LAST_FAILURE = ("attempt", "cause", "reason", "fingerprint", "failed_at_ms", "worker")
"""Fields of the contract's LastFailure, in the order of the fields of `LastFailure`."""
_FAILURE = (
    "topic", "fairness_key", "throttle_keys", "attempts", "cause", "reason", "fingerprint", "died_at_ms", "worker"
)  # fmt: skip
"""Fields of the contract's Failure, in the order of the fields of `Failure`."""


class Result(NamedTuple):
    """How an item ended. `state` COMPLETED: `result` is what its ack brought, None if it brought nothing. FAILED:
    `failure` says why. Any other `state` is that of an item which has not ended. `ended_at_ms` is Unix epoch
    milliseconds. `progress` and `log` are what its consumers gave; of an item that is not kept, until it ends."""

    state: ItemState
    result: bytes | None = None
    ended_at_ms: int | None = None
    failure: Failure | None = None
    progress: Progress | None = None
    log: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in (ItemState.COMPLETED, ItemState.FAILED)

    @classmethod
    def of(cls, response: Any) -> Result:
        failed = response.failure
        failure = None if failed is None else Failure(*[getattr(failed, name) for name in _FAILURE])
        if failure is not None:
            failure.cause = known(FailureCause, failure.cause or 0)
        said = response.progress
        progress = None if said is None else Progress(said.done, said.total, said.text)
        log = tuple(response.log or ())
        return cls(ItemState(response.state), response.result, response.ended_at_ms, failure, progress, log)


class Failing(NamedTuple):
    """Topics with failed attempts in the last hour, the most failures in the last minute first. `more`: further topics
    fail. `missing` are the `host:port` that did not answer: their failures are not counted."""

    topics: tuple[FailingTopic, ...]
    more: bool
    missing: tuple[str, ...]


class Released(NamedTuple):
    """`released` leases were ended; `missing` are the `host:port` that did not answer in time."""

    released: int
    missing: tuple[str, ...]


class Tried(NamedTuple):
    """`error`: the call failed, and all but the times is None. Of `on_enqueue`, `item` is the sample with the fields
    that the script set, or `refuse` says why the script refuses it. Of `on_failure`, `action` and `delay_ms` are None
    where the policy decides. `elapsed_us` of processor time; `memory_bytes` of the script's data after the call."""

    item: ItemSpec | None
    refuse: str | None
    action: str | None
    delay_ms: int | None
    elapsed_us: int
    memory_bytes: int
    error: str | None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters with the same cause, and reasons with the same fingerprint, 16 hexadecimal digits. Times are Unix
    epoch milliseconds; the sample is one of the items."""

    cause: FailureCause | int
    fingerprint: str
    count: int
    first_died_at_ms: int
    last_died_at_ms: int
    sample_id: int
    sample_reason: str

    @classmethod
    def of(cls, found: Any) -> FailureGroup:
        return cls(
            known(FailureCause, found.cause or 0), shown_fingerprint(found.fingerprint or 0), found.count or 0,
            found.first_died_at_ms or 0, found.last_died_at_ms or 0, found.sample_id or 0, found.sample_reason or "",
        )  # fmt: skip


class Failures(NamedTuple):
    """`missing` names the hosts that did not answer, and `shard N` for a shard without a host: their dead letters are
    not counted."""

    groups: list[FailureGroup]
    missing: tuple[str, ...]


@dataclass(slots=True)
class FailureFilter(Value):
    """The conditions that a dead letter has to meet, all that are given.

    >>> FailureFilter(cause=FailureCause.FAILED, reason_contains="SMTP 451").reason_contains
    'SMTP 451'

    `fingerprint` is that of a `FailureGroup`: 16 hexadecimal digits. `died_before_ms` (excluded) and `died_after_ms`
    (included) are Unix epoch milliseconds; `headers`: the item has each of these pairs; `min_attempts` and
    `max_attempts` bound the deliveries in the topic that it came from. `fairness_key`: its key in that topic; "": none.
    `item_id`: only this item, which hosts find at once by its `fingerprint`. A host of an earlier version ignores it.
    """

    thrift_spec: ClassVar[Any] = {**idl.FailureFilter.thrift_spec, 1: (TType.I64, "_fingerprint", False)}

    fingerprint: str | None = None
    cause: FailureCause | None = None
    reason_contains: str | None = None
    died_before_ms: int | None = None
    died_after_ms: int | None = None
    headers: Mapping[str, str] | None = None
    min_attempts: int | None = None
    max_attempts: int | None = None
    origin_topic: str | None = None
    fairness_key: str | None = None
    item_id: int | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a value of the wrong type, or out of range, and for bounds that no dead letter meets."""
        check_text("fingerprint", self.fingerprint, none=True)
        _ = self._fingerprint
        check_cause("cause", self.cause)
        check_text("reason_contains", self.reason_contains, most_bytes=REASON_BYTES, none=True)
        check_time_ms("died_before_ms", self.died_before_ms, none=True)
        check_time_ms("died_after_ms", self.died_after_ms, none=True)
        check_int("min_attempts", self.min_attempts, 0, I32_MAX, none=True)
        check_int("max_attempts", self.max_attempts, 0, I32_MAX, none=True)
        check_text("origin_topic", self.origin_topic, none=True)
        check_text("fairness_key", self.fairness_key, none=True, empty=True)
        check_int("item_id", self.item_id, 1, I64_MAX, none=True)
        if self.min_attempts and self.max_attempts is not None and self.min_attempts > self.max_attempts:
            raise Invalid(f"min_attempts is {self.min_attempts}, more than max_attempts, {self.max_attempts}")
        after_ms, before_ms = self.died_after_ms, self.died_before_ms
        if after_ms is not None and before_ms is not None and after_ms >= before_ms:
            raise Invalid(f"died_after_ms is {after_ms}, not below died_before_ms, {before_ms}: no item died then")

    @property
    def _fingerprint(self) -> int | None:
        return None if self.fingerprint is None else parse_fingerprint(self.fingerprint)


class RefusedTopic(NamedTuple):
    """`items` dead letters stay, because their topic is `closed`, or else full. `reason` names the command that ends
    that."""

    topic: str
    items: int
    closed: bool
    reason: str

    @classmethod
    def of(cls, found: Any) -> RefusedTopic:
        error = item_error(found.error)
        return cls(found.topic, found.items or 0, isinstance(error, Unavailable), error.message)


class Redriven(NamedTuple):
    """From `at_least` to `at_most` items were redriven; the two differ when a shard's owner failed.

    `skipped_leased` items match and stay, because a consumer has them. `more`: the call ended, by its time or its
    count, before it had looked at all dead letters. `missing_shards` could not be searched to their ends. `refused`:
    topics that take no more items. `skipped_duplicate` items match and stay, because other items have their keys
    (`DedupUntil.DONE`). `items`: the first 100 redriven ones, with the topics that they are in now; with `dry_run` some
    that would be. A host of an earlier version names none.
    """

    at_least: int
    at_most: int
    skipped_leased: int
    more: bool
    missing_shards: tuple[int, ...]
    refused: tuple[RefusedTopic, ...] = ()
    skipped_duplicate: int = 0
    items: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """The conditions that an item has to meet, all that are given.

    `state`: None: any. `fairness_key`: "": without one. `headers`: the item has each of these pairs. `priority`:
    exactly this one; or bounds on it, both included. `enqueued_before_ms` (excluded) and `enqueued_after_ms` (included)
    are Unix epoch milliseconds. `failure_contains`: the reason in the item's `failure` or `last_failure` contains this
    text, in the same case. `order_key`, `batch`: the item has this one.

    >>> ItemFilter(fairness_key="acme", headers={"kind": "export"}, max_priority=0).max_priority
    0
    """

    state: ItemState | None = None
    fairness_key: str | None = None
    headers: Mapping[str, str] | None = None
    priority: int | None = None
    enqueued_before_ms: int | None = None
    enqueued_after_ms: int | None = None
    min_priority: int | None = None
    max_priority: int | None = None
    failure_contains: str | None = None
    order_key: str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a value of the wrong type, or out of range, and for bounds that no item meets."""
        if self.state is not None and not isinstance(self.state, ItemState):
            raise Invalid(f"state is of type {type(self.state).__name__}: it must be an ItemState, or None for any")
        check_text("fairness_key", self.fairness_key, none=True, empty=True)
        if self.headers is not None and not isinstance(self.headers, Mapping):
            raise Invalid(f"headers is of type {type(self.headers).__name__}: it must be a mapping of texts to texts")
        for key, value in (self.headers or {}).items():
            check_text("a key of headers", key)
            check_text("a value of headers", value, empty=True)
        for name in ("priority", "min_priority", "max_priority"):
            check_int(name, getattr(self, name), -I32_MAX - 1, I32_MAX, none=True)
        check_time_ms("enqueued_before_ms", self.enqueued_before_ms, none=True)
        check_time_ms("enqueued_after_ms", self.enqueued_after_ms, none=True)
        check_text("failure_contains", self.failure_contains, most_bytes=REASON_BYTES, none=True)
        check_text("order_key", self.order_key, none=True)
        check_int("batch", self.batch, 1, I64_MAX, none=True)
        least, most = self.min_priority, self.max_priority
        if self.priority is not None and (least is not None or most is not None):
            raise Invalid("priority excludes min_priority and max_priority: give one value, or bounds")
        if least is not None and most is not None and least > most:
            raise Invalid(f"min_priority is {least}, more than max_priority, {most}")
        after_ms, before_ms = self.enqueued_after_ms, self.enqueued_before_ms
        if after_ms is not None and before_ms is not None and after_ms >= before_ms:
            raise Invalid(f"enqueued_after_ms is {after_ms}, not below enqueued_before_ms, {before_ms}")

    def conditions(self) -> item_filter.ItemFilter | None:
        """Return the conditions on an item besides its state and its fairness key; None if there are none."""
        least, most = self.min_priority, self.max_priority
        if self.priority is not None:
            least = most = self.priority
        contains = None if self.failure_contains is None else self.failure_contains.encode()
        made = item_filter.ItemFilter(
            least, most, self.enqueued_before_ms, self.enqueued_after_ms, self.headers or {}, contains, self.order_key,
            self.batch,
        )  # fmt: skip
        return None if made == item_filter.ItemFilter() else made

    def matches(self, item: Item) -> bool:
        """Return True if a listed item meets the conditions, but for its state."""
        if self.fairness_key is not None and item.fairness_key != self.fairness_key:
            return False
        wanted = self.conditions()
        if wanted is None:
            return True
        reasons = [failed.reason.encode() for failed in (item.failure, item.last_failure) if failed is not None]
        own = wanted.matches(item.priority, item.enqueued_at_ms, item.headers, item.order_key, item.batch or 0)
        return own and wanted.matches_reasons(*reasons)


class ItemPage(NamedTuple):
    """One page of a search. `cursor` is a text for the next page, None if there is none: a page may have a cursor and
    no items. `looked_at` items were looked at for it."""

    items: tuple[Item, ...]
    cursor: str | None
    looked_at: int


class ChangedItems(NamedTuple):
    """Of `found` items, `changed` ones have their new values. `leased` further ones match, and consumers have them.
    `taken`: a consumer took the item after the list, or it ended. `failed`: with the first `error`."""

    found: int
    changed: int = 0
    leased: int = 0
    taken: int = 0
    failed: int = 0
    error: FoqsError | None = None

    def plus(self, outcomes: Iterable[FoqsError | None]) -> ChangedItems:
        """Return the sums with the outcomes of further items."""
        changed, taken, failed, first = self.changed, self.taken, self.failed, self.error
        for outcome in outcomes:
            if outcome is None:
                changed += 1
            elif isinstance(outcome, Conflict | NotFound):
                taken += 1
            else:
                failed, first = failed + 1, first or outcome
        return self._replace(changed=changed, taken=taken, failed=failed, error=first)


def tried_of(found: Any) -> Tried:
    spec = found.item and ItemSpec(**{one.name: getattr(found.item, one.name) for one in fields(ItemSpec)})
    elapsed_us, memory_bytes = found.elapsed_us or 0, found.memory_bytes or 0
    return Tried(spec, found.refuse, found.action, found.delay_ms, elapsed_us, memory_bytes, found.error)
