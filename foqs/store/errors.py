"""Errors of drivers as errors of the seam, and what an administrator runs for an account that was refused.

No text of a driver gets into the messages: it may hold SQL or a row's values. It stays in the chained cause, for a
debugger. Account names and reasons of the operating system are parsed out of it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from foqs.store.packets import Err
from foqs.store.protocol import (
    RowRejected,
    ShardRefused,
    StoreBusy,
    StoreDenied,
    StoreDown,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from foqs.store.transaction import NULL_REFUSED, Loss

RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX"
"""Rights for a host, `foqs shards create` and `foqs doctor`. Only migrations need ALTER, and remedies INDEX."""
_WRONG_LOGIN = (1045, 1698)
_NO_ACCOUNT_FOR_HOST = 1130
_NO_DATABASE = (1044, 1049)
_NO_RIGHT = (1142, 1143)
_OLD_PROTOCOL = (1251, 2059)
_EXPIRED, _LOCKED = (1820, 1862), (3118, 4151)
_CLOSED = dict.fromkeys(_EXPIRED, "the password of {} has expired") | dict.fromkeys(_LOCKED, "the account {} is locked")


_HAD_ITEMS = "a shard that had items: put back its last dump (docs/run/backup.md)"


class Account(NamedTuple):
    """An account as the server sees it: `host` is a pattern, or the address that the connection came from."""

    user: str
    host: str

    def __str__(self) -> str:
        return f"{_quoted(self.user)}@{_quoted(self.host)}"


class Place(NamedTuple):
    """Where a shard's URL leads. No password."""

    product: str = "the server"
    address: str = ""
    user: str = ""
    database: str = ""

    def __str__(self) -> str:
        return f"{self.product} at {self.address}" if self.address else self.product

    def refusal(self, code: int, account: Account | None, right: re.Match[str] | None) -> str:
        """Describe what the server refused. `right` has the names of a right and of a table."""
        who = str(account or _quoted(self.user))
        if code in _WRONG_LOGIN:
            return f"{self} denies access to {who}: wrong user or password"
        if code == _NO_ACCOUNT_FOR_HOST:
            return f"{self} has no account for user {who} from this machine"
        if code == _NO_DATABASE[0]:
            return f"{self} denies {who} access to the database {self.database}, or there is none"
        if code == _NO_DATABASE[1]:
            return f"{self} has no such database: {self.database}"
        if code in _NO_RIGHT and right is not None:
            return f"{self} denies {who} the right {right[1]} on {self.database}.{right[2]}"
        if code in _OLD_PROTOCOL:
            return f"{self} wants a way to authenticate {who} that the driver does not have"
        closed = _CLOSED.get(code)
        return f"{self}: {closed.format(who)}" if closed else f"{self} denies {who} a right that foqs needs"


class Kind(Enum):
    """What a driver's error means for the connection and the transaction."""

    LOST = "lost"  # the connection is gone or cannot be trusted
    READ_ONLY = "read-only"  # as LOST: by now another server may be the primary, and have the name
    MISSING = "missing"  # as LOST: the server answers, and a table is not there
    BUSY = "busy"  # passing: the caller rolls the transaction back
    FULL = "full"  # the disk, or the space of a table: the caller rolls back
    DATA = "data"  # a row is refused
    REFUSED = "refused"  # no rights or no such database


class _Known(NamedTuple):
    """`undone`: a COMMIT that failed so changed nothing. After any other error of a COMMIT its outcome is unknown."""

    kind: Kind
    words: str
    undone: bool = False


