"""Ranges of a shard as Arrow batches, without Spark, on each kind of database."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from foqs.errors import Unavailable
from foqs.ids import make_id
from foqs.rows import AT_MOST_ONCE, Batch, LaneRow, NewItem, ProgressRow, TimerRow
from foqs.spark.snapshot_shards import MAX_ID, Piece, Wanted
from foqs.store.link import Link
from foqs.store.sql import SqlStore
from tests.store.contract import LANE, insert, ready_key, ready_row, timer_row
from tests.store.order_contract import ordered
from tests.store.proxy import Break, Proxy
from tests.store.shards import NOW_MS, NUMBER, ServerShard, SqliteShard, new_item
from tests.store.test_ownership import SERVERS

pytestmark = pytest.mark.spark  # which installs PyArrow too
AnyShard = ServerShard | SqliteShard
Read = Callable[..., list[Any]]
LIGHT = (
    "id", "shard", "namespace", "topic", "state", "priority", "deliver_after", "enqueued_at", "expires_at",
    "lease_expires_at", "attempt", "delivery", "lease_ms", "bytes", "payload_bytes", "fairness_key", "throttle_keys",
)  # fmt: skip
FULL = (*LIGHT, "payload", "metadata", "headers")
MiB = 1 << 20


def in_arrow(names: tuple[str, ...]) -> Any:
    """The Arrow schema that Spark would pass."""
    pa = pytest.importorskip("pyarrow")
    text = dict.fromkeys(("namespace", "topic", "state", "delivery", "fairness_key"), pa.string())
    times = ("deliver_after", "enqueued_at", "expires_at", "lease_expires_at")
    wide = {"id": pa.int64(), "lease_ms": pa.int64(), "headers": pa.map_(pa.string(), pa.string())}
    wide |= {"progress_done": pa.int64(), "progress_total": pa.int64()}
    wide["throttle_keys"] = pa.list_(pa.field("element", pa.string()))  # as Spark names it
    kinds = text | dict.fromkeys(times, pa.timestamp("us", "UTC")) | wide
    kinds |= dict.fromkeys(("payload", "metadata"), pa.binary())
    return pa.schema([(name, kinds.get(name, pa.int32())) for name in names])


@pytest.fixture
def shard(shard_kind: str, shard_url: str) -> Iterator[AnyShard]:
    made = SqliteShard(shard_url) if shard_kind == "sqlite" else ServerShard(shard_url)
    yield made
    made.close()


@pytest.fixture
def store(shard: AnyShard) -> Iterator[SqlStore]:
    """An open shard with lane 1 (ns/topic), lane 2 (ns/other), and many lanes of another namespace."""
    store = shard.store()
    store.open("owner", take_over=False)
    others = [LaneRow(n, b"else", b"%d" % n, b"") for n in range(3, 100)]
    store.commit(Batch(lanes_new=[LANE, LaneRow(2, b"ns", b"other", b""), *others], next_number=1))
    yield store
    store.close()


@pytest.fixture
def batches(shard: AnyShard) -> Read:
    """`batches(names, wanted)`: the Arrow batches of the shard, or of its range `low` < id <= `high`."""
    pytest.importorskip("pyarrow")

    def batches(
        names: tuple[str, ...] = LIGHT,
        wanted: Wanted | None = None,
        rows: int = 5_000,
        low: int = 0,
        high: int = MAX_ID,
        url: str = shard.url,
    ) -> list[Any]:
        from foqs.spark.snapshot import read_piece

        return list(read_piece(Piece(NUMBER, url, low, high), in_arrow(names), wanted or Wanted(), rows))

    return batches


def rows_of(batches: list[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def ms(row: dict[str, Any], name: str) -> int | None:
    return None if row[name] is None else round(row[name].timestamp() * 1000)


def lease(store: SqlStore, item: NewItem, *, due_ms: int, attempt: int) -> None:
    store.commit(
        Batch(
            ready_gone=[ready_key(item)],
            timer_new=[timer_row(item, due_ms, 4711, attempt, 30_000)],
            next_number=10_000,
        )
    )


# ------------------------------------------------------------------------------------------ columns of a row


def test_leased_delayed_and_ready_items(store: SqlStore, batches: Read) -> None:
    fresh = new_item(1, priority=-5, metadata=b"", headers=b'{"k": "v"}')
    again = new_item(2, payload=b"", expires_at_ms=NOW_MS + 7)
    later = new_item(3, due_ms=NOW_MS + 60_000, lane=2)
    held = new_item(4, priority=3, lease_ms=1_500)
    once = new_item(5, delivery=AT_MOST_ONCE, metadata=b"m")
    tried = new_item(6, due_ms=NOW_MS + 1_000)  # nacked with a delay
    unindexed = new_item(7)
    unindexed.unindexed = True
    insert(store, fresh, again, later, held, once, tried, unindexed)
    store.commit(Batch(inserts=[ordered(8, lane=1), ordered(9, lane=1)], ordered=True, next_number=10_000))
    lease(store, held, due_ms=NOW_MS + 1_500, attempt=3)
    lease(store, once, due_ms=NOW_MS - 5, attempt=1)  # its lease has ended, and its host has not noticed that yet
    store.commit(
        Batch(
            ready_gone=[ready_key(again)],
            ready_new=[ready_row(again, attempt=2, lease=99)],
            timer_gone=[tried.id],
            timer_new=[TimerRow(NOW_MS + 1_000, tried.id, 1, 0, 4, 0, 7)],
            next_number=10_000,
        )
    )
    found = {row["id"]: row for row in rows_of(batches(FULL))}
    said = {
        number: (row["state"], row["attempt"], ms(row, "lease_expires_at"), row["delivery"], row["lease_ms"])
        for number, row in ((item_id & 0xFF, row) for item_id, row in found.items())
    }
    assert said == {
        1: ("ready", 0, None, "AT_LEAST_ONCE", None),
        2: ("ready", 2, None, "AT_LEAST_ONCE", None),
        3: ("delayed", 0, None, "AT_LEAST_ONCE", None),
        4: ("leased", 3, NOW_MS + 1_500, "AT_LEAST_ONCE", 1_500),
        5: ("leased", 1, NOW_MS - 5, "AT_MOST_ONCE", None),
        6: ("delayed", 4, None, "AT_LEAST_ONCE", None),
        7: ("ready", 0, None, "AT_LEAST_ONCE", None),
        8: ("ready", 0, None, "AT_LEAST_ONCE", None),  # the first of its order key, and the next
        9: ("ready", 0, None, "AT_LEAST_ONCE", None),
    }
    row = found[fresh.id]
    assert (row["shard"], row["namespace"], row["topic"], row["priority"]) == (NUMBER, "ns", "topic", -5)
    assert (row["payload"], row["metadata"], row["headers"]) == (b"payload", b"", [("k", "v")])
    assert (row["bytes"], row["payload_bytes"]) == (17, 7)
    assert ms(found[again.id], "expires_at") == NOW_MS + 7
    assert (found[again.id]["payload"], found[again.id]["metadata"], found[again.id]["headers"]) == (b"", None, None)
    assert (found[later.id]["topic"], ms(found[later.id], "deliver_after")) == ("other", NOW_MS + 60_000)
    assert {ms(row, "enqueued_at") for row in found.values()} == {NOW_MS}
    assert {(row["fairness_key"], tuple(row["throttle_keys"])) for row in found.values()} == {("", ())}
    for state, numbers in {"leased": [4, 5], "delayed": [3, 6], "ready": [1, 2, 7, 8, 9]}.items():
        for names in (("id",), ("id", "state", "attempt")):
            of_state = rows_of(batches(names, Wanted(state=state)))
            assert [row["id"] & 0xFF for row in of_state] == numbers, (state, names)


def test_progress_that_the_schema_names(store: SqlStore, batches: Read) -> None:
    items = [new_item(number) for number in range(1, 5)]
    insert(store, *items)
    first, second, third, fourth = (item.id for item in items)
    lease(store, items[2], due_ms=NOW_MS, attempt=1)
    given = [ProgressRow(first, done=0), ProgressRow(second, b"only a checkpoint"), ProgressRow(third, done=3, total=7)]
    store.commit(Batch(progress_new=given, next_number=10_000))
    names = ("id", "progress_total", "progress_done")
    found = {row["id"]: (row["progress_done"], row["progress_total"]) for row in rows_of(batches(names))}
    assert found == {first: (0, None), second: (None, None), third: (3, 7), fourth: (None, None)}
    assert [row["progress_done"] for row in rows_of(batches(names, Wanted(state="leased")))] == [3]


def test_tenants_and_throttle_keys_are_names_of_the_lane(store: SqlStore, batches: Read) -> None:
    lanes = [LaneRow(200, b"ns", b"topic", b"acme", b"api:acme\0db"), LaneRow(201, b"ns", b"topic", b"", b"db")]
    store.commit(Batch(lanes_new=lanes, next_number=1))
    insert(store, new_item(1), new_item(2, lane=200), new_item(3, lane=201), new_item(4, lane=2))
    keys = {
        row["id"] & 0xFF: (row["fairness_key"], row["throttle_keys"])
        for row in rows_of(batches(("id", "fairness_key", "throttle_keys"), Wanted("ns", "topic")))
    }
    assert keys == {1: ("", []), 2: ("acme", ["api:acme", "db"]), 3: ("", ["db"])}
    assert [row["fairness_key"] for row in rows_of(batches(("fairness_key",)))] == ["", "acme", "", ""]


@SERVERS
def test_a_driver_that_reads_rows_in_c(store: SqlStore, shard: ServerShard, batches: Read) -> None:
    """This driver returns rows, PyMySQL pages packed by the server: the results are the same."""
    pytest.importorskip("MySQLdb")
    headers = '{"ключ": "wert, \\"ü\\""}'.encode()
    insert(store, *(new_item(n, payload=bytes(range(n)), metadata=[None, b"", b",\n"][n % 3]) for n in range(1, 50)))
    insert(store, new_item(60, headers=headers, due_ms=NOW_MS))
    packed = rows_of(batches(FULL))
    assert len(packed) == 50
    assert packed[-1]["headers"] == [("ключ", 'wert, "ü"')]
    assert rows_of(batches(FULL, url=shard.url.replace("+pymysql", "+mysqldb"))) == packed


# ------------------------------------------------------------------------------------------ pages


def test_pages_are_cut_by_size(store: SqlStore, batches: Read) -> None:
    """The bytes of a page are bounded for any number of rows, so a task's memory is bounded."""
    random_bytes = random.Random(7).randbytes
    sizes = [*[100] * 40, *[3 * MiB // 2] * 20, *[0] * 40, *[7 * MiB] * 3, *[200_000] * 60]
    bodies = {make_id(NUMBER, n): random_bytes(size) for n, size in enumerate(sizes, 1)}
    for item_id, payload in bodies.items():
        insert(store, new_item(payload=payload, item_id=item_id))
    found = batches(("id", "payload"), rows=100)
    assert {row["id"]: row["payload"] for row in rows_of(found)} == bodies
    assert [row["id"] for row in rows_of(found)] == sorted(bodies)
    assert all(batch.num_rows <= 100 for batch in found)
    assert max(batch.nbytes for batch in found) <= 8 * MiB + 10_000
    assert len(found) < len(bodies) / 2
    assert sorted({batch.num_rows for batch in batches(("id",), rows=100)}) == [len(bodies) % 100, 100]


def test_pieces_share_nothing_and_miss_nothing(store: SqlStore, batches: Read) -> None:
    ids = [make_id(NUMBER, n) for n in (*range(1, 40), *range(100, 400, 7))]
    insert(store, *(new_item(item_id=one, lane=1 + one % 2) for one in ids))
    bounds = [0, ids[0] - 1, ids[0], ids[17], ids[38], ids[39], ids[60] + 3, MAX_ID]
    for rows in (1, 7, 1_000):
        parts = [batches(("id",), low=low, high=high, rows=rows) for low, high in pairwise(bounds)]
        assert [row["id"] for part in parts for row in rows_of(part)] == ids
        odd = [batches(("id", "topic"), Wanted(topic="other"), rows=rows)]
        assert [row["id"] for part in odd for row in rows_of(part)] == [one for one in ids if one % 2]


# ------------------------------------------------------------------------------------------ plans of the servers


WANTED = {
    "all": (LIGHT, Wanted()),
    "bodies": (FULL, Wanted()),
    "only ids": (("id",), Wanted()),
    "progress": (("id", "progress_done"), Wanted()),
    "a topic": (LIGHT, Wanted(topic="other")),
    "a namespace": (("id", "namespace"), Wanted("ns")),
    "a topic of a namespace": (("id",), Wanted("ns", "other")),
    "a namespace that is not there": (("id",), Wanted("none")),
    "leased items": (LIGHT, Wanted(state="leased")),
    "bodies of waiting items": (FULL, Wanted(state="delayed")),
    "ready items": (("id",), Wanted(state="ready")),
    "all at once": (FULL, Wanted("ns", "other", "leased")),
}


def is_wanted(row: dict[str, Any], wanted: Wanted) -> bool:
    asked = (wanted.namespace, wanted.topic, wanted.state)
    return all(one in (None, row[name]) for name, one in zip(("namespace", "topic", "state"), asked, strict=True))


@pytest.fixture
def mixed(store: SqlStore) -> SqlStore:
    """3,000 items of both lanes, some delayed, some leased. The server has no statistics: the tables were empty a
    moment ago, which misleads the optimizer."""
    items = [new_item(n, priority=n % 10, lane=1 + n % 2, due_ms=NOW_MS * (n % 5 == 0)) for n in range(1, 3_001)]
    insert(store, *items)
    for item in [item for item in items if not item.due_ms][:200:20]:
        lease(store, item, due_ms=NOW_MS, attempt=1)
    return store


def test_wanted_items_are_found(mixed: SqlStore, batches: Read) -> None:
    rows = {row["id"]: row for row in rows_of(batches())}
    assert len(rows) == 3_000
    for what, (names, wanted) in WANTED.items():
        expected = [item_id for item_id, row in rows.items() if is_wanted(row, wanted)]
        assert bool(expected) is (wanted.namespace != "none"), what
        for page in (70, 5_000):
            assert [row["id"] for row in rows_of(batches(names, wanted, rows=page))] == expected, (what, page)


@SERVERS
def test_statements_search_and_do_not_scan(mixed: SqlStore, batches: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is read by a key, in ranges or row by row."""
    sent: list[str] = []
    fetch = Link.fetch

    def noted(link: Link, query: str) -> Any:
        if any(word in query for word in (" item ", " timer ", " WHERE ns = ")):
            sent.append(query)
        return fetch(link, query)

    for what, (names, wanted) in WANTED.items():
        sent.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Link, "fetch", noted)
            batches(names, wanted, rows=500)
        plans = [(query, explained(mixed._link, query)) for query in sent]
        assert any(plan.keys() & KEYS.keys() for _, plan in plans), what
        for query, plan in plans:
            # An index that is read from its beginning until LIMIT counts as a range too.
            kinds = [*SEARCHED, "index"] if " > 0 AND " in query and " LIMIT " in query else SEARCHED
            steps = {table: plan[table] for table in plan.keys() & KEYS.keys()}
            bad = {
                table: (kind, key) for table, (kind, key) in steps.items() if kind not in kinds or key != KEYS[table]
            }
            assert not bad, (what, bad, query)


SEARCHED = ("const", "eq_ref", "ref", "range")
KEYS = {"i": "PRIMARY", "r": "PRIMARY", "p": "PRIMARY", "t": "timer_of_item", "lane": "lane_of_names"}


def explained(link: Any, query: str) -> dict[str, tuple[str, str]]:
    """How each table is read, and by which key."""
    cursor = link._cursor
    cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {query}")
    names = [column[0] for column in cursor.description]
    steps = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {step["table"]: (step["type"], step["key"]) for step in steps if step["table"]}


# ------------------------------------------------------------------------------------------ errors


@SERVERS
def test_a_connection_that_is_lost_at_a_page(store: SqlStore, shard: ServerShard, batches: Read) -> None:
    insert(store, *(new_item(n) for n in range(1, 30)))
    url = make_url(shard.url)
    assert url.port is not None
    proxy = Proxy(url.port)
    proxy.arm(Break("SELECT STRAIGHT_JOIN"))
    try:
        with pytest.raises(Unavailable, match=f"^shard {NUMBER} cannot be read: the connection was lost") as lost:
            batches(FULL, rows=10, url=str(url.set(port=proxy.port)))
    finally:
        proxy.close()
    assert lost.value.__cause__ is None, "its text may hold SQL, and Spark prints every cause"
