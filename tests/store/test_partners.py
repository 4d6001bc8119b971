"""Rows without the rows that belong to them: each is found, and what a living owner writes is no fault."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from foqs.item_batch import Counts, HowEnded, MemberRows
from foqs.order import Order, Standing
from foqs.rows import Batch, EndedRow, EndedState, FailureCause, FailureRow, LaneRow
from foqs.store.batch_reads import BatchReads
from foqs.store.checkup import check_shard, partner_findings
from foqs.store.dialect import dialect_of
from foqs.store.link import Database, Link
from foqs.store.maintenance import create_schema
from foqs.store.server import version
from foqs.store.sql import SqlStore
from tests.store.asking import run
from tests.store.batch_contract import ONE, TWO, home, member, part
from tests.store.contract import LANE, insert
from tests.store.order_contract import ordered
from tests.store.shards import NOW_MS, new_item

DAMAGES = {
    "DELETE FROM ready WHERE id = {ready}": ["1 row of table item have no row in ready, timer or done"],
    "DELETE FROM timer WHERE id = {timer}": ["1 row of table item have no row in ready, timer or done"],
    "DELETE FROM done": ["1 row of table item have a TTL", "1 row of table result have no row in done"],
    "DELETE FROM item WHERE id = {ended}": ["1 row of table done have no item"],
    "UPDATE done SET lane = 2": ["1 row of table done have no item, or one with other values"],
    "INSERT INTO ready (lane, priority, deliver_after, id, attempt, lease, bytes) "
    "SELECT lane, priority, deliver_after, id, 0, 0, 7 FROM item WHERE id = {ended}": [
        "1 row of table item have a row in ready and one in done"
    ],
    "INSERT INTO timer (due, id, lane, lease, attempt, lease_ms, bytes) VALUES (5, {ended}, 1, 0, 0, 0, 0)": [
        "1 row of table item have a row in timer and one in done"
    ],
    "DELETE FROM expiry": ["1 row of table item have a TTL and no row in expiry"],
    "DELETE FROM lane WHERE lane = 1": ["8 rows of table item refer to lanes that table lane lacks"],
    "DELETE FROM item WHERE id = {ready}": ["1 row of table ready have no item"],
    "DELETE FROM item WHERE id = {timer}": ["1 row of table timer have no item"],
    "DELETE FROM item WHERE id = {ttl}": ["1 row of table ready have no item", "1 row of table expiry have no item"],
    "DELETE FROM item WHERE id = {dead}": ["1 row of table ready have no item", "1 row of table failure have no item"],
    "UPDATE ready SET priority = 9 WHERE id = {ready}": [
        "1 row of table item have no row in ready, timer or done",
        "1 row of table ready have no item, or one with other values",
    ],
    "UPDATE timer SET lane = 2 WHERE id = {timer}": ["1 row of table timer have no item, or one with other values"],
    "UPDATE expiry SET at_ms = 5": ["1 row of table item have a TTL", "1 row of table expiry have no item"],
    "UPDATE failure SET lane = 1": ["1 row of table failure have no item, or one with other values"],
    "INSERT INTO timer (due, id, lane, lease, attempt, lease_ms, bytes) VALUES (5, {ready}, 1, 0, 0, 0, 0)": [
        "1 row of table item have a row in ready and one in timer"
    ],
    "DELETE FROM item WHERE id = {ordered}": ["1 row of table ordered have no item"],
    "UPDATE item SET order_at = NULL WHERE id = {ordered}": [
        "1 row of table ordered have no item, or one with other values"
    ],
    "UPDATE ordered SET lane = 2 WHERE id = {ordered}": ["1 row of table ordered have other lanes than their items"],
    "DELETE FROM timer WHERE id = {late}": ["1 row of table ordered wait for a time and have no row in timer"],
    "INSERT INTO ordered (digest, standing, place, id, lane) VALUES (x'64', 0, {dead}, {dead}, 2)": [
        "1 row of table ordered have no item, or one with other values",
        "1 row of table ordered are of dead letters, or of items that have ended",
    ],
    "INSERT INTO ordered (digest, standing, place, id, lane) VALUES (x'64', 0, {ended}, {ended}, 1)": [
        "1 row of table ordered have no item, or one with other values",
        "1 row of table ordered are of dead letters, or of items that have ended",
    ],
    "DELETE FROM item WHERE id = {member}": [
        "1 row of table ready have no item",
        "1 row of table member have no item, or one of another batch",
    ],
    "UPDATE item SET batch = 7 WHERE id = {member}": ["1 row of table member have no item, or one of another batch"],
    "UPDATE item SET batch = NULL WHERE id = {member}": ["1 row of table member have no item, or one of another batch"],
    "DELETE FROM item_batch WHERE id = {child}": ["1 row of table member have no item, or one of another batch"],
    "DELETE FROM member WHERE id = {member}": ["1 row of table item belong to batches and have no row in member"],
    "DELETE FROM item_batch WHERE id = {batch}": ["2 rows of table batch_part count members of batches that"],
}
LOST = {
    "DELETE FROM ordered WHERE id = {ordered}": "1 row of table item have an order key",
    "DELETE FROM ordered WHERE id = {late}": "1 row of table item have an order key",
    "UPDATE ordered SET place = 6 WHERE id = {late}": "1 row of table item have an order key",
    "UPDATE ordered SET standing = 1 WHERE id = {ordered}": "1 row of table item have an order key",
    "UPDATE item SET order_at = (SELECT order_at FROM (SELECT * FROM item) AS o WHERE o.id = {ordered}) "
    "WHERE id = {dead}; DELETE FROM ready WHERE id = {dead}": "1 row of table item have an order key",
}
"""Of these only a backup knows the place."""
READY, TIMER, TTL, DEAD, TAIL, ENDED, ORDERED, LATE, MEMBER = (new_item(number).id for number in range(1, 10))
IDS = {
    "ready": READY, "timer": TIMER, "ttl": TTL, "dead": DEAD, "ended": ENDED, "ordered": ORDERED, "late": LATE,
    "member": MEMBER, "batch": ONE, "child": TWO,
}  # fmt: skip


def failure_of(item_id: int) -> FailureRow:
    return FailureRow(2, 0, item_id, FailureCause.FAILED, 1, 0, b"t", b"", b"reason")


@pytest.fixture
def url(shard_url: str) -> str:
    """A ready item, a delayed one, one with a TTL, a dead letter, one that has no row yet, one that has ended, and two
    with order keys, one of them delayed and moved to a late place, of a living owner. A batch, whose members are an
    item, another batch, and a failed item that is gone."""
    create_schema(shard_url, 7)
    store = SqlStore(shard_url, shard=7)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE, LaneRow(2, b"n", b"dead", b"")], next_number=1))
    insert(store, new_item(1), new_item(2, due_ms=NOW_MS), new_item(3, expires_at_ms=NOW_MS), new_item(4, lane=2))
    run(shard_url, "INSERT INTO failure (lane, fingerprint, id, cause, attempts, died_at, topic, fairness, throttles,"
        f" reason) VALUES (2, 0, {DEAD}, 1, 1, 0, '', '', '', '')")  # fmt: skip
    tail = new_item(5)
    tail.unindexed = True
    store.commit(Batch(inserts=[tail], next_number=6, indexed_to=DEAD))
    ended = new_item(6, expires_at_ms=NOW_MS)
    ended.unindexed = True
    row = EndedRow(NOW_MS, ENDED, 1, EndedState.COMPLETED, 1, NOW_MS, 7)
    store.commit(Batch(inserts=[ended], next_number=7, indexed_to=DEAD))
    store.commit(
        Batch(expiry_gone=[ENDED], ended_new=[row], results_new=[(ENDED, b"r")], next_number=7, indexed_to=DEAD)
    )
    in_order, late = ordered(7, lane=1), ordered(8, lane=1, due_ms=NOW_MS)
    store.commit(Batch(inserts=[in_order, late], ordered=True, next_number=9, indexed_to=DEAD))
    order = Order(late.digest, 0x123456789ABCDEF, Standing.NEW)
    store.commit(
        Batch(
            ordered=True,
            order_gone=[late.order_row],
            order_at_new=[(LATE, order.pack())],
            next_number=9,
            indexed_to=DEAD,
            order_new=[late.order_row._replace(place=order.place)],
        )
    )
    rows = MemberRows(
        new=[(MEMBER, ONE), (TWO, ONE), (77, ONE), (78, ONE)], failed=[77], ended={HowEnded.COMPLETED: [78]},
        created=[home(ONE), home(TWO, parent=ONE)], parts=[part(ONE, 1), part(ONE, 2)],
    )  # fmt: skip
    store.commit(Batch(inserts=[member(9)], members=rows, next_number=10, indexed_to=DEAD))
    store._drop()
    return shard_url


def found(url: str, page_rows: int = 2) -> list[tuple[str, str]]:
    database = Database(url)
    with closing(Link(database)) as link:
        dialect = dialect_of(version(link.connection).product)
        findings = partner_findings(link, dialect, page_rows=page_rows)
    return [(one.found, one.mend) for one in findings]


def test_an_item_that_waits_for_its_row_is_no_fault(url: str) -> None:
    assert found(url) == []
    assert check_shard(url, 7, rows=True).findings == []
    run(url, "UPDATE shard SET indexed_to = 0")
    ((what, _),) = found(url)
    assert what == f"1 row of table item have no row in ready, timer or done: they are never delivered (item {TAIL})"


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_found_and_its_remedy_works(url: str, damage: str) -> None:
    run(url, damage.format(**IDS))
    findings = found(url)
    assert len(findings) == len(DAMAGES[damage])
    for wanted in DAMAGES[damage]:
        assert any(what.startswith(wanted) for what, _ in findings), findings
    assert {one.found for one in check_shard(url, 7, rows=True).findings} >= {what for what, _ in findings} or (
        "lane" in damage
    )
    for _ in range(2):  # what one remedy leaves, another removes
        for _, mend in found(url):
            if "run: " in mend:
                run(url, *mend.partition("run: ")[2].split("; "))
    assert found(url) == [] or "FROM lane" in damage


@pytest.mark.parametrize("damage", LOST)
def test_a_place_that_is_lost_is_found(url: str, damage: str) -> None:
    run(url, *damage.format(**IDS).split("; "))
    (found_it,) = [one for one in found(url) if one[1] == "restore all tables from the same backup"]
    assert found_it[0].startswith(LOST[damage])


@pytest.mark.parametrize("page_rows", [1, 2, 3, 7, 100])
def test_pages_read_each_row_once(url: str, page_rows: int) -> None:
    run(url, "DELETE FROM item")
    counts = {what.split(" of table ")[1].split()[0]: int(what.split()[0]) for what, _ in found(url, page_rows)}
    assert counts == {"ready": 4, "timer": 2, "expiry": 1, "failure": 1, "done": 1, "ordered": 2, "member": 1}


@pytest.mark.slow
@pytest.mark.threads
def test_a_large_shard_is_checked_while_its_owner_writes(shard_url: str) -> None:
    """The owner's transactions go on beside the check, and none of them looks like a fault."""
    create_schema(shard_url, 7)
    store = SqlStore(shard_url, shard=7)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    count = 200_000
    for first in range(1, count, 2_000):
        items = [new_item(number, priority=number % 7) for number in range(first, first + 2_000)]
        store.commit(Batch(inserts=items, next_number=first + 2_000))
    checked, longest_s, number = threading.Event(), 0.0, count + 1

    def check() -> None:
        try:
            findings.append(check_shard(shard_url, 7, rows=True).findings)
        finally:
            checked.set()

    findings: list[object] = []
    thread = threading.Thread(target=check)
    began = time.monotonic()
    thread.start()
    while not checked.is_set():
        at = time.monotonic()
        store.commit(Batch(inserts=[new_item(number)], next_number=number + 1))
        longest_s = max(longest_s, time.monotonic() - at)
        number += 1
    thread.join()
    print(f"{time.monotonic() - began:.1f} s; {number - count} commits beside it, the longest {longest_s:.3f} s")
    assert findings == [[]]
    assert longest_s < 2
    store.close()


def test_members_that_are_lost_count_as_deleted(url: str) -> None:
    run(url, f"DELETE FROM item WHERE id = {MEMBER}", f"DELETE FROM ready WHERE id = {MEMBER}")
    ((_, mend),) = found(url)
    run(url, *mend.partition("run: ")[2].split("; "))
    with closing(Link(Database(url))) as link:
        reads = BatchReads(link, dialect_of(version(link.connection).product))
        (counts,) = reads.member_counts([ONE])
        assert counts.counts == Counts(4, completed=1, failed=1, deleted=1)
        assert reads.members_of(ONE, (False, 0), 9) == [(False, TWO), (True, 77)]
        assert reads.unsent_counts(0, 9) == [counts]
