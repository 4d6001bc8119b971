"""The row of `shard`: which shard a database holds, and which hosts may serve it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from foqs.store.errors import Seam
from foqs.store.protocol import ShardRefused
from foqs.store.tables import SCHEMA_VERSION, shard, since

NO_SCHEMA = "the database has no foqs schema: create it with `foqs shards create`"
# A database of version 1 lacks the columns that later versions added.
_COLUMNS = [column for column in shard.columns if since(column) == 1]


def read_shard_row(connection: Connection, errors: Seam) -> Any:
    """Return the row of `shard` in its version 1 columns, None if there is none.

    Raises ShardRefused when there is no such table, and the driver's errors.
    """
    try:
        return connection.execute(select(*_COLUMNS).where(shard.c.one == 1)).one_or_none()
    except errors.error as error:
        if errors.is_missing_table(error):
            raise ShardRefused(NO_SCHEMA) from error
        raise


def refuse_foreign(row: Any, shard_number: int | None) -> None:
    """Raise ShardRefused for no row, a schema newer than this version knows, and another shard's tables."""
    if row is None:
        raise ShardRefused("the shard's row is missing: create the schema")
    if row.min_reader > SCHEMA_VERSION:
        raise ShardRefused(
            f"the schema is version {row.version} and needs a host that knows {row.min_reader}; "
            f"this one knows {SCHEMA_VERSION}: upgrade foqs"
        )
    if shard_number is not None and row.number != shard_number:
        raise ShardRefused(f"the database holds shard {row.number}, not shard {shard_number}")
