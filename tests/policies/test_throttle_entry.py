"""Entries of settings for throttle keys: the limits that they make, and the errors of wrong ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.policies.throttle_entry import ThrottleEntry, parse_throttle
from foqs.throttles.throttle import Throttle


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ({"per_second": 10, "burst": 20, "shadow": True}, Throttle(10.0, 20, True, "throttle.api")),
        ({"per_second": 10}, Throttle(10.0, 10, False, "throttle.api")),
        ({"per_second": 0.1}, Throttle(0.1, 1, False, "throttle.api")),
        ({"per_second": 2.5, "burst": None}, Throttle(2.5, 3, False, "throttle.api")),
        ({"per_second": 0.001}, Throttle(0.001, 1, False, "throttle.api")),
        ({"per_second": 1e9, "burst": 10**9}, Throttle(1e9, 10**9, False, "throttle.api")),
    ],
)
def test_an_entry_makes_a_limit(value: Any, limit: Throttle) -> None:
    assert parse_throttle(json.dumps(value)).throttle("throttle.api") == limit


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ({}, ["per_second: it is missing"]),
        ({"per_second": None}, ["per_second: it must be a number, not null"]),
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
        ({"per_second": 1, "concurrency": 4}, ["concurrency: this version of foqs does not have it"]),
        (
            {"burst": 0, "shadow": 1, "timeout_ms": 1, "concurrency": 1, "rate": 1},
            [
                "concurrency: this version of foqs does not have it",
                "timeout_ms: this version of foqs does not have it",
                "per_second: it is missing",
                "burst: it must be 1 or more, not 0",
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
        assert 0.001 <= limit.per_second == value["per_second"] <= 1e9
        assert 1 <= limit.burst <= 10**9


@given(st.floats(0.001, 1e9))
def test_a_burst_lets_a_second_of_the_rate_through(per_second: float) -> None:
    limit = ThrottleEntry(per_second=per_second).throttle("throttle.*")
    assert per_second <= limit.burst < per_second + 1
