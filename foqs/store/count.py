"""How many items a shard's database holds, for an operator: a shard that no host serves has no owner to ask."""

from __future__ import annotations

from foqs.store.link import Database, Link
from foqs.store.shard_row import read_shard_row, refuse_foreign

_COUNT_TIMEOUT_S = 600.0
"""The index of a hundred million items is read once."""


def count_items(url: str, shard: int) -> int:
    """Items in any state. Raises StoreError: the database does not answer, or is not this shard's."""
    database = Database(url, io_timeout_s=_COUNT_TIMEOUT_S, look_only=True)
    with database.seam():
        database.refuse_missing()
        link = Link(database)
        try:
            refuse_foreign(read_shard_row(link.connection, database.seam_errors), shard)
            return int(link.fetch("SELECT COUNT(*) FROM item")[0][0])
        finally:
            link.close()
