"""From what a driver raises to the errors of the seam. Nothing a driver says gets into their messages.

A driver's text may hold SQL or a row's values; it stays in the chained cause, for a debugger.
"""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import Any

from sqlalchemy.exc import DBAPIError

from foqs.store.protocol import RowRejected, ShardRefused, StoreBusy, StoreDown, StoreError


class Kind(Enum):
    """What a driver's error means for the connection and the transaction."""

    LOST = "lost"  # the connection is gone or cannot be trusted
    BUSY = "busy"  # passing: the transaction is to be rolled back
    DATA = "data"  # a row is refused
    REFUSED = "refused"  # no rights or no such database


_WORDS = {
    1020: "a row changed meanwhile",
    1021: "the server's disk is full",
    1040: "the server has too many connections",
    1044: "access to the database is denied",
    1045: "access is denied: wrong user or password",
    1048: "a value is missing",
    1049: "there is no such database: create it with `foqs shards create`",
    1053: "the server is shutting down",
    1062: "duplicate key",
    1114: "a table is full",
    1142: "the right to do this is missing",
    1153: "a packet was larger than the server allows",
    1203: "the user has too many connections",
    1205: "lock wait time-out",
    1213: "deadlock",
    1226: "the user has used up a resource",
    1227: "the right to do this is missing",
    1264: "a number is out of range",
    1290: "the server is read-only",
    1317: "the statement was interrupted",
    1406: "a value is too long",
    1836: "the server is read-only",
    1927: "the connection was killed",
    2003: "the server cannot be reached",
    2006: "the connection is gone",
    2013: "the connection was lost",
    3024: "the statement took longer than the server allows",
    3572: "lock wait time-out",
}
_BUSY = {1020, 1021, 1040, 1114, 1203, 1205, 1206, 1213, 1226, 1290, 1614, 1637, 1836, 1969, 3024, 3101, 3572}
_DATA = {1048, 1062, 1118, 1261, 1263, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1441, 1451, 1452, 1690, 3819, 4025}
_NOT_COMMITTED = {1205, 1213, 1290, 1836, 3101}
_REFUSED = {1044, 1045, 1049, 1130, 1142, 1227, 1251, 1698, 2059}
_NO_SUCH_DATABASE = 1049
_NO_SUCH_TABLE = 1146
_NO_SUCH_THREAD = 1094

_SQLITE_WORDS = {
    sqlite3.SQLITE_BUSY: ("another process is writing the database", Kind.BUSY),
    sqlite3.SQLITE_LOCKED: ("the database is locked", Kind.BUSY),
    sqlite3.SQLITE_FULL: ("the disk is full", Kind.BUSY),
    sqlite3.SQLITE_READONLY: ("the database is read-only", Kind.BUSY),
    sqlite3.SQLITE_INTERRUPT: ("the statement was interrupted", Kind.BUSY),
    sqlite3.SQLITE_CONSTRAINT: ("duplicate key or missing value", Kind.DATA),
    sqlite3.SQLITE_TOOBIG: ("a value is too long", Kind.DATA),
    sqlite3.SQLITE_MISMATCH: ("a value is of the wrong type", Kind.DATA),
    sqlite3.SQLITE_CANTOPEN: ("the database file cannot be opened", Kind.LOST),
    sqlite3.SQLITE_CORRUPT: ("the database file is damaged", Kind.LOST),
    sqlite3.SQLITE_NOTADB: ("the file is no database", Kind.LOST),
    sqlite3.SQLITE_IOERR: ("the disk failed", Kind.LOST),
}


class Seam:
    """Reads the errors of one driver. `dbapi` is the driver's module.

    `error` is what to catch: the driver's own base class, SQLAlchemy's wrapper of it, and what a driver lets through
    from the socket.
    """

    def __init__(self, dbapi: Any) -> None:
        self._data = (dbapi.IntegrityError, dbapi.DataError)
        self._is_sqlite = issubclass(dbapi.Error, sqlite3.Error)
        self.error: tuple[type[Exception], ...] = (dbapi.Error, DBAPIError, OSError)

    def translate(self, error: BaseException) -> StoreError:
        """The error of the seam for an `error` that came while nothing was being committed."""
        words, kind = self._read(error)
        made: dict[Kind, type[StoreError]] = {
            Kind.LOST: StoreDown, Kind.BUSY: StoreBusy, Kind.DATA: RowRejected, Kind.REFUSED: ShardRefused,
        }  # fmt: skip
        return made[kind](words)

    def certainly_not_committed(self, error: BaseException) -> bool:
        """Whether a COMMIT that failed so has changed nothing; of any other failure that has to be found out."""
        if self._is_sqlite:
            return getattr(_origin(error), "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        return _code(error) in _NOT_COMMITTED

    def words(self, error: BaseException) -> str:
        return self._read(error)[0]

    def kind(self, error: BaseException) -> Kind:
        return self._read(error)[1]

    def is_missing_table(self, error: BaseException) -> bool:
        if self._is_sqlite:
            return "no such table" in str(_origin(error))
        return _code(error) == _NO_SUCH_TABLE

    def is_missing_database(self, error: BaseException) -> bool:
        return not self._is_sqlite and _code(error) == _NO_SUCH_DATABASE

    def is_missing_connection(self, error: BaseException) -> bool:
        return not self._is_sqlite and _code(error) == _NO_SUCH_THREAD

    def _read(self, error: BaseException) -> tuple[str, Kind]:
        origin = _origin(error)
        if self._is_sqlite:
            code = getattr(origin, "sqlite_errorcode", 0) & 0xFF
            words, kind = _SQLITE_WORDS.get(code, ("the database failed", Kind.LOST))
            return f"{words} (SQLite {code})", kind
        code = _code(origin)
        words = _WORDS.get(code, "the connection is gone" if code == 0 else "the database failed")
        if code in _BUSY:
            kind = Kind.BUSY
        elif code in _DATA or isinstance(origin, self._data):
            kind, words = Kind.DATA, _WORDS.get(code, "a row is refused")
        elif code in _REFUSED:
            kind = Kind.REFUSED
        else:
            # What nobody foresaw: nothing is known of the connection's state any more, so it is given up.
            kind = Kind.LOST
        return f"{words} ({code})", kind


def _origin(error: BaseException) -> BaseException:
    return error.orig or error if isinstance(error, DBAPIError) else error


def _code(error: BaseException) -> int:
    args = _origin(error).args
    return args[0] if args and isinstance(args[0], int) else 0
