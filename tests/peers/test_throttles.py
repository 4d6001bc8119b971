"""Throttles on real hosts: promise 11 holds over all of them, also when a coordinator dies."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import pytest

from foqs.idl import idl
from foqs.ids import HASH_SLOTS
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Routing, make_routing
from tests.api.wire import spec
from tests.peers.nodes import PATIENCE_S, Cluster, Member

pytestmark = pytest.mark.slow  # a coordinator grants nothing at first

RATE, BURST = 50, 20
SECTIONS: dict[str, Any] = {"host": {"confirm_ms": 1_000}}
ENTRIES = {
    "throttle.api": f'{{"per_second": {RATE}, "burst": {BURST}}}',
    "throttle.other": f'{{"per_second": {RATE}, "burst": {BURST}}}',
}
Three = tuple[Member, Member, Member]


def with_slots(routing: Routing) -> Routing:
    slots = Slots(shards=tuple(1 + slot % 3 for slot in range(HASH_SLOTS)), stamp=1)
    return make_routing(routing.owners, routing.hosts, routing.shards, slots)


@pytest.fixture
def three(cluster: Cluster) -> Three:
    members = tuple(cluster.add(name, number, **SECTIONS) for number, name in enumerate("abc", 1))
    cluster.tell(with_slots(cluster.routing()))
    cluster.until(
        lambda: all(member.engine.state.shards[n].queue.keys.held.bits for n, member in enumerate(members, 1)), "slots"
    )
    for member in members:
        cluster.on_loop(lambda member=member: member.settings.apply(Settings("n", 1, ENTRIES)))  # type: ignore[misc]
    return members  # type: ignore[return-value]


class Consumers:
    """Two of each host; `times` are those of the replies."""

    def __init__(self, cluster: Cluster, members: Three) -> None:
        self.times: list[float] = []
        self.ids: list[int] = []
        self._lock = Lock()
        self._wires = [cluster.wire(member) for member in members for _ in range(2)]

    def until(self, items: int) -> None:
        deadline = time.monotonic() + PATIENCE_S

        def work(wire: Any) -> None:
            while len(self.ids) < items:
                assert time.monotonic() < deadline, f"{len(self.ids)} were delivered"
                reply = wire.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 10)], wait_ms=200)
                with self._lock:
                    self.times += [time.monotonic()] * len(reply.items or ())
                    self.ids += [item.id for item in reply.items or ()]

        with ThreadPoolExecutor(len(self._wires)) as threads:
            list(threads.map(work, self._wires))


def put(cluster: Cluster, members: Three, items: int, *keys: str) -> None:
    for member in members:
        outcomes = cluster.wire(member).outcomes(*[spec("t", b"x", throttle_keys=list(keys))] * items, ns="n")
        assert all(outcome.error is None for outcome in outcomes)


def test_all_hosts_together_deliver_what_the_rate_allows(cluster: Cluster, three: Three) -> None:
    """The replies may be late, so the count begins before the first one was asked for."""
    put(cluster, three, 100, "api", "other")
    consumers, begun = Consumers(cluster, three), time.monotonic()
    consumers.until(200)
    took_s = time.monotonic() - begun
    assert len(consumers.ids) <= BURST + RATE * took_s
    assert len(set(consumers.ids)) == len(consumers.ids)
    assert took_s < 20
    put(cluster, three, 10)
    consumers.until(len(consumers.ids) + 30)
