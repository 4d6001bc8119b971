"""Rows of deduplication keys move between shards: the part that a batch does on the shard that gives or takes them."""

from __future__ import annotations

from typing import Any

from foqs.buffers.pending_dedup import Copy, Give, GivenPage
from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine import dedup
from foqs.errors import Unavailable
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_bounds, hash_slot_of, next_digest
from foqs.rows import DedupRow, Holding
from foqs.second_answer import Duplicate
from foqs.shardmgr.routing import bits_of, has
from tests.engine.laboratory import Laboratory

SLOT = hash_slot_of(digest_of("ns", "a"))


def giving(stamp: int = 1) -> Laboratory:
    """Return a laboratory, a host of a cluster, whose shard has all slots, by the record of that stamp."""
    lab = Laboratory(1, shards_elsewhere=True)
    shard = lab.engine.state.shards[1]
    shard.queue.keys.wanted = Holding(stamp, bits_of(range(HASH_SLOTS)))
    lab.engine.state.touch(shard)
    lab.settle()
    return lab


def give(lab: Laboratory, *, stamp: int = 2, limit: int = 10) -> list[Any]:
    given: list[Any] = []
    shard = lab.engine.state.shards[1]
    shard.queue.keys.gives.append(Give(SLOT, stamp, hash_slot_bounds(SLOT)[0], limit, given.append))
    lab.engine.state.touch(shard)
    return given


def row(key: str, number: int, expires_at_ms: int) -> DedupRow:
    return DedupRow(digest_of("ns", key), 0, number, expires_at_ms)


def test_a_slot_is_gone_before_its_rows_are_read() -> None:
    """In one batch: the transaction is fenced, so the copy has every stored key whatever a replaced owner does."""
    lab = giving()
    lab.enqueue_keyed("a")
    lab.settle()
    given = give(lab)
    ((shard, batch),) = lab.send()
    assert batch.transaction is not None
    assert batch.transaction.slots is not None
    assert not has(batch.transaction.slots.bits, SLOT)
    lab.arrive(shard, batch)
    assert given == [GivenPage([lab.dbs[1].dedup[digest_of("ns", "a")]], [])]
    assert lab.dbs[1].slots == shard.queue.keys.held
    assert not has(shard.queue.keys.held.bits, SLOT)
    assert has(shard.queue.keys.held.bits, (SLOT + 1) % HASH_SLOTS)


def test_a_give_waits_for_pending_keys_of_its_slot() -> None:
    lab = giving()
    stored = lab.enqueue_keyed("a")
    ((shard, batch),) = lab.send()
    given = give(lab)
    assert not dedup.due(shard.queue)
    lab.arrive(shard, batch)
    assert len(stored) == 1
    assert dedup.due(shard.queue)
    lab.settle()
    assert [[found.id for found in page.rows] for page in given] == [stored]


def test_a_slot_that_is_given_takes_no_more_keys() -> None:
    lab = giving()
    given = give(lab)
    away = lab.enqueue_keyed("a")
    other = lab.enqueue_keyed("b")
    lab.settle()
    assert hash_slot_of(digest_of("ns", "b")) != SLOT
    assert (away, len(other), given) == ([], 1, [GivenPage([], [])])
    assert not lab.engine.state.shards[1].queue.keys.pending


def test_the_rows_of_a_slot_come_in_pages() -> None:
    lab = giving()
    low, _ = hash_slot_bounds(SLOT)
    digests = [low[:2] + bytes([number]) + low[3:] for number in range(5)]
    lab.dbs[1].dedup.update((digest, DedupRow(digest, 0, 1, lab.now_ms + 60_000)) for digest in digests)
    given = give(lab, limit=3)
    lab.settle()
    assert [found.digest for found in given[0].rows] == digests[:3] and given[0].rest == next_digest(digests[2])


def test_a_give_by_an_older_record_is_refused() -> None:
    lab = giving(stamp=5)
    given = give(lab, stamp=4)
    lab.settle()
    assert [type(answer) for answer in given] == [Unavailable]
    assert has(lab.dbs[1].slots.bits, SLOT)
    assert not lab.engine.state.shards[1].queue.keys.gives


def test_a_give_is_refused_when_its_transaction_fails() -> None:
    lab = giving()
    given = give(lab)
    lab.faults[1].commits.append("busy")
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert [type(answer) for answer in given] == [Unavailable]
    assert has(lab.dbs[1].slots.bits, SLOT)
    assert has(shard.queue.keys.held.bits, SLOT)
    lab.go_on(100)
    repeated = give(lab)
    lab.settle()
    assert repeated == [GivenPage([], [])]
    assert not has(lab.dbs[1].slots.bits, SLOT)


def test_copied_rows_are_remembered() -> None:
    """A second enqueue of a key finds the item that was stored on the shard that had the slot before."""
    lab = giving()
    shard, stored = lab.engine.state.shards[1], []
    rows = [row("a", 77, lab.now_ms + 60_000), row("b", 78, lab.now_ms + 50_000)]
    held, shard.queue.keys.held = shard.queue.keys.held, Holding()
    shard.queue.keys.copies.append(Copy(SLOT, rows, True, stored.append))
    assert dedup.due(shard.queue)
    lab.engine.state.touch(shard)
    lab.settle()
    assert stored == [None]
    shard.queue.keys.held = held
    answers = lab.enqueue_keyed("a")
    lab.settle()
    assert answers == [77]
    assert isinstance(answers[0], Duplicate)
    assert not lab.dbs[1].items


def test_copied_rows_expire_like_those_of_the_shard() -> None:
    lab = giving()
    shard = lab.engine.state.shards[1]
    shard.queue.keys.copies.append(Copy(SLOT, [row("a", 77, lab.now_ms + 1_000)], True, lambda error: None))
    lab.engine.state.touch(shard)
    lab.settle()
    lab.go_on(1_100)
    assert not lab.dbs[1].dedup
    answers = lab.enqueue_keyed("a")
    lab.settle()
    assert list(lab.dbs[1].items) == answers


def test_a_copy_is_refused_when_its_transaction_fails() -> None:
    lab = giving()
    shard, stored = lab.engine.state.shards[1], []
    shard.queue.keys.copies.append(Copy(SLOT, [row("a", 77, lab.now_ms + 60_000)], True, stored.append))
    lab.engine.state.touch(shard)
    ((_, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(Outcome.FAILED, error="lock wait"))
    assert [type(answer) for answer in stored] == [Unavailable]
    assert not shard.queue.keys.copies
    assert not lab.dbs[1].dedup


def test_a_closed_shard_refuses_its_gives_and_copies() -> None:
    lab = giving()
    lab.enqueue_keyed("a")
    lab.send()
    given, stored = give(lab), []
    shard = lab.engine.state.shards[1]
    shard.queue.keys.copies.append(Copy(SLOT, [row("a", 77, lab.now_ms + 60_000)], True, stored.append))
    lab.engine.lose(shard, lab.now_ms)
    assert len(given) == len(stored) == 1
    assert all(isinstance(answer, Exception) for answer in given + stored)
