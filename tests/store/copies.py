"""Copies of a shard's database, to be put back later on the same server under the same name."""

from __future__ import annotations

from typing import Any

from foqs.store.link import Database
from foqs.store.tables import metadata

Tables = dict[str, list[dict[str, Any]]]


def dump(url: str) -> Tables:
    with Database(url).connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(table.select()).mappings()]
            for table in metadata.sorted_tables
        }


def restore(url: str, tables: Tables) -> None:
    with Database(url).connect() as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
            if tables[table.name]:
                connection.execute(table.insert(), tables[table.name])
        connection.commit()
