"""A look at a shard's database that changes nothing and takes no lock: what a host would meet there.

Rows belong together: each item has a row in `ready` or `timer`, and one in `expiry` if it has a TTL. A host keeps these
rules. A restore of some tables, or a program that wrote by itself, breaks them: such items are never delivered, or
never removed. The rows are read in pages, each with one statement, which sees the database at one time. So the owner of
the shard continues, and its changes between two pages are no fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.rows import SettingRow
from foqs.store import reads, server
from foqs.store.dialect import Dialect, dialect_of
from foqs.store.errors import Kind
from foqs.store.link import Database, Link
from foqs.store.maintenance import check_schema, granting, table_findings, unreadable_row, wrong_row
from foqs.store.opening import ORPHAN_REMEDY, orphan_words, orphans, read_opened
from foqs.store.ownership import StoredShard, lock_of, read_shard_row, refuse_foreign, start_without_lock
from foqs.store.protocol import ShardRefused
from foqs.store.reads import index_tail, with_rows
from foqs.store.schema_diff import missing, read_shapes
from foqs.store.server import Finding
from foqs.store.tables import EXPIRY_OF_ITEM, metadata

_MAKE_SCHEMA = "make the schema: foqs shards create"
_READ_TIMEOUT_S = 120.0
_LANES = {"ready": reads.READY_LANES, "failure": reads.DEAD_LANES}
_KILLERS = ("SUPER", "CONNECTION_ADMIN", "CONNECTION ADMIN")
_PAGE_ROWS = 5_000
_SHOWN = 5


@dataclass(slots=True)
class Checkup:
    """The results of one check, up to the point where an error ended it.

    `server` is product and version. `clock_ms` is how far the server's clock is ahead of this machine's, at least and
    at most; None for SQLite. `owner` is empty when the last owner closed the shard in order.
    """

    findings: list[Finding] = field(default_factory=list)
    server: str = ""
    clock_ms: tuple[int, int] | None = None
    max_packet_bytes: int | None = None
    max_connections: int | None = None
    owner: str | None = None
    epoch: int | None = None


def check_up(url: str, shard: int, *, timeout_s: float, now_ms: Callable[[], float]) -> Checkup:
    """`timeout_s` bounds each wait for the server. Raises StoreDown and StoreBusy when the server does not answer."""
    made = Checkup()
    try:
        database = Database(url, connect_timeout_s=timeout_s, io_timeout_s=timeout_s, look_only=True)
    except ShardRefused as refused:
        made.findings.append(Finding(str(refused), "correct the shard's url"))
        return made
    try:
        with _writable(database, made.findings) as link:
            if link is not None:
                _look(made, link, shard, now_ms)
    except ShardRefused as refused:  # the account cannot connect or read at all
        made.findings.append(Finding(str(refused), refused.mend or f"correct the shard's url, or {_MAKE_SCHEMA}"))
    return made


@dataclass(slots=True)
class ShardCheck:
    """`findings` are the faults and warnings; `settings` are copies of namespaces' settings, none if they were not
    read."""

    findings: list[Finding] = field(default_factory=list)
    settings: list[SettingRow] = field(default_factory=list)


def check_shard(url: str, shard: int, *, rows: bool = False) -> ShardCheck:
    """Find what keeps a host from opening the shard. With `rows`, also rows without the rows that belong to them.

    Compares the schema, asks for the account's rights, and reads what the next owner of the shard will read. Changes
    and locks nothing. Raises StoreDown and StoreBusy when the database does not answer.
    """
    made = ShardCheck(check_schema(url, shard))
    try:
        database = Database(url, io_timeout_s=_READ_TIMEOUT_S, look_only=True)
        with _writable(database, made.findings) as link:
            if link is not None:
                _check_opening(made, link, shard, rows=rows)
    except ShardRefused as refused:
        finding = Finding(str(refused), refused.mend)
        if finding not in made.findings:
            made.findings.append(finding)
    return made


@contextmanager
def _writable(database: Database, findings: list[Finding]) -> Iterator[Link | None]:
    """Yield a connection; None, with findings, for a file that this user may not write."""
    database.refuse_missing()
    if database.is_file and (wanting := _file_rights(database)):
        findings += wanting
        yield None
        return
    with database.seam(), closing(Link(database)) as link:
        yield link


def _check_opening(made: ShardCheck, link: Link, shard: int, *, rows: bool) -> None:
    shapes = read_shapes(link.connection)
    absent = [table for table in metadata.tables if table not in shapes]
    if unreadable_row(link.connection, shapes):
        return
    row = read_shard_row(link)
    if not link.database.is_file:
        made.findings += _rights(link, absent) + _stranger(link, shard)
    refuse_foreign(row, shard)
    if missing(metadata.sorted_tables, shapes):
        return  # a finding of the schema
    dialect = dialect_of(server.version(link.connection).product)
    with _snapshot(link):
        stored, start = start_without_lock(link, shard)
        opened = read_opened(link, dialect, stored, start, [], replaced=False)
        made.settings = opened.settings
    if rows:
        made.findings += partner_findings(link, dialect)


@contextmanager
def _snapshot(link: Link) -> Iterator[None]:
    """Let the statements inside see the database at one time, while its owner continues."""
    begin = ["BEGIN"]
    if not link.database.is_file:
        begin = ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT"]
    for statement in begin:
        link.execute(statement)
    try:
        yield
    finally:
        link.rollback()


def _look(made: Checkup, link: Link, shard: int, now_ms: Callable[[], float]) -> None:
    facts = server.facts(link.connection)
    made.server = f"{facts.version.product} {'.'.join(map(str, facts.version.number))}"
    made.max_packet_bytes, made.max_connections = facts.max_packet_bytes, facts.max_connections
    made.findings += facts.unsafe
    try:
        server.refuse_old(facts.version)
    except ShardRefused as refused:
        made.findings.append(Finding(str(refused), "upgrade the server"))
        return
    if not link.database.is_file:
        made.clock_ms = _clock(link, facts.version, now_ms)
    shapes = read_shapes(link.connection)
    absent = [table for table in metadata.tables if table not in shapes]
    has_shard_table = not unreadable_row(link.connection, shapes)
    row = read_shard_row(link) if has_shard_table else None
    if len(absent) == len(metadata.tables):
        made.findings.append(Finding("the database has no foqs schema", _MAKE_SCHEMA))
    else:
        made.findings += table_findings(link.connection, shapes, row)
    if not link.database.is_file:
        made.findings += _rights(link, absent)
    if has_shard_table:
        _look_at_row(made, link, shard, row)
    if not {"lane", "ready"}.intersection(absent):
        _look_at_lanes(made, link, [table for table in ("ready", "failure") if table not in absent])


def _look_at_row(made: Checkup, link: Link, shard: int, row: StoredShard | None) -> None:
    if row is not None:
        owner = row.owner  # SQLite keeps an empty one as text
        made.owner = owner if isinstance(owner, str) else bytes(owner).decode(errors="replace")
        made.epoch = row.epoch
    made.findings += wrong_row(row, shard, "correct the shard's id or url")
    if not link.database.is_file:
        made.findings += _stranger(link, shard)


def _look_at_lanes(made: Checkup, link: Link, tables: list[str]) -> None:
    # `timer` has no index by lane: `check_shard` reads it.
    referred = {table: [lane for (lane,) in link.fetch(_LANES[table])] for table in tables}
    lanes = {row[0] for row in link.fetch(reads.LANE_NUMBERS)}  # last: an owner may add one with its first items
    for table in tables:
        if unknown := orphans(lanes, referred[table]):
            made.findings.append(Finding(orphan_words(unknown, table), ORPHAN_REMEDY))


def _clock(link: Link, version: server.Version, now_ms: Callable[[], float]) -> tuple[int, int]:
    """The server read its clock between the two readings of ours."""
    before = now_ms()
    ((theirs,),) = link.fetch(reads.clock_sql(dialect_of(version.product)))
    return int(theirs - now_ms()), int(theirs - before)


def _file_rights(database: Database) -> list[Finding]:
    assert database.file is not None
    folder = database.file.resolve().parent
    wanting = [str(path) for path in (database.file, folder) if not os.access(path, os.W_OK, effective_ids=True)]
    return [Finding(f"{path} cannot be written by this user", f"chown or chmod {path}") for path in wanting]


def _rights(link: Link, absent: list[str]) -> list[Finding]:
    """EXPLAIN and PREPARE ask for the rights of a statement that they do not run."""
    refused: dict[str, list[str]] = {}
    for table in metadata.sorted_tables:
        statements = {"CREATE": f"PREPARE foqs_doctor FROM 'CREATE TABLE {table.name} (one INT)'"}
        if table.name not in absent:
            column = next(iter(table.columns)).name
            statements = {
                "INSERT": f"EXPLAIN INSERT INTO {table.name} ({column}) VALUES (1)",
                "UPDATE": f"EXPLAIN UPDATE {table.name} SET {column} = {column}",
                "DELETE": f"EXPLAIN DELETE FROM {table.name}",
                "SELECT": f"EXPLAIN SELECT * FROM {table.name}",
            }
        for right, statement in statements.items():
            if _is_refused(link, statement):
                refused.setdefault(right, []).append(table.name)
    if not refused:
        return []
    # A table on which the account has no right at all looks missing, which is a finding of its own.
    whole = len(metadata.tables)
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
        "of table item refer to lanes that table lane lacks", ORPHAN_REMEDY,
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
