"""Which batches run on the event loop, how they end, and the order of a shard's work on loop and thread."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from foqs.buffers.pending_dedup import Copy, Give
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.engine.batch_reads import LookRead
from foqs.engine.dedup import GiveRead
from foqs.rows import Batch, FailureCause, FailureRow, Found
from foqs.server.shard_thread import ShardThread
from foqs.server.shard_worker import LOOP_BYTES, LOOP_ROWS, ShardWorker
from foqs.store.packets import query
from foqs.store.protocol import CommitUnknown, Fenced, RowRejected, ShardStore, StoreBusy, StoreDown, StoreError
from foqs.store.sql import SqlStore
from foqs.store.transaction import Plan, State, Transaction
from tests.server.loop import WatchingLoop
from tests.store.replies import err, packet, reply
from tests.store.shards import new_item
from tests.support.waiting import TIMEOUT_S

PACKET, COMMIT = query("BEGIN;UPDATE shard;INSERT"), query("COMMIT")
REPLY = reply(0, 1, 1)


def transaction(*numbers: int, **fields: Any) -> ShardBatch:
    items = [new_item(number) for number in numbers or (1,)]
    return ShardBatch(transaction=Batch(inserts=items), rows=len(items), **fields)


class Store(SqlStore):
    """On a socket whose other end is the test. `done` has the calls that end batches and the store, in order."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.io_timeout_s = 10.0
        self.connection = connection
        self.error: Exception | None = None
        self.begin_error: Exception | None = None
        self.done: list[str] = []

    @property
    def plain_socket(self) -> socket.socket | None:
        return self.connection

    def begin(self, batch: Batch) -> Transaction:
        if self.begin_error is not None:
            raise self.begin_error
        return Transaction(Plan(["BEGIN", "UPDATE shard", "INSERT"], (None, 1, 1), 5), [PACKET])

    def conclude(self, transaction: Transaction) -> None:
        self.done.append(f"conclude {transaction.state.value}")
        if self.error is not None:
            raise self.error
        assert transaction.state is State.COMMITTED

    def commit(self, batch: Batch) -> None:
        self.done.append(f"commit {len(batch.inserts)}")
        if self.begin_error is not None:
            raise self.begin_error

    def waits_in_vain(self) -> bool:
        return True

    def cut(self) -> None:
        assert self.connection is not None
        self.connection.shutdown(socket.SHUT_RDWR)

    def look(self, ids: list[int]) -> list[Found]:
        self.done.append("look")
        return []

    def close(self, *, clean: bool = False) -> None:
        self.done.append(f"close {clean}")


class Rig:
    def __init__(self) -> None:
        self.loop = WatchingLoop()
        self.ours, self.server = socket.socketpair()
        self.ours.settimeout(10.0)
        self.store = Store(self.ours)
        self._delivered: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.worker = ShardWorker(self.store, "shard", self.loop, self._delivered.put)  # type: ignore[arg-type]
        self.results: list[BatchResult] = []
        self.faults: list[Exception] = []
        self.ended = False
        self.worker.connect(lambda _, result: self.results.append(result), lambda _, fault: self.faults.append(fault))

    def submit(self, batch: ShardBatch) -> None:
        self.worker.submit(batch)

    def deliver(self) -> None:
        """Run the next job that the thread has for the loop."""
        self._delivered.get(timeout=TIMEOUT_S)()

    def answer(self, data: bytes) -> None:
        self.server.sendall(data)
        self.loop.turn()

    def commit(self) -> None:
        assert self.server.recv(1_000) == PACKET
        self.answer(REPLY)
        assert self.server.recv(1_000) == COMMIT
        self.answer(reply(0))

    def close(self) -> None:
        def ended() -> None:
            self.ended = True

        self.worker.close(ended, clean=True)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    if not made.ended:
        made.worker._on_loop.close()
        made.worker._close = None
        made.close()
        made.deliver()
    assert not made.loop.readers and not made.loop.writers and not made.loop.set
    made.ours.close()
    made.server.close()


def failure(size_bytes: int) -> FailureRow:
    return FailureRow(1, 0, 1, FailureCause.FAILED, 1, 0, b"", b"", b"x" * size_bytes)


