"""The statements about batches of items: what they read, and what they miss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.item_batch import BatchState, Counts, Ends, HowEnded, MemberRows
from foqs.rows import Batch
from foqs.store import batch_reads
from foqs.store.dialect import MARIADB, SQLITE
from foqs.store.protocol import RowRejected
from foqs.store.sql import SqlStore
from foqs.store.statements import planner_of
from tests.store.batch_contract import counts_of, end, home, member, part, put
from tests.store.order_contract import ordered
from tests.store.row_contract import LANE
from tests.store.shards import NOW_MS, ServerShard, SqliteShard, new_item
from tests.store.test_ownership import SERVERS
from tests.store.test_reads import rows_read

BATCHES, OF_BATCH = 300, 10
ITEMS = [member(number, 1_000 + number % BATCHES, payload=b"p") for number in range(1, BATCHES * OF_BATCH + 1)]
IDS = [item.id for item in ITEMS]
HOMES = [home(5_000 + number) for number in range(1_000)]
TABLES = ("member", "batch_count", "item_batch", "batch_part", "t", "i")
CHANGES = MemberRows(
    new=[(77, 1_001), (78, 1_002)], ended={HowEnded.COMPLETED: IDS[:1], HowEnded.EXPIRED: IDS[1:60]},
    failed=IDS[60:62], redriven=IDS[62:70], sent=[(1_003, 1)], left=IDS[80:90], forgotten=[1_010, 1_011, 1_012],
    states=[(5_001, BatchState.CLOSED), (5_002, BatchState.CLOSED)], ends=[Ends(5_003, 3, NOW_MS, 0, 0)],
    removed=[5_004, 5_005, 5_006],
)  # fmt: skip


@pytest.fixture
def store(shard: ServerShard | SqliteShard) -> Iterator[SqlStore]:
    """Ten members of each of 300 batches, and the homes of 1,000 batches, half of which have ended."""
    made = shard.store()
    made.open("owner", take_over=False)
    made.commit(Batch(lanes_new=[LANE], next_number=1))
    put(made, *ITEMS)
    ends = [Ends(row.id, BatchState.SUCCEEDED, NOW_MS + row.id, 0, 0) for row in HOMES[::2]]
    end(made, created=HOMES, ends=ends, parts=[part(row.id, shard) for row in HOMES for shard in (1, 2)])
    end(made, failed=IDS[::3], sent=[(1_000 + number, 1 + (number % 3 == 1)) for number in range(0, BATCHES, 2)])
    yield made
    made.close()


def reads_of(store: SqlStore) -> list[str]:
    dialect = store._dialect
    return [
        batch_reads.member_counts_sql(dialect, [1_001, 1_002]),
        batch_reads.unsent_counts_sql(dialect, 1_001, 5),
        batch_reads.failed_ids_sql(dialect, [1_001, 1_002]),
        batch_reads.members_of_sql(dialect, 1_001, (True, 5), 5),
        batch_reads.batch_rows_sql(dialect, [5_001, 5_002]),
        batch_reads.live_batches_sql(dialect, 5_001, 5),
        batch_reads.batch_parts_sql(dialect, [5_001, 5_002]),
        batch_reads.ended_batches_sql(dialect, NOW_MS + 5_100, 5),
    ]


@SERVERS
def test_rows_read(store: SqlStore) -> None:
    """No statistics were gathered: the tables were empty a moment ago, which is when the optimizer is misled."""
    some = [1_000 + number for number in range(100)]
    homes = [row.id for row in HOMES[100:200]]
    failed = sum(len(row.failed_ids) for row in store.member_counts(some))
    assert failed > 100
    allowed = {
        "counts": (lambda: store.member_counts(some), 100 + 4 * failed),
        "unsent": (lambda: store.unsent_counts(1_100, 20), 20 + 4 * 20 * OF_BATCH),
        "members": (lambda: store.members_of(1_100, (False, 0), 5), 5),
        "failed members": (lambda: store.members_of(1_100, (True, 0), 5), 5),
        "members of none": (lambda: store.members_of(9, (False, 0), 5), 0),
        "batches": (lambda: store.batch_rows(homes), 100),
        "live": (lambda: store.live_batches(homes[0], 50), 50),
        "parts": (lambda: store.batch_parts(homes), 3 * 100),
        "ended": (lambda: store.ended_batches(NOW_MS + homes[0], 20), 20),
    }
    read = {name: rows_read(store, use) for name, (use, _) in allowed.items()}
    too_many = {name: count for name, count in read.items() if count > allowed[name][1] + 25}
    assert not too_many, read
    factor = 3 if store._dialect is MARIADB else 1
    writes = {
        "end": (lambda: end(store, ended={HowEnded.COMPLETED: IDS[1:901:3]}), 5 * 300),
        "one end": (lambda: end(store, ended={HowEnded.COMPLETED: IDS[2:3]}), 10),
        "fail": (lambda: end(store, failed=IDS[901:1_801:3]), 6 * 300),
        "redrive": (lambda: end(store, redriven=IDS[901:1_801:3]), 6 * 300),
        "leave": (lambda: end(store, left=IDS[1_801:2_101]), 300),
        "forget": (lambda: end(store, forgotten=some), 100),
        "remove": (lambda: end(store, removed=homes), 5 * 100),
        "close": (lambda: end(store, states=[(batch, BatchState.CLOSED) for batch in homes]), 200),
    }
    read = {name: rows_read(store, use) for name, (use, _) in writes.items()}
    too_many = {name: count for name, count in read.items() if count > factor * writes[name][1] + 25}
    assert not too_many, read


@SERVERS
def test_plans(store: SqlStore) -> None:
    link = store._link
    assert link is not None
    batch = Batch(members=CHANGES, item_gone=IDS[:3], next_number=1)
    written = store._planner._replace(one_packet_bytes=0).plan(1, 1, 1, 1, batch).texts[2:]
    for text in (*reads_of(store), *written):
        plan = link.fetch(f"EXPLAIN FORMAT=TRADITIONAL {text}")
        whole = [row for row in plan if {"ALL", "index"} & set(row) and row[2] in TABLES and "INSERT" not in row]
        assert not whole or text.startswith("INSERT"), (text, plan)
    for text in reads_of(store):
        plan = link.fetch(f"EXPLAIN FORMAT=TRADITIONAL {text}")
        assert "filesort" not in str(plan), (text, plan)


def test_sqlite_searches_and_does_not_scan(tmp_path: object) -> None:
    shard = SqliteShard(f"sqlite:///{tmp_path}/plan.db")
    store = shard.store()
    store.open("owner", take_over=False)
    assert store._link is not None
    written = planner_of(SQLITE, 1 << 20, 1 << 20).plan(1, 1, 1, 1, Batch(members=CHANGES)).texts[2:]
    for text in (*reads_of(store), *(text for text in written if not str(text).startswith("INSERT"))):
        steps = [str(row[3]) for row in store._link.fetch(f"EXPLAIN QUERY PLAN {text}")]
        wrong = [step for step in steps if step.split()[:2] in [["SCAN", table] for table in TABLES]]
        assert not wrong and any("SEARCH" in step for step in steps), (text, steps)
        assert "GROUP BY" in text or not [step for step in steps if "TEMP B-TREE" in step], (text, steps)
    store.close()


def test_a_batch_that_ends_again_is_a_mismatch(store: SqlStore) -> None:
    """With a callback: one without may come in several parts of a transaction."""
    live, ended = HOMES[1].id, HOMES[0].id
    end(store, ends=[Ends(live, BatchState.ENDED, NOW_MS, 7, 0), Ends(ended, BatchState.ENDED, NOW_MS, 0, 0)])
    assert store.mismatches == 0
    for at, ends in enumerate([Ends(live, 3, 1, 8, 0), Ends(live, 3, 1, 0, 8), Ends(ended, 3, 1, 8, 9)], 1):
        end(store, ends=[ends])
        assert store.mismatches == at
    assert store.batch_rows([live]) == [HOMES[1]._replace(state=BatchState.ENDED, ended_at_ms=NOW_MS, success_id=7)]


def test_callbacks_larger_than_a_statement(store: SqlStore) -> None:
    store._planner = store._planner._replace(max_statement_bytes=100_000)
    with pytest.raises(RowRejected, match="max_allowed_packet"):
        end(store, created=[home(9_000), home(9_001, on_success=bytes(40_000), on_end=bytes(20_000))])
    assert store.batch_rows([9_000, 9_001]) == []
    end(store, created=[home(9_000), home(9_001, on_success=bytes(20_000), on_end=bytes(20_000))])
    assert len(store.batch_rows([9_000, 9_001])) == 2


def test_transactions_without_members_are_as_before() -> None:
    """Their statements name none of the columns and tables."""
    planner = planner_of(SQLITE, 1 << 20, 1 << 20)
    batch = Batch(inserts=[new_item(1), ordered(2)], ordered=True, item_gone=[3], next_number=4)
    texts = [text for text in planner.plan(1, 1, 1, 1, batch).texts if isinstance(text, str)]
    assert not [text for text in texts if "batch" in text or "member" in text]
    batch.members = MemberRows(new=[(member(5).id, 8)])
    batch.inserts.append(member(5, 8))
    more = [text for text in planner.plan(1, 1, 1, 1, batch).texts if isinstance(text, str)]
    added = [text for text in more if text not in texts]
    assert [text for text in more if text in texts] == texts, "members have statements of their own"
    assert [text.split("(")[0] for text in added] == [
        "INSERT INTO item", "INSERT INTO ready", "INSERT INTO member", "INSERT INTO batch_count",
    ]  # fmt: skip


def test_counts_survive_a_change_of_the_owner(shard: ServerShard | SqliteShard, store: SqlStore) -> None:
    before = store.unsent_counts(0, 1_000)
    assert len(before) == BATCHES // 2 and all(row.counts.members == OF_BATCH for row in before)
    store.close()
    again = shard.store()
    assert again.open("owner", take_over=False).batches
    assert again.unsent_counts(0, 1_000) == before
    assert counts_of(again, 1_002).counts == Counts(OF_BATCH, failed=counts_of(again, 1_002).counts.failed)
    again.close()
