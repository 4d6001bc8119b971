"""The commands that make a data directory and serve it: settings that lose nothing that was committed."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.programs import Program

_MIB = 1 << 20
_INITIALISE_TIMEOUT_S = 120
# Without name resolution 127.0.0.1 is not the `localhost` that MySQL's first root may come from.
_MYSQL_ACCOUNTS = """\
CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What may differ between a test's server and a benchmark's; each commit is flushed in all of them.

    Attributes:
        buffer_pool_bytes: InnoDB's cache.
        redo_log_bytes: InnoDB's redo log; benchmarks want 1 GiB, so that they do not measure checkpoints.
        max_connections: client connections.
        start_timeout_ms: how long a start, crash recovery included, may take.
        options: further command-line options of the server, such as ``--max-allowed-packet=64M``.
    """

    buffer_pool_bytes: int = 512 * _MIB
    redo_log_bytes: int = 128 * _MIB
    max_connections: int = 500
    start_timeout_ms: int = 60_000
    options: tuple[str, ...] = ()


DEFAULT_SETTINGS = ServerSettings()


def initialise(program: Program, folder: Path) -> None:
    """Makes `folder`/data, an empty data directory whose root needs no password from 127.0.0.1.

    Raises:
        ServerUnavailable: the command cannot be run, fails, or takes more than two minutes.
    """
    if program.kind == "mariadb":
        argv = _mariadb_initialising_argv(program, folder)
    else:
        accounts = folder / "accounts.sql"
        accounts.write_text(_MYSQL_ACCOUNTS)
        argv = [
            *program.argv,
            *_common_options(program, folder),
            *_mysql_options(program),
            "--initialize-insecure",
            f"--init-file={accounts}",
            "--skip-log-bin",
            f"--innodb-redo-log-capacity={16 * _MIB}",
        ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_INITIALISE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"{program.kind} cannot make a data directory: {error}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ServerUnavailable(f"{program.kind} made no data directory (exit status {done.returncode})", log_tail=tail)


def serving_argv(program: Program, folder: Path, port: int, settings: ServerSettings) -> list[str]:
    """The command that serves `folder`/data on 127.0.0.1:`port`."""
    if program.kind == "mariadb":
        own = [f"--innodb-log-file-size={settings.redo_log_bytes}"]
    else:
        own = [*_mysql_options(program), f"--innodb-redo-log-capacity={settings.redo_log_bytes}"]
    return [
        *program.argv,
        *_common_options(program, folder),
        f"--port={port}",
        "--bind-address=127.0.0.1",
        # Relative to the data directory: an absolute path may be longer than a socket's may be.
        "--socket=socket",
        f"--pid-file={folder}/pid",
        # Another process that looks for a free port holds each one that it tries for an instant.
        "--port-open-timeout=3",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--performance-schema=OFF",
        # Drivers that prefer TLS would be measured with it; an empty list of versions turns it off.
        "--tls-version=" if program.kind == "mysql" else "--skip-ssl",
        "--innodb-flush-log-at-trx-commit=1",
        f"--innodb-buffer-pool-size={settings.buffer_pool_bytes}",
        f"--max-connections={settings.max_connections}",
        *own,
        *settings.options,
    ]


def _mariadb_initialising_argv(program: Program, folder: Path) -> list[str]:
    places = [program.prefix / "bin", program.prefix / "scripts"]
    installer = next((path for place in places if (path := place / "mariadb-install-db").exists()), None)
    if installer is None:
        raise ServerUnavailable(f"no mariadb-install-db next to {program.argv[-1]}")
    return [
        str(installer),
        *_common_options(program, folder),
        "--auth-root-authentication-method=normal",
        "--skip-name-resolve",
        "--skip-test-db",
        f"--innodb-log-file-size={16 * _MIB}",
    ]


def _common_options(program: Program, folder: Path) -> list[str]:
    # Both servers refuse to run as root without this option.
    user = ["--user=root"] if os.geteuid() == 0 else []
    return [
        "--no-defaults",
        *user,
        f"--basedir={program.prefix}",
        f"--datadir={folder}/data",
        f"--tmpdir={folder}",
    ]


def _mysql_options(program: Program) -> list[str]:
    # The X protocol wants a port of its own, and the default folder for files belongs to the system's server.
    return [
        f"--lc-messages-dir={program.prefix}/share/mysql",
        "--secure-file-priv=NULL",
        "--mysqlx=OFF",
    ]
