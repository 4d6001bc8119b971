"""Pages of the docs as a reader uses them: blocks of code, the files that they name, and the terminals they run in.

A block says by its language and its title what a reader does with it:

    ```sh                                       runs in the reader's terminal, and succeeds
    ```sh title="Terminal 2: keeps running"     runs in a terminal of its own until its next command, or the page's end
    ```text                                     what the block before it prints
    ```text title="Terminal 2"                  what that terminal has printed by now, lines in any order
    ```python                                   is typed into one Python session of the page
    ```python title="shop.py"                   is saved as that file; any language
    ```python title="shop.py, continued"        is added to that file

Outputs are compared after `masked`. `…` stands for any text in a line, and for any lines on a line of its own.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from foqs_lab.servers.process import free_port
from tests.api.hosts import ROOT, environment

DOCS = ROOT / "docs"
UNTIL_S = 60.0
_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]*)\")?[^\n]*\n(.*?)^```$", re.M | re.S)
_LOCAL_PORT = re.compile(r"(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
_CONSOLE = "7780"
_RUNNING = re.compile(r"(Terminal \d+): keeps running")
_LOOKS = re.compile(
    r"foqs (topics|items|item|explain|result|failing|dead list|status|consumers|tenants|topic|cluster status)\b"
)
"""Commands that a reader repeats until the state is there."""
_MASKS = (
    (r"\x1b\[[\d;]*m", ""),
    (r"\b\d{12,}\b", "ID"),
    (r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "UUID"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?( ?UTC|Z|[+-]\d\d:\d\d)?", "TIME"),
    (r"≤?\b\d+(\.\d+)? ?(ms|s|m|min|h)\b", "AGE"),
    (r"\b[\w.-]+:\d{4,5}\b", "HOST"),
    (r"\s+", " "),
)
_SHELL = 'set -e; while read -r script <&9; do . "$script"; echo; echo MARK; done'
_PYTHON = """
names = {"__name__": "page"}
with open(9) as scripts:
    while path := scripts.readline().strip():
        with open(path) as script:
            text = script.read()
        exec(compile(text, "page", "exec"), names)
        print("\\nMARK", flush=True)
"""


class Block(NamedTuple):
    language: str
    title: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page's text."""
    return [
        Block(found[1], found[2] or "", found[3], page.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(page)
    ]


def masked(shown: str) -> str:
    for pattern, mask in _MASKS:
        shown = re.sub(pattern, mask, shown)
    return shown.strip()


def agrees(wanted: str, shown: str) -> bool:
    """Say if an output is what the page shows."""
    lines = [masked(line) for line in wanted.splitlines() if line.strip()]
    printed = [masked(line) for line in shown.splitlines() if line.strip()]
    pattern = "".join(r"(.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\n" for line in lines)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def lacks(wanted: str, shown: str) -> list[str]:
    """Return the lines that a terminal has not printed."""
    printed = [masked(line) for line in shown.splitlines()]
    lines = [masked(line) for line in wanted.splitlines() if line.strip() not in ("", "…")]
    return [line for line in lines if not any(re.fullmatch(re.escape(line).replace("…", ".*"), one) for one in printed)]


class Terminal:
    """A process on a terminal of 80 columns, and its output."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str], **options: object) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )
        os.close(theirs)
        self.shown = ""

    def read(self, until_s: float) -> bool:
        """Read what the process has printed, or wait for it until a time. Return False if nothing comes."""
        with suppress(OSError):  # EIO: the process has ended
            if select.select([self._ours], [], [], max(0.0, until_s - time.monotonic()))[0]:
                self.shown += os.read(self._ours, 65_536).decode(errors="replace").replace("\r\n", "\n")
                return True
        return False

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the status."""
        os.killpg(self.process.pid, signal.SIGINT)
        until_s = time.monotonic() + UNTIL_S
        while self.read(until_s):
            pass
        return self.process.wait(UNTIL_S)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)


