"""Replicas of MariaDB and MySQL servers, for fail-overs. A replica confirms each commit, or falls behind."""

from dataclasses import dataclass, replace
from pathlib import Path

from foqs_lab.servers.databases import DatabaseServer, ServerSettings
from foqs_lab.servers.process import ServerUnavailable, wait_until
from foqs_lab.servers.programs import Kind, Program

_CAUGHT_UP_S = 60
_NEVER_MS = 3_600_000
"""A primary waits this long for its replica to confirm a commit: longer than any test."""
_PLUGINS = ("lib/mysql/plugin", "lib64/mysql/plugin", "lib/plugin")


@dataclass(frozen=True)
class _Words:
    """The names of one kind's statements, variables and states."""

    options: tuple[str, ...]
    source: str
    replica: str
    confirms: str
    position: str
    wait: str
    change: str


_WORDS: dict[Kind, _Words] = {
    "mariadb": _Words(
        options=("--binlog-format=ROW", "--log-slave-updates"),
        source="rpl_semi_sync_master", replica="SLAVE", confirms="rpl_semi_sync_slave_enabled",
        position="@@gtid_binlog_pos", wait="MASTER_GTID_WAIT(%s, %s)",
        change="CHANGE MASTER TO master_host='127.0.0.1', master_port={port}, master_user='root', "
        "master_use_gtid=slave_pos, master_connect_retry=1",
    ),
    "mysql": _Words(
        options=(
            "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--plugin-load-add=semisync_source.so",
            "--plugin-load-add=semisync_replica.so", "--skip-replica-start",
        ),
        source="rpl_semi_sync_source", replica="REPLICA", confirms="rpl_semi_sync_replica_enabled",
        position="@@gtid_executed", wait="WAIT_FOR_EXECUTED_GTID_SET(%s, %s)",
        change="CHANGE REPLICATION SOURCE TO source_host='127.0.0.1', source_port={port}, source_user='root', "
        "source_auto_position=1, source_ssl=0, get_source_public_key=1, source_connect_retry=1",
    ),
}  # fmt: skip


def replicated(program: Program, settings: ServerSettings, number: int) -> ServerSettings:
    """Return the settings of a server that may get a replica, or be one. `number`: its own among these servers.

    Raises ServerUnavailable if the program has no plugins for replicas that confirm commits.
    """
    logged = ["--log-bin=changes", f"--server-id={number}", "--relay-log=relayed", "--sync-binlog=1"]
    if program.kind == "mysql":
        folders = [program.prefix / place for place in _PLUGINS]
        found = next((place for place in folders if (place / "semisync_source.so").exists()), None)
        if found is None:
            raise ServerUnavailable(f"no semisync_source.so in the plugins of {program}")
        logged.append(f"--plugin-dir={found}")
    return replace(settings, options=(*settings.options, *logged, *_WORDS[program.kind].options))


class Replica(DatabaseServer):
    """A copy of a server, which gets its commits until it is promoted. `number`: as for `replicated`."""

    def __init__(self, primary: DatabaseServer, number: int) -> None:
        """Start nothing yet."""
        super().__init__(primary.kind, _numbered(primary.settings, number))
        self._primary = primary
        self._words = _WORDS[primary.kind]

    def prepare(self, directory: Path) -> None:
        """Copy the primary's data. Older changes than the copy are not needed any longer."""
        self._primary.query("FLUSH BINARY LOGS")
        self._primary.query("PURGE BINARY LOGS BEFORE NOW()")
        self._primary.copy_data(directory / "data")
        (directory / "data" / "auto.cnf").unlink(missing_ok=True)  # MySQL's identity of a server

    def follow(self) -> None:
        """Get the commits of the primary, each before the primary's client has its answer. Raises TimeoutError."""
        words = self._words
        if self.kind == "mariadb":
            self.query("SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos")
        self.query(words.change.format(port=self._primary.port))
        self.query(f"SET GLOBAL {words.confirms} = 1")
        self.query(f"START {words.replica}")
        self._primary.query(f"SET GLOBAL {words.source}_timeout = {_NEVER_MS}")
        if not wait_until(lambda: self._status("_clients") == "1", timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError(f"the replica did not connect: {self.named(f'SHOW {words.replica} STATUS')}")
        self._primary.query(f"SET GLOBAL {words.source}_enabled = 1")
        if not wait_until(lambda: self._status("_status") == "ON", timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError("the primary does not wait for its replica")
        ((position,),) = self._primary.query(f"SELECT {words.position}")
        ((late,),) = self.query(f"SELECT {words.wait}", position, _CAUGHT_UP_S)
        if late:
            raise TimeoutError(f"the replica did not catch up within {_CAUGHT_UP_S} s")

    def fall_behind(self) -> None:
        """Get no commit from now on. The primary does not wait for this replica again."""
        self._primary.query(f"SET GLOBAL {self._words.source}_enabled = 0")
        self.query(f"STOP {self._words.replica} IO_THREAD")

    def promote(self) -> None:
        """Apply all that arrived, and be a primary. The former one must be gone. Raises TimeoutError."""
        words = self._words
        if not wait_until(self._has_applied_all, timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError(f"the replica did not apply all: {self.named(f'SHOW {words.replica} STATUS')}")
        self.query(f"STOP {words.replica}")
        self.query(f"RESET {words.replica} ALL")
        self.query(f"SET GLOBAL {words.confirms} = 0")

    def _has_applied_all(self) -> bool:
        (status,) = self.named(f"SHOW {self._words.replica} STATUS")
        state = status.get("Slave_SQL_Running_State") or status.get("Replica_SQL_Running_State") or ""
        return "has read all relay log" in str(state)

    def _status(self, name: str) -> str:
        rows = self._primary.query(f"SHOW GLOBAL STATUS LIKE '{self._words.source}{name}'")
        return str(rows[0][1]) if rows else ""


def _numbered(settings: ServerSettings, number: int) -> ServerSettings:
    options = (one for one in settings.options if not one.startswith("--server-id="))
    return replace(settings, options=(*options, f"--server-id={number}"))
