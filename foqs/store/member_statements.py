"""The statements of a transaction about batches of items: members and their counts on a shard, and batches at home.

Which batch a member belongs to is in its row alone. So the database counts the members that end, by their ids. Ids
without a row count nowhere, nor do members of a batch whose counts the shard has forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from foqs.item_batch import BatchPart, BatchRow, Counts, Ends, HowEnded, MemberRows, pack_ids
from foqs.store.dialect import ROWS, Dialect, Statement
from foqs.store.row_pieces import CASE_ROWS, insert, insert_pieces, pieces, pieces_by_bytes

COUNTS = ", ".join(Counts._fields)
BATCH_COLUMNS = "id, ns, state, created_at, expires_at, ended_at, parent, on_success, on_end, success_id, end_id"
_MEMBER = "member(id, batch, dead)"
_COUNT = f"batch_count(batch, {COUNTS}, changes, unsent)"
_ITEM_BATCH = f"item_batch({BATCH_COLUMNS})"
_PART = f"batch_part(batch, shard, epoch, serial, {COUNTS}, failed_ids)"


def write_members(made: list[Statement], rows: MemberRows, dialect: Dialect, max_statement_bytes: int) -> None:
    """Append the statements of `rows` to `made`. Raises RowRejected for a batch that no statement can carry."""
    if rows.created:
        created = pieces_by_bytes([_batch(row) for row in rows.created], max_statement_bytes)
        insert_pieces(made, _ITEM_BATCH, created)
    if rows.new:
        _add_members(made, rows.new, dialect)
    _count(made, dialect, "failed", rows.redriven, dead=1, sign="-")
    _count(made, dialect, "failed", rows.failed, dead=0)
    for how, ids in rows.ended.items():
        _count(made, dialect, HowEnded(how).name.lower(), ids, dead=0, leave=True)
    for batch, changes in rows.sent:
        counts = dialect.forced("batch_count")
        made.append((f"UPDATE {counts} SET unsent = 0 WHERE batch = {batch:d} AND changes = {changes:d}", None))
    dialect.delete(made, "member", "id", rows.left, all_there=False)
    dialect.delete(made, "batch_count", "batch", rows.forgotten, all_there=False)
    _write_home(made, rows, dialect, max_statement_bytes)


def _add_members(made: list[Statement], new: Sequence[tuple[int, int]], dialect: Dialect) -> None:
    insert(made, _MEMBER, [f"({item_id:d},{batch:d},0)" for item_id, batch in new])
    none = ",0" * (len(Counts._fields) - 1)
    counts = Counter(batch for _, batch in new)
    rows = [f"({batch:d},{count:d}{none},1,1)" for batch, count in counts.items()]
    made += [
        (f"INSERT INTO {_COUNT} VALUES {','.join(piece)} {dialect.add_members}", None) for piece in pieces(rows, ROWS)
    ]


def _count(
    made: list[Statement],
    dialect: Dialect,
    count: str,
    ids: list[int],
    *,
    dead: int,
    sign: str = "+",
    leave: bool = False,
) -> None:
    """Count the members that are `dead`, or that are not. Then they `leave`, or become the other."""
    for piece in pieces(ids, ROWS):
        listed = ",".join([f"{item_id:d}" for item_id in piece])
        made.append((dialect.count_members.format(count=count, sign=sign, ids=listed, dead=dead), None))
        if not leave:
            text = f"UPDATE {dialect.forced('member')} SET dead = {1 - dead} WHERE id IN ({listed}) AND dead = {dead}"
            made.append((text, None))
    if leave:
        dialect.delete(made, "member", "id", ids, all_there=False, also=f" AND dead = {dead}")


def _write_home(made: list[Statement], rows: MemberRows, dialect: Dialect, max_statement_bytes: int) -> None:
    source = dialect.forced("item_batch")
    for piece in pieces(rows.states, CASE_ROWS):
        cases = " ".join([f"WHEN {batch:d} THEN {state:d}" for batch, state in piece])
        which = f"id IN ({','.join([f'{batch:d}' for batch, _ in piece])}) AND ended_at = 0"
        made.append((f"UPDATE {source} SET state = CASE id {cases} END WHERE {which}", None))
    parts = pieces_by_bytes([_part(part) for part in rows.parts], max_statement_bytes)
    made += [(f"REPLACE INTO {_PART} VALUES {','.join(piece)}", None) for piece in parts]
    made += [_end(source, end) for end in rows.ends]
    dialect.delete(made, "item_batch", "id", rows.removed, all_there=False)
    dialect.delete(made, "batch_part", "batch", rows.removed, all_there=False)


def _end(source: str, end: Ends) -> Statement:
    """An end without a callback may come in several parts of a transaction (`MemberRows.only`)."""
    sets = f"state = {end.state:d}, ended_at = {end.ended_at_ms:d}"
    sets += f", success_id = {end.success_id:d}, end_id = {end.end_id:d}"
    text = f"UPDATE {source} SET {sets} WHERE id = {end.batch:d} AND ended_at = 0"
    return text, 1 if end.success_id or end.end_id else None


def _batch(row: BatchRow) -> str:
    callbacks = ",".join(["NULL" if data is None else f"x'{data.hex()}'" for data in (row.on_success, row.on_end)])
    times = f"{row.created_at_ms:d},{row.expires_at_ms:d},{row.ended_at_ms:d}"
    return (
        f"({row.id:d},x'{row.ns.hex()}',{row.state:d},{times},{row.parent:d},{callbacks},"
        f"{row.success_id:d},{row.end_id:d})"
    )


def _part(row: BatchPart) -> str:
    numbers = ",".join([f"{value:d}" for value in (row.batch, row.shard, row.epoch, row.serial, *row.counts)])
    return f"({numbers},x'{pack_ids(row.failed_ids).hex()}')"
