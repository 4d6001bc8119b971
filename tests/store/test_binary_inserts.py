"""New items as parameters of prepared statements, on the servers: the same rows as in text, and no row of a transaction
that one of its commands ended."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foqs.rows import Batch, NewItem
from foqs.store.protocol import RowRejected, StoreBusy
from foqs.store.sql import SqlStore
from foqs.store.statements import ITEM
from tests.conftest import NewShardUrl
from tests.store.asking import ask, connect, row_lock_waits
from tests.store.contract import LANE, body, insert, ready_key
from tests.store.loop_store import BinaryShard, BinaryStore
from tests.store.row_contract import BYTES, I32, I64
from tests.store.shards import NOW_MS, NUMBER, ServerShard, new_item
from tests.store.test_ownership import SERVERS
from tests.support.waiting import wait_until

TABLES = ("item", "ready", "timer", "expiry")
_TIMES = st.sampled_from(I64)
_DATA = st.one_of(st.sampled_from(BYTES), st.binary(max_size=300))


@pytest.fixture
def shard(shard_kind: str, shard_url: str) -> Iterator[BinaryShard]:
    made = BinaryShard(shard_url)
    yield made
    made.close()


@pytest.fixture
def store(shard: BinaryShard) -> Iterator[BinaryStore]:
    store = shard.store()
    assert isinstance(store, BinaryStore)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    yield store
    store.close()


def rows_of(shard: ServerShard) -> list[list[tuple[object, ...]]]:
    return [sorted(ask(shard, f"SELECT * FROM {table}"), key=repr) for table in TABLES]


@st.composite
def items(draw: st.DrawFn) -> list[NewItem]:
    made = []
    for number in range(1, draw(st.sampled_from((1, 2, 3, 7, 31, 64, 100))) + 1):
        due_ms = draw(st.sampled_from((0, 0, *I64)))
        item = new_item(
            number,
            payload=draw(_DATA),
            metadata=draw(st.none() | _DATA),
            headers=draw(st.none() | _DATA),
            priority=draw(st.sampled_from(I32)),
            due_ms=due_ms,
            deliver_after_ms=draw(_TIMES),
            enqueued_at_ms=draw(_TIMES),
            expires_at_ms=draw(st.sampled_from((0, *I64))),
            lease_ms=draw(st.sampled_from(I32)),
            delivery=draw(st.sampled_from((-128, 0, 1, 2, 127))),
        )
        item.lane = draw(st.sampled_from((1, -(1 << 31), (1 << 31) - 1)))
        made.append(item)
    return made


@SERVERS
def test_both_forms_leave_the_same_rows(shard: BinaryShard, store: BinaryStore, new_shard_url: NewShardUrl) -> None:
    other = ServerShard(new_shard_url())
    text = other.store()
    text.open("owner", take_over=False)

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(items())
    def compare(made: list[NewItem]) -> None:
        batch = Batch(inserts=made, next_number=1)
        pipelines = store.pipelines
        text.commit(batch)
        store.commit(batch)
        assert store.pipelines == pipelines + 1
        assert rows_of(shard) == rows_of(other)
        for each in (shard, other):
            for table in TABLES:
                ask(each, f"DELETE FROM {table}")

    compare()
    large = [new_item(n, payload=bytes(range(256)) * (16 << 10), headers=b"" if n > 1 else None) for n in (1, 2, 3)]
    for one in (text, store):
        one.commit(Batch(inserts=large, next_number=1))
    assert rows_of(shard) == rows_of(other)
    assert store.mismatches == text.mismatches == 0
    text.close()
    other.close()


@SERVERS
def test_a_refused_row_ends_its_transaction(store: BinaryStore) -> None:
    """Commands behind the one that failed have run, and are rolled back."""
    insert(store, new_item(70))
    for _ in range(2):
        with pytest.raises(RowRejected):
            insert(store, *[new_item(n) for n in range(1, 101)])
    assert store.bodies([new_item(n).id for n in range(1, 101)]) == [body(new_item(70))]
    insert(store, *[new_item(n) for n in range(101, 201)])
    assert len(store.page(1, None, 300)) == 101


@SERVERS
def test_a_number_out_of_range_is_refused(store: BinaryStore) -> None:
    with pytest.raises(RowRejected):
        insert(store, new_item(1), new_item(2, priority=1 << 31))
    insert(store, new_item(1))
    assert store.bodies([new_item(1).id, new_item(2).id]) == [body(new_item(1))]


@SERVERS
def test_commands_behind_a_deadlock_change_nothing(shard: BinaryShard, store: BinaryStore) -> None:
    """The server ends the transaction and goes on with the next commands, each by itself."""
    insert(store, new_item(1))
    other = connect(shard)
    other.begin()
    with closing(other.cursor()) as cursor:
        # The transaction that has changed fewer rows is the one that ends.
        cursor.execute("CREATE TEMPORARY TABLE many (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE heavy (id INT PRIMARY KEY)")
        other.begin()
        cursor.executemany("INSERT INTO heavy VALUES (%s)", [(n,) for n in range(3_000)])
        values = "0, 0, 0, 0, 0, 0, 1, NULL, NULL, ''"
        cursor.execute(f"INSERT INTO {ITEM} VALUES ({new_item(10).id}, {values})")
        with ThreadPoolExecutor(1) as pool:

            def collide() -> None:
                wait_until(lambda: row_lock_waits(shard) > 0, "the store waits for the item")
                cursor.execute("UPDATE shard SET owner = owner WHERE one = 1")

            colliding = pool.submit(collide)
            with pytest.raises(StoreBusy, match="deadlock"):
                store.commit(
                    Batch(
                        inserts=[new_item(n) for n in range(10, 200)],
                        ready_gone=[ready_key(new_item(1))],
                        item_gone=[new_item(1).id],
                        next_number=300,
                    )
                )
            colliding.result()
        other.rollback()
    other.close()
    assert rows_of(shard)[0] == [tuple(body_row(new_item(1)))]
    assert len(rows_of(shard)[1]) == 1
    insert(store, *[new_item(n) for n in range(10, 200)])
    assert store.mismatches == 0


def body_row(item: NewItem) -> list[object]:
    """The row of `item`, in the order of its columns."""
    made = body(item)
    order = item.order_key, item.order_at
    return [*made[:8], made.metadata, made.headers, made.payload, None, None, *order, item.batch or None]


@SERVERS
def test_reads_leave_no_transaction_open(shard: BinaryShard, store: BinaryStore) -> None:
    """One that is open would block the statements that change a table."""
    insert(store, new_item(1))
    assert store._link is not None
    assert not store._link.autocommit
    store.confirm()
    assert store._link.fetch("SELECT @@autocommit") == ((1,),)
    assert store.page(1, None, 1)
    ask(shard, "SET SESSION lock_wait_timeout = 2")
    ask(shard, "ALTER TABLE item COMMENT = 'changed'")
    insert(store, *[new_item(n) for n in range(2, 50)])  # its statements are prepared again
    ask(shard, "ALTER TABLE ready COMMENT = 'changed'")
    store.close(clean=True)
    assert ask(shard, "SELECT owner FROM shard") == ((b"",),)


@SERVERS
def test_a_server_without_room_for_statements(shard: BinaryShard, store: BinaryStore) -> None:
    ((most,),) = ask(shard, "SELECT @@GLOBAL.max_prepared_stmt_count")
    used = "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'"
    before = ask(shard, used)
    try:
        ask(shard, f"SET GLOBAL max_prepared_stmt_count = {int(str(before[0][1])) + 3}")
        store._drop()
        wait_until(lambda: ask(shard, used) != before, "the statements of the old connection are gone")
        ask(shard, f"SET GLOBAL max_prepared_stmt_count = {int(str(ask(shard, used)[0][1])) + 3}")
        assert store.reconnect() is False
    finally:
        ask(shard, f"SET GLOBAL max_prepared_stmt_count = {most}")
    pipelines = store.pipelines
    insert(store, new_item(1))
    assert store.pipelines == pipelines
    assert store._link is not None
    assert store._link.inserts is None
    wait_until(lambda: ask(shard, used)[0][1] == "0", "the statements that fitted are closed")


@SERVERS
@pytest.mark.parametrize("binary", [False, True])
def test_which_stores_prepare_statements(shard: BinaryShard, shard_kind: str, binary: bool) -> None:
    store = SqlStore(shard.url, shard=NUMBER, binary_inserts=binary)
    store.open("owner", take_over=False)
    assert store._link is not None
    assert (store._link.inserts is not None) == (binary and shard_kind == "mariadb")
    store.commit(Batch(lanes_new=[LANE], inserts=[new_item(1)], next_number=1, due_from_ms=NOW_MS))
    store.close()
