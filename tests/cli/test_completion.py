"""Completion of `foqs` in real shells: the words that Tab writes in a terminal, after `foqs --install-completion`."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.hosts import environment

_UNTIL_S = 60.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?>=]*[a-zA-Z]|\][^\x07]*\x07|[=>()].?)")
SHELLS = {"bash": ["--noprofile"], "zsh": ["-d"], "fish": ["--private"]}


class Terminal:
    """An interactive shell of a user with this home."""

    def __init__(self, shell: str, home: Path) -> None:
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", shell, *SHELLS[shell], "-i"],
            env=environment(HOME=str(home), TERM="xterm", PS1="$ ", PATH=path(), XDG_CONFIG_HOME=str(home / ".config")),
            cwd=home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.shell, self.seen = shell, ""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, text: str) -> None:
        """Read until the terminal shows the text; a bell inside it does not count."""
        until_s = time.monotonic() + _UNTIL_S
        while text not in self.seen and text not in self.seen.replace("\a", ""):
            left_s = until_s - time.monotonic()
            assert left_s > 0, f"the terminal never showed {text!r}: {self.seen!r}"
            if select.select([self._terminal], [], [], left_s)[0]:
                read = os.read(self._terminal, 65_536).decode(errors="replace")
                self.seen += _ESCAPES.sub("", read)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_UNTIL_S)
        os.close(self._terminal)


def path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}: script/apt {shell}")
    env = environment(HOME=str(tmp_path), PATH=path(), XDG_CONFIG_HOME=str(tmp_path / ".config"))
    installed = subprocess.run(
        [shell, "-c", "foqs --install-completion; true"], env=env, cwd=tmp_path, text=True, capture_output=True
    )
    assert f"{shell} completion installed" in installed.stdout, installed.stderr
    made = Terminal(shell, tmp_path)
    yield made
    made.close()


@pytest.mark.process
def test_tab_completes_commands_and_options(terminal: Terminal) -> None:
    terminal.type("echo rea''dy\n")
    terminal.until("ready")
    terminal.type("foqs consum\t")
    if terminal.shell == "zsh":  # the first Tab of a session loads the script, as the page says, and rings
        terminal.until("\a")
        terminal.type("\t")
    terminal.until("foqs consumers")
    terminal.type("--addr\t")
    terminal.until("--address")
