"""A small transaction as one prepared statement of MariaDB, from START TRANSACTION to COMMIT.

A server takes longer to read a short statement than to run it, and it sends the reply to each statement of a text by
itself. This statement has one reply: OK, if all is committed with no row missed.

An error before COMMIT comes with the SQLSTATE `_FAILED`, and its message begins with the number of statements that were
run. Rows that were missed are an error with the SQLSTATE `_MISSED`, behind COMMIT. Every other error may be that of
COMMIT, or of a server that ended the statement: the outcome is in doubt.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import chain, starmap
from operator import attrgetter
from struct import Struct
from struct import error as StructError

from foqs.rows import Batch
from foqs.store.packets import (
    COM_STMT_EXECUTE,
    ITEM_PARAMETERS,
    ITEM_ROW,
    ITEM_TYPES,
    LONGLONG,
    READY_PARAMETERS,
    READY_ROW,
    READY_TYPES,
    TINY,
    Err,
    command_head,
    item_values,
    pack_ready,
    pack_statement,
)
from foqs.store.statements import ITEM, READY, narrow_rows
from foqs.store.transaction import NULL_REFUSED, Loss, State, Transaction

ROWS = 4
"""The most rows that a table gets, and loses."""
_FAILED, _MISSED = "FQ001", "FQ002"
_FENCE = (
    "UPDATE shard SET seq = CASE WHEN epoch = ? AND connection_id = ? AND seq = ? THEN ? END, next_number = ?, "
    "due_from_ms = ?, expiry_from_ms = ?, dedup_from_ms = ?, indexed_to = COALESCE(?, indexed_to) WHERE one = 1"
)
_WRITES = {
    "bodies": f"INSERT INTO {ITEM} VALUES {ITEM_ROW}",
    "narrow": f"INSERT INTO {READY} VALUES {READY_ROW}",
    "taken": "DELETE FROM ready WHERE lane = ? AND priority = ? AND deliver_after = ? AND id = ?",
    "gone": "DELETE FROM item WHERE id = ?",
}
"""By the variable with their number of rows."""
_pack_head = Struct("<4b8q").pack
_pack_key = Struct("<4q").pack
_pack_id = Struct("<q").pack
_INDEXED_TO = 12
_PARAMETERS = (_INDEXED_TO + 1, ITEM_PARAMETERS, READY_PARAMETERS, 4, 1)
"""Of the counts and the fence, and of a row of each write."""
_ENDS = [_PARAMETERS[0] + ROWS * sum(_PARAMETERS[1 : at + 1]) for at in range(5)]
_NULL_BYTES = (_ENDS[-1] + 7) // 8
_ALL_TYPES = b"\1" + TINY * 4 + LONGLONG * 9 + ROWS * ITEM_TYPES + ROWS * READY_TYPES + ROWS * 5 * LONGLONG
_UNUSED = [
    [(1 << (ROWS - rows) * each) - 1 << start + rows * each for rows in range(ROWS + 1)]
    for start, each in zip(_ENDS, _PARAMETERS[1:], strict=False)
]
"""For each write and number of rows: the NULL bits of the other rows."""


_TAKEN = {
    "inserts", "ready_gone", "item_gone", "next_number", "due_from_ms", "expiry_from_ms", "dedup_from_ms", "indexed_to",
    "indexed_from", "filled",
}  # fmt: skip
_others_of = attrgetter(*[column.name for column in fields(Batch) if column.name not in _TAKEN])
"""The columns of a batch that the statement cannot store, and each column that a batch gets later."""


def _nested(count: str, statement: str, at: int = 0) -> str:
    """Return `statement` for each row that the variable `count` counts, up to the last place."""
    rest = _nested(count, statement, at + 1) if at + 1 < ROWS else ""
    return f"IF {count} > {at} THEN {statement} {rest}END IF; "


def compound_text() -> str:
    """Return the statement to prepare."""
    counts = "".join([f"DECLARE {name} INT DEFAULT ?; " for name in _WRITES])
    miss = "IF ROW_COUNT() <> 1 THEN SET missed = missed + ABS(ROW_COUNT() - 1); END IF;"
    writes = "".join([_nested(count, f"{statement}; {miss}") for count, statement in _WRITES.items()])
    return (
        f"BEGIN NOT ATOMIC {counts}DECLARE step, missed, code INT DEFAULT 0; DECLARE words VARCHAR(512); "
        "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN "
        "GET DIAGNOSTICS CONDITION 1 code = MYSQL_ERRNO, words = MESSAGE_TEXT; "
        "SET words = CONCAT(step, LEFT(words, 500)); "
        f"SIGNAL SQLSTATE '{_FAILED}' SET MYSQL_ERRNO = code, MESSAGE_TEXT = words; END; "
        f"START TRANSACTION; {_FENCE}; "
        f"IF ROW_COUNT() <> 1 THEN SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = {NULL_REFUSED}; END IF; "
        f"SET step = 1; {writes}END; COMMIT; "
        f"IF missed THEN SET words = missed; SIGNAL SQLSTATE '{_MISSED}' SET MESSAGE_TEXT = words; END IF; END"
    )


class Compound:
    """The statement of one connection, prepared as `number`."""

    def __init__(self, number: int) -> None:
        self._head = pack_statement(number, 0, 1)
        self._types = _ALL_TYPES

    def forget_types(self) -> None:
        """Send them again, as `Inserts.forget_types`."""
        self._types = _ALL_TYPES

    def command(self, epoch: int, link: int, seq: int, next_number: int, batch: Batch, max_bytes: int) -> bytes | None:
        """Return the command that runs `batch`; None for one with other rows, or with more rows or bytes."""
        if any(_others_of(batch)):
            return None
        items, taken, gone = batch.inserts, batch.ready_gone, batch.item_gone
        if len(items) > ROWS or len(taken) > ROWS or len(gone) > ROWS:
            return None
        ready: list[tuple[int, int, int, int, int]] = []
        for item in items:
            if not item.unindexed or item.expires_at_ms:
                ready, timer, expiry = narrow_rows(items)
                if timer or expiry:
                    return None
                break
        bodies, narrow, keys, ids = _UNUSED
        from_ms = batch.due_from_ms, batch.expiry_from_ms, batch.dedup_from_ms
        counts = len(items), len(ready), len(taken), len(gone)
        try:
            nulls, values = item_values(items) if items else (0, [])
            if sum(map(len, values)) > max_bytes:
                return None
            head = _pack_head(*counts, epoch, link, seq - 1, seq, next_number, *from_ms)
            indexed = b"" if batch.indexed_to is None else _pack_id(batch.indexed_to)
            rows = starmap(pack_ready, ready), starmap(_pack_key, taken), map(_pack_id, gone)
            values = [head, indexed, *values, *chain(*rows)]
        except StructError:  # the server refuses the number in a text
            return None
        nulls = nulls << _ENDS[0] | bodies[len(items)] | narrow[len(ready)] | keys[len(taken)] | ids[len(gone)]
        if batch.indexed_to is None:
            nulls |= 1 << _INDEXED_TO
        body = b"".join([self._head, nulls.to_bytes(_NULL_BYTES, "little"), self._types, *values])
        self._types = b"\0"
        return command_head(len(body) + 1, COM_STMT_EXECUTE) + body


class CompoundTransaction(Transaction):
    """A transaction that is a `Compound`. Its plan has no texts and no rows."""

    __slots__ = ()

    @property
    def misunderstood(self) -> bool:
        """Return True for an end that may recur: a server that prepares the statement and cannot run it, say."""
        failure = self.failure
        return self.state is State.IN_DOUBT and (isinstance(failure, Err) or failure is Loss.BAD_REPLY)

    def _replied(self) -> bytes:
        failure = self.failure
        if failure is None and len(self._counts) == 1:
            self.state = State.COMMITTED
        elif not isinstance(failure, Err) or self._counts:
            self.lost(Loss.BAD_REPLY)
        elif failure.sqlstate == _MISSED:
            self.missed = int(failure.message)
            self.state, self.failure = State.COMMITTED, None
        elif failure.sqlstate == _FAILED:
            self.failure = Err(failure.code, "", failure.message[1:])
            fenced = failure.code == NULL_REFUSED and failure.message.startswith("0")
            self.state = State.FENCED if fenced else State.FAILED
        else:
            self.state = State.IN_DOUBT
        self.ended = True
        return b""
