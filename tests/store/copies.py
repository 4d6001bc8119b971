"""Copies of a shard's database, to be put back later on the same server under the same name."""

from __future__ import annotations

from typing import Any

from sqlalchemy import column, insert, table, text

from foqs.store.link import Database
from foqs.store.tables import TABLES

Tables = dict[str, list[dict[str, Any]]]


def dump(url: str) -> Tables:
    with Database(url).connect() as connection:
        return {
            name: [dict(row) for row in connection.execute(text(f"SELECT * FROM {name}")).mappings()] for name in TABLES
        }


def restore(url: str, tables: Tables) -> None:
    with Database(url).connect() as connection:
        for name, columns in TABLES.items():
            connection.execute(text(f"DELETE FROM {name}"))
            if tables[name]:
                connection.execute(insert(table(name, *map(column, columns.columns))), tables[name])
        connection.commit()
