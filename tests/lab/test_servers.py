"""A private server keeps committed rows after a kill and hangs during a pause. It leaves no process or file behind."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest
from kazoo.client import KazooClient
from sqlalchemy import create_engine, text

from foqs_lab.servers import BeanstalkdServer, DatabaseServer, Kind, ServerSettings, ServerUnavailable, ZookeeperServer
from foqs_lab.servers import process as process_module
from foqs_lab.servers.process import free_port
from foqs_lab.servers.programs import JavaProgram, Program, find_beanstalkd, find_mariadb, find_mysql, find_zookeeper
from tests.conftest import NewServer, required, start_or_skip
from tests.support.waiting import wait_until

SMALL = ServerSettings(buffer_pool_bytes=64 << 20)

KINDS = [
    pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.mariadb]),
    pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.mysql]),
]


def exists(pid: int) -> bool:
    """Whether a process with that pid runs (a zombie that its parent has not reaped does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def process_of(server: object) -> DatabaseServer:
    """The same server, if it is a process of ours."""
    if not isinstance(server, DatabaseServer):
        pytest.skip("a container's process and files are Docker's affair")
    return server


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """One for all tests that leave it running."""
    with start_or_skip(request.param, SMALL) as started:
        yield process_of(started)


def test_a_killed_server_restarts_with_committed_rows(server: DatabaseServer) -> None:
    url = server.url(server.create_database("kept"))
    server.query("CREATE TABLE t (n INT PRIMARY KEY) ENGINE=InnoDB", database="kept")
    first_pid, port = server.pid, server.port
    for n in range(3):
        server.query("INSERT INTO t VALUES (%s)", n, database="kept")
        server.kill()
        assert not server.alive
        assert not server.answers()
        server.restart()

    assert server.port == port
    assert server.pid != first_pid
    with create_engine(url).connect() as connection:
        assert connection.scalars(text("SELECT n FROM t ORDER BY n")).all() == [0, 1, 2]


def test_restart_of_a_running_server_stops_it_first(server: DatabaseServer) -> None:
    old_pid = server.pid
    server.restart()
    assert not exists(old_pid)
    assert server.answers()


def test_a_paused_server_hangs_and_goes_on(server: DatabaseServer) -> None:
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root")
    server.pause()
    assert server.alive
    connection._read_timeout = 1  # only now, because a busy machine may connect slowly
    with pytest.raises(pymysql.MySQLError), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    with pytest.raises(pymysql.MySQLError):
        pymysql.connect(host="127.0.0.1", port=server.port, user="root", connect_timeout=1, read_timeout=1)
    server.resume()
    assert server.query("SELECT 1") == [(1,)]


def test_it_keeps_its_promises_at_each_commit(server: DatabaseServer) -> None:
    settings = server.query("SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@log_bin")
    assert [str(value) for value in settings[0]] == ["1", "1" if server.kind == "mariadb" else "ON", "0"]
    assert server.query("SELECT VERSION()")[0][0].startswith(server.version.split("-")[0])
    assert server.query("SELECT @@innodb_buffer_pool_size") == [(SMALL.buffer_pool_bytes,)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_stop_leaves_no_process_and_no_file(kind: Kind, paused: bool, new_server: NewServer) -> None:
    server = process_of(new_server(kind, SMALL))
    pid = server.pid
    directory = Path(str(server.query("SELECT @@datadir")[0][0])).parent
    assert directory.exists()
    if paused:
        server.pause()
    server.close()
    server.close()
    assert not exists(pid)
    assert not directory.exists()


def test_drop_database_is_not_held_up_by_an_open_transaction(server: DatabaseServer) -> None:
    server.create_database("busy")
    server.query("CREATE TABLE t (n INT PRIMARY KEY) ENGINE=InnoDB", database="busy")
    holder = pymysql.connect(host="127.0.0.1", port=server.port, user="root", database="busy")
    with holder.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1)")
    server.drop_database("busy")
    assert ("busy",) not in server.query("SHOW DATABASES")


def test_both_drivers_connect(server: DatabaseServer) -> None:
    pytest.importorskip("MySQLdb", reason="mysqlclient is not installed")
    for driver in ("pymysql", "mysqldb"):
        with create_engine(server.url("mysql", driver=driver)).connect() as connection:
            assert connection.scalar(text("SELECT CURRENT_USER()")) == "root@127.0.0.1"


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_port_is_given_up_for_another(
    kind: Kind, new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(process_module, "free_port", lambda: next(ports))
        server = new_server(kind, SMALL)
        assert server.answers()
        assert server.port != taken.getsockname()[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_option_is_reported_with_the_log(kind: Kind) -> None:
    try:
        server = DatabaseServer(kind, ServerSettings(options=("--no-such-option",)))
    except ServerUnavailable as error:
        pytest.skip(error.reason)
    with pytest.raises(ServerUnavailable, match="ended while starting") as caught:
        server.start()
    assert "no-such-option" in caught.value.log_tail
    assert "no-such-option" in str(caught.value)
    assert not server.alive


@pytest.mark.parametrize("kind", KINDS)
def test_it_dies_with_the_process_that_started_it(kind: Kind, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import threading, time
        from pathlib import Path
        from foqs_lab.servers import ServerUnavailable, start_database_server
        servers = []
        def start():
            try:
                servers.append(start_database_server({kind!r}, parent=Path({str(tmp_path)!r})))
            except ServerUnavailable as error:
                print("unavailable", error.reason)
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        time.sleep(0.2)  # the thread that asked for the server is gone, the server must not be
        print(*(server.pid for server in servers if server.alive and server.answers()), flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        words = starter.stdout.readline().split()
        starter.kill()
    if words[:1] == ["unavailable"]:
        pytest.skip(" ".join(words[1:]))
    assert len(words) == 1
    wait_until(lambda: not exists(int(words[0])), "the end of the process")


@pytest.fixture
def lonely_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of a machine on which nothing is installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FOQS_MYSQLD", raising=False)
    monkeypatch.delenv("FOQS_MARIADBD", raising=False)
    monkeypatch.delenv("FOQS_ZOOKEEPER_JARS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("foqs_lab.servers.programs._SERVER_FOLDERS", ())
    monkeypatch.setattr("foqs_lab.servers.programs._DEBIAN_ZOOKEEPER", tmp_path / "zookeeper.jar")
    return tmp_path / "cache" / "foqs"


@pytest.mark.usefixtures("lonely_machine")
def test_no_program_is_a_typed_error() -> None:
    for find in (find_mariadb, find_mysql, find_beanstalkd, find_zookeeper):
        with pytest.raises(ServerUnavailable, match=r"no .* found"):
            find()


def test_only_programs_of_the_right_kind_and_age_are_found(lonely_machine: Path) -> None:
    folder = lonely_machine.parent.parent

    def install(name: str, version: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\necho '{name}  Ver {version} for Linux on x86_64'\n")
        (folder / name).chmod(0o755)

    install("mysqld", "10.11.11-MariaDB-0+deb12u1")
    assert find_mariadb().version == "10.11.11-MariaDB-0+deb12u1"
    with pytest.raises(ServerUnavailable, match="MariaDB"):
        find_mysql()
    install("mysqld", "8.0.42-0ubuntu0.24.04.1")
    with pytest.raises(ServerUnavailable, match=r"8\.0\.42"):
        find_mysql()
    install("mysqld", "8.4.5")
    assert find_mysql() == Program("mysql", (str(folder / "mysqld"),), folder.parent, "8.4.5")
    install("mariadbd", "10.5.29-MariaDB")
    with pytest.raises(ServerUnavailable, match=r"10\.5\.29"):
        find_mariadb()


def test_a_program_that_does_not_work_is_named(lonely_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_MYSQLD", "/nonexistent/mysqld")
    with pytest.raises(ServerUnavailable, match="/nonexistent/mysqld is not working"):
        find_mysql()


def test_beanstalkd_reserves_a_put_job() -> None:
    try:
        find_beanstalkd()
    except ServerUnavailable as error:
        pytest.skip(error.reason)
    with BeanstalkdServer() as server:
        pid = server.pid
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(b"put 0 0 60 5\r\nhello\r\nreserve\r\n")
            answer = b""
            deadline = time.monotonic() + 60
            while not answer.endswith(b"hello\r\n") and time.monotonic() < deadline:
                answer += client.recv(1024)
        assert answer == b"INSERTED 1\r\nRESERVED 1 5\r\nhello\r\n"
        os.kill(pid, signal.SIGSTOP)
    assert not exists(pid)


@pytest.fixture
def zookeeper() -> Iterator[ZookeeperServer]:
    try:
        server = ZookeeperServer().start()
    except ServerUnavailable as error:
        if required():
            pytest.fail(f"required in CI: {error}", pytrace=False)
        pytest.skip(error.reason)
    with server:
        yield server


@pytest.mark.server
@pytest.mark.zookeeper
def test_zookeeper_keeps_its_data_and_its_port(zookeeper: ZookeeperServer) -> None:
    def ask(what: Callable[[KazooClient], object]) -> object:
        client = KazooClient(zookeeper.hosts)
        client.start(timeout=60)
        try:
            return what(client)
        finally:
            client.stop()
            client.close()

    port = zookeeper.port
    ask(lambda client: client.create("/kept", b"1"))
    zookeeper.kill()
    assert not zookeeper.alive
    zookeeper.start()
    assert ask(lambda client: client.get("/kept")[0]) == b"1"
    zookeeper.stop()
    zookeeper.stop()
    assert not zookeeper.answers()
    zookeeper.start()
    assert ask(lambda client: client.get("/kept")[0]) == b"1"
    assert zookeeper.port == port


@pytest.mark.server
@pytest.mark.zookeeper
def test_a_zookeeper_that_has_answered_is_up(zookeeper: ZookeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it then takes longer than the one second that it is given for an answer."""
    zookeeper.stop()
    answers = [False, True]
    monkeypatch.setattr(ZookeeperServer, "answers", lambda _: bool(answers) and answers.pop(0))
    zookeeper.start()
    monkeypatch.undo()
    wait_until(zookeeper.answers, "an answer of ZooKeeper")


@pytest.mark.server
@pytest.mark.zookeeper
def test_a_paused_zookeeper_hangs_and_leaves_nothing_when_closed(zookeeper: ZookeeperServer, tmp_path: Path) -> None:
    zookeeper.pause()
    assert zookeeper.alive
    assert not zookeeper.answers()
    zookeeper.resume()
    wait_until(zookeeper.answers, "an answer of ZooKeeper")
    with ZookeeperServer(parent=tmp_path) as other:
        pid = other.pid
        assert list(tmp_path.iterdir())
        other.pause()
    assert not exists(pid)
    assert not list(tmp_path.iterdir())


def test_zookeeper_without_jars_or_java_is_a_typed_error(lonely_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerUnavailable, match="no java found"):
        ZookeeperServer().start()
    monkeypatch.setattr("foqs_lab.servers.programs._which", lambda *names: ["/usr/bin/java"])
    with pytest.raises(ServerUnavailable, match="no zookeeper found"):
        ZookeeperServer().start()
    package = lonely_machine.parent.parent / "zookeeper.jar"
    (package.parent / "zookeeper-3.8.0.jar").touch()
    package.symlink_to("zookeeper-3.8.0.jar")
    assert find_zookeeper() == JavaProgram("/usr/bin/java", str(package), "3.8.0")
    for version in ("3.9.5", "3.8.4"):
        folder = lonely_machine / f"zookeeper-{version}"
        folder.mkdir(parents=True)
        (folder / f"zookeeper-{version}.jar").touch()
    assert find_zookeeper() == JavaProgram("/usr/bin/java", f"{lonely_machine}/zookeeper-3.9.5/*", "3.9.5")
    monkeypatch.setenv("FOQS_ZOOKEEPER_JARS", "/nonexistent")
    with pytest.raises(ServerUnavailable, match="in FOQS_ZOOKEEPER_JARS=/nonexistent"):
        find_zookeeper()
