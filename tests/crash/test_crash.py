"""Promises 1, 2, 4 and 7 through crashes: a host killed 20 times and its database server 5 times, under load."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.kills import crash_test
from foqs_lab.servers import Kind, ServerSettings

if TYPE_CHECKING:
    from tests.conftest import NewServer


HOST_KILLS = 20
DATABASE_KILLS = 5


@pytest.mark.timeout(600)
def test_every_reply_stays_true_after_crashes(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    """FOQS_CRASH_SEED repeats a run's random choices (its timing is the machine's)."""
    seed = int(os.environ.get("FOQS_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 3, "crash")
    report = crash_test(server, shards, tmp_path, seed=seed, host_kills=HOST_KILLS, database_kills=DATABASE_KILLS)
    print(f"{kind}: {report}")
    assert report.good, f"{report}\nlogs: {tmp_path}"
    counts = report.tally
    assert (counts.host_crashes, counts.database_crashes) == (HOST_KILLS, DATABASE_KILLS)
    # A run in which nothing was in doubt and nothing came again has shown nothing.
    assert counts.enqueued > 2_000
    assert counts.enqueue_unknown and counts.ack_unknown and counts.redelivered and counts.stale_refused
