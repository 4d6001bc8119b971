"""A checkout after script/setup, as a user has it, and terminals in it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.hosts import environment


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
