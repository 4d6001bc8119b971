"""start/install.md in an empty environment, which then is enough for the first task of a new user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import foqs
from tests.api.hosts import ROOT
from tests.support.pages import DOCS, Reader, blocks

SOURCE = "/path/to/foqs"


@pytest.mark.process
@pytest.mark.slow
def test_what_the_page_installs_runs_the_first_task(tmp_path: Path) -> None:
    """Only the path of the checkout is another one. pip needs its index."""
    commands = [block.text for block in blocks((DOCS / "start/install.md").read_text()) if block.language == "sh"]
    assert [SOURCE in command for command in commands] == [True, True]
    python3 = tmp_path / "bin" / "python3"
    python3.parent.mkdir()
    python3.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')  # type: ignore[attr-defined]
    python3.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FOQS_", "PYTHON", "VIRTUAL_"))}
    ran = subprocess.run(
        ["bash", "-ec", "".join(commands).replace(SOURCE, str(ROOT))],
        cwd=tmp_path, env={**env, "PATH": f"{python3.parent}:/usr/bin:/bin"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"foqs {foqs.__version__} (pure Python)" in ran.stdout.splitlines()
    folder = tmp_path / "project"
    folder.mkdir()
    reader = Reader(DOCS / "start/first-task.md", folder, python=tmp_path / ".venv/bin/python")
    try:
        reader.follow()
    finally:
        reader.close()
