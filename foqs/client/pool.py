"""The connections of one client: at most so many, kept while they work, spread over the addresses."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from time import monotonic

from foqs.client.connection import Address, ClientClosed, Connection
from foqs.client.forks import renew_after_fork
from foqs.client.options import unlimited
from foqs.client.tls import Securing
from foqs.client.wrong_peer import WrongPeer
from foqs.errors import FoqsError, NotSent, Unreachable
from foqs.travel import bare

AVOID_S = 1.0
"""An address that failed is tried last for this time; the time doubles with each further failed connection, up to"""
AVOID_AT_MOST_S = 30.0


class Busy(NotSent):
    """All connections are in use."""


class Pool:
    """Thread-safe. Invariant: `_open` counts idle and lent connections (and those being opened), never above
    `size`.

    Deadlines are of the monotonic clock, in seconds.
    """

    def __init__(
        self,
        addresses: list[Address],
        size: int,
        connect_timeout_s: float,
        max_idle_s: float,
        securing: Securing | None = None,
    ) -> None:
        self.addresses = addresses
        self._size = unlimited(size)
        self._connect_timeout_s = connect_timeout_s
        self._max_idle_s = max_idle_s
        self._securing = securing
        self._turn = random.randrange(len(addresses))
        self._failed_at: dict[Address, float] = {}
        self._refused: dict[Address, int] = {}  # connections in a row that could not be made
        self._living: frozenset[Address] = frozenset()
        self._closed = False
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.RLock()  # a signal handler may call the client
        self._change = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for a change
        self._idle: list[Connection] = []
        self._open = 0

    @property
    def has_others(self) -> bool:
        """Whether there is more than one address."""
        return len(self._living.union(self.addresses)) > 1

    def after_fork(self) -> None:
        """The connections belong to the parent, and close their copies here."""
        self._start()

    def take(self, deadline: float, wanted: Sequence[Address] = (), *, wait: bool = True) -> Connection:
        """A connection for the caller alone, to be returned with `give`: to the first of `wanted` that did not fail
        lately and can be connected to; any of the client's own addresses, when there are none. Raises NotSent, or
        WrongPeer if none of the addresses is a port for this client; Busy
        when all are in use, at once without `wait`.
        """
        first = (self._in_turn(wanted) if self._failed_at else wanted)[0] if wanted else None
        while (connection := self._idle_or_slot(deadline if wait else 0.0, first)) is not None:
            if monotonic() - connection.idle_since < self._max_idle_s and connection.usable():
                return connection
            self.give(connection, usable=False)
        try:
            return self._connect(deadline, self._in_turn(wanted))
        except BaseException:
            self._free_slot()
            raise

    def give(self, connection: Connection, *, usable: bool) -> None:
        """Takes back what `take` gave; keeps it when it may be used again."""
        with self._lock:
            if usable and not self._closed:
                connection.idle_since = monotonic()
                self._idle.append(connection)
                if self._waiting:
                    self._change.notify()
                return
        connection.close()
        self._free_slot()

    def avoid(self, address: Address) -> None:
        """After a failure there: idle connections to it are dropped, and other addresses are preferred for a while."""
        with self._lock:
            self._failed_at[address] = monotonic()
            dropped = [c for c in self._idle if c.address == address]
            self._idle = [c for c in self._idle if c.address != address]
            self._open -= len(dropped)
            self._change.notify_all()
        for connection in dropped:
            connection.close()

    def living(self, hosts: Iterable[Address]) -> None:
        """Set the live hosts of the routing: drop connections to hosts that are gone, and forget failures of new
        ones."""
        with self._lock:
            before, self._living = self._living, frozenset(hosts)
        for address in before - self._living:
            self.avoid(address)
        with self._lock:
            # Not only those of `before`: a call to a host that is gone may fail later.
            kept = self._living.union(self.addresses) - self._living.symmetric_difference(before)
            for address in [address for address in [*self._failed_at, *self._refused] if address not in kept]:
                self._failed_at.pop(address, None)
                self._refused.pop(address, None)

    def close(self) -> None:
        """Idle connections are closed now, lent ones when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            self._change.notify_all()
        for connection in idle:
            connection.close()

    def _idle_or_slot(self, deadline: float, wanted: Address | None) -> Connection | None:
        """An idle connection to `wanted` (None: to any), or None when the caller may open one."""
        with self._lock:
            while True:
                if self._closed:
                    raise ClientClosed("the client is closed")
                for at in range(len(self._idle) - 1, -1, -1):
                    if wanted is None or self._idle[at].address == wanted:
                        return self._idle.pop(at)
                if self._open < self._size:
                    self._open += 1
                    return None
                if self._idle:
                    self._idle.pop(0).close()  # its slot is the caller's
                    return None
                left = deadline - monotonic()
                if left <= 0:
                    raise Busy(f"all {self._size} connections of the client are in use")
                # Looked at again when the time is over: a notification that came just then woke no other thread.
                self._waiting += 1
                try:
                    self._change.wait(left)
                finally:
                    self._waiting -= 1

    def _connect(self, deadline: float, order: Sequence[Address]) -> Connection:
        error: FoqsError | None = None
        for address in order:
            left = deadline - monotonic()
            if left <= 0:
                break
            try:
                connection = Connection(address, min(left, self._connect_timeout_s), self._securing)
            except (NotSent, WrongPeer) as failed:
                # The call is tried again if one of the addresses may answer later.
                error = bare(failed) if error is None or isinstance(error, WrongPeer | Unreachable) else error
                self._refused[address] = self._refused.get(address, 0) + 1
                self.avoid(address)
            else:
                self._refused.pop(address, None)
                return connection
        try:
            raise error or NotSent("timed out before a connection was tried")
        finally:
            del error  # or it would hold itself, by this frame

    def _in_turn(self, wanted: Sequence[Address]) -> list[Address]:
        """`wanted`, or all addresses, another one first each time; those that failed lately last."""
        with self._lock:
            if not wanted:
                self._turn = (self._turn + 1) % len(self.addresses)
                wanted = self.addresses[self._turn :] + self.addresses[: self._turn]
            now = monotonic()
            return sorted(wanted, key=lambda address: self._avoided_until(address) > now)

    def _avoided_until(self, address: Address) -> float:
        failed_at = self._failed_at.get(address)
        if failed_at is None:
            return 0.0
        return failed_at + min(AVOID_AT_MOST_S, AVOID_S * 2.0 ** min(self._refused.get(address, 1) - 1, 10))

    def _free_slot(self) -> None:
        with self._lock:
            self._open -= 1
            self._change.notify()

    def __repr__(self) -> str:
        with self._lock:
            return f"Pool({self._open} open, {len(self._idle)} idle, at most {self._size})"
