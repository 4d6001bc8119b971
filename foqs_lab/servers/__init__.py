"""Private servers for tests, benchmarks and fault injection.

Each runs on a free loopback port with its files in a temporary directory, can be killed, paused and
restarted in place, and leaves neither a process nor a file behind. When the process that started it is killed
it dies too (on Linux), and only its temporary files stay.

    with DatabaseServer("mysql") as server:
        url = server.url(server.create_database("shard_1"))
        server.kill()
        server.restart()

Nothing here imports the rest of foqs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from foqs_lab.servers.databases import (
    DEFAULT_SETTINGS,
    ContainerServer,
    DatabaseServer,
    ServerSettings,
    SqlEndpoint,
    SqliteFiles,
    start_database_server,
)
from foqs_lab.servers.process import ServerUnavailable
from foqs_lab.servers.programs import Kind
from foqs_lab.servers.rivals import BeanstalkdServer, PostgresqlServer, RedisServer
from foqs_lab.servers.zookeeper import ZookeeperServer

__all__ = [
    "DEFAULT_SETTINGS",
    "BeanstalkdServer",
    "ContainerServer",
    "DatabaseServer",
    "Kind",
    "PostgresqlServer",
    "RedisServer",
    "ServerSettings",
    "ServerUnavailable",
    "SqlEndpoint",
    "SqliteFiles",
    "ZookeeperServer",
    "running",
    "start_database_server",
]

Server = DatabaseServer | ContainerServer | ZookeeperServer | PostgresqlServer | RedisServer | BeanstalkdServer
_STARTS: Mapping[str, Callable[[], Server]] = {
    "mariadb": lambda: start_database_server("mariadb"),
    "mysql": lambda: start_database_server("mysql"),
    "zookeeper": lambda: ZookeeperServer().start(),
    "postgresql": lambda: PostgresqlServer().start(),
    "redis": lambda: RedisServer().start(),
    "beanstalkd": lambda: BeanstalkdServer().start(),
}


@contextmanager
def running(kind: str) -> Iterator[Server]:
    """Run a server of a kind, with `port` and `version`. Raises ServerUnavailable."""
    with _STARTS[kind]() as server:
        yield server
