"""One batch on a store: which outcome each error of a transaction has, the search for refused rows, and the reads."""

from __future__ import annotations

import time
from typing import Any

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.engine.batch_reads import LookRead
from foqs.rows import Batch, Body, DedupRow, Found, LaneRow, NewItem
from foqs.server.shard_thread import Begun, run
from foqs.store.protocol import (
    CommitUnknown,
    Confirmation,
    Fenced,
    RowRejected,
    ShardStore,
    StoreBusy,
    StoreDenied,
    StoreDown,
    StoreEnded,
    StoreError,
    StoreFull,
    StoreReadOnly,
)

pytestmark = pytest.mark.memory


def new_item(item_id: int) -> NewItem:
    item = NewItem(b"x", None, None, 0, 1, 0, 1, 0, 0, 1)
    item.id = item_id
    return item


class Store(ShardStore):
    """`refused` items make a transaction fail. `errors` are raised by transactions of their number, counted from 1.
    `commits` has the ids and new lanes of each transaction that was asked for."""

    def __init__(self, *refused: int, known: dict[bytes, DedupRow] | None = None, **errors: StoreError) -> None:
        self.refused = set(refused)
        self.known = known or {}
        self.errors = errors
        self.commits: list[tuple[list[int], int]] = []
        self.reads: list[str] = []

    def commit(self, batch: Batch) -> None:
        self.commits.append((sorted(batch.ids()), len(batch.lanes_new)))
        error = self.errors.get(f"commit_{len(self.commits)}")
        if error is not None:
            raise error
        if self.refused.intersection(batch.ids()) or self.known.keys() & {row.digest for row in batch.dedup_new}:
            raise RowRejected("a row is refused")

    def dedup(self, digests: Any) -> list[DedupRow]:
        return [self.known[one] for one in digests if one in self.known]

    def confirm(self) -> Confirmation:
        self._read("confirm")
        return Confirmation(77)

    def look(self, ids: Any) -> list[Any]:
        self._read("look")
        return [Found(Body(one, 1, 0, 0, 0, 0, 0, 0, b"", None, None), None, None) for one in ids]

    def reconnect(self) -> bool:
        self._read("reconnect")
        return True

    def _read(self, name: str) -> None:
        self.reads.append(name)
        if name in self.errors:
            raise self.errors[name]


def commit(store: Store, *ids: int, **fields: Any) -> BatchResult:
    """The result of a transaction that inserts these items, and of two reads behind it."""
    transaction = Batch(inserts=[new_item(one) for one in ids], **fields)
    return run(
        store,
        ShardBatch(transaction=transaction, reads=[LookRead([9], frozenset(), noted=False)], confirm=True, keys_ms=500),
    )


def test_reads_follow_a_committed_transaction() -> None:
    store = Store()
    result = commit(store, 1, 2)
    assert (result.outcome, result.confirmed, result.db_now_ms, result.reads) == (Outcome.COMMITTED, True, 77, 1)
    assert store.commits == [([1, 2], 0)]
    assert result.latency_ms >= result.transaction_ms > 0


def test_a_batch_without_a_transaction_has_no_outcome() -> None:
    look = LookRead([9], frozenset(), noted=False)
    result = run(Store(), ShardBatch(reads=[look]))
    assert (result.outcome, result.reads, result.confirmed) == (Outcome.NONE, 1, False)
    assert [found.body.id for found in look.rows] == [9]


@pytest.mark.parametrize(
    ("error", "outcome", "down", "fenced", "full"),
    [
        (StoreBusy("busy"), Outcome.FAILED, False, False, False),
        (StoreFull("full"), Outcome.FAILED, False, False, True),
        (StoreDown("down"), Outcome.FAILED, True, False, False),
        (CommitUnknown("lost"), Outcome.UNKNOWN, True, False, False),
        (Fenced("another owner"), Outcome.NONE, False, True, False),
    ],
)
def test_each_error_of_a_transaction_has_its_outcome(
    error: StoreError, outcome: Outcome, down: bool, fenced: bool, full: bool
) -> None:
    store = Store(commit_1=error)
    result = commit(store, 1)
    assert (result.outcome, result.down, result.fenced, result.disk_full) == (outcome, down, fenced, full)
    assert result.error == str(error)
    assert store.reads == [], "reads would be staler than the writes before them"


def test_a_read_only_database_is_not_a_silent_one() -> None:
    for error, read_only in ((StoreReadOnly("read-only"), True), (StoreDown("down"), False)):
        for store in (Store(commit_1=error), Store(look=error), Store(4, commit_3=error)):
            result = commit(store, 1, 2, 3, 4)
            assert (result.down, result.read_only) == (True, read_only)
            assert result.outcome is not Outcome.UNKNOWN


def test_a_server_without_the_database_is_not_a_silent_one() -> None:
    for error, denied in ((StoreDenied("no such database"), True), (StoreDown("down"), False)):
        for store in (Store(commit_1=error), Store(look=error), Store(4, commit_3=error)):
            result = commit(store, 1, 2, 3, 4)
            assert (result.down, result.denied) == (True, denied)


