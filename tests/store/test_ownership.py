"""Owners that hang, connections that the server has not missed yet, and locks of other connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from foqs.ids import Mark
from foqs.rows import Batch
from foqs.store.checkup import check_shard
from foqs.store.link import Link
from foqs.store.protocol import CommitUnknown, Fenced, ShardRefused, StoreBusy, StoreDown
from foqs.store.sql import SqlStore
from tests.store.asking import ask, connect, row_lock_waits, run
from tests.store.contract import LANE, insert, open_again, ready_row
from tests.store.proxy import Break
from tests.store.shards import NOW_MS, NUMBER, ServerShard, SqliteShard, new_item, send_commit_apart
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
SERVERS = pytest.mark.parametrize(
    "shard_kind",
    [
        pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.mariadb]),
        pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.mysql]),
    ],
    indirect=True,
)
AnyShard = ServerShard | SqliteShard


@pytest.fixture
def store(shard: AnyShard) -> Iterator[SqlStore]:
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    yield store
    store.close()
    assert store.mismatches == 0


class OwnerProcess:
    def __init__(self, url: str, what: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.owner_process", url, str(NUMBER), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.says() == "ready"

    def says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> str:
        os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.says()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=["idle", "open"])
def frozen(request: pytest.FixtureRequest, shard: AnyShard) -> Iterator[tuple[OwnerProcess, str]]:
    """A process that holds the shard and was stopped, idle or inside a transaction."""
    owner = OwnerProcess(shard.url, request.param)
    owner.freeze()
    yield owner, request.param
    owner.end()


@pytest.mark.process
def test_a_frozen_owner_loses_its_shard(shard: AnyShard, frozen: tuple[OwnerProcess, str]) -> None:
    owner, what = frozen
    store = shard.store()
    with pytest.raises(ShardRefused) as refused:
        store.open("second", take_over=False)
    assert refused.value.held
    if isinstance(shard, SqliteShard) and what == "open":
        # Nothing but the process itself ends a transaction of SQLite: the take-over waits for it, and says so.
        with pytest.raises(StoreBusy):
            store.open("second", take_over=True)
        assert owner.go_on() == "committed"
        opened = store.open("second", take_over=True)
        assert len(store.bodies([new_item(5).id])) == 1
    else:
        # Not by waiting for its locks: that would end in an error.
        opened = store.open("second", take_over=True)
        assert store.bodies([new_item(5).id]) == []
        insert(store, new_item(1))
        assert owner.go_on() != "committed"
        assert store.page(1, None, 10) == [ready_row(new_item(1))]
    insert(store, new_item(2), next_number=opened.next_number)
    assert store.mismatches == 0
    store.close()


def test_the_fence_by_itself(shard: AnyShard, store: SqlStore) -> None:
    """The old owner's connection lives on, as when its lock was lost: the epoch alone stops it."""
    insert(store, new_item(1))
    run(shard.url, "UPDATE shard SET epoch = epoch + 1")
    for batch in (Batch(inserts=[new_item(2)], next_number=3), Batch(item_gone=[new_item(1).id], next_number=3)):
        with pytest.raises(Fenced):
            store.commit(batch)
    store.close()
    second, _ = open_again(shard)
    assert second.page(1, None, 5) == [ready_row(new_item(1))]
    assert len(second.bodies([new_item(1).id, new_item(2).id])) == 1
    second.close()


@SERVERS
def test_an_owner_whose_connection_broke_may_live(shard: ServerShard, store: SqlStore) -> None:
    lock_name = store._lock._name  # type: ignore[attr-defined]
    shard.cut(store)
    wait_until(lambda: ask(shard, f"SELECT IS_FREE_LOCK('{lock_name}')") == ((1,),), "the lock is free")
    second = shard.store()
    assert second.open("second", take_over=False).replaced
    second.close()


@pytest.mark.process
def test_a_dead_owner_of_a_file_is_known_to_be_dead(tmp_path: Path) -> None:
    shard = SqliteShard(f"sqlite:///{tmp_path}/shard.db")
    dead = OwnerProcess(shard.url, "idle")
    dead.end()
    store = shard.store()
    assert not store.open("owner", take_over=False).replaced
    store.close()


@SERVERS
def test_a_take_over_under_way_stops_the_old_owner(shard: ServerShard, store: SqlStore) -> None:
    """The new epoch is not committed yet when the old owner begins: it waits for it, and is then fenced. (A plain
    read of the epoch would still see the old one, and its commit would go through after the take-over.)"""
    assert store._link is not None
    store._link.execute("SET SESSION innodb_lock_wait_timeout = 60")
    taking = connect(shard)
    taking.begin()
    with taking.cursor() as cursor:
        cursor.execute("UPDATE shard SET epoch = epoch + 1")
    caught: list[BaseException] = []

    def commit() -> None:
        try:
            insert(store, new_item(1))
        except Fenced as fenced:
            caught.append(fenced)

    committing = threading.Thread(target=commit)
    committing.start()
    wait_until(lambda: row_lock_waits(shard) > 0, "the old owner waits for the fence's lock")
    taking.commit()
    committing.join()
    assert len(caught) == 1
    assert ask(shard, "SELECT COUNT(*) FROM item") == ((0,),)
    taking.close()


