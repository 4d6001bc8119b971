"""The host's clock follows the databases' clocks; where they disagree, nothing ends early."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import batch_build
from foqs.ids import Stamp
from foqs.server.clock import DatabaseClock, Reading
from tests.api.wire import State, Wire
from tests.engine.laboratory import Laboratory
from tests.peers.nodes import Cluster, cluster_in

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class LaboratoryClock:
    def __init__(self, laboratory: Laboratory, machine_ahead_ms: int = 0) -> None:
        self.laboratory = laboratory
        self.machine_ms = machine_ahead_ms  # ahead of the clock's first value

    def now_ms(self) -> int:
        return self.laboratory.now_ms

    def at_ms(self, monotonic_ns: int) -> int:
        return self.laboratory.now_ms - monotonic_ns // 1_000_000  # `monotonic_ns` counts backwards from now

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

    @property
    def held(self) -> bool:
        return all(shard.owner.held for shard in self.laboratory.engine.state.serving)

    def pass_ms(self, ms: int) -> None:
        self.laboratory.now_ms += ms
        self.begun_ms += ms

    def read(self, **ahead_ms: int) -> None:
        """`_1=500`: the database of shard 1 is 500 ms ahead of the clock as it was at the beginning."""
        for name, ahead in ahead_ms.items():
            shard = self.laboratory.engine.state.shards[int(name[1:])]
            now_ms = self.laboratory.now_ms
            self.timekeeper.read(shard, ShardBatch(begun_ms=now_ms), self.begun_ms + ahead)


def test_a_lasting_difference_is_followed() -> None:
    """The step comes after ten seconds, because the ends of held leases move with the clock."""
    readings = Readings(1)
    readings.read(_1=MINUTE_MS)
    readings.pass_ms(9_999)
    readings.read(_1=MINUTE_MS)
    assert readings.set_by_ms == 0
    assert not readings.held
    readings.pass_ms(1)
    readings.read(_1=MINUTE_MS)
    assert readings.set_by_ms == MINUTE_MS


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_of_the_only_database_makes_the_host_wait(by_ms: int) -> None:
    """Nothing says which clock is right: the host delivers, scans and removes nothing, and says so, until it knows."""
    readings = Readings(1)
    laboratory, shard = readings.laboratory, readings.laboratory.engine.state.shards[1]
    laboratory.enqueue()
    laboratory.settle()
    with capture_logs() as lines:
        for _ in range(5):
            readings.read(_1=by_ms)
            shard.owner.confirmed_ms = laboratory.now_ms
            assert not any(laboratory.dequeue())
            readings.pass_ms(10_000)
    assert readings.set_by_ms == 0
    assert readings.held
    assert "jumped by" in readings.timekeeper.why
    assert [line["event"] for line in lines].count("clock.waiting") == 1
    batch = batch_build.build(shard, laboratory.now_ms)
    assert batch is None or not batch.reads
    shard.queue.in_flight = None
    readings.read(_1=0)
    assert (readings.held, readings.timekeeper.why) == (False, "")
    laboratory.settle()
    shard.owner.confirmed_ms = laboratory.now_ms
    assert [len(ids) for ids in laboratory.dequeue()] == [1]


def test_a_jump_is_followed_when_the_operator_says_so() -> None:
    readings = Readings(1)
    readings.read(_1=HOUR_MS)
    readings.pass_ms(60_000)
    readings.read(_1=HOUR_MS)
    assert readings.held
    host = readings.laboratory.engine.state.config.host.model_copy(update={"clock_wait_ms": 60_000})
    readings.laboratory.engine.state.config = readings.laboratory.engine.state.config.model_copy(update={"host": host})
    readings.read(_1=HOUR_MS)
    assert readings.set_by_ms == HOUR_MS
    assert not readings.held


def test_a_jump_of_two_of_three_databases_is_followed() -> None:
    readings = Readings(3)
    readings.read(_1=HOUR_MS, _2=HOUR_MS, _3=0)
    assert readings.held
    readings.pass_ms(10_000)
    readings.read(_1=HOUR_MS, _2=HOUR_MS, _3=0)
    assert readings.set_by_ms == HOUR_MS
    assert not readings.held


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


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS])
def test_of_two_databases_the_one_that_jumps_is_not_followed(wrong_ms: int) -> None:
    """The other one and the host's own time agree."""
    readings = Readings(2)
    for _ in range(3):
        readings.read(_1=0, _2=wrong_ms)
        readings.pass_ms(10_000)
    assert readings.set_by_ms == 0
    assert not readings.held


