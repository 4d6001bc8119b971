"""A shard that is restored from an older copy reuses no id."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.ids import MARK_STEP, Mark, Marks, Stamp
from foqs.server.marks import FileMarks, Marker, mark_file, read_mark, read_marks, write_mark
from foqs.store.checkup import check_shard
from foqs.store.maintenance import create_schema
from tests.api.wire import Delivery
from tests.conftest import NewShardUrl
from tests.peers.nodes import Cluster, Member, cluster_in
from tests.store.copies import dump, restore
from tests.support.waiting import wait_until


@pytest.fixture
def cluster(tmp_path: Path, shard_url: str) -> Iterator[Cluster]:
    """Hosts over one shard on SQLite, MariaDB and MySQL in turn, with their marks in files."""
    with cluster_in(tmp_path) as cluster:
        cluster.url = lambda number: shard_url  # type: ignore[method-assign]
        cluster.marks = FileMarks(tmp_path / "state")
        yield cluster


def enqueue(cluster: Cluster, member: Member, count: int) -> set[int]:
    wire = cluster.wire(member)
    return {item_id for _ in range(count // 50) for item_id in wire.put("t", *[b"x"] * 50)}


def release(cluster: Cluster, member: Member) -> None:
    cluster.on_loop(lambda: member.release(1, 60_000))
    cluster.until(lambda: 1 not in member.engine.state.shards and member.runner.marker.idle, "the shard closed")


def take(cluster: Cluster, member: Member) -> None:
    cluster.on_loop(lambda: member.take(1))
    cluster.until(lambda: member.serves(1), "the shard served")


def of(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


def test_an_older_copy_gives_no_id_again(cluster: Cluster) -> None:
    """The copy is restored after the owner stopped in order. One log line says so."""
    first = cluster.add("a", 1)
    ids = enqueue(cluster, first, 50)
    copy = dump(cluster.url(1))
    ids |= enqueue(cluster, first, 500)
    epoch = first.engine.state.shards[1].owner.epoch
    release(cluster, first)
    restore(cluster.url(1), copy)
    with capture_logs() as lines:
        second = cluster.add("b", 1)
        release(cluster, second)
        take(cluster, second)
    assert len(of(lines, "shard.restored")) == 1
    assert second.engine.state.shards[1].owner.epoch > epoch
    assert not ids & enqueue(cluster, second, 500)


def test_a_copy_under_another_name_gives_no_id_again(cluster: Cluster, new_shard_url: NewShardUrl) -> None:
    """Marks belong to the shard's identity, which is in its row, and not to its address."""
    first = cluster.add("a", 1)
    ids = enqueue(cluster, first, 50)
    copy = dump(cluster.url(1))
    ids |= enqueue(cluster, first, 500)
    release(cluster, first)
    url = new_shard_url()
    create_schema(url, 1)
    restore(url, copy)
    cluster.url = lambda number: url  # type: ignore[method-assign]
    with capture_logs() as lines:
        second = cluster.add("b", 1)
    assert len(of(lines, "shard.restored")) == 1
    assert not ids & enqueue(cluster, second, 500)


def test_a_copy_beside_which_there_is_no_mark_gives_no_id_again(cluster: Cluster, tmp_path: Path) -> None:
    """The folder of the marks was lost, or the copy is served elsewhere."""
    first = cluster.add("a", 1)
    ids = enqueue(cluster, first, 50)
    copy = dump(cluster.url(1))
    ids |= enqueue(cluster, first, 500)
    release(cluster, first)
    restore(cluster.url(1), copy)
    cluster.marks = FileMarks(tmp_path / "another")
    assert not ids & enqueue(cluster, cluster.add("b", 1), 500)


def test_a_new_database_with_an_old_number_gives_no_id_again(cluster: Cluster, new_shard_url: NewShardUrl) -> None:
    first = cluster.add("a", 1)
    ids = enqueue(cluster, first, 50)
    release(cluster, first)
    url = new_shard_url()
    cluster.url = lambda number: url  # type: ignore[method-assign]
    with capture_logs() as lines:
        second = cluster.add("b", 1)
    assert not of(lines, "shard.restored")
    assert not ids & enqueue(cluster, second, 50)


