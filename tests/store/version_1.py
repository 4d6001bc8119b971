"""Databases of schema version 1: stored dumps, and the code of that version from git's history."""

from __future__ import annotations

import subprocess
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.store.asking import run

ROOT = Path(__file__).parent.parent.parent
LAST_COMMIT = "0ff2697"
"""The last commit whose code makes and knows version 1 only."""
NUMBER = 7
TABLES = ("item", "ready", "timer", "expiry", "lane", "dedup", "shard")
PAYLOADS = {
    ("shop", "mail"): [b"mail-urgent", *(b"mail-ready-%d" % n for n in range(3)), b"mail-delayed-0", b"mail-delayed-1"],
    ("shop", "sync"): [*(b"sync-ready-%d" % n for n in range(3)), b"sync-ttl-0", b"sync-ttl-1", b"sync-delayed-ttl"],
    ("shop", "train"): [*(b"train-ready-%d" % n for n in range(3)), b"train-keyed-0", b"train-keyed-1"],
    ("shop", "leased"): [b"leased-0", b"leased-1", b"leased-2"],
    ("shop", "once"): [b"once-0"],
    ("other", "jobs"): [b"other-ns-0"],
}
"""What the dumps hold: `mail-urgent` has priority -5; the delays and leases have ended; `train-keyed-*` have the
dedup_keys `order-1` and `order-2`."""


def load(url: str, kind: str) -> str:
    """Fill an empty database from the stored dump of its kind, and return `url`."""
    dump = (Path(__file__).parent / "dumps" / f"version_1_{kind}.sql").read_text()
    comment, *statements = (dump.partition("\n")[0], *dump.partition("\n")[2].strip().removesuffix(";").split(";\n"))
    assert comment.startswith("--")
    run(url, *statements)
    return url


def old_code(directory: Path) -> Path:
    """Extract the code of `LAST_COMMIT`; skip the test where git's history does not reach back to it."""
    archive = subprocess.run(
        ["git", "archive", "--format=zip", LAST_COMMIT, "foqs", "thrift"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"git has no commit {LAST_COMMIT} here (an sdist or a shallow clone): {archive.stderr.decode()}")
    with ZipFile(BytesIO(archive.stdout)) as files:
        files.extractall(directory)
    return directory


def old_environment(code: Path) -> dict[str, str]:
    """The environment in which `python -m foqs` runs `code`, from any working directory."""
    return {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
