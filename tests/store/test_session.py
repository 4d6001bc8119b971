"""What a connection sets: every variable that matters, on a server whose own settings are hostile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from sqlite3 import dbapi2
from typing import Any

import pytest
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import DBAPIError

from foqs.rows import Batch
from foqs.store import server as session
from foqs.store.checkup import check_up
from foqs.store.link import Database, Link
from foqs.store.maintenance import count_items, create_schema
from foqs.store.protocol import RowRejected, ShardRefused, StoreDown
from foqs.store.server import LOCK_WAIT_S, SESSION_VARIABLES, Variable, has_value, session_set_up
from foqs.store.sql import SqlStore
from foqs_lab.servers import Kind
from tests.conftest import NewServer, Server, start_or_skip
from tests.store.asking import findings_of
from tests.store.contract import LANE, StoreContract, body, insert
from tests.store.shards import NUMBER, ServerShard, new_item

KINDS = [pytest.param("mariadb", marks=pytest.mark.mariadb), pytest.param("mysql", marks=pytest.mark.mysql)]
TESTED = {"mariadb": "10.11", "mysql": "9.7"}
"""The versions whose variables are listed."""

BOTH = {
    "autocommit": "0",
    "auto_increment_increment": "7",
    "big_tables": "1",
    "character_set_server": "'latin1'",
    "completion_type": "'RELEASE'",
    "default_storage_engine": "'MyISAM'",
    "div_precision_increment": "0",
    "eq_range_index_dive_limit": "1",
    "foreign_key_checks": "0",
    "group_concat_max_len": "4",
    "init_connect": "'SET timestamp = 1; SET NAMES latin1; BEGIN'",
    "innodb_lock_wait_timeout": "1",
    "innodb_strict_mode": "0",
    "lc_messages": "'de_DE'",
    "lock_wait_timeout": "1",
    "max_heap_table_size": "16384",
    "max_join_size": "1",
    "net_read_timeout": "1",
    "net_write_timeout": "1",
    "optimizer_search_depth": "1",
    "sql_auto_is_null": "1",
    "sql_big_selects": "0",
    "sql_buffer_result": "1",
    "sql_mode": "'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,NO_UNSIGNED_SUBTRACTION'",
    "sql_quote_show_create": "0",
    "sql_safe_updates": "1",
    "sql_select_limit": "1",
    "time_zone": "'+05:45'",
    "unique_checks": "0",
    "wait_timeout": "1",
}
HOSTILE: dict[str, dict[str, str]] = {
    "mariadb": BOTH
    | {
        "idle_transaction_timeout": "1",
        "idle_readonly_transaction_timeout": "1",
        "idle_write_transaction_timeout": "1",
        "max_session_mem_used": "1048576",
        "max_sort_length": "64",
        "max_statement_time": "0.05",
        "old_mode": "'IGNORE_INDEX_ONLY_FOR_JOIN'",
        "optimizer_max_sel_arg_weight": "1",
        "optimizer_max_sel_args": "1",
        "optimizer_switch": "'materialization=off,index_merge=off'",
        "sql_if_exists": "1",
        "tmp_disk_table_size": "1024",
        "tmp_memory_table_size": "1024",
        "tx_isolation": "'SERIALIZABLE'",
        "tx_read_only": "1",
    },
    "mysql": BOTH
    | {
        "explain_format": "'JSON'",
        "max_execution_time": "1",
        "max_sort_length": "4",
        "old_alter_table": "1",
        "optimizer_switch": "'materialization=off,hypergraph_optimizer=on,use_invisible_indexes=on'",
        "range_optimizer_max_mem_size": "1",
        "set_operations_buffer_size": "16384",
        "sql_generate_invisible_primary_key": "1",
        "sql_require_primary_key": "1",
        "tmp_table_size": "1024",
        "transaction_isolation": "'SERIALIZABLE'",
        "transaction_read_only": "1",
    },
}


class Hostile:
    """A server whose globals are hostile, and an account that init_connect and every limit apply to."""

    def __init__(self, kind: Kind, server: Server) -> None:
        self.kind, self.server = kind, server
        self._databases = 0
        server.query("CREATE USER worker@'127.0.0.1' IDENTIFIED BY ''")
        server.query("GRANT ALL ON `shard%%`.* TO worker@'127.0.0.1'".replace("%%", "%"))
        for name, value in HOSTILE[kind].items():
            server.query(f"SET GLOBAL {name} = {value}")

    def url(self) -> str:
        """Return the URL of a database that `create_schema` makes."""
        self._databases += 1
        url = make_url(self.server.url(f"shard{self._databases}"))
        return url.set(username="worker").render_as_string(hide_password=False)


@pytest.fixture(params=KINDS, scope="module")
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    kind: Kind = request.param
    with start_or_skip(kind) as server:
        yield Hostile(kind, server)


def variables(connection: Connection) -> dict[str, str]:
    return {str(n).lower(): str(v) for n, v in connection.exec_driver_sql("SHOW SESSION VARIABLES").all()}


def wrong(found: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the list that have another value."""
    product = "MariaDB" if "max_statement_time" in found else "MySQL"
    shown = [
        one
        for one in SESSION_VARIABLES
        if one.name in found and one.value != "DEFAULT" and one.product in ("", product)
    ]
    return {one.name: found[one.name] for one in shown if not has_value(one, found[one.name])}


