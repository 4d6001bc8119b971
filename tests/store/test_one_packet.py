"""Transactions that travel with their COMMIT: what a session may still do after its transaction was settled as lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from foqs.rows import Batch
from foqs.store.protocol import CommitUnknown, ShardRefused, StoreDown
from foqs.store.sql import SqlStore
from tests.store.asking import ask, connect
from tests.store.contract import LANE, insert
from tests.store.proxy import Break
from tests.store.shards import ServerShard, new_item
from tests.store.test_ownership import SERVERS, reconnects
from tests.support.waiting import wait_until


@pytest.fixture
def store(shard: ServerShard) -> Iterator[SqlStore]:
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    yield store
    store.close()


@SERVERS
@pytest.mark.parametrize("then", ["nothing", "a transaction", "another owner"])
def test_a_packet_that_begins_after_it_was_settled(shard: ServerShard, store: SqlStore, then: str) -> None:
    """A server hung with the packet, and its session lost the lock (here: it was given back). The fence of the packet
    names that session's connection, so it stops before the first row and before COMMIT."""
    link = store._link
    assert link is not None
    link.execute("DO RELEASE_ALL_LOCKS()")
    shard.proxy(store).arm(Break("BEGIN", missed=True))
    with pytest.raises(CommitUnknown):
        insert(store, new_item(1))
    owner = store
    if then == "another owner":
        owner = shard.store()
        owner.open("second", take_over=True)
    else:
        assert store.reconnect() is False
    if then == "a transaction":
        insert(store, new_item(2))
    before = ask(shard, "SELECT epoch, seq FROM shard")
    begun = begins(shard)
    shard.proxy(store).deliver()
    wait_until(lambda: begins(shard) > begun and is_idle(shard, link.id), "the old session has run its packet")
    assert ask(shard, "SELECT epoch, seq FROM shard") == before
    assert owner.bodies([new_item(1).id]) == []
    ask(shard, f"KILL {link.id}")  # until then it holds the lock on the row that its fence has read
    insert(owner, new_item(1), next_number=1 << 40)
    assert owner.mismatches == 0
    if owner is not store:
        owner.close()


@SERVERS
def test_a_packet_that_waits_when_its_session_is_killed(shard: ServerShard) -> None:
    """The lock is free when the session has ended; a session that ends begins no statement of its packet."""
    store = shard.store(io_timeout_s=2)
    store.open("owner", take_over=False)
    assert store._link is not None
    old = store._link.id
    blocking = connect(shard)
    blocking.begin()
    with blocking.cursor() as cursor:
        cursor.execute("SELECT * FROM shard FOR UPDATE")
    with pytest.raises(CommitUnknown):
        store.commit(Batch(lanes_new=[LANE], next_number=1))
    assert not is_idle(shard, old)  # it waits in its fence, with the lock
    with ThreadPoolExecutor(1) as pool:
        settled = pool.submit(lambda: [reconnects(store) for _ in range(3)])
        wait_until(lambda: is_gone(shard, old), "the old session has ended")
        blocking.rollback()
        assert True not in settled.result()
    blocking.close()
    assert store.reconnect() is False
    assert ask(shard, "SELECT COUNT(*) FROM lane") == ((0,),)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    store.close()


@SERVERS
def test_a_database_whose_fence_would_not_stop_a_transaction(shard: ServerShard, store: SqlStore) -> None:
    store._drop()
    ask(shard, "ALTER TABLE shard MODIFY seq BIGINT NULL")
    with pytest.raises(StoreDown, match="stores NULL"):
        store.reconnect()
    store.close()
    with pytest.raises(ShardRefused, match="foqs shards check"):
        store.open("owner", take_over=False)
    ask(shard, "ALTER TABLE shard MODIFY seq BIGINT NOT NULL")
    store.open("owner", take_over=False)


def begins(shard: ServerShard) -> int:
    ((_, count),) = ask(shard, "SHOW GLOBAL STATUS LIKE 'Com_begin'")
    return int(str(count))


def is_idle(shard: ServerShard, connection: int) -> bool:
    found = ask(shard, f"SELECT command FROM information_schema.processlist WHERE id = {connection}")
    return found == (("Sleep",),)


def is_gone(shard: ServerShard, connection: int) -> bool:
    return not ask(shard, f"SELECT 1 FROM information_schema.processlist WHERE id = {connection}")
