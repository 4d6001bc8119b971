"""Lanes for turns, and what the tests measure of them."""

from __future__ import annotations

from foqs.fairness.tenants import IDLE, PARKED, QUEUED, Flow, ShardTerm, Tenant
from foqs.fairness.turns import Turns


class FakeLane:
    def __init__(self, term: ShardTerm, ready: int = 0) -> None:
        self.term = term
        self.ready = ready
        self.weight = 0
        self.flow: Flow[FakeLane] | None = None

    def add(self, items: int) -> None:
        assert self.flow is not None
        self.ready += items
        self.flow.count(self, items)


class Rig:
    """Turns with one lane a tenant. It counts what each tenant was given."""

    def __init__(self, *, ranked: bool = False) -> None:
        self.turns: Turns[FakeLane] = Turns()
        self.turns.follow("items", ranked=ranked)
        self.term = ShardTerm(1, object())
        self.lanes: dict[str, FakeLane] = {}
        self.served: dict[str, int] = {}
        self.order: list[str] = []

    def join(self, name: str, ready: int, weight: float = 1.0) -> Tenant[FakeLane]:
        lane = self.lanes[name] = FakeLane(self.term)
        flow = self.turns.attach(lane, name, ())
        flow.tenant.weight = weight
        self.served.setdefault(name, 0)
        if ready:
            self.arrive(name, ready)
        return flow.tenant

    def part(self, name: str) -> None:
        self.turns.detach(self.lanes.pop(name))

    def arrive(self, name: str, items: int) -> None:
        lane = self.lanes[name]
        assert lane.flow is not None
        lane.add(items)
        lane.flow.wake()

    def park(self, name: str) -> None:
        flow = self.flow(name)
        flow.parked = "key"
        self.turns.leave(flow.tenant, PARKED)

    def unpark(self, name: str) -> None:
        flow = self.flow(name)
        flow.parked = None
        if self.lanes[name].ready:
            flow.wake()
        else:
            self.turns.leave(flow.tenant, IDLE)

    def skip(self, name: str) -> None:
        self.turns.skip(self.tenant(name), 0)

    def flow(self, name: str) -> Flow[FakeLane]:
        flow = self.lanes[name].flow
        assert flow is not None
        return flow

    def tenant(self, name: str) -> Tenant[FakeLane]:
        return self.turns.tenants[name]

    def pick(self, cost: float = 1) -> str | None:
        """Give an item to the tenant whose turn it is."""
        tenant = self.turns.first()
        if tenant is None:
            return None
        assert tenant.away == QUEUED
        self.turns.charge(tenant, cost)
        self.lanes[tenant.name].add(-1)
        if not self.lanes[tenant.name].ready:
            self.turns.leave(tenant, IDLE)
        self.served[tenant.name] += 1
        self.order.append(tenant.name)
        return tenant.name

    def picks(self, count: int) -> list[str | None]:
        return [self.pick() for _ in range(count)]
