"""A shard's database and one connection to it, driven by SQL text.

Hot statements go to the driver's cursor of SQLAlchemy's pooled connection: several statements travel as one packet
and each one's affected rows come back, which SQLAlchemy's own result does not pass on.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from foqs.checks import PASSWORD_FILE, host_port, shard_url_fault
from foqs.extras import missing
from foqs.store import server
from foqs.store.compound import Compound, compound_text
from foqs.store.dialect import MYSQL, SQLITE, Dialect
from foqs.store.errors import Place, Seam
from foqs.store.packets import (
    COM_STMT_PREPARE,
    BadReply,
    Inserts,
    close_command,
    command,
    prepare_commands,
    read_prepared,
)
from foqs.store.passwords import password_file, read_password
from foqs.store.protocol import ShardRefused, StoreError
from foqs.store.server import facts, is_read_only
from foqs.store.statements import in_packets

PACKET_BYTES = 4 << 20
_MULTI_STATEMENTS = 1 << 16
_EXTRAS = {"pymysql": "server", "mysqldb": "mysqlclient"}
_PRODUCTS = {"mysql": "MySQL", "mariadb": "MariaDB"}
_PORT = 3306
_SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_ENDED = getattr(select, "POLLRDHUP", select.POLLHUP)
_LOOK_AGAIN_S = 0.2
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
"""In seconds, and a number of probes: an idle connection notices after 19 s that its server's machine is gone."""


