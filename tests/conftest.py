"""Private servers for all tests: one of each kind for a session, an empty database for a test.

`server` tests are skipped, with the reason, where a server cannot be had; with CI set they fail.
"""

import functools
import gc
import itertools
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pymysql.connections import Connection

from foqs.store import dump_tools
from foqs_lab.servers import (
    DEFAULT_SETTINGS,
    ContainerServer,
    DatabaseServer,
    Kind,
    ServerSettings,
    ServerUnavailable,
    ZookeeperServer,
    process,
    start_database_server,
)
from foqs_lab.servers.programs import find_mariadb, find_mysql, find_postgresql, find_zookeeper, link_mysql_clients
from foqs_lab.servers.rivals import PostgresqlServer
from tests.support import forked, real
from tests.zk.rig import ZookeeperRig

# Before any other folder's tests import them.
pytest.register_assert_rewrite("tests.store.contract", "tests.store.key_contract", "tests.store.row_contract")

# No deadline for an example: it would be one for the machine. All else stays as it is, in CI too.
settings.register_profile("any machine", settings(deadline=None))
settings.register_profile("quick", settings(deadline=None, max_examples=30))
settings.load_profile("any machine")

gc.disable()  # until all tests are collected: almost nothing is garbage before

Server = DatabaseServer | ContainerServer
NewServer = Callable[..., Server]
NewShardUrl = Callable[[], str]
NewTools = Callable[[str], Path]

PRODUCTS = {"mariadb": "MariaDB", "mysql": "MySQL"}
SHARD_KINDS = [
    "sqlite",
    pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.mariadb]),
    pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.mysql]),
]
_database_numbers = itertools.count(1)
_started_versions: dict[str, str] = {}


def pytest_report_header() -> list[str]:
    """What `server` tests will find, before any of them runs."""
    lines = [f"sqlite: {sqlite3.sqlite_version}"]
    finders = {"mariadb": find_mariadb, "mysql": find_mysql, "postgresql": find_postgresql, "zookeeper": find_zookeeper}
    for kind, find in finders.items():
        try:
            lines.append(f"{kind}: {find()}")
        except ServerUnavailable as error:
            lines.append(f"{kind}: {error.reason}")
    lines += [f"{name}: {shutil.which(name) or 'not found'}" for name in ("prometheus", "chromedriver")]
    return lines


_SERVER_FIXTURES = {"mariadb", "mysql", "postgresql", "new_server", "zookeeper", "own_zookeeper", "new_cluster"}
_PROCESS_FIXTURES = {"chromedriver"}
_PROCESS_TESTS = (
    "tests/cli/",
    "tests/deploy/",
    "tests/lab/",
    "tests/api/",
    "tests/client/test_cli_items.py",
    "tests/client/test_cli_topic.py",
    "tests/client/test_end_to_end.py",
    "tests/client/test_failing_work.py",
    "tests/client/test_settings.py",
    "tests/hooks/test_lockdown.py",
    "tests/hooks/test_misbehaving.py",
    "tests/hooks/test_pool.py",
    "tests/hooks/test_processes.py",
)
_MEMORY = "mark.memory"
# Threads and sockets inside the test process: the order of events is not fixed.
_THREAD_TESTS = (
    "tests/client/",
    "tests/cluster/",
    "tests/doctor/",
    "tests/peers/",
    "tests/server/",
    "tests/rpc/",
    "tests/spark/test_consume_again.py",
    "tests/spark/test_consume_ahead.py",
    "tests/spark/test_consume_driver.py",
    "tests/spark/test_consume_orders.py",
    "tests/spark/test_consume_progress.py",
    "tests/spark/test_write_memory.py",
)


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored. Commands that tests start and interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    real.watch(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that only have tests with real processes if the run takes none of them, as script/check does.
    Their import and collection, in each worker, would take 2 s of processor time."""
    if collection_path.suffix != ".py" or "not process" not in config.option.markexpr:
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return True if path.startswith(_PROCESS_TESTS) and _MEMORY not in collection_path.read_text() else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Mark tests by their folders and fixtures, so that script/check starts no servers and processes."""
    for item in items:
        if not _SERVER_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("server")
        if not _PROCESS_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker("process")
        path = item.path.relative_to(item.config.rootpath).as_posix()
        if item.get_closest_marker("memory") is not None:
            continue
        if path.startswith(_PROCESS_TESTS):
            item.add_marker("process")
        if path.startswith(_THREAD_TESTS):
            item.add_marker("threads")


def pytest_collection_finish() -> None:
    """Objects of pytest and of modules stay to the end: no collection of a test looks through them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What they did run on (with pytest-xdist only the header knows)."""
    if _started_versions:
        versions = ", ".join(f"{kind} {version}" for kind, version in sorted(_started_versions.items()))
        terminalreporter.write_line(f"database servers used: {versions}; sqlite {sqlite3.sqlite_version}")


@pytest.fixture(scope="session", autouse=True)
def forked_hosts() -> Iterator[None]:
    """Fork the hosts of clusters and of crash tests, as tests/api/hosts.py does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_spawn", forked.spawning(process._spawn))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """PyMySQL loads the system's certificates for each connection without TLS options, which takes 30 ms of processor
    time, and then verifies none."""
    create = Connection._create_ssl_ctx
    shared = functools.cache(lambda: create(None, {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_create_ssl_ctx", lambda self, given: create(self, given) if given else shared())
        yield


@pytest.fixture(scope="session", autouse=True)
def one_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the empty data directory of each database program once, and copy it for each server. MySQL takes 1.4 s of
    processor time to make one."""
    prepare = DatabaseServer.prepare
    data: dict[tuple[str, ...], Path] = {}
    making = threading.Lock()

    def copy(server: DatabaseServer, directory: Path) -> None:
        program = server.program.argv
        with making:
            if program not in data:
                folder = tmp_path_factory.mktemp(server.kind)
                prepare(server, folder)
                (folder / "data" / "auto.cnf").unlink(missing_ok=True)  # the identity of one MySQL server
                data[program] = folder / "data"
        shutil.copytree(data[program], directory / "data")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseServer, "prepare", copy)
        yield


