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
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.name != "__pycache__")
THANKS = b'{"args":[],"kwargs":{"to":"ada@example.org"}}'
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
def running(command: list[str], environment: dict[str, str], cwd: Path = ROOT) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *command], env=environment, cwd=cwd)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(LATER) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def worker(name: str, environment: dict[str, str]) -> AbstractContextManager[None]:
    return running(["foqs", "worker", f"examples.{name}:app"], environment)


def run(name: str, *args: str, environment: dict[str, str], stdin: str = "", cwd: Path = ROOT) -> str:
    command = [sys.executable, "-m", f"examples.{name}", *args]
    return subprocess.run(
        command, env=environment, input=stdin, capture_output=True, text=True, check=True, timeout=2 * LATER, cwd=cwd
    ).stdout


def test_each_is_at_most_40_lines() -> None:
    """A project in a folder, all its files together."""
    assert len(EXAMPLES) >= 6
    files = {path: [path] if path.is_file() else path.glob("*.py") for path in EXAMPLES}
    lines = {path: sum(len(file.read_text().rstrip().splitlines()) for file in files[path]) for path in EXAMPLES}
    assert {path.name: count for path, count in lines.items() if count > 40} == {}


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


class Web:
    """A web server on a free port."""

    def __init__(self) -> None:
        self.port = str(free_port())

    def __call__(self, path: str, method: str = "GET") -> Any:
        try:
            with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", method=method), timeout=LATER) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                return error.code

    def listens(self) -> bool:
        with suppress(URLError):
            return bool(self("/docs/none") == 404)
        return False


def test_web(server: Server, environment: dict[str, str]) -> None:
    assert foqs(server, "throttle", "set", "customer:*", "--concurrency", "2").returncode == 0
    asked = Web()
    with running(["uvicorn", "examples.web:web", "--port", asked.port], environment):
        eventually(asked.listens)
        ids = [asked(f"/reports?customer=acme&month={month}", "POST") for month in ("2026-10", "2026-11", "2026-10")]
        assert ids[0] == ids[2] != ids[1]  # no report has ended
        with worker("web", environment):
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


def test_django(server: Server, environment: dict[str, str]) -> None:
    environment["DJANGO_SETTINGS_MODULE"] = "examples.django_shop.settings"
    asked = Web()
    web = ["django", "runserver", "--noreload", asked.port]
    with running(["django", "foqs_worker", "--processes", "2"], environment), running(web, environment):
        eventually(asked.listens)
        result_id = asked("/order/17/ada@example.org")["id"]
        eventually(lambda: asked(f"/result/{result_id}")["status"] == "SUCCESSFUL")
        assert asked(f"/result/{result_id}")["value"] == "order 17 is confirmed to ada@example.org"


def test_outbox(server: Server, environment: dict[str, str], tmp_path: Path) -> None:
    run("outbox", "ada@example.org", environment=environment, cwd=tmp_path)
    with Client(server.address, "shop") as client, ExitStack() as stack:
        assert list(client.list_items("mail")) == []
        relay = ["foqs", "outbox", "relay", "sqlite:///shop.sqlite3"]
        stack.enter_context(running(relay, environment, tmp_path))
        eventually(lambda: [item.payload for item in client.list_items("mail")] == [THANKS])
        stack.enter_context(running(["foqs", "worker", "examples.outbox:app"], environment, tmp_path))
        eventually(lambda: not list(client.list_items("mail")))
