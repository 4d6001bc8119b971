"""One thread and one connection for each shard: run shard batches as SQL that blocks.

This module touches no state of the host: a batch comes in, a result goes out.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.ids import Marks
from foqs.opened import Opened
from foqs.rows import Batch
from foqs.store.protocol import (
    CommitUnknown,
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
from foqs.travel import bare

T = TypeVar("T")
Finished = Callable[[ShardBatch, BatchResult], None]
Crashed = Callable[[ShardBatch, Exception], None]


class Begun(NamedTuple):
    """A transaction that ran on the event loop. `conclude` returns or raises as the store's `commit` would have."""

    at_s: float
    conclude: Callable[[], None]


def run(store: ShardStore, shard_batch: ShardBatch, begun: Begun | None = None) -> BatchResult:
    """Run `shard_batch`: the transaction, if it is not `begun`, then the reads. Never raises a StoreError."""
    began_s = time.perf_counter() if begun is None else begun.at_s
    result = BatchResult(rejected={}, committed=set(), failed=set(), known={})
    try:
        if shard_batch.reconnect:
            result.settled = store.reconnect()
        if shard_batch.transaction is not None:
            _commit(store, shard_batch, shard_batch.transaction, result, begun)
            result.transaction_ms = (time.perf_counter() - began_s) * 1000
        if result.outcome in (Outcome.NONE, Outcome.COMMITTED) and not result.down:
            _read(store, shard_batch, result)
    except Fenced as error:
        result.fenced, result.error = True, str(error)
    except StoreDown as error:
        result.down, result.read_only, result.error = True, isinstance(error, StoreReadOnly), str(error)
        result.denied = isinstance(error, StoreDenied)
        result.ended = isinstance(error, StoreEnded)
        if shard_batch.transaction is not None and result.outcome is Outcome.NONE:
            result.outcome = Outcome.FAILED
    except (StoreBusy, RowRejected) as error:  # a refused read, which the engine asks for again
        result.error = str(error)
    result.latency_ms = (time.perf_counter() - began_s) * 1000
    return result


def _commit(store: ShardStore, shard_batch: ShardBatch, batch: Batch, result: BatchResult, begun: Begun | None) -> None:
    try:
        try:
            if begun is None:
                store.commit(batch)
            else:
                begun.conclude()
        except RowRejected:
            if not batch.dedup_new:
                raise
            batch = _without_known(store, batch, shard_batch.keys_ms, result)
            store.commit(batch)
        result.outcome = Outcome.COMMITTED
    except RowRejected as error:
        _bisect(store, batch, str(error), result)
        _settle_together(batch, result)
    except StoreBusy as error:
        result.outcome, result.error = Outcome.FAILED, str(error)
        result.disk_full = isinstance(error, StoreFull)
    except CommitUnknown as error:
        result.outcome, result.error, result.down = Outcome.UNKNOWN, str(error), True


def _without_known(store: ShardStore, batch: Batch, now_ms: int, result: BatchResult) -> Batch:
    """Return the rest of a refused batch, without items whose deduplication key is stored already.

    The rest can be refused for other reasons only.
    """
    there = {row.digest: row for row in store.dedup([new.digest for new in batch.dedup_new])}
    for new in batch.dedup_new:
        if (row := there.get(new.digest)) is not None and row.expires_at_ms > now_ms:
            result.known[new.id] = row
    left = batch.only(set(batch.ids()) - result.known.keys(), lanes=True)
    left.dedup_again = [new for new in left.dedup_new if new.digest in there]
    left.dedup_new = [new for new in left.dedup_new if new.digest not in there]
    return left


def _bisect(store: ShardStore, batch: Batch, reason: str, result: BatchResult) -> None:
    """Find the rows that the database refuses by halving the batch, and commit all other rows in parts."""
    result.outcome = Outcome.COMMITTED
    lanes = True
    parts = [(batch.ids(), reason)]
    while parts:
        ids, reason = parts.pop()
        if len(ids) <= 1:
            result.rejected.update(dict.fromkeys(ids, reason))
            continue
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            part = batch.only(set(half), lanes=lanes)
            try:
                store.commit(part)
            except RowRejected as error:
                parts.append((half, str(error)))
            except StoreBusy as error:
                result.failed.update(half)
                result.error = str(error)
                result.disk_full = isinstance(error, StoreFull)
            except (CommitUnknown, StoreDown, Fenced) as error:
                _broken(parts, half, batch, error, result)
                return
            else:
                lanes = False
                result.committed.update(half)