def test_a_failed_read_keeps_the_outcome_of_the_transaction() -> None:
    result = commit(Store(look=StoreDown("gone")), 1)
    assert (result.outcome, result.down, result.confirmed, result.reads) == (Outcome.COMMITTED, True, True, 0)
    result = commit(Store(look=StoreBusy("busy")), 1)
    assert (result.outcome, result.down, result.error) == (Outcome.COMMITTED, False, "busy")


@pytest.mark.parametrize("refused", [(1,), (4,), (2, 3), (1, 2, 3, 4, 5), ()])
def test_refused_rows_are_found_and_the_rest_is_stored(refused: tuple[int, ...]) -> None:
    result = commit(Store(*refused), 1, 2, 3, 4, 5)
    assert result.outcome is Outcome.COMMITTED
    assert result.rejected.keys() == set(refused)
    assert result.committed == (set(range(1, 6)) - set(refused) if refused else set())
    assert not result.failed


def test_lanes_are_written_with_the_first_part_alone() -> None:
    store = Store(4)
    commit(store, 1, 2, 3, 4, lanes_new=[LaneRow(1, b"n", b"t", b"")])
    assert store.commits[1:] == [([1, 2], 1), ([3, 4], 0), ([3], 0), ([4], 0)]


def test_a_part_that_fails_for_a_while_is_not_refused() -> None:
    result = commit(Store(4, commit_2=StoreFull("full")), 1, 2, 3, 4)
    assert (result.failed, result.committed, result.rejected.keys()) == ({1, 2}, {3}, {4})
    assert result.disk_full


def test_a_connection_lost_in_a_part_leaves_that_part_unknown() -> None:
    store = Store(4, commit_3=CommitUnknown("lost"))
    result = commit(store, 1, 2, 3, 4)
    assert (result.outcome, result.down) == (Outcome.UNKNOWN, True)
    assert (result.committed, result.failed) == ({1, 2}, set()), "items 3 and 4 may be stored"
    assert len(store.commits) == 3
    assert store.reads == []


def test_items_whose_keys_are_known_are_not_stored() -> None:
    """A key that has expired is written in place of the old row."""
    old, expired = DedupRow(b"o" * 16, 1, 50, 900), DedupRow(b"e" * 16, 1, 51, 500)
    store = Store(known={old.digest: old, expired.digest: expired})
    keys = [DedupRow(old.digest, 1, 1, 2_000), DedupRow(expired.digest, 1, 2, 2_000), DedupRow(b"n" * 16, 1, 3, 2_000)]
    result = commit(store, 1, 2, 3, dedup_new=keys)
    assert result.known == {1: old}
    assert (result.outcome, result.rejected) == (Outcome.COMMITTED, {})
    assert [ids for ids, _ in store.commits] == [[1, 2, 3], [2, 3]]


def test_the_rest_of_a_transaction_begun_on_the_loop_is_stored() -> None:
    """The loop ran it for nothing: one key is known. Times count from its beginning."""

    def conclude() -> None:
        raise RowRejected("a row is refused")

    old = DedupRow(b"o" * 16, 1, 50, 900)
    keys = [DedupRow(old.digest, 1, 1, 2_000), DedupRow(b"n" * 16, 1, 2, 2_000)]
    transaction = Batch(inserts=[new_item(1), new_item(2)], dedup_new=keys)
    store = Store(known={old.digest: old})
    began_s = time.perf_counter() - 7.0
    result = run(store, ShardBatch(transaction=transaction, keys_ms=500), Begun(began_s, conclude))
    assert (result.outcome, result.known) == (Outcome.COMMITTED, {1: old})
    assert [ids for ids, _ in store.commits] == [[2]]
    assert result.latency_ms >= result.transaction_ms >= 7_000


def test_a_reconnect_reports_the_last_transaction() -> None:
    assert run(Store(), ShardBatch(reconnect=True)).settled is True
    result = run(Store(reconnect=StoreDown("down")), ShardBatch(reconnect=True))
    assert (result.settled, result.down, result.outcome) == (None, True, Outcome.NONE)
    assert run(Store(reconnect=Fenced("another owner")), ShardBatch(reconnect=True)).fenced


def test_a_connection_that_had_ended_was_not_used() -> None:
    """The engine sends the batch again over the next connection. After a commit, the reads alone are missing."""
    result = commit(Store(commit_1=StoreEnded("ended")), 1, 2)
    assert (result.outcome, result.down, result.ended) == (Outcome.FAILED, True, True)
    result = commit(Store(look=StoreEnded("ended"), confirm=StoreEnded("ended")), 1, 2)
    assert (result.outcome, result.down, result.ended) == (Outcome.COMMITTED, True, True)
    result = commit(Store(commit_1=StoreDown("lost")), 1, 2)
    assert (result.outcome, result.down, result.ended) == (Outcome.FAILED, True, False)
