"""Items with order keys in an enqueue: their lanes, and the error of each wrong value."""

from typing import Any

import pytest

from foqs.api.intake import Intake
from foqs.bounds import LIMITS
from foqs.errors import Invalid
from foqs.fairness.keys import ORDERED, is_ordered, lane_key, rules_of, tenancy_of, until_of
from foqs.idl import idl
from foqs.ids import OnDuplicate, Until, hash_slot_of, order_digest
from foqs.order import Order, Standing
from foqs.rows import NewOrdered
from foqs.rules import ItemRules
from tests.api.wire import spec

pytestmark = pytest.mark.memory

NOW_MS = 1_000_000
TOPIC = ("ns", "t")


def taken(*specs: Any) -> Intake:
    return Intake("ns", list(specs), LIMITS, NOW_MS)


def test_an_item_with_an_order_key() -> None:
    intake = taken(spec("t", b"a", order_key="é"), spec("t", b"b"))
    assert (intake.plain, intake.indices, intake.keys) == (False, [1], [lane_key(TOPIC)])
    (one,) = intake.keyed
    assert (one.at, one.size_bytes, one.weight, one.replaces) == (0, 1, 0, False)
    assert one.lane == lane_key(TOPIC, until=ORDERED)
    assert isinstance(one.item, NewOrdered)
    digest = order_digest("ns", "t", "é")
    assert (one.item.order_key, one.item.digest, one.item.unindexed) == ("é".encode(), digest, False)
    assert one.dedup == (digest, 0)


def test_the_slot_depends_on_the_key_alone() -> None:
    found = [one.dedup.digest for one in taken(spec("t", order_key="k"), spec("u", order_key="k")).keyed]
    assert found[0] != found[1]
    assert hash_slot_of(found[0]) == hash_slot_of(found[1])


def test_a_delayed_item_is_not_in_order_yet() -> None:
    (one,) = taken(spec("t", order_key="k", delay_ms=5)).keyed
    one.item.id = 7
    assert one.item.order_at is not None
    assert Order.unpack(one.item.order_at, 7).standing == Standing.NEW


def test_an_ordered_lane_has_tenants_throttles_and_rules() -> None:
    rules = idl.ItemRules(max_attempts=3)
    fields: dict[str, Any] = {"fairness_key": "acme", "throttle_keys": ["b", "a"], "weight": 3, "rules": rules}
    intake = taken(*[spec("t", order_key=key, **fields) for key in "kl"])
    lane = intake.keyed[0].lane
    assert (tenancy_of(lane), rules_of(lane), is_ordered(lane)) == (
        ("acme", ("a", "b")),
        ItemRules(max_attempts=3),
        True,
    )
    assert intake.keyed[1].lane is lane, "a lane is one object"
    assert (intake.keyed[0].weight, intake.ruled) == (3, True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"order_key": b"\xff"}, "order_key is not UTF-8"),
        ({"order_key": "x" * 256}, "order_key: a name has 1 to 255 bytes, not 256"),
        ({"order_key": "a\nb"}, "order_key: a name has no control characters"),
        (
            {"order_key": "k", "dedup_key": "d"},
            "both dedup_key and order_key are given: each of them decides the shard of the item",
        ),
        ({"order_key": "k", "dedup_until": int(Until.DONE)}, "dedup_until needs a dedup_key"),
        ({"order_key": "k", "on_duplicate": int(OnDuplicate.REPLACE)}, "on_duplicate needs a dedup_key"),
    ],
)
def test_a_wrong_order_key(fields: dict[str, Any], why: str) -> None:
    intake = taken(spec("t", **fields))
    assert (type(intake.errors[0]), intake.errors[0].message) == (Invalid, why)
    assert not intake.keyed and not intake.items


def test_no_order_key() -> None:
    """An empty one is none, as that of a tenant."""
    intake = taken(spec("t", b"", order_key=""), spec("t", b"", order_key="", dedup_key="d"))
    assert (intake.indices, [one.item.order_key for one in intake.keyed]) == ([0], [None])
    assert not intake.errors


def test_a_script_leaves_the_order_key() -> None:
    specs = [spec("t", b"", order_key="k"), spec("t", b"", order_key="k")]
    intake = taken(*specs)
    specs[1].fairness_key, specs[1].priority, specs[1].delay_ms = "acme", -4, 5
    intake.amend(specs, {1})
    first, second = intake.keyed
    assert (tenancy_of(first.lane), tenancy_of(second.lane)) == (("", ()), ("acme", ()))
    assert until_of(first.lane) == until_of(second.lane) == ORDERED
    assert (second.item.order_key, second.item.priority, second.item.due_ms) == (b"k", -4, NOW_MS + 5)


def test_a_quota_counts_them() -> None:
    intake = taken(spec("t", b"", order_key="k"), spec("t", b""), spec("t", b"", order_key="k"))
    assert intake.places() == [0, 1, 2]
    intake.keep(2)
    assert ([one.at for one in intake.keyed], intake.indices) == ([0], [1])
