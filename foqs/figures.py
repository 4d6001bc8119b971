"""Figures for operators: of topics, tenants, workers, hooks, throttle keys, and the state of hosts.

The host that measures, hosts that answer together and the client share these types. `thrift/foqs.thrift` has a struct
with the same fields. A field names how the values of two hosts make one; without a rule the first host's value counts.
The first field of a figure is its name, except of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from heapq import nsmallest
from operator import add, attrgetter
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, get_args, get_origin, get_type_hints

from foqs.idl import idl

MOST_FAILING_WORKERS = 8
"""Workers that are named with a group of failures."""
EVENTS = ("enqueued", "delivered", "acked", "failed")
"""What rates count: fields of NamespaceRates."""
MOST_OLDEST = 5
"""Topics of a namespace that are named with their oldest ready items."""
MOST_ERRORS = 5
"""Errors of a script that are kept."""
T = TypeVar("T")


def _sum(one: Any, other: Any) -> Any:
    """Return the sum. None: not counted."""
    return None if one is None and other is None else (one or 0) + (other or 0)


def _sum_known(one: Any, other: Any) -> Any:
    """Return the sum; None if one of them is not known."""
    return None if one is None or other is None else one + other


def _known(one: Any, other: Any) -> Any:
    """Return the value of the last host that has one."""
    return one if other is None or other == "" else other


def _oldest(one: int, other: int) -> int:
    """Return the earlier time. 0: none."""
    return min(filter(None, (one, other)), default=0)


def _latest(one: int | None, other: int | None) -> int | None:
    """Return the shorter time since the last event. None: there was none."""
    return min([ago_ms for ago_ms in (one, other) if ago_ms is not None], default=None)


def _all(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))


def _last(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted([*one, *other])[-MOST_ERRORS:])


def _by_step(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sums of equal steps. (): there was nothing in any."""
    return tuple(map(add, one, other)) if one and other else one or other


Sum = Annotated[T, _sum]
SumKnown = Annotated[T, _sum_known]
BySteps = Annotated[T, _by_step]
Largest = Annotated[T, max]
Known = Annotated[T, _known]
Oldest = Annotated[T, _oldest]
Latest = Annotated[T, _latest]
All = Annotated[T, _all]
Last = Annotated[T, _last]


class ActiveTopic(NamedTuple):
    """A topic with at least one item ready. Counts and `oldest_ready_at_ms` (Unix epoch; 0: none is ready) are
    approximate; `hosts` are the `host:port` that have it; the fields behind are None unless asked for. Items that were
    stored, delivered and acked in the last minute, and attempts that failed: in the last six whole steps of 10 s. None:
    unknown. A host counts 10,000 topics with traffic; a host of an older version counts none. Of the ready items,
    `ready_paused` are held by a pause of the topic or of tenants, and `ready_throttled` wait for a throttle. `dead`: it
    has dead letters, or takes them."""

    ns: str
    topic: str
    ready: Sum[int] = 0
    oldest_ready_at_ms: Oldest[int] = 0
    hosts: All[tuple[str, ...]] = ()
    delayed: Sum[int | None] = None
    leased: Sum[int | None] = None
    enqueued_minute: SumKnown[int | None] = None
    delivered_minute: SumKnown[int | None] = None
    acked_minute: SumKnown[int | None] = None
    failed_minute: SumKnown[int | None] = None
    paused: Known[bool | None] = None
    closed: Known[bool | None] = None
    ready_paused: Sum[int | None] = None
    ready_throttled: Sum[int | None] = None
    dead: Known[bool | None] = None


class WorkerStats(NamedTuple):
    """The leases of one worker in a topic, and the time since the oldest was given. `worker` is "" for
    consumers without a name, and for leases that an earlier owner of the shard gave. `hung`: its handlers that have
    worked on an item of the topic for longer than its `time_limit_ms`, by its report of the last 15 s. Their leases may
    have ended, so `held` may be 0."""

    worker: str
    held: Sum[int] = 0
    oldest_lease_ms: Largest[int] = 0
    hung: Largest[int] = 0  # a worker reports all of its hung handlers, to one host at a time


