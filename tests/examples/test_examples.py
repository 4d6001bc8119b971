"""Each program in examples/, as a user runs it: its own commands, on a real host."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from aiosmtpd.controller import Controller

from foqs.client import Client
from foqs_lab.servers.process import free_port
from tests.client.peer import LATER, eventually
from tests.client.real_server import Server, foqs

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "data")
    yield running
    running.stop()


@pytest.fixture
def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "FOQS_ADDRESS": server.address, "FOQS_NAMESPACE": "shop", "PYTHONPATH": str(ROOT)}


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *command], env=environment)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(LATER) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def worker(name: str, environment: dict[str, str]) -> AbstractContextManager[None]:
    return running(["foqs", "worker", f"examples.{name}:app"], environment)


def run(name: str, *args: str, environment: dict[str, str], stdin: str = "") -> str:
    command = [sys.executable, "-m", f"examples.{name}", *args]
    return subprocess.run(
        command, env=environment, input=stdin, capture_output=True, text=True, check=True, timeout=2 * LATER
    ).stdout


def test_each_is_at_most_40_lines() -> None:
    assert len(EXAMPLES) >= 4
    assert {path.name for path in EXAMPLES if len(path.read_text().rstrip().splitlines()) > 40} == set()


class Mailbox:
    """A mail server that refuses one address for good, and another one the first time."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self._busy = {"busy@example.org"}

    async def handle_RCPT(self, server, session, envelope, address, options):  # type: ignore[no-untyped-def]
        if address == "gone@example.org":
            return "550 no such user"
        if address in self._busy:
            self._busy.clear()
            return "451 busy"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # type: ignore[no-untyped-def]
        self.subjects += [line for line in envelope.content.decode().splitlines() if line.startswith("Subject:")]
        return "250 OK"


def test_mail(server: Server, environment: dict[str, str]) -> None:
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port())
    with ExitStack() as stack:
        controller.start()
        stack.callback(controller.stop)
        environment["SMTP_PORT"] = str(controller.port)
        stack.enter_context(worker("mail", environment))
        client = stack.enter_context(Client(server.address, "shop"))
        for address in ("ada", "busy", "gone"):
            run("mail", f"{address}@example.org", f"to {address}", environment=environment)
        eventually(lambda: sorted(mailbox.subjects) == ["Subject: to ada", "Subject: to busy"])
        eventually(lambda: client.topic_stats("mail.dlq").ready == 1)
        assert "gone@example.org is refused" in foqs(server, "dead", "list", "mail.dlq").stdout.decode()


def test_web(server: Server, environment: dict[str, str]) -> None:
    assert foqs(server, "throttle", "set", "customer:*", "--concurrency", "2").returncode == 0
    port = free_port()

    def asked(path: str, method: str = "GET") -> Any:
        try:
            with urlopen(Request(f"http://127.0.0.1:{port}{path}", method=method), timeout=LATER) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                return error.code

    def listens() -> bool:
        with suppress(URLError):
            return asked("/docs/none") == 404
        return False

    with worker("web", environment), running(["uvicorn", "examples.web:web", "--port", str(port)], environment):
        eventually(listens)
        ids = [asked(f"/reports?customer=acme&month={month}", "POST") for month in ("2026-10", "2026-11", "2026-10")]
        assert ids[0] == ids[2] != ids[1]
        assert [asked(f"/reports/{item_id}") for item_id in ids[:2]] == ["2026-10 of acme", "2026-11 of acme"]


def test_cron(server: Server, environment: dict[str, str]) -> None:
    with worker("cron", environment), Client(server.address, "shop") as client:
        eventually(lambda: {one.name for one in client.schedules().schedules} == {"clean_up", "poll"})
        item_id = client.run_schedule("clean_up")
        eventually(lambda: client.topic_stats("nightly").ready + client.topic_stats("nightly").leased == 0)
        assert item_id


def test_bulk(server: Server, environment: dict[str, str], tmp_path: Path) -> None:
    environment["ROWS_DB"] = str(tmp_path / "rows.db")
    numbers = "".join(f"{number}\n" for number in range(2000))
    assert run("bulk", environment=environment, stdin=numbers) == "2000 stored, 0 refused []\n"

    def rows() -> list[int]:
        with closing(sqlite3.connect(environment["ROWS_DB"])) as database:
            try:
                return sorted(number for (number,) in database.execute("SELECT number FROM rows"))
            except sqlite3.OperationalError:
                return []

    with worker("bulk", environment):
        eventually(lambda: rows() == list(range(2000)))
