"""The line about shards that cannot be opened is written when it is due, with its fields, and not after the end."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from foqs.server.outages import OpenLog
from tests.server.loop import HandLoop

pytestmark = pytest.mark.memory

SHARDS = frozenset({1, 2, 3})


@pytest.fixture
def loop() -> HandLoop:
    return HandLoop()


@pytest.fixture
def log(loop: HandLoop) -> OpenLog:
    return OpenLog(SHARDS, loop, lambda: True)  # type: ignore[arg-type]


def test_shards_that_fail_together_share_a_line(loop: HandLoop, log: OpenLog) -> None:
    log.failed(1, "refused", held=False)
    log.failed(2, "refused", held=True)
    assert len(loop.set) == 1, "one timer"
    with capture_logs() as lines:
        loop.wait(loop.set[0])
    assert lines == [
        {
            "event": "shard.not_opened", "log_level": "warning", "shards": [1, 2], "not_open": 2, "of": 3,
            "reason": "refused", "reasons": 1, "waiting": 1, "again_ms": 2_000, "serving": True,
        }
    ]  # fmt: skip
    assert loop.set == [2_000], "the pause until the next line"


def test_a_shard_that_opens_leaves_no_timer(loop: HandLoop, log: OpenLog) -> None:
    log.failed(1, "refused", held=False)
    log.opened(1)
    assert loop.set == []


def test_no_line_is_written_after_the_end(loop: HandLoop, log: OpenLog) -> None:
    log.failed(1, "refused", held=False)
    log.close()
    with capture_logs() as lines:
        loop.wait(60_000)
    assert lines == []
