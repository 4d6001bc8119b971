"""One of two database servers freezes (SIGSTOP) under a cluster with work: operators see it at once, no shard moves,
and no enqueue waits until the server thaws."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foqs.client.items import ItemSpec
from foqs.errors import OutcomeUnknown
from foqs_lab.cluster import LocalCluster, Settings, local_cluster, make_shards
from foqs_lab.crash.clients import NAMESPACE, Wire
from tests.admin.scraping import get
from tests.api.hosts import foqs, until
from tests.conftest import NewServer

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

HOSTS = ("a", "b", "c")
EACH = 4
"""Shards of a host. Those of "a" are on the server that freezes, numbers 1 to EACH."""
FROZEN = set(range(1, EACH + 1))
BALANCE_MS = 2_000
EVERY_S = 0.1
KEYED, PLAIN = 24, 2
"""Items of a request. Those with a key go to the shard of the key, so that all shards have the same load."""
SEEN_S = 2.0
ANSWERED_S = 3.0
BUSY_S = 1.0
"""Added to both for the stalls of a machine that runs other tests, too."""
TIMEOUT_MS = 60_000
SETTINGS: Settings = {"zookeeper": {"session_timeout_ms": 10_000, "settle_ms": 300, "balance_every_ms": BALANCE_MS}}


class Producer(threading.Thread):
    """Enqueues items at one host, and keeps the outcomes."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.stored: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.longest_s = 0.0
        self._port = cluster.hosts[name].port

    def run(self) -> None:
        wire, number = Wire(self._port, NAMESPACE, timeout_ms=TIMEOUT_MS), 0
        next_s = time.monotonic()
        while not self.stopping.wait(max(0.0, next_s - time.monotonic())):
            number += 1
            next_s = max(next_s + EVERY_S, time.monotonic() - 0.5)
            names = [f"{self.name}:{number}:{n}" for n in range(KEYED + PLAIN)]
            payloads = [name.encode() for name in names]
            keys = [*names[:KEYED], *[None] * PLAIN]
            begun = time.monotonic()
            outcomes = wire.enqueue(
                [ItemSpec("t", name.encode(), dedup_key=key) for name, key in zip(names, keys, strict=True)]
            )
            took_s = time.monotonic() - begun
            self.longest_s = max(self.longest_s, took_s)
            for payload, outcome in zip(payloads, outcomes, strict=True):
                if isinstance(outcome, int):
                    self.stored.add(payload)
                elif isinstance(outcome, OutcomeUnknown):
                    self.unknown.add(payload)
        wire.close()


@contextmanager
def producing(cluster: LocalCluster) -> Iterator[list[Producer]]:
    producers = [Producer(cluster, name) for name in HOSTS]
    for producer in producers:
        producer.start()
    try:
        yield producers
    finally:
        for producer in producers:
            producer.stopping.set()
        for producer in producers:
            producer.join()


def readyz(cluster: LocalCluster, name: str) -> tuple[int, list[str]]:
    status, text = get(("127.0.0.1", cluster.hosts[name].admin_port), "/readyz")
    return status, list(json.loads(text)["notes"])


def states(cluster: LocalCluster) -> dict[int, str]:
    ran = foqs("cluster", "status", "--json", "--config", str(cluster.config))
    assert ran.returncode == 0, ran.stderr
    return {row["id"]: row["state"] for row in json.loads(ran.stdout)["shards"]}


def seen_s(condition: Callable[[], bool], what: str) -> float:
    begun = time.monotonic()
    until(condition, what)
    return time.monotonic() - begun


def quiet(cluster: LocalCluster) -> None:
    """Return when no shard was moved for three rounds of balancing."""
    versions: list[tuple[float, int]] = []

    def same() -> bool:
        version, now = cluster.registry.facts.assignment.version, time.monotonic()
        if not versions or versions[-1][1] != version:
            versions.append((now, version))
        return now - versions[-1][0] > 3 * BALANCE_MS / 1_000

    until(same, lambda: f"an end of moves: {versions}")