# ------------------------------------------------------------------------------------- the contract


@pytest.mark.server
@pytest.mark.slow
class TestOnAHostileServer(StoreContract):
    @pytest.fixture
    def shard(self, hostile: Hostile) -> Iterator[ServerShard]:
        made = ServerShard(hostile.url())
        yield made
        made.close()


# ------------------------------------------------------------------------------------- every connection


@pytest.mark.server
@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
def test_each_connection_has_the_values_of_the_list(hostile: Hostile, driver: str) -> None:
    """Also a second connection in place of one that ended, and with either driver."""
    url = hostile.url().replace("pymysql", driver)
    create_schema(url, NUMBER)
    with Database(url).connect() as connection:
        for _ in range(2):
            found = variables(connection)
            assert wrong(found) == {}
            assert found.get("transaction_isolation", found.get("tx_isolation")) == "READ-COMMITTED"
            assert found.get("transaction_read_only", found.get("tx_read_only")) == "OFF"
            for name in ("character_set_client", "character_set_connection", "character_set_results"):
                assert found[name] == "utf8mb4"
            ((early,),) = connection.exec_driver_sql("SELECT UNIX_TIMESTAMP() < 1000000000").all()
            assert early == 0, "init_connect has stopped the clock"
            connection.invalidate()
            connection.rollback()


@pytest.mark.server
def test_checks_work_on_a_hostile_server(hostile: Hostile) -> None:
    url = hostile.url()
    create_schema(url, NUMBER)
    create_schema(url, NUMBER)
    assert findings_of(url, NUMBER) == []
    checkup = check_up(url, NUMBER, timeout_s=10, now_ms=lambda: 0)
    assert checkup.findings == []
    assert count_items(url, NUMBER) == (0, 0, 0)


def test_only_one_module_connects_to_databases() -> None:
    """A second one would not set the variables. The relay's database is the application's, and the SQLite file of
    foqs.testing is a copy, as a dump is. The laboratory measures and compares databases by themselves."""
    folder = Path(session.__file__).parents[1]
    connects = re.compile(r"\b(create_engine|pymysql\.connect|MySQLdb\.connect|sqlite3\.connect)\(")
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if connects.search(path.read_text())]
    known = {"outbox/relay.py", "store/link.py", "testing/host.py", "store/dump.py", "store/restore.py"}
    assert {path for path in found if not path.startswith("lab/")} == known


# ------------------------------------------------------------------------------------- variables that are left alone


