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
    plugins: tuple[str, ...]
    source: str
    replica: str
    confirms: str
    connected: str
    position: str
    wait: str
    received: str
    has: str
    change: str


_WORDS: dict[Kind, _Words] = {
    "mariadb": _Words(
        options=("--binlog-format=ROW", "--log-slave-updates"), plugins=(), connected="Slave_IO_Running",
        source="rpl_semi_sync_master", replica="SLAVE", confirms="rpl_semi_sync_slave_enabled",
        position="@@gtid_binlog_pos", wait="MASTER_GTID_WAIT(%s, %s)",
        received="Gtid_IO_Pos", has="%s IN ('', @@global.gtid_slave_pos)",
        change="CHANGE MASTER TO master_host='127.0.0.1', master_port={port}, master_user='root', "
        "master_use_gtid=slave_pos, master_connect_retry=1",
    ),
    "mysql": _Words(
        options=("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--skip-replica-start"),
        plugins=("--plugin-load-add=semisync_source.so", "--plugin-load-add=semisync_replica.so"),
        connected="Replica_IO_Running", received="Retrieved_Gtid_Set", has="GTID_SUBSET(%s, @@global.gtid_executed)",
        source="rpl_semi_sync_source", replica="REPLICA", confirms="rpl_semi_sync_replica_enabled",
        position="@@gtid_executed", wait="WAIT_FOR_EXECUTED_GTID_SET(%s, %s)",
        change="CHANGE REPLICATION SOURCE TO source_host='127.0.0.1', source_port={port}, source_user='root', "
        "source_auto_position=1, source_ssl=0, get_source_public_key=1, source_connect_retry=1",
    ),
}  # fmt: skip


def replicated(program: Program, settings: ServerSettings, number: int, *, semi_sync: bool = True) -> ServerSettings:
    """Return the settings of a server that may get a replica, or be one. `number`: its own among these servers.

    With `semi_sync`, replicas may confirm commits. Raises ServerUnavailable if the program has no plugins for that.
    """
    logged = ["--log-bin=changes", f"--server-id={number}", "--relay-log=relayed", "--sync-binlog=1"]
    if program.kind == "mysql":
        folders = [program.prefix / place for place in _PLUGINS]
        found = next((place for place in folders if (place / "semisync_source.so").exists()), None)
        if found is None:
            raise ServerUnavailable(f"no semisync_source.so in the plugins of {program}")
        logged.append(f"--plugin-dir={found}")
    words = _WORDS[program.kind]
    plugins = words.plugins if semi_sync else ()
    return replace(settings, options=(*settings.options, *logged, *words.options, *plugins))


class Replica(DatabaseServer):
    """A read-only copy of a server, which gets its commits until it is promoted. `number`: as for `replicated`.

    With `semi_sync`, it confirms each commit before the primary's client has its answer.
    """

    def __init__(self, primary: DatabaseServer, number: int, *, semi_sync: bool = True) -> None:
        """Start nothing yet."""
        super().__init__(primary.kind, _numbered(primary.settings, number))
        self._primary = primary
        self._semi_sync = semi_sync
        self._words = _WORDS[primary.kind]

    def prepare(self, directory: Path) -> None:
        """Copy the primary's data. Older changes than the copy are not needed any longer."""
        self._primary.query("FLUSH BINARY LOGS")
        self._primary.query("PURGE BINARY LOGS BEFORE NOW()")
        self._primary.copy_data(directory / "data")
        (directory / "data" / "auto.cnf").unlink(missing_ok=True)  # MySQL's identity of a server

    def follow(self) -> None:
        """Get the commits of the primary, and wait until all are here. Raises TimeoutError."""
        words = self._words
        self.query("SET GLOBAL read_only = 1")
        if self.kind == "mariadb":
            self.query("SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos")
        self.query(words.change.format(port=self._primary.port))
        if self._semi_sync:
            self.query(f"SET GLOBAL {words.confirms} = 1")
        self.query(f"START {words.replica}")
        if not wait_until(lambda: self._state()[words.connected] == "Yes", timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError(f"the replica did not connect: {self._state()}")
        if self._semi_sync:
            self._confirm()
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until all commits of the primary are here. Raises TimeoutError."""
        ((position,),) = self._primary.query(f"SELECT {self._words.position}")
        ((late,),) = self.query(f"SELECT {self._words.wait}", position, _CAUGHT_UP_S)
        if late:
            raise TimeoutError(f"the replica did not catch up within {_CAUGHT_UP_S} s: {self._state()}")

    def fall_behind(self) -> None:
        """Get no commit from now on. The primary does not wait for this replica again."""
        if self._semi_sync:
            self._primary.query(f"SET GLOBAL {self._words.source}_enabled = 0")
        self.query(f"STOP {self._words.replica} IO_THREAD")

    def wait_applied(self) -> None:
        """Wait until all that arrived is applied. Raises TimeoutError."""
        if not wait_until(self._has_applied_all, timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError(f"the replica did not apply all: {self._state()}")

    def promote(self) -> None:
        """Apply all that arrived, and be a primary. The former one must be gone. Raises TimeoutError."""
        self.wait_applied()
        self.query(f"STOP {self._words.replica}")
        self.query(f"RESET {self._words.replica} ALL")
        if self._semi_sync:
            self.query(f"SET GLOBAL {self._words.confirms} = 0")
        self.query("SET GLOBAL read_only = 0")

    def _confirm(self) -> None:
        """Let the primary wait for this replica."""
        source = self._words.source
        self._primary.query(f"SET GLOBAL {source}_timeout = {_NEVER_MS}")
        if not wait_until(lambda: self._status("_clients") == "1", timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError(f"the replica does not confirm commits: {self._state()}")
        self._primary.query(f"SET GLOBAL {source}_enabled = 1")
        if not wait_until(lambda: self._status("_status") == "ON", timeout_ms=_CAUGHT_UP_S * 1_000):
            raise TimeoutError("the primary does not wait for its replica")

    def _has_applied_all(self) -> bool:
        ((has,),) = self.query(f"SELECT {self._words.has}", self._state()[self._words.received])
        return bool(has)

    def _state(self) -> dict[str, str]:
        """Return what the replica says of itself."""
        (state,) = self.named(f"SHOW {self._words.replica} STATUS")
        return {name: str(value) for name, value in state.items()}

    def _status(self, name: str) -> str:
        rows = self._primary.query(f"SHOW GLOBAL STATUS LIKE '{self._words.source}{name}'")
        return str(rows[0][1]) if rows else ""


def _numbered(settings: ServerSettings, number: int) -> ServerSettings:
    options = (one for one in settings.options if not one.startswith("--server-id="))
    return replace(settings, options=(*options, f"--server-id={number}"))