def _settle_together(batch: Batch, result: BatchResult) -> None:
    """Give ids that go together one outcome."""
    for first, second in batch.together:
        for ids in (result.committed, result.failed):
            if first in ids:
                ids.add(second)
        if first in result.rejected:
            result.rejected[second] = result.rejected[first]


def _broken(
    parts: list[tuple[list[int], str]], half: list[int], batch: Batch, error: StoreError, result: BatchResult
) -> None:
    """Record the loss of the connection or the shard while bisecting.

    The outcome of `half` is unknown if it was being committed. All rows that are left have failed.
    """
    result.down, result.read_only, result.error = True, isinstance(error, StoreReadOnly), str(error)
    result.denied = isinstance(error, StoreDenied)
    settled = result.rejected.keys() | result.committed | result.failed
    left = {item_id for item_id in batch.ids() if item_id not in settled}
    if isinstance(error, CommitUnknown):
        result.outcome = Outcome.UNKNOWN
        left -= set(half)
    result.failed.update(left)


def _read(store: ShardStore, shard_batch: ShardBatch, result: BatchResult) -> None:
    if shard_batch.confirm:
        result.db_now_ms = store.confirm().db_now_ms
        result.confirmed = True
    for read in shard_batch.reads:
        result.db_now_ms = read.run(store) or result.db_now_ms
        result.reads += 1


class ShardThread:
    """`deliver(fn)` runs `fn` on the event loop, in order. `connect` precedes the first `submit`."""

    _finished: Finished
    _crashed: Crashed

    def __init__(self, store: ShardStore, name: str, deliver: Callable[[Callable[[], None]], None]) -> None:
        self.store = self._store = store
        self._deliver = deliver
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def connect(self, finished: Finished, crashed: Crashed) -> None:
        """Give each batch and its result to `finished`, or its unexpected exception to `crashed`."""
        self._finished, self._crashed = finished, crashed

    def _loop(self) -> None:
        # Python handles signals in the main thread. A process that ends ignores signals; one that this thread took then
        # would be printed as an error.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        while (job := self._jobs.get()) is not None:
            job()

    def open(
        self,
        owner: str,
        *,
        take_over: bool,
        epoch_above: int = 0,
        marks: Marks | None = None,
        done: Callable[[Opened | StoreError], None],
    ) -> None:
        def job() -> None:
            outcome: Opened | StoreError
            try:
                outcome = self._store.open(owner, take_over=take_over, epoch_above=epoch_above, marks=marks)
            except StoreError as error:
                outcome = bare(error)
            except Exception as error:  # noqa: BLE001 - as in `submit`
                outcome = StoreDown(f"internal error: {type(error).__name__}")
            self._deliver(lambda: done(outcome))

        self._jobs.put(job)

    def submit(self, shard_batch: ShardBatch, begun: Begun | None = None) -> None:
        def job() -> None:
            try:
                result = run(self._store, shard_batch, begun)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the shard waiting for ever
                self._deliver(partial(self._crashed, shard_batch, bare(error)))
                return
            self._deliver(partial(self._finished, shard_batch, result))

        self._jobs.put(job)

    def call(self, work: Callable[[ShardStore], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` between two batches. `done` gets its result, or the exception that it raised."""

        def job() -> None:
            outcome: T | Exception
            try:
                outcome = work(self._store)
            except Exception as error:  # noqa: BLE001 - as in `submit`
                outcome = bare(error)
            self._deliver(partial(done, outcome))

        self._jobs.put(job)

    def watch(self, done: Callable[[bool], None]) -> None:
        """Find out, on a thread of its own, if the batch in progress waits in vain. `done` gets the answer."""

        def look() -> None:
            try:
                vain = self._store.waits_in_vain()
            except Exception:  # noqa: BLE001 - a fault of ours says nothing about the batch
                vain = False
            self._deliver(partial(done, vain))

        threading.Thread(target=look, name=f"{self._thread.name}-watch", daemon=True).start()

    def cut(self) -> None:
        """End the connection of the batch in progress: it fails at once."""
        self._store.cut()

    def close(self, done: Callable[[], None] | None = None, *, clean: bool = False) -> None:
        """Close the store after all queued jobs, and end the thread."""

        def job() -> None:
            self._store.close(clean=clean)
            if done is not None:
                self._deliver(done)

        self._jobs.put(job)
        self._jobs.put(None)
