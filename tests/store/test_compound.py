"""Small transactions as one prepared statement: which batches they are, how they end, and the rows that they leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from typing import Any

import pytest

from foqs.rows import Batch, Holding, NewItem
from foqs.store.compound import ROWS, Compound, CompoundTransaction
from foqs.store.protocol import CommitUnknown, Fenced, RowRejected, ShardStore, StoreBusy, StoreError
from foqs.store.statements import Plan
from foqs.store.transaction import Loss, State, Transaction
from tests.conftest import SHARD_KINDS
from tests.store.asking import ask, connect
from tests.store.contract import LANE, StoreContract, insert, ready_key
from tests.store.loop_store import LoopShard, LoopStore
from tests.store.proxy import PREPARED, Break
from tests.store.replies import err, ok, packet, reply
from tests.store.shards import Moment, ServerShard, new_item

MARIADB = pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:2], indirect=True)


class CompoundStore(LoopStore):
    """Sends text for other transactions. `compounds` counts transactions of one statement."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, binary_inserts=True, **options)
        self.compounds = 0

    def begin(self, batch: Batch) -> Transaction:
        made = super().begin(batch)
        self.compounds += isinstance(made, CompoundTransaction)
        return made


class CompoundShard(LoopShard):
    store_type = CompoundStore

    def lose_next(self, store: ShardStore, moment: Moment) -> None:
        """New items of a transaction whose COMMIT goes apart are parameters of several commands."""
        super().lose_next(store, moment)
        if moment is Moment.BEFORE_COMMIT:
            self.proxy(store).arm(Break("SET autocommit = 0", arrives=True))


@pytest.fixture
def shard(shard_kind: str, shard_url: str) -> Iterator[LoopShard]:
    made = CompoundShard(shard_url)
    yield made
    made.close()


@pytest.fixture
def store(shard: LoopShard) -> Iterator[CompoundStore]:
    made = shard.store()
    assert isinstance(made, CompoundStore)
    made.open("owner", take_over=False)
    made.commit(Batch(lanes_new=[LANE], next_number=1))
    yield made
    made.close()


def item(number: int, **options: Any) -> NewItem:
    made = new_item(number, **options)
    made.unindexed = True
    return made


@MARIADB
class TestCompounds(StoreContract):
    def test_small_transactions_are_one_statement(self, store: CompoundStore) -> None:
        insert(store, new_item(1), item(2))
        store.commit(Batch(ready_gone=[ready_key(new_item(1))], item_gone=[new_item(1).id, item(2).id]))
        assert store.compounds == 2


# ------------------------------------------------------------------------------------------- which batches they are


def compound_of(batch: Batch, max_bytes: int = 1 << 14) -> bytes | None:
    return Compound(1).command(1, 2, 3, 4, batch, max_bytes)


@pytest.mark.parametrize("name", [field.name for field in fields(Batch) if "list" in str(field.type)])
def test_rows_of_other_lists_need_text(name: str) -> None:
    """A list that a batch gets one day, too."""
    places: dict[str, list[Any]] = {"inserts": [item(1)], "ready_gone": [(1, 2, 3, 4)], "item_gone": [1]}
    assert (compound_of(Batch(**{name: places.get(name, [1])})) is not None) == (name in places)


def test_slots_and_expired_keys_need_text() -> None:
    assert compound_of(Batch(dedup_gone=(0, 0))) is None
    assert compound_of(Batch(slots=Holding())) is None
    assert compound_of(Batch(indexed_to=7)) is not None


@pytest.mark.parametrize(
    ("batch", "taken"),
    [
        (Batch(inserts=[item(n + 1) for n in range(ROWS)]), True),
        (Batch(inserts=[item(n + 1) for n in range(ROWS + 1)]), False),
        (Batch(item_gone=[*range(ROWS)], ready_gone=[(1, 2, 3, n) for n in range(ROWS)]), True),
        (Batch(item_gone=[*range(ROWS + 1)]), False),
        (Batch(ready_gone=[(1, 2, 3, n) for n in range(ROWS + 1)]), False),
        (Batch(inserts=[new_item(1, due_ms=5)]), False),
        (Batch(inserts=[item(1, expires_at_ms=5)]), False),
        (Batch(inserts=[item(1, payload=bytes(1 << 14))]), False),
        (Batch(inserts=[item(1, priority=1 << 31)]), False),
        (Batch(item_gone=[1 << 63]), False),
    ],
)
def test_larger_batches_need_text(batch: Batch, taken: bool) -> None:
    assert (compound_of(batch) is not None) is taken


