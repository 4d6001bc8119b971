"""A server and its replica: binary log with GTIDs, with or without semi-synchronous commits, and a fail-over."""

from __future__ import annotations

from pathlib import Path

from foqs_lab.servers.databases import DatabaseServer, ServerSettings
from foqs_lab.servers.process import ServerUnavailable, wait_until
from foqs_lab.servers.programs import Kind

_LONG_MS = 4_294_967_295
_CATCH_UP_S = 50
_BINARY_LOG = ("--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1", "--relay-log=relay")
_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "mariadb": ("--log-slave-updates",),
    "mysql": ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--skip-replica-start"),
}
_SEMI_SYNC: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mariadb": (
        ("--rpl-semi-sync-master-enabled", "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
         f"--rpl-semi-sync-master-timeout={_LONG_MS}"),
        ("--rpl-semi-sync-slave-enabled",),
    ),
    "mysql": (
        ("--plugin-load-add=semisync_source.so", "--rpl-semi-sync-source-enabled",
         f"--rpl-semi-sync-source-timeout={_LONG_MS}"),
        ("--plugin-load-add=semisync_replica.so", "--rpl-semi-sync-replica-enabled"),
    ),
}  # fmt: skip


class ReplicatedServer:
    """`primary` takes writes, and `replica` follows it, read-only. With `semi_sync`, a commit is answered when the
    replica has it.

    A context manager. Raises ServerUnavailable if no program is installed, or the replica does not follow.
    """

    def __init__(self, kind: Kind, *, semi_sync: bool, parent: Path | None = None) -> None:
        self.kind = kind
        on_primary, on_replica = _SEMI_SYNC[kind] if semi_sync else ((), ())
        common = (*_BINARY_LOG, *_OF_KIND[kind])
        first = ServerSettings(options=(*common, "--server-id=1", *on_primary))
        second = ServerSettings(options=(*common, "--server-id=2", "--read-only", *on_replica))
        self.primary = DatabaseServer(kind, first, parent=parent)
        self.replica = DatabaseServer(kind, second, parent=parent)

    def __enter__(self) -> ReplicatedServer:
        try:
            self.replica.start()
            self.primary.start()
            self._follow()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.primary.close()
        self.replica.close()

    def stop_receiving(self) -> None:
        """Let the replica miss all that follows. It applies the events that it has received."""
        self.replica.query("STOP SLAVE IO_THREAD" if self.kind == "mariadb" else "STOP REPLICA IO_THREAD")

    def catch_up(self) -> None:
        """Wait until the replica has all that the primary has."""
        position = self._position(self.primary)
        if self.kind == "mariadb":
            late = self.replica.query("SELECT MASTER_GTID_WAIT(%s, %s)", position, _CATCH_UP_S)[0][0]
        else:
            late = self.replica.query("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", position, _CATCH_UP_S)[0][0]
        if late:
            raise ServerUnavailable(f"the replica does not follow: {self._state()}")

    def wait_applied(self) -> None:
        """Wait until the replica has applied all events that it has received."""
        if not wait_until(self._applied, timeout_ms=_CATCH_UP_S * 1000):
            raise ServerUnavailable(f"the replica does not apply the events that it received: {self._state()}")

    def promote(self) -> None:
        """Make the replica the primary. The old one is gone."""
        self.wait_applied()
        ends = ("STOP SLAVE", "RESET SLAVE ALL") if self.kind == "mariadb" else ("STOP REPLICA", "RESET REPLICA ALL")
        for statement in (*ends, "SET GLOBAL read_only = 0"):
            self.replica.query(statement)

    def _follow(self) -> None:
        host = "HOST = '127.0.0.1'"
        for server in (self.primary, self.replica):  # what the installation wrote is on both
            server.query("RESET MASTER" if self.kind == "mariadb" else "RESET BINARY LOGS AND GTIDS")
        if self.kind == "mariadb":
            self.replica.query(
                f"CHANGE MASTER TO MASTER_{host}, MASTER_PORT = {self.primary.port}, MASTER_USER = 'root', "
                "MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
            )
            self.replica.query("START SLAVE")
        else:
            self.replica.query(
                f"CHANGE REPLICATION SOURCE TO SOURCE_{host}, SOURCE_PORT = {self.primary.port}, SOURCE_USER = 'root', "
                "SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 0, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1"
            )
            self.replica.query("START REPLICA")
        self.primary.query("CREATE DATABASE replicated")  # the first event: the replica answers it
        self.catch_up()

    def _position(self, server: DatabaseServer) -> str:
        name = "gtid_binlog_pos" if self.kind == "mariadb" else "gtid_executed"
        return str(server.query(f"SELECT @@global.{name}")[0][0])

    def _applied(self) -> bool:
        state = self._state()
        if self.kind == "mariadb":
            received = state["Gtid_IO_Pos"]
            return not received or received == str(self.replica.query("SELECT @@global.gtid_slave_pos")[0][0])
        ours = self.replica.query("SELECT GTID_SUBSET(%s, @@global.gtid_executed)", state["Retrieved_Gtid_Set"])
        return bool(ours[0][0])

    def _state(self) -> dict[str, str]:
        rows = self.replica.named("SHOW SLAVE STATUS" if self.kind == "mariadb" else "SHOW REPLICA STATUS")
        return {name: str(value) for name, value in rows[0].items()} if rows else {}
