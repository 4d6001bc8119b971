"""`foqs shards check` and the opening of a shard agree: whatever keeps a host from opening a shard is found."""

from __future__ import annotations

from contextlib import closing

import pytest

from foqs.engine import shard_life
from foqs.rows import Batch, LaneRow
from foqs.store.checkup import check_shard
from foqs.store.link import Database, Link
from foqs.store.maintenance import create_schema
from foqs.store.protocol import StoreError
from foqs.store.sql import SqlStore
from tests.engine.laboratory import Laboratory
from tests.store.asking import run
from tests.store.contract import LANE, insert
from tests.store.shards import NOW_MS, new_item

DAMAGES = {
    # a statement, and what the check says
    "DELETE FROM lane WHERE lane = 2": "rows in ready, timer, ordered or done refer to lane 2",
    "DELETE FROM lane WHERE lane = 3": "rows in ready, timer, ordered or done refer to lane 3",
    "DELETE FROM lane WHERE lane = 4": "rows in failure refer to lane 4",
    "DELETE FROM lane": "refer to",
    "UPDATE lane SET topic = x'ff61' WHERE lane = 2": "lane 2 in table lane has a name that is not UTF-8",
    "UPDATE lane SET ns = x'c3' WHERE lane = 2": "lane 2 in table lane has a name that is not UTF-8",
    "UPDATE lane SET fairness = x'80' WHERE lane = 1": "lane 1 in table lane has a name that is not UTF-8",
    "UPDATE lane SET throttles = x'c328' WHERE lane = 3": "lane 3 in table lane has a name that is not UTF-8",
    "UPDATE lane SET rules = x'7b' WHERE lane = 3": "lane 3 in table lane has rules that no host wrote",
    "UPDATE lane SET rules = x'7b2264656475705f756e74696c223a6e756c6c7d' WHERE lane = 3": "rules that no host wrote",
    "DELETE FROM shard": "the shard's row is missing",
    "UPDATE shard SET one = 2": "the shard's row is missing",
    "UPDATE shard SET number = 8": "the database holds shard 8, not shard 7",
    "UPDATE shard SET version = 9": "the schema of the database is version 9",
    "UPDATE shard SET epoch = 9223372036854775807": "shard.epoch is 9223372036854775807",
    "UPDATE shard SET next_number = 281474976710656": "shard.next_number is 281474976710656",
    "INSERT INTO setting (ns, stamp, doc) VALUES (x'ff', 1, x'7b7d')": "a namespace that is not UTF-8",
    "DROP TABLE ready": "table ready is missing",
    "DROP TABLE timer": "table timer is missing",
    "DROP TABLE item": "table item is missing",
    "DROP TABLE lane": "table lane is missing",
    "DROP TABLE failure": "table failure is missing",
    "DROP TABLE setting": "table setting is missing",
    "DROP TABLE shard": "table shard is missing",
}


@pytest.fixture
def url(shard_url: str) -> str:
    create_schema(shard_url, 7)
    store = SqlStore(shard_url, shard=7)
    store.open("owner", take_over=False)
    names = [LaneRow(2, b"n", b"second", b""), LaneRow(3, b"n", b"third", b""), LaneRow(4, b"n", b"dead", b"")]
    store.commit(Batch(lanes_new=[LANE, *names], next_number=1))
    insert(store, new_item(1), new_item(2, lane=2), new_item(3, lane=3, due_ms=NOW_MS))
    run(shard_url, "INSERT INTO failure (lane, fingerprint, id, cause, attempts, died_at, topic, fairness, throttles,"
        " reason) VALUES (4, 0, 4, 1, 1, 0, '', '', '', '')")  # fmt: skip
    store.close(clean=True)
    return shard_url


def opens(url: str) -> bool:
    """Open the shard as a host does, up to its memory."""
    store = SqlStore(url, shard=7)
    try:
        opened = store.open("owner", take_over=True)
    except StoreError:
        return False
    finally:
        store.close()
    lab = Laboratory()
    shard = lab.engine.add(7)
    for _ in shard_life.fill(shard, opened):
        pass
    return True


def test_a_good_shard_has_no_finding_with_and_without_an_owner(url: str) -> None:
    assert check_shard(url, 7).findings == []
    store = SqlStore(url, shard=7)
    store.open("owner", take_over=False)
    assert check_shard(url, 7, rows=True).findings == [] or "failure" in str(check_shard(url, 7, rows=True).findings)
    assert store.confirm().db_now_ms, "the owner has the shard still"
    store.close()
    assert opens(url)


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_that_keeps_a_shard_closed_is_found(url: str, damage: str) -> None:
    run(url, damage)
    found = check_shard(url, 7).findings
    assert any(DAMAGES[damage] in one.found for one in found), found
    assert all(one.mend or "upgrade" in one.found or "create" in one.found or "holds" in one.found for one in found)
    assert not opens(url)


def test_other_rows_of_shard_are_no_damage(url: str) -> None:
    """All statements name the row."""
    with closing(Link(Database(url))) as link:
        columns = [row[0] for row in link.connection.exec_driver_sql("SELECT * FROM shard").cursor.description]  # type: ignore[union-attr]
    others = ", ".join(column for column in columns if column != "one")
    run(url, f"INSERT INTO shard (one, {others}) SELECT 2, {others} FROM shard WHERE one = 1")
    assert check_shard(url, 7).findings == []
    assert opens(url)
