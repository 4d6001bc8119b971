"""A statement reads about the rows that it returns, however long the backlog. Counted by the servers themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from foqs.ids import make_id
from foqs.rows import Batch, LaneRow, NewItem
from foqs.store import reads
from foqs.store.dialect import MARIADB, SQLITE
from foqs.store.sql import SqlStore
from foqs.store.statements import planner_of
from tests.store.asking import ask, connect
from tests.store.contract import LANE, body, insert, ready_key, ready_row, timer_row
from tests.store.dead_contract import failure_of, moved
from tests.store.order_contract import ordered
from tests.store.shards import NOW_MS, NUMBER, ServerShard, SqliteShard, new_item
from tests.store.test_ownership import SERVERS

BACKLOG = 12_000
PAGE = 500


def rows_read(store: SqlStore, use: Callable[[], object]) -> int:
    """What the session's Handler_read counters grow by, temporary tables included."""

    def count() -> int:
        assert store._link is not None
        return sum(int(row[1]) for row in store._link.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'"))

    before = count()
    idle = count() - before  # SHOW STATUS reads rows of its own
    before = count()
    use()
    return count() - before - idle


class Backlog:
    """A shard with `BACKLOG` ready items each of lanes 1 and 2, and timers of which half are due."""

    def __init__(self, store: SqlStore, order: str) -> None:
        self.store = store
        source = random.Random(5)
        self.items: list[NewItem] = []
        for number in range(1, BACKLOG + 1):
            priority = source.randrange(-1000, 1000) if order == "priorities" else 0
            at_ms = NOW_MS if order == "ids" else NOW_MS + source.randrange(10_000)
            self.items.append(new_item(number, payload=b"p", priority=priority, deliver_after_ms=at_ms))
        self.timers = []
        for at in range(BACKLOG // 2):
            due_ms = NOW_MS + at * 10
            number = 3 * BACKLOG + at
            self.timers.append(new_item(number, payload=b"t", due_ms=due_ms, expires_at_ms=due_ms, lane=1 + at % 2))
        store.commit(Batch(lanes_new=[LANE, LaneRow(2, b"n", b"t2", b"")], next_number=1))
        store.commit(Batch(inserts=self.items, next_number=10 * BACKLOG))
        others = [
            new_item(BACKLOG + at + 1, payload=b"o", priority=item.priority, lane=2)
            for at, item in enumerate(self.items)
        ]
        store.commit(Batch(inserts=others, next_number=10 * BACKLOG))
        store.commit(Batch(inserts=self.timers, next_number=10 * BACKLOG))
        self.keys = sorted(ready_key(item)[1:] for item in self.items)


@pytest.fixture(params=["priorities", "times", "ids"])
def backlog(request: pytest.FixtureRequest, shard: ServerShard) -> Iterator[Backlog]:
    """In three orders: priorities differ; only times differ; only ids differ."""
    store = shard.store()
    store.open("owner", take_over=False)
    yield Backlog(store, request.param)
    assert store.mismatches == 0
    store.close()


@SERVERS
def test_rows_read(backlog: Backlog) -> None:
    """No statistics were gathered: the tables were empty a moment ago, which is when the optimizer is misled."""
    store = backlog.store
    middle = backlog.keys[BACKLOG // 2]
    last = backlog.keys[-10]
    some = random.Random(6).sample(backlog.items, PAGE)
    ids = [item.id for item in some]
    half_ms = backlog.timers[BACKLOG // 4].due_ms
    until_ms = half_ms + 10 * PAGE
    one, of_one = (middle[0], middle[0]), min(PAGE, sum(key[0] == middle[0] for key in backlog.keys))
    # Packed rows are read from the table once and once more from the temporary table they are packed from.
    paged = 2 if store._reads.packed_bytes else 1
    allowed = {
        "page from the start": (lambda: store.page(1, None, PAGE), paged * PAGE),
        "page from the middle": (lambda: store.page(1, middle, PAGE), paged * PAGE),
        "page near the end": (lambda: store.page(1, last, PAGE), paged * 10),
        "page of an empty lane": (lambda: store.page(3, middle, PAGE), 0),
        "page of lanes": (lambda: store.page_of_lanes([1, 2, 3], PAGE), paged * PAGE),
        "page of a priority": (lambda: store.page(1, None, PAGE, one), paged * of_one),
        "page of a priority, behind": (lambda: store.page(1, middle, PAGE, one), paged * of_one),
        "page of no priority": (lambda: store.page(1, middle, BACKLOG, (9_998, 9_999)), 0),
        "page of lanes, no priority": (lambda: store.page_of_lanes([1, 3], BACKLOG, (9_998, 9_999)), 0),
        "facts": (lambda: store.facts(ids, True), PAGE),
        "bodies": (lambda: store.bodies(ids), PAGE),
        "look": (lambda: store.look(ids), 4 * PAGE),
        "due": (lambda: store.due(half_ms, until_ms, PAGE), 2 * PAGE),
        "due, behind a row": (lambda: store.due(half_ms, until_ms, PAGE, middle[2]), 2 * PAGE),
        "due, all behind": (lambda: store.due(until_ms, 1 << 60, 10), 20),
        "due, nothing": (lambda: store.due(NOW_MS - 1000, NOW_MS - 1, PAGE), 0),
        "expiring": (lambda: store.expiring(half_ms, until_ms, PAGE), 8 * PAGE),
        "confirm": (store.confirm, 1),
        # As documented, those of other lanes are read too.
        "list_timer": (lambda: store.list_timer([1], False, (half_ms, 0), PAGE), 2 * PAGE),
    }
    read = {name: rows_read(store, use) for name, (use, _) in allowed.items()}
    too_many = {name: count for name, count in read.items() if count > allowed[name][1] + 25}
    assert not too_many, read


@SERVERS
def test_rows_read_of_a_thousand_lanes(shard: ServerShard) -> None:
    """A row for each row returned, and one for each lane, whose range ends there. Rows of other lanes are not read,
    and nothing is sorted: a limit of ten ends the read after ten rows."""
    store = shard.store()
    store.open("owner", take_over=False)
    others, lanes = range(1, 2_001, 2), list(range(2, 2_002, 2))
    store.commit(Batch(lanes_new=[LaneRow(n, b"n", b"%d" % n, b"") for n in (*others, *lanes)], next_number=1))
    items = [new_item(number, payload=b"p", lane=lane) for number, lane in enumerate(lanes, start=1)]
    store.commit(Batch(inserts=items, next_number=10_000))
    long = [new_item(1_000 + number, payload=b"o", lane=1 + number % 2_000 // 2 * 2) for number in range(1, 5_001)]
    store.commit(Batch(inserts=long, next_number=10_000))
    some = lanes[:10]
    for bound in {store._reads.packed_bytes, 0}:
        store._reads.packed_bytes = bound
        times = 2 if bound else 1  # packed rows are read once more, from the temporary table they are packed from
        assert [row.lane for row in store.page_of_lanes(lanes, PAGE * 3)] == lanes
        assert rows_read(store, lambda: store.page_of_lanes(lanes, PAGE * 3)) <= (times + 1) * len(lanes) + 25
        assert [row.lane for row in store.page_of_lanes(lanes, 10)] == some
        assert rows_read(store, lambda: store.page_of_lanes(lanes, 10)) <= (times + 1) * 10 + 25
    assert store._link is not None
    plan = store._link.fetch(f"EXPLAIN FORMAT=TRADITIONAL {reads.page_of_lanes_sql(store._dialect, lanes, 1_001)}")
    assert "filesort" not in str(plan), plan
    store.close()


@SERVERS
def test_rows_read_by_writes(backlog: Backlog) -> None:
    store = backlog.store
    some = random.Random(7).sample(backlog.items[10:], 3 * PAGE)
    lease, leased, ack = some[:PAGE], some[:PAGE], some[PAGE : 2 * PAGE]
    nack = some[2 * PAGE :]
    ready_gone = {"ready_gone": [ready_key(item) for item in lease]}
    timers = [timer_row(item, NOW_MS + 5, 1, 1, 1) for item in lease]
    batches = {
        "lease": (Batch(**ready_gone, timer_new=timers, next_number=1), PAGE),
        "ack of leased": (
            Batch(timer_gone=[item.id for item in leased], item_gone=[item.id for item in leased], next_number=1),
            3 * PAGE,
        ),
        "ack of ready": (
            Batch(ready_gone=[ready_key(item) for item in ack], item_gone=[item.id for item in ack], next_number=1),
            2 * PAGE,
        ),
        "nack": (
            Batch(
                ready_gone=[ready_key(item) for item in nack],
                metadata_new=[(item.id, b"again") for item in nack],
                deliver_after_new=[(item.id, NOW_MS + 9) for item in nack],
                timer_new=[timer_row(item, NOW_MS + 9, 0, 1) for item in nack],
                next_number=1,
            ),
            3 * PAGE,
        ),
        "one ack of ready": (
            Batch(ready_gone=[ready_key(backlog.items[5])], item_gone=[backlog.items[5].id], next_number=1),
            2,
        ),
        "one ack of leased": (
            Batch(timer_gone=[nack[0].id], item_gone=[nack[0].id], expiry_gone=[nack[0].id], next_number=1),
            3,
        ),
    }
    dead = [moved(item, 2, NOW_MS + 7, NOW_MS + 7) for item in backlog.items[6:10]]
    batches["dead letters"] = (
        Batch(
            ready_gone=[ready_key(item) for item in backlog.items[6:10]],
            moved=[(item.id, 2, NOW_MS + 7, NOW_MS + 7) for item in dead],
            ready_new=[ready_row(item) for item in dead],
            expiry_new=[(NOW_MS + 7, item.id) for item in dead],
            failure_new=[failure_of(item) for item in dead],
            next_number=1,
        ),
        2 * len(dead),
    )
    batches["acks of dead letters"] = (
        Batch(
            ready_gone=[ready_key(item) for item in dead],
            expiry_gone=[item.id for item in dead],
            failure_gone=[item.id for item in dead],
            item_gone=[item.id for item in dead],
            next_number=1,
        ),
        4 * len(dead),
    )
    # MariaDB finds them by joining a list, and reads that list too.
    factor = 3 if store._dialect is MARIADB else 1
    read = {name: rows_read(store, lambda batch=batch: store.commit(batch)) for name, (batch, _) in batches.items()}
    too_many = {name: count for name, count in read.items() if count > factor * batches[name][1] + 25}
    assert not too_many, read


@SERVERS
def test_a_short_queue_among_deleted_rows(shard: ServerShard) -> None:
    """Statistics leave out deleted rows that were not purged yet; a plan must not read those."""
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    link = store._link
    assert link is not None
    with connect(shard) as keeper, keeper.cursor() as cursor:
        for table in ("item", "ready", "timer", "expiry"):  # or the server counts the rows at any moment
            cursor.execute(f"ALTER TABLE {table} STATS_AUTO_RECALC = 0")
    items = [new_item(number, expires_at_ms=NOW_MS, due_ms=NOW_MS * (number % 2)) for number in range(1, 3_001)]
    insert(store, *items)
    with connect(shard) as reader, reader.cursor() as cursor:  # its view of the past keeps rows from being purged
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        store.commit(all_gone(items[200:]))
        for left in (items[:200], items[:40], items[:4], items[:2]):
            ids = [item.id for item in left]
            batch = all_gone(left)
            batch.metadata_new = [(item_id, b"m") for item_id in ids]
            batch.deliver_after_new = [(item_id, 1) for item_id in ids]
            planner = store._planner._replace(one_packet_bytes=0)
            texts = [*planner.plan(1, 1, 1, 1, batch).texts[2:]]
            texts += [
                reads.bodies_sql(store._dialect, ids),
                reads.look_sql(store._dialect, ids),
                reads.page_sql(store._dialect, 1, None, 100),
                reads.page_sql(store._dialect, 1, (0, NOW_MS, 5), 100),
                reads.page_of_lanes_sql(store._dialect, [1, 2], 100),
                reads.due_sql(store._dialect, NOW_MS, NOW_MS, 100)[0],
                reads.due_sql(store._dialect, NOW_MS, NOW_MS, 100, ids[0])[0],
                reads.expiring_sql(store._dialect, NOW_MS, NOW_MS, None, 100)[0],
                reads.sizes_sql(store._dialect, ids),
                reads.failures_sql(store._dialect, ids),
                select_of(reads.index_tail(store._dialect, ids[0])),
            ]
            for text in texts:
                plan = link.fetch(f"EXPLAIN FORMAT=TRADITIONAL {text}")
                whole = [row for row in plan if {"ALL", "index"} & set(row) and row[2] not in ("gone", None)]
                assert not whole, (text, plan)
            store.commit(all_gone(left[2:]))
            insert(store, *left[2:])
    assert store.mismatches == 0
    store.close()


@SERVERS
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_rows_are_deleted_alone_as_all_at_once(shard: ServerShard, count: int) -> None:
    """Both forms leave the same rows, and both count a row that is not there."""
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    items = [new_item(number, due_ms=NOW_MS * (number % 2)) for number in range(1, 15)]
    left = []
    for alone in (1, 2):
        store._planner = store._planner._replace(dialect=replace(store._dialect, deleted_alone=alone))
        insert(store, *items)
        store.commit(all_gone(items[: 2 * count]))
        left.append(ask(shard, "SELECT id FROM item UNION ALL SELECT id FROM ready UNION ALL SELECT id FROM timer"))
        assert store.mismatches == 0
        again = all_gone(items[2 * count - 1 : 3 * count])
        store.commit(again)
        assert store.mismatches == 2, "a row of `item`, and its row of `ready`"
        store.mismatches = 0
        store.commit(all_gone(items[3 * count :]))
        assert store.mismatches == 0
    assert sorted(left[0]) == sorted(left[1])
    store.close()


def select_of(insert: str) -> str:
    """What an INSERT reads; its plan shows the table that it writes as well."""
    return "SELECT" + insert.partition("SELECT")[2]


def all_gone(items: list[NewItem]) -> Batch:
    ids = [item.id for item in items]
    return Batch(
        ready_gone=[ready_key(item) for item in items if not item.due_ms],
        timer_gone=[item.id for item in items if item.due_ms],
        expiry_gone=ids,
        item_gone=ids,
        next_number=1,
    )


def test_sqlite_searches_and_does_not_scan(tmp_path: object) -> None:
    shard = SqliteShard(f"sqlite:///{tmp_path}/plan.db")
    store = shard.store()
    store.open("owner", take_over=False)
    link = store._link
    assert link is not None
    gone = Batch(ready_gone=[(1, 2, 3, 4), (5, 6, 7, 8)], timer_gone=[1, 2])
    texts = [
        reads.page_sql(SQLITE, 1, None, 10),
        reads.page_sql(SQLITE, 1, (1, 2, 3), 10),
        reads.page_sql(SQLITE, 1, (1, 2, 3), 10, (1, 4)),
        reads.page_of_lanes_sql(SQLITE, [1, 2], 10, (1, 4)),
        reads.page_of_lanes_sql(SQLITE, [1, 2], 10),
        reads.page_of_lanes_sql(SQLITE, list(range(1_000)), 1_001),
        reads.bodies_sql(SQLITE, [1, 2]),
        reads.look_sql(SQLITE, [1, 2]),
        *reads.due_sql(SQLITE, 1, 2, 3),
        *reads.expiring_sql(SQLITE, 1, 2, None, 3),
        *reads.expiring_sql(SQLITE, 1, 2, (1, 5), 3),
        reads.sizes_sql(SQLITE, [1, 2]),
        reads.failures_sql(SQLITE, [1, 2]),
        select_of(reads.index_tail(SQLITE, 5)),
        *planner_of(SQLITE, 1 << 20, 1 << 20).plan(1, 1, 1, 1, gone).texts[2:],
    ]
    scans = {f"SCAN {name}" for name in ("item", "ready", "timer", "expiry", "i", "r", "t", "e")}
    for text in texts:
        steps = [str(row[3]) for row in link.fetch(f"EXPLAIN QUERY PLAN {text}")]
        wrong = [step for step in steps if "TEMP B-TREE" in step or step in scans]
        assert not wrong, (text, steps)
    for at, range_read in (
        (1, ">(?,?,?)"),
        (2, ">(?,?,?) AND priority<?"),
        (3, "lane=? AND priority>? AND priority<?"),
    ):
        plan = [str(row[3]) for row in link.fetch(f"EXPLAIN QUERY PLAN {texts[at]}")]
        assert any(range_read in step for step in plan), plan
    store.close()


@SERVERS
@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
def test_both_drivers_and_both_ways_to_read(shard_url: str, driver: str) -> None:
    if driver == "mysqldb":
        pytest.importorskip("MySQLdb")
    shard = ServerShard(shard_url.replace("+pymysql", f"+{driver}"))
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    assert bool(store._reads.packed_bytes) == store.in_python == (driver == "pymysql")
    assert (store.plain_socket is not None) == (driver == "pymysql")
    source = random.Random(3)
    items = [
        new_item(n, payload=source.randbytes(n), metadata=[None, b"", b"m,;"][n % 3], headers=[b"{}", None][n % 2])
        for n in range(1, 300)
    ]
    items += [ordered(n, key=source.randbytes(n - 299), payload=source.randbytes(n), lane=1) for n in range(300, 305)]
    store.commit(Batch(inserts=items, ordered=True, next_number=10_000))
    ids = [item.id for item in items]
    for bound in {store._reads.packed_bytes, 0, min(store._reads.packed_bytes, 100)}:
        store._reads.packed_bytes = bound
        assert sorted(store.bodies(ids)) == [body(item) for item in items]
        assert [row[1:4] for row in store.page(1, None, 1000)] == [ready_key(item)[1:] for item in items[:299]]
    store.close()
    shard.close()


@SERVERS
def test_bodies_beyond_the_bound_of_packed_rows(shard: ServerShard) -> None:
    store = shard.store()
    store.open("owner", take_over=False)
    large = random.Random(1).randbytes(reads.PACKED_BYTES // 3)
    items = [new_item(n, payload=large + bytes([n])) for n in range(1, 5)]
    for item in items:
        insert(store, item)
    assert sorted(store.bodies([item.id for item in items])) == [body(item) for item in items]
    store.close()


def test_expiring_rows_without_an_item(shard: ServerShard | SqliteShard) -> None:
    """They cannot be, and if they are all the same they do not delay other rows."""
    store = shard.store()
    store.open("owner", take_over=False)
    item = new_item(99, expires_at_ms=NOW_MS)
    lost = [(NOW_MS, make_id(NUMBER, number)) for number in range(1, 25)]
    store.commit(Batch(lanes_new=[LANE], inserts=[item], expiry_new=lost, next_number=100))
    scan = store.expiring(0, NOW_MS, 5)
    assert [row.found.body.id for row in scan.rows] == [item.id]
    assert scan.complete
    store.close()


def test_expiring_bodies_are_bounded(shard: ServerShard | SqliteShard) -> None:
    """A scan of TTLs stops short of reading a thousand long bodies at once."""
    store = shard.store()
    store.open("owner", take_over=False)
    large = bytes(1 << 20)
    for number in range(1, 7):
        insert(store, new_item(number, payload=large, expires_at_ms=NOW_MS + number))
    scan = store.expiring(0, NOW_MS + 10, 100)
    assert [row.found.body.id for row in scan.rows] == [make_id(NUMBER, number) for number in range(1, 5)]
    assert not scan.complete
    rest = store.expiring(scan.rows[-1].at_ms, NOW_MS + 10, 100)
    assert [row.at_ms - NOW_MS for row in rest.rows] == [4, 5, 6]
    assert rest.complete
    store.close()