class Database:
    """Where a shard is: the engine of its URL. Raises ShardRefused for a URL that cannot be used.

    `io_timeout_s` bounds each wait for the server's answer; SQLite has a bound on lock waits only. `look_only`: nothing
    of a SQLite file is changed.
    """

    def __init__(
        self, url: str, *, connect_timeout_s: float = 3.0, io_timeout_s: float = 10.0, look_only: bool = False
    ) -> None:
        parsed = _usable(url)
        self._password_file = password_file(url, parsed)
        self.url = parsed.difference_update_query([PASSWORD_FILE])
        self._look_only = look_only
        self.is_file = self.url.get_backend_name() == "sqlite"
        self._left: Mapping[str, str | None] = {}  # variables that are not set, and their values; None: there is none
        self.engine = self._make_engine(self.url, connect_timeout_s, io_timeout_s)
        self.seam_errors = Seam(self.engine.dialect.loaded_dbapi, _place(self.url))

    @property
    def file(self) -> Path | None:
        """The database's file, None for a server."""
        return Path(self.url.database or "") if self.is_file else None

    @property
    def dialect(self) -> Dialect:
        """The dialect, with that of MySQL for MariaDB too: both take the same set-up, clock and begin."""
        return SQLITE if self.is_file else MYSQL

    @property
    def reads_in_python(self) -> bool:
        """Return True if the driver builds rows in Python."""
        return self.url.get_driver_name() == "pymysql"

    @contextmanager
    def seam(self) -> Iterator[None]:
        """Turns what the driver raises inside into an error of the seam. Not for transactions."""
        try:
            yield
        except self.seam_errors.error as error:
            raise self.seam_errors.translate(error) from error

    def connect(self) -> Connection:
        """A connection in autocommit mode. Raises the driver's errors, and ShardRefused."""
        self._make_private_file()
        try:
            return self.engine.connect()
        except TypeError:  # a keyword that connect() of the driver does not have; the text may have its value
            raise ShardRefused("the shard's URL has an option that the driver does not know") from None
        except RuntimeError as error:
            if "cryptography" not in str(error):
                raise
            raise ShardRefused(
                missing("the package cryptography, which PyMySQL needs for a password without TLS,", "server")
            ) from error

    def refuse_missing(self) -> None:
        """SQLite would make an empty file."""
        if self.file is not None and not self.file.exists():
            raise ShardRefused("there is no database file: create it with `foqs shards create`")

    def _make_private_file(self) -> None:
        """Make a missing SQLite file readable for its owner alone; SQLite gives -wal and -shm the same mode."""
        name = self.url.database or ":memory:"
        if self._look_only or not self.is_file or name.startswith((":memory:", "file:")):
            return
        with suppress(OSError):  # it exists, or it cannot be made: then SQLite says so
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def create_if_missing(self) -> None:
        """Makes the database on the server. Raises the driver's errors."""
        if self.file is not None:
            return
        try:
            self.connect().close()
        except self.seam_errors.error as error:
            if not self.seam_errors.is_missing_database(error):
                raise
            name = self.engine.dialect.identifier_preparer.quote_identifier(self.url.database or "")
            without = self._make_engine(self.url.set(database=""), 3.0, 10.0)
            with without.connect() as connection:
                connection.exec_driver_sql(f"CREATE DATABASE IF NOT EXISTS {name}")

    def _make_engine(self, url: URL, connect_timeout_s: float, io_timeout_s: float) -> Engine:
        connect_args: dict[str, Any] = {}
        in_python = url.get_driver_name() == "pymysql"
        if self.is_file:
            # The driver would keep the text of the last 128 statements, of a megabyte each.
            connect_args = {"check_same_thread": False, "cached_statements": 0}
        else:
            # mysqlclient takes whole seconds only.
            whole = float if in_python else math.ceil
            connect_args = {
                "connect_timeout": whole(connect_timeout_s),
                "read_timeout": whole(min(connect_timeout_s, io_timeout_s) if in_python else io_timeout_s),
                "write_timeout": whole(io_timeout_s),
            }
            if in_python and url.password is not None:
                # PyMySQL would encode it in Latin-1. Servers hash the UTF-8 of it, as the other drivers send it.
                connect_args["password"] = url.password.encode()
        try:
            engine = create_engine(
                url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=connect_args, hide_parameters=True
            )
        except ModuleNotFoundError:
            driver = url.get_driver_name()
            raise ShardRefused(missing(f"the driver {driver}", _EXTRAS[driver])) from None
        except ValueError:  # its text may have the value
            raise ShardRefused("the shard's URL has an option whose value the driver does not accept") from None
        if self._password_file is not None:
            event.listen(engine, "do_connect", partial(_give_password, self._password_file, in_bytes=in_python))
        # Before the statements of SQLAlchemy's own, which a server's settings could make fail.
        event.listen(engine, "connect", partial(self._set_up, io_timeout_s), insert=True)
        return engine

    def _set_up(self, io_timeout_s: float, dbapi_connection: Any, _: object) -> None:
        if self.reads_in_python:
            # PyMySQL bounds the greeting of a server by it, which a frozen server never sends.
            dbapi_connection._read_timeout = io_timeout_s
        with closing(dbapi_connection.cursor()) as cursor:
            if self.is_file:
                for statement in server.SQLITE_LOOK_ONLY_PRAGMAS if self._look_only else server.SQLITE_PRAGMAS:
                    cursor.execute(statement)
            else:
                self._set_variables(cursor)

    def _set_variables(self, cursor: Any) -> None:
        try:
            _run(cursor, server.session_set_up(self._left.keys()))
            # Another server may have the name by now, where these have other values.
            found = _shown(cursor, self._left) if self._left else {}
            if all(found.get(name) == value for name, value in self._left.items()):
                return
        except self.seam_errors.error as error:
            if not self.seam_errors.is_of_variable(error):
                raise
        self._left = _set_one_by_one(cursor, self.seam_errors)


def _give_password(
    path: Path, _dialect: object, _record: object, _args: object, parameters: dict[str, Any], *, in_bytes: bool
) -> None:
    """Read the password for one connection. SQLAlchemy calls it. Raises ShardRefused."""
    password = read_password(path)
    parameters["password"] = password.encode() if in_bytes else password


