"""One transaction: its statements, the counts that they must have, and its course over a connection's bytes.

Pure: an event loop passes on bytes, the end of the connection and deadlines. `SqlStore.conclude` turns the end of a
transaction into the errors of `ShardStore.commit`.

| state      | event                             | next      | sends           |
| ---------- | --------------------------------- | --------- | --------------- |
| SENDING    | the last reply to a packet        | SENDING   | the next packet |
| SENDING    | the last reply to the last packet | COMMITTING | COMMIT         |
| SENDING    | the fence matched no row          | FENCED    |                 |
| SENDING    | an error, or the connection fails | FAILED    |                 |
| COMMITTING | OK                                | COMMITTED |                 |
| COMMITTING | an error, or the connection fails | IN_DOUBT  |                 |

A packet is sent after all replies to the one before it. Commands that travel together would not stop at an error, and
a deadlock ends the transaction: the server would run and keep each statement behind it by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from foqs.store.packets import BadReply, Err, Replies, query
from foqs.store.protocol import Fenced

ANOTHER_OWNER = "another owner has the shard"
_FENCE = 1
_COMMIT = query("COMMIT")


class Plan(NamedTuple):
    """The statements of a transaction, from BEGIN and the fence on, and the rows that each must match.

    None stands for any number of rows. `next_number` is the one that the fence saves."""

    texts: list[str]
    rows: list[int | None]
    next_number: int

    def missed(self, counts: Iterable[int]) -> int:
        """Return how many rows the statements missed that they should have matched. Raises Fenced."""
        missed = 0
        for at, (wanted, count) in enumerate(zip(self.rows, counts, strict=True)):
            if wanted is not None and count != wanted:
                if at == _FENCE:
                    raise Fenced(ANOTHER_OWNER)
                missed += abs(wanted - count)
        return missed


class State(Enum):
    SENDING = "sending"
    COMMITTING = "committing"
    COMMITTED = "committed"
    FENCED = "fenced"
    FAILED = "failed"  # certainly not committed: COMMIT was not sent
    IN_DOUBT = "in doubt"


class Loss(Enum):
    """Why the connection cannot be used any more: the driver's code for it, and a text."""

    WRITE = (2006, "the connection does not take the request")
    END = (2013, "the connection ended before the reply")
    DEADLINE = (2013, "no reply in time")
    BAD_REPLY = (2027, "the bytes are no reply to the request")


class Transaction:
    """Send `begin()`, then what `received` returns, until the transaction has `ended`.

    `packets` are the plan's statements before COMMIT. `failure` says why it FAILED, or is IN_DOUBT."""

    __slots__ = ("_counts", "_packets", "_replies", "_sent", "failure", "missed", "plan", "state")

    def __init__(self, plan: Plan, packets: Sequence[bytes]) -> None:
        self.plan = plan
        self.state = State.SENDING
        self.failure: Err | Loss | None = None
        self.missed = 0
        self._packets = packets
        self._sent = 0
        self._counts: list[int] = []
        self._replies = Replies()

    @property
    def ended(self) -> bool:
        return self.state is not State.SENDING and self.state is not State.COMMITTING

    def begin(self) -> bytes:
        """Return the first packet."""
        self._sent = 1
        return self._packets[0]

    def received(self, data: bytes) -> bytes:
        """Take bytes of the server, and return the next packet to send; empty if there is none."""
        try:
            replies = self._replies.feed(data)
        except BadReply:
            self.lost(Loss.BAD_REPLY)
            return b""
        for at, reply in enumerate(replies, 1):
            if isinstance(reply, Err):
                more = False
                self.failure = reply
            else:
                more = reply.more
                self._counts.append(reply.rows)
            if not more:
                if at < len(replies) or self._replies.partial:
                    self.lost(Loss.BAD_REPLY)  # bytes behind the last reply that a request has
                    return b""
                return self._replied()
        return b""

    def lost(self, why: Loss) -> None:
        """End the transaction because the connection cannot be used any more."""
        self.failure = why
        self.state = State.IN_DOUBT if self.state is State.COMMITTING else State.FAILED

    def _replied(self) -> bytes:
        """All replies to a packet are read."""
        if self.state is State.COMMITTING:
            if self.failure is not None:
                self.state = State.IN_DOUBT
            elif len(self._counts) > 1:
                self.lost(Loss.BAD_REPLY)
            else:
                self.state = State.COMMITTED
            return b""
        counts, rows = self._counts, self.plan.rows
        if len(counts) > _FENCE and counts[_FENCE] != rows[_FENCE]:
            self.state, self.failure = State.FENCED, None
        elif self.failure is not None:
            self.state = State.FAILED
        elif self._sent < len(self._packets):
            self._sent += 1
            return self._packets[self._sent - 1]
        elif len(counts) != len(rows):
            self.lost(Loss.BAD_REPLY)
        else:
            self.missed = self.plan.missed(counts)
            self._counts = []
            self.state = State.COMMITTING
            return _COMMIT
        return b""