@pytest.mark.parametrize("orderly", [True, False])
def test_leases_that_a_copy_brings_back_are_ended(cluster: Cluster, orderly: bool) -> None:
    """Their items were acked after the copy was made, and nothing was enqueued since. Those that are delivered at most
    once were delivered; the rest is delivered again, as after any lease that ended."""
    soon = {"confirm_ms": 1_000}  # the next owner delivers nothing for so long
    first = cluster.add("a", 1, host=soon)
    wire = cluster.wire(first)
    ids = set(wire.put("t", *[b"x"] * 10))
    once = wire.put("once", b"x", delivery=Delivery.AT_MOST_ONCE)
    leased = wire.dequeue("t", count=6, lease_ms=3_600_000) + wire.dequeue("once", lease_ms=3_600_000, wait_ms=9_000)
    assert len(leased) == 7
    shard = first.engine.state.shards[1]
    cluster.until(
        lambda: shard.queue.oldest_unwritten_ms() is None and not shard.queue.in_flight, "the leases are written"
    )
    copy = dump(cluster.url(1))
    assert set(wire.ack(*leased)) == {0}
    if orderly:
        release(cluster, first)
    restore(cluster.url(1), copy)
    with capture_logs() as lines:
        if not orderly:
            cluster.on_loop(lambda: first.look_whose(1))
            cluster.until(lambda: 1 not in first.engine.state.shards, "the shard lost")
        owner = cluster.add("b", 1, host=soon) if orderly else first
        if not orderly:
            take(cluster, owner)
    (line,) = of(lines, "shard.restored")
    assert line["leases_ended"] == 7
    again = cluster.wire(owner)
    got: dict[int, int] = {}

    def all_came() -> bool:
        got.update({item.id: item.attempt for item in again.dequeue("t", count=10, wait_ms=1_000)})
        return len(got) == 10

    wait_until(all_came, "all items are delivered")
    assert got == dict.fromkeys(ids, 1) | {item.id: 2 for item in leased[:6]}
    wait_until(lambda: again.state(once[0]) is None, "the item that was delivered once is removed")
    restored = check_shard(cluster.url(1), 1).restore
    assert restored.leases_ended == 7
    assert restored.at_ms > 0


def test_leases_survive_a_restart_and_a_take_over(cluster: Cluster) -> None:
    """Nothing was restored."""
    first = cluster.add("a", 1)
    wire = cluster.wire(first)
    wire.put("t", *[b"x"] * 3)
    leased = wire.dequeue("t", count=3, lease_ms=3_600_000)
    shard = first.engine.state.shards[1]
    cluster.until(
        lambda: shard.queue.oldest_unwritten_ms() is None and not shard.queue.in_flight, "the leases are written"
    )
    with capture_logs() as lines:
        second = cluster.add("b", 1)  # by force
        cluster.on_loop(lambda: first.look_whose(1))
        cluster.until(lambda: 1 not in first.engine.state.shards, "the shard lost")
        release(cluster, second)
        take(cluster, second)
    assert not of(lines, "shard.restored")
    cluster.tell(cluster.routing(second))
    assert set(cluster.wire(second).ack(*leased)) == {0}
    assert check_shard(cluster.url(1), 1).restore == (0, 0)


def test_a_copy_that_is_put_back_after_a_crash_gives_no_id_again(cluster: Cluster) -> None:
    """The owner had no time to save its mark."""
    first = cluster.add("a", 1)
    copy = dump(cluster.url(1))
    ids = enqueue(cluster, first, 500)
    restore(cluster.url(1), copy)  # the owner finds out that the shard is another's when it writes the next time
    second = cluster.add("b", 1)
    assert not ids & enqueue(cluster, second, 500)


def test_a_copy_restored_under_a_live_owner_reuses_no_id(cluster: Cluster) -> None:
    first = cluster.add("a", 1)
    copy = dump(cluster.url(1))
    ids = enqueue(cluster, first, 500)
    restore(cluster.url(1), copy)
    with capture_logs() as lines:
        first.look_whose(1)
        cluster.on_loop(lambda: first.look_whose(1))
        cluster.until(lambda: 1 not in first.engine.state.shards, "the shard lost")
        take(cluster, first)
    assert len(of(lines, "shard.restored")) == 1
    assert not ids & enqueue(cluster, first, 500)


def test_an_orderly_restart_skips_no_number(cluster: Cluster) -> None:
    member = cluster.add("a", 1)
    before = enqueue(cluster, member, 50)
    with capture_logs() as lines:
        release(cluster, member)
        take(cluster, member)
    assert min(enqueue(cluster, member, 50)) == max(before) + 1
    assert not of(lines, "shard.restored")


