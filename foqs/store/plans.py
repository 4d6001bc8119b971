"""A batch as the statements of one transaction: all in text, or its new items as parameters of prepared statements."""

from __future__ import annotations

from itertools import chain
from struct import error as StructError
from typing import NamedTuple

from foqs.rows import Batch
from foqs.store.dialect import Dialect
from foqs.store.link import Link
from foqs.store.packets import query
from foqs.store.prepared import Inserts
from foqs.store.statements import (
    ONE_PACKET_BYTES,
    Fence,
    insert_timed,
    narrow_rows,
    writes,
    writes_after_inserts,
    writes_before_inserts,
)
from foqs.store.transaction import COMMIT, Plan, Transaction

_FENCE_ROWS: list[int | None] = [None, 1]
_TEXT_OF_ITEM_BYTES = 150
"""Text of a new item beside its payload."""


class Planner(NamedTuple):
    """What the database and the connection take. `one_packet_bytes`: text that travels with COMMIT."""

    dialect: Dialect
    max_statement_bytes: int
    one_packet_bytes: int

    def in_text(self, fence: Fence, batch: Batch) -> Plan:
        """Raises RowRejected for a row that no statement can carry."""
        statements = writes(batch, self.dialect, self.max_statement_bytes)
        texts = [self.dialect.begin, fence.text(), *[statement.text for statement in statements]]
        with_commit = sum(map(len, texts)) <= self.one_packet_bytes
        if with_commit:
            texts.append(COMMIT)
        return Plan(texts, _FENCE_ROWS + [statement.rows for statement in statements], fence.next_number, with_commit)

    def transaction(self, link: Link, fence: Fence, batch: Batch) -> Transaction:
        """Return the batch in packets for `link.plain_socket`. Raises as `in_text`."""
        if link.inserts is not None:
            made = self._in_binary(link, link.inserts, fence, batch)
            if made is not None:
                link.autocommit = False
                return made
        plan = self.in_text(fence, batch)
        return Transaction(plan, [query(text) for text in link.packets(plan.texts)])

    def _in_binary(self, link: Link, inserts: Inserts, fence: Fence, batch: Batch) -> Transaction | None:
        """Return the batch as one request of several commands; None where text is the better, or the only, way.

        A transaction that fits in a packet with COMMIT is faster so. Without autocommit, commands behind an error that
        ended the transaction begin one that nothing commits.
        """
        items = batch.inserts
        if 2 * sum([len(item.payload) for item in items]) + _TEXT_OF_ITEM_BYTES * len(items) <= self.one_packet_bytes:
            return None
        rows = narrow_rows(items)
        try:
            executed = inserts.commands(items, rows, self.max_statement_bytes)
        except StructError:
            inserts.forget_types()
            executed = None
        if executed is None:
            return None
        before = writes_before_inserts(batch)
        after = insert_timed([], rows)
        writes_after_inserts(after, batch, self.dialect, self.max_statement_bytes)
        head = link.packets(["SET autocommit = 0", fence.text(), *[statement.text for statement in before]])
        tail = link.packets([statement.text for statement in after]) if after else ()
        commands = [*map(query, head), *[packet for packet, _ in executed], *map(query, tail)]
        written = chain((statement.rows for statement in before), (count for _, count in executed))
        plan = Plan([], [*_FENCE_ROWS, *written, *[statement.rows for statement in after]], fence.next_number)
        return Transaction(plan, [b"".join(commands)], len(commands))


def planner_of(dialect: Dialect, max_statement_bytes: int, packet_bytes: int) -> Planner:
    one_packet_bytes = min(ONE_PACKET_BYTES, packet_bytes // 2) if dialect.one_packet else 0
    return Planner(dialect, max_statement_bytes, one_packet_bytes)
