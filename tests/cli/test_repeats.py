"""The lines of a host that repeat while something stays bad are counted, whatever their event is."""

from __future__ import annotations

import json
import resource
import threading
from collections import Counter
from pathlib import Path

import pytest

from foqs.cli.repeats import BURST, EVERY_S, KEPT_APART, NOT_FOLDED, QUIET_S, Fold, Last, Repeats
from foqs.client import Client, FoqsError
from tests.api.hosts import HostProcess, until
from tests.test_log_events import told

SINCE = "2026-11-29T03:00:00Z"
HOST = ("shard.", "store.", "settings.", "request.", "outcome.", "forward.", "owner.", "assignment.", "slots.", "hook.",
        "record.", "znode.", "credential.", "folders.", "host.", "facts.", "kazoo.", "session.", "clock.", "loop.",
        "handler.", "connection.", "frame.", "schedule.", "admin.", "thread.")  # fmt: skip


def failed(shard: int = 1, reason: str = "the disk is full (1)", event: str = "shard.failed") -> Last:
    return Last("foqs.host", "warning", {"event": event, "shard": shard, "reason": reason})


def shown(lines: list[Last]) -> list[tuple[object, object, object]]:
    return [(line.event.get("repeats"), line.event["since"], line.event.get("ended")) for line in lines]


def test_the_first_line_is_written_and_its_repeats_are_counted() -> None:
    repeats, written = Repeats(), 0
    for second in range(181):
        written += repeats.writes(failed(), 1, float(second), SINCE)
        due = list(repeats.due(float(second)))
        assert shown(due) == ([(second, SINCE, None)] if second in (60, 120, 180) else [])
    assert written == 1
    assert shown(list(repeats.due(180 + QUIET_S))) == [(180, SINCE, True)]
    assert list(repeats.due(1_000.0)) == []
    assert repeats.writes(failed(), 1, 1_000.0, SINCE), "a new beginning"


def test_an_event_that_does_not_repeat_is_one_line() -> None:
    repeats = Repeats()
    assert repeats.writes(failed(), 1, 0.0, SINCE)
    assert list(repeats.due(QUIET_S)) == []
    assert len(repeats) == 0


def test_another_shard_event_or_kind_of_error_is_written_at_once() -> None:
    repeats = Repeats()
    new = [
        failed(), failed(2), failed(event="shard.hangs"), failed(reason="denied"),
        Last("foqs.host", "error", {"event": "shard.crashed", "shard": 1, "exc_info": ValueError("a")}),
        Last("foqs.host", "error", {"event": "shard.crashed", "shard": 1, "exc_info": KeyError("a")}),
    ]  # fmt: skip
    for line in new:
        assert repeats.writes(line, 1, 0.0, SINCE), line
    for line in [*new, failed(reason="the disk is full (2)")]:
        assert not repeats.writes(line, 1, 1.0, SINCE), line


def test_more_kinds_than_are_kept_are_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.cli.repeats._MOST", 2)
    repeats = Repeats()
    assert [repeats.writes(failed(shard), 1, 0.0, SINCE) for shard in (1, 2, 3, 3)] == [True] * 4
    assert len(repeats) == 2
    assert repeats.writes(failed(3), 1, QUIET_S, SINCE)
    assert not repeats.writes(failed(3), 1, QUIET_S, SINCE), "the old ones made room"


@pytest.mark.parametrize("event", [row for row in told() if row[1] != "debug" and row[0].startswith(HOST)])
def test_each_event_of_a_host_is_bounded(event: tuple[str, str, frozenset[str]]) -> None:
    """An event that the code logs is in docs/reference/logs.md, and so in this test. A new one is folded by itself."""
    name, level, fields = event
    written: list[Last] = []
    now_s = 0.0
    fold = Fold(written.append, lambda: now_s)
    passed = 0
    for call in range(1_000):
        now_s = call / 10
        values = {field: 7 for field in fields if field != "..."}
        passed += fold.passes("foqs.host", level, {"event": name, **values, "reason": f"failure {call}"})
    fold.end()
    assert name in NOT_FOLDED or passed + len(written) <= BURST + 1_000 / 10 / EVERY_S + 1, name


def test_lines_that_are_all_wanted_are_not_folded() -> None:
    fold = Fold(lambda _: None)
    for logger in KEPT_APART:
        assert all(fold.passes(logger, "warning", {"event": "audit.refused", "why": "x"}) for _ in range(100))
    assert all(fold.passes("foqs.host", "debug", {"event": "x"}) for _ in range(100))


@pytest.mark.process
def test_a_full_disk_does_not_fill_the_log(tmp_path: Path) -> None:
    """It wrote a line for each transaction that failed: hundreds in a minute."""
    shards, calls = 4, 40
    data = tmp_path / "data"
    args = ["dev", "--port", "0", "--data-dir", data, "--shards", shards]
    with HostProcess(tmp_path / "log", args, {"FOQS_LOG__FORMAT": "json"}) as host:
        until(lambda: host.lines, host.said)
        address = json.loads(host.lines[0])["address"]
        with Client(address, "full", timeout_ms=500) as client:
            client.enqueue("t", b"x")
            none = resource.prlimit(host.pid, resource.RLIMIT_FSIZE)
            largest = max(file.stat().st_size for file in data.iterdir())
            resource.prlimit(host.pid, resource.RLIMIT_FSIZE, (largest, none[1]))
            refused = Counter[str]()

            def load() -> None:
                for _ in range(calls):
                    try:
                        client.enqueue("t", b"y" * 2_000)
                    except FoqsError as error:
                        refused[type(error).__name__] += 1

            threads = [threading.Thread(target=load) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert refused.total() > calls
            resource.prlimit(host.pid, resource.RLIMIT_FSIZE, none)
            until(lambda: client.enqueue("t", b"x", timeout_ms=60_000), "the database takes writes again")
        host.process.send_signal(15)
        assert host.wait() == 0
        lines = [json.loads(line) for line in host.said().splitlines()]
    counted = sum(line.get("repeats", 0) for line in lines if line["event"] == "shard.failed")
    assert counted > 100, "the disk was full"
    assert len(lines) < 12 + shards * 4, host.said()
    assert {line["shard"] for line in lines if line["event"] == "shard.failed" and "repeats" not in line} == {
        1,
        2,
        3,
        4,
    }