LEFT = {
    "set with statements of their own: SET NAMES, SET TRANSACTION": """
        character_set_client character_set_connection character_set_results collation_connection
        transaction_isolation transaction_read_only tx_isolation tx_read_only""",
    "set where it is used (store/reads.py)": "group_concat_max_len",
    "of other engines than InnoDB, and of LOCK TABLES": """
        aria_repair_threads aria_sort_buffer_size aria_stats_method bulk_insert_buffer_size deadlock_search_depth_long
        deadlock_search_depth_short deadlock_timeout_long deadlock_timeout_short innodb_table_locks keep_files_on_create
        low_priority_updates max_delayed_threads max_insert_delayed_threads myisam_repair_threads
        myisam_sort_buffer_size myisam_stats_method preload_buffer_size restrict_fk_on_non_standard_key
        transaction_allow_batching external_table_secondary_storage_engine external_table_storage_engine
        secondary_engine_cost_threshold enable_secondary_engine_statistics""",
    "of columns and tables that foqs names in full, or does not have": """
        auto_increment_increment auto_increment_offset character_set_database character_set_filesystem
        character_set_server check_constraint_checks collation_database collation_server column_compression_threshold
        column_compression_zlib_level column_compression_zlib_strategy column_compression_zlib_wrap
        default_collation_for_utf8mb4 default_storage_engine default_table_encryption default_tmp_storage_engine
        enable_cascade_triggers explicit_defaults_for_timestamp foreign_key_checks identity innodb_compression_default
        innodb_default_encryption_key_id innodb_ft_enable_stopword innodb_ft_user_stopword_table insert_id
        last_insert_id storage_engine system_versioning_alter_history system_versioning_asof
        system_versioning_insert_history updatable_views_with_limit""",
    "an ALTER TABLE of foqs names its algorithm": """
        alter_algorithm innodb_ddl_buffer_size innodb_ddl_threads old_alter_table""",
    "of functions that foqs does not use": """
        block_encryption_mode cte_max_recursion_depth default_regex_flags default_week_format end_markers_in_json
        generated_random_password_length lc_time_names max_points_in_geometry max_recursive_iterations
        max_sp_recursion_depth old_passwords rand_seed1 rand_seed2 select_into_disk_sync standard_compliant_cte
        windowing_use_high_precision""",
    "of buffers: a smaller one goes to the disk": """
        big_tables join_buffer_size join_buffer_space_limit max_heap_table_size max_length_for_sort_data
        max_rowid_filter_size max_tmp_tables mrr_buffer_size query_alloc_block_size query_prealloc_size
        range_alloc_block_size read_buffer_size read_rnd_buffer_size rowid_merge_buff_size set_operations_buffer_size
        sort_buffer_size tmp_memory_table_size tmp_table_size transaction_alloc_block_size transaction_prealloc_size""",
    "of plans: the statements name their indexes and the order of their joins": """
        analyze_max_length analyze_sample_percentage eq_range_index_dive_limit expensive_subquery_limit histogram_size
        histogram_type information_schema_stats_expiry innodb_parallel_read_threads join_cache_level max_seeks_for_key
        optimizer_adjust_secondary_key_costs optimizer_extra_pruning_depth optimizer_join_limit_pref_ratio
        optimizer_max_subgraph_pairs optimizer_prune_level optimizer_search_depth optimizer_selectivity_sampling_limit
        optimizer_use_condition_selectivity use_stat_tables""",
    "of logs, traces, warnings and progress": """
        explain_format explain_json_format_version log_queries_not_using_indexes log_slow_admin_statements
        log_slow_disabled_statements log_slow_filter log_slow_max_warnings log_slow_min_examined_row_limit
        log_slow_query log_slow_query_time log_slow_rate_limit log_slow_slave_statements log_slow_verbosity
        log_warnings long_query_time max_error_count min_examined_row_limit note_verbosity optimizer_trace
        optimizer_trace_features optimizer_trace_limit optimizer_trace_max_mem_size optimizer_trace_offset
        print_identified_with_as_hex profiling profiling_history_size progress_report_time session_track_gtids
        session_track_schema session_track_state_change session_track_system_variables
        session_track_transaction_info show_create_table_skip_secondary_engine show_create_table_verbosity
        show_gipk_in_create_table_and_information_schema slow_query_log sql_notes sql_warnings
        terminology_use_previous""",
    "wait_timeout is set, which it only begins with": "interactive_timeout",
    "InnoDB rounds it; the tables are strict by their definition": "innodb_strict_mode",
    "a matter of repeatable reads": "innodb_snapshot_isolation",
    "replication and groups: the operator's decisions about durability": """
        binlog_alter_two_phase default_master_connection group_replication_consistency max_relay_log_size
        pseudo_slave_mode rbr_exec_mode require_row_format skip_parallel_replication skip_replication
        sql_slave_skip_counter wsrep_causal_reads wsrep_gtid_seq_no wsrep_osu_method wsrep_retry_autocommit
        wsrep_sync_wait wsrep_trx_fragment_size wsrep_trx_fragment_unit""",
    "of the network and of threads": "net_retry_count tcp_nodelay thread_pool_priority",
    "the results of foqs's statements keep their names and types": "resultset_metadata",
    "how long the query cache compares, which is off": "query_cache_strip_comments query_cache_wlock_invalidate",
}
"""Why a session variable changes neither the meaning nor the end of a statement of foqs."""


