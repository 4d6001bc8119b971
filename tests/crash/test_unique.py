"""No two items have one key at a time: kills of the host, and the verdict about what clients saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.unique import (
    LEASE_MS,
    Changed,
    Delivered,
    Ended,
    Event,
    Lost,
    Stored,
    live_spans,
    old_payloads,
    overlaps,
    run_unique,
    waiting_spans,
)
from foqs_lab.servers import Kind, ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewServer

LEASE = LEASE_MS * 1_000_000


@pytest.mark.timeout(400)
def test_a_key_has_one_item_at_a_time(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 3, "unique")
    report = run_unique(shards, tmp_path, seed=1, keys=100, enqueues=20_000, producers=16, kills=5)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    for what in ("stored", "kept", "replaced", "delivered", "redriven"):
        assert report.counts[what], f"{what}: {report}"


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([Stored(0, 1, 7, 1), Ended(5, 6, 1), Stored(6, 7, 7, 2)], 0),
        ([Stored(0, 1, 7, 1), Stored(3, 4, 7, 2), Ended(5, 6, 1)], 1),
        ([Stored(0, 1, 7, 1), Stored(3, 4, 8, 2), Ended(5, 6, 1)], 0),
        ([Stored(0, 1, 7, 1), Ended(2, 3, 1), Stored(3, 4, 7, 2), Delivered(5, 6, 7, 1, 1)], 1),
        ([Stored(0, 1, 7, 1), Ended(2, 9, 1), Stored(3, 4, 7, 2), Delivered(5, 6, 7, 1, 1)], 0),
        ([Stored(0, 1, 7, 1), Delivered(2, 3, 7, 1, 1), Stored(LEASE + 5, LEASE + 6, 7, 2)], 1),
        ([Stored(0, 1, 7, 1), Delivered(2, 3, 7, 1, 2), Stored(LEASE + 5, LEASE + 6, 7, 2)], 0),
        ([Stored(0, 1, 7, 1), Delivered(2, 3, 7, 1, 1), Lost(4, 5), Stored(LEASE + 6, LEASE + 7, 7, 2)], 0),
        ([Stored(0, 1, 7, 1), Delivered(2, 3, 7, 1, 1), Lost(4, 5), Stored(LEASE - 7, LEASE - 6, 7, 2)], 1),
    ],
)
def test_two_items_that_live(events: list[Event], wrong: int) -> None:
    assert len(overlaps(events, live_spans(events))) == wrong


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([Stored(0, 1, 7, 1), Delivered(2, 3, 7, 1, 1), Stored(4, 5, 7, 2)], 0),
        ([Stored(0, 1, 7, 1), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 1)], 1),
        ([Stored(0, 1, 7, 1), Lost(2, 3), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 1)], 1),
        ([Stored(0, 1, 7, 1), Lost(2, 3), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 2)], 0),
        ([Stored(0, 1, 7, 1), Lost(2, 3), Stored(4, 5, 7, 2)], 0),
        ([Stored(1, 2, 7, 1), Lost(0, 3), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 2)], 0),
        ([Stored(1, 2, 7, 1), Lost(0, 1), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 2)], 1),
        ([Stored(0, 9, 7, 1), Delivered(2, 3, 7, 1, 1), Stored(4, 5, 7, 2), Delivered(10, 11, 7, 2, 1)], 0),
        ([Stored(0, 1, 7, 1), Delivered(2, 5, 7, 1, 2), Delivered(3, 4, 7, 1, 1), Stored(6, 7, 7, 2), Lost(20, 21)], 0),
        ([Stored(0, 1, 7, 1), Stored(2, 3, 7, 2), Delivered(4, 5, 7, 1, 2), Lost(20, 21)], 1),
        # The item may be delivered before its enqueue is answered.
        ([Stored(0, 5, 7, 1), Lost(1, 3), Stored(6, 7, 7, 2), Delivered(8, 9, 7, 1, 2)], 0),
        # A redrive begins with attempt 1 again.
        ([Stored(0, 1, 7, 1), Lost(2, 3), Stored(4, 5, 7, 2), Delivered(2 * LEASE + 2, 2 * LEASE + 3, 7, 1, 1)], 0),
        ([Stored(0, 1, 7, 1), Lost(3, 3), Stored(4, 5, 7, 2), Delivered(2 * LEASE + 2, 2 * LEASE + 3, 7, 1, 1)], 1),
        ([Stored(0, 1, 7, 1), Lost(2, 3), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 2), Delivered(8, 9, 7, 1, 1)], 0),
        ([Stored(0, 1, 7, 1), Stored(4, 5, 7, 2), Delivered(6, 7, 7, 1, 2), Delivered(8, 9, 7, 1, 1)], 1),
    ],
)
def test_two_items_that_wait(events: list[Event], wrong: int) -> None:
    assert len(overlaps(events, waiting_spans(events))) == wrong


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([Stored(0, 1, 7, 1, 10), Changed(2, 3, 7, 1, 11), Delivered(4, 5, 7, 1, 1, 11)], 0),
        ([Stored(0, 1, 7, 1, 10), Changed(2, 3, 7, 1, 11), Delivered(4, 5, 7, 1, 1, 10)], 1),
        ([Stored(0, 1, 7, 1, 10), Changed(2, 4, 7, 1, 11), Delivered(3, 5, 7, 1, 1, 10)], 0),
        ([Stored(0, 1, 7, 1, 10), Changed(2, 4, 7, 1, 11), Changed(3, 5, 7, 1, 12), Delivered(6, 7, 7, 1, 1, 11)], 0),
        ([Stored(0, 1, 7, 1, 10), Changed(2, 3, 7, 1, 11), Delivered(4, 5, 7, 1, 1, 12)], 0),
    ],
)
def test_an_item_that_comes_with_an_old_payload(events: list[Event], wrong: int) -> None:
    assert len(old_payloads(events)) == wrong
