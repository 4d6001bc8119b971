"""Reads of the order of items with order keys. They raise the driver's errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.order import InOrder, OrderHome, Standing
from foqs.store.dead_reads import DeadReads
from foqs.store.dialect import Dialect
from foqs.store.reads import SIZE, with_rows
from foqs.store.tables import FAILURE_OF_ITEM

_UNION_KEYS = 100
HOMES_SQL = "SELECT digest, shard, stamp FROM order_home"
ORDERED_SQL = (
    f"SELECT lane, COUNT(*), COUNT(CASE standing WHEN {Standing.IN_ORDER:d} THEN 1 END) FROM ordered GROUP BY lane"
)


def _in_order(dialect: Dialect, source: str) -> str:
    """Selects columns of `InOrder`. `source` gives rows of `ordered` as `o`."""
    return (
        "SELECT o.digest, o.place, o.id, i.lane, i.priority, i.deliver_after, COALESCE(r.attempt, t.attempt, 0), "
        f"COALESCE(r.lease, t.lease, 0), COALESCE(r.bytes, t.bytes, {SIZE}), r.id, t.id "
        f"FROM {source} {dialect.ordered_join} {dialect.forced('item', 'i')} ON i.id = o.id {with_rows(dialect)}"
    )


def orders_behind_sql(dialect: Dialect, digest: bytes, limit: int) -> str:
    """Passes over rows that are not IN_ORDER. The plus sign keeps SQLite from sorting the rows of a key: it would take
    the column for a constant, and find no index for the rest of the order."""
    return (
        f"{_in_order(dialect, dialect.forced('ordered', 'o'))} "
        f"WHERE o.digest > x'{digest.hex()}' AND +o.standing = {Standing.IN_ORDER:d} "
        f"ORDER BY o.digest, o.standing, o.place LIMIT {limit:d}"
    )


def list_behind_sql(dialect: Dialect, lanes: Sequence[int], after: tuple[bytes, int] | None, limit: int) -> str:
    """Passes over rows of other lanes."""
    behind = ""
    if after is not None:
        digest = f"x'{after[0].hex()}'"
        behind = f"AND o.digest >= {digest} AND (o.digest > {digest} OR o.place > {after[1]:d}) "
    return (
        f"{_in_order(dialect, dialect.forced('ordered', 'o'))} "
        f"WHERE o.standing = {Standing.IN_ORDER:d} AND o.lane IN ({','.join(map(str, lanes))}) AND t.id IS NULL "
        f"{behind}ORDER BY o.digest, o.standing, o.place LIMIT {limit:d}"
    )


def orders_of_sql(dialect: Dialect, keys: Sequence[tuple[bytes, int]], limit: int) -> str:
    """Finds the rows in any order."""
    source = dialect.forced("ordered")
    parts = [
        f"SELECT * FROM (SELECT digest, place, id FROM {source} WHERE digest = x'{digest.hex()}' "
        f"AND standing = {Standing.IN_ORDER:d} AND place > {place:d} ORDER BY place LIMIT {limit:d}) AS one"
        for digest, place in keys
    ]
    return _in_order(dialect, f"({' UNION ALL '.join(parts)}) AS o")


def order_leases_sql(dialect: Dialect, lanes: Sequence[int]) -> str:
    """Selects order, id and lane of the leased items in these lanes that have order keys. Reads all timers."""
    return (
        f"SELECT i.order_at, t.id, t.lane FROM {dialect.forced('timer', 't')} {dialect.ordered_join} "
        f"{dialect.forced('item', 'i')} ON i.id = t.id "
        f"LEFT JOIN {dialect.forced('failure', 'f', FAILURE_OF_ITEM)} ON f.id = t.id "
        f"WHERE t.lease <> 0 AND t.lane IN ({','.join(map(str, lanes))}) AND i.order_at IS NOT NULL AND f.id IS NULL"
    )


def _between(column: str, low: bytes, high: bytes) -> str:
    return f"{column} >= x'{low.hex()}' AND {column} <= x'{high.hex()}' ORDER BY {column}"


def orders_in_sql(dialect: Dialect, digests: Sequence[bytes]) -> str:
    source = dialect.forced("ordered")
    parts = [
        f"SELECT * FROM (SELECT digest FROM {source} WHERE digest = x'{digest.hex()}' LIMIT 1) AS one"
        for digest in digests
    ]
    return " UNION ALL ".join(parts)


def orders_between_sql(dialect: Dialect, low: bytes, high: bytes, limit: int) -> str:
    """Passes over the rows of a key one by one."""
    return (
        f"SELECT DISTINCT digest FROM {dialect.forced('ordered')} WHERE {_between('digest', low, high)} LIMIT {limit:d}"
    )


def order_homes_sql(dialect: Dialect, low: bytes, high: bytes, limit: int) -> str:
    source = dialect.forced("order_home")
    return f"SELECT digest, shard, stamp FROM {source} WHERE {_between('digest', low, high)} LIMIT {limit:d}"


def dead_orders_sql(dialect: Dialect, after_id: int, limit: int) -> str:
    return (
        f"SELECT f.id, i.order_at FROM {dialect.forced('failure', 'f', FAILURE_OF_ITEM)} {dialect.ordered_join} "
        f"{dialect.forced('item', 'i')} ON i.id = f.id WHERE f.id > {after_id:d} ORDER BY f.id LIMIT {limit:d}"
    )


class OrderReads(DeadReads):
    def orders_behind(self, digest: bytes, limit: int) -> list[InOrder]:
        return list(map(_made_in_order, self._link.fetch(orders_behind_sql(self._dialect, digest, limit))))

    def orders_of(self, keys: list[tuple[bytes, int]], limit: int) -> list[InOrder]:
        if not keys:
            return []
        return sorted(map(_made_in_order, self._link.fetch(orders_of_sql(self._dialect, keys, limit))))

    def list_behind(self, lanes: list[int], after: tuple[bytes, int] | None, limit: int) -> list[InOrder]:
        return list(map(_made_in_order, self._link.fetch(list_behind_sql(self._dialect, lanes, after, limit))))

    def orders_in(self, digests: list[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for at in range(0, len(digests), _UNION_KEYS):
            rows = self._link.fetch(orders_in_sql(self._dialect, digests[at : at + _UNION_KEYS]))
            found.update(bytes(digest) for (digest,) in rows)
        return found

    def orders_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        rows = self._link.fetch(orders_between_sql(self._dialect, low, high, limit))
        return [bytes(digest) for (digest,) in rows]

    def order_homes(self, low: bytes, high: bytes, limit: int) -> list[OrderHome]:
        rows = self._link.fetch(order_homes_sql(self._dialect, low, high, limit))
        return [OrderHome(bytes(digest), *rest) for digest, *rest in rows]

    def dead_orders(self, after_id: int, limit: int) -> list[tuple[int, bytes | None]]:
        rows = self._link.fetch(dead_orders_sql(self._dialect, after_id, limit))
        return [(item_id, None if order_at is None else bytes(order_at)) for item_id, order_at in rows]


def _made_in_order(row: Sequence[Any]) -> InOrder:
    digest, *numbers, ready, timer = row
    return InOrder._make((bytes(digest), *numbers, ready is not None, timer is not None))