@pytest.mark.server
def test_every_variable_of_a_session_was_decided(plain_url: str) -> None:
    """A variable that an account without rights can set is in one of both lists."""
    left = {name for names in LEFT.values() for name in names.split()}
    listed = {one.name for one in SESSION_VARIABLES}
    assert not left & listed
    with Database(plain_url).connect() as connection:
        found = variables(connection)
        kind = "mariadb" if "mariadb" in found["version"].lower() else "mysql"
        if not found["version"].startswith(TESTED[kind]):
            pytest.skip(f"the variables of {found['version']} are not listed")
        settable = set()
        for name in found:
            with suppress(DBAPIError):
                connection.exec_driver_sql(f"SET SESSION `{name}` = @@SESSION.`{name}`")
                settable.add(name)
    assert settable - left - listed == set()


# ------------------------------------------------------------------------------------- variables that cannot be set


@pytest.fixture(params=KINDS)
def plain_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of an account without any right of an administrator."""
    server: Server = request.getfixturevalue(request.param)
    name = server.create_database("session")
    server.query("CREATE USER session@'127.0.0.1' IDENTIFIED BY ''")
    server.query("GRANT ALL ON session.* TO session@'127.0.0.1'")
    yield make_url(server.url(name)).set(username="session").render_as_string(hide_password=False)
    server.drop_database(name)
    server.query("DROP USER session@'127.0.0.1'")


@pytest.mark.server
def test_a_variable_that_a_server_does_not_have_is_left_out(plain_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (
        *SESSION_VARIABLES[:3],
        Variable("foqs_no_such", "1", "a later version removed it"),
        *SESSION_VARIABLES[3:],
    )
    monkeypatch.setattr(session, "SESSION_VARIABLES", later)
    database = Database(plain_url)
    asked: list[str] = []
    for _ in range(2):
        with closing(Link(database)) as link:
            assert wrong(variables(link.connection)) == {}
        asked.append(session_set_up(database._left))
    assert "foqs_no_such" not in asked[0]
    assert "max_statement_time" in asked[0] or "max_execution_time" in asked[0]


@pytest.mark.server
def test_a_variable_that_the_account_may_not_set(plain_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with the value that it should have does not matter. Another one is named, with the remedy."""
    create_schema(plain_url, NUMBER)
    with Database(plain_url).connect() as connection:
        value = variables(connection)["binlog_format"]
    for wanted, refused in ((value, False), ("STATEMENT" if value == "ROW" else "ROW", True)):
        one = Variable("binlog_format", f"'{wanted}'", "writes would be replicated in another way")
        monkeypatch.setattr(session, "SESSION_VARIABLES", (*SESSION_VARIABLES, one))
        store = SqlStore(plain_url, shard=NUMBER)
        if not refused:
            store.open("owner", take_over=False)
            store.close()
            continue
        with pytest.raises(ShardRefused, match=f"binlog_format is '{value}', and foqs may not set it") as error:
            store.open("owner", take_over=False)
        assert f"SET GLOBAL binlog_format = '{wanted}'" in error.value.mend


