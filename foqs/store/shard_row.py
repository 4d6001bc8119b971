"""The row of `shard`: the number of the shard that a database holds, and its schema version."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.engine import Connection

from foqs.store import migrate
from foqs.store.errors import Seam
from foqs.store.protocol import ShardRefused
from foqs.store.tables import SCHEMA_VERSION, shard

NO_SCHEMA = "the database has no foqs schema: create it with `foqs shards create`"


class StoredShard(NamedTuple):
    """The columns of `shard` that databases of all schema versions have. SQLite keeps an empty `owner` as text."""

    version: int
    number: int
    owner: bytes | str
    epoch: int


ROW_COLUMNS = frozenset(StoredShard._fields)
_ROW = select(*(shard.c[name] for name in StoredShard._fields)).where(shard.c.one == 1)


def read_shard_row(connection: Connection, errors: Seam) -> StoredShard | None:
    """Return the row of `shard`, None if there is none.

    Raises ShardRefused when there is no such table, and the driver's errors.
    """
    try:
        row = connection.execute(_ROW).one_or_none()
    except errors.error as error:
        if errors.is_missing_table(error):
            raise ShardRefused(NO_SCHEMA) from error
        raise
    return None if row is None else StoredShard(int(row.version), int(row.number), row.owner, int(row.epoch))


def refuse_foreign(row: StoredShard | None, shard_number: int | None) -> None:
    """Raise ShardRefused for no row, another schema version, and another shard's tables."""
    if row is None:
        raise ShardRefused("the shard's row is missing: create the schema")
    refuse_other_version(row.version)
    refuse_other_shard(row.number, shard_number)


def refuse_other_shard(number: int, shard_number: int | None) -> None:
    """Raise ShardRefused for the tables of a shard with another number."""
    if shard_number is not None and number != shard_number:
        raise ShardRefused(f"the database holds shard {number}, not shard {shard_number}")


def refuse_other_version(version: int) -> None:
    """Raise ShardRefused for a database of another schema version. Its `mend` has the remedy."""
    if version != SCHEMA_VERSION:
        why = f"the schema of the database is version {version}, and this foqs needs version {SCHEMA_VERSION}"
        raise ShardRefused(why, mend=migrate.remedy(version))
