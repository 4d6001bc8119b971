"""The runner of migration steps: its result, its interruptions and its refusals. The step is made for the test."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from foqs.cli import shard_databases as commands
from foqs.errors import PROTOCOL_VERSION
from foqs.item_batch import Counts
from foqs.rows import Batch, FailureCause, FailureRow, LaneRow, LastFailure
from foqs.store import maintenance, migrate
from foqs.store.checkup import check_up
from foqs.store.link import Database, Link
from foqs.store.maintenance import check_tables, create_schema, migrate_schema, plan_migration
from foqs.store.migrate import Step
from foqs.store.protocol import ShardRefused, StoreBusy
from foqs.store.server import Finding
from foqs.store.sql import SqlStore
from foqs.store.tables import LANE_OF_NAMES, SCHEMA_VERSION
from tests.store.asking import findings_of, run
from tests.store.batch_contract import counts_of, member
from tests.store.batch_contract import put as put_members
from tests.store.order_contract import in_order, ordered, put
from tests.store.row_contract import body, ready_key, ready_row
from tests.store.shards import new_item
from tests.store.test_ownership import SERVERS

NUMBER = 7
OLD = SCHEMA_VERSION - 1
ADDED = [
    "ALTER TABLE item ADD COLUMN first_at BIGINT",
    "ALTER TABLE shard ADD COLUMN leases_ended BIGINT DEFAULT 0 NOT NULL",
]
RAISED = f"UPDATE shard SET version = {SCHEMA_VERSION} WHERE one = 1"
WITHOUT_ORDERS = (
    "ALTER TABLE item DROP COLUMN order_key", "ALTER TABLE item DROP COLUMN order_at", "DROP TABLE ordered",
    "DROP TABLE order_home",
)  # fmt: skip
WITHOUT_BATCHES = (
    "ALTER TABLE item DROP COLUMN batch", "DROP TABLE member", "DROP TABLE batch_count", "DROP TABLE item_batch",
    "DROP TABLE batch_part",
)  # fmt: skip
REMEDY = "stop the hosts, and run `foqs shards migrate`"
WHY = f"the schema of the database is version {OLD}, and this foqs needs version {SCHEMA_VERSION}"


def _lacking(connection: Connection) -> list[str]:
    found = inspect(connection)
    columns = {table: [column["name"] for column in found.get_columns(table)] for table in ("item", "shard")}
    done = ("first_at" in columns["item"], "leases_ended" in columns["shard"])
    return [sql for sql, is_done in zip(ADDED, done, strict=True) if not is_done]


@pytest.fixture
def old_url(shard_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of the version before, on SQLite, MariaDB and MySQL in turn, and the step that brings it to this."""
    create_schema(shard_url, NUMBER)
    run(shard_url, "ALTER TABLE item DROP COLUMN first_at", "ALTER TABLE shard DROP COLUMN leases_ended")
    run(shard_url, f"UPDATE shard SET version = {OLD}")
    monkeypatch.setattr(migrate, "STEPS", (Step(SCHEMA_VERSION, _lacking),))
    return shard_url


def is_server(url: str) -> bool:
    return url.startswith("mysql")


def version_of(url: str) -> Any:
    with Database(url).connect() as connection:
        return connection.execute(text("SELECT version FROM shard")).scalar_one()


def test_this_foqs_has_all_steps_of_its_version() -> None:
    versions = [step.version for step in migrate.STEPS]
    assert versions == list(range(SCHEMA_VERSION - len(versions) + 1, SCHEMA_VERSION + 1))


