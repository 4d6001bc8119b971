"""One transaction: its statements, the counts that they must have, and its course over a connection's bytes.

Pure: an event loop passes on bytes, the end of the connection and deadlines. `SqlStore.conclude` turns the end of a
transaction into the errors of `ShardStore.commit`.

| state      | event                             | next       | sends           |
| ---------- | --------------------------------- | ---------- | --------------- |
| SENDING    | the last reply to a packet        | SENDING    | the next packet |
| SENDING    | the last reply to the last packet | COMMITTING | COMMIT          |
| SENDING    | the connection fails              | FAILED     |                 |
| COMMITTING | all replies are OK                | COMMITTED  |                 |
| COMMITTING | an error of COMMIT                | IN_DOUBT   |                 |
| COMMITTING | the connection fails              | IN_DOUBT   |                 |
| either     | an error of the fence             | FENCED     |                 |
| either     | an error of another statement     | FAILED     |                 |

A transaction whose COMMIT is in its first packet begins as COMMITTING. An error ends the packet, so COMMIT is run after
all other statements only. A packet is sent after all replies to the previous packet.

A packet may consist of several commands, each with a reply of its own. They do not stop at an error, and a deadlock
ends the transaction: the server runs each command behind it by itself. So the first of them switches autocommit off,
and COMMIT is sent only after an OK to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import chain
from struct import error as StructError

from foqs.rows import Batch
from foqs.store.packets import BadReply, Err, Inserts, Replies, query
from foqs.store.statements import (
    COMMIT_TEXT,
    FENCE,
    FENCE_ROWS,
    Fence,
    Plan,
    Planner,
    Statement,
    in_packets,
    insert_timed,
    narrow_rows,
    writes,
)

NULL_REFUSED = 1048
"""The error of a fence that does not hold."""
_COMMIT_PACKET = query(COMMIT_TEXT)
_COMMAND_BYTES = 12 << 20
"""Bound on a command, whatever the server takes: a packet has 16 MiB at most."""
_TEXT_OF_ITEM_BYTES = 150
"""Text of a new item in addition to its payload."""


class State(Enum):
    SENDING = "sending"
    COMMITTING = "committing"
    COMMITTED = "committed"
    FENCED = "fenced"
    FAILED = "failed"  # certainly not committed: COMMIT was not run
    IN_DOUBT = "in doubt"


def end_of(plan: Plan, replies: int, *, committing: bool, answered: bool, null: bool) -> State:
    """The end of a transaction that failed after `replies`.

    `committing`: COMMIT was sent. `answered`: the server said so, and the connection was not lost. `null`: because of a
    NULL."""
    if replies == FENCE and null:
        return State.FENCED
    in_doubt = committing and (not answered or replies >= len(plan.rows))
    return State.IN_DOUBT if in_doubt else State.FAILED


class Loss(Enum):
    """Why the connection cannot be used again: the driver's code for it, and a text."""

    WRITE = (2006, "the connection does not take the request")
    END = (2013, "the connection ended before the reply")
    DEADLINE = (2013, "no reply in time")
    BAD_REPLY = (2027, "the bytes are no reply to the request")


