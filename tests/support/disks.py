"""Small disks, for tests of full ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def small_disk(tmp_path: Path, request: pytest.FixtureRequest, size_bytes: int) -> Path:
    """A folder on a disk of its own, of that size. Skips the test where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "foqs-test", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted: {mounted.stderr.strip()}")
    request.addfinalizer(lambda: subprocess.run(["umount", "--lazy", folder], check=True))
    return folder


def remount(folder: Path, size_bytes: int) -> None:
    """Changes the size of a `small_disk`."""
    subprocess.run(["mount", "-o", f"remount,size={size_bytes}", folder], check=True)
