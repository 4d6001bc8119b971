"""What a database server says of itself: version, identity, and settings that the promises rest on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
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
    unsafe, most = _unsafe(settings, packet), int(settings["max_connections"])
    return Facts(found, _identity(settings), packet, unsafe, most, _is_read_only(settings))


def is_read_only(connection: Connection) -> bool:
    """Return True if the server takes no writes but those of administrators and of replication."""
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
    10.11.9, 11.4.3 on), else host name, port and folder stand for it: all tell a fail-over to another machine; a
    change without need costs some numbers of a very large range and nothing else."""
    if "server_uuid" in settings:
        return settings["server_uuid"].encode()[:255]
    place = "\0".join(settings.get(name, "") for name in ("hostname", "port", "datadir"))
    substitute = hashlib.sha256(place.encode()).hexdigest()
    return (settings.get("server_uid") or substitute).encode()[:255]


def _unsafe(settings: dict[str, str], packet: int) -> list[Finding]:
    unsafe = []

    def add(found: str, mend: str, *, wrong: bool = True) -> None:
        unsafe.append(Finding(found, mend, wrong))

    def is_on(name: str) -> bool:
        return settings.get(name, "").upper() in ("ON", "1")

    flush = settings.get("innodb_flush_log_at_trx_commit")
    if flush != "1":
        why = f"innodb_flush_log_at_trx_commit is {flush}, not 1: a crash may lose committed data"
        add(why, "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration")
    if settings.get("innodb_doublewrite", "ON").upper() in ("OFF", "0", "DETECT_ONLY"):
        add("innodb_doublewrite is off: a power failure may damage pages", "innodb_doublewrite = ON, and a restart")
    method = settings.get("innodb_flush_method", "").lower()
    if method in ("nosync", "littlesync"):
        why = f"innodb_flush_method is {method}: a power failure may lose data"
        add(why, "innodb_flush_method = O_DIRECT, and a restart")
    if settings.get("innodb_redo_log_enabled", "ON").upper() == "OFF":
        add("the redo log is disabled: a crash loses committed data", "ALTER INSTANCE ENABLE INNODB REDO_LOG")
    if settings.get("innodb_force_recovery", "0") != "0":
        why = f"innodb_force_recovery is {settings['innodb_force_recovery']}: the server repairs, and refuses writes"
        add(why, "repair the server, then start it without innodb_force_recovery")
    if is_on("log_bin") and settings.get("sync_binlog") != "1":
        sync = settings.get("sync_binlog")
        why = f"sync_binlog is {sync}, not 1: a crash may lose committed data, on this server or on its replicas"
        add(why, "SET GLOBAL sync_binlog = 1, and in the server's configuration")
    if is_on("log_bin") and settings.get("binlog_format", "ROW").upper() == "STATEMENT":
        why = "binlog_format is STATEMENT: the server refuses every write at foqs's isolation level"
        add(why, "SET GLOBAL binlog_format = ROW, and in the server's configuration")
    if _is_read_only(settings):
        why = "the server is read-only: is it a replica, or no longer the primary?"
        add(why, "give the shard the primary's url, let its name lead to the primary, or SET GLOBAL read_only = 0")
    if packet < _SMALL_PACKET_BYTES:
        why = f"max_allowed_packet is {packet}: an item may have {packet // 2} bytes at most"
        add(why, "SET GLOBAL max_allowed_packet = 67108864, and in the server's configuration", wrong=False)
    parser = int(settings.get("parser_max_mem_size", _SMALL_PARSER_BYTES))  # of the session, which cannot raise it
    if parser < _SMALL_PARSER_BYTES:
        why = f"parser_max_mem_size is {parser}: large transactions are cut into parts, and large items refused"
        add(why, "SET GLOBAL parser_max_mem_size = DEFAULT, and in the server's configuration", wrong=False)
    return unsafe