class Transaction:
    """Send `begin()`, then what `received` returns, until the transaction has `ended`.

    `packets` are the plan's statements; the first has `commands`, and each later one a single command. `failure` says
    why it FAILED, or is IN_DOUBT."""

    __slots__ = (
        "_awaited",
        "_counts",
        "_packets",
        "_replies",
        "_sent",
        "commands",
        "failure",
        "missed",
        "plan",
        "state",
    )  # fmt: skip

    def __init__(self, plan: Plan, packets: Sequence[bytes], commands: int = 1) -> None:
        self.plan = plan
        self.state = State.SENDING
        self.failure: Err | Loss | None = None
        self.missed = 0
        self.commands = commands
        self._packets = packets
        self._awaited = commands
        self._sent = 0
        self._counts: list[int] = []
        self._replies = Replies()

    @property
    def ended(self) -> bool:
        return self.state is not State.SENDING and self.state is not State.COMMITTING

    def begin(self) -> bytes:
        """Return the first packet."""
        self._sent = 1
        if self.plan.with_commit:
            self.state = State.COMMITTING
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
                self.failure = self.failure or reply
            else:
                more = reply.more
                if self.failure is None:
                    self._counts.append(reply.rows)
            if not more:
                self._awaited -= 1
                if self._awaited:
                    continue
                if at < len(replies) or self._replies.partial:
                    self.lost(Loss.BAD_REPLY)  # bytes behind the last reply that a request has
                    return b""
                return self._replied()
        return b""

    def lost(self, why: Loss) -> None:
        """End the transaction because the connection cannot be used again."""
        self.failure = why
        self._fail(answered=False, null=False)

    def _fail(self, *, answered: bool, null: bool) -> None:
        committing = self.state is State.COMMITTING
        self.state = end_of(self.plan, len(self._counts), committing=committing, answered=answered, null=null)

    def _replied(self) -> bytes:
        """All replies to a packet are read."""
        counts, rows = self._counts, self.plan.rows
        committing = self.state is State.COMMITTING
        if len(counts) > FENCE and counts[FENCE] != rows[FENCE]:
            self.state, self.failure = State.FENCED, None
        elif self.failure is not None:
            self._fail(answered=True, null=isinstance(self.failure, Err) and self.failure.code == NULL_REFUSED)
        elif self._sent < len(self._packets):
            self._sent += 1
            self._awaited = 1
            return self._packets[self._sent - 1]
        elif len(counts) != len(rows) + committing:
            self.lost(Loss.BAD_REPLY)
        elif committing:
            self.missed = self.plan.missed(counts)
            self.state = State.COMMITTED
        else:
            self.state = State.COMMITTING
            self._awaited = 1
            return _COMMIT_PACKET
        return b""


def transaction_of(planner: Planner, inserts: Inserts | None, fence: Fence, batch: Batch) -> Transaction:
    """Return the batch as a transaction: all in text, or its new items as parameters of `inserts`.

    A transaction of several commands switches autocommit off. Raises as `Planner.in_text`.
    """
    if inserts is not None and (made := _in_binary(planner, inserts, fence, batch)) is not None:
        return made
    plan = planner.in_text(fence, batch)
    texts = (";".join(plan.texts),) if plan.with_commit else in_packets(plan.texts, planner.packet_bytes)
    return Transaction(plan, [query(text) for text in texts])


def _in_binary(planner: Planner, inserts: Inserts, fence: Fence, batch: Batch) -> Transaction | None:
    """Return the batch as one request of several commands; None where text is better, or the only way.

    A transaction that fits in a packet with COMMIT is faster so. Without autocommit, commands behind an error that
    ended the transaction begin one that is never committed.
    """
    items = batch.inserts
    text_bytes = 2 * sum([len(item.payload) for item in items]) + _TEXT_OF_ITEM_BYTES * len(items)
    if text_bytes <= planner.one_packet_bytes:
        return None
    rows = narrow_rows(items)
    try:
        executed = inserts.commands(items, rows, min(planner.max_statement_bytes, _COMMAND_BYTES))
    except StructError:
        inserts.forget_types()
        return None
    if executed is None:
        return None
    before: list[Statement] = []
    after = insert_timed([], rows)
    after += writes(batch, planner.dialect, planner.max_statement_bytes, before_inserts=before)
    head = in_packets(["SET autocommit = 0", fence.text(), *[one.text for one in before]], planner.packet_bytes)
    tail = in_packets([one.text for one in after], planner.packet_bytes) if after else ()
    commands = [*map(query, head), *[packet for packet, _ in executed], *map(query, tail)]
    written = chain((statement.rows for statement in before), (count for _, count in executed))
    plan = Plan([], [*FENCE_ROWS, *written, *[statement.rows for statement in after]], fence.next_number)
    return Transaction(plan, [b"".join(commands)], len(commands))