# ------------------------------------------------------------------------------------------- replies


def compound() -> CompoundTransaction:
    return CompoundTransaction(Plan((), (), 9, with_commit=True), [b"command"], known={})


@pytest.mark.parametrize(
    ("answer", "state", "missed"),
    [
        (packet(1, ok(0)), State.COMMITTED, 0),
        (packet(1, err(1644, b"3", b"#FQ002")), State.COMMITTED, 3),
        (packet(1, err(1048, b"0no", b"#FQ001")), State.FENCED, 0),
        (packet(1, err(1048, b"1no", b"#FQ001")), State.FAILED, 0),
        (packet(1, err(1213, b"0no", b"#FQ001")), State.FAILED, 0),
        (packet(1, err(1213, b"no")), State.IN_DOUBT, 0),
        (reply(0, 0), State.IN_DOUBT, 0),
        (reply(0, failed=err(1048, b"0no", b"#FQ001")), State.IN_DOUBT, 0),
        (packet(1, ok(0)) + b"\1", State.IN_DOUBT, 0),
        (packet(1, b"\1"), State.IN_DOUBT, 0),
    ],
    ids=str,
)
def test_replies(answer: bytes, state: State, missed: int) -> None:
    for cut in (0, 6):
        made = compound()
        assert made.received(answer[:cut]) + made.received(answer[cut:]) == b""
        assert (made.ended, made.state, made.missed) == (True, state, missed)


def test_a_connection_that_is_lost() -> None:
    made = compound()
    made.lost(Loss.END)
    assert (made.ended, made.state) == (True, State.IN_DOUBT)


# ------------------------------------------------------------------------------------------- on a server


@MARIADB
def test_rows_that_are_missed_are_counted(shard: ServerShard, store: CompoundStore) -> None:
    insert(store, new_item(1), item(2))
    gone = Batch(ready_gone=[ready_key(new_item(n)) for n in (1, 2)], item_gone=[new_item(n).id for n in (1, 2, 3)])
    store.commit(gone)
    assert (store.mismatches, store.compounds) == (2, 2)
    assert ask(shard, "SELECT COUNT(*) FROM item") == ((0,),)


@MARIADB
def test_a_refused_row_undoes_the_rows_before(shard: ServerShard, store: CompoundStore) -> None:
    insert(store, item(3))
    for _ in range(2):
        with pytest.raises(RowRejected, match="duplicate"):
            insert(store, item(1), new_item(2), item(3))
        assert ask(shard, "SELECT id FROM item UNION ALL SELECT id FROM ready") == ((item(3).id,),)
    insert(store, item(1))
    assert store.compounds == 4


@MARIADB
@pytest.mark.parametrize("change", ["epoch = epoch + 1", "connection_id = 1", "seq = seq + 1", "one = 2"])
def test_the_fence_ends_it(shard: ServerShard, store: CompoundStore, change: str) -> None:
    ask(shard, f"UPDATE shard SET {change}")
    with pytest.raises(Fenced):
        insert(store, item(1))
    assert store.compounds == 1
    assert ask(shard, "SELECT COUNT(*) FROM item") == ((0,),)


@MARIADB
def test_a_lock_wait_and_an_end_by_the_server(shard: ServerShard, store: CompoundStore) -> None:
    """Nothing is committed; the wait can be repeated on the same connection."""
    insert(store, item(1))
    assert store._link is not None
    store._link.execute("SET SESSION innodb_lock_wait_timeout = 1")
    gone = Batch(item_gone=[item(1).id])
    with closing(connect(shard)) as other, closing(other.cursor()) as cursor:
        other.begin()
        cursor.execute("SELECT * FROM item FOR UPDATE")
        with pytest.raises(StoreBusy):
            store.commit(gone)
        store._link.execute("SET SESSION max_statement_time = 0.2")
        with pytest.raises(StoreError):
            store.commit(gone)
        other.rollback()
    assert store.reconnect() is False
    store.commit(gone)
    assert store.compounds == 4


