"""A look at a shard's database that changes nothing and takes no lock: what a host would meet there.

Rows belong together: each item has a row in `ready` or `timer`, or one in `ordered` that says that it needs none, and
one in `expiry` if it has a TTL. An item of a batch that the shard counts has one in `member`. A host keeps these
rules. A restore of some tables, or a program that wrote by itself, breaks them: such items are never delivered, or
never removed. The rows are read in pages, each with one statement, which sees the database at one time. So the owner of
the shard continues, and its changes between two pages are no fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from foqs.checks import counted
from foqs.order import HEAD_BYTES, Standing
from foqs.rows import SettingRow
from foqs.store import reads, replication, server
from foqs.store.dialect import Dialect, dialect_of
from foqs.store.errors import Kind
from foqs.store.link import Database, Link
from foqs.store.locks import lock_of
from foqs.store.maintenance import granted, granting, table_findings, unreadable_row, wrong_row
from foqs.store.opening import ORPHAN_REMEDY, orphan_words, orphans, read_opened
from foqs.store.ownership import read_shard_row, start_without_lock
from foqs.store.protocol import ShardRefused
from foqs.store.reads import SIZE, index_tail, with_end, with_rows
from foqs.store.schema_diff import MAKE_SCHEMA, Schema, read_schema
from foqs.store.server import Finding
from foqs.store.tables import EXPIRY_OF_ITEM, FAILURE_OF_ITEM, TABLES, TIMER_OF_ITEM

_READ_TIMEOUT_S = 120.0
_LANES = {"ready": reads.READY_LANES, "failure": reads.DEAD_LANES}
_KILLERS = ("SUPER", "CONNECTION_ADMIN", "CONNECTION ADMIN")
_PAGE_ROWS = 5_000
_SHOWN = 5


class Restore(NamedTuple):
    """When a host found that a shard's database is an older copy, and how many leases it ended; 0 for never."""

    at_ms: int
    leases_ended: int


NEVER = Restore(0, 0)


@dataclass(slots=True)
class Checkup:
    """The results of one check, up to the point where an error ended it.

    `server` is product and version. `clock_ms` is how far the server's clock is ahead of this machine's, at least and
    at most; None for SQLite. `owner` is empty when the last owner closed the shard in order. `settings` are copies of
    namespaces' settings, and `restore` is the last restore; `check_shard` alone reads these.
    """

    findings: list[Finding] = field(default_factory=list)
    server: str = ""
    clock_ms: tuple[int, int] | None = None
    max_packet_bytes: int | None = None
    max_connections: int | None = None
    owner: str | None = None
    epoch: int | None = None
    settings: list[SettingRow] = field(default_factory=list)
    restore: Restore = NEVER


def check_up(url: str, shard: int, *, timeout_s: float, now_ms: Callable[[], float]) -> Checkup:
    """Look at the server, the tables, the rights and the shard's row. `timeout_s` bounds each wait for the server.

    Raises StoreDown and StoreBusy when the server does not answer.
    """

    def look(made: Checkup, link: Link) -> None:
        if (there := _look(made, link, shard)) is None:
            return
        if not link.database.is_file:
            made.clock_ms = _clock(link, there.dialect, now_ms)
        if not {"lane", "ready"}.intersection(there.schema.absent):
            _look_at_lanes(made, link, [table for table in ("ready", "failure") if table in there.schema.there])

    return _checked(look, url, connect_timeout_s=timeout_s, io_timeout_s=timeout_s, look_only=True)


def check_shard(url: str, shard: int, *, rows: bool = False) -> Checkup:
    """Find what keeps a host from opening the shard. With `rows`, also rows without the rows that belong to them.

    Looks as `check_up` does, and reads what the next owner of the shard will read. Changes and locks nothing. Raises
    StoreDown and StoreBusy when the database does not answer.
    """

    def look(made: Checkup, link: Link) -> None:
        there = _look(made, link, shard)
        if there is None or not there.is_served:
            return
        unreadable: tuple[type[Exception], ...] = (TypeError, *link.errors.error)
        try:
            _check_opening(made, link, there.dialect, shard, rows=rows)
        except unreadable:
            if not there.schema.differences():  # these are findings: no host could read such tables
                raise

    return _checked(look, url, io_timeout_s=_READ_TIMEOUT_S)


