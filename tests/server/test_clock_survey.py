"""Hosts over several databases, one of which has a wrong clock. The statements that read the clocks are real."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.admin.readiness import View
from foqs.server.clock import ClockSurvey, Reading, Survey
from foqs.server.marks import FileMarks
from foqs.store import server
from foqs.store.link import Link, read_clock
from foqs.store.maintenance import create_schema
from foqs.store.reads import Reads
from foqs.store.sql import SqlStore
from tests.api.wire import State
from tests.conftest import NewShardUrl
from tests.peers.nodes import PATIENCE_S, Cluster, Member, cluster_in
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000


class Clocks:
    """How far the clocks of the shards' databases are ahead. Each shard's database is taken for a server of its own."""

    def __init__(self) -> None:
        self.ahead_ms: dict[int, int] = {}
        self.slow_s: dict[int, float] = {}
        self.away: set[int] = set()

    def read(self, number: int, url: str) -> tuple[bytes, int, int] | None:
        found = None if number in self.away else read_clock(url, connect_timeout_s=10, io_timeout_s=10)
        return None if found is None else (b"db-%d" % number, found[1] + self.ahead_ms.get(number, 0), found[2])


class ShiftedStore(SqlStore):
    """A store on a database with such a clock."""

    def __init__(self, url: str, number: int, clocks: Clocks) -> None:
        super().__init__(url, shard=number)
        self._number, self._clocks = number, clocks

    def _connect(self) -> tuple[Link, server.Facts, Any]:
        time.sleep(self._clocks.slow_s.get(self._number, 0))
        link, facts, row = super()._connect()
        ahead_ms = self._clocks.ahead_ms.get(self._number, 0)
        self._dialect = replace(self._dialect, clock_ms=f"({self._dialect.clock_ms} + {ahead_ms:d})")
        assert self._reads is not None
        self._reads = Reads(link, self._dialect, self._reads.packed_bytes)
        return link, replace(facts, identity=b"db-%d" % self._number), row


class Hosts:
    """Hosts one after another over three shards."""

    def __init__(self, cluster: Cluster, clocks: Clocks, urls: dict[int, str], marks: Path) -> None:
        self.cluster, self.clocks, self.urls = cluster, clocks, urls
        for number, url in urls.items():
            create_schema(url, number)
        cluster.url = urls.__getitem__  # type: ignore[method-assign]
        cluster.store = lambda number: ShiftedStore(urls[number], number, clocks)  # type: ignore[method-assign]
        cluster.survey = self._survey  # type: ignore[method-assign]
        cluster.marks = FileMarks(marks)
        self._names = itertools.count(1)

    def _survey(self) -> Survey:
        loop, clocks, urls = asyncio.get_running_loop(), self.clocks, self.urls

        class ByShard:
            def ask(self, report: Callable[[str, Reading | None], None]) -> list[str]:
                for number in urls:
                    read = ClockSurvey(
                        lambda number=number: [urls[number]],
                        loop,
                        10,
                        10,
                        lambda url, n=number: clocks.read(n, url),  # type: ignore[misc]
                    )
                    read.ask(lambda _, reading, number=number: report(f"db-{number}", reading))  # type: ignore[misc]
                return [f"db-{number}" for number in urls]

        return ByShard()

    def start(self, *shards: int) -> Member:
        return self.cluster.add(f"host-{next(self._names)}", *shards)

    def release(self, member: Member) -> None:
        for number in list(member.engine.state.shards):
            self.cluster.on_loop(lambda number=number: member.release(number, 60_000))  # type: ignore[misc]
        self.cluster.until(lambda: not member.engine.state.shards and member.runner.marker.idle, "the shards closed")


@pytest.fixture
def hosts(tmp_path: Path, new_shard_url: NewShardUrl) -> Iterator[Hosts]:
    """On SQLite, MariaDB and MySQL in turn."""
    with cluster_in(tmp_path) as cluster:
        yield Hosts(cluster, Clocks(), {number: new_shard_url() for number in (1, 2, 3)}, tmp_path / "marks")


def stored(hosts: Hosts, member: Member) -> tuple[list[int], list[Any]]:
    """Store items with a TTL of ten minutes on all shards, and lease nine items without one for the same time."""
    wire = hosts.cluster.wire(member)
    ids = [item_id for _ in range(13) for item_id in wire.put("t", b"x", ttl_ms=600_000)]
    while {item_id >> 48 for item_id in ids} != set(member.engine.state.shards):  # chance chooses the shard
        ids += wire.put("t", b"x", ttl_ms=600_000)
    for _ in range(9):
        wire.put("leased", b"x")
    leased: list[Any] = []
    wait_until(
        lambda: bool(leased.extend(wire.dequeue("leased", count=9, lease_ms=600_000))) or len(leased) == 9, "9 leases"
    )
    return ids, leased


@pytest.mark.parametrize("shards", [(1, 2, 3), (1,)])
def test_a_database_an_hour_ahead_ends_nothing_early(hosts: Hosts, shards: tuple[int, ...]) -> None:
    """It is opened first, or it is the only one of this host: the cluster's other shards are elsewhere."""
    first = hosts.start(*shards)
    ids, leased = stored(hosts, first)
    hosts.release(first)
    hosts.clocks.ahead_ms[1] = HOUR_MS
    hosts.clocks.slow_s = {2: 0.2, 3: 0.2}
    second = hosts.start(*shards)
    hosts.cluster.tell(hosts.cluster.routing(second))
    assert abs(second.now_ms() - time.time() * 1000) < 300_000
    wire = hosts.cluster.wire(second)
    assert [wire.state(item_id) for item_id in ids] == [State.READY] * len(ids)
    assert set(wire.ack(*leased)) == {0}
    (later,) = wire.put("t", b"later", ttl_ms=HOUR_MS)
    assert abs(wire.look(later).item.expires_at_ms - time.time() * 1000 - HOUR_MS) < 300_000
    assert second.counters.removed["ttl"] == 0


