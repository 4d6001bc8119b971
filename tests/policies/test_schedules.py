"""The values of `schedule.<name>`, and which times of a schedule fire after an outage."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import DAY_MS
from foqs.errors import Invalid
from foqs.policies.schedules import due, parse_schedule
from foqs.rules import ItemRules, RetryRule

NOW = 1_800_000_000_000  # a whole minute
MINUTE = 60_000


def entry(**given: Any) -> Any:
    return parse_schedule(json.dumps({"cron": "* * * * *", "topic": "t"} | given))


def fired(catch_up: str, late_ms: int, cron: str = "* * * * *", now_ms: int = NOW) -> tuple[list[int], int]:
    """How long ago (minutes) the times were that fire after an outage, and how many are missed."""
    found = due(entry(cron=cron, catch_up=catch_up), now_ms - late_ms, now_ms)
    return [(NOW - at) // MINUTE for at in found.fires], found.missed


@pytest.mark.parametrize(
    ("catch_up", "late_minutes", "fires", "missed"),
    [
        ("none", 0, [], 0),
        ("none", 1, [0], 0),
        ("none", 2, [1, 0], 0),
        ("none", 10, [1, 0], 8),
        ("last", 10, [1, 0], 8),
        ("all", 10, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 0),
        ("all", 2_000, list(range(1_439, -1, -1)), 100),
    ],
)
def test_minutes_after_an_outage(catch_up: str, late_minutes: int, fires: list[int], missed: int) -> None:
    assert fired(catch_up, late_minutes * MINUTE) == (fires, missed)


@pytest.mark.parametrize(
    ("catch_up", "late_hours", "fires", "missed"),
    [
        ("none", 3, [], 3),
        ("last", 3, [5], 2),
        ("all", 3, [125, 65, 5], 0),
        ("last", 30, [5], 29),
        ("all", 30, [60 * n + 5 for n in range(23, -1, -1)], 6),
    ],
)
def test_hours_after_an_outage(catch_up: str, late_hours: int, fires: list[int], missed: int) -> None:
    """Five minutes past each hour."""
    assert fired(catch_up, late_hours * 60 * MINUTE, f"{(NOW // MINUTE - 5) % 60} * * * *") == (fires, missed)


def test_the_last_time_is_no_older_than_a_day() -> None:
    found = due(entry(cron="0 0 1 1 *", catch_up="last"), NOW - 300 * DAY_MS, NOW)
    assert (list(found.fires), found.missed) == ([], 1)


@given(
    st.sampled_from(["*/10 * * * * *", "@every 7s", "*/3 * * * *"]),
    st.sampled_from(["none", "last", "all"]),
    st.lists(st.integers(0, 59_000), min_size=1, max_size=20),
)
def test_each_time_fires_once_while_no_gap_is_long(cron: str, catch_up: str, gaps_ms: list[int]) -> None:
    """By any coordinator of the name, and however late it looks."""
    one, last_ms, now_ms = entry(cron=cron, catch_up=catch_up), NOW, NOW
    found: list[int] = []
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        fires = list(due(one, last_ms, now_ms).fires)
        found += fires
        last_ms = fires[-1] if fires else last_ms
    assert found == [at for at in islice(one.times().after(NOW), 500) if at <= now_ms]


def test_a_schedule_has_all_that_an_item_may_bring() -> None:
    rules = {"retry": {"kind": "constant", "first_ms": 5}, "max_attempts": 3, "keep_ms": 0}
    one = entry(payload_base64="AAE=", headers={"a": "b"}, throttle_keys=["x"], rules=rules)
    assert (one.body(), one.throttle_keys) == (b"\0\1", ("x",))
    assert one.rules.rules() == ItemRules(RetryRule("constant", 5), max_attempts=3, keep_ms=0)
    assert len(one.next_times(NOW)) == 5
    assert entry(paused=True).next_times(NOW) == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"cron": "* *"}, "it has five fields"),
        ({"cron": 5}, "cron"),
        ({"timezone": "Mars"}, "there is no time zone 'Mars'"),
        ({"topic": ""}, "a name has 1 to"),
        ({"payload": "x", "payload_base64": "eA=="}, "both payload and payload_base64"),
        ({"payload_base64": "x"}, "payload_base64 is not base64"),
        ({"catch_up": "some"}, "catch_up"),
        ({"overlap": True}, "overlap"),
        ({"jitter_ms": -1}, "jitter_ms"),
        ({"throttle_keys": ["a", "a"]}, "more than once"),
        ({"rules": {"max_attempts": -1}}, "rules.max_attempts"),
        ({"rules": {"retry": {"kind": "x"}}}, "rules.retry.kind"),
        ({"delay_ms": 5}, "delay_ms"),
    ],
)
def test_a_bad_value_says_why(given: dict[str, Any], error: str) -> None:
    with pytest.raises(Invalid) as raised:
        entry(**given)
    assert error in raised.value.message
