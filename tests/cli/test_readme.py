"""Runs the commands of README.md as written, like a user with two terminals.

The tests replace only ports, and the addresses of the database server and of ZooKeeper.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs_lab.servers import ZookeeperServer
from foqs_lab.servers.databases import SqlEndpoint
from foqs_lab.servers.process import free_port
from tests.api.hosts import ROOT, environment

README = (ROOT / "README.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.M | re.S)


def blocks(title: str) -> list[tuple[str, str]]:
    """Return (language, text) of each block in a section; the language of an indented block is `sh`."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.M | re.S)
    found = [(language or "sh", text or commands) for language, text, commands in _BLOCK.findall(section)]
    return [(language, re.sub("^    ", "", text, flags=re.M) if language == "sh" else text) for language, text in found]


class Checkout:
    """A folder that looks like a checkout after script/setup, and the terminals opened in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        (folder / "script").mkdir()
        # A stub: the real script would install packages while other tests run. script/test runs the real one.
        setup = folder / "script" / "setup"
        setup.write_text('#!/bin/sh\n[ "$*" = demo ] && [ -e .venv/bin/activate ]\n')
        setup.chmod(0o755)
        binaries = folder / ".venv" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "activate").write_text(f"PATH={shlex.quote(str(binaries))}:$PATH\n")
        for name, run in (("foqs", "-m foqs"), ("python", "")):
            (binaries / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {run} "$@"\n')
            (binaries / name).chmod(0o755)
        self._started: list[subprocess.Popen[str]] = []

    def terminal(self, script: str, **env: str) -> subprocess.Popen[str]:
        """Open a terminal with its own shell: an environment activated in another terminal is not active here."""
        path = ":".join(part for part in os.environ["PATH"].split(":") if not (Path(part) / "foqs").exists())
        process = subprocess.Popen(
            ["bash", "-c", f"set -e\n{script}"],
            env=environment(HOME=str(self.home), PATH=path, PYTHONUNBUFFERED="1", **env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, **env: str) -> str:
        process = self.terminal(script, **env)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        return output

    def interrupt(self, process: subprocess.Popen[str]) -> str:
        """Press Ctrl-C in the terminal of `process`, and return the output that follows."""
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        return output

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    made.close()


def says(process: subprocess.Popen[str], what: str) -> None:
    """Read the output of `process` up to a line with `what`."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if what in line:
            return
    raise AssertionError(f"it never said {what!r}: {''.join(seen)}")


def test_the_first_hour_works_as_written(checkout: Checkout) -> None:
    port = free_port()
    host = {"FOQS_SERVER__PORT": str(port), "FOQS_ADMIN__PORT": "0"}
    client = {"FOQS_ADDRESS": f"127.0.0.1:{port}"}
    (_, first), (_, second), (language, program), (_, tasks) = blocks("Try it")
    dev = checkout.terminal(first, **host)
    says(dev, f"foqs listening on 127.0.0.1:{port}")
    output = checkout.run(second, **client)
    assert output.count('"id"') == 5 + 2 + 3, output  # enqueued, printed, acked
    assert output.count('"ok": true') == 3
    assert '"topic": "hello"' in output

    assert language == "python"
    assert "127.0.0.1:7707" in program
    (checkout.folder / "program.py").write_text(program.replace(":7707", f":{port}"))
    worker = checkout.terminal("source .venv/bin/activate\nexec python program.py")
    says(worker, "b'to: you'")
    (checkout.folder / "tasks.py").write_text(tasks.replace(":7707", f":{port}"))
    checkout.run("source .venv/bin/activate\npython tasks.py")
    says(worker, "b'to: 99'")
    os.killpg(worker.pid, signal.SIGTERM)  # "until SIGTERM", as the program says
    assert worker.wait(timeout=60) == 0
    assert "Traceback" not in checkout.interrupt(dev)