@SERVERS
def test_an_open_transaction_of_an_old_owner_ends(shard: ServerShard, store: SqlStore) -> None:
    begin_transaction(store, item_number=5)
    second = shard.store()
    second.open("second", take_over=True)
    assert second.bodies([new_item(5).id]) == []
    insert(second, new_item(5))
    second.close()
    with pytest.raises((StoreDown, CommitUnknown)):  # StoreDown where the end of the connection has arrived
        insert(store, new_item(6))
    with pytest.raises(Fenced):
        store.reconnect()


@SERVERS
def test_a_transaction_is_gone_with_its_connection(shard: ServerShard, store: SqlStore) -> None:
    begin_transaction(store, item_number=5)
    shard.cut(store)
    wait_until(lambda: reconnects(store) is False, "the owner has its shard again")
    assert store.bodies([new_item(5).id]) == []
    insert(store, new_item(5))


@SERVERS
def test_a_killed_connection(shard: ServerShard, store: SqlStore) -> None:
    assert store._link is not None
    ask(shard, f"KILL {store._link.id}")
    with pytest.raises((StoreDown, CommitUnknown)):  # some servers say so before they end the connection
        insert(store, new_item())
    assert store.reconnect() is False
    insert(store, new_item())


@SERVERS
def test_an_old_connection_that_ends_while_its_lock_is_asked_for(
    shard: ServerShard, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock at the first query and is gone at the second: the lock is the owner's again."""
    lock = store._lock
    holder = lock.holder

    def ends_first(link: Link) -> int:
        ending.close()
        wait_until(lambda: holder(link) == 0, "the lock is free")
        return holder(link)

    store._drop()
    lock_name = lock._name  # type: ignore[attr-defined]
    wait_until(lambda: ask(shard, f"SELECT IS_FREE_LOCK('{lock_name}')") == ((1,),), "the store's own is gone")
    ending = connect(shard)
    with ending.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock_name,))
        assert cursor.fetchone() == (1,)
    monkeypatch.setattr(lock, "holder", ends_first)
    assert store.reconnect() is False
    insert(store, new_item())


@SERVERS
@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_a_connection_that_the_server_has_not_missed(
    shard: ServerShard, store: SqlStore, arrives: bool, apart: bool
) -> None:
    """It still holds the lock and, without the COMMIT, the transaction: it is ended, and the outcome is known."""
    insert(store, new_item(1))
    if apart:
        send_commit_apart(store)
    shard.proxy(store).arm(Break("COMMIT" if apart else "BEGIN", arrives=arrives, missed=True))
    with pytest.raises(CommitUnknown):
        insert(store, new_item(2))
    assert store.reconnect() is arrives  # not by waiting for the old one's locks: that would end in an error
    assert len(store.bodies([new_item(2).id])) == arrives
    insert(store, new_item(3))


@SERVERS
def test_an_outcome_that_is_still_open_is_waited_for(shard: ServerShard, store: SqlStore) -> None:
    """The lock is free (here: it was given back), but the old transaction is open, and its COMMIT comes late."""
    assert store._link is not None
    store._lock.release(store._link)
    send_commit_apart(store)
    shard.proxy(store).arm(Break("COMMIT", missed=True))
    with pytest.raises(CommitUnknown):
        insert(store, new_item())

    def settle() -> bool:
        for _ in range(3):  # a lock wait may time out, after 5 s
            outcome = reconnects(store)
            if outcome is not None:
                return outcome
        raise AssertionError("the outcome was not found")

    with ThreadPoolExecutor(1) as pool:
        settled = pool.submit(settle)
        wait_until(lambda: row_lock_waits(shard) > 0, "the read of seq waits")
        shard.proxy(store).deliver()
        assert settled.result() is True
    insert(store, new_item(2))
    assert len(store.page(1, None, 5)) == 2


@SERVERS
@pytest.mark.parametrize(
    ("statement", "apart", "error"),
    [("BEGIN", True, StoreDown), ("COMMIT", True, CommitUnknown), ("BEGIN", False, CommitUnknown)],
)
def test_a_database_that_hangs(shard: ServerShard, statement: str, apart: bool, error: type[Exception]) -> None:
    store = shard.store(io_timeout_s=3)  # longer than a busy server takes to answer
    store.open("owner", take_over=False)
    if apart:
        send_commit_apart(store)
    shard.proxy(store).arm(Break(statement, missed=True, silent=True))
    began = time.monotonic()
    with pytest.raises(error):
        store.commit(Batch(lanes_new=[LANE], next_number=1))
    assert 2.5 < time.monotonic() - began < 30
    assert store.reconnect() is False
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    store.close()


