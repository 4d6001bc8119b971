"""Who may read a frame next when the byte budget is short: large ones in the order in which they came."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from foqs.budget import Budget

if TYPE_CHECKING:
    from foqs.rpc.connection import Connection

SMALL_BYTES = 64 * 1024


class Admission:
    """Connections that wait for room for a frame.

    A small frame that fits passes those that wait for more: it may be the ack that makes room for them.
    Invariants: a connection waits at most once; the budget knows at most one waker of ours.
    """

    __slots__ = ("_armed", "_loop", "_waiting", "budget", "share")

    def __init__(self, budget: Budget, share: float, loop: asyncio.AbstractEventLoop) -> None:
        self.budget = budget
        self.share = share
        self._loop = loop
        self._waiting: dict[Connection, int] = {}
        self._armed = False

    def admit(self, connection: Connection, size_bytes: int) -> bool:
        """Whether a frame of this size may be read now; if not, `connection.admitted()` is called when it
        may.
        """
        if (size_bytes <= SMALL_BYTES or not self._waiting) and self.budget.fits(size_bytes, self.share):
            return True
        self._waiting[connection] = size_bytes
        self._arm()
        return False

    def leave(self, connection: Connection) -> None:
        """The connection is gone, or begins no more requests."""
        self._waiting.pop(connection, None)

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self.budget.when_given(self._wake)

    def _wake(self) -> None:
        # A give happens amid somebody's work: readers are resumed when that is done.
        if not self._loop.is_closed():
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        self._armed = False
        while self._waiting:
            connection, size_bytes = next(iter(self._waiting.items()))
            if not self.budget.fits(size_bytes, self.share):
                self._arm()
                return
            del self._waiting[connection]
            connection.admitted()