def test_of_two_databases_the_earlier_is_followed() -> None:
    readings = Readings(2)
    for _ in range(3):
        readings.read(_1=0, _2=-MINUTE_MS)
        readings.pass_ms(10_000)
    assert readings.set_by_ms == -MINUTE_MS


def test_a_slow_trip_sets_no_clock() -> None:
    """The database read its clock at some time between the begin and the end of the trip."""
    readings = Readings(1)
    shard, now_ms = readings.laboratory.engine.state.shards[1], readings.laboratory.now_ms
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
    assert readings.laboratory.engine.state.counters.clock_jumps == 2


def test_a_set_clock_keeps_what_remains_of_waits_and_leases() -> None:
    readings = Readings(1)
    laboratory, host = readings.laboratory, readings.laboratory.engine
    shard = host.state.shards[1]
    laboratory.enqueue()
    laboratory.settle()
    laboratory.dequeue()
    (leased,) = [item for _, item, _ in shard.queue.unwritten]
    left_ms = leased.lease_expires_at_ms - laboratory.now_ms
    waiting = laboratory.dequeue(wait_ms=1_000)
    readings.clock.machine_ms = -HOUR_MS
    readings.read(_1=-HOUR_MS)
    assert leased.lease_expires_at_ms - laboratory.now_ms == left_ms
    assert shard.owner.confirmed(laboratory.now_ms)
    assert shard.queue.oldest_unwritten_ms() == laboratory.now_ms
    assert host.state.patience.next_ms() == laboratory.now_ms + 1_000 < NEVER_MS
    assert not waiting


@pytest.mark.parametrize("ahead_ms", [0, -HOUR_MS])
def test_dispense_keeps_items_until_their_database_says(ahead_ms: int) -> None:
    """The database clock of shard 3 is behind those of shards 1 and 2, so the host's clock is ahead of it."""
    readings = Readings(3)
    laboratory = readings.laboratory
    shard = laboratory.engine.state.shards[3]
    laboratory.engine.state.serving[:] = [shard]  # where the item goes
    laboratory.enqueue()
    laboratory.settle()
    laboratory.engine.state.serving[:] = laboratory.engine.state.shards.values()
    (item,) = shard.memory.known.values()
    item.expires_at_ms = laboratory.now_ms + 60_000
    readings.pass_ms(61_000)
    for one in laboratory.engine.state.serving:
        one.owner.confirmed_ms = laboratory.now_ms
    readings.read(_1=0, _2=0, _3=ahead_ms)
    assert laboratory.dequeue() == [[] if ahead_ms == 0 else [item.id]]
    assert (item.change is not None) == (ahead_ms == 0)


# ------------------------------------------------------------------------------------- before shards are served


class Arriving:
    """A host without served shards, whose databases are surveyed when the test answers."""

    def __init__(self, *servers: str, machine_ahead_ms: int = 0) -> None:
        self.laboratory = Laboratory()
        self.clock = LaboratoryClock(self.laboratory, machine_ahead_ms)
        self.servers = servers
        self.report: Callable[[str, Reading | None], None] = lambda name, reading: None
        self.asked = 0
        self.alarms: list[Callable[[], None]] = []
        self.begun_ms = self.laboratory.now_ms
        self.timekeeper = DatabaseClock(
            self.laboratory.engine, self.clock, lambda after_ms, do: self.alarms.append(do), self
        )
        self.served: list[int] = []

    def ask(self, report: Callable[[str, Reading | None], None]) -> Sequence[str]:
        self.report = report
        self.asked += 1
        return self.servers

    def open(self, number: int, server: str, ahead_ms: int, stamp: Stamp = Stamp()) -> None:  # noqa: B008 - a tuple
        lead_ms = ahead_ms + self.begun_ms - self.laboratory.now_ms
        self.timekeeper.admit(number, server.encode(), lead_ms, stamp, lambda: self.served.append(number))

    def answer(self, server: str, ahead_ms: int | None) -> None:
        reading = None if ahead_ms is None else Reading(server.encode(), self.begun_ms + ahead_ms, 0)
        self.report(server, reading)

    @property
    def set_by_ms(self) -> int:
        return self.laboratory.now_ms - self.begun_ms


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
@pytest.mark.parametrize("machine_ahead_ms", [0, HOUR_MS, 2 * HOUR_MS])
def test_a_wrong_database_of_three_sets_no_clock(order: tuple[str, ...], machine_ahead_ms: int) -> None:
    """Also where this machine's clock is as wrong as the database's."""
    host = Arriving("a", "b", "c", machine_ahead_ms=machine_ahead_ms)
    ahead = {"a": HOUR_MS, "b": 0, "c": 3}
    host.open(1, order[0], ahead[order[0]])
    assert host.served == []
    assert "1 of 3 databases has answered" in host.timekeeper.why
    for server in order[1:]:
        host.answer(server, ahead[server])
    assert host.served == [1]
    assert abs(host.set_by_ms) <= 3
    assert host.timekeeper.why == ""