_BROKEN = (Kind.LOST, Kind.READ_ONLY, Kind.MISSING)
_LOST, _READ_ONLY, _BUSY, _FULL, _DATA = Kind.LOST, Kind.READ_ONLY, Kind.BUSY, Kind.FULL, Kind.DATA
_NO_COPY = "the server cannot change the table without copying it"
_IS_READ_ONLY = "the server is read-only: is it a replica, or no longer the primary?"
_IN_GROUP = "the server's replication group rolled the transaction back: is the server still the primary?"
_KNOWN = {
    20: _Known(_FULL, "the disk is full"),
    1020: _Known(_BUSY, "another transaction changed the row"),
    1021: _Known(_FULL, "the server's disk is full"),
    1036: _Known(_READ_ONLY, _IS_READ_ONLY, undone=True),
    1040: _Known(_BUSY, "the server has too many connections"),
    1047: _Known(_READ_ONLY, "the server takes no statements: is it outside its Galera cluster?", undone=True),
    1048: _Known(_DATA, "a value is missing"),
    1053: _Known(_LOST, "the server is shutting down"),
    1054: _Known(_LOST, "a column is missing: run `foqs shards check`"),
    1062: _Known(_DATA, "duplicate key"),
    1104: _Known(_LOST, "the statement may read more rows than max_join_size allows"),
    1114: _Known(_FULL, "a table or the disk is full"),
    1118: _Known(_DATA, "a row is too long"),
    1129: _Known(_LOST, "the server blocks this machine after failed connections: FLUSH HOSTS frees it"),
    1146: _Known(Kind.MISSING, "a table is missing: run `foqs shards check`"),
    1152: _Known(_LOST, "the server ended the connection: does its init_connect fail?"),
    1153: _Known(_LOST, "a packet was larger than the server allows"),
    1158: _Known(_LOST, "the server could not read from the connection"),
    1159: _Known(_LOST, "the server waited longer for the request than net_read_timeout allows"),
    1160: _Known(_LOST, "the server could not write to the connection"),
    1161: _Known(_LOST, "the server waited longer for this host than net_write_timeout allows"),
    1175: _Known(_LOST, "sql_safe_updates forbids the statement"),
    1176: _Known(_LOST, "an index is missing: run `foqs shards check`"),
    1180: _Known(_LOST, "the server failed while it committed"),
    1184: _Known(_LOST, "the server ended the connection: does its init_connect fail?"),
    1193: _Known(_LOST, "the server does not know a variable"),
    1197: _Known(_DATA, "the transaction is larger than max_binlog_cache_size"),
    1203: _Known(_BUSY, "the user has too many connections"),
    1205: _Known(_BUSY, "lock wait time-out", undone=True),
    1206: _Known(_BUSY, "the server has no room for more locks"),
    1213: _Known(_BUSY, "deadlock", undone=True),
    1226: _Known(_BUSY, "the user has used up a resource"),
    1264: _Known(_DATA, "a number is out of range"),
    1286: _Known(_LOST, "the server refuses InnoDB: is enforce_storage_engine or disabled_storage_engines set?"),
    1317: _Known(_LOST, "the statement was interrupted"),
    1406: _Known(_DATA, "a value is too long"),
    1614: _Known(_BUSY, "deadlock"),
    1637: _Known(_BUSY, "the server has too many open transactions"),
    1705: _Known(_DATA, "the statement is larger than max_binlog_stmt_cache_size"),
    1792: _Known(_READ_ONLY, "the server made the transaction read-only: is it a replica?", undone=True),
    1836: _Known(_READ_ONLY, _IS_READ_ONLY, undone=True),
    1845: _Known(_LOST, _NO_COPY),
    1846: _Known(_LOST, _NO_COPY),
    1881: _Known(_READ_ONLY, "the server repairs itself (innodb_force_recovery) and is read-only", undone=True),
    1927: _Known(_LOST, "the connection was killed"),
    1969: _Known(_BUSY, "the statement took longer than max_statement_time allows"),
    2006: _Known(_LOST, "the connection is gone"),
    2013: _Known(_LOST, "the connection was lost"),
    2027: _Known(_LOST, "the server's reply cannot be read"),
    3024: _Known(_BUSY, "the statement took longer than max_execution_time allows"),
    3032: _Known(_LOST, "the server is in offline mode"),
    3098: _Known(_LOST, "the server's replication group refuses the table", undone=True),
    3100: _Known(_READ_ONLY, _IN_GROUP, undone=True),
    3101: _Known(_READ_ONLY, _IN_GROUP, undone=True),
    3159: _Known(_LOST, "the server takes connections with TLS only"),
    3168: _Known(_LOST, "the server is not available"),
    3169: _Known(_LOST, "the session was killed"),
    3170: _Known(_DATA, "the statement needs more memory than the server allows"),
    3572: _Known(_BUSY, "lock wait time-out"),
    4031: _Known(_LOST, "the server ended a connection that was idle"),
    4082: _Known(_LOST, "the connection used more memory than connection_memory_limit allows"),
    4092: _Known(_LOST, _NO_COPY),
} | dict.fromkeys(
    (1261, 1263, 1265, 1292, 1364, 1366, 1367, 1441, 1451, 1452, 1690, 3819, 4025), _Known(_DATA, "a row is refused")
)
"""The errors of servers that are not refusals. After any other error the connection is dropped."""
_OPTION_FORBIDS = 1290
_OPTION = re.compile(r"--([\w-]+)")
_READ_ONLY_OPTION = re.compile("read[-_]only")
_FAILED_WRITES = {3, 1005, 1015, 1026, 1030}
"""Failures of any kind; the text has the number of the operating system's or the storage engine's error."""
_NO_SPACE = re.compile(r"\b28\b|No space left")
_WRITE_PROTECTED = re.compile(r"\b(30|165)\b|[Rr]ead[- ]only")
_UNREACHABLE = {2002, 2003, 2005}
_UNKNOWN_HOST = 2005
_ERRNO = re.compile(r"\(([1-9]\d*)[^()]*\)\s*$")
_IN_PROGRESS = 115  # libmariadb says so for every connection that was not made
_REFUSED = {1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1698, 1820, 1862, 2059, 3118, 4151}
_RIGHT = re.compile(r"([A-Z][A-Z, ]*) command denied to user .* for (?:table|column) .*?[`']?(\w+)[`']?$")
_ACCOUNT = re.compile(r"'([^']*)'@'([^']*)'")
_OWN_CODES = 1000  # the first code of a server's own; lower codes are of operating systems
_SERVER_CODES = (range(1000, 2000), range(3000, 5000))
_NO_SUCH_DATABASE = 1049
_NO_SUCH_TABLE = 1146
_NO_SUCH_THREAD = 1094
_VARIABLE = (1193, 1227, 1229, 1231, 1232, 1238, 1621)

