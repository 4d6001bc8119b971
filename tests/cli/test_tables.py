"""Values and tables on a terminal of 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from foqs.cli.look import items_table, topics_table
from foqs.cli.terminal import Column, duration, preview, show, table
from foqs.client import ActiveTopic, Failure, Item, ItemState

NOW_MS = 10_000_000
LARGEST_ID = (1 << 63) - 1


def lines(table: Table, width: int = 80) -> list[str]:
    shown = io.StringIO()
    Console(file=shown, width=width, markup=False, highlight=False, emoji=False).print(table)
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def item(**fields: Any) -> Item:
    plain = {"id": 281474976710657, "state": ItemState.READY, "payload": b"hello", "enqueued_at_ms": NOW_MS - 90_000}
    return Item(**plain | fields)


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(-5, "0s"), (999, "0s"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h"), (90 * 86_400_000, "90d")],
)
def test_a_duration_has_one_unit(ms: int, shown: str) -> None:
    assert duration(ms) == shown


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", ""),
        (b"a\n\t b", "a b"),
        (b"\xff" * 1_500, "(1,500 bytes)"),
        ("\x1b[31mé".encode(), "·[31mé"),
        ("é".encode() * 1_000, "é" * 200),
        (b"x" + "é".encode() * 1_000, "x" + "é" * 199),
        (b"cut \xc3", "(5 bytes)"),
    ],
)
def test_a_payload_is_shown_in_one_line(payload: bytes, shown: str) -> None:
    assert preview(payload) == shown


def test_a_row_for_each_item() -> None:
    found = [
        item(),
        item(state=ItemState.DELAYED, deliver_after_ms=NOW_MS + 61_000, priority=-7),
        item(state=ItemState.LEASED, lease_expires_at_ms=NOW_MS + 5_000, attempt=3),
    ]
    header, *rows = [line.split() for line in lines(items_table(found, NOW_MS))]
    assert header == ["id", "state", "next", "priority", "attempt", "age", "payload"]
    assert rows == [
        ["281474976710657", "ready", "-", "0", "0", "1m", "hello"],
        ["281474976710657", "delayed", "1m", "-7", "0", "1m", "hello"],
        ["281474976710657", "leased", "5s", "0", "3", "1m", "hello"],
    ]


def test_the_widest_item_is_one_line_of_a_terminal() -> None:
    wide = item(id=LARGEST_ID, state=ItemState.DELAYED, priority=-(1 << 31), attempt=12_345, payload=b"x" * 500)
    _, row = lines(items_table([wide], NOW_MS))
    assert len(row) <= 80
    assert row.startswith(f"{LARGEST_ID}  delayed")
    assert f" {-(1 << 31)} " in row
    assert row.endswith("xx…")


def failure(cause: int, reason: str = "", **fields: Any) -> Failure:
    return Failure(topic="t", cause=cause, reason=reason, **fields)


def test_dead_letters_have_a_column_of_failures() -> None:
    found = [
        item(failure=failure(1, "E: no\n\x1b[31m")),
        item(failure=failure(2, "")),
        item(failure=failure(99)),
        item(),
    ]
    header, *rows = [line.split(maxsplit=7) for line in lines(items_table(found, NOW_MS), width=120)]
    assert header[-1] == "failure"
    assert [row[-1] for row in rows] == ["failed: E: no ·[31m", "expired", "99", "-"]


def test_keys_have_columns_if_an_item_has_some() -> None:
    keys: dict[str, Any] = {"fairness_key": "acme co", "_throttle_keys": ["api:acme", "db"]}
    header, *rows = lines(items_table([item(), item(**keys)], NOW_MS), width=120)
    assert header.split("payload")[1].split() == ["fairness", "key", "throttle", "keys"]
    assert [row.split("hello")[1].split() for row in rows] == [["-", "-"], ["acme", "co", "api:acme", "db"]]
    header, row = lines(items_table([item(failure=failure(1, "no", fairness_key="acme"))], NOW_MS), width=120)
    assert header.split("payload")[1].split() == ["fairness", "key", "failure"]
    assert row.split("hello")[1].split() == ["acme", "failed:", "no"]


def test_a_long_reason_goes_on_in_the_next_line() -> None:
    reason = " ".join(f"word{n}" for n in range(10))
    wide = item(id=LARGEST_ID, priority=-(1 << 31), payload=b"x" * 500, failure=failure(3, reason))
    _, row, *rest = lines(items_table([wide], NOW_MS))
    assert all(len(line) <= 80 for line in (row, *rest))
    assert row.startswith(f"{LARGEST_ID}  ready") and "…" in row
    assert " ".join([row.split("…")[1], *rest]).split() == ["rejected:", *reason.split()]


def test_topics_with_counts_by_state() -> None:
    found = [
        ActiveTopic("default", "mail", 1_200, NOW_MS - 5_000, ("a:1", "b:1"), 3, 4, 72_000, 90, 2, 1_234, True, True),
        ActiveTopic("default", "late", 0, 0, ("a:1",), 1, 0, 0, 0, 0, 0, False, True),
        ActiveTopic("default", "old-host", 2, NOW_MS, ("c:1",)),
    ]
    rates = ["in/s", "delivered/s", "acked/s", "failed/min"]
    assert [line.split() for line in lines(topics_table(found, NOW_MS, all_states=True), width=120)] == [
        ["topic", "ready", "delayed", "leased", "oldest", *rates],
        ["mail", "(paused,", "closed)", "1,200", "3", "4", "≤5s", "1,200", "1.5", "<0.1", "1,234"],
        ["late", "(closed)", "0", "1", "0", "-", "0", "0", "0", "0"],
        ["old-host", "2", "-", "-", "≤0s", "-", "-", "-", "-"],
    ]
    everywhere = lines(topics_table(found, NOW_MS, all_states=True, all_namespaces=True), width=120)
    assert everywhere[1].split()[:2] == ["default", "mail"]
    plain = lines(topics_table(found[2:], NOW_MS, all_states=False, all_namespaces=True))
    assert [line.split() for line in plain] == [
        ["namespace", "topic", "ready", "oldest", "hosts"],
        ["default", "old-host", "2", "≤0s", "c:1"],
    ]


def test_a_long_topic_leaves_the_counts_whole() -> None:
    found = [ActiveTopic("n", "t" * 255, 1_234_567, NOW_MS, ("host-1.example:7707",), 7_654_321, 9_999_999)]
    shown = lines(topics_table(found, NOW_MS, all_states=True), width=100)
    assert all(len(line) <= 100 for line in shown)
    assert {"1,234,567", "7,654,321", "9,999,999"} <= set(shown[1].split())
    assert "".join(shown[1:]).count("t") >= 255


def test_a_narrow_terminal_cuts_no_value() -> None:
    """A shard's number at the end of the name of its database, and the name of a host, are the point of the table."""
    columns: list[Column[str]] = [
        Column("state", lambda _: "unreachable"),
        Column("use", lambda _: "enabled" * 6),
        Column("host", lambda _: "host-1", "folded"),
        Column("database", lambda one: f"mysql://127.0.0.1:3306/{one}", "folded"),
    ]
    shown = io.StringIO()
    console = Console(file=shown, width=60, markup=False, highlight=False, emoji=False)
    console.print(table(["foqs_1"], columns), crop=False)
    assert shown.getvalue().splitlines()[1].startswith(f"unreachable  {'enabled' * 6}  host-1  mysql://127.")
    assert shown.getvalue().split()[-1].endswith("_1")


def test_a_narrow_terminal_leaves_out_no_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    columns = [Column[str]("name", str, "folded"), *[Column[str]("at", lambda _: "2026-12-01 03:00:00")] * 3]
    show(table(["nightly"], columns))
    assert capsys.readouterr().out.split()[:2] == ["name", "at"]
