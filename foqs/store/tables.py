"""The tables of a shard, as SQL.

Every item has one row in `item` (its body) and exactly one in `ready` or `timer`; with a TTL also one in `expiry`.
An item with an order key has one in `ordered` as well, until it ends or is a dead letter (`foqs.order`). Where this row
is IN_ORDER, the item may have no row in `ready` or `timer`: it was never leased, and is ready when it is the first of
its key. `order_home` has the keys of the shard's hash slots whose items are in another shard.
An item that has ended and is kept has its row in `done` instead, and none in `expiry`. Its result is in `result`.
What consumers said about an item, its checkpoint and its log are in `progress`.
While a host serves the shard, an item whose id is greater than `shard.indexed_to` may have no row in either: it is
unindexed, which means that it is ready and was never leased. 0 means that every item has its row. The next owner writes
the missing rows that the database has room for.
`dedup` keeps the keys of enqueued items until they expire. An item that frees its key when it starts or is done has a
row in `held_key`, in its own shard; the key itself may be in another shard by then, and the row stays until that shard
has freed the key. A dead letter's row stays for a redrive.
`member` has the items of batches until they end. A member that has failed keeps its row (`dead`), also where its item
is gone. `batch_count` counts the members of a batch on this shard. The home of a batch has it in `item_batch`, and the
last counts of each shard in `batch_part` (`foqs.item_batch`).
Rows that move are narrow, and each table is clustered on the order in which it is scanned.

A change of these tables needs a higher `SCHEMA_VERSION`, and a step in `foqs.store.migrate` that brings older databases
to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.ids import DIGEST_BYTES, HASH_SLOTS
from foqs.item_batch import ID_BYTES, MOST_FAILED_IDS
from foqs.order import HEAD_BYTES

SCHEMA_VERSION = 7
"""The version of these tables. A host serves no database of another one."""
RESTORING = 0
"""In place of a version, while a dump is loaded: no foqs opens, migrates or completes such a database."""
TIMER_OF_ITEM = "timer_of_item"
LANE_OF_NAMES = "lane_of_names"
EXPIRY_OF_ITEM = "expiry_of_item"
DEDUP_BY_EXPIRY = "dedup_by_expiry"
HELD_KEY_BY_TIME = "held_key_by_time"
ENDED_BY_LANE = "done_by_lane"
ENDED_OF_ITEM = "done_of_item"
FAILURE_OF_ITEM = "failure_of_item"
MEMBER_BY_BATCH = "member_by_batch"
COUNT_BY_SENT = "batch_count_by_sent"
BATCH_BY_END = "item_batch_by_end"

# Names are bytes: a default collation would make `A` equal `a`.
# `item.first_at`: the item's first `deliver_after` since its enqueue or its last redrive, once it has another one.
# NULL: the present one is the first. A plain item never has it.
# `item.last_failure`: the last attempt that failed (`LastFailure.pack`). NULL: none has failed since the enqueue or the
# last redrive.
# `item.order_at`: `Order.pack`. It stays when the item ends or is a dead letter, and is NULL without an order key.
# `item.batch`: NULL for an item that is in none.
# `shard.one` is always 1. `shard.identity` is the shard's UUID, which a restored copy has too. An owner fills an empty
# one. `shard.restored_ms` and `leases_ended`: when an owner found that the database is an older copy, and how many
# leases it ended. -1: a dump was put back, and no owner has opened it yet.
_SQL = f"""
CREATE TABLE item (
    id BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    deliver_after BIGINT NOT NULL,
    enqueued_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    lease_ms INTEGER NOT NULL,
    delivery TINYINT NOT NULL,
    metadata BLOB,
    headers BLOB,
    payload MEDIUMBLOB NOT NULL,
    first_at BIGINT,
    last_failure BLOB,
    order_key VARBINARY(255),
    order_at VARBINARY({HEAD_BYTES + DIGEST_BYTES}),
    batch BIGINT,
    PRIMARY KEY (id)
);
CREATE TABLE ready (
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    deliver_after BIGINT NOT NULL,
    id BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    lease BIGINT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (lane, priority, deliver_after, id)
);
CREATE TABLE timer (
    due BIGINT NOT NULL,
    id BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    lease BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (due, id),
    UNIQUE INDEX {TIMER_OF_ITEM} (id)
);
CREATE TABLE expiry (
    at_ms BIGINT NOT NULL,
    id BIGINT NOT NULL,
    PRIMARY KEY (at_ms, id),
    UNIQUE INDEX {EXPIRY_OF_ITEM} (id)
);
CREATE TABLE lane (
    lane INTEGER NOT NULL,
    ns VARBINARY(255) NOT NULL,
    topic VARBINARY(255) NOT NULL,
    fairness VARBINARY(255) NOT NULL,
    throttles VARBINARY(512) NOT NULL DEFAULT x'',
    weight INTEGER NOT NULL DEFAULT 0,
    rules VARBINARY(768) NOT NULL DEFAULT x'',
    PRIMARY KEY (lane),
    UNIQUE INDEX {LANE_OF_NAMES} (ns, topic, fairness, throttles, rules)
);
CREATE TABLE dedup (
    digest BINARY({DIGEST_BYTES}) NOT NULL,
    content BIGINT NOT NULL,
    id BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (digest),
    INDEX {DEDUP_BY_EXPIRY} (expires_at)
);
CREATE TABLE held_key (
    id BIGINT NOT NULL,
    digest BINARY({DIGEST_BYTES}) NOT NULL,
    slot INTEGER NOT NULL,
    number INTEGER NOT NULL,
    free_at BIGINT NOT NULL,
    dead TINYINT NOT NULL,
    PRIMARY KEY (id),
    INDEX {HELD_KEY_BY_TIME} (free_at, id)
);
CREATE TABLE shard (
    one TINYINT NOT NULL,
    version INTEGER NOT NULL,
    number INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    owner VARBINARY(255) NOT NULL,
    connection_id BIGINT NOT NULL,
    server VARBINARY(255) NOT NULL,
    next_number BIGINT NOT NULL,
    due_from_ms BIGINT NOT NULL,
    expiry_from_ms BIGINT NOT NULL,
    dedup_from_ms BIGINT NOT NULL,
    slots_stamp BIGINT NOT NULL,
    slots VARBINARY({HASH_SLOTS // 8}) NOT NULL,
    done_from_ms BIGINT NOT NULL DEFAULT 0,
    indexed_to BIGINT NOT NULL DEFAULT 0,
    identity VARBINARY(16) NOT NULL DEFAULT x'',
    restored_ms BIGINT NOT NULL DEFAULT 0,
    leases_ended BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (one)
);
CREATE TABLE done (
    until_ms BIGINT NOT NULL,
    id BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    state TINYINT NOT NULL,
    attempt INTEGER NOT NULL,
    ended_at BIGINT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (until_ms, id),
    INDEX {ENDED_BY_LANE} (lane),
    UNIQUE INDEX {ENDED_OF_ITEM} (id)
);
CREATE TABLE result (
    id BIGINT NOT NULL,
    data MEDIUMBLOB NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE progress (
    id BIGINT NOT NULL,
    checkpoint MEDIUMBLOB,
    done BIGINT,
    total BIGINT,
    said BLOB,
    log MEDIUMBLOB NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE failure (
    lane INTEGER NOT NULL,
    fingerprint BIGINT NOT NULL,
    id BIGINT NOT NULL,
    cause TINYINT NOT NULL,
    attempts INTEGER NOT NULL,
    died_at BIGINT NOT NULL,
    topic VARBINARY(255) NOT NULL,
    fairness VARBINARY(255) NOT NULL,
    throttles VARBINARY(512) NOT NULL,
    reason VARBINARY(1024) NOT NULL,
    rules VARBINARY(768) NOT NULL DEFAULT x'',
    worker VARBINARY(255) NOT NULL DEFAULT x'',
    PRIMARY KEY (lane, fingerprint, id),
    UNIQUE INDEX {FAILURE_OF_ITEM} (id)
);
CREATE TABLE ordered (
    digest BINARY({DIGEST_BYTES}) NOT NULL,
    standing TINYINT NOT NULL,
    place BIGINT NOT NULL,
    id BIGINT NOT NULL,
    lane INTEGER NOT NULL,
    PRIMARY KEY (digest, standing, place)
);
CREATE TABLE order_home (
    digest BINARY({DIGEST_BYTES}) NOT NULL,
    shard INTEGER NOT NULL,
    stamp BIGINT NOT NULL,
    PRIMARY KEY (digest)
);
CREATE TABLE member (
    id BIGINT NOT NULL,
    batch BIGINT NOT NULL,
    dead TINYINT NOT NULL,
    PRIMARY KEY (id),
    INDEX {MEMBER_BY_BATCH} (batch, dead, id)
);
CREATE TABLE batch_count (
    batch BIGINT NOT NULL,
    members BIGINT NOT NULL,
    completed BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    expired BIGINT NOT NULL,
    deleted BIGINT NOT NULL,
    cancelled BIGINT NOT NULL,
    dropped BIGINT NOT NULL,
    lease_ended BIGINT NOT NULL,
    changes BIGINT NOT NULL,
    unsent TINYINT NOT NULL,
    PRIMARY KEY (batch),
    INDEX {COUNT_BY_SENT} (unsent, batch)
);
CREATE TABLE item_batch (
    id BIGINT NOT NULL,
    ns VARBINARY(255) NOT NULL,
    state TINYINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    parent BIGINT NOT NULL,
    on_success MEDIUMBLOB,
    on_end MEDIUMBLOB,
    success_id BIGINT NOT NULL,
    end_id BIGINT NOT NULL,
    PRIMARY KEY (id),
    INDEX {BATCH_BY_END} (ended_at, id)
);
CREATE TABLE batch_part (
    batch BIGINT NOT NULL,
    shard INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    serial BIGINT NOT NULL,
    members BIGINT NOT NULL,
    completed BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    expired BIGINT NOT NULL,
    deleted BIGINT NOT NULL,
    cancelled BIGINT NOT NULL,
    dropped BIGINT NOT NULL,
    lease_ended BIGINT NOT NULL,
    failed_ids VARBINARY({MOST_FAILED_IDS * ID_BYTES}) NOT NULL,
    PRIMARY KEY (batch, shard)
);
CREATE TABLE setting (
    ns VARBINARY(255) NOT NULL,
    stamp BIGINT NOT NULL,
    doc MEDIUMBLOB NOT NULL,
    PRIMARY KEY (ns)
);
"""
_SERVER_OPTIONS = " ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=binary"


class Column(NamedTuple):
    """`type` is spelled as in the database. `filled`: an INSERT without the column succeeds."""

    type: str
    nullable: bool
    filled: bool

    @property
    def sql(self) -> str:
        """The definition of a column of `TABLES` or `FILE_TABLES`."""
        default = " DEFAULT x''" if "BINARY" in self.type or "BLOB" in self.type else " DEFAULT 0"
        return self.type if self.nullable else f"{self.type} NOT NULL{default if self.filled else ''}"


class Index(NamedTuple):
    """`usable`: statements may name it (it is not invisible or ignored), and it has whole columns and all rows."""

    columns: tuple[str, ...]
    unique: bool
    usable: bool = True

    @property
    def kind(self) -> str:
        return "UNIQUE INDEX" if self.unique else "INDEX"


@dataclass(slots=True)
class Table:
    """A table of the schema, or one of a database. `engine` is empty for SQLite, `with_rowid` False for servers."""

    name: str
    engine: str = ""
    with_rowid: bool = False
    columns: dict[str, Column] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    indexes: dict[str, Index] = field(default_factory=dict)

    def create(self) -> list[str]:
        """Return the statements that make the table and its indexes, in one line each.

        On MySQL and MariaDB one statement makes all of it: it needs no right but CREATE, and the indexes are there as
        soon as the table is.
        """
        parts = [f"{name} {column.sql}" for name, column in self.columns.items()]
        parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        options = _SERVER_OPTIONS
        if not self.engine:
            options = "" if self.with_rowid else " WITHOUT ROWID"
        else:
            parts += [f"{index.kind} {name} ({', '.join(index.columns)})" for name, index in self.indexes.items()]
        made = f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(parts)}){options}"
        return [made] if self.engine else [made, *map(self.create_index, sorted(self.indexes))]

    def create_index(self, name: str) -> str:
        index = self.indexes[name]
        return f"CREATE {index.kind} {name} ON {self.name} ({', '.join(index.columns)})"


def _read(sql: str) -> Table:
    """Read one CREATE TABLE of `_SQL`."""
    name, *lines = re.findall(r"(?<=TABLE )\w+|^ {4}.*?(?=,?$)", sql, re.MULTILINE)
    table = Table(name, "InnoDB")
    for line in map(str.strip, lines):
        columns = tuple(line[line.find("(") + 1 : -1].split(", "))
        match line.split():
            case ["PRIMARY", *_]:
                table.key = columns
            case ["UNIQUE", "INDEX", index, *_]:
                table.indexes[index] = Index(columns, unique=True)
            case ["INDEX", index, *_]:
                table.indexes[index] = Index(columns, unique=False)
            case [column, kind, *rest]:
                table.columns[column] = Column(kind, not rest, not rest or "DEFAULT" in rest)
    return table


def _in_file(table: Table) -> Table:
    """Return the table for SQLite. Tables with long rows have a rowid: WITHOUT ROWID is slow for those.

    SQLite takes a key for its rowid by the spelling INTEGER only.
    """
    made = Table(table.name, key=table.key, indexes=table.indexes)
    made.with_rowid = any(column.type == "MEDIUMBLOB" for column in table.columns.values())
    for name, column in table.columns.items():
        kind = "BLOB" if re.search("BLOB|BINARY", column.type) else column.type
        rowid = made.with_rowid and table.key == (name,) and kind == "BIGINT"
        made.columns[name] = column._replace(type="INTEGER" if rowid else kind)
    return made


TABLES: Mapping[str, Table] = {
    table.name: table for table in sorted(map(_read, _SQL.split(";\n")[:-1]), key=lambda table: table.name)
}
"""The tables on MySQL and MariaDB, in the order of their names."""
FILE_TABLES: Mapping[str, Table] = {name: _in_file(table) for name, table in TABLES.items()}
"""The same tables in a file of SQLite."""
