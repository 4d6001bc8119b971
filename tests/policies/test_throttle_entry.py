"""Entries of settings for throttle keys: the limits that they make, and the errors of wrong ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.policies.entries import Throttle, ThrottleEntry, parse_throttle


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ({"per_second": 10, "burst": 20, "shadow": True}, Throttle(10.0, 20, True, "throttle.api")),
        ({"per_second": 10}, Throttle(10.0, 10, False, "throttle.api")),
        ({"per_second": 0.1}, Throttle(0.1, 1, False, "throttle.api")),
        ({"per_second": 2.5, "burst": None}, Throttle(2.5, 3, False, "throttle.api")),
        ({"per_second": 0.001}, Throttle(0.001, 1, False, "throttle.api")),
        ({"per_second": 1e9, "burst": 10**9}, Throttle(1e9, 10**9, False, "throttle.api")),
        ({"concurrency": 4}, Throttle(None, 0, False, "throttle.api", 4, 60_000)),
        ({"concurrency": 1, "timeout_ms": 0, "shadow": True}, Throttle(None, 0, True, "throttle.api", 1, 0)),
        ({"per_second": 2, "concurrency": 10**6}, Throttle(2.0, 2, False, "throttle.api", 10**6, 60_000)),
    ],
)
def test_an_entry_makes_a_limit(value: Any, limit: Throttle) -> None:
    assert parse_throttle(json.dumps(value)).throttle("throttle.api") == limit


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ({}, ["per_second or concurrency is needed"]),
        ({"per_second": None}, ["per_second or concurrency is needed"]),
        ({"concurrency": 1, "burst": 2}, ["burst needs per_second"]),
        ({"per_second": 1, "timeout_ms": 2}, ["timeout_ms needs concurrency"]),
        ({"per_second": True}, ["per_second: it must be a number, not true"]),
        ({"per_second": "10"}, ['per_second: it must be a number, not "10"']),
        ({"per_second": float("nan")}, ["per_second: it must be a number, not NaN"]),
        ({"per_second": float("inf")}, ["per_second: it must be a number, not Infinity"]),
        ({"per_second": 0.0009}, ["per_second: it must be 0.001 or more, not 0.0009"]),
        ({"per_second": -1}, ["per_second: it must be 0.001 or more, not -1"]),
        ({"per_second": 1e9 + 1}, ["per_second: it must be 1000000000.0 or less, not 1000000001.0"]),
        ({"per_second": 1, "burst": 0}, ["burst: it must be 1 or more, not 0"]),
        ({"per_second": 1, "burst": 1.5}, ["burst: it must be a whole number, not 1.5"]),
        ({"per_second": 1, "burst": 10**9 + 1}, ["burst: it must be 1000000000 or less, not 1000000001"]),
        ({"per_second": 1, "shadow": "yes"}, ['shadow: it must be true or false, not "yes"']),
        ({"concurrency": 0}, ["concurrency: it must be 1 or more, not 0"]),
        ({"concurrency": 10**6 + 1}, ["concurrency: it must be 1000000 or less, not 1000001"]),
        ({"concurrency": 1, "timeout_ms": -1}, ["timeout_ms: it must be 0 or more, not -1"]),
        (
            {"burst": 0, "shadow": 1, "timeout_ms": 1.5, "concurrency": "1", "rate": 1},
            [
                "burst: it must be 1 or more, not 0",
                'concurrency: it must be a whole number, not "1"',
                "timeout_ms: it must be a whole number, not 1.5",
                "shadow: it must be true or false, not 1",
                'there is no field "rate"',
            ],
        ),
        ([], ["a throttle is a JSON object, not []"]),
        ("10", ['a throttle is a JSON object, not "10"']),
    ],
)
def test_errors_of_a_wrong_entry(value: Any, messages: list[str]) -> None:
    with pytest.raises(Invalid) as raised:
        parse_throttle(json.dumps(value))
    assert raised.value.message.split("\n") == messages


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
fields = st.sampled_from(["per_second", "burst", "shadow", "concurrency", "other"])


@given(st.dictionaries(fields, values) | values)
def test_any_json_is_a_limit_or_has_errors(value: Any) -> None:
    try:
        limit = parse_throttle(json.dumps(value)).throttle("throttle.api")
    except Invalid as invalid:
        assert all(line.isprintable() for line in invalid.message.split("\n"))
    else:
        assert limit.per_second == value.get("per_second")
        assert limit.concurrency == value.get("concurrency")
        assert limit.per_second is None or (0.001 <= limit.per_second <= 1e9 and 1 <= limit.burst <= 10**9)
        assert limit.per_second or limit.concurrency


@given(st.floats(0.001, 1e9))
def test_a_burst_lets_a_second_of_the_rate_through(per_second: float) -> None:
    limit = ThrottleEntry(per_second=per_second).throttle("throttle.*")
    assert per_second <= limit.burst < per_second + 1
