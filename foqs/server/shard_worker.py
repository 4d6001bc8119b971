"""Run the batches of a shard, one at a time: plain transactions on the event loop, all other work on a thread.

The thread reads, opens and closes; it also ends each transaction that did not commit, which may block and repeat it
in parts. Over TLS it does all work. The loop's and the thread's use of a store never overlap.

A thread for each transaction costs about 60 calls of futex: driver and event loop give the interpreter's lock to each
other at each read and write. Here a transaction is two writes and the reads of its replies, in turns of the loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.ids import Marks
from foqs.item import body_bytes
from foqs.opened import Opened
from foqs.rows import Batch
from foqs.server.shard_thread import Begun, Crashed, Finished, ShardThread
from foqs.store.protocol import ShardStore, StoreError
from foqs.store.sql import SqlStore
from foqs.store.transaction import Loss, State, Transaction
from foqs.travel import bare

LOOP_ROWS = 512
LOOP_BYTES = 256 << 10
"""Larger transactions go to the thread: building their text would hold the loop up for more than about 1 ms."""
_READ_BYTES = 1 << 16
_COMMITTED = Outcome.COMMITTED
T = TypeVar("T")
Done = Callable[[Exception | None], None]


class LoopTransactions:
    """Runs one transaction at a time on the socket of a connection that the caller keeps.

    `timeout_s` bounds each wait for the server. The socket, whose number is `fd`, is watched from `attach` on until
    `detach`, which must precede any other use of the connection and its end: the system gives its number to another
    file. `ended` is called when the server ends the connection between two transactions.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timeout_s: float, ended: Callable[[], None] = lambda: None
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._ended = ended
        self.fd = -1
        self._transaction: Transaction | None = None
        self._done: Done | None = None
        self._unsent: bytes | memoryview = b""
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return self._transaction is not None

    def attach(self, connection: socket.socket) -> None:
        """Watch a connection, if none is watched."""
        if self.fd < 0:
            fd = connection.fileno()
            self._loop.add_reader(fd, self._readable)
            self.fd = fd

    def run(self, transaction: Transaction, done: Done) -> None:
        """Run `transaction` on the connection and call `done` when it has ended, which may be before this returns.

        `done` gets None, or an unexpected exception; the transaction has no known end then."""
        assert self._transaction is None, "a transaction is in flight"
        self._transaction, self._done = transaction, done
        self._deadline_s = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._late)
        packet = transaction.first
        try:
            sent = os.write(self.fd, packet)
        except OSError:
            sent = 0
        if sent < len(packet):
            self._send(transaction, memoryview(packet)[sent:])
            if transaction.ended:
                self._end()

    def detach(self) -> None:
        """Watch the connection no more."""
        if self.fd >= 0:
            self._loop.remove_reader(self.fd)
            if self._unsent:
                self._loop.remove_writer(self.fd)
                self._unsent = b""
            self.fd = -1

    def close(self) -> None:
        """Detach, and end without any further callback."""
        self.detach()
        self._transaction = self._done = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------- events of the loop

    def _readable(self) -> None:
        transaction = self._transaction
        if transaction is None:
            # The server ended the connection, or says why it is about to.
            self.detach()
            self._ended()
            return
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            packet = transaction.received(data) if data and not self._unsent else self._unexpected(transaction, data)
            if packet:
                self._send(transaction, packet)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the shard waiting for ever
            self.detach()
            self._end(error)
            return
        if not transaction.ended:
            self._deadline_s = self._loop.time() + self._timeout_s
        elif self._unsent or (done := self._done) is None:
            self._end()
        else:  # `_end`, which each transaction would pay for
            self._transaction = self._done = None
            done(None)

    def _writable(self) -> None:
        transaction, packet = self._transaction, self._unsent
        assert transaction is not None, "bytes of a transaction are left"
        self._unsent = b""
        self._loop.remove_writer(self.fd)
        self._send(transaction, packet)
        self._deadline_s = self._loop.time() + self._timeout_s
        if transaction.ended:
            self._end()

    def _late(self) -> None:
        self._timer = None
        transaction = self._transaction
        if transaction is None:
            return
        # One timer serves many transactions: each moves the deadline on.
        if self._loop.time() >= self._deadline_s:
            self._readable()  # if the loop itself was held up, the reply may be here
            if self._transaction is transaction and self._loop.time() >= self._deadline_s:
                transaction.lost(Loss.DEADLINE)
                self._end()
        if self._transaction is not None and self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._late)

    # ------------------------------------------------------------------------------------- bytes

    def _unexpected(self, transaction: Transaction, data: bytes) -> bytes:
        """Take the end of the connection, or bytes that arrive before the packet is written."""
        if not data:
            transaction.lost(Loss.END)
        elif transaction.commands == 1 or transaction.received(data) or transaction.ended:
            # To half a packet: the connection cannot carry another one behind it.
            transaction.lost(Loss.BAD_REPLY)
        return b""

    def _send(self, transaction: Transaction, packet: bytes | memoryview) -> None:
        try:
            sent = os.write(self.fd, packet)
        except BlockingIOError:
            sent = 0
        except OSError:
            transaction.lost(Loss.WRITE)
            return
        if sent < len(packet):
            self._unsent = memoryview(packet)[sent:]
            self._loop.add_writer(self.fd, self._writable)

    # ------------------------------------------------------------------------------------- the end

    def _end(self, error: Exception | None = None) -> None:
        done = self._done
        self._transaction = self._done = None
        if self._unsent:
            self.detach()
        assert done is not None
        done(error)