class _There(NamedTuple):
    """What a database is. `is_served`: it has this foqs's tables, for the shard, though they may differ."""

    dialect: Dialect
    schema: Schema
    is_served: bool


def _checked(look: Callable[[Checkup, Link], None], url: str, **options: float | bool) -> Checkup:
    """Run `look` with a connection. A database that cannot be used is a finding. Raises StoreDown and StoreBusy."""
    made = Checkup()
    try:
        database = Database(url, **options)  # type: ignore[arg-type]
    except ShardRefused as refused:
        made.findings.append(Finding(str(refused), refused.mend or "correct the shard's url"))
        return made
    try:
        with database.seam():
            database.refuse_missing()
            made.findings += _file_rights(database)
            if not made.findings:
                with closing(Link(database)) as link, granted(link):
                    look(made, link)
    except ShardRefused as refused:  # for example, the account cannot connect or read at all
        made.findings.append(Finding(str(refused), refused.mend or "correct the shard's url"))
    return made


def _look(made: Checkup, link: Link, shard: int) -> _There | None:
    """Ask each fact about the server and the schema once. Return None for a server that is too old."""
    facts = server.facts(link.connection)
    made.server = f"{facts.version.product} {'.'.join(map(str, facts.version.number))}"
    made.max_packet_bytes, made.max_connections = facts.max_packet_bytes, facts.max_connections
    try:
        server.refuse_old(facts.version)
    except ShardRefused as refused:
        made.findings += [*facts.unsafe, Finding(str(refused), "upgrade the server")]
        return None
    schema = read_schema(link.connection)
    is_readable = not unreadable_row(schema)
    row = read_shard_row(link) if is_readable else None
    if row is not None:
        # SQLite keeps an empty owner as text.
        made.owner = row.owner if isinstance(row.owner, str) else bytes(row.owner).decode(errors="replace")
        made.epoch = row.epoch
    if schema.there.keys().isdisjoint(schema.wanted):
        made.findings.append(Finding("the database has no foqs schema", MAKE_SCHEMA))
    else:
        made.findings += table_findings(schema, row)
    wrong = wrong_row(row, shard) if is_readable else []
    made.findings += [*wrong, *facts.unsafe]
    if not link.database.is_file:
        made.findings += replication.findings(link, facts.version.product)
        made.findings += _rights(link, schema.absent)
        if is_readable:
            made.findings += _stranger(link, shard)
    return _There(dialect_of(facts.version.product), schema, is_readable and not wrong and not schema.missing())


def _check_opening(made: Checkup, link: Link, dialect: Dialect, shard: int, *, rows: bool) -> None:
    with link.snapshot():
        stored, start = start_without_lock(link, shard)
        opened = read_opened(link, dialect, stored, start, [], replaced=False)
        made.settings = opened.settings
    made.restore = Restore(*map(int, link.fetch(reads.RESTORED_SQL)[0]))
    if rows:
        made.findings += partner_findings(link, dialect)


def _look_at_lanes(made: Checkup, link: Link, tables: list[str]) -> None:
    # `timer` has no index by lane: `check_shard` reads it.
    referred = {table: [lane for (lane,) in link.fetch(_LANES[table])] for table in tables}
    lanes = {row[0] for row in link.fetch(reads.LANE_NUMBERS)}  # last: an owner may add one with its first items
    for table in tables:
        if unknown := orphans(lanes, referred[table]):
            made.findings.append(Finding(orphan_words(unknown, table), ORPHAN_REMEDY))


def _clock(link: Link, dialect: Dialect, now_ms: Callable[[], float]) -> tuple[int, int]:
    """The server read its clock between the two readings of ours."""
    before = now_ms()
    ((theirs,),) = link.fetch(reads.clock_sql(dialect))
    return int(theirs - now_ms()), int(theirs - before)


