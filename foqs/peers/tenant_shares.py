"""The balance of tenants whose topic several hosts have: twice a second hosts report to each other how much they
delivered of each tenant, and scale the weights of their own tenants (`foqs.fairness.balance`).

A host reports on a topic in which two or more tenants have items here, or on another host that said so lately. With the
report it asks for the most urgent items of topics whose consumers want ledgers. A host without any of these topics
sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

from foqs.engine.engine import Engine
from foqs.engine.state import State
from foqs.engine.tenants import scale, weigh
from foqs.errors import FoqsError
from foqs.fairness.balance import BEAT_MS, MOST_TENANTS, SILENT_MS, Balance, Share
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import PASSED, QUEUED, SKIPPED, Tenant
from foqs.fairness.topics import Topic
from foqs.fairness.turns import ITEMS, Turns
from foqs.idl import idl
from foqs.item import Item
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.prefetch.lane import Lane

MOST_ASKED = 100
"""Topics in one question. Topics that are left out come first in the next one."""
HEARD_MS = 10_000
"""How long an answer counts."""


class Urgent(NamedTuple):
    """An item with this priority was ready on another host `age_ms` ago."""

    priority: int
    age_ms: int


class Elsewhere:
    """The most urgent ready items of other hosts, as they report them with the answers to TellShares.

    A host asks for the topics in `wanted`, whose consumers want ledgers; without such topics nothing is asked or kept.
    """

    def __init__(self, wanted: Collection[TopicKey], monotonic_ms: Callable[[], int]) -> None:
        self._wanted = wanted
        self._monotonic_ms = monotonic_ms
        self._left: deque[TopicKey] = deque()
        self._heard: dict[TopicKey, dict[str, tuple[int, int]]] = {}  # host -> (priority, when it was heard)

    def ask(self) -> list[TopicKey]:
        """Return the topics to ask for now, and forget unwanted topics."""
        if not self._left:
            self._left.extend(self._wanted)
            for key in self._heard.keys() - set(self._wanted):
                del self._heard[key]
        return [self._left.popleft() for _ in range(min(MOST_ASKED, len(self._left)))]

    def heard(self, host: str, keys: Sequence[TopicKey], priorities: Sequence[int | None]) -> None:
        """Take the answer of a host: the priorities of its most urgent items of these topics."""
        now_ms = self._monotonic_ms()
        for key, priority in zip(keys, priorities, strict=False):
            if key not in self._wanted:
                continue
            hosts = self._heard.setdefault(key, {})
            if priority is None:
                hosts.pop(host, None)
            else:
                hosts[host] = (priority, now_ms)

    def most_urgent(self, key: TopicKey) -> Urgent | None:
        """Return the most urgent item of the topic on other hosts, as far as they said so lately."""
        now_ms = self._monotonic_ms()
        heard = [(priority, now_ms - at_ms) for priority, at_ms in self._heard.get(key, {}).values()]
        return min((Urgent(*one) for one in heard if one[1] < HEARD_MS), default=None)


MOST_SHARES = 2_000
"""Tenants in a report. Topics that are left out come first in the next one."""
_MOST_TOPICS = 10_000
"""Topics that are looked at in a beat."""
_MOST_CHOICE = 10_000
_UNIT = 1_000
"""Service is reported in thousandths."""
_SAMPLES = 8
_ANSWER_MS = 1_000

_WAITS = frozenset({QUEUED, PASSED, SKIPPED})

_Tenant = Tenant[Lane[Item]]
_Topic = Topic[Lane[Item]]
_Turns = Turns[Lane[Item]]


def _heaviest(tenant: _Tenant) -> tuple[float, str]:
    return -tenant.weight / tenant.factor, tenant.name


class _Shared:
    """A topic. `tenants`: the tenants with reports and scaled weights. `usual_cost` of an item, in `unit`."""

    __slots__ = ("balance", "chosen_ms", "tenants", "unit", "usual_cost")

    def __init__(self) -> None:
        self.balance = Balance()
        self.usual_cost = 1.0
        self.unit = ITEMS
        self.tenants: list[_Tenant] = []
        self.chosen_ms = 0

    def choose(self, topic: _Topic, turns: _Turns, now_ms: int) -> None:
        """Choose the same tenants as other hosts, the heaviest, where there are too many."""
        if len(turns.tenants) > MOST_TENANTS and self.tenants and now_ms - self.chosen_ms < SILENT_MS:
            self.tenants = [one for one in self.tenants if turns.tenants.get(one.name) is one]
            return
        self.chosen_ms = now_ms
        before, self.tenants = self.tenants, list(islice(turns.tenants.values(), _MOST_CHOICE))
        if len(self.tenants) > MOST_TENANTS:
            self.tenants = nsmallest(MOST_TENANTS, self.tenants, key=_heaviest)
        for tenant in set(before).difference(self.tenants):
            scale(topic, tenant, 1.0)

    def step(self, state: State, topic: _Topic, now_ms: int) -> list[Share]:
        """Scale the weights, and return the tenants to report on."""
        turns = topic.turns
        assert turns is not None, "its tenants take turns"
        self.choose(topic, turns, now_ms)
        for tenant in self.tenants:
            if tenant.changes != state.policies.changes:
                weigh(state, topic, tenant)
        shares = [
            Share(one.name, one.weight / one.factor, max(0, round(one.served * _UNIT)), one.away in _WAITS)
            for one in self.tenants
        ]
        if turns.unit != self.unit:
            self.unit, self.usual_cost = turns.unit, turns.last_cost
        self.usual_cost += (turns.last_cost - self.usual_cost) / _SAMPLES
        self.balance.step(shares, max(1.0, self.usual_cost * _UNIT), now_ms, turns.unit)
        factors = self.balance.factors
        for tenant in self.tenants:
            scale(topic, tenant, factors.get(tenant.name, 1.0))
        return self.balance.report(shares, now_ms)

    def end(self, topic: _Topic) -> None:
        for tenant in self.tenants:
            scale(topic, tenant, 1.0)


class TenantShares:
    """The reports of one host, sent and heard."""

    def __init__(
        self,
        engine: Engine,
        forwarder: Forwarder,
        timers: Timers,
    ) -> None:
        self._engine = engine
        self._other_hosts = forwarder.other_hosts
        self._ask = forwarder.ask
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self._shared: dict[TopicKey, _Shared] = {}
        self._left: deque[TopicKey] = deque()  # of the last beat
        self._asked: set[str] = set()
        self.elsewhere = Elsewhere(engine.state.topics.ledgers, timers.monotonic_ms)

    def begin(self) -> None:
        """Begin to report: the host is in a cluster."""
        self._later(BEAT_MS, self._beat)

    def heard(self, host: str, topics: Iterable[tuple[TopicKey, Sequence[tuple[str, int]]]]) -> None:
        """Take the report of another host: for each topic (fairness key, service) of its tenants."""
        now_ms, here = self._monotonic_ms(), self._engine.state.topics
        for key, shares in topics:
            if key in here and shares:
                here.begin_turns(here[key])  # its items without a fairness key belong to a tenant, too
                self._shared.setdefault(key, _Shared()).balance.heard(host, shares, now_ms)

    # ------------------------------------------------------------------------------------- inside

    def _beat(self) -> None:
        if self._engine.state.draining:
            return
        addresses, now_ms = self._other_hosts(), self._monotonic_ms()
        topics: list[Any] = []
        if self._engine.state.topics.in_turns:
            topics = self._report(addresses, now_ms)
        elif self._shared:
            self._shared.clear()
        asks = self.elsewhere.ask()
        if topics or asks:
            self._send(addresses, topics, asks)
        self._later(BEAT_MS, self._beat)

    def _report(self, addresses: Collection[str], now_ms: int) -> list[Any]:
        topics: list[Any] = []
        tenants = looked_at = 0
        left = self._left
        if not left:
            left.extend(self._engine.state.topics.in_turns)
            for key in self._shared.keys() - self._engine.state.topics.in_turns.keys():
                del self._shared[key]
        while left and tenants < MOST_SHARES and looked_at < _MOST_TOPICS:
            key = left.popleft()
            looked_at += 1
            shares = self._step(key, addresses, now_ms)
            if shares:
                tenants += len(shares)
                topics.append(idl.TopicShare(*key, [idl.TenantShare(one.name, one.served) for one in shares]))
        return topics

    def _step(self, key: TopicKey, addresses: Collection[str], now_ms: int) -> list[Share]:
        """Scale the weights of a topic's tenants. Return the tenants to report on."""
        engine = self._engine
        topic, shared = engine.state.topics.in_turns.get(key), self._shared.get(key)
        if topic is None:
            return []
        several = topic.turns is not None and len(topic.turns.tenants) > 1 and bool(addresses)
        needed = several or (shared is not None and not shared.balance.quiet)
        if not needed or not engine.state.policies.of(key).fair.balance:
            if shared is not None:
                shared.end(topic)
                del self._shared[key]
            return []
        if shared is None:
            shared = self._shared[key] = _Shared()
        shares = shared.step(engine.state, topic, now_ms)
        return shares if several or shared.balance.contested(now_ms) else []

    def _send(self, addresses: Collection[str], topics: list[Any], asks: list[TopicKey]) -> None:
        host, urgent = self._engine.state.config.server.id, [idl.TopicUrgency(*key) for key in asks]
        for address in addresses:
            if address not in self._asked:
                self._asked.add(address)
                request = idl.TellSharesRequest(host, topics, urgent or None)
                self._ask(address, "TellShares", request, _ANSWER_MS, partial(self._answered, address, asks))

    def _answered(self, address: str, asks: list[TopicKey], response: Any, error: FoqsError | None) -> None:
        self._asked.discard(address)
        if error is None:
            self.elsewhere.heard(address, asks, [one.priority for one in response.urgent or ()])
