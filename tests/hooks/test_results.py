"""A result has known fields of the right types and ranges; every other one is an error with the field and the value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import Limits
from foqs.hooks.protocol import (
    Action,
    EnqueueResult,
    FailureResult,
    InvalidResult,
    enqueue_result,
    failure_result,
)

LIMITS = Limits()


def enqueued(fields: dict[str, Any], *, may_throttle: bool = True) -> EnqueueResult:
    return enqueue_result(fields, LIMITS, may_throttle=may_throttle)


def test_all_fields_are_taken() -> None:
    fields = {
        "fairness_key": "acme", "weight": 4, "throttle_keys": ["b", "a"], "priority": -3, "delay_ms": 0, "ttl_ms": 60.0,
    }  # fmt: skip
    assert enqueued(fields) == EnqueueResult(None, "acme", 4, ("a", "b"), -3, 0, 60)
    assert enqueued({}) == EnqueueResult()
    assert enqueued({"fairness_key": "", "throttle_keys": []}) == EnqueueResult(fairness_key="", throttle_keys=())
    assert enqueued({"refuse": "no customer"}) == EnqueueResult(refuse="no customer")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"wieght": 1}, "there is no field 'wieght': a result has refuse, fairness_key, weight, "),
    "text for a number": ({"weight": "4"}, "weight is '4', not a whole number"),
    "fraction": ({"weight": 1.5}, "weight is 1.5, not a whole number"),
    "not a number": ({"priority": float("nan")}, "priority is nan, not a whole number"),
    "true": ({"weight": True}, "weight is true, not a whole number"),
    "weight 0": ({"weight": 0}, "weight is 0, not in 1..1000"),
    "weight": ({"weight": 1_001}, "weight is 1001, not in 1..1000"),
    "priority": ({"priority": 1 << 31}, f"priority is {1 << 31}, not in {-(1 << 31)}..{(1 << 31) - 1}"),
    "delay": ({"delay_ms": -1}, f"delay_ms is -1, not in 0..{LIMITS.delay_max_ms}"),
    "ttl": ({"ttl_ms": 0}, f"ttl_ms is 0, not in 1..{LIMITS.ttl_max_ms}"),
    "huge": (
        {"ttl_ms": 1e300},
        f"ttl_ms is 1e+300, not in 1..{LIMITS.ttl_max_ms}",
    ),
    "fairness key": ({"fairness_key": 7}, "fairness_key is 7, not a text"),
    "control": ({"fairness_key": "a\n"}, "fairness_key 'a\\n': a name has no control characters"),
    "long": ({"fairness_key": "x" * 256}, "a name has 1 to 255 bytes, not 256"),
    "keys as text": ({"throttle_keys": "api"}, "throttle_keys is 'api', not a list of texts"),
    "pattern": ({"throttle_keys": ["a*"]}, "throttle_keys: 'a*': a throttle key does not end in *"),
    "twice": ({"throttle_keys": ["a", "a"]}, "throttle_keys: the key 'a' is listed more than once"),
    "nine": ({"throttle_keys": list("abcdefghi")}, "throttle_keys: there are 9 keys, more than 8"),
    "refuse beside": ({"refuse": "no", "weight": 1}, "refuse is set together with other fields"),
    "refuse empty": ({"refuse": ""}, "refuse is '', not a text that says why"),
    "refuse true": ({"refuse": True}, "refuse is true, not a text that says why"),
    "refuse long": ({"refuse": "ü" * 600}, "refuse has 1200 bytes, more than 1024"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_says_which_value_is_wrong(name: str) -> None:
    fields, text = WRONG[name]
    with pytest.raises(InvalidResult) as raised:
        enqueued(fields)
    assert text in str(raised.value)


def test_throttle_keys_need_their_name_in_the_source() -> None:
    with pytest.raises(InvalidResult, match="the source of the script does not have this name"):
        enqueued({"throttle_keys": []}, may_throttle=False)
    assert enqueued({"weight": 2}, may_throttle=False).weight == 2


def test_a_failure_is_decided() -> None:
    assert failure_result({}, LIMITS) == FailureResult()
    assert failure_result({"delay_ms": 5}, LIMITS) == FailureResult(None, 5)
    assert failure_result({"action": "retry", "delay_ms": 5.0}, LIMITS) == FailureResult(Action.RETRY, 5)
    assert failure_result({"action": "dead"}, LIMITS) == FailureResult(Action.DEAD)
    for fields, text in (
        ({"action": "explode"}, "action is 'explode', not retry, dead or drop"),
        ({"action": 1}, "action is 1, not"),
        ({"action": ["retry"]}, "action is a list, not"),
        ({"action": "drop", "delay_ms": 1}, "delay_ms is set together with action drop"),
        ({"weight": 1}, "there is no field 'weight': a result has action, delay_ms"),
    ):
        with pytest.raises(InvalidResult) as raised:
            failure_result(fields, LIMITS)
        assert text in str(raised.value)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text() | st.integers())
NAMES = st.sampled_from([*EnqueueResult._fields, *FailureResult._fields, "x", ""])


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_no_value_breaks_the_check(fields: dict[str, Any], may_throttle: bool) -> None:
    """A result that passes is in all ranges."""
    try:
        result = enqueued(fields, may_throttle=may_throttle)
    except InvalidResult as error:
        assert len(str(error)) < 600
    else:
        assert result.weight is None or 1 <= result.weight <= 1_000
        assert result.throttle_keys is None or len(result.throttle_keys) <= 8
        assert {name for name, value in result._asdict().items() if value is not None} == fields.keys()
    try:
        assert failure_result(fields, LIMITS).action in (None, *Action)
    except InvalidResult as error:
        assert str(error)
