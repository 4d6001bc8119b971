"""Promise 10, checked by what consumers of one host get: how the tenants of each topic share its deliveries.

The shares of two tenants are compared while both have items that can be delivered at once. A tenant that lacked a page,
or whose shard could not lease, may catch up later: it is left out until it has no items. If new ones come before a turn
found it without any, it goes on to catch up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.engine.shard import Shard
from foqs.fairness.keys import TopicKey, tenancy_of
from foqs.fairness.tenants import Flow, Tenant, Throttles
from foqs.fairness.turns import Given
from foqs.ids import shard_of
from foqs.item import Item
from tests.sim.profile import given_weight
from tests.sim.records import broken

if TYPE_CHECKING:
    from tests.sim.member import Member

_ROUNDING = 1e-6


class Stock(NamedTuple):
    """What a host has of a tenant, the items by throttle keys and priority. Not `whole`: some of it cannot be delivered
    before something is read. `new`: all of it was enqueued at this host."""

    items: Counter[tuple[Throttles, int]]
    whole: bool
    new: bool
    weight: float


@dataclass(eq=False)
class Share:
    """A tenant with items to deliver. `owed`: it may catch up, as may one with `refunds`: items that it was given and
    that no consumer began. Not `begun`: it had no turn yet since it came. `waits_for`: the deliveries that it may wait
    for, if it is a newcomer."""

    name: str
    stock: Stock
    quantum: float  # the largest 1 / weight
    owed: bool = False
    refunds: int = 0
    begun: bool = False
    waits_for: int | None = None
    passed: int = 0

    @property
    def compared(self) -> bool:
        return self.begun and not self.owed and not self.refunds


@dataclass(eq=False)
class Gap:
    """The difference of the service of two tenants, each by its weight, while both had items."""

    now: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(eq=False)
class TopicShares:
    """One topic on one host."""

    shares: dict[str, Share] = field(default_factory=dict)
    gaps: dict[tuple[str, str], Gap] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    last_new: bool = False
    turns: Any = None
    charges: int = 0  # in the present dequeue
    parked: list[tuple[int, str, Throttles]] = field(default_factory=list)  # after so many charges
    refunds: Counter[str] = field(default_factory=Counter)  # of tenants without items
    owed: set[str] = field(default_factory=set)  # tenants that could not be delivered in their turns

    def drop(self, name: str) -> None:
        """Compare the tenant with no other one any more."""
        self.gaps = {pair: gap for pair, gap in self.gaps.items() if name not in pair}

    def park(self, charges: int) -> None:
        """The flows that were parked before this many charges give nothing more."""
        while self.parked and self.parked[0][0] <= charges:
            _, name, throttles = self.parked.pop(0)
            share = self.shares.get(name)
            if share is None:
                continue
            for kind in [kind for kind in share.stock.items if kind[0] == throttles]:
                del share.stock.items[kind]
            if share.stock.whole and not share.stock.items.total():
                self.drop(name)
                del self.shares[name]

    def compare(self, name: str) -> None:
        """From now on the tenant has its share."""
        if not self.shares[name].compared:
            return
        for other in self.shares.values():
            if other.compared and other.name != name:
                self.gaps[name, other.name] = Gap()


class Shares:
    """Of one host; a new one when the host is started again."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._topics: dict[TopicKey, TopicShares] = {}
        throttling: Any = member.engine.state.throttling
        throttling.park = partial(self._parked, throttling.park)

    def before(self, keys: Iterable[TopicKey], eligible: Collection[Shard]) -> None:
        """Items of these topics are about to be leased, on these shards."""
        for key in keys:
            topic = self._topics.setdefault(key, TopicShares())
            topic.park(topic.charges)
            topic.charges = 0
            stocks = self._stocks(key, eligible)
            for name in [name for name in topic.shares if name not in stocks]:
                topic.drop(name)
                del topic.shares[name]
            came = [name for name in stocks if name not in topic.shares]
            for name, stock in stocks.items():
                self._look(topic, name, stock)
            waiting = sum(not share.begun for share in topic.shares.values())
            for name in came:
                if name not in topic.seen and stocks[name].new and not topic.shares[name].owed:
                    topic.shares[name].waits_for = 2 * waiting
            topic.seen.update(came)

    def _look(self, topic: TopicShares, name: str, stock: Stock) -> None:
        share = topic.shares.get(name)
        if share is None:
            share = topic.shares[name] = Share(name, stock, 1 / stock.weight)
            share.refunds = topic.refunds.pop(name, 0)
            tenant = topic.turns.tenants[name]
            share.owed = name in topic.owed and tenant.start < tenant.level.now
            topic.owed.discard(name)
        if stock.weight != share.stock.weight:
            topic.drop(name)
            topic.compare(name)
        share.stock, share.quantum = stock, max(share.quantum, 1 / stock.weight)
        if not stock.whole:
            share.owed, share.waits_for = True, None
            topic.drop(name)
        if share.owed:
            topic.owed.add(name)

    def leased(self, items: Iterable[Item]) -> None:
        """These items were leased, in this order."""
        before: Counter[TopicKey] = Counter()
        for item in items:
            key, (name, throttles) = item.lane.topic.key, tenancy_of(item.lane.key)
            topic = self._topics[key]
            topic.park(before[key])
            before[key] += 1
            share = topic.shares.get(name)
            if share is None:
                broken(10, f"{key}: {item} of {name!r} was leased, and could not be")
                return
            if self._urgent_first(key):
                self._check_rank(key, topic, item)
            else:
                self._turn(key, topic, share)
            share.stock.items[throttles, item.priority] -= 1
            if not share.stock.items.total() and share.stock.whole:
                topic.drop(name)
                del topic.shares[name]

    def _urgent_first(self, key: TopicKey) -> bool:
        return self._member.sim.ledger.attempts.policies.of(key).fair.scope == "topic"

    def _check_rank(self, key: TopicKey, topic: TopicShares, item: Item) -> None:
        self._member.sim.ledger.checks["ranks"] += 1
        for share in topic.shares.values():
            left = [priority for (_, priority), items in share.stock.items.items() if items > 0]
            if share.stock.whole and min(left, default=item.priority) < item.priority:
                broken(10, f"{key}: {item} was leased before an item of {share} with priority {min(left)}")

    def _turn(self, key: TopicKey, topic: TopicShares, share: Share) -> None:
        checks, name = self._member.sim.ledger.checks, share.name
        new = share.waits_for is not None and not share.begun
        if new:
            checks["newcomers"] += 1
            if topic.last_new and any(one.compared for one in topic.shares.values()):
                broken(10, f"{key}: two newcomers in a row, the second is {name!r}")
        topic.last_new = new
        for other in topic.shares.values():
            if other is not share and not other.begun and other.waits_for is not None:
                other.passed += 1
                if other.passed > other.waits_for:
                    broken(10, f"{key}: {other} still waits after {other.passed} deliveries")
        if not share.compared:
            share.begun, share.refunds = True, max(0, share.refunds - share.begun)
            topic.compare(name)
            return
        for pair, gap in topic.gaps.items():
            if name in pair:
                gap.now += (1 if pair[0] == name else -1) / share.stock.weight
                gap.low, gap.high = min(gap.low, gap.now), max(gap.high, gap.now)
                quanta = sum(topic.shares[one].quantum for one in pair)
                checks["shares"] += 1
                if gap.high - gap.low > quanta + _ROUNDING:
                    broken(10, f"{key}: the service of {pair} differs by {gap.high - gap.low}, at most {quanta} may")

    def _refunded(self, key: TopicKey, refund: Callable[..., None], tenant: Tenant[Any], *about: Any) -> None:
        topic = self._topics[key]
        share = topic.shares.get(tenant.name)
        if share is None:
            topic.refunds[tenant.name] += 1
        else:
            share.refunds += 1
            topic.drop(tenant.name)
        refund(tenant, *about)

    def _charged(self, key: TopicKey, charge: Callable[..., None], *about: Any, **how: Any) -> None:
        self._topics[key].charges += 1
        charge(*about, **how)

    def _charged_all(self, key: TopicKey, charge_all: Callable[..., None], given: Sequence[Given]) -> None:
        self._topics[key].charges += sum(one.items for one in given)
        charge_all(given)

    def _parked(self, park: Callable[..., bool], flow: Flow[Any], *about: Any) -> bool:
        topic = self._topics[flow.lanes[0].topic.key]
        topic.parked.append((topic.charges, flow.tenant.name, flow.throttles))
        return park(flow, *about)

    def _stocks(self, key: TopicKey, eligible: Collection[Shard]) -> dict[str, Stock]:
        sim, engine = self._member.sim, self._member.engine
        stocks: dict[str, Stock] = {}
        topic = engine.state.topics.get(key)
        if topic is None or topic.turns is None:
            return stocks
        if self._topics[key].turns is not topic.turns:
            self._topics[key].turns = topic.turns
            topic.turns.refund = partial(self._refunded, key, topic.turns.refund)
            topic.turns.charge = partial(self._charged, key, topic.turns.charge)
            topic.turns.charge_all = partial(self._charged_all, key, topic.turns.charge_all)
        for name, tenant in topic.turns.tenants.items():
            lanes = [lane for flow in tenant.flows.values() if flow.parked is None for lane in flow.lanes if lane.ready]
            shards = {lane: lane.term.shard for lane in lanes if lane.term.shard is not None}
            if not shards:
                continue
            windows = [lane.window for lane in shards]
            items = [entry[3] for window in windows if window is not None for entry in window.entries]
            complete = all(window is not None and not window.more for window in windows)
            whole = complete and all(item.body is not None for item in items)
            whole = whole and all(shard in eligible for shard in shards.values())
            new = whole and all(
                sim.ledger.epochs[item.id] == engine.state.shards[shard_of(item.id)].owner.epoch for item in items
            )
            kinds = Counter((tenancy_of(item.lane.key)[1], item.priority) for item in items)
            stocks[name] = Stock(kinds, whole, new, self._weight(key, tenant))
        return stocks

    def _weight(self, key: TopicKey, tenant: Tenant[Any]) -> float:
        """Return the weight that the tenant should have, after a look at the one that it has."""
        host, policies = self._member.engine, self._member.sim.ledger.attempts.policies.namespace(key[0])
        weights = [policies.weight(key[1], tenant.name, given) for given in (0, given_weight(tenant.name))]
        if tenant.changes == host.state.policies.changes and tenant.weight not in weights:
            broken(10, f"{key}: {tenant} has a weight other than {weights}")
        return policies.weight(key[1], tenant.name, tenant.given_weight)
