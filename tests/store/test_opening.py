"""What opening a shard reads: a few lanes at a time, and never a shard whose rows refer to lanes that `lane` lacks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foqs.opened import Backlog, RowPages
from foqs.rows import BACKLOG_SHIFT, Batch, LaneRow
from foqs.store import opening
from foqs.store.checkup import check_up
from foqs.store.link import Link
from foqs.store.maintenance import create_schema
from foqs.store.opening import orphan_words
from foqs.store.protocol import ShardRefused, explained
from foqs.store.sql import SqlStore
from tests.store.asking import run
from tests.store.contract import LANE, insert
from tests.store.shards import NOW_MS, new_item

LANES = [LaneRow(number, b"n", b"t", b"key %d" % number) for number in (1, 2, 3, 5, 8, 13, 21)]
BUCKET = NOW_MS >> BACKLOG_SHIFT


@pytest.fixture
def shard_of_lanes(shard_url: str) -> str:
    """Two ready items in each lane but 3, and a delayed one in 3 and in 21."""
    create_schema(shard_url, 1)
    store = SqlStore(shard_url, shard=1)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=LANES, next_number=1))
    ready = [row.lane for row in LANES if row.lane != 3] * 2
    insert(store, *[new_item(at, lane=lane, deliver_after_ms=NOW_MS) for at, lane in enumerate(ready, 1)])
    insert(store, new_item(98, lane=3, due_ms=NOW_MS), new_item(99, lane=21, due_ms=NOW_MS))
    store.close(clean=True)
    return shard_url


@pytest.mark.parametrize("page", [1, 3, 7, 8])
def test_pages_have_every_lane_once(shard_of_lanes: str, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_PAGE_LANES", page)
    most, fetch = 0, Link.fetch

    def watched(link: Link, query: str) -> Sequence[Any]:
        nonlocal most
        rows = fetch(link, query)
        if " FROM lane " in query or "COUNT(*) FROM ready" in query:
            most = max(most, len(rows))
        return rows

    monkeypatch.setattr(Link, "fetch", watched)
    store = SqlStore(shard_of_lanes, shard=1)
    opened = store.open("owner", take_over=False)
    store.close()
    assert most == min(page, len(LANES))
    assert list(opened.lanes) == LANES
    assert sorted(opened.backlog) == [Backlog(row.lane, BUCKET, 2) for row in LANES if row.lane != 3]
    assert opened.timers == {3: (1, 0), 21: (1, 0)}


@pytest.mark.parametrize("page", [2, 100])
def test_items_without_a_lane_are_found_on_every_page(
    shard_of_lanes: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_PAGE_LANES", page)
    run(shard_of_lanes, "DELETE FROM lane WHERE lane IN (1, 3, 8, 21)")
    with pytest.raises(ShardRefused) as refused:
        SqlStore(shard_of_lanes, shard=1).open("owner", take_over=True)
    assert str(refused.value).startswith("8 rows in ready, timer, ordered or done refer to 4 lanes 1, 3, 8, 21, which")


def test_rows_that_wait_take_little_memory() -> None:
    """As tuples these rows take more than 170 bytes each."""
    pages = RowPages(LaneRow)
    tracemalloc.start()
    try:
        for start in range(0, 10_000, 1_000):
            pages.add([(at, b"ns%d" % 1, b"t%d" % 1, b"k%d" % at, b"", 0) for at in range(start, start + 1_000)])
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 60 * 10_000
    assert peak_bytes < 120 * 10_000
    assert [row.lane for row in pages] == list(range(10_000))
    assert not list(pages)


@pytest.fixture
def broken_url(shard_url: str) -> str:
    """Two ready items of lane 2, a delayed one of lane 3, and rows of lane 1 alone in `lane`."""
    create_schema(shard_url, 1)
    store = SqlStore(shard_url, shard=1)
    store.open("owner", take_over=False)
    lanes = [LANE, LaneRow(2, b"n", b"second", b""), LaneRow(3, b"n", b"third", b"")]
    store.commit(Batch(lanes_new=lanes, next_number=1))
    insert(store, new_item(1), new_item(2, lane=2), new_item(3, lane=2), new_item(4, lane=3, due_ms=NOW_MS))
    store.close(clean=True)
    run(shard_url, "DELETE FROM lane WHERE lane > 1")
    return shard_url


def test_a_shard_with_rows_of_unknown_lanes_is_refused(broken_url: str) -> None:
    store = SqlStore(broken_url, shard=1)
    with pytest.raises(ShardRefused) as refused:
        store.open("owner", take_over=True)
    assert not refused.value.held
    assert explained(refused.value) == (
        "3 rows in ready, timer, ordered or done refer to 2 lanes 2, 3, which table lane lacks; restore all tables "
        "from the same backup, or delete the rows of these lanes in item, ready, timer, ordered, failure and done, and "
        "the rows of their items in expiry, result, progress and held_key"
    )


def test_a_shard_whose_lanes_came_back_opens(broken_url: str) -> None:
    with pytest.raises(ShardRefused):
        SqlStore(broken_url, shard=1).open("owner", take_over=True)
    run(
        broken_url,
        "INSERT INTO lane (lane, ns, topic, fairness) VALUES (2, x'6e', x'32', x''), (3, x'6e', x'33', x'')",
    )
    store = SqlStore(broken_url, shard=1)
    opened = store.open("owner", take_over=True)
    assert {found.lane: found.items for found in opened.backlog} == {1: 1, 2: 2}
    assert opened.timers == {3: (1, 0)}
    store.close()


def test_the_checkup_names_unknown_lanes(broken_url: str) -> None:
    found = [one.found for one in check_up(broken_url, 1, timeout_s=20, now_ms=lambda: 0.0).findings]
    assert orphan_words([2], "ready") in found


def test_words_name_a_few_lanes() -> None:
    assert orphan_words([4], "ready") == "rows in ready refer to lane 4, which table lane lacks"
    assert orphan_words([*range(1, 8)], "timer").endswith("refer to 7 lanes 1, 2, 3, 4, 5, ..., which table lane lacks")


def test_a_name_that_is_text_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shard.db"
    create_schema(url, 1)
    run(url, "INSERT INTO lane (lane, ns, topic, fairness) VALUES (2, 'n', 'second', '')")
    with pytest.raises(
        ShardRefused, match="lane 2 in table lane has a name that is text and not bytes: 'n'"
    ) as refused:
        SqlStore(url, shard=1).open("owner", take_over=True)
    run(url, refused.value.mend)
    store = SqlStore(url, shard=1)
    assert [row.ns for row in store.open("owner", take_over=True).lanes] == [b"n"]
    store.close()