@contextmanager
def cluster_of(new_server: NewServer, folder: Path) -> Iterator[tuple[LocalCluster, object]]:
    cold, good = new_server("mariadb"), new_server("mariadb")
    shards = make_shards([cold, good, good], EACH, "frozen")
    with local_cluster(shards, folder, SETTINGS) as cluster:
        cluster.start(*HOSTS)
        cluster.place({shard.number: HOSTS[(shard.number - 1) // EACH] for shard in shards})
        try:
            yield cluster, cold
        finally:
            cold.resume()


NOTES = [f"shard {number}: its database does not answer" for number in sorted(FROZEN)]


def test_a_frozen_database_of_idle_shards_is_seen_at_once(new_server: NewServer, tmp_path: Path) -> None:
    """No request asks it for anything: the hosts find out by themselves."""
    with cluster_of(new_server, tmp_path) as (cluster, cold):
        cold.pause()  # type: ignore[attr-defined]
        begun = time.monotonic()
        found: dict[str, float] = {}

        def both() -> bool:
            if "readyz" not in found and readyz(cluster, "a") == (200, NOTES):
                found["readyz"] = time.monotonic() - begun
            fact = cluster.registry.facts.hosts["a"]
            if "facts" not in found and fact.hanging | fact.unreachable == FROZEN:
                found["facts"] = time.monotonic() - begun
            return len(found) == 2

        until(both, lambda: f"the freeze to be seen: {found}")
        print(f"seen after {found}")
        assert max(found.values()) < SEEN_S + BUSY_S
        assert {number for number, state in states(cluster).items() if state == "unreachable"} == FROZEN
        time.sleep(12)  # nothing happens in it: the hosts give their calls up, and the note stays
        assert readyz(cluster, "a") == (200, NOTES)
        assert {number for number, state in states(cluster).items() if state == "unreachable"} == FROZEN
        cluster.hosts["a"].kill()
        cluster.start("a")  # its shards cannot connect
        until(lambda: readyz(cluster, "a") == (200, NOTES), "the host that was started in the freeze")
        cold.resume()  # type: ignore[attr-defined]
        until(lambda: readyz(cluster, "a") == (200, []), "the host after the thaw")
        until(lambda: set(states(cluster).values()) == {"served"}, "the end of the report, 2 s after the last call")


def test_a_freeze_moves_no_shard_and_holds_up_no_enqueue(new_server: NewServer, tmp_path: Path) -> None:
    with cluster_of(new_server, tmp_path) as (cluster, cold):
        with producing(cluster) as producers:
            quiet(cluster)  # the controller learns the loads, and may move shards
            before = cluster.registry.facts.assignment
            cold.pause()  # type: ignore[attr-defined]
            for producer in producers:
                producer.longest_s = 0.0  # before, requests waited for the slots of their keys
            time.sleep(8 * BALANCE_MS / 1_000)  # nothing moves in it
            after = cluster.registry.facts.assignment
            longest_s = max(producer.longest_s for producer in producers)
            unknown = set().union(*(producer.unknown for producer in producers))
            cold.resume()  # type: ignore[attr-defined]
            moved = {n: host for n, host in after.hosts.items() if before.hosts[n] != host}
            print(f"moved: {moved}; the longest enqueue took {longest_s:.2f} s; {len(unknown)} outcomes unknown")
            assert FROZEN.isdisjoint(moved)
            assert "a" not in moved.values(), "no shard moves onto the host of the frozen ones"
            assert unknown, "an enqueue was in flight"
            assert moved or longest_s < ANSWERED_S + BUSY_S, "an enqueue may wait for a shard that moves"
            cluster.settled(*HOSTS)
        stored = set().union(*(producer.stored for producer in producers))
        unknown = set().union(*(producer.unknown for producer in producers))
        found = drained(cluster)
        assert stored <= found.keys() <= stored | unknown
        assert set(found.values()) == {1}
        assert [line for host in cluster.hosts.values() for line in host.faults()] == []


def drained(cluster: LocalCluster) -> Counter[bytes]:
    """Take and ack all items, at all hosts. Return how often each payload was delivered."""
    found: Counter[bytes] = Counter()
    wires = [Wire(cluster.hosts[name].port, NAMESPACE, timeout_ms=20_000) for name in HOSTS]
    empty = 0
    while empty < 3:
        taken = 0
        for wire in wires:
            items = wire.dequeue(["t"], 1_000, wait_ms=200, lease_ms=120_000)
            assert all(error is None for error in wire.ack(items))
            found.update(item.payload for item in items)
            taken += len(items)
        empty = 0 if taken else empty + 1
    for wire in wires:
        wire.close()
    return found
