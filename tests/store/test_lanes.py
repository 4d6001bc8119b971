"""A shard whose rows refer to lanes that table `lane` lacks, as after a restore of some of its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs.rows import Batch, LaneRow
from foqs.store.checkup import check_up
from foqs.store.maintenance import create_schema
from foqs.store.opening import orphan_words
from foqs.store.protocol import ShardRefused, explained
from foqs.store.sql import SqlStore
from tests.store.asking import run
from tests.store.contract import LANE, insert
from tests.store.shards import NOW_MS, new_item


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
        "3 rows in ready or timer refer to 2 lanes 2, 3, which table lane lacks; restore all tables from the same "
        "backup, or delete the rows of these lanes in item, ready, timer and failure, and the rows of their items in "
        "expiry"
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
