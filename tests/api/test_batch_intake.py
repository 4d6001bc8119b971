"""Items of batches in an enqueue: their lanes, what else they may have, and the error of a wrong id."""

from typing import Any

import pytest

from foqs.api.intake import Intake
from foqs.bounds import LIMITS
from foqs.errors import Invalid
from foqs.fairness.keys import has_members, is_ordered, lane_key, rules_of, tenancy_of, until_of
from foqs.idl import idl
from foqs.ids import Until
from foqs.rows import NewItem, NewMember, NewOrdered
from foqs.rules import ItemRules
from foqs.wire.usual_requests import SpecColumns
from tests.api.wire import spec

pytestmark = pytest.mark.memory

NOW_MS = 1_000_000
TOPIC = ("ns", "t")


def taken(*specs: Any) -> Intake:
    return Intake("ns", list(specs), LIMITS, NOW_MS)


def columns(first: Any, *payloads: bytes, **more: Any) -> Any:
    made = SpecColumns(first)
    made.payloads, made.priorities = [first.payload, *payloads], [0] * (1 + len(payloads))
    for name, column in more.items():
        setattr(made, name, column)
    return made


def test_members_and_other_items() -> None:
    intake = taken(spec("t", b"a", batch=7), spec("t", b"b"), spec("t", b"c", batch=8))
    assert (intake.plain, intake.members, intake.indices) == (True, True, [0, 1, 2])
    assert [item.batch for item in intake.items] == [7, 0, 8]
    assert [type(item) for item in intake.items] == [NewMember, NewItem, NewMember]
    lane = lane_key(TOPIC, members=True)
    assert intake.keys == [lane, lane_key(TOPIC), lane]
    assert intake.keys[0] is intake.keys[2], "a lane is one object"


def test_an_enqueue_without_members() -> None:
    intake = taken(spec("t", b"a"))
    assert not intake.members
    assert type(intake.items[0]) is NewItem


def test_a_member_with_an_order_key() -> None:
    (one,) = taken(spec("t", b"a", batch=7, order_key="k")).keyed
    assert isinstance(one.item, NewOrdered)
    assert (one.item.batch, one.item.order_key) == (7, b"k")
    assert is_ordered(one.lane) and has_members(one.lane)


def test_a_member_with_a_deduplication_key() -> None:
    (one,) = taken(spec("t", b"a", batch=7, dedup_key="k", dedup_until=int(Until.DONE))).keyed
    assert isinstance(one.item, NewMember)
    assert one.item.batch == 7
    assert until_of(one.lane) == Until.DONE and has_members(one.lane)


def test_a_member_has_tenants_throttles_rules_and_times() -> None:
    rules = idl.ItemRules(max_attempts=3)
    fields: dict[str, Any] = {"fairness_key": "acme", "throttle_keys": ["b", "a"], "weight": 3, "rules": rules}
    intake = taken(spec("t", b"a", metadata=b"m", batch=7, delay_ms=5, ttl_ms=9, priority=-2, **fields))
    (lane,), (item,) = intake.keys, intake.items
    assert (tenancy_of(lane), rules_of(lane), has_members(lane)) == (
        ("acme", ("a", "b")),
        ItemRules(max_attempts=3),
        True,
    )
    assert (item.due_ms, item.expires_at_ms, item.priority, item.metadata) == (NOW_MS + 5, NOW_MS + 9, -2, b"m")
    assert (intake.ruled, intake.weighed) == (True, {0: (lane_key(TOPIC, "acme", ("a", "b")), 3)})


@pytest.mark.parametrize("batch", [0, -1, -(1 << 63)])
def test_a_wrong_batch(batch: int) -> None:
    intake = taken(spec("t", b"", batch=batch))
    assert type(intake.errors[0]) is Invalid
    assert intake.errors[0].message == f"batch is {batch}: give the id of a batch"
    assert not (intake.items or intake.plain)


def test_a_script_leaves_the_batch() -> None:
    specs = [spec("t", b"", batch=7), spec("t", b"", batch=7, order_key="k")]
    intake = taken(*specs)
    for one in specs:
        one.fairness_key, one.priority = "acme", -4
    intake.amend(specs, {0, 1})
    (item,), (lane,), (one,) = intake.items, intake.keys, intake.keyed
    for made, key in ((item, lane), (one.item, one.lane)):
        assert (made.batch, made.priority, tenancy_of(key), has_members(key)) == (7, -4, ("acme", ()), True)


def test_columns_are_members() -> None:
    intake = Intake("ns", columns(spec("t", b"a", batch=7), b"b", b"c"), LIMITS, NOW_MS)
    assert (intake.members, [(item.payload, item.batch) for item in intake.items]) == (
        True,
        [(b"a", 7), (b"b", 7), (b"c", 7)],
    )
    assert intake.keys == [lane_key(TOPIC, members=True)] * 3


def test_columns_of_tenants_and_keys_are_members() -> None:
    specs = columns(spec("t", b"a", batch=7, fairness_key="x"), b"b", tenants=["x", "y"])
    intake = Intake("ns", specs, LIMITS, NOW_MS)
    assert intake.keys == [lane_key(TOPIC, tenant, members=True) for tenant in "xy"]
    specs = columns(spec("t", b"a", batch=7, dedup_key="k"), b"b", dedup_keys=["k", "l"])
    intake = Intake("ns", specs, LIMITS, NOW_MS)
    assert [(one.item.batch, has_members(one.lane)) for one in intake.keyed] == [(7, True), (7, True)]