@SERVERS
def test_a_lock_in_unknown_hands(shard: ServerShard, store: SqlStore) -> None:
    """A standby that has the lock and not yet the epoch is left alone; when it has the epoch, the shard is lost."""
    lock_name = store._lock._name  # type: ignore[attr-defined]
    assert store._link is not None
    old = store._link.id
    standby = connect(shard)
    ask(shard, f"KILL {old}")
    with standby.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 10)", (lock_name,))
        assert cursor.fetchone() == (1,)
    with pytest.raises(StoreDown):
        store.confirm()
    with pytest.raises(StoreDown):
        store.reconnect()
    with standby.cursor() as cursor:
        cursor.execute("SELECT 1")
    ask(shard, "UPDATE shard SET epoch = epoch + 1")
    with pytest.raises(Fenced):
        store.reconnect()
    standby.close()


@SERVERS
def test_an_owner_that_comes_back_at_once_loses_its_shard(shard: ServerShard, store: SqlStore) -> None:
    """Its next connection waits for the lock, and has it when the first one is ended."""
    lock_name = store._lock._name  # type: ignore[attr-defined]
    back = connect(shard)
    cursor = back.cursor()
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(cursor.execute, f"SELECT GET_LOCK('{lock_name}', 60)")
        number = back.thread_id()
        asking = f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {number} AND info LIKE '%GET_LOCK%'"
        wait_until(lambda: ask(shard, asking) == ((1,),), "it waits for the lock")
        with closing(shard.store()) as other:
            assert other.open("b", take_over=True).replaced
            insert(other, new_item())
        assert taken.result(60) == 1
    back.close()
    with pytest.raises(Fenced):
        store.reconnect()


@SERVERS
def test_another_server_gives_other_numbers(shard: ServerShard, store: SqlStore) -> None:
    insert(store, new_item(), next_number=55)
    epoch = store._epoch
    store.close()
    ask(shard, "UPDATE shard SET server = 'the one that failed'")
    opened = store.open("owner", take_over=False)
    assert opened.next_number >= 55 + (1 << 30)
    assert opened.epoch > epoch + (1 << 20)
    store.close()
    again = store.open("owner", take_over=False)
    assert again.next_number == opened.next_number
    assert again.epoch == opened.epoch + 1


def test_a_row_that_is_not_what_the_owner_wrote(shard: AnyShard, store: SqlStore) -> None:
    """A database put back from a backup, or failed over to a replica that lags behind."""
    assert store._link is not None
    store._link.execute("UPDATE shard SET seq = seq - 1")
    with pytest.raises(Fenced):
        insert(store, new_item())
    with pytest.raises(Fenced):
        store.reconnect()


def test_a_row_that_the_owner_did_not_write_is_never_confirmed(shard: AnyShard, store: SqlStore) -> None:
    assert store._link is not None
    store._link.execute("UPDATE shard SET seq = seq + 1")
    with pytest.raises(Fenced):
        store.confirm()


def test_numbers_in_use_are_not_given_again(shard: AnyShard, store: SqlStore) -> None:
    """The row may be older than the items, after a restore."""
    insert(store, new_item(500), next_number=501)
    assert store._link is not None
    store._link.execute("UPDATE shard SET next_number = 5")
    store.close()
    assert store.open("owner", take_over=False).next_number == 501


def test_leases_since_a_restore_live_on_if_no_mark_was_saved(shard: AnyShard, store: SqlStore) -> None:
    """The owner that found the older copy died before its mark was saved. The next one finds the copy again."""
    item = new_item()
    insert(store, item, next_number=2)
    store.close()
    opened = store.open("owner", take_over=False)
    marks = {opened.identity: Mark(opened.epoch, 2, 2, opened.seq + 100)}
    assert store._link is not None
    store._link.execute(f"INSERT INTO timer VALUES ({NOW_MS}, {item.id}, 1, 7, 1, 9, 9)")
    store.close()
    first = store.open("owner", take_over=False, marks=marks)
    assert (first.behind is not None, first.leases_ended) == (True, 1)
    assert opened.restored_ms == 0 and first.restored_ms > 0
    store._link.execute(f"UPDATE timer SET due = {NOW_MS}, lease = 8")
    store.close()
    second = store.open("owner", take_over=False, marks=marks)
    assert (second.behind is not None, second.leases_ended) == (True, 0), "no id is given again"
    assert second.restored_ms == first.restored_ms, "the copy was found before"
    assert store._link.fetch("SELECT due FROM timer")[0][0] == NOW_MS
    assert check_shard(shard.url, NUMBER).restore.leases_ended == 1


def test_a_mismatch_is_counted(shard: AnyShard) -> None:
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(timer_gone=[new_item().id], item_gone=[new_item().id], next_number=1))
    assert store.mismatches == 2
    store.commit(Batch(expiry_gone=[new_item().id], metadata_new=[(new_item().id, b"x")], next_number=1))
    assert store.mismatches == 3
    store.close()


def begin_transaction(store: SqlStore, item_number: int) -> None:
    """Fence and insert, without a COMMIT."""
    link = store._link
    assert link is not None
    send_commit_apart(store)
    batch = Batch(inserts=[new_item(item_number)], expiry_from_ms=NOW_MS)
    plan = store._planner.plan(store._epoch, link.id, store._seq + 1, 10, batch)
    assert list(link.run(plan.texts))[1:] == [1, 1, 1]


def reconnects(store: SqlStore) -> bool | None:
    try:
        return store.reconnect()
    except StoreDown:
        return None
