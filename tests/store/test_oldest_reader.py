"""Which hosts may serve a shard: `min_reader` follows the tail of its owner."""

from __future__ import annotations

import pytest

from foqs.rows import Batch
from foqs.store.link import Database
from foqs.store.tables import DEAD_VERSION, SCHEMA_VERSION, TAIL_VERSION, TENANTS_VERSION
from tests.store.asking import run
from tests.store.contract import LANE, insert, ready_key
from tests.store.dead_contract import dead_letters
from tests.store.row_contract import timer_row
from tests.store.shards import NOW_MS, ServerShard, SqliteShard, new_item

AnyShard = ServerShard | SqliteShard


@pytest.mark.parametrize(
    ("version", "closed", "served", "closed_again"),
    [(SCHEMA_VERSION, 1, TAIL_VERSION, 1), (SCHEMA_VERSION + 1, TAIL_VERSION, TAIL_VERSION, TAIL_VERSION)],
)
def test_the_oldest_reader_of_a_shard(
    shard: AnyShard, version: int, closed: int, served: int, closed_again: int
) -> None:
    """A host of an older version may serve it between its owners, unless a later version has reasons of its own."""
    run(shard.url, f"UPDATE shard SET version = {version}, min_reader = {closed}")
    store = shard.store()
    store.open("owner", take_over=False)
    assert reader_of(shard) == served
    store.close(clean=True)
    assert reader_of(shard) == closed_again


def test_dead_letters_keep_older_hosts_away(shard: AnyShard) -> None:
    """They would remove an item and leave its row in `failure`."""
    store = shard.store()
    store.open("owner", take_over=False)
    items, _, batch = dead_letters(1, b"")
    insert(store, *items)
    batch.ready_gone, batch.timer_gone = [ready_key(items[0])], []
    batch.lanes_new.append(LANE)
    store.commit(batch)
    store.close(clean=True)
    assert reader_of(shard) == DEAD_VERSION
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(failure_gone=[items[0].id], next_number=10_000))
    store.close(clean=True)
    assert reader_of(shard) == 1


@pytest.mark.parametrize("names", [{"fairness": b"tenant"}, {"throttles": b"key"}])
def test_tenants_keep_older_hosts_away(shard: AnyShard, names: dict[str, bytes]) -> None:
    """They would take each of the topic's lanes for its only one."""
    store = shard.store()
    store.open("owner", take_over=False)
    tenant = LANE._replace(lane=2, **names)
    store.commit(Batch(lanes_new=[LANE, tenant], next_number=1))
    store.close(clean=True)
    assert reader_of(shard) == TENANTS_VERSION
    store = shard.store()
    assert sorted(store.open("owner", take_over=False).lanes) == [LANE, tenant]
    store.commit(Batch(lanes_gone=[2], next_number=1))
    store.close(clean=True)
    assert reader_of(shard) == 1


def test_a_shard_of_version_1_has_no_tail(shard: AnyShard) -> None:
    """Its owner names no column that the database lacks."""
    lane_columns = (
        "DROP INDEX lane_of_names",
        "ALTER TABLE lane DROP COLUMN throttles",
        "ALTER TABLE lane DROP COLUMN weight",
    )
    if isinstance(shard, ServerShard):
        lane_columns = ("ALTER TABLE lane DROP INDEX lane_of_names, DROP COLUMN throttles, DROP COLUMN weight",)
    others = ("ALTER TABLE shard DROP COLUMN indexed_to", "ALTER TABLE item DROP COLUMN first_at")
    run(shard.url, "UPDATE shard SET version = 1", *others, *lane_columns)
    store = shard.store()
    opened = store.open("owner", take_over=False)
    insert(store, item := new_item(), next_number=opened.next_number + 1)
    store.commit(Batch(lanes_new=[LANE, LANE._replace(lane=2, topic=b"new")], next_number=opened.next_number + 1))
    store.reconnect()
    delayed = timer_row(item, NOW_MS + 5)
    store.commit(
        Batch(ready_gone=[ready_key(item)], deliver_after_new=[(item.id, NOW_MS + 5)], timer_new=[delayed],
              next_number=opened.next_number + 1)
    )  # fmt: skip
    assert [row.since_ms for row in store.look([item.id])] == [item.enqueued_at_ms]
    assert [row.since_ms for row in store.due(0, NOW_MS + 5, 9).rows] == [item.enqueued_at_ms]
    store.close()
    store = shard.store()
    assert len(list(store.open("owner", take_over=False).lanes)) == 2
    assert (opened.tail, reader_of(shard)) == (False, 1)
    store.close(clean=True)
    assert reader_of(shard) == 1


def reader_of(shard: AnyShard) -> int:
    with Database(shard.url).connect() as connection:
        return int(connection.exec_driver_sql("SELECT min_reader FROM shard").scalar_one())
