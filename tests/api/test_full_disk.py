"""A host whose SQLite shards are on a full disk: it says so at once, and goes on when there is room."""

from pathlib import Path
from typing import Any

import pytest

from foqs.idl import idl
from tests.api.conftest import whole
from tests.api.hosts import PATIENT, dev, until
from tests.api.wire import Code, Wire, spec
from tests.support.disks import remount, small_disk

PATIENCE = idl.RequestContext(timeout_ms=120_000)
"""Longer than `receive` waits: an answer is none of a time-out."""


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
def test_enqueues_on_a_full_disk_are_unavailable(
    key: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    disk = small_disk(tmp_path, request, 4 << 20)
    with dev(disk, "--shards", "1", **PATIENT) as host, Wire(whole(host).address) as wire:

        def enqueue(payload: bytes, n: int) -> Any:
            (outcome,) = wire.outcomes(spec("t", payload, dedup_key=key and f"{key}-{n}"), context=PATIENCE)
            return outcome.error

        errors = [error for n in range(100) if (error := enqueue(bytes(100_000), n)) is not None]
        assert {error.code for error in errors} == {Code.UNAVAILABLE}
        full = [error.message for error in errors if "the database of shard 1 is full" in error.message]
        assert full
        # A COMMIT that failed may close the shard, and it opens again.
        assert {error.message for error in errors} - set(full) <= {"the keys' shard is not open"}
        assert all(error.retry_after_ms >= 100 for error in errors)
        assert "the disk is full (SQLite 13)" in host.said()
        remount(disk, 64 << 20)
        until(lambda: enqueue(b"x", 1_000) is None, "an item on the disk with room")