def test_the_tasks_work_as_written(checkout: Checkout) -> None:
    port = free_port()
    dev = checkout.terminal(blocks("Try it")[0][1], FOQS_SERVER__PORT=str(port), FOQS_ADMIN__PORT="0")
    says(dev, f"foqs listening on 127.0.0.1:{port}")
    (_, shop), (_, command), (_, program) = blocks("Tasks")
    (checkout.folder / "shop.py").write_text(shop.replace(":7707", f":{port}"))
    (checkout.folder / "program.py").write_text(program)
    worker = checkout.terminal(f"source .venv/bin/activate\nexec {command}")
    output = checkout.run("source .venv/bin/activate\npython program.py")
    assert output == "order 17 is confirmed to ada@example.org\n"
    assert "Traceback" not in checkout.interrupt(worker)
    assert worker.returncode == 0
    assert "Traceback" not in checkout.interrupt(dev)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("mariadb", "mysql")]
)
@pytest.mark.server
def test_a_host_on_a_database_server_works_as_written(
    checkout: Checkout, new_server: Callable[[str], SqlEndpoint], kind: str
) -> None:
    server = new_server(kind)
    found = blocks("On MySQL or MariaDB")
    assert [language for language, _ in found] == ["sql", "toml", "sh"]
    (_, account), (_, config), (_, commands) = found
    for statement in filter(str.strip, account.split(";")):
        server.query(statement)
    port = free_port()
    assert set(tomllib.loads(config)) == {"server", "shards"}
    checkout.folder.joinpath("foqs.toml").write_text(
        config.replace("127.0.0.1/", f"127.0.0.1:{server.port}/").replace("7707", str(port))
    )
    *before, serve = commands.strip().splitlines()
    checkout.run("\n".join(["source .venv/bin/activate", *before]))
    host = checkout.terminal(f"source .venv/bin/activate\n{serve}", FOQS_ADMIN__PORT="0")
    says(host, f"foqs listening on 127.0.0.1:{port}")
    _, (_, second), *_ = blocks("Try it")
    assert '"id"' in checkout.run(second, FOQS_ADDRESS=f"127.0.0.1:{port}")
    assert "Traceback" not in checkout.interrupt(host)


@pytest.mark.mariadb
@pytest.mark.zookeeper
def test_a_cluster_works_as_written(
    checkout: Checkout, new_server: Callable[[str], SqlEndpoint], own_zookeeper: ZookeeperServer
) -> None:
    server = new_server("mariadb")
    (_, account), *_ = blocks("On MySQL or MariaDB")
    for statement in filter(str.strip, account.split(";")):
        server.query(statement)
    (_, config), (_, commands) = blocks("A cluster")
    port = free_port()
    checkout.folder.joinpath("foqs.toml").write_text(
        config.replace("zk-1:2181,zk-2:2181,zk-3:2181", f"127.0.0.1:{own_zookeeper.port}").replace(
            "0.0.0.0", "127.0.0.1"
        )
    )
    add, serve, status = commands.strip().replace("@db-1/", f"@127.0.0.1:{server.port}/").splitlines()
    checkout.run(f"source .venv/bin/activate\n{add}")
    host = checkout.terminal(f"source .venv/bin/activate\n{serve}", FOQS_SERVER__PORT=str(port), FOQS_ADMIN__PORT="0")
    says(host, f"foqs listening on 127.0.0.1:{port}")
    assert "foqs_1" in checkout.run(f"source .venv/bin/activate\n{status}")
    assert "Traceback" not in checkout.interrupt(host)


def test_no_page_installs_foqs_from_an_index() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for wanted in re.findall(r"pip install (?:-[\w-]+ )*([^`\n#&]+)", page.read_text()):
            name = wanted.strip()
            assert not re.match(r"'?foqs\b", name), f"{page.name}: foqs is on no index: {name}"
            if "[" in name:
                found = re.fullmatch(r"'[^']*\[([\w,]+)\]'", name)
                assert found is not None, f"{page.name}: a shell takes brackets for a pattern: {name}"
                assert set(found[1].split(",")) <= extras