def test_a_host_says_why_it_waits_for_databases(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own one is an hour ahead, and this machine's clock does not confirm that."""
    first = hosts.start(1)
    ids, _ = stored(hosts, first)
    hosts.release(first)
    hosts.clocks.ahead_ms[1], hosts.clocks.away = HOUR_MS, {2, 3}
    cluster, found = hosts.cluster, []

    async def start() -> None:
        found.append(Member(cluster, "waits", [1], 20_000))
        await found[0].start()

    monkeypatch.setattr("foqs.server.clock._ASK_AGAIN_MS", 100)
    with capture_logs() as lines:
        starting = asyncio.run_coroutine_threadsafe(start(), cluster.loop)
        wait_until(lambda: any(line["event"] == "clock.waiting" for line in lines), "the host says why it waits")
        member = found[0]
        note, *_ = cluster.on_loop(lambda: View("waits", member, None).notes())
        assert "1 of 3 databases answers" in note
        assert not member.serves(1)
        hosts.clocks.away = {3}
        starting.result(PATIENCE_S)
    cluster.members.append(member)
    assert any(line["event"] == "clock.known" for line in lines)
    assert cluster.on_loop(lambda: View("waits", member, None).notes()) == []
    cluster.tell(cluster.routing(member))
    wire = cluster.wire(member)
    assert [wire.state(item_id) for item_id in ids] == [State.READY] * len(ids)


def test_a_clock_that_jumps_while_the_host_runs_ends_nothing(hosts: Hosts) -> None:
    """The host has shards of this database alone. It reads the clocks of the other two, and keeps to its time."""
    member = hosts.start(1)
    ids, leased = stored(hosts, member)
    wire = hosts.cluster.wire(member)
    shard = member.engine.state.shards[1]
    hosts.clocks.ahead_ms[1] = HOUR_MS
    with capture_logs() as lines:
        hosts.cluster.on_loop(
            lambda: setattr(shard.owner, "lost", True) or member.engine.state.touch(shard)
        )  # it connects again
        hosts.cluster.until(lambda: not shard.owner.lost, "the host has connected again")
        for _ in range(2):
            hosts.cluster.on_loop(
                lambda: setattr(shard.owner, "clock_wanted", True) or member.engine.state.touch(shard)
            )
            hosts.cluster.until(
                lambda: not shard.owner.clock_wanted and shard.queue.in_flight is None, "the clock is read"
            )
        hosts.cluster.until(lambda: shard.owner.clock_ahead_ms > HOUR_MS // 2 and not shard.owner.held, "it is judged")
    assert any(line["event"] == "shard.clock_differs" for line in lines)
    assert [wire.state(item_id) for item_id in ids] == [State.READY] * len(ids)
    assert set(wire.ack(*leased)) == {0}


# ------------------------------------------------------------------------------------- the survey itself


def test_each_server_is_read_once(new_shard_url: NewShardUrl, shard_kind: str, tmp_path: Path) -> None:
    urls = [new_shard_url(), new_shard_url(), f"sqlite:///{tmp_path / 'missing.db'}", "no url"]
    for number, url in enumerate(urls[:2], 1):
        create_schema(url, number)
    found: dict[str, Reading | None] = {}

    async def ask() -> list[str]:
        survey, reported = ClockSurvey(lambda: urls, asyncio.get_running_loop(), 10, 10), asyncio.Semaphore(0)

        def report(name: str, reading: Reading | None) -> None:
            found[name] = reading
            reported.release()

        names = list(survey.ask(report))
        async with asyncio.timeout(PATIENCE_S):
            for _ in names:
                await reported.acquire()
        return names

    before_ns = time.monotonic_ns()
    names = asyncio.run(ask())
    assert len(names) == (3 if shard_kind == "sqlite" else 2)
    (missing,) = [name for name in names if "missing" in name]
    assert found.pop(missing) is None
    for reading in found.values():
        assert reading is not None
        assert reading.server
        assert before_ns <= reading.read_ns <= time.monotonic_ns()
        assert abs(reading.db_now_ms - time.time() * 1000) < 300_000
