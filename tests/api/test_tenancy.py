"""The tenant and the throttle set of an enqueued item, and the error of each wrong value."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.api.validation import tenancy
from foqs.bounds import Limits
from foqs.errors import Invalid

pytestmark = pytest.mark.memory


def spec(fairness_key: object = None, throttle_keys: object = None, weight: object = None) -> Any:
    return SimpleNamespace(fairness_key=fairness_key, throttle_keys=throttle_keys, weight=weight)


def test_fields_that_are_not_set() -> None:
    assert tenancy(spec(), Limits()) == tenancy(spec("", []), Limits()) == ("", (), 0)


@pytest.mark.parametrize("weight", [1, 1_000])
def test_throttle_keys_are_sorted(weight: int) -> None:
    made = tenancy(spec("gold:zenith", ["b", "a", "é"], weight), Limits())
    assert made == ("gold:zenith", ("a", "b", "é"), weight)


def test_values_at_their_bounds() -> None:
    keys = [f"{n}{'x' * 62}" for n in range(8)]  # 504 bytes and 7 between them
    assert tenancy(spec("é" * 127 + "x", [*keys[1:], keys[0] + "x"]), Limits())[1] == (keys[0] + "x", *keys[1:])
    assert tenancy(spec("a*", ["x" * 255, "y" * 255]), Limits())[:2] == ("a*", ("x" * 255, "y" * 255))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"fairness_key": b"\xff"}, "fairness_key is not UTF-8"),
        ({"fairness_key": "x" * 256}, "fairness_key: a name has 1 to 255 bytes, not 256"),
        ({"fairness_key": "a\nb"}, "fairness_key: a name has no control characters"),
        ({"throttle_keys": [b"\xff"]}, "throttle_keys is not UTF-8"),
        ({"throttle_keys": [""]}, "throttle_keys: a name has 1 to 255 bytes, not 0"),
        ({"throttle_keys": ["a", "x" * 256]}, "throttle_keys: a name has 1 to 255 bytes, not 256"),
        ({"throttle_keys": ["a\0b"]}, "throttle_keys: a name has no control characters"),
        ({"throttle_keys": ["customer:*"]}, "throttle_keys: a throttle key does not end in *"),
        ({"throttle_keys": ["b", "a", "b"]}, "throttle_keys: the key 'b' is listed more than once"),
        ({"throttle_keys": list("abcdefghi")}, "throttle_keys: there are 9 keys, more than 8"),
        ({"throttle_keys": [*"abcdefgh", b"\xff"]}, "throttle_keys: there are 9 keys, more than 8"),
        (
            {"throttle_keys": ["x" * 255, "y" * 255, "z"]},
            "throttle_keys: the keys have 513 bytes with one between two keys, more than 512",
        ),
        ({"weight": 0}, "weight is 0, not in 1..1000"),
        ({"weight": -1}, "weight is -1, not in 1..1000"),
        ({"weight": 1_001}, "weight is 1001, not in 1..1000"),
    ],
)
def test_wrong_values_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid) as refused:
        tenancy(spec(**fields), Limits())
    assert refused.value.message == why


def test_the_limits_of_the_host_count() -> None:
    with pytest.raises(Invalid, match="more than 1"):
        tenancy(spec(throttle_keys=["a", "b"]), replace(Limits(), throttle_keys=1))
    with pytest.raises(Invalid, match="more than 2"):
        tenancy(spec(throttle_keys=["a", "b"]), replace(Limits(), throttle_keys_bytes=2))
    assert (Limits().throttle_keys, Limits().throttle_keys_bytes) == (8, 512)
