"""A MySQL or MariaDB server as a client sees it."""

from contextlib import closing
from typing import Any

import pymysql

from foqs_lab.servers.programs import Kind

_CONNECT_TIMEOUT_S = 5
_QUERY_TIMEOUT_S = 60


class SqlEndpoint:
    """Where a database server listens (127.0.0.1), as `root` without a password."""

    def __init__(self, kind: Kind, port: int = 0) -> None:
        self.kind: Kind = kind
        self.port = port

    def url(self, database: str = "", *, driver: str = "pymysql") -> str:
        """A SQLAlchemy URL. `driver` is SQLAlchemy's name of it: ``pymysql`` or ``mysqldb`` (mysqlclient)."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/{database}"

    def query(self, sql: str, *parameters: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        """Runs one statement on a connection of its own and commits.

        Raises:
            pymysql.MySQLError: it cannot be reached, does not answer within 60 s, or refuses the statement.
        """
        with closing(self._connect(database, timeout_s=_QUERY_TIMEOUT_S)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall())

    def create_database(self, name: str) -> str:
        """Makes an empty database and returns its name. Raises `pymysql.MySQLError` when it exists."""
        self.query(f"CREATE DATABASE `{name}`")
        return name

    def drop_database(self, name: str) -> None:
        """Removes a database if it is there, ending connections to it first: their locks would hold it up."""
        for (connection_id,) in self.query("SELECT id FROM information_schema.processlist WHERE db = %s", name):
            try:
                self.query(f"KILL {connection_id:d}")
            except pymysql.MySQLError:  # the connection ended by itself; the DROP fails if one is left
                continue
        self.query(f"DROP DATABASE IF EXISTS `{name}`")

    def answers(self, *, datadir: str | None = None) -> bool:
        """Whether it serves now; with `datadir`, whether the one that answers is the one with that folder."""
        try:
            with closing(self._connect(None, timeout_s=_CONNECT_TIMEOUT_S)) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT @@datadir")
                (answer,) = cursor.fetchone() or ("",)
        except pymysql.MySQLError:
            return False
        return datadir is None or str(answer).rstrip("/") == datadir.rstrip("/")

    def _connect(
        self, database: str | None, *, timeout_s: int
    ) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=timeout_s,
            write_timeout=timeout_s,
        )
