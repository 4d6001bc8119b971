"""Hosts behind one port: they share the shards, are started again, and stop one after another."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns

import pytest

from foqs.client.items import ItemSpec, Lease
from foqs.ids import shard_of
from foqs_lab.cluster import HostProcess, LocalCluster
from foqs_lab.crash.checker import check
from foqs_lab.crash.clients import NAMESPACE, Crew, Load, Wire, drain, work
from foqs_lab.crash.history import Crash, Log, read
from tests.cluster.conftest import NewCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

IDS = ["a-1", "a-2", "a-3"]
CREW = Load(producers=4, consumers=4)
MISSED_MS = 6_000
"""Longer than a busy machine stalls a process, short enough to wait for when all processes are killed."""


@pytest.fixture
def cluster(new_cluster: NewCluster) -> LocalCluster:
    """Each process has two shards."""
    settings = {"host": {"confirm_ms": 1_000}, "zookeeper": {"session_timeout_ms": MISSED_MS}}
    return new_cluster("a", shards=6, processes=3, settings=settings)


@pytest.fixture
def host(cluster: LocalCluster) -> HostProcess:
    return cluster.hosts["a"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pids(host: HostProcess) -> dict[str, int]:
    """Of each process's last start."""
    return {process: int(pid) for pid, process in re.findall(r"process\.started +pid=(\d+) process=(\S+)", text(host))}


def ports(host: HostProcess) -> list[int]:
    """The shared one, and each process's own: only with those it is certain that every shard gets items."""
    return [host.port + number for number in range(4)]


def text(host: HostProcess) -> str:
    return host.log.read_text(errors="replace")


def gone(pid: int) -> bool:
    """A process counts as ended also before its parent has read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ended_well(cluster: LocalCluster, folder: Path) -> None:
    host = cluster.hosts["a"]
    assert drain(host.port, folder, lambda: not sum(shard.rows() for shard in cluster.shards), 120)
    assert check(read(folder)) == []
    assert host.faults() == []


def test_all_items_are_reached_through_one_port(cluster: LocalCluster, host: HostProcess, stack: ExitStack) -> None:
    facts = cluster.registry.facts
    assert {name: fact.address for name, fact in facts.hosts.items()} == {
        name: f"127.0.0.1:{host.port + number}" for number, name in enumerate(IDS, 1)
    }
    assert {owner.host for owner in facts.owners.values()} == set(IDS)

    def wire(port: int) -> Wire:
        wire = Wire(port, NAMESPACE, timeout_ms=20_000)
        stack.callback(wire.close)
        return wire

    direct = [wire(host.port + number) for number in (1, 2, 3)]
    # A hash in the kernel chooses the process of a connection: one without any of 60 is rarer than 1 in 10^9.
    behind = [wire(host.port) for _ in range(60)]
    stored = [one for wire in behind for one in wire.enqueue([ItemSpec("t", b"x")] * 2)]
    by_host = {facts.owners[shard_of(item_id)].host for item_id in stored if isinstance(item_id, int)}
    assert (len(set(stored)), by_host) == (120, set(IDS)), "each process gets connections, and stores where it is"
    for each in (behind[0], *direct):
        items = each.dequeue(["t"], 12, wait_ms=20_000, lease_ms=300_000)
        assert items
        assert behind[-1].ack([Lease(item.id, item.lease) for item in items]) == [None] * len(items)
        stored = [one for one in stored if one not in {item.id for item in items}]
    while stored:
        items = behind[1].dequeue(["t"], 48, wait_ms=20_000, lease_ms=300_000)
        assert direct[0].ack([Lease(item.id, item.lease) for item in items]) == [None] * len(items)
        stored = [one for one in stored if one not in {item.id for item in items}]
    assert sum(shard.rows() for shard in cluster.shards) == 0


def test_a_killed_worker_is_taken_over_from_and_comes_back(
    cluster: LocalCluster, host: HostProcess, tmp_path: Path
) -> None:
    log = Log(tmp_path / "crashes.jsonl")
    before = pids(host)
    assert sorted(before) == IDS
    run = cluster.registry.facts.hosts["a-2"].run
    with Crew(ports(host), tmp_path, "killed", CREW) as crew:
        work(crew, cluster.shards, 50)
        began = monotonic_ns()
        os.kill(before["a-2"], signal.SIGKILL)
        cluster.registry.wait_for(lambda facts: "a-2" in facts.hosts and facts.hosts["a-2"].run != run)
        cluster.settled()
        work(crew, cluster.shards, 50)
        log.add([Crash(began, monotonic_ns(), "host")])
    log.close()
    after = pids(host)
    assert (after["a-1"], after["a-3"]) == (before["a-1"], before["a-3"])
    assert re.findall(r"process\.died .*process=(\S+) status=(\S+)", text(host)) == [("a-2", "-9")]
    assert host.said("foqs listening on ") == 1
    ended_well(cluster, tmp_path)


def test_they_stop_one_after_another_and_nothing_is_lost(
    cluster: LocalCluster, host: HostProcess, tmp_path: Path
) -> None:
    """Each process hands its shards over, except the last one, which has no peer left. More signals change nothing."""
    log = Log(tmp_path / "crashes.jsonl")
    started = pids(host)
    with Crew(ports(host), tmp_path, "stopped", CREW) as crew:
        work(crew, cluster.shards, 50)
        began = monotonic_ns()
        # As a service manager does; before the supervisor hears of it, as the first may be gone soon after.
        for pid in started.values():
            os.kill(pid, signal.SIGTERM)
        host.signal(signal.SIGINT)
        host.signal(signal.SIGTERM)
        assert host.stop() == 0
        assert all(map(gone, started.values()))
        said = text(host)
        assert re.findall(r"host\.stopped .*process=(\S+)", said) == IDS
        assert re.findall(r"host\.stopped .*shards_lost=([1-9]\d*) ", said) == []
        *_, kept = re.findall(r"shard\.serving .*process=(\S+) .*shard=\d+", said)
        assert kept == "a-3"
        released = re.findall(r"shard\.released .*clean=(\w+) .*process=(\S+)", said)
        assert {process for _, process in released} >= {"a-1", "a-2"}
        assert {clean for clean, _ in released} == {"True"}
        *_, alone = re.split(r"host\.stopped .*process=a-2", said)  # until then shards may have been evened out from it
        assert "shard.released" not in alone
        assert "process.died" not in said
        host.start()
        assert cluster.settled().hosts.keys() == set(IDS)
        log.add([Crash(began, monotonic_ns(), "host")])
        work(crew, cluster.shards, 50)
    log.close()
    ended_well(cluster, tmp_path)


def test_no_worker_outlives_the_supervisor(cluster: LocalCluster, host: HostProcess) -> None:
    processes = pids(host).values()
    assert not any(map(gone, processes))
    host.kill()
    wait_until(lambda: all(map(gone, processes)), "the end of all processes", 30)
    host.start()
    assert cluster.settled().hosts.keys() == set(IDS)
