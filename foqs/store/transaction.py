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
from itertools import groupby
from struct import error as StructError

from foqs.rows import NewItem
from foqs.store.dialect import Statement
from foqs.store.packets import BadReply, Err, Inserts, Replies, query
from foqs.store.statements import COMMIT_TEXT, FENCE, Plan, Planner, in_packets, insert_timed, narrow_rows

NULL_REFUSED = 1048
"""The error of a fence that does not hold."""
_COMMIT_PACKET = query(COMMIT_TEXT)
_COMMAND_BYTES = 12 << 20
"""Bound on a command, whatever the server takes: a packet has 16 MiB at most."""
TEXT_OF_ITEM_BYTES = 150
"""Text of a new item in addition to its payload."""
_KNOWN, _KNOWN_BYTES = 64, 512
"""Bounds on the replies that a store remembers, and on each of them."""


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
    """Send `first`, then what `received` returns, until the transaction has `ended`.

    `packets` are the plan's statements; the first has `commands`, and each later one a single command. `failure` says
    why it FAILED, or is IN_DOUBT. `known`: by the rows of a plan, a whole reply that was read as COMMITTED with no row
    missed. A plan with these rows and its COMMIT has ended so if its reply has the same bytes, which are not read."""

    __slots__ = (
        "_awaited",
        "_counts",
        "_good",
        "_known",
        "_packets",
        "_replies",
        "_seen",
        "_sent",
        "commands",
        "ended",
        "failure",
        "first",
        "missed",
        "plan",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        packets: Sequence[bytes],
        commands: int = 1,
        known: dict[tuple[int | None, ...], bytes] | None = None,
    ) -> None:
        self.plan = plan
        self.first = packets[0]
        self.state = State.COMMITTING if plan.with_commit else State.SENDING
        self.ended = False
        self.failure: Err | Loss | None = None
        self.missed = 0
        self.commands = commands
        self._packets = packets
        self._awaited = commands
        self._sent = 1
        self._counts: list[int] = []
        self._known = known if plan.with_commit else None
        self._good = None if self._known is None else self._known.get(plan.rows)
        self._seen = b""
        self._replies: Replies | None = None

    def received(self, data: bytes) -> bytes:
        """Take bytes of the server, and return the next packet to send; empty if there is none."""
        if (known := self._known) is None:
            return self._read(data)
        self._seen += data  # a server sends the reply to each statement by itself
        if (good := self._good) is not None:
            if self._seen == good:
                self.state, self.ended = State.COMMITTED, True
                return b""
            if good.startswith(self._seen):
                return b""
            self._good, data = None, self._seen
        packet = self._read(data)
        if self.state is State.COMMITTED and not self.missed and len(self._seen) <= _KNOWN_BYTES:
            if len(known) >= _KNOWN:
                known.clear()
            known[self.plan.rows] = self._seen
        return packet

    def _read(self, data: bytes) -> bytes:
        reader = self._replies
        if reader is None:
            reader = self._replies = Replies()
        try:
            replies = reader.feed(data)
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
                if at < len(replies) or reader.partial:
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
        self.ended = True

    def _replied(self) -> bytes:
        """All replies to a packet are read."""
        counts, rows = self._counts, self.plan.rows
        committing = self.state is State.COMMITTING
        if len(counts) > FENCE and counts[FENCE] != rows[FENCE]:
            self.state, self.failure, self.ended = State.FENCED, None, True
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
            self.state, self.ended = State.COMMITTED, True
        else:
            self.state = State.COMMITTING
            self._awaited = 1
            return _COMMIT_PACKET
        return b""


def in_binary(planner: Planner, inserts: Inserts, items: Sequence[NewItem]) -> list[Statement] | None:
    """Return the statements that store new items as parameters of `inserts`; None where text is the only way.

    Without autocommit, commands behind an error that ended the transaction begin one that is never committed.
    """
    rows = narrow_rows(items)
    try:
        made: list[Statement] | None = inserts.commands(items, rows, min(planner.max_statement_bytes, _COMMAND_BYTES))
    except StructError:
        inserts.forget_types()
        return None
    if made is not None:
        insert_timed(made, rows)
    return made


def packets_of(plan: Plan, packet_bytes: int) -> list[bytes]:
    """Return the commands of the plan: its texts together in packets, and the prepared ones."""
    made: list[bytes] = []
    for is_text, group in groupby(plan.texts, lambda text: isinstance(text, str)):
        texts = list(group)
        made += map(query, in_packets(texts, packet_bytes)) if is_text else texts
    return made
