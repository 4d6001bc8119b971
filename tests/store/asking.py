"""Statements of a test's own at a shard's database, beside its store."""

from __future__ import annotations

import pymysql
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from foqs.store.checkup import check_shard
from foqs.store.server import Finding
from tests.store.shards import ServerShard


def run(url: str, *statements: str) -> None:
    """Each statement on its own, committed."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def findings_of(url: str, shard: int) -> list[Finding]:
    """Return the differences from a good shard."""
    return check_shard(url, shard).findings


def connect(shard: ServerShard) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
    url = make_url(shard.url)
    return pymysql.connect(
        host=url.host, port=url.port or 0, user=url.username or "", database=url.database, autocommit=True
    )


def row_lock_waits(shard: ServerShard) -> int:
    """The server's own count: information_schema.innodb_trx is a copy that is not renewed while it is polled."""
    ((_, waits),) = ask(shard, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(str(waits))


def ask(shard: ServerShard, statement: str) -> tuple[tuple[object, ...], ...]:
    with connect(shard) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()
