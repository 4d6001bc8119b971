"""What a database server says of itself, and what each session on it is set to.

No setting of a server changes the meaning or the end of a statement. A session begins with the server's global values,
and with what its init_connect does. Every variable that could make a statement fail, wait, end early, return other rows
or be carried out in another way is listed in `SESSION_VARIABLES`, with the reason. tests/store/test_session.py lists
the variables that cannot, and fails for a variable in neither list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from foqs.store.protocol import ShardRefused

_OLDEST = {"MySQL": (8, 4), "MariaDB": (10, 6), "SQLite": (3, 35)}
_NAMES = (
    "max_allowed_packet", "innodb_flush_log_at_trx_commit", "innodb_doublewrite", "innodb_flush_method", "log_bin",
    "sync_binlog", "read_only", "super_read_only", "server_uuid", "server_uid", "hostname", "port", "datadir",
    "innodb_read_only", "innodb_force_recovery", "binlog_format", "max_connections", "parser_max_mem_size",
)  # fmt: skip
_READ_ONLY = ("read_only", "super_read_only", "innodb_read_only")
_SMALL_PACKET_BYTES = 4 << 20
_SMALL_PARSER_BYTES = 256 << 20
_SYNCHRONOUS_FULL = 2
LOCK_WAIT_S = 5
_IDLE_S = 31_536_000
_TRANSFER_S = 120
_NO_LIMIT = 18_446_744_073_709_551_615


class Version(NamedTuple):
    product: str
    number: tuple[int, int]


class Finding(NamedTuple):
    """One difference from a good database, and a line that says how to mend it.

    `wrong`: the shard cannot be served, or a promise does not hold.
    """

    found: str
    mend: str
    wrong: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """`identity` tells this server's data from another's; empty for SQLite, whose files are their own identity."""

    version: Version
    identity: bytes
    max_packet_bytes: int
    unsafe: list[Finding] = field(default_factory=list)
    max_connections: int | None = None
    read_only: bool = False


def version(connection: Connection) -> Version:
    if connection.dialect.name == "sqlite":
        product, said = "SQLite", str(connection.exec_driver_sql("SELECT sqlite_version()").scalar_one())
    else:
        said = str(connection.exec_driver_sql("SELECT VERSION()").scalar_one())
        product = "MariaDB" if "mariadb" in said.lower() else "MySQL"
    numbers = re.match(r"(\d+)\.(\d+)", said)
    if numbers is None:
        raise ShardRefused(f"the server says no version that can be read: {said[:60]!r}")
    return Version(product, (int(numbers[1]), int(numbers[2])))


def refuse_old(found: Version) -> None:
    """Raise ShardRefused for a server older than the oldest tested version."""
    oldest = _OLDEST[found.product]
    if found.number < oldest:
        raise ShardRefused(
            f"{found.product} {'.'.join(map(str, found.number))} is too old: "
            f"foqs needs {'.'.join(map(str, oldest))} or newer"
        )


def facts(connection: Connection) -> Facts:
    """Asks the server, in a few short statements."""
    found = version(connection)
    if found.product == "SQLite":
        return _sqlite_facts(connection, found)
    names = ", ".join(f"'{name}'" for name in _NAMES)
    rows = connection.execute(text(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})"))
    settings = {str(row[0]).lower(): str(row[1]) for row in rows}
    rows = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'"))  # MySQL alone has it
    settings |= {str(row[0]).lower(): str(row[1]) for row in rows}
    packet = int(settings["max_allowed_packet"])
    unsafe, most = list(_unsafe(settings, packet)), int(settings["max_connections"])
    return Facts(found, _identity(settings), packet, unsafe, most, _is_read_only(settings))


def is_read_only(connection: Connection) -> bool:
    """Return True if the server takes writes of administrators and of replication only."""
    if connection.dialect.name == "sqlite":
        return False
    names = ", ".join(f"'{name}'" for name in _READ_ONLY)
    rows = connection.execute(text(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    return _is_read_only({str(name).lower(): str(value) for name, value in rows})


def refuses_writes(value: object) -> bool:
    """Read a value of read_only: 0 or 1, OFF or ON, and in later versions of MariaDB further words."""
    return str(value).upper() not in ("0", "OFF", "FALSE")


def _is_read_only(settings: Mapping[str, str]) -> bool:
    return any(refuses_writes(settings.get(name, "OFF")) for name in _READ_ONLY)


def _sqlite_facts(connection: Connection, found: Version) -> Facts:
    unsafe = []
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    if mode != "wal":
        why = f"journal_mode is {mode}, not wal: the file system may not support it"
        unsafe.append(Finding(why, "keep the file on a local file system", wrong=False))
    if connection.exec_driver_sql("PRAGMA synchronous").scalar_one() < _SYNCHRONOUS_FULL:
        why = "synchronous is not FULL: a power failure may lose committed data"
        unsafe.append(Finding(why, "take a SQLite that was not built with another default"))
    return Facts(found, b"", 512 << 20, unsafe)


def _identity(settings: dict[str, str]) -> bytes:
    """MySQL keeps a UUID with its data. MariaDB has a hash of its network address and port (from 10.5.26, 10.6.19,
    10.11.9, 11.4.3 on), else host name, port and folder in its place: all tell a fail-over to another machine; a
    change without need costs some numbers of a very large range and nothing else."""
    if "server_uuid" in settings:
        return settings["server_uuid"].encode()[:255]
    place = "\0".join(settings.get(name, "") for name in ("hostname", "port", "datadir"))
    substitute = hashlib.sha256(place.encode()).hexdigest()
    return (settings.get("server_uid") or substitute).encode()[:255]


def _unsafe(settings: dict[str, str], packet: int) -> Iterator[Finding]:
    def is_on(name: str) -> bool:
        return settings.get(name, "").upper() in ("ON", "1")

    flush = settings.get("innodb_flush_log_at_trx_commit")
    if flush != "1":
        why = f"innodb_flush_log_at_trx_commit is {flush}, not 1: a crash may lose committed data"
        yield Finding(why, "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration")
    if settings.get("innodb_doublewrite", "ON").upper() in ("OFF", "0", "DETECT_ONLY"):
        yield Finding(
            "innodb_doublewrite is off: a power failure may damage pages", "innodb_doublewrite = ON, and a restart"
        )
    method = settings.get("innodb_flush_method", "").lower()
    if method in ("nosync", "littlesync"):
        why = f"innodb_flush_method is {method}: a power failure may lose data"
        yield Finding(why, "innodb_flush_method = O_DIRECT, and a restart")
    if settings.get("innodb_redo_log_enabled", "ON").upper() == "OFF":
        yield Finding("the redo log is disabled: a crash loses committed data", "ALTER INSTANCE ENABLE INNODB REDO_LOG")
    if settings.get("innodb_force_recovery", "0") != "0":
        why = f"innodb_force_recovery is {settings['innodb_force_recovery']}: the server repairs, and refuses writes"
        yield Finding(why, "repair the server, then start it without innodb_force_recovery")
    if is_on("log_bin") and settings.get("sync_binlog") != "1":
        sync = settings.get("sync_binlog")
        why = f"sync_binlog is {sync}, not 1: a crash may lose committed data, on this server or on its replicas"
        yield Finding(why, "SET GLOBAL sync_binlog = 1, and in the server's configuration")
    if is_on("log_bin") and settings.get("binlog_format", "ROW").upper() == "STATEMENT":
        why = "binlog_format is STATEMENT: the server refuses every write at foqs's isolation level"
        yield Finding(why, "SET GLOBAL binlog_format = ROW, and in the server's configuration")
    if _is_read_only(settings):
        why = "the server is read-only: is it a replica, or no longer the primary?"
        yield Finding(
            why, "give the shard the primary's url, let its name lead to the primary, or SET GLOBAL read_only = 0"
        )
    if packet < _SMALL_PACKET_BYTES:
        why = f"max_allowed_packet is {packet}: an item may have {packet // 2} bytes at most"
        yield Finding(why, "SET GLOBAL max_allowed_packet = 67108864, and in the server's configuration", wrong=False)
    parser = int(settings.get("parser_max_mem_size", _SMALL_PARSER_BYTES))  # of the session, which cannot raise it
    if parser < _SMALL_PARSER_BYTES:
        why = f"parser_max_mem_size is {parser}: large transactions are cut into parts, and large items refused"
        yield Finding(why, "SET GLOBAL parser_max_mem_size = DEFAULT, and in the server's configuration", wrong=False)


# ------------------------------------------------------------------------------------------------ sessions


class Variable(NamedTuple):
    """A session variable and its value as SQL. `product`: the only one that has it, empty for both."""

    name: str
    value: str
    why: str
    product: str = ""

    @property
    def assignment(self) -> str:
        return f"{self.name} = {self.value}"


_MARIADB, _MYSQL = "MariaDB", "MySQL"
SESSION_VARIABLES = (
    # Transactions
    Variable("autocommit", "1", "a statement outside a transaction would leave one open"),
    Variable("completion_type", "'NO_CHAIN'", "COMMIT would begin the next transaction, or end the connection"),
    Variable("innodb_lock_wait_timeout", str(LOCK_WAIT_S), "a lock would hold up a shard for the server's time"),
    Variable("lock_wait_timeout", str(LOCK_WAIT_S), "an ALTER TABLE would hold up a shard for a day"),
    Variable("unique_checks", "1", "InnoDB would not look for a second row with the same key"),
    # Ends of statements and connections
    Variable("max_statement_time", "0", "a shard with many items could not be opened", _MARIADB),
    Variable("max_execution_time", "0", "a shard with many items could not be opened", _MYSQL),
    Variable("wait_timeout", str(_IDLE_S), "the connection of an idle shard holds its lock"),
    Variable("net_read_timeout", str(_TRANSFER_S), "a large request over a slow network would end the connection"),
    Variable("net_write_timeout", str(_TRANSFER_S), "a host that reads a long result slowly would lose the connection"),
    Variable("idle_transaction_timeout", "0", "a host that was held up would lose the connection", _MARIADB),
    Variable("idle_readonly_transaction_timeout", "0", "a slow Spark task would lose the connection", _MARIADB),
    Variable("idle_write_transaction_timeout", "0", "a host that was held up would lose the connection", _MARIADB),
    # Refusals
    Variable("sql_mode", "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'", "values would be cut without an error"),
    Variable("sql_safe_updates", "0", "changes of many rows without a limit would be refused"),
    Variable("max_join_size", str(_NO_LIMIT), "joins of long tables would be refused"),
    Variable("sql_big_selects", "1", "joins of long tables would be refused; max_join_size changes it"),
    Variable("max_session_mem_used", "9223372036854775807", "a large transaction would be refused", _MARIADB),
    Variable("parser_max_mem_size", str(_NO_LIMIT), "a statement of megabytes would be refused", _MYSQL),
    Variable("tmp_disk_table_size", str(_NO_LIMIT), "a long result would look like a full disk", _MARIADB),
    Variable("optimizer_switch", "'hypergraph_optimizer=off'", "hints of indexes would count for less", _MYSQL),
    Variable("use_secondary_engine", "'OFF'", "reads would need another engine, or see its older rows", _MYSQL),
    Variable("sql_if_exists", "0", "an ALTER TABLE that has to fail would succeed", _MARIADB),
    # Results
    Variable("sql_select_limit", str(_NO_LIMIT), "a SELECT without a limit would leave out rows, without an error"),
    Variable("sql_auto_is_null", "0", "a comparison with NULL would find the last row that was inserted"),
    Variable("time_zone", "'+00:00'", "with summer time an hour of the year is ambiguous to UNIX_TIMESTAMP"),
    Variable("timestamp", "DEFAULT", "the clock would stand still"),
    Variable("div_precision_increment", "4", "quotients would be rounded"),
    Variable("max_sort_length", "1024", "long values would be sorted by their first bytes"),
    Variable("lc_messages", "'en_US'", "the names of rights and tables are read out of messages"),
    Variable("sql_quote_show_create", "1", "the columns of tables are read out of SHOW CREATE TABLE"),
    Variable("query_cache_type", "0", "results would come from a cache", _MARIADB),
    Variable("wsrep_dirty_reads", "0", "a node outside its Galera cluster would answer with old rows", _MARIADB),
    # Plans: without them a statement with 1,000 values reads and locks the whole table.
    Variable("in_predicate_conversion_threshold", "0", "a list of 1,000 values is made a table", _MARIADB),
    Variable("optimizer_max_sel_arg_weight", "32000", "a long IN list would not be looked up by key", _MARIADB),
    Variable("optimizer_max_sel_args", "16000", "a long IN list would not be looked up by key", _MARIADB),
    Variable("range_optimizer_max_mem_size", "0", "a long IN list would not be looked up by key", _MYSQL),
    Variable("old", "0", "index hints would have another meaning", _MARIADB),
    Variable("old_mode", "''", "index hints would have another meaning", _MARIADB),
    Variable("sql_buffer_result", "0", "each result would be copied to a temporary table"),
)  # fmt: skip
SESSION_FIRST = (
    # init_connect may have begun one, and completion_type may chain the next.
    "ROLLBACK AND NO CHAIN NO RELEASE",
    # Reads see each commit, and deletes lock no gaps.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci",
)
"""Settings with statements of their own. The variables of the second have other names in other versions."""

SQLITE_PRAGMAS = (
    f"PRAGMA busy_timeout = {LOCK_WAIT_S * 1000}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # A library can be built with other defaults than SQLite's own.
    "PRAGMA locking_mode = NORMAL",  # other processes read, and take over
    "PRAGMA query_only = OFF",
    "PRAGMA read_uncommitted = OFF",
    "PRAGMA wal_autocheckpoint = 1000",  # with 0 the log would grow without end
    "PRAGMA mmap_size = 0",  # an error of the disk would end the process
    "PRAGMA reverse_unordered_selects = OFF",
    "PRAGMA legacy_alter_table = OFF",
)
SQLITE_LOOK_ONLY_PRAGMAS = (SQLITE_PRAGMAS[0], "PRAGMA query_only = ON")
"""For a connection to a file that stays as it is."""


def session_set_up(unknown: Collection[str] = ()) -> str:
    """Return the statements for a server of any product, as one packet. `unknown`: variables to leave out."""
    assigned = [_for_product(one) for one in SESSION_VARIABLES if one.name not in unknown]
    return ";".join([*SESSION_FIRST, f"SET {', '.join(assigned)}".replace(", /*", " /*")])


def _for_product(one: Variable) -> str:
    if not one.product:
        return one.assignment
    # MariaDB runs no comment with a version of MySQL from 5.7 on.
    return f"/*{'M!' if one.product == _MARIADB else '!80400'} , {one.assignment} */"


def has_value(one: Variable, shown: str) -> bool:
    """Return True if `shown`, from SHOW VARIABLES, is the variable's value. Of a list of flags, foqs sets some."""
    if "=" in one.value:
        return one.value.strip("'") in shown.split(",")
    return _plain(shown) == _plain(one.value.strip("'"))


def _plain(value: str) -> str | float:
    value = {"ON": "1", "OFF": "0"}.get(value.upper(), value.upper())
    try:
        return float(value)
    except ValueError:
        return value


def lacking(variables: Mapping[str, str]) -> list[str]:
    """Return the names of `VARIABLES` that a server with these variables does not have, or has in its own way."""
    product = _MARIADB if "mariadb" in variables.get("version", "").lower() else _MYSQL
    return [one.name for one in SESSION_VARIABLES if one.name not in variables or one.product not in ("", product)]
