"""Enums are read by their names: `print(handle.state())` shows no number."""

from __future__ import annotations

import enum
import json
import pickle

import pytest

import foqs.client
from foqs.enums import known

PUBLIC = [
    made
    for name in foqs.client.__all__
    if isinstance(made := getattr(foqs.client, name), type) and issubclass(made, enum.Enum)
]
NUMBERED = [made for made in PUBLIC if issubclass(made, int)]


def test_the_public_enums() -> None:
    assert {made.__name__ for made in PUBLIC} == {
        "AckPolicy", "BatchState", "Code", "DedupUntil", "Delivery", "FailureCause", "ItemState", "LimitKind",
        "OnDuplicate", "Reason", "RetryKind",
    }  # fmt: skip


@pytest.mark.parametrize("made", NUMBERED)
def test_a_member_is_shown_by_its_name(made: type[enum.IntEnum]) -> None:
    for member in made:
        number = int(member)
        assert (str(member), f"{member}", f"{member:>3}", "%s" % member) == (member.name,) * 4  # noqa: UP031
        assert (f"{member:d}", f"{member:02x}", "%d" % member) == (str(number), f"{number:02x}", str(number))  # noqa: UP031
        assert (json.dumps(member), member == number) == (str(number), True)
        assert pickle.loads(pickle.dumps(member)) is member


def test_a_number_of_a_newer_host_stays() -> None:
    assert known(foqs.client.ItemState, 1) is foqs.client.ItemState.READY
    assert known(foqs.client.ItemState, 99) == 99