def test_a_host_of_the_wrong_database_alone_reads_the_cluster() -> None:
    """The cluster's other shards are on other hosts."""
    host = Arriving("a", "b", "c", machine_ahead_ms=-HOUR_MS)
    host.open(7, "a", HOUR_MS)
    host.answer("c", 2)
    host.answer("b", 0)
    assert (host.served, host.set_by_ms) == ([7], 0)
    host.open(8, "a", HOUR_MS)
    assert host.served == [7, 8], "the time is known from here on"


def test_databases_that_are_away_are_asked_again() -> None:
    host = Arriving("a", "b", "c", machine_ahead_ms=-2 * HOUR_MS)
    host.open(1, "a", HOUR_MS)
    with capture_logs() as lines:
        host.answer("a", HOUR_MS)
        host.answer("b", None)
        assert host.timekeeper.why
        host.answer("c", None)
    assert host.served == []
    assert [line["event"] for line in lines] == ["clock.waiting"]
    assert "1 of 3 databases answers" in host.timekeeper.why
    host.laboratory.now_ms += 5_000
    host.begun_ms += 5_000
    host.alarms.pop()()
    assert host.asked == 2
    host.answer("b", 0)
    host.answer("a", HOUR_MS)
    host.answer("c", 0)
    assert (host.served, host.set_by_ms) == ([1], 0)


def test_a_single_database_and_the_last_run() -> None:
    host = Arriving("a", machine_ahead_ms=2 * HOUR_MS)
    host.open(1, "a", 0)
    assert host.served == [1]
    host = Arriving("a", machine_ahead_ms=2 * HOUR_MS)
    host.open(1, "a", 0, Stamp(host.begun_ms + HOUR_MS, 0, "other"))
    host.answer("a", 0)
    assert host.served == []
    assert "behind the time of the last run" in host.timekeeper.why


def test_a_shard_that_is_given_up_waits_no_more() -> None:
    host = Arriving("a", "b", "c", machine_ahead_ms=-2 * HOUR_MS)
    host.open(1, "a", HOUR_MS)
    host.timekeeper.dismiss(1)
    assert host.served == [1], "the driver closes it"
    assert host.timekeeper.why == ""


def test_a_clock_that_was_corrected_while_its_shard_waited() -> None:
    """The reading of the opening is old by then: it is no jump."""
    host = Arriving("a")
    host.laboratory = Laboratory(1)
    engine, clock = host.laboratory.engine, LaboratoryClock(host.laboratory)
    host.timekeeper = DatabaseClock(engine, clock, lambda after_ms, do: None, host)
    shard, engine.state.serving = engine.state.shards[1], []
    shard.owner.server = b"a"

    def serve() -> None:
        engine.state.serving.append(shard)
        host.timekeeper.served(shard, HOUR_MS)

    stamp = Stamp(host.begun_ms, host.begun_ms, engine.state.config.server.id)
    host.timekeeper.admit(1, b"a", HOUR_MS, stamp, serve)
    assert not engine.state.serving and "advanced by 3600.0 s" in host.timekeeper.why
    with capture_logs() as lines:
        host.answer("a", 0)
    assert engine.state.serving == [shard] and not shard.owner.held
    assert [line["event"] for line in lines] == ["clock.known"]
    assert (host.set_by_ms, shard.owner.clock_ahead_ms) == (0, 0)


def test_a_jump_is_judged_by_the_clusters_databases() -> None:
    """It serves shards of one database. The other clocks, read again, say that this one is wrong."""
    readings = Readings(1)
    host = Arriving("a", "b")
    host.laboratory, host.begun_ms = readings.laboratory, readings.begun_ms
    clock = readings.clock
    timekeeper = DatabaseClock(readings.laboratory.engine, clock, lambda after_ms, do: None, host)
    shard = readings.laboratory.engine.state.shards[1]
    timekeeper.read(shard, ShardBatch(begun_ms=readings.begun_ms), readings.begun_ms + HOUR_MS)
    assert shard.owner.held
    host.answer("a", 0)
    host.answer("b", 1)
    assert not shard.owner.held
    assert readings.set_by_ms == 0


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
    cluster.until(lambda: 1 not in right.engine.state.shards, "the shard closed")

    def wrong_ns() -> int:
        return time.time_ns() + machine_ahead_ms * 1_000_000

    monkeypatch.setattr("foqs.server.clock.time", SimpleNamespace(time_ns=wrong_ns, monotonic_ns=time.monotonic_ns))
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
