"""Reads of batches of items: the counts of their members, and the batches at home. They raise the driver's errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foqs.item_batch import MOST_FAILED_IDS, BatchPart, BatchRow, Counts, ShardCounts, unpack_ids
from foqs.store.dialect import ROWS, Dialect
from foqs.store.member_statements import BATCH_COLUMNS, COUNTS
from foqs.store.order_reads import OrderReads
from foqs.store.tables import BATCH_BY_END, COUNT_BY_SENT, MEMBER_BY_BATCH

_UNION_BATCHES = 100
BATCHES_SQL = "SELECT one FROM shard WHERE EXISTS (SELECT batch FROM batch_count) OR EXISTS (SELECT id FROM item_batch)"
_COUNTS = f"SELECT batch, {COUNTS}, changes FROM"


def member_counts_sql(dialect: Dialect, batches: Sequence[int]) -> str:
    return f"{_COUNTS} {dialect.forced('batch_count')} WHERE batch IN ({_listed(batches)})"


def unsent_counts_sql(dialect: Dialect, after: int, limit: int) -> str:
    source = dialect.forced("batch_count", index=COUNT_BY_SENT)
    return f"{_COUNTS} {source} WHERE unsent = 1 AND batch > {after:d} ORDER BY batch LIMIT {limit:d}"


def failed_ids_sql(dialect: Dialect, batches: Sequence[int]) -> str:
    """Selects batch and id of the first failed members of each, in any order."""
    source = dialect.forced("member", index=MEMBER_BY_BATCH)
    parts = [
        f"SELECT * FROM (SELECT batch, id FROM {source} WHERE batch = {batch:d} AND dead = 1 "
        f"ORDER BY id LIMIT {MOST_FAILED_IDS}) AS one"
        for batch in batches
    ]
    return " UNION ALL ".join(parts)


def members_of_sql(dialect: Dialect, batch: int, after: tuple[bool, int], limit: int) -> str:
    source = dialect.forced("member", index=MEMBER_BY_BATCH)
    behind = dialect.behind(("dead", "id"), (int(after[0]), after[1]))
    return f"SELECT dead, id FROM {source} WHERE batch = {batch:d} AND {behind} ORDER BY dead, id LIMIT {limit:d}"


def batch_rows_sql(dialect: Dialect, batches: Sequence[int]) -> str:
    return f"SELECT {BATCH_COLUMNS} FROM {dialect.forced('item_batch')} WHERE id IN ({_listed(batches)})"


def live_batches_sql(dialect: Dialect, after: int, limit: int) -> str:
    source = dialect.forced("item_batch", index=BATCH_BY_END)
    columns = BATCH_COLUMNS.replace("on_success, on_end", "NULL, NULL")
    return f"SELECT {columns} FROM {source} WHERE ended_at = 0 AND id > {after:d} ORDER BY id LIMIT {limit:d}"


def batch_parts_sql(dialect: Dialect, batches: Sequence[int]) -> str:
    columns = f"batch, shard, epoch, serial, {COUNTS}, failed_ids"
    return f"SELECT {columns} FROM {dialect.forced('batch_part')} WHERE batch IN ({_listed(batches)})"


def ended_batches_sql(dialect: Dialect, before_ms: int, limit: int) -> str:
    source = dialect.forced("item_batch", index=BATCH_BY_END)
    ended = f"ended_at > 0 AND ended_at < {before_ms:d}"
    return f"SELECT id FROM {source} WHERE {ended} ORDER BY ended_at, id LIMIT {limit:d}"


class BatchReads(OrderReads):
    """All reads of a shard."""

    def member_counts(self, batches: list[int]) -> list[ShardCounts]:
        found: list[ShardCounts] = []
        for piece in _pieces(batches, ROWS):
            found += self._counts(member_counts_sql(self._dialect, piece))
        return found

    def unsent_counts(self, after: int, limit: int) -> list[ShardCounts]:
        return self._counts(unsent_counts_sql(self._dialect, after, limit))

    def _counts(self, query: str) -> list[ShardCounts]:
        rows = [ShardCounts(batch, Counts(*rest[:-1]), rest[-1]) for batch, *rest in self._link.fetch(query)]
        failed: dict[int, list[int]] = {row.batch: [] for row in rows if row.counts.failed}
        for piece in _pieces(list(failed), _UNION_BATCHES):
            for batch, item_id in self._link.fetch(failed_ids_sql(self._dialect, piece)):
                failed[batch].append(item_id)
        return [row._replace(failed_ids=tuple(sorted(failed.get(row.batch, ())))) for row in rows]

    def members_of(self, batch: int, after: tuple[bool, int], limit: int) -> list[tuple[bool, int]]:
        rows = self._link.fetch(members_of_sql(self._dialect, batch, after, limit))
        return [(bool(dead), item_id) for dead, item_id in rows]

    def batch_rows(self, batches: list[int]) -> list[BatchRow]:
        found: list[BatchRow] = []
        for piece in _pieces(batches, ROWS):
            found += self._batches(batch_rows_sql(self._dialect, piece))
        return found

    def live_batches(self, after: int, limit: int) -> list[BatchRow]:
        return self._batches(live_batches_sql(self._dialect, after, limit))

    def _batches(self, query: str) -> list[BatchRow]:
        rows = map(BatchRow._make, self._link.fetch(query))
        return [row._replace(ns=bytes(row.ns)) for row in rows]

    def batch_parts(self, batches: list[int]) -> list[BatchPart]:
        found: list[BatchPart] = []
        for piece in _pieces(batches, ROWS):
            for *head, failed_ids in self._link.fetch(batch_parts_sql(self._dialect, piece)):
                found.append(BatchPart._make((*head[:4], Counts(*head[4:]), unpack_ids(bytes(failed_ids)))))
        return found

    def ended_batches(self, before_ms: int, limit: int) -> list[int]:
        return [batch for (batch,) in self._link.fetch(ended_batches_sql(self._dialect, before_ms, limit))]


def _listed(batches: Sequence[int]) -> str:
    return ",".join(map(str, batches))


def _pieces(batches: list[int], count: int) -> Iterator[list[int]]:
    for at in range(0, len(batches), count):
        yield batches[at : at + count]
