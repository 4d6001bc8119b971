"""The fake keeps the contract that simulations rely on, and is as fast as they need it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from foqs.shardmgr.facts import HostFact, OwnerFact, Session, ShardFact
from foqs.zk.protocol import ZkConflict, ZkError, ZkUnknown
from tests.kernel.run import Clock
from tests.zk.contract import Client, FactStoreContract, Rig, host
from tests.zk.ensemble import Ensemble
from tests.zk.loss_contract import LossContract, LossRig
from tests.zk.memory import MemoryFactStore


class MemoryRig:
    def __init__(self, seed: int) -> None:
        self.clock = Clock()
        self.ensemble = Ensemble(random.Random(seed), self.clock.soon, clock_ms=lambda: self.clock.now_ms)

    def store(self, session_ms: int = 60_000) -> MemoryFactStore:
        return MemoryFactStore(self.ensemble, session_ms)

    def until(self, condition: Callable[[], object]) -> None:
        assert self.clock.until(self.clock.now_ms + 120_000, lambda: bool(condition()))

    def cut(self, store: MemoryFactStore) -> None:
        store.cut()

    def mend(self, store: MemoryFactStore) -> None:
        store.mend()

    def expire(self, store: MemoryFactStore) -> None:
        store.expire()

    def lose(self) -> None:
        self.ensemble.lose()

    def copy(self) -> Callable[[], None]:
        data = self.ensemble.copy()
        return lambda: self.ensemble.put_back(data)

    def stands(self, store: MemoryFactStore, host: str) -> bool:
        return any(id_ == host for _, id_ in self.ensemble.candidates.values())


class TestMemory(FactStoreContract):
    @pytest.fixture(params=range(5))
    def rig(self, request: pytest.FixtureRequest) -> Rig:
        return MemoryRig(request.param)


def test_servers_that_are_gone_for_long_end_no_session() -> None:
    rig = MemoryRig(1)
    clients = [Client(rig, session_ms=10_000) for _ in range(3)]
    for number, client in enumerate(clients):
        client.join(host(f"h{number}"))
    rig.ensemble.stop()
    clients[0].store.crash()
    rig.clock.until(rig.clock.now_ms + 300_000)
    assert set(rig.ensemble.hosts) == {"h0", "h1", "h2"}
    rig.ensemble.go_on()
    clients[1].sees(lambda facts: set(facts.hosts) == {"h1", "h2"} and facts.controller == "h1")
    assert clients[1].sessions == [Session.CONNECTED, Session.SUSPENDED, Session.CONNECTED]
    assert clients[0].sessions == [Session.CONNECTED, Session.SUSPENDED]


def test_a_cut_leaves_outcomes_unknown_and_either_way() -> None:
    seen = set()
    for seed in range(40):
        rig = MemoryRig(seed)
        a = Client(rig)
        outcomes: list[ZkError | None] = []
        a.store.put_shard(ShardFact(1, "x"), new=True, done=outcomes.append)
        rig.clock.until(rig.clock.now_ms + rig.ensemble.delay_ms / 4)
        a.store.suspend()
        a.store.reconnect()
        rig.until(lambda: outcomes and len(a.told) > 1)  # noqa: B023
        a.sees(lambda facts: set(facts.shards) == set(rig.ensemble.shards))  # noqa: B023
        seen.add((type(outcomes[0]), bool(a.facts.shards)))
    assert {(ZkUnknown, True), (ZkUnknown, False)} <= seen


@pytest.mark.parametrize("seed", range(5))
def test_all_stores_end_with_the_same_facts(seed: int) -> None:
    rig, rng = MemoryRig(seed), random.Random(seed)
    clients = [Client(rig) for _ in range(6)]
    for number, client in enumerate(clients):
        client.store.join(HostFact(f"h{number}", f"h{number}:1", "1"))
    for step in range(400):
        number = rng.randrange(6)
        store = clients[number].store
        fault = rng.random()
        if fault < 0.1:
            store.suspend()
            rig.clock.soon(rng.random() * 20_000, store.reconnect)
        elif fault < 0.15:
            store.expire()
        elif fault < 0.6:
            owner = OwnerFact(rng.randrange(1, 9), f"h{number}", "x", rng.randrange(step + 1))
            store.own(owner, lambda error: None)
        else:
            version = clients[number].facts.assignment.version
            store.assign({1: f"h{number}"}, version, lambda error: error is None or isinstance(error, ZkConflict))
        rig.clock.until(rig.clock.now_ms + rng.random() * 30)
    for client in clients:
        client.store.reconnect()
    truth = rig.ensemble
    rig.clock.until(rig.clock.now_ms + 120_000)
    for client in clients:
        assert client.facts.owners == {shard: fact for shard, (_, fact) in truth.owners.items()}
        assert set(client.facts.hosts) == {f"h{n}" for n in range(6)}
        assert client.facts.assignment == truth.assignment
        assert client.facts.controller == truth.value("controller")


class TestLoss(LossContract):
    @pytest.fixture(params=range(5))
    def loss_rig(self, request: pytest.FixtureRequest) -> LossRig:
        return MemoryRig(request.param)
