"""The settings of each connection to a database: no setting of a server changes the meaning or the end of a statement.

A session begins with the server's global values, and with what its init_connect does. Every variable that could make a
statement fail, wait, end early, return other rows or be carried out in another way is listed here, with the reason.
tests/store/test_session.py lists the variables that cannot, and fails for a variable in neither list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

LOCK_WAIT_S = 5
_IDLE_S = 31_536_000
_TRANSFER_S = 120
_NO_LIMIT = 18_446_744_073_709_551_615


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
VARIABLES = (
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
FIRST = (
    # init_connect may have begun one, and completion_type may chain the next.
    "ROLLBACK AND NO CHAIN NO RELEASE",
    # Reads see each commit, and deletes lock no gaps.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci",
)
"""Settings with statements of their own. The variables of the second have other names in other versions."""

SQLITE = (
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
SQLITE_LOOK_ONLY = (SQLITE[0], "PRAGMA query_only = ON")
"""For a connection to a file that stays as it is."""


def set_up(unknown: Collection[str] = ()) -> str:
    """Return the statements for a server of any product, as one packet. `unknown`: variables to leave out."""
    assigned = [_for_product(one) for one in VARIABLES if one.name not in unknown]
    return ";".join([*FIRST, f"SET {', '.join(assigned)}".replace(", /*", " /*")])


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
    return [one.name for one in VARIABLES if one.name not in variables or one.product not in ("", product)]
