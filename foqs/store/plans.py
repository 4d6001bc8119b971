"""A batch as the statements of one transaction, and the rows that each must match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from foqs.rows import Batch
from foqs.store.dialect import Dialect
from foqs.store.protocol import Fenced
from foqs.store.statements import ONE_PACKET_BYTES, Fence, writes

ANOTHER_OWNER = "another owner has the shard"
COMMIT = "COMMIT"
FENCE = 1
"""The place of the fence among the statements."""
FENCE_ROWS: list[int | None] = [None, 1]


class Plan(NamedTuple):
    """The statements of a transaction, from BEGIN and the fence on, and the rows that each must match.

    None stands for any number of rows. `next_number` is the one that the fence saves. `with_commit`: COMMIT is the last
    of `texts`; else it is sent after the replies to them."""

    texts: list[str]
    rows: list[int | None]
    next_number: int
    with_commit: bool = False

    def missed(self, counts: Iterable[int]) -> int:
        """Return how many rows the statements missed that they should have matched. Raises Fenced."""
        missed = 0
        for at, (wanted, count) in enumerate(zip(self.rows, counts, strict=False)):
            if wanted is not None and count != wanted:
                if at == FENCE:
                    raise Fenced(ANOTHER_OWNER)
                missed += abs(wanted - count)
        return missed


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
        return Plan(texts, FENCE_ROWS + [statement.rows for statement in statements], fence.next_number, with_commit)


def planner_of(dialect: Dialect, max_statement_bytes: int, packet_bytes: int) -> Planner:
    one_packet_bytes = min(ONE_PACKET_BYTES, packet_bytes // 2) if dialect.one_packet else 0
    return Planner(dialect, max_statement_bytes, one_packet_bytes)
