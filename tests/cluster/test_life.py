"""Hosts that share shards, as processes, on a real ZooKeeper and real databases."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import pytest

from foqs.client.items import Item, ItemSpec, Lease
from foqs.ids import shard_of
from foqs.shardmgr.facts import Facts, ShardFact, ShardUse
from foqs_lab.cluster import LocalCluster, Shard
from foqs_lab.crash.checker import check
from foqs_lab.crash.clients import NAMESPACE, Crew, Load, Wire, drain, put, work
from foqs_lab.crash.history import Answer, Crash, Dequeue, Event, Log, pack, read
from tests.admin.scraping import missing
from tests.api.hosts import HostProcess, foqs, until
from tests.cluster.conftest import MISSED, ON_EACH_KIND, NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

CREW = Load(producers=3, consumers=3)
PATIENT = Load(producers=3, consumers=3, timeout_ms=30_000)
"""No request times out because the machine is slow."""


@contextmanager
def wires(cluster: LocalCluster) -> Iterator[dict[str, Wire]]:
    opened = {name: Wire(host.port, NAMESPACE, timeout_ms=20_000) for name, host in cluster.hosts.items()}
    yield opened
    for wire in opened.values():
        wire.close()


def ended_well(cluster: LocalCluster, folder: Path) -> list[Event]:
    """Ack all remaining items, check that all databases are empty and no promise was broken, and return the history."""
    port = next(host.port for host in cluster.hosts.values() if host.alive)
    assert drain(port, folder, lambda: not rows(cluster), 120)
    events = read(folder)
    assert check(events) == []
    assert [fault for host in cluster.hosts.values() for fault in host.faults()] == []
    return events


def rows(cluster: LocalCluster) -> int:
    return sum(shard.rows() for shard in cluster.shards)


def fill(cluster: LocalCluster, folder: Path, *names: str) -> None:
    """Items on shards of these hosts, for consumers of other hosts to come for."""
    for name in names:
        log = Log(folder / f"fill-{name}-{monotonic_ns()}.jsonl")
        wire = Wire(cluster.hosts[name].port, NAMESPACE, timeout_ms=20_000)
        for batch in range(40):
            keys = [f"{name}:{monotonic_ns()}:{batch}:{n}" for n in range(20)]
            put(wire, log, keys, [ItemSpec("a", pack(key, 100)) for key in keys])
        wire.close()
        log.close()


def served_by(cluster: LocalCluster, name: str) -> list[Shard]:
    return [shard for shard in cluster.shards if shard.number in owned_by(cluster.registry.facts, name)]


def untold(events: list[Event]) -> list[Event]:
    """Return the requests that failed as a whole, or whose outcome is unknown."""
    return [
        event
        for event in events
        if (isinstance(event, Dequeue) and not event.answered)
        or getattr(event, "answer", None) in (Answer.REFUSED, Answer.UNKNOWN)
    ]


def owned_by(facts: Facts, name: str) -> list[int]:
    return [number for number, owner in facts.owners.items() if owner.host == name]


def test_any_host_takes_any_request(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", shards=3)
    assert {owner.host for owner in cluster.registry.facts.owners.values()} == {"a", "b", "c"}
    with wires(cluster) as by:
        for wire in by.values():
            stored = wire.enqueue([ItemSpec("t", b"x", delay_ms=0), ItemSpec("t", b"y")])
            assert len({shard_of(item_id) for item_id in stored}) == 1
        leased = [item for wire in by.values() for item in wire.dequeue(["t"], 10, wait_ms=0, lease_ms=300_000)]
        assert len(leased) == 6
        leases = [Lease(item.id, item.lease) for item in leased]
        assert by["b"].extend(leases, 300_000) == [None] * 6
        assert by["c"].nack(leases[:3], delay_ms=0) == [None] * 3
        assert by["a"].ack(leases[3:]) == [None] * 3
        assert by["b"].ack(leases[:1])[0] is not None, "its lease has ended, on whichever host it is"
    assert rows(cluster) == 3 * 2


def test_hosts_that_stop_in_turn_cost_no_request(new_cluster: NewCluster, tmp_path: Path) -> None:
    """A rolling restart: each host stops and starts again while clients of another host are at work."""
    cluster = new_cluster("a", "b", "c")
    with Crew([cluster.hosts["c"].port], tmp_path, "rolling", PATIENT) as crew:
        for name in ("a", "b", "a"):
            fill(cluster, tmp_path, *(set(cluster.hosts) - {"c"}))
            cluster.hosts[name].stop()
            cluster.settled()
            work(crew, served_by(cluster, "c"), 50)
            cluster.start(name)
            cluster.settled()
    assert untold(ended_well(cluster, tmp_path)) == []


@ON_EACH_KIND
def test_a_killed_host_is_taken_over_from(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster("a", "b", settings=MISSED)
    log = Log(tmp_path / "crashes.jsonl")
    with Crew([cluster.hosts["b"].port], tmp_path, "killed", CREW) as crew:
        fill(cluster, tmp_path, "a")
        work(crew, served_by(cluster, "b"), 50)
        began = monotonic_ns()
        cluster.hosts["a"].kill()
        assert set(owned_by(cluster.settled("b"), "b")) == {1, 2, 3, 4}
        work(crew, cluster.shards, 50)
        log.add([Crash(began, monotonic_ns(), "host")])
    log.close()
    ended_well(cluster, tmp_path)


@ON_EACH_KIND
def test_a_host_that_was_frozen_for_longer_than_its_session(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Other hosts own its shards when it wakes up. It changes no row of those shards, and joins the cluster again."""
    cluster = new_cluster("a", "b", settings=MISSED)
    before = cluster.registry.facts
    log = Log(tmp_path / "crashes.jsonl")
    with Crew([host.port for host in cluster.hosts.values()], tmp_path, "frozen", CREW) as crew:
        work(crew, cluster.shards, 50)
        began = monotonic_ns()
        cluster.hosts["a"].pause()
        taken = cluster.settled("b")
        cluster.hosts["a"].resume()
        back = cluster.settled("a", "b")
        work(crew, cluster.shards, 50)
        log.add([Crash(began, monotonic_ns(), "host")])
    log.close()
    assert all(taken.owners[number].epoch > before.owners[number].epoch for number in owned_by(before, "a"))
    assert owned_by(back, "a") == [] or back.assignment.version > taken.assignment.version
    ended_well(cluster, tmp_path)


