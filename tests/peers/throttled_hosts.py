"""Hosts with throttled flows and greedy consumers, on a network that may lose messages. Time is the test's."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from types import SimpleNamespace
from typing import Any

from foqs.api.peer_methods import PeerMethods
from foqs.config.schema import QuotasSection
from foqs.counters import Counters
from foqs.engine.state import LoopSlices
from foqs.engine.throttling import Throttling
from foqs.errors import FoqsError, LostReply, Unavailable
from foqs.ids import HASH_SLOTS
from foqs.limits.bucket import TTL_MS
from foqs.peers.coordinator import Found, HashSlotOwner
from foqs.peers.lending import Lending
from foqs.policies.layers import Policies
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Route, make_routing
from tests.support.timers import TestTimers

NS = "shop"
TRIP_MS = 1


class FakeFlow:
    """The items of one tenant and throttle set; `ready` of them are left. `delivered`: when items were delivered;
    `moments`: the moment of the host's throttling then."""

    def __init__(self, host: Host, topic: str, throttles: Sequence[str], ready: int) -> None:
        self.host = host
        self.throttles = tuple(sorted(throttles))
        self.ready = ready
        self.tenant = SimpleNamespace(start=0.0)
        self.topic = (NS, topic)
        self.lanes = [SimpleNamespace(topic=SimpleNamespace(key=self.topic), flow=self)]
        self.rules: Any = None
        self.waits_ms = 0
        self.parked: Any = None
        self.delivered: list[int] = []
        self.moments: list[int] = []

    def wake(self) -> None:
        self.host.awake[self] = None


