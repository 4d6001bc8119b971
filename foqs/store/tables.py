"""The tables of a shard.

Every item has one row in `item` (its body) and exactly one in `ready` or `timer`; with a TTL also one in `expiry`.
While a host serves the shard, an item whose id is greater than `shard.indexed_to` may have no row in either: it is
unindexed, which means that it is ready and was never leased. 0 means that every item has its row. The next owner writes
the missing rows.
`dedup` keeps the keys of enqueued items until they expire. Rows that move are narrow, and each table is clustered on
the order in which it is scanned.

A change of these tables needs a higher `SCHEMA_VERSION`, and a step in `foqs.store.migrate` that brings older databases
to it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, Table, text
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeEngine

from foqs.ids import DIGEST_BYTES, HASH_SLOTS

SCHEMA_VERSION = 1
"""The version of these tables. A host serves no database of another one."""
IDENTITY_BYTES = 16
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
BITS = _variant(LargeBinary(HASH_SLOTS // 8), mysql.VARBINARY(HASH_SLOTS // 8))
TEXT = _variant(LargeBinary(255), mysql.VARBINARY(255))
IDENTITY = _variant(LargeBinary(IDENTITY_BYTES), mysql.VARBINARY(IDENTITY_BYTES))
THROTTLES = _variant(LargeBinary(512), mysql.VARBINARY(512))
REASON = _variant(LargeBinary(1024), mysql.VARBINARY(1024))


def _table(name: str, *columns: Column[Any] | Index, clustered: bool = True) -> Table:
    own: dict[str, Any] = {}
    for family in _SQL_FAMILY:
        own |= {f"{family}_engine": "InnoDB", f"{family}_row_format": "DYNAMIC", f"{family}_charset": "binary"}
    return Table(name, metadata, *columns, sqlite_with_rowid=not clustered, **own)


def _key(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _value(name: str, kind: TypeEngine[Any], *, null: bool = False) -> Column[Any]:
    return Column(name, kind, nullable=null)


def _filled(name: str, kind: TypeEngine[Any], default: str) -> Column[Any]:
    """Return a column whose default fills a new row: INSERTs do not name it."""
    return Column(name, kind, nullable=False, server_default=text(default))


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
    _value("first_at", I64, null=True),
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
    _filled("throttles", THROTTLES, "x''"),
    _filled("weight", I32, "0"),
    Index(LANE_OF_NAMES, "ns", "topic", "fairness", "throttles", unique=True),
)

dedup = _table(
    "dedup",
    _key("digest", DIGEST),
    _value("content", I64),
    _value("id", I64),
    _value("expires_at", I64),
    Index(DEDUP_BY_EXPIRY, "expires_at"),
)

# `identity`: the shard's UUID, which a restored copy has too. An owner fills an empty one.
# `restored_ms`, `leases_ended`: when an owner found that the database is an older copy, and how many leases it ended.
shard = _table(
    "shard",
    _key("one", I8),  # always 1
    _value("version", I32),
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
    _filled("done_from_ms", I64, "0"),
    _filled("indexed_to", I64, "0"),
    _filled("identity", IDENTITY, "x''"),
    _filled("restored_ms", I64, "0"),
    _filled("leases_ended", I64, "0"),
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
)

result = _table(
    "result",
    _key("id", ID),
    _value("data", PAYLOAD),
    clustered=False,
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
)

setting = _table(
    "setting",
    _key("ns", NAME),
    _value("stamp", I64),
    _value("doc", PAYLOAD),
    clustered=False,
)
