"""`foqs serve --processes`: refused options, restarts and stops of processes. No ZooKeeper answers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from foqs.cli import host as cli_host
from foqs.cli.supervisor import config_of
from foqs.config.load import load
from foqs.errors import Invalid, OtherProtocol
from foqs_lab.servers.process import free_port
from tests.api.hosts import HostProcess, foqs, until

CLUSTER = '[zookeeper]\nhosts = "127.0.0.1:1"\nauth_scheme = "digest"\nauth_credential = "me:hunter2"\n'


def pids(host: HostProcess) -> list[int]:
    return [int(pid) for pid in re.findall(r"process\.started +pid=(\d+)", host.said())]


def at_work(host: HostProcess) -> bool:
    """Return whether both processes have tried to reach ZooKeeper."""
    return all(re.search(rf"(kazoo\.warned|session\.changed) .*process=a-{number}\b", host.said()) for number in (1, 2))


def refused(config: Path, *options: object) -> str:
    done = foqs("serve", "--config", config, *map(str, options))
    assert (done.returncode, done.stdout) == (1, ""), done
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("text", "options", "word"),
    [
        ('[[shards]]\nid = 1\nurl = "sqlite:///x.db"\n', ["--processes", 2], "no [zookeeper] section"),
        (CLUSTER, ["--processes", 2, "--take-over"], "--take-over"),
        (CLUSTER, ["--processes", 3, "--port", 65_533], "no 3 ports above 65533"),
        (f'[server]\nadvertise = "queue:99"\nport = 0\n{CLUSTER}', ["--processes", 2], "server.advertise"),
        (f'[server]\nadvertise = "queue"\nport = PORT\n{CLUSTER}', ["--processes", 2], "server.advertise"),
        (f'[server]\nadvertise = "queue:65534"\nport = PORT\n{CLUSTER}', ["--processes", 2], "server.advertise"),
        (CLUSTER, ["--processes", 2, "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:7707"),
        (CLUSTER, ["--processes", 2, "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_wrong_options_are_refused_at_once(
    write: Callable[[str], Path], text: str, options: list[object], word: str
) -> None:
    # The command listens on the port for a moment. Another test may do that with the default port.
    said = refused(write(text.replace("PORT", str(free_port()))), *options)
    assert re.fullmatch(r"(\S+ \[warning  \] host\.not_secure [^\n]+\n)*foqs: [^\n]+\n", said)
    assert word in said


def test_the_shared_port_is_taken(write: Callable[[str], Path]) -> None:
    """The command refuses the port even if the other program shares it."""
    for shared in (False, True):
        with closing(socket.socket()) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert f"cannot listen on 127.0.0.1:{port}: " in refused(write(CLUSTER), "--processes", 2, "--port", port)


def test_a_workers_own_port_is_taken(write: Callable[[str], Path]) -> None:
    """The supervisor stops all processes and prints the reason."""
    port = free_port(above=2)
    with socket.create_server(("127.0.0.1", port + 2)):
        said = refused(write(f'[server]\nid = "a"\n{CLUSTER}'), "--processes", 2, "--port", port)
    assert f"foqs: process a-2: cannot listen on 127.0.0.1:{port + 2} " in said
    assert "in use" in said
    assert "process.died" not in said
    assert not any(os.path.exists(f"/proc/{pid}") for pid in re.findall(r"pid=(\d+)", said))


def test_another_protocol_version_is_a_permanent_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reports an Invalid to its supervisor, which ends. After any other error it would restart for ever."""
    stopped: list[bool] = []

    class Node:
        vitals = SimpleNamespace(connect=lambda *_: None)

        async def start(self) -> tuple[str, int]:
            raise OtherProtocol("host b (b:7707)", 0)

        async def stop(self) -> bool:
            stopped.append(True)
            return True

    monkeypatch.setattr(cli_host, "_node", lambda *_: Node())

    async def run() -> None:
        config = load(admin={"enabled": False})
        await cli_host.Host(config, take_over=False, shared_port=1).run(lambda host: None, lambda host, port: None)

    with pytest.raises(Invalid, match=r"^host b \(b:7707\) has protocol version 0 .* upgrade foqs on host b"):
        asyncio.run(run())
    assert stopped


def test_a_dead_worker_restarts_ever_later(write: Callable[[str], Path], serve: Callable[..., HostProcess]) -> None:
    host = serve("--config", write(f'[server]\nid = "a"\nport = 0\n{CLUSTER}'), "--processes", 2)
    killed: list[int] = []
    for _ in range(3):
        until(lambda: len(pids(host)) == 2 + len(killed), "the processes")
        process = re.findall(r"process\.started +pid=(\d+) process=a-1\n", host.said())[-1]
        os.kill(int(process), signal.SIGKILL)
        killed.append(int(process))
        until(lambda: host.said().count("process.died") == len(killed), "a word of it")
    assert re.findall(r"process\.died +again_ms=(\d+) process=a-1 status=(\S+)\n", host.said()) == [
        ("200", "-9"), ("400", "-9"), ("800", "-9"),
    ]  # fmt: skip
    until(lambda: len(pids(host)) == 5, "the process to come back")
    assert len(set(killed)) == 3
    until(lambda: at_work(host), "the processes to be at work")
    assert host.stop() == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids(host))
    assert (host.lines, "hunter2" in host.said()) == ([], False)


@pytest.mark.parametrize("when", ["at work", "being started"])
def test_signals_end_all_also_before_they_listen(
    write: Callable[[str], Path], serve: Callable[..., HostProcess], when: str
) -> None:
    host = serve("--config", write(f'[server]\nid = "a"\nport = 0\n{CLUSTER}'), "--processes", 2)
    until(lambda: len(pids(host)) == 2 and (when != "at work" or at_work(host)), "the processes")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        host.send_signal(number)
    assert host.wait() == 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids(host))


def test_a_worker_gets_its_name_and_ports() -> None:
    def server(**keys: object) -> dict[str, object]:
        config = load(server=keys, zookeeper={"hosts": "z:1"})
        made = config_of(config, 3)
        assert made.model_copy(update={"server": config.server}) == config
        return made.server.model_dump(include={"id", "port", "advertise"})

    assert server(id="a", port=7000) == {"id": "a-3", "port": 7003, "advertise": None}
    assert server(id="a", port=0) == {"id": "a-3", "port": 0, "advertise": None}
    assert server(id="a", port=7000, advertise="q:99")["advertise"] == "q:102"
    assert server(id="a", port=7000, advertise="[::1]:99")["advertise"] == "[::1]:102"
    with pytest.raises(Invalid, match="advertise"):
        server(id="a", port=7000, advertise=":99")


def test_each_worker_has_an_admin_port_of_its_own() -> None:
    def port(**keys: object) -> int:
        return config_of(load(server={"id": "a"}, admin=keys, zookeeper={"hosts": "z:1"}), 3).admin_port

    assert (port(), port(port=80), port(port=0)) == (9710, 83, 0)
    with pytest.raises(Invalid, match=r"admin\.port"):
        port(port=65_533)


def test_a_workers_configuration_comes_through_unchanged() -> None:
    """The supervisor passes the configuration to a process as JSON."""
    config = load(
        server={"id": "a-1", "port": 1, "advertise": "q:1"},
        limits={"payload_bytes": 5},
        zookeeper={"hosts": "z:1", "auth_scheme": "digest", "auth_credential": "me:ünd:er"},
    )
    assert load(**config.model_dump(mode="json")).model_dump() == config.model_dump()