def _place(url: URL) -> Place:
    if url.get_backend_name() == "sqlite":
        return Place("SQLite", url.database or "")
    path = url.query.get("unix_socket")
    address = str(path) if path else host_port(url.host or "localhost", url.port or _PORT)
    return Place(_PRODUCTS[url.get_backend_name()], address, url.username or "", url.database or "")


def _usable(url: str) -> URL:
    """The URL with its driver and options. Raises ShardRefused."""
    if (why := shard_url_fault(url)) is not None:
        raise ShardRefused(why)
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend == "sqlite":
            return parsed
        if "+" not in parsed.drivername:
            parsed = parsed.set(drivername=f"{backend}+pymysql")
        return parsed.update_query_dict({"client_flag": str(_MULTI_STATEMENTS), "charset": "utf8mb4"})
    except (ArgumentError, ValueError):
        # Their text may hold the URL with its password.
        raise ShardRefused("the shard's URL is not one that SQLAlchemy can read") from None


class Link:
    """One connection. Its methods raise the driver's errors."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.errors = database.seam_errors
        self.connection = database.connect()
        self.packet_bytes = PACKET_BYTES
        dialect = database.dialect
        self._one_packet = dialect.one_packet
        self._in_python = database.reads_in_python
        self.inserts: Inserts | None = None
        self.compound: Compound | None = None
        self.autocommit = True
        dbapi: Any = self.connection.connection.dbapi_connection
        self._dbapi = dbapi
        self._cursor: Any = dbapi.cursor()
        self._file = database.file
        self.poll = self._watch() if not database.is_file else None
        try:
            self._opened = self._file.stat() if self._file is not None else None
            self.id = int(self.fetch(dialect.connection_id)[0][0])
        except BaseException:
            self.close()
            raise

    @property
    def is_elsewhere(self) -> bool:
        """Return True if another SQLite file has the name, or none. In WAL mode SQLite does not look."""
        if self._file is None or self._opened is None:
            return False
        try:
            return not os.path.samestat(self._opened, self._file.stat())
        except FileNotFoundError:
            return True

    def _watch(self) -> select.poll | None:
        """Return what says that the server, or the network, has ended the connection: nothing sent now arrives.

        It asks the operating system alone, which is made to notice that an idle server's machine is gone.
        """
        held = getattr(self._dbapi, "_sock", self._dbapi)
        try:
            number = held.fileno()
            with socket.socket(fileno=os.dup(number)) as twin:
                if twin.family != socket.AF_UNIX:
                    twin.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for name, value in _KEEPALIVE:
                        if (option := getattr(socket, name, None)) is not None:
                            twin.setsockopt(socket.IPPROTO_TCP, option, value)
        except (AttributeError, OSError):
            return None
        poll = select.poll()
        poll.register(number, _ENDED)
        return poll

    def run(self, statements: Sequence[str]) -> Iterator[int]:
        """Runs `statements` and yields the rows that each one matched, in order. Stops at the first that fails."""
        if not self.autocommit:
            self._commit_each()
        cursor = self._cursor
        if not self._one_packet:
            for statement in statements:
                cursor.execute(statement)
                yield cursor.rowcount
            return
        for packet in in_packets(statements, self.packet_bytes):
            cursor.execute(packet)
            yield cursor.rowcount
            while cursor.nextset():
                yield cursor.rowcount

    @property
    def plain_socket(self) -> socket.socket | None:
        """The socket that PyMySQL uses without TLS and without blocking, None for any other connection.

        A private attribute: without it transactions run in the shard's thread.
        """
        found = getattr(self._dbapi, "_sock", None) if self._in_python else None
        if type(found) is not socket.socket or found.gettimeout() is None:
            return None
        return found

    def shut_down(self) -> None:
        """End PyMySQL's connection at once, from any thread: `close` says goodbye to the server, and could wait.

        A read in another thread fails then.
        """
        found = getattr(self._dbapi, "_sock", None)
        if isinstance(found, socket.socket):
            with suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # that of a TLS socket would not wake a read

    def prepare_inserts(self) -> None:
        """Prepare the INSERTs of new items. A server may have no room for them: then they stay None.

        Raises the driver's errors.
        """
        if (numbers := self._prepare(prepare_commands())) is not None:
            self.inserts = Inserts(numbers)

    def prepare_compound(self) -> None:
        """Prepare the statement of small transactions, as `prepare_inserts` does."""
        if (numbers := self._prepare([command(COM_STMT_PREPARE, compound_text().encode())])) is not None:
            self.compound = Compound(numbers[0])

    def _prepare(self, commands: Sequence[bytes]) -> list[int] | None:
        """Return the numbers of the statements that are prepared on `plain_socket`; None if it is not all of them."""
        found = self.plain_socket
        if found is None:
            return None
        found.sendall(b"".join(commands))
        with found.makefile("rb") as stream:

            def read(size: int) -> bytes:
                data = stream.read(size)
                if len(data) < size:
                    raise ConnectionResetError("the connection ended")
                return data

            try:
                numbers = [number for _ in commands if isinstance(number := read_prepared(read), int)]
            except BadReply as error:
                raise ConnectionError(str(error)) from error
        if len(numbers) == len(commands):
            return numbers
        if numbers:
            found.sendall(b"".join([close_command(number) for number in numbers]))
        return None

    def forget_types(self) -> None:
        """Have the types of parameters sent again: a server that refused a command may not have read them."""
        for prepared in (self.inserts, self.compound):
            if prepared is not None:
                prepared.forget_types()

    def execute(self, statement: str) -> None:
        if not self.autocommit:
            self._commit_each()
        self._cursor.execute(statement)

    def _commit_each(self) -> None:
        """Switch autocommit on: else a read would open a transaction, and leave it open."""
        self._cursor.execute("ROLLBACK")  # switching it on would commit
        self._cursor.execute("SET autocommit = 1")
        self.autocommit = True

    def rollback(self) -> None:
        # SQLite ends a transaction by itself after some errors.
        if getattr(self._dbapi, "in_transaction", True):
            self._cursor.execute("ROLLBACK")

    def fetch(self, query: str) -> Sequence[Any]:
        """All rows of `query`, as tuples."""
        if not self.autocommit:
            self._commit_each()
        self._cursor.execute(query)
        rows: Sequence[Any] = self._cursor.fetchall()
        return rows

    def fetch_all(self, queries: Sequence[str]) -> list[Sequence[Any]]:
        """The rows of each query, in one trip where the database allows."""
        if not self._one_packet:
            return [self.fetch(query) for query in queries]
        if not self.autocommit:
            self._commit_each()
        cursor = self._cursor
        cursor.execute(";".join(queries))
        results = [cursor.fetchall()]
        while cursor.nextset():
            results.append(cursor.fetchall())
        return results

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let the statements inside see the database at one time, without locks, while its owner continues."""
        for statement in _SNAPSHOT if self._file is None else ("BEGIN",):
            self.execute(statement)
        try:
            yield
        except BaseException:
            with suppress(*self.database.seam_errors.error):  # a lost connection has none, and its own error counts
                self.rollback()
            raise
        self.rollback()

    def close(self) -> None:
        """Never raises; an open transaction is rolled back by the server."""
        try:
            self.connection.invalidate()
            self.connection.close()
        except Exception:  # noqa: BLE001 - whatever a broken connection says when it is closed does not matter
            return


