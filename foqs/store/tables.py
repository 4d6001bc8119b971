"""The tables of a shard.

Every item has one row in `item` (its body) and exactly one in `ready` or `timer`; with a TTL also one in `expiry`.
While a host serves the shard, an item whose id is greater than `shard.indexed_to` may have no row in either: it is
unindexed, which means that it is ready and was never leased. 0 means that every item has its row, as in a database of
an older version. The next owner writes the missing rows.
`dedup` keeps the keys of enqueued items until they expire. Rows that move are narrow, and each table is clustered on
the order in which it is scanned.

Whatever a later schema version added says so (`since`); `foqs.store.migrate` adds it to older databases.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, Table, text
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeEngine

from foqs.dedup import DIGEST_BYTES, SLOTS

SCHEMA_VERSION = 2
"""The version that this foqs makes, and the newest one that it knows."""
OLDEST_READER = 1
"""`shard.min_reader` of a shard that was closed in order: no row needs a host that knows a later version."""
TAIL_VERSION = 2
"""The version that added `shard.indexed_to`. It is `shard.min_reader` from opening to an orderly close: hosts of older
versions do not find unindexed items."""
DEAD_VERSION = 2
"""The version that added `failure`. `shard.min_reader` stays there while the table has rows: hosts of older versions
would leave the row of an item behind that they remove."""
TENANTS_VERSION = 2
"""The version whose hosts know lanes with a fairness key or throttle keys. `shard.min_reader` stays there while the
shard has any: hosts of older versions would take them for the topic's only lane."""
IDENTITY_VERSION = 2
"""The version that added `shard.identity`."""
IDENTITY_BYTES = 16
FIRST_VERSION = 2
"""The version that added `item.first_at`."""
TIMER_OF_ITEM = "timer_of_item"
LANE_OF_NAMES = "lane_of_names"
EXPIRY_OF_ITEM = "expiry_of_item"
DEDUP_BY_EXPIRY = "dedup_by_expiry"
DONE_OF_ITEM = "done_of_item"
DONE_BY_LANE = "done_by_lane"
FAILURE_OF_ITEM = "failure_of_item"

_SQL_FAMILY = ("mysql", "mariadb")
metadata = MetaData()


def _variant(kind: TypeEngine[Any], own: TypeEngine[Any]) -> TypeEngine[Any]:
    return kind.with_variant(own, *_SQL_FAMILY)


