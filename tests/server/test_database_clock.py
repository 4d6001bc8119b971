"""The host's clock follows the databases' clocks; where they disagree, nothing ends early."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.buffers.shard_batch import ShardBatch
from foqs.leases.deadlines import NEVER_MS
from foqs.server.database_clock import DatabaseClock
from tests.api.wire import State, Wire
from tests.engine.laboratory import Laboratory
from tests.peers.nodes import Cluster, cluster_in

HOUR_MS = 3_600_000


class LaboratoryClock:
    def __init__(self, laboratory: Laboratory, machine_ahead_ms: int = 0) -> None:
        self.laboratory = laboratory
        self.machine_ms = machine_ahead_ms  # ahead of the clock's first value

    def now_ms(self) -> int:
        return self.laboratory.now_ms

    def machine_ahead_ms(self) -> int:
        return self.machine_ms

    def set(self, by_ms: int) -> None:
        self.laboratory.now_ms += by_ms
        self.machine_ms -= by_ms


class Readings:
    """An engine over `count` shards, and readings of its databases' clocks."""

    def __init__(self, count: int) -> None:
        self.laboratory = Laboratory(*range(1, count + 1))
        self.clock = LaboratoryClock(self.laboratory)
        self.timekeeper = DatabaseClock(self.laboratory.engine, self.clock)
        self.begun_ms = self.laboratory.now_ms

    @property
    def set_by_ms(self) -> int:
        """Return by how many ms the clock was set since the start."""
        return self.laboratory.now_ms - self.begun_ms

    def pass_ms(self, ms: int) -> None:
        self.laboratory.now_ms += ms
        self.begun_ms += ms

    def read(self, **ahead_ms: int) -> None:
        """`_1=500`: the database of shard 1 is 500 ms ahead of the clock as it was at the beginning."""
        for name, ahead in ahead_ms.items():
            shard = self.laboratory.engine.shards[int(name[1:])]
            now_ms = self.laboratory.now_ms
            self.timekeeper.read(shard, ShardBatch(begun_ms=now_ms), self.begun_ms + ahead)


def test_a_lasting_difference_is_followed() -> None:
    """The step comes after ten seconds, because the ends of held leases move with the clock."""
    readings = Readings(1)
    readings.read(_1=HOUR_MS)
    readings.pass_ms(9_999)
    readings.read(_1=HOUR_MS)
    assert readings.set_by_ms == 0
    readings.pass_ms(1)
    readings.read(_1=HOUR_MS)
    assert readings.set_by_ms == HOUR_MS


def test_a_passing_difference_is_not_followed() -> None:
    readings = Readings(1)
    readings.read(_1=HOUR_MS)
    readings.pass_ms(9_000)
    readings.read(_1=0)
    readings.pass_ms(9_000)
    readings.read(_1=HOUR_MS)
    assert readings.set_by_ms == 0


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_change_that_the_machine_confirms_is_followed_at_once(by_ms: int) -> None:
    readings = Readings(1)
    readings.clock.machine_ms = by_ms
    readings.read(_1=by_ms)
    assert readings.set_by_ms == by_ms


def test_a_small_difference_is_left_alone() -> None:
    readings = Readings(1)
    readings.clock.machine_ms = 500
    readings.read(_1=500)
    assert readings.set_by_ms == 0


def test_one_wrong_database_of_three_does_not_move_the_clock() -> None:
    readings = Readings(3)
    for _ in range(3):
        readings.read(_1=0, _2=HOUR_MS, _3=0)
        readings.pass_ms(10_000)
    assert readings.set_by_ms == 0


def test_of_two_databases_the_earlier_is_followed() -> None:
    readings = Readings(2)
    for _ in range(3):
        readings.read(_1=0, _2=-HOUR_MS)
        readings.pass_ms(10_000)
    assert readings.set_by_ms == -HOUR_MS


def test_a_slow_trip_sets_no_clock() -> None:
    """The database read its clock at some time between the begin and the end of the trip."""
    readings = Readings(1)
    shard, now_ms = readings.laboratory.engine.shards[1], readings.laboratory.now_ms
    for _ in range(3):
        readings.pass_ms(20_000)
        readings.timekeeper.read(shard, ShardBatch(begun_ms=now_ms), now_ms + 5)
    assert readings.set_by_ms == 0