class TenantStats(NamedTuple):
    """A tenant of a topic: the items with one fairness key, "" for those without one. `parked` of its `ready` items
    (approximate) wait for a throttle. `served` is the sum of its deliveries, in the unit of the topic's policy
    (`fair.unit`: items, KiB or ms), since its hosts have items of it. `share` of the turns is due to it, 0 to 1: its
    `weight` over the weights of all tenants with ready items that wait for no throttle. All ready items of a `paused`
    tenant are parked. `waits_for`: the throttle key for which most of its parked items wait, "" for none."""

    fairness_key: str = ""
    weight: Largest[int] = 0
    ready: Sum[int] = 0
    parked: Sum[int] = 0
    served: Sum[float] = 0.0
    share: float = 0.0
    paused: Largest[bool] = False
    waits_for: Known[str] = ""


class HookStats(NamedTuple):
    """A script that the topic's policy names for a hook, and its calls since the hosts started. While the breaker is
    open on some host, after failures in a row, the script is not called there for `retry_after_ms`. `last_errors`:
    time, kind and text, oldest first."""

    hook: str
    script: str
    calls: Sum[int] = 0
    failures: Sum[int] = 0
    breaker_open: Largest[bool] = False
    retry_after_ms: Largest[int] = 0
    last_errors: Last[tuple[str, ...]] = ()


class FailingGroup(NamedTuple):
    """Failed attempts of a topic with one `cause` and `fingerprint`, since `first_failed_at_ms`: in the last minute, 10
    minutes and hour, and all `failures`. `ended` of them made a dead letter of the item, or removed it. `attempts` is
    the highest number of an attempt. `reason`, `item_id` and `worker` ("": not known) are of the last one. Up to 8
    `workers` are named; `more_workers`: there are more. `cause` 0: the rest of the topic's failures, which have no
    groups. The numbers of a group that was rare for a time may be too low; the sums over a topic are right.
    """

    cause: int
    fingerprint: str
    last_minute: Sum[int] = 0
    last_10_minutes: Sum[int] = 0
    last_hour: Sum[int] = 0
    failures: Sum[int] = 0
    ended: Sum[int] = 0
    first_failed_at_ms: Oldest[int] = 0
    last_failed_at_ms: Largest[int] = 0
    attempts: Largest[int] = 0
    reason: str = ""
    item_id: int = 0
    worker: str = ""
    workers: All[tuple[str, ...]] = ()
    more_workers: Largest[bool] = False


class FailingTopic(NamedTuple):
    """A topic with failed attempts in the last hour, and its attempts that ended with an ack: in the last 10 minutes,
    and the last hour, since the first failure at the earliest."""

    topic: str
    acked_10_minutes: Sum[int] = 0
    acked_hour: Sum[int] = 0
    groups: tuple[FailingGroup, ...] = ()

    @property
    def ended_10_minutes(self) -> int:
        """Attempts that ended in the last 10 minutes."""
        return self.acked_10_minutes + sum(one.last_10_minutes for one in self.groups)


def by_rate(group: FailingGroup) -> tuple[int, ...]:
    """Sorts groups by how much fails now, the most first."""
    return -group.last_minute, -group.last_10_minutes, -group.last_hour, -group.last_failed_at_ms


class TopicStats(NamedTuple):
    """Items by state (approximate; `completed` and `failed` ones are kept after their end), and the effective policy:
    `policy` has a value of each field, `policy_layers` the settings key of each that is not built in. `missing` are
    the `host:port` whose items are not counted. `workers` lists workers whose handlers hang, then workers that hold
    leases, the oldest lease first. `tenants` lists the tenants with most ready items, none where tenants take no
    turns; `more_tenants` has the sums of all further ones, None without any. `hooks` of the policy. `overruled`:
    fields of which a value was set that is not in effect, with the reason; a topic that takes dead letters has
    them. Attempts failed in the last minute, 10 minutes and hour; `Client.failing` says why. `enqueued_minute` to
    `ready_throttled` are as in `ActiveTopic`. `behind` items wait for earlier ones of their order keys; None: a host
    did not count them."""

    ready: Sum[int] = 0
    delayed: Sum[int] = 0
    leased: Sum[int] = 0
    paused: bool = False
    closed: bool = False
    policy: dict[str, Any] = {}  # noqa: RUF012 - nothing changes it, nor those below
    policy_layers: dict[str, str] = {}  # noqa: RUF012
    missing: tuple[str, ...] = ()
    workers: tuple[WorkerStats, ...] = ()
    tenants: tuple[TenantStats, ...] = ()
    more_tenants: TenantStats | None = None
    hooks: tuple[HookStats, ...] = ()
    overruled: dict[str, str] = {}  # noqa: RUF012
    completed: Sum[int] = 0
    failed: Sum[int] = 0
    attempts_failed_minute: Sum[int] = 0
    attempts_failed_10_minutes: Sum[int] = 0
    attempts_failed_hour: Sum[int] = 0
    enqueued_minute: SumKnown[int | None] = None
    delivered_minute: SumKnown[int | None] = None
    acked_minute: SumKnown[int | None] = None
    failed_minute: SumKnown[int | None] = None
    ready_paused: Sum[int | None] = None
    ready_throttled: Sum[int | None] = None
    behind: Sum[int | None] = None


