"""The statements about the order of items with order keys: what they read, and what they miss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from foqs.order import OrderRow, Standing
from foqs.rows import Batch
from foqs.store import order_reads
from foqs.store.dialect import MARIADB, SQLITE
from foqs.store.sql import SqlStore
from foqs.store.statements import planner_of
from tests.store.order_contract import ordered, put
from tests.store.row_contract import LANE, ready_row
from tests.store.shards import NOW_MS, ServerShard, SqliteShard, new_item
from tests.store.test_ownership import SERVERS
from tests.store.test_reads import rows_read

KEYS, OF_KEY = 600, 5


def digest(number: int) -> bytes:
    return number.to_bytes(2) + bytes(14)


ITEMS = [ordered(number, digest(1 + number % KEYS)) for number in range(1, KEYS * OF_KEY + 1)]


@pytest.fixture
def store(shard: ServerShard | SqliteShard) -> Iterator[SqlStore]:
    """With five items of each of 600 keys."""
    made = shard.store()
    made.open("owner", take_over=False)
    made.commit(Batch(lanes_new=[LANE], next_number=1))
    put(made, *ITEMS)
    yield made
    made.close()


@SERVERS
def test_rows_read(store: SqlStore) -> None:
    """No statistics were gathered: the tables were empty a moment ago, which is when the optimizer is misled. A row has
    its item, and may have rows in `ready` and `timer`."""
    keys = [(digest(number), 0) for number in range(100, 200)]
    page, derived = 4 * 100, 2 * 100
    allowed = {
        "from the start": (lambda: store.orders_behind(b"", 100), page),
        "from the middle": (lambda: store.orders_behind(digest(KEYS // 2), 100), page),
        "near the end": (lambda: store.orders_behind(digest(KEYS - 5), 100), page),
        "nothing": (lambda: store.orders_behind(digest(KEYS), 100), 0),
        "of one": (lambda: store.orders_of([keys[0]], 3), 4 * 3 + 4),
        "of many": (lambda: store.orders_of(keys, 1), page + 2 * derived),
        "in use": (lambda: store.orders_between(digest(50), digest(90), 100), 40 * OF_KEY),
        "some in use": (lambda: store.orders_in([*(key for key, _ in keys), digest(KEYS + 5)]), 100 + derived),
        "homes": (lambda: store.order_homes(digest(50), digest(90), 100), 1),
        "dead": (lambda: store.dead_orders(0, 100), 1),
    }
    assert len(store.orders_of(keys, 1)) == 100
    read = {name: rows_read(store, use) for name, (use, _) in allowed.items()}
    too_many = {name: count for name, count in read.items() if count > allowed[name][1] + 25}
    assert not too_many, read
    gone = Batch(ordered=True, order_gone=[item.order_row for item in ITEMS[:500]], next_number=1)
    deleted = rows_read(store, lambda: store.commit(gone))
    assert deleted <= 500 * (3 if store._dialect is MARIADB else 1) + 25


@SERVERS
def test_plans(store: SqlStore) -> None:
    """A range of the primary key in its order."""
    link, dialect = store._link, store._dialect
    assert link is not None
    text = order_reads.orders_behind_sql(dialect, digest(KEYS // 2), 100)
    plan = link.fetch(f"EXPLAIN FORMAT=TRADITIONAL {text}")
    first = next(row for row in plan if row[2] == "o")
    assert {"range", "PRIMARY"} <= set(first), plan
    gone = Batch(
        ordered=True, order_gone=[ITEMS[0].order_row, *(item.order_row for item in ITEMS[7:12])], next_number=1
    )
    texts = [
        text,
        order_reads.orders_of_sql(dialect, [(digest(1), 0), (digest(2), 5)], 10),
        order_reads.order_leases_sql(dialect, [2]),
        order_reads.orders_in_sql(dialect, [digest(1), digest(2)]),
        order_reads.orders_between_sql(dialect, digest(1), digest(2), 10),
        order_reads.order_homes_sql(dialect, digest(1), digest(2), 10),
        order_reads.dead_orders_sql(dialect, 1, 10),
        *store._planner._replace(one_packet_bytes=0).plan(1, 1, 1, 1, gone).texts[2:],
    ]
    for text in texts:
        plan = link.fetch(f"EXPLAIN FORMAT=TRADITIONAL {text}")
        whole = [row for row in plan if {"ALL", "index"} & set(row) and row[2] in ("o", "ordered", "i", "r")]
        assert not whole and "filesort" not in str(plan), (text, plan)


def test_sqlite_searches_and_does_not_scan(tmp_path: object) -> None:
    shard = SqliteShard(f"sqlite:///{tmp_path}/plan.db")
    store = shard.store()
    store.open("owner", take_over=False)
    assert store._link is not None
    gone = Batch(ordered=True, order_gone=[item.order_row for item in ITEMS[:3]])
    texts = [
        order_reads.orders_behind_sql(SQLITE, digest(7), 100),
        order_reads.orders_of_sql(SQLITE, [(digest(1), 0), (digest(2), 5)], 10),
        order_reads.orders_in_sql(SQLITE, [digest(1), digest(2)]),
        order_reads.orders_between_sql(SQLITE, digest(1), digest(2), 10),
        order_reads.order_homes_sql(SQLITE, digest(1), digest(2), 10),
        order_reads.dead_orders_sql(SQLITE, 1, 10),
        *planner_of(SQLITE, 1 << 20, 1 << 20).plan(1, 1, 1, 1, gone).texts[2:],
    ]
    for text in texts:
        steps = [str(row[3]) for row in store._link.fetch(f"EXPLAIN QUERY PLAN {text}")]
        wrong = [step for step in steps if "TEMP B-TREE" in step or step in ("SCAN o", "SCAN ordered", "SCAN i")]
        assert not wrong, (text, steps)
        assert any("SEARCH" in step for step in steps), steps
    store.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_that_are_not_there_are_missed(store: SqlStore, count: int) -> None:
    there = [item.order_row for item in ITEMS[:count]]
    store.commit(Batch(ordered=True, order_gone=there, next_number=1))
    assert store.mismatches == 0
    for alone in (1, 3):
        store._planner = store._planner._replace(dialect=replace(store._dialect, deleted_alone=alone))
        store.commit(Batch(ordered=True, order_gone=there, next_number=1))
        assert store.mismatches == count
        store.mismatches = 0
        other = [row._replace(standing=Standing.RETRY) for row in (ITEMS[9].order_row, ITEMS[10].order_row)]
        store.commit(Batch(ordered=True, order_gone=other[:1], order_new=other[:1], next_number=1))
        assert store.mismatches == 1
        store.commit(Batch(ordered=True, order_gone=other[:1], order_at_new=[(1 << 50, b"")], next_number=1))
        assert store.mismatches == 2
        store.mismatches = 0


def test_other_rows_stay(store: SqlStore) -> None:
    gone = ITEMS[::2]
    store.commit(Batch(ordered=True, order_gone=[item.order_row for item in gone], next_number=1))
    assert store._link is not None
    rows = store._link.fetch("SELECT digest, standing, place, id, lane FROM ordered")
    left = {OrderRow(bytes(row[0]), *row[1:]) for row in rows}
    assert left == {item.order_row for item in ITEMS[1::2]}
    assert store.mismatches == 0


def test_a_row_leaves_and_another_takes_its_key(store: SqlStore) -> None:
    """In one transaction: rows are deleted before any is stored."""
    first, second = ordered(90_001, digest(900)), ordered(90_002, digest(900))
    put_again = Batch(inserts=[first], ordered=True, next_number=1)
    store.commit(put_again)
    taken = first.order_row._replace(id=second.id)
    store.commit(Batch(ordered=True, order_gone=[first.order_row], order_new=[taken], next_number=1))
    assert store.mismatches == 0


def test_transactions_without_order_keys_are_as_before() -> None:
    """Their statements name none of the columns and tables."""
    planner = planner_of(SQLITE, 1 << 20, 1 << 20)
    batch = Batch(inserts=[new_item(1), new_item(2, due_ms=NOW_MS)], ready_new=[ready_row(new_item(3))])
    texts = [text for text in planner.plan(1, 1, 1, 1, batch).texts if isinstance(text, str)]
    assert not [text for text in texts if "order" in text]
    batch = Batch(inserts=[new_item(1), ordered(2)], ordered=True)
    texts = [text for text in planner.plan(1, 1, 1, 1, batch).texts if isinstance(text, str)]
    assert [text.split("(")[0] for text in texts if "INSERT" in text] == [
        "INSERT INTO item", "INSERT INTO ready", "INSERT INTO item", "INSERT INTO ordered",
    ]  # fmt: skip