def test_the_steps_of_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (Step(version, lambda _: []) for version in (2, 3, 4))
    monkeypatch.setattr(migrate, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(migrate, "STEPS", (first, second, third))
    assert [list(migrate.pending(version)) for version in range(5)] == [[], [first, second], [second], [], []]
    assert [migrate.remedy(version) for version in (0, 1, 2, 4)] == [
        "this foqs cannot migrate it: create the shard again in an empty database", REMEDY, REMEDY, "upgrade foqs",
    ]  # fmt: skip


def test_a_migrated_database_is_served(old_url: str) -> None:
    plan = plan_migration(old_url, NUMBER)
    assert plan == (OLD, [*ADDED, RAISED])
    assert version_of(old_url) == OLD
    heading, *planned = commands._planned(old_url, NUMBER).splitlines()
    assert heading == f"schema version {OLD}; to make it version {SCHEMA_VERSION}:"
    assert planned == [f"    {statement};" for statement in plan.statements]
    assert commands._migrated(old_url, NUMBER) == f"migrated from schema version {OLD} to {SCHEMA_VERSION}"
    assert check_tables(old_url) == []
    assert plan_migration(old_url, NUMBER) == (SCHEMA_VERSION, [])
    assert migrate_schema(old_url, NUMBER) == SCHEMA_VERSION
    store = SqlStore(old_url, shard=NUMBER)
    store.open("owner", take_over=False)
    store.close(clean=True)


def test_a_database_of_version_4_keeps_its_items(shard_url: str) -> None:
    create_schema(shard_url, NUMBER)
    store = SqlStore(shard_url, shard=NUMBER)
    store.open("owner", take_over=False)
    lanes = [LaneRow(1, b"ns", b"topic", b""), LaneRow(2, b"ns", b"topic.dlq", b"")]
    items = [new_item(number, lane=1) for number in (1, 2)]
    dead = FailureRow(2, 3, items[1].id, FailureCause.FAILED, 5, 6, b"topic", b"", b"why", rules=b"r")
    store.commit(Batch(lanes_new=lanes, inserts=items, next_number=10))
    store.commit(Batch(
        ready_gone=[ready_key(items[1])], moved=[(items[1].id, 2, 1, 0)], failure_new=[dead],
        ready_new=[ready_row(items[1])._replace(lane=2, deliver_after_ms=1)], next_number=10,
    ))  # fmt: skip
    store.close(clean=True)
    run(
        shard_url,
        *WITHOUT_ORDERS,
        *WITHOUT_BATCHES,
        "ALTER TABLE item DROP COLUMN last_failure",
        "ALTER TABLE failure DROP COLUMN worker",
    )
    run(shard_url, "UPDATE shard SET version = 4")
    assert migrate_schema(shard_url, NUMBER) == 4
    assert (version_of(shard_url), check_tables(shard_url)) == (SCHEMA_VERSION, [])
    store = SqlStore(shard_url, shard=NUMBER)
    store.open("owner", take_over=False)
    assert store.failures([items[1].id]) == [dead]
    failed = LastFailure(1, FailureCause.EXPIRED, 2, 3, b"w", b"why")
    store.commit(Batch(failed_new=[(items[0].id, 9, failed.pack())], next_number=10))
    assert [row.last_failure for row in store.look([items[0].id])] == [failed]
    store.close(clean=True)


@pytest.mark.parametrize("begun", range(4))
def test_a_database_of_version_5_gets_orders(shard_url: str, begun: int) -> None:
    """Also after the migration was interrupted behind one of its statements."""
    create_schema(shard_url, NUMBER)
    store = SqlStore(shard_url, shard=NUMBER)
    store.open("owner", take_over=False)
    plain = new_item(1)
    store.commit(Batch(lanes_new=[LaneRow(1, b"ns", b"topic", b"")], inserts=[plain], next_number=10))
    store.close(clean=True)
    run(shard_url, *WITHOUT_ORDERS, *WITHOUT_BATCHES, "UPDATE shard SET version = 5")
    run(shard_url, *plan_migration(shard_url, NUMBER).statements[:begun])
    assert migrate_schema(shard_url, NUMBER) == 5
    assert (version_of(shard_url), check_tables(shard_url)) == (SCHEMA_VERSION, [])
    store = SqlStore(shard_url, shard=NUMBER)
    store.open("owner", take_over=False)
    item = ordered(2)
    put(store, item)
    assert sorted(store.bodies([plain.id, item.id])) == [body(plain), body(item)]
    assert store.orders_behind(b"", 5) == [in_order(item)]
    store.close(clean=True)


@pytest.mark.parametrize("begun", range(6))
def test_a_database_of_version_6_gets_batches(shard_url: str, begun: int) -> None:
    """Also after the migration was interrupted behind one of its statements."""
    create_schema(shard_url, NUMBER)
    store = SqlStore(shard_url, shard=NUMBER)
    store.open("owner", take_over=False)
    plain, in_turn = new_item(1), ordered(2)
    store.commit(Batch(lanes_new=[LaneRow(1, b"ns", b"topic", b"")], inserts=[plain], next_number=10))
    put(store, in_turn)
    store.close(clean=True)
    run(shard_url, *WITHOUT_BATCHES, "UPDATE shard SET version = 6")
    run(shard_url, *plan_migration(shard_url, NUMBER).statements[:begun])
    assert migrate_schema(shard_url, NUMBER) == 6
    assert (version_of(shard_url), check_tables(shard_url)) == (SCHEMA_VERSION, [])
    store = SqlStore(shard_url, shard=NUMBER)
    assert store.open("owner", take_over=False).batches is False
    new = member(3)
    put_members(store, new)
    items = [plain, in_turn, new]
    assert sorted(store.bodies([item.id for item in items])) == [body(item) for item in items]
    assert counts_of(store).counts == Counts(1)
    store.close(clean=True)


def test_an_older_database_is_refused_with_the_command(old_url: str) -> None:
    with pytest.raises(ShardRefused) as refused:
        SqlStore(old_url, shard=NUMBER).open("owner", take_over=False)
    assert (str(refused.value), refused.value.mend) == (WHY, REMEDY)
    with pytest.raises(ShardRefused, match="is version"):
        create_schema(old_url, NUMBER)
    assert findings_of(old_url, NUMBER) == [Finding(WHY, REMEDY)]
    assert Finding(WHY, REMEDY) in check_up(old_url, NUMBER, timeout_s=20, now_ms=lambda: 0.0).findings
    assert version_of(old_url) == OLD


class Killed(BaseException):
    """The migration's process ended."""


def test_the_page_for_operators_has_the_version() -> None:
    page = (Path(__file__).parents[2] / "docs/run/upgrades.md").read_text()
    assert f"| schema version {SCHEMA_VERSION} |" in page
    assert f"| protocol version {PROTOCOL_VERSION} |" in page


def test_an_interrupted_migration_continues(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = plan_migration(old_url, NUMBER).statements

    def first_only(connection: Connection, version: int) -> None:
        connection.exec_driver_sql(statements[0])
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(migrate, "run", first_only)
        migrate_schema(old_url, NUMBER)
    # A file's transaction is rolled back.
    assert plan_migration(old_url, NUMBER).statements == (statements[1:] if is_server(old_url) else statements)
    assert migrate_schema(old_url, NUMBER) == OLD
    assert (version_of(old_url), check_tables(old_url)) == (SCHEMA_VERSION, [])


def test_a_served_shard_is_not_migrated(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.store.maintenance._SERVED_S", 0.1)
    later = "leases_ended"  # a column that an owner reads
    run(old_url, f"UPDATE shard SET version = {SCHEMA_VERSION}", f"ALTER TABLE shard ADD COLUMN {later} BIGINT")
    owner = SqlStore(old_url, shard=NUMBER)
    owner.open("owner", take_over=False)
    run(old_url, f"UPDATE shard SET version = {OLD}", f"ALTER TABLE shard DROP COLUMN {later}")
    with pytest.raises(ShardRefused, match="a host serves the shard"):
        migrate_schema(old_url, NUMBER)
    owner.close(clean=True)
    assert migrate_schema(old_url, NUMBER) == OLD


@pytest.mark.threads
def test_migrations_at_once(old_url: str) -> None:
    """One migration waits for the other."""
    with ThreadPoolExecutor(3) as pool:
        versions = list(pool.map(lambda _: migrate_schema(old_url, NUMBER), range(3)))
    assert set(versions) <= {OLD, SCHEMA_VERSION}
    assert (version_of(old_url), check_tables(old_url)) == (SCHEMA_VERSION, [])


def test_a_migration_that_waited_runs_no_step_again(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later step may have changed what an earlier one made."""
    wait = maintenance.unserved

    @contextmanager
    def waited(link: Link, shard: int) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, "unserved", wait)
            assert migrate_schema(old_url, NUMBER) == OLD
        monkeypatch.setattr(migrate, "STEPS", (Step(SCHEMA_VERSION, lambda _: ["ALTER TABLE item ADD odd INT"]),))
        with wait(link, shard):
            yield

    monkeypatch.setattr(maintenance, "unserved", waited)
    assert migrate_schema(old_url, NUMBER) == OLD
    assert findings_of(old_url, NUMBER) == []
    with Database(old_url).connect() as connection:
        assert "odd" not in [column["name"] for column in inspect(connection).get_columns("item")]


def test_a_database_that_is_not_ours_stays(old_url: str) -> None:
    for attempt in (migrate_schema, plan_migration):
        with pytest.raises(ShardRefused, match="the database holds shard 7, not shard 8"):
            attempt(old_url, 8)
    assert version_of(old_url) == OLD


def test_damage_to_the_tables_of_this_version_is_found(shard_url: str) -> None:
    create_schema(shard_url, 1)
    run(shard_url, "DROP TABLE expiry")
    for attempt in (migrate_schema, plan_migration):
        with pytest.raises(ShardRefused, match="table expiry is missing"):
            attempt(shard_url, 1)


def test_a_database_without_a_schema(shard_url: str) -> None:
    for attempt in (migrate_schema, plan_migration):
        with pytest.raises(ShardRefused, match="no foqs schema" if is_server(shard_url) else "no database file"):
            attempt(shard_url, 1)


@SERVERS
def test_a_long_transaction_delays_a_migration(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The migration gives up with a reason, and the next run completes it."""
    monkeypatch.setattr(migrate, "_TABLE_S", 1)
    with Database(old_url).connect() as reader:
        reader.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        reader.exec_driver_sql("SELECT * FROM item")
        with pytest.raises(StoreBusy, match="lock wait time-out"):
            migrate_schema(old_url, NUMBER)
        reader.exec_driver_sql("ROLLBACK")
    assert migrate_schema(old_url, NUMBER) == OLD
    assert check_tables(old_url) == []


# ------------------------------------------------------------------------------------------ real steps


def first_version(url: str) -> None:
    """Bring an empty database to schema version 1."""
    create_schema(url, NUMBER)
    names = "(ns, topic, fairness, throttles)"
    if is_server(url):
        back = [f"ALTER TABLE lane DROP INDEX {LANE_OF_NAMES}, DROP COLUMN rules, ADD UNIQUE {LANE_OF_NAMES} {names}"]
    else:
        back = [f"DROP INDEX {LANE_OF_NAMES}", "ALTER TABLE lane DROP COLUMN rules"]
        back.append(f"CREATE UNIQUE INDEX {LANE_OF_NAMES} ON lane {names}")
    later = ["DROP TABLE progress", "DROP TABLE held_key", *WITHOUT_ORDERS, *WITHOUT_BATCHES]
    run(url, *back, "ALTER TABLE failure DROP COLUMN rules", *later, "UPDATE shard SET version = 1")


@pytest.mark.parametrize("begun", [0, 1, 2, 4, 5])
def test_lanes_keep_their_rows_when_they_get_rules(shard_url: str, begun: int) -> None:
    """Also after the migration was interrupted behind one of its statements."""
    first_version(shard_url)
    run(shard_url, "INSERT INTO lane (lane, ns, topic, fairness) VALUES (1, x'6e', x'74', x'')")
    planned = plan_migration(shard_url, NUMBER).statements
    assert planned[-1] == RAISED
    if is_server(shard_url) or not begun:
        run(shard_url, *planned[:begun])
    before = version_of(shard_url)
    assert (migrate_schema(shard_url, NUMBER), version_of(shard_url)) == (before, SCHEMA_VERSION)
    assert check_tables(shard_url) == []
    assert findings_of(shard_url, NUMBER) == []
    store = SqlStore(shard_url, shard=NUMBER)
    (lane,) = store.open("owner", take_over=False).lanes
    assert (lane.lane, lane.topic, lane.rules) == (1, b"t", b"")
    ruled = LaneRow(2, b"n", b"t", b"", rules=b'{"max_attempts":1}')
    store.commit(Batch(lanes_new=[ruled], next_number=1))
    store.close(clean=True)
    assert list(SqlStore(shard_url, shard=NUMBER).open("owner", take_over=False).lanes) == [lane, ruled]