@pytest.mark.parametrize(
    ("batch", "takes"),
    [
        (transaction(), True),
        (transaction(size_bytes=LOOP_BYTES), True),
        (transaction(size_bytes=LOOP_BYTES + 1), False),
        (transaction(*range(1, LOOP_ROWS + 2)), False),
        (ShardBatch(transaction=Batch(metadata_new=[(1, b"x" * LOOP_BYTES)])), True),
        (ShardBatch(transaction=Batch(metadata_new=[(1, b"x" * LOOP_BYTES)]), size_bytes=1), False),
        (ShardBatch(transaction=Batch(failure_new=[failure(LOOP_BYTES)])), True),
        (ShardBatch(transaction=Batch(failure_new=[failure(LOOP_BYTES)], metadata_new=[(1, b"x")])), False),
        (ShardBatch(reconnect=True), False),
        (ShardBatch(confirm=True), False),
        (transaction(confirm=True), False),
        (transaction(reads=[LookRead([1], frozenset(), noted=False)]), False),
        (transaction(copies=[Copy(1, [], True, lambda _: None)]), False),
        (transaction(reads=[GiveRead(Give(1, 1, b"", 1, lambda _: None))]), False),
    ],
)
def test_small_transactions_alone_are_for_the_loop(
    rig: Rig, batch: ShardBatch, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_thread: list[ShardBatch] = []
    monkeypatch.setattr(rig.worker._thread, "submit", lambda batch, *_: on_thread.append(batch))
    rig.submit(batch)
    assert (rig.worker._on_loop.busy, on_thread) == (takes, [] if takes else [batch])


def test_a_transaction_runs_on_the_loop(rig: Rig) -> None:
    for number in range(1, 3):
        rig.submit(transaction())
        rig.commit()
        assert [result.outcome for result in rig.results] == [Outcome.COMMITTED] * number
    assert rig.store.done == ["conclude committed"] * 2, "the thread was not used"
    assert all(result.latency_ms >= result.transaction_ms > 0 for result in rig.results)
    assert rig.loop.watched == 1


def test_reads_run_on_the_thread_with_the_socket_unwatched(rig: Rig) -> None:
    rig.submit(transaction())
    rig.commit()
    rig.submit(transaction(reads=[LookRead([1], frozenset(), noted=False)]))
    assert not rig.loop.readers
    rig.deliver()
    assert rig.store.done == ["conclude committed", "commit 1", "look"]
    rig.submit(transaction())
    rig.commit()
    assert (len(rig.results), rig.faults) == (3, [])


def test_a_connection_of_another_kind_is_left_to_the_thread(rig: Rig) -> None:
    rig.store.connection = None
    rig.submit(transaction())
    rig.deliver()
    assert rig.store.done == ["commit 1"]
    assert rig.results[0].outcome is Outcome.COMMITTED


@pytest.mark.parametrize("error", [StoreDown("not connected"), Fenced("another owner"), StoreBusy("busy")])
def test_a_transaction_that_cannot_begin_fails_on_the_thread(rig: Rig, error: StoreError) -> None:
    rig.store.begin_error = error
    rig.submit(transaction())
    rig.deliver()
    assert rig.store.done == ["commit 1"]
    assert rig.results[0].error == str(error)


@pytest.mark.parametrize(
    ("answer", "error", "outcome", "down", "fenced"),
    [
        (reply(0, 1, failed=err(1213)), StoreBusy("deadlock"), Outcome.FAILED, False, False),
        (reply(0, 0, 1), Fenced("another owner"), Outcome.NONE, False, True),
        (b"", StoreDown("gone"), Outcome.FAILED, True, False),
        (REPLY, CommitUnknown("lost"), Outcome.UNKNOWN, True, False),
    ],
)
def test_other_ends_are_concluded_on_the_thread(
    rig: Rig, answer: bytes, error: StoreError, outcome: Outcome, down: bool, fenced: bool
) -> None:
    rig.store.error = error
    rig.submit(transaction())
    if answer:
        rig.answer(answer)
    if down:
        rig.server.close()
        rig.loop.turn()
    assert not rig.loop.readers, "the thread may close the connection"
    rig.deliver()
    (result,) = rig.results
    assert (result.outcome, result.down, result.fenced, result.error) == (outcome, down, fenced, str(error))
    assert len(rig.store.done) == 1 and rig.store.done[0].startswith("conclude ")


def test_a_watch_does_not_wait_for_the_batch_that_hangs(rig: Rig) -> None:
    """It asks on a thread of its own, and the batch fails at once when its connection is ended."""
    rig.store.error = CommitUnknown("the connection was lost")
    rig.submit(transaction())
    rig.answer(REPLY)
    seen: list[bool] = []
    rig.worker.watch(seen.append)
    rig.deliver()
    assert seen == [True]
    rig.worker.cut()
    rig.loop.turn()
    rig.deliver()
    assert rig.results[0].outcome is Outcome.UNKNOWN


def test_refused_rows_are_found_on_the_thread(rig: Rig) -> None:
    rig.store.error = RowRejected("a row is refused")
    rig.submit(transaction(1, 2))
    rig.answer(reply(0, 1, failed=err(1062)))
    rig.deliver()
    assert rig.store.done == ["conclude failed", "commit 1", "commit 1"]
    assert rig.results[0].outcome is Outcome.COMMITTED


def test_a_hang_ends_by_the_deadline(rig: Rig) -> None:
    rig.store.error = CommitUnknown("no answer")
    rig.submit(transaction())
    rig.answer(REPLY)
    rig.loop.wait(10_000)
    rig.deliver()
    assert rig.store.done == ["conclude in doubt"]
    assert rig.results[0].outcome is Outcome.UNKNOWN


def test_the_store_is_closed_after_the_transaction(rig: Rig) -> None:
    rig.submit(transaction())
    rig.close()
    assert rig.store.done == []
    rig.commit()
    rig.deliver()
    assert rig.store.done == ["conclude committed", "close True"]
    assert (len(rig.results), rig.ended) == (1, True)


def test_the_store_is_closed_after_a_transaction_that_hangs(rig: Rig) -> None:
    rig.store.error = StoreDown("no answer")
    rig.submit(transaction())
    rig.close()
    rig.loop.wait(10_000)
    rig.deliver()
    rig.deliver()
    assert rig.store.done == ["conclude failed", "close True"]
    assert (rig.results[0].down, rig.ended) == (True, True)


def test_closing_from_the_end_of_a_transaction(rig: Rig) -> None:
    """As the runner does for a shard that is lost."""
    rig.worker.connect(lambda *_: rig.close(), lambda _, fault: rig.faults.append(fault))
    rig.submit(transaction())
    rig.commit()
    rig.deliver()
    assert rig.store.done == ["conclude committed", "close True"]


def test_faults_of_ours_are_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = RuntimeError("a fault")
    rig.store.begin_error = fault
    rig.submit(transaction())
    rig.deliver()
    rig.store.begin_error, rig.store.error = None, fault
    rig.submit(transaction())
    rig.commit()

    def fail(*_: object) -> bytes:
        raise fault

    monkeypatch.setattr(Transaction, "received", fail)
    rig.submit(transaction())
    rig.answer(packet(1, b"\0"))
    assert rig.faults == [fault] * 3
    assert rig.results == []
    assert not rig.loop.readers


class Failing(ShardStore):
    """Every call raises the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def open(self, *args: Any, **options: Any) -> Any:
        raise self.error

    def reconnect(self) -> bool:
        raise self.error

    def close(self, *, clean: bool = False) -> None:
        pass


def ask(store: ShardStore) -> Any:
    return store.open("owner", take_over=False)


def test_errors_leave_the_thread_without_a_traceback() -> None:
    """A fault has it as a note, for the log."""
    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
    got: list[Any] = []
    for error, noted in ((StoreBusy("busy"), False), (ZeroDivisionError("fault"), True)):
        thread = ShardThread(Failing(error), "failing", jobs.put)
        thread.call(ask, got.append)
        jobs.get(timeout=TIMEOUT_S)()
        assert got.pop() is error
        assert error.__traceback__ is None
        assert hasattr(error, "__notes__") is noted
        thread.close()
    thread = ShardThread(Failing(error), "failing", jobs.put)
    thread.connect(lambda _, result: got.append(result), lambda _, fault: got.append(fault))
    thread.submit(ShardBatch(reconnect=True))
    jobs.get(timeout=TIMEOUT_S)()
    assert got.pop() is error
    assert error.__traceback__ is None
    thread.close()
    thread = ShardThread(Failing(StoreDown("away")), "failing", jobs.put)
    thread.open("owner", take_over=False, done=got.append)
    jobs.get(timeout=TIMEOUT_S)()
    assert (str(got[0]), got[0].__traceback__) == ("away", None)
    thread.close()
