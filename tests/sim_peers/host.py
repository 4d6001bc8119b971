"""One simulated host: the production engine, handlers and traffic between hosts, on stores in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from foqs.api.handlers import Handlers
from foqs.api.host import Host as ApiHost
from foqs.bounds import Bounded, Budget, Limits, Quota
from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.config.schema import ServerSection
from foqs.engine import dequeue, throttling
from foqs.engine.calls import DequeueCall, EnqueueCall
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.state import Callbacks, State
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey, fairness_of
from foqs.hooks.topic_hooks import TopicHooks
from foqs.item import Item
from foqs.opened import Opened
from foqs.peers.coordinator import HashSlotOwners
from foqs.peers.forwarder import Forwarder
from foqs.peers.lending import Lending
from foqs.peers.quota_client import QuotaClient, _stored_nothing
from foqs.peers.ready_topics import ReadyPublisher
from foqs.peers.settings_sync import HostSettings
from foqs.peers.tenant_shares import TenantShares
from foqs.server.shard_thread import run
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing
from tests.sim.loop import HostLoop
from tests.sim.memory_store import MemoryStore
from tests.sim_peers.exchange import Call
from tests.sim_peers.settings import HostStore
from tests.support.scripts import Functions

if TYPE_CHECKING:
    from tests.sim_peers.simulation import Simulation

_BUDGET_BYTES = 10_000_000
_LOST_MS = 100
_IDLE_CHECK_MS = 10


class _State(State):
    host: Host


def _watched_fill(state: State, call: DequeueCall, wants: Sequence[tuple[TopicKey, int]], now_ms: int) -> None:
    _fill(state, call, wants, now_ms)
    _leased(state, call, now_ms)


def _watched_fill_waiting(state: State, calls: Sequence[DequeueCall], key: TopicKey, now_ms: int) -> int:
    served = _fill_waiting(state, calls, key, now_ms)
    for call in calls[:served]:
        _leased(state, call, now_ms)
    return served


def _leased(state: State, call: DequeueCall, now_ms: int) -> None:
    if isinstance(state, _State):
        for shard, item, lease in call.found:
            if state.host.current(shard):
                state.host.sim.checks.leased(item, shard.number, now_ms)
            state.host.sim.throttles.leased(state.host, item, lease)
            state.host.sim.pauses.check(state.host.name, *item.lane.topic.key, fairness_of(item.lane.key), "leases")


def _watched_give_back(item: Item) -> None:
    flow = item.lane.flow
    host = None if flow is None or flow.rules is None else _HOSTS.get(id(flow.rules.owner))
    if host is not None:
        host.sim.throttles.given_back(item)
    _give_back(item)


_HOSTS: WeakValueDictionary[int, Host] = WeakValueDictionary()
"""By the id of the throttling that a host has."""
_fill, _fill_waiting, _give_back = dequeue.fill, dequeue.fill_waiting, throttling.give_back
dequeue.fill, dequeue.fill_waiting, throttling.give_back = _watched_fill, _watched_fill_waiting, _watched_give_back


class _Quotas(QuotaClient):
    def __init__(self, host: Host, lending: Lending) -> None:
        holder = lending.quotas._holder
        super().__init__(host.engine, host.forwarder, lending.coordinator, lending.quota_unit, holder, host)
        self.host = host

    def charge(
        self, key: Bounded, quota: Quota, indices: Sequence[int], keep: Callable[[int], object], call: EnqueueCall,
        deadline_ms: int, store: Callable[[], None],
    ) -> None:  # fmt: skip
        if key[1]:
            super().charge(key, quota, indices, keep, call, deadline_ms, store)
            return
        host, admitted = self.host, list(indices)

        def kept(count: int) -> None:
            del admitted[count:]
            keep(count)

        def stored() -> None:
            spent, settled = host.sim.checks.spend(len(admitted)), call.reply

            def reply(outcomes: list[int | FoqsError]) -> None:
                spent.tokens -= sum(_stored_nothing(outcomes[at]) for at in admitted)
                settled(outcomes)

            call.reply = reply
            store()

        super().charge(key, quota, indices, kept, call, deadline_ms, stored)


class _NoLog:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


class Host(HostLoop):
    def __init__(self, sim: Simulation, name: str) -> None:
        super().__init__(sim)
        self.sim, self.name, self.address = sim, name, f"{name}:1"
        self.alive = True
        self.frozen_until = 0
        self._ahead_ms = ord(name) * (sim.seed % 10_000)  # no two monotonic clocks say the same
        self.clients: dict[Any, None] = {}  # calls of clients that are not answered
        self.routing = Routing()
        self.assigned: Mapping[int, str] = {}
        self._stores: dict[int, MemoryStore] = {}
        self._early: dict[int, ShardBatch] = {}  # by shard: the last batch that was carried out when it was sent
        profile, now_ms = sim.profile, self.now_ms
        config = profile.config.model_copy(update={"server": ServerSection.model_construct(id=name)})
        news = ReadyPublisher(self._ready, now_ms(), self.soon, self.later)
        callbacks = Callbacks(
            wake=self.wake,
            alarm=self.alarm,
            served=self._served,
            became_ready=news.became_ready,
            ready_again=news.again,
            left_waiting=self._left_waiting,
            tell_keys=lambda keys, told: self.forwarder.key_changes.tell(keys, told),  # noqa: PLW0108
            tokens_wanted=lambda: self.lending.throttles.wanted(),  # noqa: PLW0108 - it is made below
            monotonic_ms=self.monotonic_ms,
        )
        rng = random.Random(sim.rng.getrandbits(64))
        engine_state = _State(config, Budget(_BUDGET_BYTES), rng, callbacks, shards_elsewhere=True)
        engine_state.host = self
        self.engine = Engine(engine_state, self._submit)
        self.forwarder = Forwarder(
            self.engine,
            lambda: self.routing,
            lambda *args: sim.exchange.ask(self, *args),
            lambda address: sim.exchange.cut(self, address),
            self,
            _NoLog(),  # type: ignore[arg-type]
            handover_ms=profile.handover_ms,
            slots_arrived=lambda moved: self.later(5, lambda: sim.control.arrived(self.routing.slots, moved)),
            share_slots=lambda: None,
        )
        owners = HashSlotOwners(self.engine, self, self.forwarder.slot_moves.adopt)
        self.lending = Lending(self.engine, self.forwarder, owners, self)
        self.lending.quotas = _Quotas(self, self.lending)
        self.lending.coordinator.watch()
        _HOSTS[id(self.engine.state.throttling)] = self
        shares = TenantShares(self.engine, self.forwarder, self)
        shares.begin()
        limits = Limits(**config.limits.model_dump())
        self.settings = HostSettings(self.engine)
        host = ApiHost(self.engine, limits, now_ms, lambda: self.address, self.forwarder)
        self._handlers = Handlers(
            host, news, self.lending, shares, self.settings, HostStore(sim.settings, self),
            TopicHooks(
                engine_state.policies, Functions(self.soon), now_ms, self.monotonic_ms, lambda: 1_000, lambda *_: None
            ),
            lambda: False, self,
        )  # fmt: skip
        self._methods = self._handlers.handlers()

    def now_ms(self) -> int:
        return self.sim.now_ms

    clock_ms = now_ms

    def monotonic_ms(self) -> int:
        return self.sim.time + self._ahead_ms

    def _ready(self, key: TopicKey) -> int:
        return self.engine.ready(key)

    def _served(self) -> None:
        self._handlers.routing_changed()

    def _left_waiting(self, key: TopicKey) -> None:
        self.forwarder.fetch(key)

    def receive(self, call: Call) -> None:
        self.awake(lambda: self._receive(call))

    def _receive(self, call: Call) -> None:
        try:
            self._methods[call.method](call)  # type: ignore[arg-type]
        except FoqsError as error:
            call.raised(None, error)

    def learn(self, routing: Routing, assigned: Mapping[int, str]) -> None:
        self.awake(lambda: self._learn(routing, assigned))

    def _learn(self, routing: Routing, assigned: Mapping[int, str]) -> None:
        if routing.version > self.routing.version:
            self.routing, self.assigned = replace(routing, slots=self.routing.slots), assigned
            self._handlers.routing_changed()
            self.act()

    def learn_slots(self, slots: Slots) -> None:
        self.awake(lambda: self._learn_slots(slots))

    def _learn_slots(self, slots: Slots) -> None:
        if slots.version > self.routing.slots.version:
            self.routing = replace(self.routing, slots=slots)
            self._handlers.routing_changed()

    def die(self) -> None:
        """Lose all memory; a batch that was sent to a store may still be carried out."""
        self.alive = False
        for shard in self.engine.state.serving:
            if self._is_unrun(shard) and self.sim.rng.random() < 0.5:
                run(self._stores[shard.number], shard.queue.in_flight)  # type: ignore[arg-type]
        for store in self._stores.values():
            store.cut()
        self.sim.exchange.died(self)

    def _is_unrun(self, shard: Shard) -> bool:
        """Whether a batch is in flight that its database has not carried out yet."""
        return shard.queue.in_flight is not None and self._early.get(shard.number) is not shard.queue.in_flight

    def current(self, shard: Shard) -> bool:
        return shard.owner.epoch == self.sim.dbs[shard.number].epoch

    def serves(self, number: int, epoch: int) -> bool:
        shard = self.engine.state.shards.get(number)
        return (
            self.alive and shard is not None and shard.owner.state is ShardState.SERVING and shard.owner.epoch == epoch
        )

    # ------------------------------------------------------------------------------------- the event loop

    def freeze(self, until: int) -> None:
        """A freeze is never cut short: work of the host waits for its end already."""
        self.frozen_until = max(self.frozen_until, until)

    def soon(self, do: Callable[[], None]) -> None:
        self.later(0, do)

    def later(self, after_ms: int, do: Callable[[], object]) -> None:
        self.sim.soon(after_ms, lambda: self.awake(do))

    def awake(self, do: Callable[[], object]) -> None:
        """Do it now, or when the host is not frozen any more; never, if it dies."""
        rest_ms = self.frozen_until - self.sim.time
        if rest_ms > 0:
            self.later(rest_ms, do)
        elif self.alive:
            do()

    # ------------------------------------------------------------------------------------- shards

    def act(self) -> None:
        """Take the shards that are assigned to this host, and release the rest."""
        for number, name in self.assigned.items():
            shard = self.engine.state.shards.get(number)
            if name == self.name and shard is None and self.sim.control.may_open(self, number):
                shard = self.engine.add(number)
                shard.owner.to(ShardState.OPENING)
                self._open(shard)
            elif name != self.name and shard is not None and shard.owner.state is ShardState.SERVING:
                self.engine.retire(shard)
                self._release(shard, self.sim.time + self.sim.profile.handover_ms)

    def _open(self, shard: Shard) -> None:
        begun_ms = self.now_ms()

        def take() -> None:
            store = self._stores[shard.number] = MemoryStore(self.sim.dbs[shard.number])
            opened = store.open(self.name, take_over=True)
            self.sim.checks.owner_changed(shard.number)
            self.later(self.sim.rng.choice([0, 5, 50]), lambda: self._opened(shard, opened, begun_ms))

        self.later(self.sim.rng.randint(0, 20), take)

    def _opened(self, shard: Shard, opened: Opened, begun_ms: int) -> None:
        self.engine.opened(shard, opened, 1 << 20, begun_ms, self.now_ms())
        self.forwarder.slot_moves.changed()
        self.arm()
        self.sim.control.announce(self, shard.number, shard.owner.epoch)
        self.act()

    def _release(self, shard: Shard, deadline: int) -> None:
        if shard.owner.state is not ShardState.DRAINING:
            return  # lost before it was released
        if not shard.queue.idle and self.sim.time < deadline:
            self.later(_IDLE_CHECK_MS, lambda: self._release(shard, deadline))
            return
        store, flight = self._stores[shard.number], shard.queue.in_flight if self._is_unrun(shard) else None
        clean = shard.queue.idle and not shard.owner.in_takeover_grace(self.now_ms())
        self.engine.drained(shard, self.now_ms())
        if flight is not None:
            run(store, flight)  # a store is closed after the batch that was sent to it
        store.close(clean=clean)
        self._forget(shard)

    def _forget(self, shard: Shard) -> None:
        del self.engine.state.shards[shard.number]
        self.sim.control.withdraw(self, shard.number, shard.owner.epoch)
        self.act()

    def _submit(self, shard: Shard, batch: ShardBatch) -> None:
        trip_ms = self.sim.rng.randint(0, 6)
        early = run(self._stores[shard.number], batch) if self.sim.rng.random() < 0.2 else None
        if early is not None:
            self._early[shard.number] = batch
        self.later(trip_ms, lambda: self._finished(shard, batch, early, trip_ms))

    def _finished(self, shard: Shard, batch: ShardBatch, early: BatchResult | None, trip_ms: int) -> None:
        if shard.queue.in_flight is not batch:
            return  # the shard was released before
        result = early if early is not None else run(self._stores[shard.number], batch)
        result.latency_ms = float(trip_ms)
        self.engine.finished(shard, batch, result, self.now_ms())
        if shard.owner.state is ShardState.CLOSED:
            self._stores[shard.number].close()
            self.later(_LOST_MS, lambda: self._forget(shard))
