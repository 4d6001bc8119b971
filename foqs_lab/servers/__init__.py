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

from foqs_lab.servers.beanstalkd import BeanstalkdServer
from foqs_lab.servers.containers import ContainerServer
from foqs_lab.servers.databases import DatabaseServer, start_database_server
from foqs_lab.servers.endpoint import SqlEndpoint
from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.options import DEFAULT_SETTINGS, ServerSettings
from foqs_lab.servers.postgresql import PostgresqlServer
from foqs_lab.servers.programs import (
    JavaProgram,
    Kind,
    Program,
    find_beanstalkd,
    find_mariadb,
    find_mysql,
    find_node,
    find_postgresql,
    find_redis,
    find_rival_package,
    find_zookeeper,
)
from foqs_lab.servers.redis import RedisServer
from foqs_lab.servers.zookeeper import ZookeeperServer

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


__all__ = [
    "DEFAULT_SETTINGS",
    "BeanstalkdServer",
    "ContainerServer",
    "DatabaseServer",
    "JavaProgram",
    "Kind",
    "PostgresqlServer",
    "Program",
    "RedisServer",
    "ServerSettings",
    "ServerUnavailable",
    "SqlEndpoint",
    "ZookeeperServer",
    "find_beanstalkd",
    "find_mariadb",
    "find_mysql",
    "find_node",
    "find_postgresql",
    "find_redis",
    "find_rival_package",
    "find_zookeeper",
    "running",
    "start_database_server",
]
