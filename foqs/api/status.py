"""GetStatus, ListConsumers and GetRates: the state of the hosts, their consumers, and the traffic of the last hour. The
asked host gathers all answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.api import validation
from foqs.api.host import Host
from foqs.bounds import MOST_LISTED, RATE_STEPS, Quota
from foqs.engine import askers, stats
from foqs.engine.status import Measured, measure, rates_of
from foqs.fairness.rates import STEP_MS
from foqs.figures import EVENTS, ConsumerStats, HostStatus, NamespaceRates, from_struct, merged, to_struct
from foqs.idl import idl
from foqs.peers.gather import ANSWER_MS, RateSums
from foqs.rpc.call import Call

_MOST_RATES = 100
"""Namespaces with rates in an answer, if the request does not say."""
_Report = Callable[[Callable[[HostStatus], None]], None]


class Status:
    """`quota` returns the quota of a namespace. `report` calls back with what the host measures of itself; a host that
    is not connected reports its address alone."""

    def __init__(self, host: Host, quota: Callable[[str], Quota | None]) -> None:
        self.report: _Report = lambda then: then(HostStatus(host.address()))
        self._host = host
        self._quota = quota

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"GetStatus": self.get_status, "ListConsumers": self.list_consumers, "GetRates": self.get_rates}

    def get_status(self, call: Call) -> None:
        """Raises Invalid."""
        host, request = self._host, call.request
        deadline_ms = host.now_ms() + min(validation.timeout_ms(request, host.limits), ANSWER_MS)
        hosts: list[Any] = []
        left, missing = 2, list[str]()

        def end(silent: list[str]) -> None:
            nonlocal left
            missing.extend(silent)
            left -= 1
            if not left:
                call.reply(idl.GetStatusResponse(hosts, missing))

        def take(_address: str, response: Any) -> None:
            hosts.extend(response.hosts or ())

        def older(address: str) -> None:
            hosts.append(to_struct(HostStatus(address)))

        def reported(here: HostStatus) -> None:
            if call.within is not None:
                here = here._replace(shards=tuple([one._replace(place="") for one in here.shards]))
            else:
                here = here._replace(clients=host.engine.state.askers.clients(host.now_ms()))
            here = here._replace(rates=rates_of(here.rates, call.within, self._quota))
            measure(host.engine.state, call.within, self._quota, host.now_ms(), partial(counted, here))

        def counted(here: HostStatus, items: Measured) -> None:
            routing = host.forwarder.routing()
            unserved = tuple(sorted(routing.unowned - routing.disabled))
            hosts.insert(0, to_struct(here._replace(unserved=unserved, **items._asdict())))
            end([])

        self.report(reported)
        host.forwarder.ask_others("GetStatus", idl.GetStatusRequest, request, deadline_ms, take, end, older)

    def list_consumers(self, call: Call) -> None:
        """Raises Invalid."""
        host, request, limits = self._host, call.request, self._host.limits
        ns = None if request.ns is None else validation.name(request.ns, "ns", limits)
        topic = None if request.topic is None else validation.name(request.topic, "topic", limits)
        limit = validation.within(request.limit, "limit", 1, MOST_LISTED, MOST_LISTED)
        deadline_ms = host.now_ms() + min(validation.timeout_ms(request, limits), ANSWER_MS)
        found: dict[tuple[str, str], ConsumerStats] = {}
        further = False

        def add(one: ConsumerStats) -> None:
            known = found.get((one.ns, one.worker))
            found[one.ns, one.worker] = one if known is None else merged(known, one)

        def take(_address: str, response: Any) -> None:
            nonlocal further
            further = further or bool(response.more)
            for one in response.consumers or ():
                add(from_struct(ConsumerStats, one))

        def done(missing: list[str]) -> None:
            rows, more = askers.first([*found.values()], limit)
            call.reply(idl.ListConsumersResponse([to_struct(one) for one in rows], more or further, missing))

        def counted(here: list[ConsumerStats]) -> None:
            for one in here:
                add(one)
            part = partial(idl.ListConsumersRequest, ns, request.topic, limit)
            host.forwarder.ask_others("ListConsumers", part, request, deadline_ms, take, done)

        askers.consumers(host.engine.state, ns, topic, call.within, host.address(), host.now_ms(), counted)

    def get_rates(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        host, request, limits = self._host, call.request, self._host.limits
        host.refuse_when_full()
        ns = None if request.ns is None else validation.name(request.ns, "ns", limits)
        steps = validation.within(request.steps, "steps", 1, RATE_STEPS, RATE_STEPS)
        limit = validation.within(request.limit, "limit", 1, MOST_LISTED, _MOST_RATES)
        deadline_ms = host.now_ms() + min(validation.timeout_ms(request, limits), ANSWER_MS)

        def done(sums: RateSums, first_at_ms: int, missing: list[str]) -> None:
            rows, more = sums.rates(limit, ns)
            since_ms = max(first_at_ms, sums.since_ms)
            found = [_rates_struct(one) for one in rows]
            call.reply(idl.GetRatesResponse(STEP_MS, first_at_ms, since_ms, found, more, missing))

        def counted(here: list[NamespaceRates], first: int, more: bool) -> None:
            sums = RateSums(here, first, steps, host.engine.state.topics.rates.begun_ms, more=more)
            part = partial(idl.GetRatesRequest, ns, steps, limit, request.items)
            end = partial(done, sums, first * STEP_MS)
            host.forwarder.ask_others("GetRates", part, request, deadline_ms, sums.add, end)

        stats.traffic(
            host.engine.state, ns, call.within, steps, limit, host.now_ms(), counted, items=bool(request.items)
        )


def _rates_struct(one: NamespaceRates) -> Any:
    """Return the struct of the rates. (`to_struct` looks at each count.)"""
    counts = [list(getattr(one, kind)) for kind in EVENTS]
    oldest = [to_struct(topic) for topic in one.oldest] if one.ready is not None else None
    return idl.NamespaceRates(one.ns, *counts, one.ready, one.delayed, one.leased, oldest, *one[9:])