@pytest.mark.server
@pytest.mark.parametrize("plain_url", [KINDS[0]], indirect=True)
def test_a_name_that_leads_to_a_server_with_other_values(
    plain_url: str, mariadb: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one server does not have, or has right, is looked at again for each connection."""
    (before,) = mariadb.query("SELECT @@GLOBAL.binlog_format")[0]
    one = Variable("binlog_format", f"'{before}'", "writes would be replicated in another way")
    monkeypatch.setattr(session, "SESSION_VARIABLES", (*SESSION_VARIABLES, one))
    database = Database(plain_url)
    Link(database).close()
    assert database._left["binlog_format"] == before
    mariadb.query(f"SET GLOBAL binlog_format = '{'ROW' if before != 'ROW' else 'MIXED'}'")
    try:
        with pytest.raises(ShardRefused, match="binlog_format"):
            Link(database)
    finally:
        mariadb.query(f"SET GLOBAL binlog_format = '{before}'")
    database._left = {"max_join_size": None}  # as if the server of before had no such variable
    with closing(Link(database)) as link:
        assert wrong(variables(link.connection)) == {}
        assert "max_join_size" not in database._left


def test_a_sqlite_library_with_other_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {
        "query_only": 1, "synchronous": 0, "locking_mode": "exclusive", "read_uncommitted": 1, "wal_autocheckpoint": 0,
        "mmap_size": 1 << 20, "reverse_unordered_selects": 1, "legacy_alter_table": 1, "busy_timeout": 0,
    }  # fmt: skip
    good = (0, 2, "normal", 0, 1000, 0, 0, 0, LOCK_WAIT_S * 1000)
    connect = dbapi2.connect

    def connecting(*place: Any, **options: Any) -> Any:
        made = connect(*place, **options)
        for name, value in odd.items():
            made.execute(f"PRAGMA {name} = {value}").fetchall()
        return made

    monkeypatch.setattr(dbapi2, "connect", connecting)
    url = f"sqlite:///{tmp_path}/shard.db"
    create_schema(url, NUMBER)
    store = SqlStore(url, shard=NUMBER)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    insert(store, new_item())
    with closing(Link(Database(url))) as link:
        found = tuple(link.fetch(f"PRAGMA {name}")[0][0] for name in odd)
        assert found == good
        assert link.fetch("PRAGMA journal_mode")[0][0] == "wal"
    store.close()


@pytest.mark.mysql
def test_a_parser_with_little_memory_gets_smaller_statements(new_server: NewServer) -> None:
    """Without rights a session cannot raise it. The host then cuts a batch that is refused."""
    server = new_server("mysql")
    server.query("SET GLOBAL parser_max_mem_size = 10000000")
    server.query("CREATE USER worker@'127.0.0.1' IDENTIFIED BY ''")
    server.query("GRANT ALL ON shard.* TO worker@'127.0.0.1'")
    url = make_url(server.url("shard")).set(username="worker").render_as_string(hide_password=False)
    create_schema(url, NUMBER)
    store = SqlStore(url, shard=NUMBER)
    opened = store.open("owner", take_over=False)
    assert any("parser_max_mem_size is 10000000" in warning for warning in opened.warnings)
    with pytest.raises(RowRejected, match="more memory than the server allows"):
        insert(store, *[new_item(n) for n in range(1, 20_000)], next_number=20_000)
    insert(store, new_item(1), next_number=20_000)
    assert store.bodies([new_item(1).id]) == [body(new_item(1))]
    store.close()


@pytest.mark.mariadb
def test_an_init_connect_that_fails_is_named(new_server: NewServer) -> None:
    server = new_server("mariadb")
    server.query("CREATE DATABASE shard")
    server.query("CREATE USER worker@'127.0.0.1' IDENTIFIED BY ''")
    server.query("GRANT ALL ON shard.* TO worker@'127.0.0.1'")
    server.query("SET GLOBAL init_connect = 'SET no_such_variable = 1'")
    url = make_url(server.url("shard")).set(username="worker").render_as_string(hide_password=False)
    with pytest.raises(StoreDown, match="init_connect"):
        create_schema(url, NUMBER)


# ------------------------------------------------------------------------------------- limits on time


ROWS = {
    "mariadb": "SELECT seq FROM seq_1_to_{rows}",
    "mysql": "WITH RECURSIVE s (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < {rows}) "
    "SELECT seq FROM s",
}


def fill(kind: Kind, url: str, rows: int) -> None:
    """Store `rows` ready items, each in a row of its own."""
    first = new_item(1).id - 1
    numbers = ROWS[kind].format(rows=rows)
    with Database(url).connect() as connection:
        run = connection.exec_driver_sql
        if kind == "mysql":
            run(f"SET SESSION cte_max_recursion_depth = {rows}")
        columns = "id, lane, priority, deliver_after, enqueued_at, expires_at, lease_ms, delivery, payload"
        run(f"INSERT INTO item ({columns}) SELECT {first} + seq, 1, 0, 1, 1, 0, 0, 0, 'x' FROM ({numbers}) AS n")
        run(
            "INSERT INTO ready (lane, priority, deliver_after, id, attempt, lease, bytes) "
            f"SELECT 1, 0, 1, {first} + seq, 0, 0, 1 FROM ({numbers}) AS n"
        )


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_backlog_opens_under_a_limit_on_statements(kind: Kind, new_server: NewServer) -> None:
    server, rows = new_server(kind), 200_000
    url = server.url("shard")
    create_schema(url, NUMBER)
    store = SqlStore(url, shard=NUMBER)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    store.close(clean=True)
    fill(kind, url, rows)
    if kind == "mariadb":
        server.query("SET GLOBAL max_statement_time = 0.001")
    else:
        server.query("SET GLOBAL max_execution_time = 1")
    opened = store.open("owner", take_over=False)
    assert sum(backlog.items for backlog in opened.backlog) == rows
    store.close(clean=True)
