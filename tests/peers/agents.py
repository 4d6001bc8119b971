"""The agent of one host over fakes: a test says the facts, and reads each order to shards and each write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from foqs.peers.membership_agent import MembershipAgent
from foqs.shardmgr.controller import Write
from foqs.shardmgr.facts import Facts, HostFact, OwnerFact, Session, ShardFact, Slots
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import Held
from tests.shardmgr.clusters import SETTINGS, cluster, host

HANDOVER_MS = 5_000
CLOCK_MS = 1_000_000


class AgentRig:
    """The agent of host "a". It is the writer and the shards, and notes each order and write."""

    def __init__(self, *, joined: bool = True) -> None:
        self.now_ms = 0
        self.shards: dict[int, Held] = {}
        self.unreachable: list[int] = []
        self.closed: list[int] = []
        self.silent: dict[int, int] = {}
        self.orders: list[tuple[object, ...]] = []
        self.sealed: frozenset[int] = frozenset()
        self.slots: list[tuple[Slots, Callable[[], None]]] = []
        self.probes: list[Callable[[bool], None]] = []
        self.agent = MembershipAgent("a", SETTINGS, HANDOVER_MS, self, self, lambda: CLOCK_MS)
        if joined:
            self.agent.join(host("a"))
            self.agent.session(Session.CONNECTED)
        self.orders.clear()

    # ---------------------------------------------------------------------------------- its shards

    def held(self) -> Mapping[int, Held]:
        return self.shards

    def take(self, fact: ShardFact, epoch_above: int) -> None:
        self.orders.append(("take", fact.id, epoch_above))

    def release(self, number: int) -> None:
        self.orders.append(("release", number))

    def recheck_owner(self, number: int) -> None:
        self.orders.append(("recheck", number))

    def seal(self, sealed: frozenset[int]) -> None:
        self.sealed = sealed

    def down(self) -> Collection[int]:
        return self.unreachable

    def read_only(self) -> Collection[int]:
        return self.closed

    def silent_ms(self) -> Mapping[int, int]:
        return self.silent

    def probe(self, fact: ShardFact, done: Callable[[bool], None]) -> None:
        self.orders.append(("probe", fact.id))
        self.probes.append(done)

    # ---------------------------------------------------------------------------------- its writes

    def join(self, fact: HostFact) -> None:
        self.orders.append(("join", fact))

    def own(self, owner: OwnerFact) -> None:
        self.orders.append(("own", owner.shard, owner.epoch, owner.address))

    def disown(self, shard: int, epoch: int) -> None:
        self.orders.append(("disown", shard, epoch))

    def assign(self, write: Write) -> None:
        self.orders.append(("assign", dict(write.hosts), write.version))

    def share_slots(self, wanted: Slots, done: Callable[[], None]) -> None:
        self.slots.append((wanted, done))

    # ---------------------------------------------------------------------------------- what a test does

    def learn(self, facts: Facts) -> str | None:
        return self.agent.changed(facts)

    def act(self, by_ms: int = 0) -> list[tuple[object, ...]]:
        """The orders and writes that follow now."""
        self.now_ms += by_ms
        self.orders.clear()
        self.agent.act(self.now_ms, {})
        return list(self.orders)

    def serve(self, *numbers: int, epoch: int = 1) -> None:
        self.shards |= {number: Held("sqlite://", ShardState.SERVING, epoch) for number in numbers}


def facts_of(assigned: Mapping[int, str], *hosts: str, controller: str = "b") -> Facts:
    made = cluster(len(assigned), *(hosts or ("a", "b")), assigned=dict(assigned))
    return replace(made, controller=controller)