_SQLITE_WORDS = {
    sqlite3.SQLITE_BUSY: ("another process is writing the database", Kind.BUSY),
    sqlite3.SQLITE_LOCKED: ("the database is locked", Kind.BUSY),
    sqlite3.SQLITE_FULL: ("the disk is full", Kind.FULL),
    sqlite3.SQLITE_READONLY: ("the database is read-only, or its file was moved", Kind.READ_ONLY),
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
            Kind.LOST: StoreDown, Kind.READ_ONLY: StoreReadOnly, Kind.MISSING: StoreDenied,
            Kind.BUSY: StoreBusy, Kind.FULL: StoreFull, Kind.DATA: RowRejected,
        }  # fmt: skip
        return made[kind](words)

    def of_code(self, code: int, text: str) -> StoreError:
        """Return the error of the seam for what a server has said to another program."""
        return self.translate(self._dbapi.OperationalError(code, text))

    def read_only(self) -> StoreReadOnly:
        """Return the error for a server that says so itself, and for a file that lost its name.

        An account with more rights may write there all the same: that is lost, because the primary never gets it.
        """
        words = _SQLITE_WORDS[sqlite3.SQLITE_READONLY][0] if self._is_sqlite else _IS_READ_ONLY
        return StoreReadOnly(f"{words}{self._where(Kind.READ_ONLY)}")

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
        """Return True if a COMMIT that failed with `error` changed nothing. Else its outcome is unknown."""
        if self._is_sqlite:
            # A full disk fails before the last frame of the transaction is in the write-ahead log.
            code = getattr(_origin(error), "sqlite_errorcode", 0) & 0xFF
            return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
        return _known(_origin(error)).undone

    def words(self, error: BaseException) -> str:
        return self._read(error)[0]

    def kind(self, error: BaseException) -> Kind:
        return self._read(error)[1]

    def is_answer(self, error: BaseException) -> bool:
        """Return True if a server reported the error, and not a driver that has lost the connection."""
        return any(_code(error) in codes for codes in _SERVER_CODES)

    def is_refused_null(self, error: BaseException) -> bool:
        """Return True if a column that is NOT NULL was set to NULL."""
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

    def is_of_variable(self, error: BaseException) -> bool:
        """Return True if a server does not know a variable, or refuses its value or its change."""
        return not self._is_sqlite and _code(error) in _VARIABLE

    def _read(self, error: BaseException) -> tuple[str, Kind]:
        origin = _origin(error)
        if self._is_sqlite:
            code = getattr(origin, "sqlite_errorcode", 0) & 0xFF
            words, kind = _SQLITE_WORDS.get(code, ("the database failed", Kind.LOST))
            return f"{words} (SQLite {code}){self._where(kind)}", kind
        code = _code(origin)
        if code in _UNREACHABLE:
            return f"cannot connect to {self._place}: {_reason(origin)}", Kind.LOST
        if code in _REFUSED:
            return f"{self._place.refusal(code, _account(origin), _RIGHT.match(_text(origin)))} ({code})", Kind.REFUSED
        known = _known(origin)
        if code not in _KNOWN and isinstance(origin, self._data):
            known = _Known(Kind.DATA, "a row is refused")
        return f"{known.words} ({code}){self._where(known.kind)}", known.kind

    def _where(self, kind: Kind) -> str:
        return f": {self._place}" if kind in _BROKEN and self._place.address else ""