def _file_rights(database: Database) -> list[Finding]:
    """Return what keeps this user from writing the file; none for a server."""
    if database.file is None:
        return []
    folder = database.file.resolve().parent
    wanting = [str(path) for path in (database.file, folder) if not os.access(path, os.W_OK, effective_ids=True)]
    return [Finding(f"{path} cannot be written by this user", f"chown or chmod {path}") for path in wanting]


def _rights(link: Link, absent: list[str]) -> list[Finding]:
    """EXPLAIN and PREPARE ask for the rights of a statement that they do not run."""
    refused: dict[str, list[str]] = {}
    for name, table in TABLES.items():
        statements = {"CREATE": f"PREPARE foqs_doctor FROM 'CREATE TABLE {name} (one INT)'"}
        if name not in absent:
            column = next(iter(table.columns))
            statements = {
                "INSERT": f"EXPLAIN INSERT INTO {name} ({column}) VALUES (1)",
                "UPDATE": f"EXPLAIN UPDATE {name} SET {column} = {column}",
                "DELETE": f"EXPLAIN DELETE FROM {name}",
                "SELECT": f"EXPLAIN SELECT * FROM {name}",
            }
        for right, statement in statements.items():
            if _is_refused(link, statement):
                refused.setdefault(right, []).append(name)
    if not refused:
        return []
    # A table on which the account has no right at all looks missing, which is a finding of its own.
    whole = len(TABLES)
    listed = {right: ", ".join(sorted(on)) if len(on) < whole else "all tables" for right, on in refused.items()}
    rights = "; ".join(f"{right} on {tables}" for right, tables in listed.items())
    account, mend = granting(link)
    return [Finding(f"the account {account} lacks rights: {rights}", mend)]


def _is_refused(link: Link, statement: str) -> bool:
    try:
        link.fetch(statement)
    except link.errors.error as error:
        kind = link.errors.kind(error)
        if kind is Kind.REFUSED:
            return True
        if kind is Kind.READ_ONLY:
            return False  # a finding of its own; it hides whether the right is there
        raise
    return False


def _stranger(link: Link, shard: int) -> list[Finding]:
    """A take-over ends the connection that holds the lock: an account may do so to its own."""
    holder = lock_of(link.database, shard).holder(link)
    own = "SELECT user FROM information_schema.processlist WHERE id = CONNECTION_ID()"
    ours = f"SELECT 1 FROM information_schema.processlist WHERE id = {holder:d} AND user = ({own})"
    if not holder or link.fetch(ours):
        return []
    rights = ", ".join(f"'{right}'" for right in _KILLERS)
    grantee = "CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')"
    if link.fetch(
        f"SELECT 1 FROM information_schema.user_privileges WHERE grantee = {grantee} AND privilege_type IN ({rights})"
    ):
        return []
    why = "the owner's connection belongs to another account, and this one may not kill it: no take-over is possible"
    return [Finding(why, "give all hosts the same account, or this one CONNECTION ADMIN", wrong=False)]


# ------------------------------------------------------------------------------------------------ rows


class _Rule(NamedTuple):
    """The rows of `table` (alias `a`) that `joins` and `wrong` find break the rule.

    `key` is the primary key, `said` continues a number of rows, `mend` is SQL or a text. `named`: the
    column with the item of a row, or with its batch.
    """

    table: str
    key: tuple[str, ...]
    joins: str
    wrong: str
    said: str
    mend: str
    named: str = "id"


_NO_ROW = "r.id IS NULL AND t.id IS NULL AND d.id IS NULL"
_SAME_LANE = "i.id = a.id AND i.lane = a.lane"
_SAME_PLACE = f"{_SAME_LANE} AND i.priority = a.priority AND i.deliver_after = a.deliver_after"
_ORDER_DIGEST = f"SUBSTR({{}}.order_at, {HEAD_BYTES + 1})"
_ALONE = "while no host serves the shard, run: "


