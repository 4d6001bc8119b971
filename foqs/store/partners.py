"""Rows that belong together: each item has a row in `ready` or `timer`, and one in `expiry` if it has a TTL.

A host keeps these rules. A restore of some tables, or a program that wrote by itself, breaks them: such items are never
delivered, or never removed. The rows are read in pages, each with one statement, which sees the database at one time.
So the owner of the shard goes on, and its changes between two pages are no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from foqs.store.dialect import Dialect
from foqs.store.lanes import REMEDY
from foqs.store.link import Link
from foqs.store.queries import index_tail, with_rows
from foqs.store.server import Finding
from foqs.store.tables import EXPIRY_OF_ITEM

_PAGE_ROWS = 5_000
_SHOWN = 5


class _Rule(NamedTuple):
    """The rows of `table` (alias `a`) that `joins` and `wrong` find break the rule.

    `key` is the primary key, `said` continues a number of rows, `mend` is SQL or a text.
    """

    table: str
    key: tuple[str, ...]
    joins: str
    wrong: str
    said: str
    mend: str


_SAME_LANE = "i.id = a.id AND i.lane = a.lane"
_SAME_PLACE = f"{_SAME_LANE} AND i.priority = a.priority AND i.deliver_after = a.deliver_after"
_ALONE = "while no host serves the shard, run: "


def _orphans(table: str, key: tuple[str, ...], same: str, dialect: Dialect) -> _Rule:
    joins = f"LEFT JOIN {dialect.forced('item', 'i')} ON {same}"
    delete = f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM item i WHERE {same.replace('a.', f'{table}.')})"
    said = f"of table {table} have no item, or one with other values"
    return _Rule(table, key, joins, "i.id IS NULL", said, f"{_ALONE}{delete}")


def _rules(dialect: Dialect) -> Iterator[_Rule]:
    # The first remedies remove rows that are in the way of later ones.
    ready_timer = with_rows(dialect).replace("= i.", "= a.")
    # While a host serves the shard, the items above `indexed_to` may have no row yet.
    indexed = "(SELECT COALESCE(MAX(s.indexed_to), 0) FROM shard s WHERE s.one = 1)"
    yield _orphans("ready", ("lane", "priority", "deliver_after", "id"), _SAME_PLACE, dialect)
    yield _orphans("timer", ("due", "id"), _SAME_LANE, dialect)
    yield _orphans("expiry", ("at_ms", "id"), "i.id = a.id AND i.expires_at = a.at_ms", dialect)
    yield _orphans("failure", ("lane", "fingerprint", "id"), _SAME_LANE, dialect)
    item = ("item", ("id",))
    yield _Rule(
        *item, ready_timer, f"r.id IS NULL AND t.id IS NULL AND ({indexed} = 0 OR a.id <= {indexed})",
        "of table item have no row in ready or timer: they are never delivered", f"{_ALONE}{index_tail(dialect, 0)}",
    )  # fmt: skip
    yield _Rule(
        *item, ready_timer, "r.id IS NOT NULL AND t.id IS NOT NULL",
        "of table item have a row in ready and one in timer",
        f"{_ALONE}DELETE FROM ready WHERE id IN (SELECT id FROM timer)",
    )  # fmt: skip
    yield _Rule(
        *item, f"LEFT JOIN {dialect.forced('lane', 'l')} ON l.lane = a.lane", "l.lane IS NULL",
        "of table item refer to lanes that table lane lacks", REMEDY,
    )  # fmt: skip
    yield _Rule(
        *item, f"LEFT JOIN {dialect.forced('expiry', 'e', EXPIRY_OF_ITEM)} ON e.id = a.id AND e.at_ms = a.expires_at",
        "a.expires_at <> 0 AND e.id IS NULL", "of table item have a TTL and no row in expiry: it never ends",
        f"{_ALONE}INSERT INTO expiry (at_ms, id) SELECT i.expires_at, i.id FROM item i LEFT JOIN expiry e "
        "ON e.id = i.id AND e.at_ms = i.expires_at WHERE i.expires_at <> 0 AND e.id IS NULL",
    )  # fmt: skip


def partner_findings(link: Link, dialect: Dialect, *, page_rows: int = _PAGE_ROWS) -> list[Finding]:
    """Return the rules that rows break.

    Reads each row of the shard, `page_rows` with a statement. Raises the driver's errors.
    """
    found = []
    for rule in _rules(dialect):
        count, first = 0, list[int]()
        for ids in _broken(link, dialect, rule, page_rows):
            count += len(ids)
            first += ids[: _SHOWN - len(first)]
        if count:
            more = ", ..." if count > len(first) else ""
            listed = f"item{'s' if count > 1 else ''} {', '.join(map(str, first))}{more}"
            found.append(Finding(f"{count} row{'s' if count > 1 else ''} {rule.said} ({listed})", rule.mend))
    return found


def _broken(link: Link, dialect: Dialect, rule: _Rule, page_rows: int) -> Iterator[list[int]]:
    """Yield the ids of rows that break the rule, page by page."""
    columns = tuple(f"a.{column}" for column in rule.key)
    source, order = dialect.forced(rule.table, "a"), ", ".join(columns)
    after: Sequence[int] | None = None
    while True:
        bound = "" if after is None else f" WHERE {dialect.behind(columns, tuple(after))}"
        last = link.fetch(f"SELECT {order} FROM {source}{bound} ORDER BY {order} LIMIT 1 OFFSET {page_rows - 1:d}")
        end = tuple(int(value) for value in last[0]) if last else None
        within = [dialect.up_to(columns, end)] if end is not None else []
        within += [dialect.behind(columns, tuple(after))] if after is not None else []
        within.append(f"({rule.wrong})")
        where = " AND ".join([f"({one})" for one in within])
        yield [
            int(row[0]) for row in link.fetch(f"SELECT a.id FROM {source} {rule.joins} WHERE {where} ORDER BY {order}")
        ]
        if end is None:
            return
        after = end
