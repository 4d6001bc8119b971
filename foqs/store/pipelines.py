"""A batch as the packets of a transaction on an event loop: all in text, or its new items as parameters."""

from __future__ import annotations

from itertools import chain
from struct import error as StructError

from foqs.rows import Batch
from foqs.store.link import Link
from foqs.store.packets import Inserts, query
from foqs.store.statements import FENCE_ROWS, Fence, Plan, Planner, Statement, insert_timed, narrow_rows, writes
from foqs.store.transaction import Transaction

_COMMAND_BYTES = 12 << 20
"""Bound on a command, whatever the server takes: a packet has 16 MiB at most."""
_TEXT_OF_ITEM_BYTES = 150
"""Text of a new item beside its payload."""


def transaction_of(planner: Planner, link: Link, fence: Fence, batch: Batch) -> Transaction:
    """Return the batch as a transaction for `link.plain_socket`. Raises as `Planner.in_text`."""
    if link.inserts is not None:
        made = _in_binary(planner, link, link.inserts, fence, batch)
        if made is not None:
            link.autocommit = False
            return made
    plan = planner.in_text(fence, batch)
    texts = (";".join(plan.texts),) if plan.with_commit else link.packets(plan.texts)
    return Transaction(plan, [query(text) for text in texts])


def _in_binary(planner: Planner, link: Link, inserts: Inserts, fence: Fence, batch: Batch) -> Transaction | None:
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
    head = link.packets(["SET autocommit = 0", fence.text(), *[statement.text for statement in before]])
    tail = link.packets([statement.text for statement in after]) if after else ()
    commands = [*map(query, head), *[packet for packet, _ in executed], *map(query, tail)]
    written = chain((statement.rows for statement in before), (count for _, count in executed))
    plan = Plan([], [*FENCE_ROWS, *written, *[statement.rows for statement in after]], fence.next_number)
    return Transaction(plan, [b"".join(commands)], len(commands))
