"""A shard with very many lanes is opened without the rows of all of them in memory at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.rows import BACKLOG_SHIFT, Backlog, Batch, LaneRow, RowPages
from foqs.store import opening
from foqs.store.link import Link
from foqs.store.maintenance import create_schema
from foqs.store.protocol import ShardRefused
from foqs.store.sql import SqlStore
from tests.store.asking import run
from tests.store.contract import insert
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
    assert str(refused.value).startswith("8 rows in ready or timer refer to 4 lanes 1, 3, 8, 21, which")


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
