"""Driver errors as errors of the seam. No text of a driver gets into their messages.

A driver's text may hold SQL or a row's values; it stays in the chained cause, for a debugger. Account names and reasons
of the operating system are parsed out of it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from enum import Enum
from typing import Any

from sqlalchemy.exc import DBAPIError

from foqs.store.packets import Err
from foqs.store.protocol import RowRejected, ShardRefused, StoreBusy, StoreDown, StoreError, StoreFull
from foqs.store.rights import Account, Place, remedy_of
from foqs.store.transaction import NULL_REFUSED, Loss


class Kind(Enum):
    """What a driver's error means for the connection and the transaction."""

    LOST = "lost"  # the connection is gone or cannot be trusted
    BUSY = "busy"  # passing: the caller rolls the transaction back
    FULL = "full"  # the disk, or the space of a table: the caller rolls back
    DATA = "data"  # a row is refused
    REFUSED = "refused"  # no rights or no such database


_WORDS = {
    1020: "another transaction changed the row",
    1021: "the server's disk is full",
    1040: "the server has too many connections",
    1048: "a value is missing",
    1053: "the server is shutting down",
    1054: "a column is missing: run `foqs shards check`",
    1062: "duplicate key",
    1114: "a table or the disk is full",
    1146: "a table is missing: run `foqs shards check`",
    1153: "a packet was larger than the server allows",
    1176: "an index is missing: run `foqs shards check`",
    1203: "the user has too many connections",
    1205: "lock wait time-out",
    1213: "deadlock",
    1226: "the user has used up a resource",
    1264: "a number is out of range",
    1290: "the server is read-only",
    1317: "the statement was interrupted",
    1406: "a value is too long",
    1836: "the server is read-only",
    1845: "the server cannot change the table without copying it",
    1846: "the server cannot change the table without copying it",
    1927: "the connection was killed",
    2006: "the connection is gone",
    2013: "the connection was lost",
    2027: "the server's reply cannot be read",
    3024: "the statement took longer than the server allows",
    3572: "lock wait time-out",
    4092: "the server cannot change the table without copying it",
}
_BUSY = {1020, 1040, 1203, 1205, 1206, 1213, 1226, 1290, 1614, 1637, 1836, 1969, 3024, 3101, 3572}
_DATA = {1048, 1062, 1118, 1261, 1263, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1441, 1451, 1452, 1690, 3819, 4025}
_FULL = {20, 1021, 1114}
_FULL_IF_SAID = {3, 1026, 1030}
"""Failed writes of any kind; the text has the number of the operating system's error."""
_NO_SPACE = re.compile(r"\b28\b|No space left")
_UNREACHABLE = {2002, 2003, 2005}
_UNKNOWN_HOST = 2005
_ERRNO = re.compile(r"\(([1-9]\d*)[^()]*\)\s*$")
_IN_PROGRESS = 115  # libmariadb says so for every connection that was not made
_NOT_COMMITTED = {1205, 1213, 1290, 1836, 3101}
_REFUSED = {1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1698, 2059}
_RIGHT = re.compile(r"([A-Z][A-Z, ]*) command denied to user .* for (?:table|column) .*?[`']?(\w+)[`']?$")
_ACCOUNT = re.compile(r"'([^']*)'@'([^']*)'")
_OWN_CODES = 1000  # the first code of a server's own; below are those of operating systems
_SERVER_CODES = (range(1000, 2000), range(3000, 5000))
_NO_SUCH_DATABASE = 1049
_NO_SUCH_TABLE = 1146
_NO_SUCH_THREAD = 1094
_NO_SUCH_COLUMN_TO_DROP = 1091
_WOULD_COPY = (1845, 1846, 4092)