def _orphans(table: str, key: tuple[str, ...], same: str, dialect: Dialect) -> _Rule:
    joins = f"LEFT JOIN {dialect.forced('item', 'i')} ON {same}"
    delete = f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM item i WHERE {same.replace('a.', f'{table}.')})"
    said = f"of table {table} have no item, or one with other values"
    return _Rule(table, key, joins, "i.id IS NULL", said, f"{_ALONE}{delete}")


def _number_in_order(first: int, last: int) -> str:
    """Return the number that these bytes of `a.order_at` are, from 0 on: no function of all databases reads it."""
    digits = range(2 * first + 1, 2 * last + 3)
    return " + ".join(
        f"(INSTR('0123456789ABCDEF', SUBSTR(HEX(a.order_at), {digit}, 1)) - 1) * {16 ** (digits[-1] - digit)}"
        for digit in digits
    )


def _with_order(dialect: Dialect) -> str:
    """Joins what the item `a` has in `ordered`, by the key that the item says."""
    place = f"COALESCE(NULLIF({_number_in_order(1, HEAD_BYTES - 1)}, 0), a.id)"
    return (
        f"LEFT JOIN {dialect.forced('ordered', 'o')} ON o.digest = {_ORDER_DIGEST.format('a')} "
        f"AND o.standing = {_number_in_order(0, 0)} AND o.place = {place} AND o.id = a.id"
    )


def _order_rules(dialect: Dialect) -> Iterator[_Rule]:
    key = ("digest", "standing", "place")
    yield _orphans("ordered", key, f"i.id = a.id AND {_ORDER_DIGEST.format('i')} = a.digest", dialect)
    yield _Rule(
        "ordered", key, f"LEFT JOIN {dialect.forced('item', 'i')} ON i.id = a.id", "i.lane <> a.lane",
        "of table ordered have other lanes than their items",
        f"{_ALONE}UPDATE ordered SET lane = (SELECT i.lane FROM item i WHERE i.id = ordered.id) "
        "WHERE id IN (SELECT id FROM item)",
    )  # fmt: skip
    rows = f"{with_rows(dialect)} {with_end(dialect)}".replace("= i.", "= a.")
    failure = f"LEFT JOIN {dialect.forced('failure', 'f', FAILURE_OF_ITEM)} ON f.id = a.id"
    end = with_end(dialect).replace("= i.", "= a.")
    yield _Rule(
        "ordered", key, f"{failure} {end}", "f.id IS NOT NULL OR d.id IS NOT NULL",
        "of table ordered are of dead letters, or of items that have ended",
        f"{_ALONE}DELETE FROM ordered WHERE id IN (SELECT id FROM failure) OR id IN (SELECT id FROM done)",
    )  # fmt: skip
    yield _Rule(
        "ordered", key, f"LEFT JOIN {dialect.forced('timer', 't', TIMER_OF_ITEM)} ON t.id = a.id",
        f"a.standing <> {Standing.IN_ORDER:d} AND t.id IS NULL",
        "of table ordered wait for a time and have no row in timer: their items are never delivered",
        f"{_ALONE}INSERT INTO timer (due, id, lane, lease, attempt, lease_ms, bytes) "
        f"SELECT i.deliver_after, i.id, i.lane, 0, 0, 0, {SIZE} FROM item i JOIN ordered o ON o.id = i.id "
        f"WHERE o.standing <> {Standing.IN_ORDER:d} AND i.id NOT IN (SELECT id FROM timer)",
    )  # fmt: skip
    yield _Rule(
        "item", ("id",), f"{rows} {failure} {_with_order(dialect)}",
        "a.order_at IS NOT NULL AND o.id IS NULL AND d.id IS NULL "
        "AND (f.id IS NULL OR (r.id IS NULL AND t.id IS NULL))",
        "of table item have an order key and no row that says their place: they are never delivered",
        "restore all tables from the same backup",
    )  # fmt: skip