class Host:
    """`takes[name]` are the times at which items with the key were delivered."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.policies = Policies()
        self.waiting: dict[tuple[str, str], list[Any]] = {}
        self.awake: dict[FakeFlow, None] = {}
        self.flows: list[FakeFlow] = []
        clock = lambda: cluster.now  # noqa: E731
        later = lambda ms, do: cluster.at(cluster.now + ms, self, do)  # noqa: E731
        self.throttling = Throttling(
            self.policies, self.waiting, lambda topic: later(0, self.deliver), self._run, cluster.rng.random,  # type: ignore[arg-type]
            lambda: self.lending.throttles.wanted(), clock,  # noqa: PLW0108
        )  # fmt: skip
        slices = LoopSlices(lambda: None)
        slices.soon = lambda do: later(0, do)  # type: ignore[method-assign]
        state = SimpleNamespace(
            throttling=self.throttling, policies=self.policies, rng=cluster.rng, draining=False, staying={}, now_ms=0,
            shards={}, shards_elsewhere=True, counters=Counters(), slices=slices, wake=lambda: None,
            config=SimpleNamespace(server=SimpleNamespace(id=name), quotas=QuotasSection()),
        )  # fmt: skip
        self.engine: Any = SimpleNamespace(state=state)
        forwarder: Any = SimpleNamespace(routing=lambda: cluster.routing, ask=self._ask, slots=lambda: None)
        owners: Any = SimpleNamespace(
            find=self._find, observe=lambda: None, check=None, keep_confirmed=lambda number: None
        )
        timers = TestTimers(clock, later=later)
        self.lending = Lending(self.engine, forwarder, owners, timers)
        self.coordinator = self.lending.coordinator
        made: Any = PeerMethods
        self.methods = made(None, self.lending, None).handlers()

    def _run(self, work: Any) -> None:
        for _ in work:
            pass

    def _find(self, slot: int, found: Found) -> None:
        shard = self.cluster.shard_of(slot)
        owner, epoch, since_ms = self.cluster.owners[shard]
        if owner is self:
            found(HashSlotOwner(shard, epoch), since_ms + TTL_MS)
        else:
            found(None, 0)

    def _ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Callable[..., None]) -> None:
        self.cluster.send(self, address, method, request, timeout_ms, done)

    # ------------------------------------------------------------------------------------- items and consumers

    def put(self, topic: str, *throttles: str, ready: int = 1_000_000) -> FakeFlow:
        flow = FakeFlow(self, topic, throttles, ready)
        self.flows.append(flow)
        self.waiting[flow.topic] = [SimpleNamespace(wants=[(flow.topic, 100)], most=None)]
        flow.wake()
        self.cluster.at(self.cluster.now, self, self.deliver)
        return flow

    def deliver(self) -> None:
        """Deliver what may be delivered to consumers that take all."""
        while (flow := self._next()) is not None:
            dry = self.throttling.take(flow, None)  # type: ignore[arg-type]
            if dry is not None:
                del self.awake[flow]
                self.throttling.park(flow, dry, 100)  # type: ignore[arg-type]
                continue
            flow.tenant.start += 1
            flow.ready -= 1
            flow.delivered.append(self.cluster.now)
            flow.moments.append(self.throttling.moment)
            if len(flow.delivered) % 50 == 0:  # other flows and messages get their turn
                self.cluster.at(self.cluster.now + 1, self, self.deliver)
                return

    def give_back(self, flow: FakeFlow, at: int) -> None:
        """An item that was delivered to a consumer did not reach it."""
        del flow.delivered[at]
        flow.ready += 1
        flow.rules.owner.give_back(flow.rules, flow.moments.pop(at))

    def _next(self) -> FakeFlow | None:
        """Return the first of the flows that have had the fewest items."""
        best: FakeFlow | None = None
        for flow in self.awake:
            if not flow.ready or (best is not None and flow.tenant.start >= best.tenant.start):
                continue
            if flow.topic in self.waiting and not self.policies.paused(flow.topic):
                best = flow
        return best

    @property
    def calls(self) -> int:
        return self.cluster.calls[self.name]


class Cluster:
    """Three shards, whose owners coordinate the keys. `loss`: the share of messages that are lost."""

    def __init__(self, hosts: int, throttles: Mapping[str, str], seed: int = 1, loss: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000_000
        self.loss = loss
        self.calls: dict[str, int] = {}
        self._events: list[tuple[int, int, Host, Callable[[], None]]] = []
        self._seq = 0
        self.dead: set[Host] = set()
        self.version = 0
        self.hosts = [Host(self, f"h{number}") for number in range(hosts)]
        self.owners = {shard: (self.hosts[shard % hosts], 1, 0) for shard in (1, 2, 3)}
        self.entries = dict(throttles)
        self.route()
        self.settle(self.entries)

    def shard_of(self, slot: int) -> int:
        return slot % 3 + 1

    def route(self) -> None:
        routes = {shard: Route(owner.name, epoch, owner.name) for shard, (owner, epoch, _) in self.owners.items()}
        living = {host.name: host.name for host in self.hosts if host not in self.dead}
        slots = Slots(0, tuple(self.shard_of(slot) for slot in range(HASH_SLOTS)), {}, 1)
        self.routing = make_routing(routes, living, [1, 2, 3], slots)

    def settle(self, entries: Mapping[str, str], late_ms: int = 0) -> None:
        """Put settings in force, on each host within `late_ms`."""
        self.version += 1
        self.entries = dict(entries)
        settings = Settings(NS, self.version, dict(entries))
        for host in self.hosts:

            def apply(host: Host = host) -> None:
                if host.policies.versions.get(NS, 0) < settings.version:
                    host.policies.apply(settings)
                    host.throttling.changed(NS)
                    host.deliver()

            if late_ms:
                self.at(self.now + self.rng.randrange(late_ms), host, apply)
            else:
                apply()

    def move(self, shard: int, to: Host) -> None:
        """The shard has another owner, and no host knows before some time."""
        self.owners[shard] = (to, self.owners[shard][1] + 1, self.now)
        self.at(self.now + self.rng.randrange(300), to, self.route)

    def kill(self, host: Host) -> None:
        self.dead.add(host)
        for shard, (owner, _, _) in list(self.owners.items()):
            if owner is host:
                self.move(shard, self.rng.choice([one for one in self.hosts if one not in self.dead]))

    def send(
        self, sender: Host, address: str, method: str, request: Any, timeout_ms: int, done: Callable[..., None]
    ) -> None:
        self.calls[sender.name] = self.calls.get(sender.name, 0) + 1
        (receiver,) = [host for host in self.hosts if host.name == address]
        answers: list[Any] = []

        def end(response: Any, error: FoqsError | None) -> None:
            if not answers:
                answers.append(True)
                done(response, error)

        def back(response: Any, error: FoqsError | None = None) -> bool:
            if not self._lost():
                self.at(self.now + self._trip(), sender, lambda: end(response, error))
            return True

        def arrive() -> None:
            call: Any = SimpleNamespace(request=request, reply=back, fail=lambda error: back(None, error))
            try:
                receiver.methods[method](call)
            except FoqsError as error:
                back(None, error)

        if not self._lost():
            self.at(self.now + self._trip(), receiver, arrive)
        if receiver in self.dead:
            self.at(self.now + 1, sender, lambda: end(None, Unavailable("gone")))
        self.at(self.now + timeout_ms, sender, lambda: end(None, LostReply("lost")))

    def _lost(self) -> bool:
        return self.loss > 0 and self.rng.random() < self.loss

    def _trip(self) -> int:
        return TRIP_MS if not self.loss else self.rng.choice([1, 1, 2, 5, 300, 999])

    def at(self, at_ms: int, host: Host, do: Callable[[], None]) -> None:
        self._seq += 1
        heappush(self._events, (at_ms, self._seq, host, do))

    def run(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now + ms
        while self._events and self._events[0][0] <= end_ms:
            at_ms, _, host, do = heappop(self._events)
            self.now = max(self.now, at_ms)
            if host not in self.dead:
                do()
        self.now = end_ms

    def deliveries(self, key: str) -> list[int]:
        """Return when items with the key were delivered, on all hosts."""
        return sorted(
            at for host in self.hosts for flow in host.flows if key in flow.throttles for at in flow.delivered
        )


def worst(times: Sequence[int], per_second: float) -> float:
    """Return the most deliveries beyond the rate, in any stretch of time."""
    debt, most, last_ms = 0.0, 0.0, 0
    for at_ms in times:
        debt = max(0.0, debt - per_second * (at_ms - last_ms) / 1_000) + 1
        most, last_ms = max(most, debt), at_ms
    return round(most, 6)