def required() -> bool:
    """Whether a missing server is a failure."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def start_or_skip(kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS) -> Server:
    """A running server of the test's own; skips the test, or fails it in CI, when there is none."""
    try:
        server = start_database_server(kind, settings)
    except ServerUnavailable as error:
        unavailable = error
    else:
        _started_versions[kind] = server.version
        return server
    if required():
        pytest.fail(f"required in CI: {unavailable}", pytrace=False)
    pytest.skip(unavailable.reason)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """The session's MariaDB. Do not kill or pause it: `new_server` gives one for that."""
    with start_or_skip("mariadb") as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[Server]:
    """The session's MySQL. Do not kill or pause it: `new_server` gives one for that."""
    with start_or_skip("mysql") as server:
        yield server


@pytest.fixture
def new_server() -> Iterator[NewServer]:
    """`new_server("mysql", ServerSettings(...))` starts one of the test's own, stopped after it."""
    servers: list[Server] = []

    def start(kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS) -> Server:
        servers.append(start_or_skip(kind, settings))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(params=SHARD_KINDS)
def shard_kind(request: pytest.FixtureRequest) -> str:
    """Which database `shard_url` is on: sqlite, mariadb or mysql."""
    return str(request.param)


@pytest.fixture
def new_shard_url(shard_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewShardUrl]:
    """Each call gives the SQLAlchemy URL of another fresh, empty database; all are dropped after the test."""
    numbers = (f"shard_{os.getpid()}_{number}" for number in _database_numbers)
    if shard_kind == "sqlite":
        yield lambda: f"sqlite:///{tmp_path / next(numbers)}.sqlite3"
        return
    server: Server = request.getfixturevalue(shard_kind)
    names: list[str] = []

    def create() -> str:
        names.append(server.create_database(next(numbers)))
        return server.url(names[-1])

    yield create
    for name in names:
        server.drop_database(name)


@pytest.fixture
def shard_url(new_shard_url: NewShardUrl) -> str:
    """The SQLAlchemy URL of a fresh, empty database, on SQLite, MariaDB and MySQL in turn."""
    return new_shard_url()


@pytest.fixture
def new_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewTools:
    """`new_tools("mysql")` puts the programs that dump and load its databases into PATH, and returns the folder at its
    front. Skips the test, or fails it in CI, when there are none."""

    def prepare(kind: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        if kind == "mysql":
            link_mysql_clients(folder)
        if (product := PRODUCTS.get(kind)) is not None:
            try:
                found = dump_tools.find(dump_tools.DUMP, product).product
            except dump_tools.ToolMissing:
                found = ""
            if found != product:
                why = f"no tool of {product} found: script/apt mariadb-client, script/mysql"
                (pytest.fail if required() else pytest.skip)(why)
        return folder

    return prepare


def postgresql_or_skip() -> PostgresqlServer:
    """A PostgreSQL of the test's own; skips the test, or fails it in CI, when there is none."""
    try:
        return PostgresqlServer().start()
    except ServerUnavailable as error:
        unavailable = error
    if required():
        pytest.fail(f"required in CI: {unavailable}", pytrace=False)
    pytest.skip(unavailable.reason)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """The session's PostgreSQL. Do not kill or pause it."""
    with postgresql_or_skip() as server:
        yield server


def zookeeper_or_skip(*java_options: str) -> ZookeeperServer:
    """A ZooKeeper of the test's own; skips the test, or fails it in CI, when there is none."""
    try:
        return ZookeeperServer(java_options=java_options).start()
    except ServerUnavailable as error:
        unavailable = error
    if required():
        pytest.fail(f"required in CI: {unavailable}", pytrace=False)
    pytest.skip(unavailable.reason)


def sasl_zookeeper(folder: Path, **passwords: str) -> ZookeeperServer:
    """As above, one that authenticates these users by DIGEST-MD5. `folder` gets its configuration."""
    users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
    jaas = folder / "jaas.conf"
    jaas.write_text(f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required {users}; }};", "utf-8")
    provider = "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    return zookeeper_or_skip(f"-Djava.security.auth.login.config={jaas}", provider)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZookeeperServer]:
    """The session's ZooKeeper. Do not kill or pause it: `own_zookeeper` is for that."""
    with zookeeper_or_skip() as server:
        yield server


@pytest.fixture
def own_zookeeper() -> Iterator[ZookeeperServer]:
    with zookeeper_or_skip() as server:
        yield server


@pytest.fixture
def zk_rig(zookeeper: ZookeeperServer) -> Iterator[ZookeeperRig]:
    rig = ZookeeperRig(zookeeper)
    yield rig
    rig.close()


@pytest.fixture
def own_rig(own_zookeeper: ZookeeperServer) -> Iterator[ZookeeperRig]:
    rig = ZookeeperRig(own_zookeeper)
    yield rig
    rig.close()