@MARIADB
def test_a_server_that_cannot_run_the_statement(shard: ServerShard, store: CompoundStore) -> None:
    """It is asked once; from then on the transactions are text."""
    assert store._link is not None
    store._link.compound = Compound(9_999)
    with pytest.raises(CommitUnknown):
        insert(store, item(1))
    assert store.reconnect() is False
    insert(store, item(1))
    assert store.compounds == 1
    assert ask(shard, "SELECT COUNT(*) FROM item") == ((1,),)


@MARIADB
def test_tables_that_change_between_two_transactions(shard: ServerShard, store: CompoundStore) -> None:
    """The server makes a new plan, and keeps the places of the parameters."""
    changes = ("ADD COLUMN extra BIGINT NOT NULL DEFAULT 7", "DROP COLUMN extra", "ENGINE = InnoDB")
    altered = [f"ALTER TABLE {table} {change}" for table in ("item", "ready", "shard") for change in changes]
    for number, statement in enumerate(altered, 1):
        insert(store, new_item(number))
        ask(shard, statement)
        store.commit(Batch(ready_gone=[ready_key(new_item(number))], item_gone=[new_item(number).id]))
    assert (store.compounds, store.mismatches) == (2 * len(altered), 0)
    assert ask(shard, "SELECT COUNT(*) FROM item") == ((0,),)


@MARIADB
@pytest.mark.parametrize("arrives", [False, True])
def test_a_lost_connection_is_settled(shard: ServerShard, store: CompoundStore, arrives: bool) -> None:
    shard.proxy(store).arm(Break(PREPARED, arrives=arrives))
    with pytest.raises(CommitUnknown):
        insert(store, item(1))
    assert store.reconnect() is arrives
    assert len(store.bodies([item(1).id])) == arrives
    insert(store, item(2))
    assert store.compounds == 2


@MARIADB
def test_random_transactions_leave_the_rows_of_text(shard: ServerShard, store: CompoundStore) -> None:
    chance = random.Random(5)
    there: dict[int, NewItem] = {}
    for at in range(150):
        new = [
            (item if chance.random() < 0.5 else new_item)(10 * at + n + 1) for n in range(chance.randrange(ROWS + 2))
        ]
        for one in new:
            one.payload = chance.randbytes(chance.choice((0, 1, 250, 251, 3_000)))
            one.metadata, one.headers = chance.choice((None, b"", b"m")), chance.choice((None, b"", b"h" * 300))
            one.priority, one.lease_ms, one.lane = chance.randrange(-5, 5), chance.randrange(9), chance.randrange(1, 4)
        gone = chance.sample(list(there.values()), min(len(there), chance.randrange(ROWS + 1)))
        keys = [ready_key(one) for one in gone if not one.unindexed]
        batch = Batch(inserts=new, ready_gone=keys, item_gone=[one.id for one in gone], next_number=9_000)
        store.commit(batch)
        there.update({one.id: one for one in new})
        for one in gone:
            del there[one.id]
    assert store.mismatches == 0
    assert 50 < store.compounds < 150
    columns = "id, lane, priority, deliver_after, enqueued_at, lease_ms, delivery, metadata, headers, payload"
    assert sorted(ask(shard, f"SELECT {columns} FROM item"), key=str) == sorted(
        [
            (
                *(one.id, one.lane, one.priority, one.deliver_after_ms, one.enqueued_at_ms, one.lease_ms),
                *(one.delivery, one.metadata, one.headers, one.payload),
            )
            for one in there.values()
        ],
        key=str,
    )
    sizes = {one.id: len(one.payload) + len(one.metadata or b"") + len(one.headers or b"") for one in there.values()}
    assert sorted(ask(shard, "SELECT lane, priority, deliver_after, id, attempt, lease, bytes FROM ready")) == sorted(
        (*ready_key(one), 0, 0, sizes[one.id]) for one in there.values() if not one.unindexed
    )