def test_a_difference_is_logged_once_until_it_changes() -> None:
    readings = Readings(3)
    with capture_logs() as lines:
        for machine_ms, wrong_ms in [(5_000, 9_000), (5_400, 9_300), (5_000, 9_000), (0, 0), (0, 0)]:
            readings.clock.machine_ms = machine_ms
            readings.read(_1=0, _2=wrong_ms, _3=0)
    assert [(line["event"], *[v for k, v in line.items() if k.endswith("ahead_ms")]) for line in lines] == [
        ("clock.differs", 5_000),
        ("shard.clock_differs", 9_000),
        ("clock.differs", 0),
        ("shard.clock_differs", 0),
    ]
    assert readings.laboratory.engine.counters.clock_jumps == 2


def test_a_set_clock_keeps_what_remains_of_waits_and_leases() -> None:
    readings = Readings(1)
    laboratory, host = readings.laboratory, readings.laboratory.engine
    shard = host.shards[1]
    laboratory.enqueue()
    laboratory.settle()
    laboratory.dequeue()
    (leased,) = [item for _, item, _ in shard.unwritten]
    left_ms = leased.lease_expires_at_ms - laboratory.now_ms
    waiting = laboratory.dequeue(wait_ms=1_000)
    readings.clock.machine_ms = -HOUR_MS
    readings.read(_1=-HOUR_MS)
    assert leased.lease_expires_at_ms - laboratory.now_ms == left_ms
    assert shard.confirmed(laboratory.now_ms)
    assert shard.oldest_unwritten_ms() == laboratory.now_ms
    assert host.patience.next_ms() == laboratory.now_ms + 1_000 < NEVER_MS
    assert not waiting


@pytest.mark.parametrize("ahead_ms", [0, -HOUR_MS])
def test_dispense_keeps_items_until_their_database_says(ahead_ms: int) -> None:
    """The database clock of shard 3 is behind those of shards 1 and 2, so the host's clock is ahead of it."""
    readings = Readings(3)
    laboratory = readings.laboratory
    shard = laboratory.engine.shards[3]
    laboratory.engine.serving[:] = [shard]  # where the item goes
    laboratory.enqueue()
    laboratory.settle()
    laboratory.engine.serving[:] = laboratory.engine.shards.values()
    (item,) = shard.known.values()
    item.expires_at_ms = laboratory.now_ms + 60_000
    readings.pass_ms(61_000)
    for one in laboratory.engine.serving:
        one.confirmed_ms = laboratory.now_ms
    readings.read(_1=0, _2=0, _3=ahead_ms)
    assert laboratory.dequeue() == [[] if ahead_ms == 0 else [item.id]]
    assert (item.change is not None) == (ahead_ms == 0)


# ------------------------------------------------------------------------------------- a real host on a real database


@pytest.fixture
def cluster(tmp_path: Path, shard_url: str) -> Iterator[Cluster]:
    """On SQLite, MariaDB and MySQL in turn."""
    with cluster_in(tmp_path) as cluster:
        cluster.url = lambda number: shard_url  # type: ignore[method-assign]
        yield cluster


@pytest.mark.parametrize("machine_ahead_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_a_host_with_a_wrong_clock_keeps_to_the_database(
    cluster: Cluster, machine_ahead_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes no item early, hands out no delayed one early, and stores right times."""
    right = cluster.add("right", 1)
    first = cluster.wire(right)
    (waits,) = first.put("t", b"waits", ttl_ms=HOUR_MS)
    (delayed,) = first.put("t", b"delayed", delay_ms=HOUR_MS)
    (soon,) = first.put("soon", b"soon", delay_ms=50)
    cluster.on_loop(lambda: right.release(1, 60_000))  # in order: the next owner need not wait
    cluster.until(lambda: 1 not in right.engine.shards, "the shard closed")

    def wrong_ns() -> int:
        return time.time_ns() + machine_ahead_ms * 1_000_000

    monkeypatch.setattr("foqs.clock.time", SimpleNamespace(time_ns=wrong_ns, monotonic_ns=time.monotonic_ns))
    host = cluster.add("wrong", 1)
    wire: Wire = cluster.wire(host)
    assert wire.state(waits) == State.READY
    assert wire.state(delayed) == State.DELAYED
    assert [item.id for item in wire.dequeue("soon", wait_ms=30_000)] == [soon]
    assert [item.id for item in wire.dequeue("t")] == [waits]
    (later,) = wire.put("t", b"later", delay_ms=HOUR_MS, ttl_ms=2 * HOUR_MS)
    item: Any = wire.look(later).item
    assert abs(item.deliver_after_ms - time.time() * 1000 - HOUR_MS) < 300_000
    assert abs(item.expires_at_ms - time.time() * 1000 - 2 * HOUR_MS) < 300_000
    assert host.counters.removed["ttl"] == 0
    assert abs(host.machine_ahead_ms() - machine_ahead_ms) < 300_000
