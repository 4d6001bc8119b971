"""Transactions on the event loop: bytes between one shard's database connection and a `Transaction`.

A thread for each transaction costs about 60 calls of futex: driver and event loop give the interpreter's lock to each
other at each read and write. Here a transaction is two writes and the reads of its replies, in turns of the loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from foqs.store.transaction import Loss, Transaction

_READ_BYTES = 1 << 16
Done = Callable[[Exception | None], None]


class LoopTransactions:
    """Runs one transaction at a time on the socket of a connection that the caller keeps.

    `timeout_s` bounds each wait for the server. The socket is watched from the first transaction on until `detach`,
    which must precede any other use of the connection and its end: the system gives its number to another file.
    `ended` is called when the server ends the connection between two transactions.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timeout_s: float, ended: Callable[[], None] = lambda: None
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._ended = ended
        self._fd = -1
        self._transaction: Transaction | None = None
        self._done: Done | None = None
        self._unsent: bytes | memoryview = b""
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return self._transaction is not None

    def run(self, connection: socket.socket, transaction: Transaction, done: Done) -> None:
        """Run `transaction` and call `done` when it has ended, which may be before this method returns.

        `done` gets None, or an unexpected exception; the transaction has no known end then."""
        assert self._transaction is None, "a transaction is in flight"
        fd = connection.fileno()
        if fd != self._fd:
            self.detach()
            self._loop.add_reader(fd, self._readable)
            self._fd = fd
        self._transaction, self._done = transaction, done
        self._deadline_s = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._late)
        self._send(transaction, transaction.begin())
        if transaction.ended:
            self._end()

    def detach(self) -> None:
        """Watch the connection no more."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            if self._unsent:
                self._loop.remove_writer(self._fd)
                self._unsent = b""
            self._fd = -1

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
            self._read(transaction)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the shard waiting for ever
            self.detach()
            self._end(error)
            return
        if transaction.ended:
            self._end()

    def _writable(self) -> None:
        transaction, packet = self._transaction, self._unsent
        assert transaction is not None, "bytes of a transaction are left"
        self._unsent = b""
        self._loop.remove_writer(self._fd)
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

    def _read(self, transaction: Transaction) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            transaction.lost(Loss.END)
        elif self._unsent and transaction.commands == 1:
            transaction.lost(Loss.BAD_REPLY)  # to half a packet: the connection cannot carry another one behind it
        else:
            self._deadline_s = self._loop.time() + self._timeout_s
            packet = transaction.received(data)
            if self._unsent and (packet or transaction.ended):
                transaction.lost(Loss.BAD_REPLY)
            elif packet:
                self._send(transaction, packet)

    def _send(self, transaction: Transaction, packet: bytes | memoryview) -> None:
        try:
            sent = os.write(self._fd, packet)
        except BlockingIOError:
            sent = 0
        except OSError:
            transaction.lost(Loss.WRITE)
            return
        if sent < len(packet):
            self._unsent = memoryview(packet)[sent:]
            self._loop.add_writer(self._fd, self._writable)

    # ------------------------------------------------------------------------------------- the end

    def _end(self, error: Exception | None = None) -> None:
        done = self._done
        self._transaction = self._done = None
        if self._unsent:
            self.detach()
        assert done is not None
        done(error)
