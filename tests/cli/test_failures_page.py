"""Runs the commands of docs/do/failures.md in order, like a newcomer with three terminals.

The test replaces only the port. It compares the outputs with the page, but for ids, times, and which of two equal items
comes first.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from foqs_lab.servers.process import free_port
from tests.api.hosts import ROOT, environment
from tests.cli.test_readme import Checkout, checkout, says

__all__ = ["checkout"]
PAGE = (ROOT / "docs/do/failures.md").read_text()
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
_LOOKS = ("foqs topics", "foqs topic policy mail\n", "foqs items", "foqs dead list mail")
"""Commands that a newcomer repeats until the state is there."""
_UNTIL_S = 60.0
_TERMINAL = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
_MASKS = (
    (r"\b\d{12,}\b", "ID"),
    (r"≤?\b\d+[smh]\b", "AGE"),
    (r"\b(bob|cleo)\b", "NAME"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"\b[\w.-]+:\d+\b", "WORKER"),
    (r"\b\d+ attempts? failed in the last 10 minutes(, \d+ in the last one)?", "FAILED"),
    (r"(failed/min(?:\s+\d+){3,4}?)(?:\s+<?[\d.]+){4}(?![\d.]|\s+<?\d)", r"\1 RATES"),  # 4: of a paused topic
    (r"\s+", " "),
)


class Block(NamedTuple):
    language: str
    text: str
    shown: str


BLOCKS = [Block(*found) for found in _BLOCK.findall(PAGE)]


def masked(shown: str) -> str:
    for pattern, mask in _MASKS:
        shown = re.sub(pattern, mask, shown)
    return shown.strip()


def says_all(worker: subprocess.Popen[str], wanted: str) -> None:
    """Read the worker's output until it has all lines of `wanted`, in any order."""
    assert worker.stdout is not None
    missing, seen = [masked(line) for line in wanted.splitlines()], []
    bound = threading.Timer(_UNTIL_S, worker.kill)
    bound.daemon = True
    bound.start()
    while missing:
        seen.append(worker.stdout.readline())
        assert seen[-1], f"it never said {missing}: {''.join(seen)}"
        if masked(seen[-1]) in missing:
            missing.remove(masked(seen[-1]))
    bound.cancel()


class Terminals:
    def __init__(self, checkout: Checkout, port: int) -> None:
        self.checkout = checkout
        self._port = port

    def start(self, script: str, **env: str) -> subprocess.Popen[str]:
        return self.checkout.terminal(f"source .venv/bin/activate\nexec {script}", **env)

    def type(self, script: str) -> str:
        """Run commands in a terminal of 80 columns. Return its text."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", f"set -e\nsource .venv/bin/activate\n{script}"],
            env=environment(HOME=str(self.checkout.home), FOQS_ADDRESS=f"127.0.0.1:{self._port}", **_TERMINAL),
            cwd=self.checkout.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown, until_s = b"", time.monotonic() + _UNTIL_S
        with suppress(OSError):  # EIO: the commands have ended
            while select.select([ours], [], [], max(0.0, until_s - time.monotonic()))[0]:
                shown += os.read(ours, 65_536)
        os.close(ours)
        text = shown.decode().replace("\r\n", "\n")
        assert process.wait(_UNTIL_S) == 0, text
        return text


@pytest.fixture
def terminals(checkout: Checkout) -> Iterator[Terminals]:
    port = free_port()
    running = Terminals(checkout, port)
    dev = running.start("foqs dev", FOQS_SERVER__PORT=str(port), FOQS_ADMIN__PORT="0")
    says(dev, f"foqs listening on 127.0.0.1:{port}")
    (program,) = [block.text for block in BLOCKS if block.language == "python"]
    checkout.folder.joinpath("worker.py").write_text(program.replace(":7707", f":{port}"))
    yield running
    assert "Traceback" not in checkout.interrupt(dev)


def test_the_way_to_redrive_works_as_written(terminals: Terminals) -> None:
    commands = [block for block in BLOCKS if block.language == "sh"]
    assert commands.pop(0).text == "foqs dev\n"
    worker: subprocess.Popen[str] | None = None
    for block in commands:
        if block.text == "python worker.py\n":
            assert worker is None, "the page stops the worker first"
            worker = terminals.start("python worker.py")
            says_all(worker, block.shown)
        elif block.text.startswith("sed"):
            assert worker is not None
            os.killpg(worker.pid, signal.SIGINT)  # "Stop the worker with Ctrl-C"
            assert "Exception in" not in worker.communicate(timeout=_UNTIL_S)[0]
            worker = None
            terminals.type(block.text)
        else:
            until_s = time.monotonic() + _UNTIL_S
            shown = terminals.type(block.text)
            while block.text.startswith(_LOOKS) and masked(shown) != masked(block.shown) and time.monotonic() < until_s:
                shown = terminals.type(block.text)
            assert masked(shown) == masked(block.shown), f"{block.text}\n{shown}"
            if block.text == "foqs dead redrive mail.dlq\n":
                assert worker is not None
                says_all(worker, "INFO:root:sent to cleo@example.org")
    assert worker is not None
    says_all(worker, "INFO:root:sent to dora@example.org")
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait(timeout=_UNTIL_S) == 0


def test_every_output_of_the_page_is_one_of_a_command() -> None:
    assert sum(bool(block.shown) for block in BLOCKS) == PAGE.count("```text\n")
    assert len(BLOCKS) * 2 + PAGE.count("```text\n") * 2 == PAGE.count("```")