# ------------------------------------------------------------------------------------------------ looks


def place_of(url: str) -> tuple[str, str] | None:
    """Server (`mysql://host:port`) and database of a shard's URL; user, password and options, which may hold keys, are
    left out. None for a text that is no URL."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    host = parsed.host or ""
    return f"{parsed.get_backend_name()}://{host if parsed.port is None else host_port(host, parsed.port)}", (
        parsed.database or ""
    )


@contextmanager
def open_link(
    url: str, *, connect_timeout_s: float = 3.0, io_timeout_s: float = 10.0, look_only: bool = False
) -> Iterator[Link]:
    """Yield a connection of its own to a shard's database. Raises StoreError, also for the driver's errors inside."""
    database = Database(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s, look_only=look_only)
    with database.seam():
        database.refuse_missing()
        with closing(Link(database)) as link:
            yield link


def reachable(url: str, *, connect_timeout_s: float, io_timeout_s: float) -> bool:
    """Return True if the database of a shard's URL takes a connection of its own, and writes. Changes nothing, raises
    nothing."""
    try:
        with open_link(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s, look_only=True) as link:
            return not is_read_only(link.connection)
    except StoreError:
        return False


def read_clock(url: str, *, connect_timeout_s: float, io_timeout_s: float) -> tuple[bytes, int, int] | None:
    """Read the clock of a shard's database over a connection of its own: the name of its server (as in
    `Opened`), its time in ms, and the machine's monotonic time in ns. None if it does not answer. Raises nothing."""
    try:
        with open_link(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s, look_only=True) as link:
            identity = facts(link.connection).identity or f"file:{link.database.file}".encode()
            now_ms = int(link.fetch(f"SELECT {link.database.dialect.clock_ms}")[0][0])
            return identity, now_ms, time.monotonic_ns()
    except StoreError:
        return None