def _known(origin: BaseException) -> _Known:
    code = _code(origin)
    if code == _OPTION_FORBIDS:
        return _forbidden(_text(origin))
    if code in _FAILED_WRITES and _NO_SPACE.search(_text(origin)):
        return _Known(Kind.FULL, "the disk is full")
    if code in _FAILED_WRITES and _WRITE_PROTECTED.search(_text(origin)):
        return _Known(_READ_ONLY, _IS_READ_ONLY)
    return _KNOWN.get(code) or _Known(Kind.LOST, "the connection is gone" if code == 0 else "the database failed")


def _forbidden(text: str) -> _Known:
    """Read which option of the server forbids a statement; the text names it in every language."""
    option = _OPTION.search(text)
    if option is None or _READ_ONLY_OPTION.search(option[1]):
        return _KNOWN[1836]
    return _Known(Kind.LOST, f"the server's option {option[1]} forbids the statement", undone=True)


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


# ------------------------------------------------------------------------------------------------ accounts


def remedy_of(code: int, place: Place, account: Account | None) -> str:
    """What mends a refusal, in one line."""
    account = account or Account(place.user, "%")
    making = f"CREATE DATABASE IF NOT EXISTS {_quoted_name(place.database)};"
    if code in _WRONG_LOGIN or code == _NO_ACCOUNT_FOR_HOST:
        new = f"CREATE USER {account} IDENTIFIED BY 'the password of the url';"
        return (
            "correct user and password of the shard's url; for a new account an administrator runs: "
            f"{new} {making} {grant(account, place.database)}"
        )
    if code in _OLD_PROTOCOL:
        return "give the account another authentication plugin, or take the driver mysql+mysqldb"
    if code in _EXPIRED:
        return f"an administrator runs: ALTER USER {account} PASSWORD EXPIRE NEVER;"
    if code in _LOCKED:
        return f"an administrator runs: ALTER USER {account} ACCOUNT UNLOCK;"
    if code == _NO_DATABASE[1]:
        return f"{_HAD_ITEMS}; a new shard: `foqs shards create`, or an administrator runs: {making}"
    if code == _NO_DATABASE[0]:
        return f"an administrator runs: {making} {grant(account, place.database)}"
    return f"an administrator runs: {grant(account, place.database)}"


def grant(account: Account, database: str, rights: str = RIGHTS) -> str:
    """The statement that gives `account` rights: a host's, or the given ones."""
    return f"GRANT {rights} ON {_quoted_name(database)}.* TO {account};"


def account_of(current_user: str) -> Account:
    """From what CURRENT_USER() returns."""
    user, _, host = current_user.rpartition("@")
    return Account(user, host)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted_name(text: str) -> str:
    return "`" + text.replace("`", "``") + "`"