def _batch_rules(dialect: Dialect) -> Iterator[_Rule]:
    same, child = "i.id = {0}.id AND i.batch = {0}.batch", "b.id = {0}.id AND b.parent = {0}.batch"
    lost = " AND ".join(
        [
            "dead = 0",
            f"NOT EXISTS (SELECT 1 FROM item i WHERE {same.format('member')})",
            f"NOT EXISTS (SELECT 1 FROM item_batch b WHERE {child.format('member')})",
        ]
    )
    yield _Rule(
        "member", ("id",),
        f"LEFT JOIN {dialect.forced('item', 'i')} ON {same.format('a')} "
        f"LEFT JOIN {dialect.forced('item_batch', 'b')} ON {child.format('a')}",
        "a.dead = 0 AND i.id IS NULL AND b.id IS NULL",
        "of table member have no item, or one of another batch: their batches wait for them",
        f"{_ALONE}UPDATE batch_count SET deleted = deleted + "
        f"(SELECT COUNT(*) FROM member WHERE member.batch = batch_count.batch AND {lost}), changes = changes + 1, "
        f"unsent = 1 WHERE batch IN (SELECT batch FROM member WHERE {lost}); DELETE FROM member WHERE {lost}",
    )  # fmt: skip
    end = with_end(dialect).replace("= i.", "= a.")
    yield _Rule(
        "item", ("id",),
        f"LEFT JOIN {dialect.forced('batch_count', 'c')} ON c.batch = a.batch "
        f"LEFT JOIN {dialect.forced('member', 'm')} ON m.id = a.id "
        f"LEFT JOIN {dialect.forced('failure', 'f', FAILURE_OF_ITEM)} ON f.id = a.id {end}",
        "c.batch IS NOT NULL AND m.id IS NULL AND f.id IS NULL AND d.id IS NULL",
        "of table item belong to batches and have no row in member: their ends are not counted",
        f"{_ALONE}INSERT INTO member (id, batch, dead) SELECT i.id, i.batch, 0 FROM item i "
        "JOIN batch_count c ON c.batch = i.batch WHERE i.id NOT IN (SELECT id FROM member) "
        "AND i.id NOT IN (SELECT id FROM failure) AND i.id NOT IN (SELECT id FROM done)",
    )  # fmt: skip
    home = "b.id = {}.batch"
    yield _Rule(
        "batch_part", ("batch", "shard"), f"LEFT JOIN {dialect.forced('item_batch', 'b')} ON {home.format('a')}",
        "b.id IS NULL", "of table batch_part count members of batches that table item_batch lacks",
        f"{_ALONE}DELETE FROM batch_part WHERE "
        f"NOT EXISTS (SELECT 1 FROM item_batch b WHERE {home.format('batch_part')})", "batch",
    )  # fmt: skip