class Seen(Enum):
    """What a server does with a connection whose reply is late."""

    WORKS = "it works on a statement, or does not say"
    WAITS = "it waits for the next statement, or has ended the connection"
    AWAY = "it does not answer"


def look_at(url: str, connection: int, *, connect_timeout_s: float, io_timeout_s: float) -> Seen:
    """Ask a server over another connection about its work on `connection`. Raises nothing.

    A statement may begin or end between two questions. So the server WAITS if it says so twice.
    """
    database = Database(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s)
    query = f"SELECT 1 FROM information_schema.processlist WHERE id = {connection:d} AND command <> 'Sleep'"
    try:
        with closing(Link(database)) as link:
            if link.fetch(query):
                return Seen.WORKS
            time.sleep(_LOOK_AGAIN_S)
            return Seen.WORKS if link.fetch(query) else Seen.WAITS
    except database.seam_errors.error as error:
        # A server that refuses this connection may work on the other.
        return Seen.WORKS if database.seam_errors.is_answer(error) else Seen.AWAY
    except ShardRefused:
        return Seen.WORKS


# ------------------------------------------------------------------------------------------------ sessions


def _run(cursor: Any, packet: str) -> None:
    """Run statements that return no rows. Raises the driver's errors, of each of them."""
    cursor.execute(packet)
    while cursor.nextset():
        pass


def _shown(cursor: Any, names: Collection[str] = ()) -> dict[str, str]:
    """Return the values of the variables, as far as the server has them; of all without names."""
    listed = ", ".join([f"'{name}'" for name in names])
    cursor.execute(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})" if names else "SHOW SESSION VARIABLES")
    return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _set_one_by_one(cursor: Any, errors: Seam) -> dict[str, str | None]:
    """Set what can be set, and return the other variables with their values; None: this server does not have it.

    Raises ShardRefused for a variable that keeps another value, and the driver's errors.
    """
    for statement in server.SESSION_FIRST:
        _run(cursor, statement)
    there = _shown(cursor)
    left = {name: there.get(name) for name in server.lacking(there)}
    for one in server.SESSION_VARIABLES:
        if one.name in left:
            continue
        try:
            _run(cursor, f"SET SESSION {one.assignment}")
        except errors.error as error:
            if not errors.is_of_variable(error):
                raise
            if not server.has_value(one, there[one.name]):
                why = f"the server's {one.name} is {there[one.name]!r}, and foqs may not set it: {one.why}"
                mend = f"an administrator runs: SET GLOBAL {one.assignment}, and in the server's configuration"
                raise ShardRefused(why, mend=mend) from error
            left[one.name] = there[one.name]
    return left
