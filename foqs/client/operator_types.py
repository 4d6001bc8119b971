"""What a client asks about a server and about a topic as a whole.

Why an item is not delivered, or none of a topic: what a client asks, and the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from foqs.client import methods
from foqs.client.arguments import checked
from foqs.client.items import ItemState, ServerInfo
from foqs.client.requests import Requests
from foqs.idl import idl
from foqs.ids import parse_id

_THROTTLES = 1_000


class WorkerStats(NamedTuple):
    """The leases of a topic that one worker holds, and the time since the oldest was given. `worker` is "" for
    consumers without a name, and for leases that an earlier owner of the shard gave. `hung`: its handlers that have
    worked on an item of the topic for longer than its `time_limit_ms`, as it said in the last 15 s; their leases may
    have ended, so `held` may be 0."""

    worker: str
    held: int
    oldest_lease_ms: int
    hung: int = 0


class TenantStats(NamedTuple):
    """A tenant of a topic: the items with one fairness key, "" for those without one. `parked` of its `ready` items
    (approximate) wait for a throttle. `served` is the sum of its deliveries, in the unit of the topic's policy
    (`fair.unit`: items, KiB or ms), since its hosts have items of it. `share` of the turns is due to it, 0 to 1: its
    `weight` over those of all tenants with ready items that wait for no throttle."""

    fairness_key: str
    weight: int
    ready: int
    parked: int
    served: float
    share: float


class HookStats(NamedTuple):
    """A script that the topic's policy names for a hook, and its calls since the hosts started. While the breaker is
    open on some host, after failures in a row, the script is not called there for `retry_after_ms`. `last_errors`:
    time, kind and text; the last one last."""

    hook: str
    script: str
    calls: int
    failures: int
    breaker_open: bool
    retry_after_ms: int
    last_errors: tuple[str, ...]


class TopicStats(NamedTuple):
    """Items by state (approximate), and the effective policy: `policy` has a value of each field, `policy_layers` the
    settings key of each that is not built in. `missing` are the `host:port` whose items are not counted. `workers`
    have handlers that hang, and come first then, or hold leases, the oldest lease first. `tenants` are those with the
    most ready items, none where tenants take no turns; `more_tenants` has the sums of all further ones, None without
    any. `hooks` of the policy. `overruled`: fields of which another value than the one in effect was set, with the
    reason; a topic that takes dead letters has them."""

    ready: int
    delayed: int
    leased: int
    paused: bool
    closed: bool
    policy: dict[str, Any]
    policy_layers: dict[str, str]
    missing: tuple[str, ...]
    workers: tuple[WorkerStats, ...] = ()
    tenants: tuple[TenantStats, ...] = ()
    more_tenants: TenantStats | None = None
    hooks: tuple[HookStats, ...] = ()
    overruled: dict[str, str] = {}  # noqa: RUF012 - nothing changes it


class ThrottleStats(NamedTuple):
    """A throttle key in use. `setting` is the settings key of its throttle, with `per_second`, `burst` and
    `concurrency`; they are "" and None where it has none. `tokens` are those that no host holds; `taken` leases live,
    and `free` more may begin: None if they are not known. `parked_flows` and `parked_items` wait, the first since
    `longest_wait_ms`. `shadow_held`: deliveries that a shadow throttle would have held back. `coordinator` is the
    `host:port` that makes the tokens and lends the slots. `overage`: leases that lived longer than the throttle's
    timeout_ms; `reclaimed`: leases that ended by time."""

    key: str
    setting: str
    per_second: float | None
    burst: int | None
    tokens: float | None
    parked_flows: int
    parked_items: int
    longest_wait_ms: int
    shadow_held: int
    coordinator: str
    concurrency: int | None = None
    taken: int | None = None
    free: int | None = None
    overage: int = 0
    reclaimed: int = 0


class Throttles(NamedTuple):
    """`missing` are the `host:port` of hosts that did not answer."""

    throttles: tuple[ThrottleStats, ...]
    missing: tuple[str, ...]


class Looks:
    """Methods of `Client`."""

    namespace: str
    _requests: Requests

    @checked()
    def topic_stats(self, topic: str, *, tenants: int | None = None, timeout_ms: int | None = None) -> TopicStats:
        """Items, tenants and policy of a topic, over all hosts. A topic without items has counts of 0. `tenants` with
        the most ready items come by name, 1 to 1,000; default: 100."""
        request = idl.GetTopicStatsRequest(ns=self.namespace, topic=topic, limit=tenants)
        found = self._requests.read(methods.TOPIC_STATS, request, timeout_ms)
        more = found.more_tenants
        return TopicStats(
            found.ready,
            found.delayed,
            found.leased,
            found.paused,
            found.closed,
            json.loads(found.policy),
            found.policy_layers or {},
            tuple(found.missing or ()),
            tuple(WorkerStats(one.worker, one.held, one.oldest_lease_ms, one.hung or 0) for one in found.workers or ()),
            tuple(map(_tenant, found.tenants or ())),
            None if more is None else _tenant(more),
            tuple(map(_hook, found.hooks or ())),
            found.overruled or {},
        )

    @checked()
    def throttles(self, prefix: str = "", *, limit: int | None = None, timeout_ms: int | None = None) -> Throttles:
        """Throttle keys that are in use and begin with `prefix`, over all hosts, in the order of their names: the first
        `limit`, or all (0: no limit). Keys that nothing used for some seconds are left out."""
        limit = limit or None
        found: list[ThrottleStats] = []
        missing: set[str] = set()
        cursor: str | None = None
        while True:
            page_keys = _THROTTLES if limit is None else min(limit - len(found), _THROTTLES)
            request = idl.GetThrottlesRequest(self.namespace, prefix or None, page_keys, cursor)
            page = self._requests.read(methods.THROTTLES, request, timeout_ms)
            found += [ThrottleStats(*[getattr(one, name) for name in ThrottleStats._fields]) for one in page.throttles]
            missing.update(page.missing or ())
            cursor = page.cursor
            if cursor is None or len(found) == limit:
                return Throttles(tuple(found), tuple(sorted(missing)))

    @checked()
    def server_info(self, *, timeout_ms: int | None = None) -> ServerInfo:
        """Version, limits and clock of the server that answers."""
        response = self._requests.read(methods.SERVER_INFO, idl.GetServerInfoRequest(), timeout_ms)
        return ServerInfo(response.version, response.limits or {}, response.now_ms)


def _hook(found: Any) -> HookStats:
    errors = tuple(found.last_errors or ())
    return HookStats(
        found.hook, found.script, found.calls, found.failures, bool(found.breaker_open), found.retry_after_ms, errors
    )


def _tenant(found: Any) -> TenantStats:
    return TenantStats(*[getattr(found, name) for name in TenantStats._fields])


class Reason(IntEnum):
    """What keeps an item from being delivered. The numbers are no order: see `Explanation.reasons`."""

    GONE = 1
    ENDED = 2
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


@dataclass(frozen=True, slots=True)
class ExplainReason:
    """`text` says it in words, with a command that shows more and changes nothing. `until_ms` is Unix epoch
    milliseconds: when it ends by itself, as far as the host knows. `key`, `count` and `by` depend on `code`: see
    `Reason` in thrift/foqs.thrift. A code of a newer server is an int."""

    code: Reason | int
    text: str
    until_ms: int | None = None
    key: str | None = None
    count: int | None = None
    by: str | None = None


class Explanation(NamedTuple):
    """`reasons` in the order in which they have to end, none if the item is deliverable now. `eta_ms` is an estimate of
    the time until its delivery, None when it is not known; `state` that of an item, as far as it could be read."""

    reasons: tuple[ExplainReason, ...]
    eta_ms: int | None = None
    state: ItemState | None = None


class Explaining:
    """Methods of `Client`."""

    namespace: str
    _requests: Requests

    @checked()
    def explain(self, item_id: int | str, *, timeout_ms: int | None = None) -> Explanation:
        """Why an item is not delivered yet. `eta_ms` needs the rate of the topic's deliveries, which a host measures
        from the first question on: ask again some seconds later.

        >>> client.explain(281474976710657)                         # doctest: +SKIP
        Explanation(reasons=(ExplainReason(code=<Reason.DELAYED: 6>, text='Its delay ends in 42.0 s.', ...),), ...)
        """
        number = parse_id(item_id)
        return _explanation(self._requests.read(methods.EXPLAIN, idl.ExplainItemRequest(id=number), timeout_ms, number))

    @checked()
    def explain_topic(self, topic: str, *, timeout_ms: int | None = None) -> Explanation:
        """Why no item of a topic is delivered: as the host that is nearest to a delivery sees it."""
        request = idl.ExplainItemRequest(ns=self.namespace, topic=topic)
        return _explanation(self._requests.read(methods.EXPLAIN, request, timeout_ms))


def _explanation(response: Any) -> Explanation:
    state = None if response.state is None else ItemState(response.state)
    return Explanation(tuple(map(_reason, response.reasons or ())), response.eta_ms, state)


def _reason(found: Any) -> ExplainReason:
    code = Reason(found.code) if found.code in Reason._value2member_map_ else found.code
    return ExplainReason(code, found.text or "", found.until_ms, found.key, found.count, found.by)