class ShadowHour(NamedTuple):
    """What a limit in shadow counted since its first delivery, at most for an hour: `held` of `seen` deliveries would
    have been held back in the last `for_ms`."""

    held: Sum[int] = 0
    seen: Sum[int] = 0
    for_ms: Largest[int] = 0

    def __str__(self) -> str:
        """Return the counts in words.

        >>> str(ShadowHour(55, 1060, 125_000)), str(ShadowHour(0, 3, 400)), str(ShadowHour(for_ms=3_570_000))
        ('55 of 1,060 held back in 2 min', '0 of 3 held back in 1 s', 'no delivery in 59 min')
        """
        seconds = max(1, self.for_ms // 1_000)
        span = f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
        return f"{self.held:,} of {self.seen:,} held back in {span}" if self.seen else f"no delivery in {span}"


def _shadow(one: ShadowHour | None, other: ShadowHour | None) -> ShadowHour | None:
    return merged(one, other) if one is not None and other is not None else one or other


Shadow = Annotated[T, _shadow]


class ThrottleStats(NamedTuple):
    """A throttle key in use. `setting` is the settings key of its throttle, with `per_second`, `burst` and
    `concurrency`; they are "" and None where it has none. `tokens` that no host holds; `taken` leases live,
    and `free` more may begin: None if they are not known. `parked_flows` and `parked_items` wait, the first since
    `longest_wait_ms`. `shadow_held`: deliveries that a shadow throttle would have held back. `coordinator` is the
    `host:port` that makes the tokens and lends the slots. `overage`: leases that lived longer than the throttle's
    timeout_ms; `reclaimed`: leases that ended by time. `shadow_rate` and `shadow_leases`: what a throttle in shadow
    counted by its rate, and by its `concurrency`; None where nothing was counted."""

    key: str
    setting: str = ""
    per_second: float | None = None
    burst: int | None = None
    tokens: Known[float | None] = None
    parked_flows: Sum[int] = 0
    parked_items: Sum[int] = 0
    longest_wait_ms: Largest[int] = 0
    shadow_held: Sum[int] = 0
    coordinator: Known[str] = ""
    concurrency: int | None = None
    taken: Known[int | None] = None
    free: Known[int | None] = None
    overage: Sum[int] = 0
    reclaimed: Sum[int] = 0
    shadow_rate: Shadow[ShadowHour | None] = None
    shadow_leases: Shadow[ShadowHour | None] = None


class ShardStatus(NamedTuple):
    """A shard on a host that has to serve it. `trouble`: unreachable, denied (the server answers, and
    has no such database or table, or denies the account), read_only, cut_off (another host reaches its
    database), breaker_open, hanging, disk_full, clock, or "". `waiting_ms`: how long the oldest call to the database
    has had no answer. `items`: ready, delayed and leased ones. `busy`: the share of the last half minute in which a
    call was open, 0 to 1. `growth`: how many times the present rate of rows the database could write, None if that is
    not known. `used_bytes` and `free_bytes` are None where the database does not report them. `transaction_ms`: the
    mean time of a transaction in the last half minute, None without one."""

    shard: int
    state: str = ""
    place: str = ""
    trouble: str = ""
    waiting_ms: int = 0
    items: int = 0
    busy: float = 0.0
    growth: float | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    transaction_ms: int | None = None


class TopicStatus(NamedTuple):
    """A topic that an operator may have to look at. Times are Unix epoch ms, the oldest one up to 66 s too early if its
    item is not in memory; 0: no item is ready. `paused`: a pause of the topic, or of tenants, holds all ready items;
    else they are left out of the other fields. `consumed`: a consumer waits for it, or asked in the last minute.
    `dead`: it has dead letters, or takes them. `failed_10_minutes`: attempts that failed; `acked_10_minutes` ended with
    an ack, since the first failure. `failure`: the reason of most of them, or the cause."""

    ns: str
    topic: str
    ready: Sum[int] = 0
    oldest_ready_at_ms: Oldest[int] = 0
    newest_ready_at_ms: Largest[int] = 0
    paused: Largest[bool] = False
    consumed: Largest[bool] = False
    dead: Largest[bool] = False
    failed_10_minutes: Sum[int] = 0
    acked_10_minutes: Sum[int] = 0
    failure: Known[str] = ""

    @property
    def ended_10_minutes(self) -> int:
        """Attempts that ended in the last 10 minutes."""
        return self.failed_10_minutes + self.acked_10_minutes


class QuotaStatus(NamedTuple):
    """`used` of the `most` stored items of a namespace, or of a topic, which is "" for a namespace."""

    ns: str
    topic: str = ""
    used: Sum[int] = 0
    most: int = 0


class RateStatus(NamedTuple):
    """`used` of the `most` items a second that a namespace may store, in the last half minute."""

    ns: str
    used: Sum[float] = 0.0
    most: float = 0.0


class HostStatus(NamedTuple):
    """The facts of one host. thrift/foqs.thrift describes the fields; a host with version "" is of an older version and
    reports nothing."""

    address: str
    host: str = ""
    version: str = ""
    now_ms: int = 0
    missing: tuple[str, ...] = ()
    clock: str = ""
    session: str = ""
    controller: str = ""
    unserved: tuple[int, ...] = ()
    gone: tuple[str, ...] = ()
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    kept: int = 0
    dead: int = 0
    budget_used_bytes: int = 0
    budget_limit_bytes: int = 0
    loop_busy: float = 0.0
    loop_late: int = 0
    loop_lag_ms: int = 0
    loop_waiting: float | None = None
    items_per_s: float = 0.0
    quota_refused: int = 0
    hung: int = 0
    shards: tuple[ShardStatus, ...] = ()
    topics: tuple[TopicStatus, ...] = ()
    quotas: tuple[QuotaStatus, ...] = ()
    held: str | None = None
    certificate_ends_at_ms: int | None = None
    clients: tuple[str, ...] = ()
    rates: tuple[RateStatus, ...] = ()
    alike: Mapping[str, str] = {}


class ConsumerStats(NamedTuple):
    """The consumers of a namespace with one name, "" without a name and for leases that an earlier owner of the shard
    gave. `hosts` are the `host:port` that it asked in the last 10 minutes, `peers` its own addresses without the ports.
    `asked_ago_ms`: since its last request for items, None if there was none in that time. `hung`: its handlers that
    hang, whose leases may have ended. `clients`: the libraries that it names, such as foqs-python/0.1.0."""

    ns: str
    worker: str = ""
    hosts: All[tuple[str, ...]] = ()
    peers: All[tuple[str, ...]] = ()
    topics: All[tuple[str, ...]] = ()
    held: Sum[int] = 0
    oldest_lease_ms: Largest[int] = 0
    asked_ago_ms: Latest[int | None] = None
    hung: Largest[int] = 0
    clients: All[tuple[str, ...]] = ()


class OldestTopic(NamedTuple):
    """A topic, and the time from which its oldest ready item may be delivered (Unix epoch, approximate)."""

    topic: str
    oldest_ready_at_ms: Oldest[int] = 0


def _oldest_of(one: tuple[OldestTopic, ...], other: tuple[OldestTopic, ...]) -> tuple[OldestTopic, ...]:
    known = {topic.topic: topic for topic in one}
    merge_into(known, other)
    return oldest_first(known.values())


def oldest_first(topics: Iterable[OldestTopic]) -> tuple[OldestTopic, ...]:
    """Return the topics with the oldest ready items, at most `MOST_OLDEST`."""
    return tuple(nsmallest(MOST_OLDEST, topics, key=lambda one: (one.oldest_ready_at_ms, one.topic)))


class NamespaceRates(NamedTuple):
    """What happened to the items of a namespace in steps of equal length, the oldest first: items that were stored,
    deliveries, items that an ack removed, and attempts that failed. (): there was nothing in any step. The items by
    state (approximate; None unless asked for), and the topics with the oldest ready ones. `ready_paused` and
    `ready_throttled` as in `ActiveTopic`; `ready_dead` are dead letters that neither holds."""

    ns: str
    enqueued: BySteps[tuple[int, ...]] = ()
    delivered: BySteps[tuple[int, ...]] = ()
    acked: BySteps[tuple[int, ...]] = ()
    failed: BySteps[tuple[int, ...]] = ()
    ready: Sum[int | None] = None
    delayed: Sum[int | None] = None
    leased: Sum[int | None] = None
    oldest: Annotated[tuple[OldestTopic, ...], _oldest_of] = ()
    ready_paused: Sum[int | None] = None
    ready_throttled: Sum[int | None] = None
    ready_dead: Sum[int | None] = None


class Figures(Protocol):
    """A NamedTuple of this module."""

    _fields: Any
    _field_defaults: Any


F = TypeVar("F", bound=Figures)
_STRUCTS = {TopicStats: "GetTopicStatsResponse"}
"""Structs of the contract that are not named like their figures."""


class _Shape(NamedTuple):
    """How the figures of a kind are made of a struct and back. `lists` and `parts` are the places of fields with tuples
    or other figures, in the figures and in the struct."""

    read: Callable[[Any], tuple[Any, ...]]
    absent: list[Any]
    lists: list[tuple[int, Any]]
    struct: Any
    write: Callable[[Any], tuple[Any, ...]]
    parts: list[int]


def from_struct(kind: type[F], struct: Any, **given: Any) -> F:
    """Return the figures of a struct, with the `given` fields. A field that the struct does not have gets its
    default."""
    shape = _shape(kind)
    values = [absent if one is None else one for one, absent in zip(shape.read(struct), shape.absent, strict=True)]
    for at, below in shape.lists:
        if values[at] is not shape.absent[at]:
            values[at] = _part(values[at], below)
    made = kind(*values)
    return made._replace(**given) if given else made  # type: ignore[attr-defined]  # a NamedTuple


def to_struct(figures: Any, **given: Any) -> Any:
    """Return the struct of figures, with the `given` fields."""
    kind: Any = type(figures)
    shape = _shape(kind)
    values = [*shape.write(figures)]
    for at in shape.parts:
        values[at] = _whole(values[at])
    struct = shape.struct(*values)
    for name, value in given.items():
        setattr(struct, name, value)
    return struct


def merged(one: F, other: F) -> F:
    """Return the figures of two hosts as one."""
    return type(one)(*[
        mine if rule is None else rule(mine, theirs)
        for rule, mine, theirs in zip(_rules(type(one)), one, other, strict=True)  # type: ignore[call-overload]
    ])  # fmt: skip


def merge_into(known: dict[str, F], figures: Iterable[F]) -> None:
    """Add figures of another host to `known` figures, by their names."""
    for one in figures:
        name = one[0]  # type: ignore[index]  # a NamedTuple
        known[name] = merged(known[name], one) if name in known else one


@cache
def _rules(kind: type) -> list[Callable[[Any, Any], Any] | None]:
    hints = get_type_hints(kind, include_extras=True).values()
    return [get_args(hint)[1] if get_origin(hint) is Annotated else None for hint in hints]


@cache
def _shape(kind: Any) -> _Shape:
    lists = {}
    for at, hint in enumerate(get_type_hints(kind).values()):
        inside = (hint, *get_args(hint))
        below = [part for part in inside if hasattr(part, "_field_defaults")]
        if below or any(get_origin(part) is tuple for part in inside):
            lists[at] = below[0] if below else None
    struct = getattr(idl, _STRUCTS.get(kind, kind.__name__))
    names = [name for name, _ in struct.default_spec]
    absent = [kind._field_defaults.get(name) for name in kind._fields]
    parts = [names.index(kind._fields[at]) for at in lists]
    return _Shape(attrgetter(*kind._fields), absent, list(lists.items()), struct, attrgetter(*names), parts)


def _part(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return tuple(value) if kind is None else tuple([from_struct(kind, one) for one in value])
    return value if kind is None else from_struct(kind, value)


def _whole(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return to_struct(value)
    return [_whole(one) for one in value] if isinstance(value, tuple) else value
