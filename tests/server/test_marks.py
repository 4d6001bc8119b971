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

from foqs.marks import STEP, Mark
from foqs.server.marks import FileMarks, Marker, read_mark, write_mark
from tests.peers.nodes import Cluster, Member, cluster_in
from tests.store.copies import dump, restore


@pytest.fixture
def cluster(tmp_path: Path, shard_url: str) -> Iterator[Cluster]:
    """Hosts over one shard on SQLite, MariaDB and MySQL in turn, with their marks in files."""
    with cluster_in(tmp_path) as cluster:
        cluster.url = lambda number: shard_url  # type: ignore[method-assign]
        cluster.marks = FileMarks(tmp_path / "state", {1: shard_url})
        yield cluster


def enqueue(cluster: Cluster, member: Member, count: int) -> set[int]:
    wire = cluster.wire(member)
    return {item_id for _ in range(count // 50) for item_id in wire.put("t", *[b"x"] * 50)}


def release(cluster: Cluster, member: Member) -> None:
    cluster.on_loop(lambda: member.release(1, 60_000))
    cluster.until(lambda: 1 not in member.engine.shards and member.runner.marker.idle, "the shard closed")


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
    epoch = first.engine.shards[1].epoch
    release(cluster, first)
    restore(cluster.url(1), copy)
    with capture_logs() as lines:
        second = cluster.add("b", 1)
        release(cluster, second)
        take(cluster, second)
    assert len(of(lines, "shard.restored")) == 1
    assert second.engine.shards[1].epoch > epoch
    assert not ids & enqueue(cluster, second, 500)


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
        cluster.until(lambda: 1 not in first.engine.shards, "the shard lost")
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
    url = "sqlite:////somewhere/shard-1.db"
    marks = FileMarks(tmp_path, {1: url})
    file = marks._files[1]
    file.write_bytes(b"{")

    async def work() -> list[Any]:
        found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        marks.recall(1, lambda mark, why_not: found.set_result([mark, why_not]))
        return await found

    mark, why_not = asyncio.run(work())
    assert mark is None
    assert str(file) in why_not
    write_mark(file, Mark(1, 2, 3))
    assert read_mark(file) == Mark(1, 2, 3)


def test_passwords_do_not_change_the_name_of_a_file(tmp_path: Path) -> None:
    one, other, away = (
        FileMarks(tmp_path, {1: f"mysql+pymysql://{who}@{where}/foqs_1"})._files[1]
        for who, where in [("a:b", "db:3306"), ("c:d", "db:3306"), ("a:b", "other:3306")]
    )
    assert one == other != away


class KeptMarks:
    """Marks in memory. The test decides when a save is answered."""

    def __init__(self) -> None:
        self.saved: list[Mark] = []
        self.answers: list[Callable[[str], None]] = []
        self.recalls: list[Callable[[Mark | None, str], None]] = []

    def recall(self, shard: int, done: Callable[[Mark | None, str], None]) -> None:
        self.recalls.append(done)

    def save(self, shard: int, mark: Mark, done: Callable[[str], None]) -> None:
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
    opened: Any = SimpleNamespace(epoch=1, next_number=1, behind=None)
    marker.opened(7, opened)
    return marker


def test_a_mark_is_written_once_for_half_a_step(marker: Marker, kept: KeptMarks) -> None:
    kept.answers.pop()("")
    for number in range(1, STEP // 2):
        marker.committed(7, number)
    assert len(kept.saved) == 1
    marker.committed(7, STEP)
    assert kept.saved[1:] == [Mark(1, STEP, 2 * STEP)]


def test_one_save_at_a_time_and_the_last_one_counts(marker: Marker, kept: KeptMarks) -> None:
    for number in (STEP, 2 * STEP, 3 * STEP):
        marker.committed(7, number)
    assert len(kept.saved) == 1
    assert not marker.idle
    kept.answers.pop()("")
    assert kept.saved[1:] == [Mark(1, 3 * STEP, 4 * STEP)]
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


def test_marks_that_do_not_come_hold_up_nothing(
    marker: Marker, kept: KeptMarks, later: list[Callable[[], None]]
) -> None:
    """The mark that this process remembers counts then."""
    found: list[Mark | None] = []
    with capture_logs() as lines:
        marker.recall(7, found.append)
        later.pop()()
        kept.recalls.pop()(Mark(9, 9, 9), "")
    assert found == [Mark(1, 1, 1 + STEP)]
    assert [line["event"] for line in lines] == ["shard.mark_not_read"]