def _changed_bytes(batch: Batch) -> int:
    metadata = sum([len(metadata) for _, metadata in batch.metadata_new])
    reasons = sum([len(row.reason) for row in batch.failure_new]) + sum([len(row[2]) for row in batch.failed_new])
    return metadata + reasons + sum(map(body_bytes, batch.bodies_new))


def worker_of(
    store: ShardStore,
    name: str,
    loop: asyncio.AbstractEventLoop,
    deliver: Callable[[Callable[[], None]], None],
    ended: Callable[[], None] = lambda: None,
) -> ShardWorker | ShardThread:
    """Return the worker of a shard: its thread alone, if the event loop cannot run transactions of such a store."""
    if isinstance(store, SqlStore) and store.in_python:
        return ShardWorker(store, name, loop, deliver, ended)
    return ShardThread(store, name, deliver)


class ShardWorker:
    """`deliver(fn)` runs `fn` on the event loop, in order; it is called from the thread. `ended` is called on the event
    loop when the server has ended an idle connection, where that is noticed. `connect` precedes the first `submit`."""

    _finished: Finished
    _crashed: Crashed

    def __init__(
        self,
        store: SqlStore,
        name: str,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Callable[[], None]], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = self._store = store
        self._deliver = deliver
        self._thread = ShardThread(store, name, deliver)
        self._on_loop = LoopTransactions(loop, store.io_timeout_s, ended)
        self._close: Callable[[], None] | None = None

    def connect(self, finished: Finished, crashed: Crashed) -> None:
        """See `ShardThread.connect`."""
        self._finished, self._crashed = finished, crashed
        self._thread.connect(finished, crashed)

    def open(
        self,
        owner: str,
        *,
        take_over: bool,
        epoch_above: int = 0,
        marks: Marks | None = None,
        done: Callable[[Opened | StoreError], None],
    ) -> None:
        self._thread.open(owner, take_over=take_over, epoch_above=epoch_above, marks=marks, done=done)

    def submit(self, shard_batch: ShardBatch) -> None:
        """Run a batch: a small transaction alone on the event loop."""
        batch, size = shard_batch.transaction, shard_batch.size_bytes
        if batch is not None and (batch.metadata_new or batch.failure_new or batch.failed_new or batch.bodies_new):
            size += _changed_bytes(batch)
        alone = not (shard_batch.reads or shard_batch.confirm or shard_batch.copies)
        on_loop = self._on_loop
        if batch is not None and alone and shard_batch.rows <= LOOP_ROWS and size <= LOOP_BYTES:
            try:
                if on_loop.fd < 0 and (connection := self._store.plain_socket) is not None:
                    on_loop.attach(connection)
                if on_loop.fd >= 0:
                    at_s = time.perf_counter()
                    try:
                        transaction = self._store.begin(batch)
                    except StoreError:
                        pass  # the thread gets the same error, and handles it
                    else:
                        on_loop.run(transaction, partial(self._ended, shard_batch, transaction, at_s))
                        return
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the shard waiting for ever
                on_loop.close()
                self._deliver(partial(self._crashed, shard_batch, bare(error)))
                return
        on_loop.detach()
        self._thread.submit(shard_batch)

    def call(self, work: Callable[[ShardStore], T], done: Callable[[T | Exception], None]) -> None:
        """See `ShardThread.call`. A transaction of the loop may be in flight: `work` leaves its connection alone."""
        self._thread.call(work, done)

    def watch(self, done: Callable[[bool], None]) -> None:
        """See `ShardThread.watch`."""
        self._thread.watch(done)

    def cut(self) -> None:
        """See `ShardThread.cut`."""
        self._store.cut()

    def close(self, done: Callable[[], None] | None = None, *, clean: bool = False) -> None:
        """Close the store after the batch in flight, and end the thread. `submit` must not be called after this."""
        if self._on_loop.busy:
            self._close = partial(self.close, done, clean=clean)
            return
        self._on_loop.close()
        self._thread.close(done, clean=clean)

    def _ended(self, shard_batch: ShardBatch, transaction: Transaction, at_s: float, error: Exception | None) -> None:
        try:
            if error is None and transaction.state is not State.COMMITTED:
                self._on_loop.detach()
                self._thread.submit(shard_batch, Begun(at_s, partial(self._store.conclude, transaction)))
                return
            try:
                if error is None:
                    self._store.conclude(transaction)
            except Exception as fault:  # noqa: BLE001 - as in `submit`
                error = bare(fault)
            if error is not None:
                self._crashed(shard_batch, error)
                return
            took_ms = (time.perf_counter() - at_s) * 1000
            self._finished(shard_batch, BatchResult(_COMMITTED, latency_ms=took_ms, transaction_ms=took_ms))
        finally:
            if self._close is not None:
                close, self._close = self._close, None
                close()