class Session(Terminal):
    """An interpreter that runs one script after another, and keeps variables and names."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str]) -> None:
        ours, self._scripts = os.pipe()
        command = ["bash", "-c", f'exec 9<&{ours}; exec "$@"', "bash", *argv]
        super().__init__(command, folder, env, pass_fds=(ours,))
        os.close(ours)
        self._script = folder / ".script"

    def run(self, text: str) -> tuple[bool, str]:
        """Run a script, and return its success and its output. The session ends with the first that fails."""
        self._script.write_text(text)
        self.shown = ""
        os.write(self._scripts, f"{self._script}\n".encode())
        until_s = time.monotonic() + UNTIL_S
        while not self.shown.endswith("\nMARK\n"):
            if not self.read(until_s):
                return False, self.shown
        return True, self.shown.removesuffix("\nMARK\n")

    def close(self) -> None:
        super().close()
        os.close(self._scripts)


class Reader:
    """Does what a page says, in a folder. Each port of this machine that the page names is another one."""

    def __init__(self, page: Path, folder: Path, python: Path | None = None) -> None:
        """`python` has foqs installed. By default it is this one, which finds foqs in the checkout."""
        self.text = page.read_text()
        self._page = page.name
        self._folder = folder
        self._ports = {port: str(free_port()) for port in {"7707", _CONSOLE, *_LOCAL_PORT.findall(self.text)}}
        home, binaries = folder / ".home", folder / ".bin"
        for made in (home, binaries):
            made.mkdir(exist_ok=True)  # a page may continue another one in its folder
        interpreter = str(python or sys.executable)
        for name, run in (("foqs", "-m foqs"), ("python", "")):
            (binaries / name).write_text(f'#!/bin/sh\nexec "{interpreter}" {run} "$@"\n')
            (binaries / name).chmod(0o755)
        self._env = environment(
            HOME=str(home),
            PATH=f"{binaries}:{os.environ['PATH']}",
            PYTHONPATH=str(folder) if python else f"{folder}:{ROOT}",
            PYTHONUNBUFFERED="1",
            FOQS_SERVER__PORT=self._ports["7707"],
            FOQS_ADMIN__PORT=self._ports.get("9707", "0"),
            FOQS_ADDRESS=f"127.0.0.1:{self._ports['7707']}",
            TERM="dumb",  # rich gives it 80 columns
            NO_COLOR="1",
        )
        self._running: dict[str, Terminal] = {}
        self._sessions = {
            "sh": Session(["bash", "-c", _SHELL], folder, self._env),
            "python": Session([interpreter, "-c", _PYTHON], folder, self._env),
        }

    def own(self, text: str) -> str:
        """Return a text with the ports that this reader uses."""
        text = text.replace(" dev --console\n", f" dev --console --console-port {_CONSOLE}\n")
        return re.sub(r"\b\d{4,5}\b", lambda found: self._ports.get(found[0], found[0]), text)

    def follow(self) -> None:
        """Do all that the page says, then press Ctrl-C in each terminal."""
        found = blocks(self.text)
        for at, block in enumerate(found):
            shown = next((one for one in found[at + 1 : at + 2] if (one.language, one.title) == ("text", "")), None)
            self._do(block, self.own(shown.text) if shown else None)
        for name, terminal in reversed(self._running.items()):
            self._end(name, terminal)

    def _end(self, name: str, terminal: Terminal) -> None:
        assert terminal.process.poll() is None, f"{name} has ended: {terminal.shown}"
        while terminal.read(0.0):  # output from before Ctrl-C
            pass
        terminal.shown = ""
        status = terminal.interrupt()
        assert status in (0, 130, -signal.SIGINT), f"{name}: {status}: {terminal.shown}"
        assert "Traceback" not in terminal.shown, f"{name}, at Ctrl-C: {terminal.shown}"

    def _do(self, block: Block, wanted: str | None) -> None:
        where, text = f"{self._page}:{block.line}", self.own(block.text)
        if block.language == "text":
            if block.title:
                self._wait_for(text, self._running[block.title], where)
            return
        if block.language == "sh" and (running := _RUNNING.fullmatch(block.title)):
            assert wanted is not None, f"{where}: a block of text says what the terminal prints when it is ready"
            if (before := self._running.pop(running[1], None)) is not None:
                self._end(running[1], before)
            terminal = Terminal(["bash", "-ec", text], self._folder, self._env)
            self._running[running[1]] = terminal
            self._wait_for(wanted, terminal, where)
        elif block.title:
            self._save(block.title, text)
        elif session := self._sessions.get(block.language):
            self._run(session, text, wanted, where)
        else:
            raise AssertionError(
                f"{where}: nothing checks a block of {block.language or 'no language'} without a title"
            )

    def _save(self, title: str, text: str) -> None:
        name, _, more = title.partition(", ")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if more == "continued" else "w") as file:
            file.write(text)

    def _run(self, session: Session, text: str, wanted: str | None, where: str) -> None:
        until_s = time.monotonic() + UNTIL_S
        while True:
            succeeded, shown = session.run(text)
            assert succeeded, f"{where}: {shown}"
            if wanted is None or agrees(wanted, shown):
                return
            assert _LOOKS.match(text) and time.monotonic() < until_s, f"{where} shows\n{wanted}\nand not\n{shown}"

    def _wait_for(self, wanted: str, terminal: Terminal, where: str) -> None:
        until_s = time.monotonic() + UNTIL_S
        while missing := lacks(wanted, terminal.shown):
            assert terminal.read(until_s), f"{where}: never printed {missing}, but\n{terminal.shown}"

    def close(self) -> None:
        for terminal in [*self._running.values(), *self._sessions.values()]:
            terminal.close()


def pages() -> Iterator[Path]:
    """Return all pages of the site."""
    yield from sorted(DOCS.rglob("*.md"))