def _rules(dialect: Dialect) -> Iterator[_Rule]:
    # The first remedies remove rows that are in the way of later ones.
    rows = f"{with_rows(dialect)} {with_end(dialect)}".replace("= i.", "= a.")
    end = with_end(dialect).replace("= i.", "= a.")
    # While a host serves the shard, the items above `indexed_to` may have no row yet.
    indexed = "(SELECT COALESCE(MAX(s.indexed_to), 0) FROM shard s WHERE s.one = 1)"
    yield _orphans("ready", ("lane", "priority", "deliver_after", "id"), _SAME_PLACE, dialect)
    yield _orphans("timer", ("due", "id"), _SAME_LANE, dialect)
    yield _orphans("expiry", ("at_ms", "id"), "i.id = a.id AND i.expires_at = a.at_ms", dialect)
    yield _orphans("failure", ("lane", "fingerprint", "id"), _SAME_LANE, dialect)
    yield _orphans("done", ("until_ms", "id"), _SAME_LANE, dialect)
    yield _Rule(
        "result", ("id",), end, "d.id IS NULL", "of table result have no row in done",
        f"{_ALONE}DELETE FROM result WHERE id NOT IN (SELECT id FROM done)",
    )  # fmt: skip
    yield _orphans("progress", ("id",), "i.id = a.id", dialect)
    yield _Rule(
        "held_key", ("id",), f"LEFT JOIN {dialect.forced('item', 'i')} ON i.id = a.id",
        "i.id IS NULL AND a.free_at = 0", "of table held_key hold a key for no item",
        f"{_ALONE}UPDATE held_key SET free_at = 1 WHERE free_at = 0 AND id NOT IN (SELECT id FROM item)",
    )  # fmt: skip
    yield from _order_rules(dialect)
    yield from _batch_rules(dialect)
    item = ("item", ("id",))
    yield _Rule(
        *item, rows, f"{_NO_ROW} AND ({indexed} = 0 OR a.id <= {indexed}) AND a.order_at IS NULL",
        "of table item have no row in ready, timer or done: they are never delivered",
        f"{_ALONE}{index_tail(dialect, 0)}",
    )  # fmt: skip
    yield _Rule(
        *item, rows, "r.id IS NOT NULL AND t.id IS NOT NULL",
        "of table item have a row in ready and one in timer",
        f"{_ALONE}DELETE FROM ready WHERE id IN (SELECT id FROM timer)",
    )  # fmt: skip
    for table, alias in (("ready", "r"), ("timer", "t")):
        yield _Rule(
            *item, rows, f"{alias}.id IS NOT NULL AND d.id IS NOT NULL",
            f"of table item have a row in {table} and one in done",
            f"{_ALONE}DELETE FROM {table} WHERE id IN (SELECT id FROM done)",
        )  # fmt: skip
    yield _Rule(
        *item, f"LEFT JOIN {dialect.forced('lane', 'l')} ON l.lane = a.lane", "l.lane IS NULL",
        "of table item refer to lanes that table lane lacks", ORPHAN_REMEDY,
    )  # fmt: skip
    yield _Rule(
        *item,
        f"LEFT JOIN {dialect.forced('expiry', 'e', EXPIRY_OF_ITEM)} ON e.id = a.id AND e.at_ms = a.expires_at {end}",
        "a.expires_at <> 0 AND e.id IS NULL AND d.id IS NULL",
        "of table item have a TTL and no row in expiry: it never ends",
        f"{_ALONE}INSERT INTO expiry (at_ms, id) SELECT i.expires_at, i.id FROM item i LEFT JOIN expiry e "
        "ON e.id = i.id AND e.at_ms = i.expires_at WHERE i.expires_at <> 0 AND e.id IS NULL "
        "AND i.id NOT IN (SELECT id FROM done)",
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
            one, several = ("item", "items") if rule.named == "id" else ("batch", "batches")
            listed = f"{several if count > 1 else one} {', '.join(map(str, first))}{more}"
            found.append(Finding(f"{counted(count, 'row')} {rule.said} ({listed})", rule.mend))
    return found


def _broken(link: Link, dialect: Dialect, rule: _Rule, page_rows: int) -> Iterator[list[int]]:
    """Yield the ids of rows that break the rule, page by page."""
    columns = tuple(f"a.{column}" for column in rule.key)
    source, order = dialect.forced(rule.table, "a"), ", ".join(columns)
    after: tuple[Any, ...] | None = None
    while True:
        bound = "" if after is None else f" WHERE {dialect.behind(columns, after)}"
        last = link.fetch(f"SELECT {order} FROM {source}{bound} ORDER BY {order} LIMIT 1 OFFSET {page_rows - 1:d}")
        end = tuple(map(_literal, last[0])) if last else None
        within = [dialect.up_to(columns, end)] if end is not None else []
        within += [dialect.behind(columns, after)] if after is not None else []
        within.append(f"({rule.wrong})")
        where = " AND ".join([f"({one})" for one in within])
        yield [
            int(row[0])
            for row in link.fetch(f"SELECT a.{rule.named} FROM {source} {rule.joins} WHERE {where} ORDER BY {order}")
        ]
        if end is None:
            return
        after = end


def _literal(value: int | bytes) -> int | str:
    return f"x'{value.hex()}'" if isinstance(value, bytes) else int(value)
