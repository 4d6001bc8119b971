"""The programs in other languages, built and run as docs/do/languages.md prints, through restarts of the host."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from foqs.client import Client, Item, ItemState
from tests.api.hosts import ROOT
from tests.client.real_server import Server
from tests.conftest import required
from tests.support.pages import DOCS, blocks
from tests.support.waiting import wait_until as eventually

PAGE = DOCS / "do/languages.md"
HEADINGS = {"node": "Node.js", "java": "Java", "go": "Go"}
TOOLS = {"node": ("node", "npm"), "java": ("javac", "mvn"), "go": ("go",)}
PROGRAMS = {
    "node": ("producer.js", "worker.js"),
    "java": ("Producer.java", "Worker.java"),
    "go": ("producer/main.go", "worker/main.go"),
}
BY_SIGTERM = {"node": 0, "java": 128 + signal.SIGTERM, "go": 0}
MOST_LINES = 60
LEASE_MS = 1_500
"""Shorter than the work on a `long` order."""
BUILD_S = 240.0


def section(language: str) -> str:
    return re.split(r"^## ", PAGE.read_text().split(f"\n## {HEADINGS[language]}\n")[1], flags=re.M)[0]


def lines(program: Path) -> int:
    return len(program.read_text().splitlines())


class Program:
    """A command of the page in the folder of its example, and its output."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed = ""
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.printed += line

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(text)

    def prints(self, text: str) -> None:
        eventually(lambda: text in self.printed or not self._reader.is_alive())
        assert text in self.printed

    def ends(self) -> int:
        status = self.process.wait(60)
        self._reader.join(60)
        return status

    def close(self) -> None:
        self.process.kill()
        self.ends()
        self.process.stdin and self.process.stdin.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "data")
    yield running
    running.stop()


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Callable[[str], Program]]:
    """Builds the clients of a language, and starts one by its name."""
    language: str = request.param
    missing = [tool for tool in ("thrift", *TOOLS[language]) if shutil.which(tool) is None]
    if missing:
        (pytest.fail if required() else pytest.skip)(
            f"no {' and '.join(missing)} on PATH (script/languages installs it)"
        )
    folder = tmp_path / "examples" / language
    made = shutil.ignore_patterns("gen-*", "node_modules", "target", "bin")
    shutil.copytree(ROOT / "examples" / language, folder, ignore=made)
    shutil.copytree(ROOT / "thrift", tmp_path / "thrift")
    build, run = [block.text for block in blocks(section(language)) if block.language == "sh"]
    done = subprocess.run(
        ["bash", "-ec", build], cwd=tmp_path, capture_output=True, text=True, timeout=BUILD_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    produce, work = run.splitlines()
    assert produce.startswith("seq -f order-%g 1 250 | ")
    commands = {"producer": produce.partition(" | ")[2], "worker": work}
    environment = {**os.environ, "FOQS_ADDRESS": server.address, "FOQS_NAMESPACE": "shop", "LEASE_MS": str(LEASE_MS)}
    with ExitStack() as stack:

        def started(name: str) -> Program:
            program = Program(commands[name], folder, environment)
            stack.callback(program.close)
            return program

        yield started


def orders(first: int, last: int) -> str:
    return "".join(f"order-{number}\n" for number in range(first, last + 1))


def polls(client: Client) -> bool:
    """Say if a request of a worker waits for an item."""
    return any(worker.asked_ago_ms == 0 for worker in client.consumers("orders").consumers)


def extended(client: Client, item: Item) -> bool:
    return any(one.lease_expires_at_ms > item.lease_expires_at_ms for one in client.list_items("orders"))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("start", "status"), BY_SIGTERM.items(), indirect=["start"], ids=BY_SIGTERM)
def test_orders_are_done_through_restarts(server: Server, start: Callable[[str], Program], status: int) -> None:
    producer = start("producer")
    producer.send(orders(1, 250) + "flaky-1\nurgent-1\n" + 256 * "x" + "\n")
    assert producer.ends() == 1
    assert f"refused: {256 * 'x'}: dedup_key" in producer.printed
    assert "252 stored, 0 duplicates, 1 refused, 0 unknown" in producer.printed
    with Client(server.address, "shop") as client:
        urgent = [item for item in client.list_items("orders") if item.priority == 1]
        assert [(item.payload, item.deliver_after_ms - item.enqueued_at_ms) for item in urgent] == [(b"urgent-1", 500)]

        worker = start("worker")
        worker.prints("done: ")
        server.kill()
        producer = start("producer")
        producer.send(orders(201, 300) + "long-1\n")
        producer.prints("trying again: ")
        worker.prints("trying again: ")
        server.start()
        assert producer.ends() == 0
        assert "51 stored, 50 duplicates, 0 refused, 0 unknown" in producer.printed
        eventually(lambda: not list(client.list_items("orders")), lambda: worker.printed)
        names = {f"order-{number}" for number in range(1, 301)} | {"flaky-1", "urgent-1", "long-1"}
        assert set(re.findall(r"done: (\S+),", worker.printed)) == names
        assert re.findall(r"done: flaky-1, attempt (\d+)", worker.printed)[0] > "1"
        assert re.findall(r"done: long-1, attempt (\d+)", worker.printed) == ["1"]  # its lease was extended

        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        server.start()
        client.enqueue("orders", b"long-2")
        worker.prints("done: long-2, attempt 1")
        eventually(lambda: not list(client.list_items("orders")) and polls(client))
        worker.process.terminate()
        worker.prints("stopping")
        client.enqueue("orders", b"order-301")
        assert worker.ends() == status
        (left,) = client.list_items("orders")
        assert (left.state, left.attempt) == (ItemState.READY, 0)

        worker = start("worker")
        worker.prints("done: order-301")
        client.enqueue("orders", b"long-3")
        leased = eventually(lambda: list(client.list_items("orders", state=ItemState.LEASED)))[0]
        eventually(lambda: extended(client, leased))
        worker.process.terminate()
        assert worker.ends() == status
        assert "done: long-3, attempt 1" in worker.printed
        assert list(client.list_items("orders")) == []


@pytest.mark.parametrize(("language", "programs"), PROGRAMS.items())
def test_the_page_shows_short_programs(language: str, programs: tuple[str, ...]) -> None:
    shown = {block.title: block.text for block in blocks(section(language)) if block.title}
    assert shown == {name: f'--8<-- "examples/{language}/{name}"\n' for name in programs}
    assert max(lines(ROOT / "examples" / language / name) for name in programs) <= MOST_LINES