_SQLITE_WORDS = {
    sqlite3.SQLITE_BUSY: ("another process is writing the database", Kind.BUSY),
    sqlite3.SQLITE_LOCKED: ("the database is locked", Kind.BUSY),
    sqlite3.SQLITE_FULL: ("the disk is full", Kind.FULL),
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
    """Reads the errors of one driver. `dbapi` is the driver's module; `place` is where its connections go.

    `error` is what to catch: the driver's own base class, SQLAlchemy's wrapper of it, and what a driver lets through
    from the socket.
    """

    def __init__(self, dbapi: Any, place: Place | None = None) -> None:
        self._dbapi = dbapi
        self._data = (dbapi.IntegrityError, dbapi.DataError)
        self._is_sqlite = issubclass(dbapi.Error, sqlite3.Error)
        self._place = place or Place()
        self.error: tuple[type[Exception], ...] = (dbapi.Error, DBAPIError, OSError)

    def translate(self, error: BaseException) -> StoreError:
        """The error of the seam for an `error` that came while nothing was being committed."""
        words, kind = self._read(error)
        if kind is Kind.REFUSED:
            return ShardRefused(words, mend=remedy_of(_code(error), self._place, _account(error)))
        made: dict[Kind, type[StoreError]] = {
            Kind.LOST: StoreDown, Kind.BUSY: StoreBusy, Kind.FULL: StoreFull, Kind.DATA: RowRejected,
        }  # fmt: skip
        return made[kind](words)

    def error_of(self, failure: Err | Loss) -> Exception:
        """The error that PyMySQL raises for a `failure` of a transaction, which ran without it."""
        if isinstance(failure, Loss):
            lost: Exception = self._dbapi.OperationalError(*failure.value)
            return lost
        errors = self._dbapi.err
        kind = errors.error_map.get(failure.code)
        if kind is None:
            kind = errors.InternalError if failure.code < _OWN_CODES else errors.OperationalError
        refused: Exception = kind(failure.code, failure.message)
        return refused

    def certainly_not_committed(self, error: BaseException) -> bool:
        """Whether a COMMIT that failed with `error` changed nothing; after any other error the outcome is unknown."""
        if self._is_sqlite:
            # A full disk fails before the last frame of the transaction is in the write-ahead log.
            code = getattr(_origin(error), "sqlite_errorcode", 0) & 0xFF
            return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)
        return _code(error) in _NOT_COMMITTED

    def words(self, error: BaseException) -> str:
        return self._read(error)[0]

    def kind(self, error: BaseException) -> Kind:
        return self._read(error)[1]

    def is_answer(self, error: BaseException) -> bool:
        """Whether a server said so, and not a driver that has lost the connection."""
        return any(_code(error) in codes for codes in _SERVER_CODES)

    def is_refused_null(self, error: BaseException) -> bool:
        """Whether a column that is NOT NULL was set to NULL."""
        if self._is_sqlite:
            return getattr(_origin(error), "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_NOTNULL
        return _code(error) == NULL_REFUSED

    def is_missing_table(self, error: BaseException) -> bool:
        if self._is_sqlite:
            return "no such table" in str(_origin(error))
        return _code(error) == _NO_SUCH_TABLE

    def is_missing_database(self, error: BaseException) -> bool:
        return not self._is_sqlite and _code(error) == _NO_SUCH_DATABASE

    def is_missing_connection(self, error: BaseException) -> bool:
        return not self._is_sqlite and _code(error) == _NO_SUCH_THREAD

    def is_missing_column(self, error: BaseException) -> bool:
        """Whether a column that an ALTER TABLE drops is not there."""
        return not self._is_sqlite and _code(error) == _NO_SUCH_COLUMN_TO_DROP

    def would_copy(self, error: BaseException) -> bool:
        """Whether the server has no way to run an ALTER TABLE without copying the table."""
        return not self._is_sqlite and _code(error) in _WOULD_COPY

    def _read(self, error: BaseException) -> tuple[str, Kind]:
        origin = _origin(error)
        if self._is_sqlite:
            code = getattr(origin, "sqlite_errorcode", 0) & 0xFF
            words, kind = _SQLITE_WORDS.get(code, ("the database failed", Kind.LOST))
            return f"{words} (SQLite {code}){self._where(kind)}", kind
        code = _code(origin)
        if code in _UNREACHABLE:
            return f"cannot connect to {self._place}: {_reason(origin)}", Kind.LOST
        words = _WORDS.get(code, "the connection is gone" if code == 0 else "the database failed")
        if code in _FULL or (code in _FULL_IF_SAID and _NO_SPACE.search(_text(origin))):
            kind, words = Kind.FULL, _WORDS.get(code, "the disk is full")
        elif code in _BUSY:
            kind = Kind.BUSY
        elif code in _DATA or isinstance(origin, self._data):
            kind, words = Kind.DATA, _WORDS.get(code, "a row is refused")
        elif code in _REFUSED:
            return f"{self._place.refusal(code, _account(origin), _RIGHT.match(_text(origin)))} ({code})", Kind.REFUSED
        else:
            # The state of the connection is unknown after an unforeseen error, so the connection is dropped.
            kind = Kind.LOST
        return f"{words} ({code}){self._where(kind)}", kind

    def _where(self, kind: Kind) -> str:
        return f": {self._place}" if kind is Kind.LOST and self._place.address else ""


def _origin(error: BaseException) -> BaseException:
    return error.orig or error if isinstance(error, DBAPIError) else error


def _code(error: BaseException) -> int:
    args = _origin(error).args
    return args[0] if args and isinstance(args[0], int) else 0


def _text(error: BaseException) -> str:
    args = _origin(error).args
    return str(args[1]) if len(args) > 1 else ""


def _account(error: BaseException) -> Account | None:
    """The account as the server names it, in any language."""
    found = _ACCOUNT.search(_text(error))
    return Account(found[1], found[2]) if found is not None else None


def _reason(error: BaseException) -> str:
    """Why there is no connection, in words of the operating system."""
    cause = getattr(error, "original_exception", None)  # PyMySQL's
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    code, found = _code(error), _ERRNO.search(_text(error))
    if code == _UNKNOWN_HOST:
        return "name or service not known"
    if found is not None and int(found[1]) != _IN_PROGRESS:
        return os.strerror(int(found[1])).lower()
    return f"it refuses connections, or nothing listens there ({code})"
