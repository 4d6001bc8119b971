"""What a client asks about a server and about a topic as a whole."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from foqs.client import methods
from foqs.client.items import ServerInfo
from foqs.client.options import checked
from foqs.client.requests import Requests
from foqs.idl import idl

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