def test_a_folder_that_cannot_be_written_stops_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The host logs the failure once, and serves."""
    (tmp_path / "state").write_text("no folder")
    with capture_logs() as lines:
        member = cluster.add("a", 1)
        assert len(enqueue(cluster, member, 50)) == 50
        release(cluster, member)
        take(cluster, member)
    assert len(of(lines, "shard.mark_not_saved")) == 1
    assert str(tmp_path / "state") in of(lines, "shard.mark_not_saved")[0]["reason"]


# ------------------------------------------------------------------------------------- the files, and when they change


def test_the_file_is_private_and_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "state" / "shard-1.mark"
    assert read_mark(file) is None
    write_mark(file, Mark(1, 2, 3))
    write_mark(file, Mark(1, 3, 4))
    assert read_mark(file) == Mark(1, 3, 4)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.listdir(file.parent) == [file.name]


def test_a_later_owners_mark_stands(tmp_path: Path) -> None:
    file = tmp_path / "shard-1.mark"
    write_mark(file, Mark(5, 2, 3))
    write_mark(file, Mark(4, 800, 900))
    assert read_mark(file) == Mark(5, 2, 3)


def test_a_damaged_file_is_reported_and_replaced(tmp_path: Path) -> None:
    """The marks of other shards that had the number are read all the same."""
    marks, file, other = FileMarks(tmp_path), mark_file(tmp_path, 1, "a1"), mark_file(tmp_path, 1, "b2")
    file.write_bytes(b"{")
    write_mark(other, Mark(4, 5, 6))
    write_mark(mark_file(tmp_path, 11, "c3"), Mark(7, 8, 9))

    async def work() -> list[Any]:
        found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        marks.recall(1, lambda marks, why_not: found.set_result([marks, why_not]))
        return await found

    found, why_not = asyncio.run(work())
    assert found == {"b2": Mark(4, 5, 6)}
    assert str(file) in why_not
    write_mark(file, Mark(1, 2, 3))
    assert read_marks(tmp_path, 1) == ({"a1": Mark(1, 2, 3), "b2": Mark(4, 5, 6)}, "")


class KeptMarks:
    """Marks in memory. The test decides when a save is answered."""

    def __init__(self) -> None:
        self.saved: list[Mark] = []
        self.answers: list[Callable[[str], None]] = []
        self.recalls: list[Callable[[Marks, str], None]] = []

    def recall(self, shard: int, done: Callable[[Marks, str], None]) -> None:
        self.recalls.append(done)

    def save(self, shard: int, identity: str, mark: Mark, done: Callable[[str], None]) -> None:
        self.saved.append(mark)
        self.answers.append(done)


@pytest.fixture
def kept() -> KeptMarks:
    return KeptMarks()


@pytest.fixture
def later() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def marker(kept: KeptMarks, later: list[Callable[[], None]]) -> Marker:
    marker = Marker(kept, lambda after_ms, do: later.append(do))
    opened: Any = SimpleNamespace(epoch=1, next_number=1, behind=None, identity="a1", seq=0)
    marker.opened(7, opened)
    return marker


def test_a_mark_is_written_once_for_half_a_step(marker: Marker, kept: KeptMarks) -> None:
    kept.answers.pop()("")
    for number in range(1, MARK_STEP // 2):
        marker.committed(7, number)
    assert len(kept.saved) == 1
    marker.committed(7, MARK_STEP)
    assert kept.saved[1:] == [Mark(1, MARK_STEP, 2 * MARK_STEP, MARK_STEP // 2)]


def test_one_save_at_a_time_and_the_last_one_counts(marker: Marker, kept: KeptMarks) -> None:
    for number in (MARK_STEP, 2 * MARK_STEP, 3 * MARK_STEP):
        marker.committed(7, number)
    assert len(kept.saved) == 1
    assert not marker.idle
    kept.answers.pop()("")
    assert kept.saved[1:] == [Mark(1, 3 * MARK_STEP, 4 * MARK_STEP, 3)]
    kept.answers.pop()("")
    assert marker.idle


def test_a_failure_is_logged_once_and_tried_again(
    marker: Marker, kept: KeptMarks, later: list[Callable[[], None]]
) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            kept.answers.pop()("no space")
            later.pop()()
        kept.answers.pop()("")
    assert [line["event"] for line in lines] == ["shard.mark_not_saved"]
    assert len(kept.saved) == 4
    later.pop()()
    assert not later
    assert len(kept.saved) == 4


def test_a_mark_follows_the_commits(marker: Marker, kept: KeptMarks, later: list[Callable[[], None]]) -> None:
    """So a copy from before the last acks is known, too, after a crash: nothing was enqueued since."""
    kept.answers.pop()("")
    for _ in range(3):
        marker.committed(7, 5)
    (refresh,) = later
    refresh()
    assert kept.saved[1:] == [Mark(1, 5, 1 + MARK_STEP, 3)]
    kept.answers.pop()("")
    refresh()
    assert len(kept.saved) == 2


def test_a_host_without_marks_remembers_its_own() -> None:
    found: list[Marks | None] = []
    marker = Marker(None, lambda after_ms, do: None, lambda: Stamp(5, 6, "h"))
    marker.recall(7, found.append)
    opened: Any = SimpleNamespace(epoch=1, next_number=1, behind=None, identity="a1", seq=4)
    marker.opened(7, opened)
    marker.recall(7, found.append)
    assert found == [None, {"a1": Mark(1, 1, 1 + MARK_STEP, 4, Stamp(5, 6, "h"))}]


def test_marks_that_do_not_come_hold_up_nothing(
    marker: Marker, kept: KeptMarks, later: list[Callable[[], None]]
) -> None:
    """The mark that this process remembers counts then."""
    found: list[Marks | None] = []
    with capture_logs() as lines:
        marker.recall(7, found.append)
        later.pop()()
        kept.recalls.pop()({"a1": Mark(9, 9, 9)}, "")
    assert found == [{"a1": Mark(1, 1, 1 + MARK_STEP)}]
    assert [line["event"] for line in lines] == ["shard.mark_not_read"]
