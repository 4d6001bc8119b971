"""The servers of rivals: they flush each write, and leave nothing behind."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from foqs_lab.servers import BeanstalkdServer, PostgresqlServer, RedisServer, ServerUnavailable
from foqs_lab.servers.process import PrivateServer
from foqs_lab.servers.programs import find_node, find_postgresql, find_redis, find_rival_package


def started(server: PrivateServer) -> PrivateServer:
    """The same server, running. A rival that is not installed is no failure; one that does not start is."""
    try:
        return server.start()
    except ServerUnavailable as error:
        if "found" not in error.reason:
            raise
        pytest.skip(error.reason)


@pytest.mark.server
@pytest.mark.parametrize("kind", [PostgresqlServer, RedisServer, BeanstalkdServer])
def test_a_closed_server_leaves_nothing(kind: type[PrivateServer], tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # PostgreSQL runs as another user here if this one is root
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    with started(kind(parent=tmp_path)) as server:
        pid = server.pid
        assert server.alive
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()
    server.close()


@pytest.mark.server
def test_redis_flushes_each_write() -> None:
    with started(RedisServer()) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        for name, value in (("appendfsync", "always"), ("appendonly", "yes"), ("maxmemory-policy", "noeviction")):
            client.sendall(f"CONFIG GET {name}\r\n".encode())
            assert value.encode() in client.recv(1_000)


@pytest.mark.server
def test_postgresql_does_not_run_as_root() -> None:
    with started(PostgresqlServer()) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
    (user,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:")]
    assert user == os.geteuid() if os.geteuid() else user != 0


@pytest.mark.parametrize("find", [find_redis, find_postgresql, find_node])
def test_a_missing_program_says_how_to_get_it(find: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_lab.servers.programs._which", lambda *_: [])
    monkeypatch.setenv("FOQS_POSTGRESQL", "/nowhere")
    assert callable(find)
    with pytest.raises(ServerUnavailable, match=r"no [a-z-]+ found \(script/setup rivals gets it\)"):
        find()


def test_a_package_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"no bullmq found \(script/setup rivals gets it\)"):
        find_rival_package("node", "node_modules/bullmq")
    folder = tmp_path / "foqs/rivals/node/node_modules/bullmq"
    folder.mkdir(parents=True)
    assert find_rival_package("node", "node_modules/bullmq") == folder