def test_traffic_goes_on_without_zookeeper(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster("a", "b")
    before = cluster.registry.facts
    with Crew([host.port for host in cluster.hosts.values()], tmp_path, "alone", PATIENT) as crew:
        work(crew, cluster.shards, 50)
        cluster.zookeeper.kill()
        for host in cluster.hosts.values():
            host.wait_for("state=suspended")
        work(crew, cluster.shards, 200)
        cluster.zookeeper.start()
        after = cluster.settled()
        work(crew, cluster.shards, 50)
    assert (after.assignment, dict(after.owners)) == (before.assignment, dict(before.owners))
    assert untold(ended_well(cluster, tmp_path)) == []


def test_owners_stay_when_all_sessions_have_expired(new_cluster: NewCluster, tmp_path: Path) -> None:
    """No host was there to take over: each host continues with its shards and their epochs."""
    # The last host to come back has this time before the first one takes its shards.
    cluster = new_cluster("a", "b", settings={"zookeeper": {"session_timeout_ms": 10_000}})
    before = cluster.registry.facts
    with Crew([host.port for host in cluster.hosts.values()], tmp_path, "expired", CREW) as crew:
        work(crew, cluster.shards, 50)
        for host in cluster.hosts.values():
            host.pause()
        cluster.registry.wait_for(lambda facts: not facts.hosts and not facts.owners, timeout_ms=60_000)
        for host in cluster.hosts.values():
            host.resume()
        after = cluster.settled()
        work(crew, cluster.shards, 50)
    assert (after.assignment.hosts, dict(after.owners)) == (before.assignment.hosts, dict(before.owners))
    ended_well(cluster, tmp_path)


def test_disabled_shards_close_and_draining_ones_take_nothing(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", shards=2)
    first, second = (ShardFact(shard.number, shard.url) for shard in cluster.shards)
    registry = cluster.registry
    with wires(cluster) as by:
        ids = []
        while {shard_of(item_id) for item_id in ids} != {1, 2}:
            ids += [item_id for wire in by.values() for item_id in wire.enqueue([ItemSpec("t", b"x")])]
        registry.change(lambda s, done: s.put_shard(replace(first, use=ShardUse.DRAINING), new=False, done=done))
        registry.change(lambda s, done: s.put_shard(replace(second, use=ShardUse.DISABLED), new=False, done=done))
        registry.wait_for(lambda facts: 2 not in facts.owners and 1 in facts.owners)

        def taken() -> list[int]:
            """Enqueue through every host: each sees the facts at its own time."""
            outcomes = [wire.enqueue([ItemSpec("t", b"x")])[0] for wire in by.values()]
            ids.extend(found := [outcome for outcome in outcomes if isinstance(outcome, int)])
            return found

        until(lambda: not taken(), "every host to refuse new items for the shard")
        assert not taken()
        items = everything(by, {item_id for item_id in ids if shard_of(item_id) == 1})
        assert by["a"].ack([Lease(item.id, item.lease) for item in items]) == [None] * len(items)
        registry.change(lambda s, done: s.put_shard(second, new=False, done=done))
        registry.wait_for(lambda facts: 2 in facts.owners)
        everything(by, {item_id for item_id in ids if shard_of(item_id) == 2})


def everything(by: Mapping[str, Wire], wanted: set[int]) -> list[Item]:
    """Leases, through any hosts, until all that is wanted has come, and then finds nothing else."""
    items: list[Item] = []

    def come() -> bool:
        items.extend(item for wire in by.values() for item in wire.dequeue(["t"], 100, wait_ms=0, lease_ms=300_000))
        return {item.id for item in items} >= wanted

    until(come, f"all of {wanted}")
    come()
    assert sorted(item.id for item in items) == sorted(wanted)
    return items


def test_a_second_process_with_the_same_id_waits(new_cluster: NewCluster, tmp_path: Path) -> None:
    """The second process logs one line, serves nothing, and takes over once the first one has ended."""
    cluster = new_cluster("a", shards=2)
    config, log = tmp_path / "a.toml", tmp_path / "second.log"
    before = cluster.registry.facts
    argv = [sys.executable, "-m", "foqs", "serve", "--config", str(config), "--port", "0"]
    with log.open("w") as said:
        second = subprocess.Popen(argv, stdout=said, stderr=said, env={**os.environ, "FOQS_ADMIN__PORT": "0"})
    try:
        until(lambda: "host.waiting" in log.read_text(), "the second process to wait")
        found = re.search(r"admin.listening +address=([\d.]+):(\d+)\s", log.read_text())
        assert found is not None
        address = before.hosts["a"].address
        waiting = f"another host at {address} has the same id a: stop it, or give each host its own server.id"
        assert missing((found[1], int(found[2]))) == ["not listening yet", waiting]
        cluster.hosts["a"].kill()
        cluster.start("a")  # long before the session of the one before ends
        cluster.registry.wait_for(lambda facts: facts.hosts["a"].run != before.hosts["a"].run, timeout_ms=20_000)
        assert cluster.settled("a").hosts["a"].address == address
        cluster.hosts["a"].stop()
        cluster.registry.wait_for(
            lambda facts: (
                len(facts.owners) == 2
                and "a" in facts.hosts
                and {owner.address for owner in facts.owners.values()} == {facts.hosts["a"].address}
                and str(cluster.hosts["a"].port) not in facts.hosts["a"].address
            )
        )
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(90) == 0
    assert log.read_text().count("host.waiting") <= 2, "a line for each process that it waited for"


def test_busy_shards_are_spread(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Balance by measured load: both hosts have the same number of shards, and one has all the traffic."""
    cluster = new_cluster("a", "b", settings={"zookeeper": {"balance_every_ms": 1_500}})
    busy = owned_by(cluster.registry.facts, "a")
    assert len(busy) == 2
    with Crew([cluster.hosts["a"].port], tmp_path, "busy", CREW):
        cluster.registry.wait_for(
            lambda facts: len({facts.assignment.hosts[number] for number in busy}) == 2, timeout_ms=60_000
        )
    cluster.settled()
    ended_well(cluster, tmp_path)


def test_a_host_that_waits_for_zookeeper_can_be_stopped(tmp_path: Path) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text('[server]\nport = 0\n[zookeeper]\nhosts = "127.0.0.1:1"\n')
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        until(lambda: "Connection refused" in host.log.read_text(), "a try to connect")
        assert not host.listening
        assert host.stop() == 0
    assert "Traceback" not in host.log.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[zookeeper]\nhosts = "127.0.0.1:1"\n', "--take-over"),
        ("[server]\nport = 0\n", "neither [[shards]] nor [zookeeper]"),
    ],
)
def test_what_serve_refuses(tmp_path: Path, text: str, words: str) -> None:
    config = tmp_path / "foqs.toml"
    config.write_text(text)
    done = foqs("serve", "--config", config, "--take-over")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr and done.stderr.count("\n") == 1