I8 = _variant(SmallInteger(), mysql.TINYINT())
I32 = Integer()
I64 = BigInteger()
# SQLite knows its rowid by this spelling only. Tables with long rows have one: WITHOUT ROWID is slow for those.
ID = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
# A default collation would make `A` equal `a`.
NAME = _variant(LargeBinary(255), mysql.VARBINARY(255))
SMALL_BYTES = _variant(LargeBinary(65_535), mysql.BLOB())
PAYLOAD = _variant(LargeBinary(), mysql.MEDIUMBLOB())
DIGEST = _variant(LargeBinary(DIGEST_BYTES), mysql.BINARY(DIGEST_BYTES))
BITS = _variant(LargeBinary(SLOTS // 8), mysql.VARBINARY(SLOTS // 8))
TEXT = _variant(LargeBinary(255), mysql.VARBINARY(255))
IDENTITY = _variant(LargeBinary(IDENTITY_BYTES), mysql.VARBINARY(IDENTITY_BYTES))
THROTTLES = _variant(LargeBinary(512), mysql.VARBINARY(512))
REASON = _variant(LargeBinary(1024), mysql.VARBINARY(1024))
RETRY = _variant(LargeBinary(64), mysql.VARBINARY(64))


def since(part: Table | Column[Any] | Index) -> int:
    """Return the schema version that added `part`."""
    return int(part.info.get("since", 1))


def parts_since(version: int) -> frozenset[str]:
    """Name the tables, columns (`table.column`) and indexes (`table.index`) that `version` and later ones added."""
    found = {table.name for table in metadata.sorted_tables if since(table) >= version}
    for table in metadata.sorted_tables:
        found |= {f"{table.name}.{part.name}" for part in (*table.columns, *table.indexes) if since(part) >= version}
    return frozenset(found)


def _table(name: str, *columns: Column[Any] | Index, clustered: bool = True, added: int = 1) -> Table:
    own: dict[str, Any] = {}
    for family in _SQL_FAMILY:
        own |= {f"{family}_engine": "InnoDB", f"{family}_row_format": "DYNAMIC", f"{family}_charset": "binary"}
    return Table(name, metadata, *columns, sqlite_with_rowid=not clustered, info={"since": added}, **own)


def _key(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _value(name: str, kind: TypeEngine[Any], *, null: bool = False) -> Column[Any]:
    return Column(name, kind, nullable=null)


def _added(name: str, kind: TypeEngine[Any], default: str, version: int) -> Column[Any]:
    """A column of a table that older hosts write too: their INSERTs, which do not name it, get the default."""
    return Column(name, kind, nullable=False, server_default=text(default), info={"since": version})


# `first_at`: the item's first `deliver_after` since its enqueue or its last redrive, once it has another one; NULL: the
# present one is the first. A plain item never has it.
item = _table(
    "item",
    _key("id", ID),
    _value("lane", I32),
    _value("priority", I32),
    _value("deliver_after", I64),
    _value("enqueued_at", I64),
    _value("expires_at", I64),
    _value("lease_ms", I32),
    _value("delivery", I8),
    _value("metadata", SMALL_BYTES, null=True),
    _value("headers", SMALL_BYTES, null=True),
    _value("payload", PAYLOAD),
    Column("first_at", I64, nullable=True, info={"since": FIRST_VERSION}),
    clustered=False,
)

ready = _table(
    "ready",
    _key("lane", I32),
    _key("priority", I32),
    _key("deliver_after", I64),
    _key("id", I64),
    _value("attempt", I32),
    _value("lease", I64),
    _value("bytes", I32),
)

timer = _table(
    "timer",
    _key("due", I64),
    _key("id", I64),
    _value("lane", I32),
    _value("lease", I64),
    _value("attempt", I32),
    _value("lease_ms", I32),
    _value("bytes", I32),
    Index(TIMER_OF_ITEM, "id", unique=True),
)

expiry = _table(
    "expiry",
    _key("at_ms", I64),
    _key("id", I64),
    Index(EXPIRY_OF_ITEM, "id", unique=True),
)

lane = _table(
    "lane",
    _key("lane", I32),
    _value("ns", NAME),
    _value("topic", NAME),
    _value("fairness", NAME),
    _added("throttles", THROTTLES, "x''", 2),
    _added("weight", I32, "0", 2),
    Index(LANE_OF_NAMES, "ns", "topic", "fairness", "throttles", unique=True, info={"since": 2}),
)

dedup = _table(
    "dedup",
    _key("digest", DIGEST),
    _value("content", I64),
    _value("id", I64),
    _value("expires_at", I64),
    Index(DEDUP_BY_EXPIRY, "expires_at"),
)

# `identity`: the shard's UUID, empty until an owner of this version takes a migrated database. A restored copy has it.
# `restored_ms`, `leases_ended`: when an owner found that the database is an older copy, and how many leases it ended.
shard = _table(
    "shard",
    _key("one", I8),  # always 1
    _value("version", I32),
    _value("min_reader", I32),
    _value("number", I32),
    _value("epoch", I64),
    _value("seq", I64),
    _value("owner", TEXT),
    _value("connection_id", I64),
    _value("server", TEXT),
    _value("next_number", I64),
    _value("due_from_ms", I64),
    _value("expiry_from_ms", I64),
    _value("dedup_from_ms", I64),
    _value("slots_stamp", I64),
    _value("slots", BITS),
    _added("done_from_ms", I64, "0", 2),
    _added("indexed_to", I64, "0", TAIL_VERSION),
    _added("identity", IDENTITY, "x''", IDENTITY_VERSION),
    _added("restored_ms", I64, "0", IDENTITY_VERSION),
    _added("leases_ended", I64, "0", IDENTITY_VERSION),
)

done = _table(
    "done",
    _key("until_ms", I64),
    _key("id", I64),
    _value("lane", I32),
    _value("state", I8),
    _value("attempt", I32),
    _value("ended_at", I64),
    _value("bytes", I32),
    Index(DONE_OF_ITEM, "id", unique=True),
    Index(DONE_BY_LANE, "lane"),
    added=2,
)

result = _table(
    "result",
    _key("id", ID),
    _value("data", PAYLOAD),
    clustered=False,
    added=2,
)

failure = _table(
    "failure",
    _key("lane", I32),
    _key("fingerprint", I64),
    _key("id", I64),
    _value("cause", I8),
    _value("attempts", I32),
    _value("died_at", I64),
    _value("topic", NAME),
    _value("fairness", NAME),
    _value("throttles", THROTTLES),
    _value("reason", REASON),
    Index(FAILURE_OF_ITEM, "id", unique=True),
    added=2,
)

rule = _table(
    "rule",
    _key("id", I64),
    _value("max_attempts", I32),
    _value("max_total_ms", I64),
    _value("retry", RETRY),
    _value("dead", NAME),
    _value("keep_ms", I64),
    _value("exact", I8),
    added=2,
)

setting = _table(
    "setting",
    _key("ns", NAME),
    _value("stamp", I64),
    _value("doc", PAYLOAD),
    clustered=False,
    added=2,
)
