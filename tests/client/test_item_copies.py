"""Items as JSON lines, and copies of items that are stored once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import (
    Delivery,
    Duplicate,
    Failure,
    Invalid,
    Item,
    ItemSpec,
    Lease,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from foqs.client.item_copies import (
    TRIES,
    copy_key,
    copy_of_line,
    id_of_line,
    is_there,
    item_json,
    job_of,
    lease_of_line,
    spec_json,
    spec_of_line,
    store_copies,
)

I64 = st.integers(1, (1 << 63) - 1)


def spec(line: str) -> ItemSpec:
    return spec_of_line(line.encode(), topic="t", priority=3, delay_ms=7)


@given(st.binary(), st.none() | st.binary(), I64, I64, st.integers(-(1 << 31), (1 << 31) - 1))
def test_what_dequeue_writes_can_be_acked_and_enqueued_again(payload, metadata, item_id, lease, priority):
    item = Item(id=item_id, lease=lease, topic="x", payload=payload, metadata=metadata, priority=priority, delivery=2)
    line = json.dumps(item_json(item)).encode()
    assert lease_of_line(line, 1) == Lease(item_id, lease)
    written = json.loads(line)
    assert isinstance(written["id"], str) and isinstance(written["lease"], str)
    fields = {
        name: value
        for name, value in written.items()
        if name.startswith(("payload", "metadata")) or name in ("topic", "priority", "delivery")
    }
    again = spec(json.dumps(fields))
    assert again == ItemSpec("x", payload, metadata, priority=priority, delay_ms=7, delivery=Delivery.AT_MOST_ONCE)


def test_a_copy_is_of_no_batch():
    line = json.dumps(item_json(Item(id=5, topic="x", payload=b"p", batch=1 << 60))).encode()
    assert json.loads(line)["batch"] == str(1 << 60)
    assert copy_of_line(line, topic=None, now_ms=lambda: 0).batch is None
    assert copy_of_line(line, topic=None, now_ms=lambda: 0, batch=7).batch == 7
    assert "batch" not in item_json(Item(id=5, topic="x"))


def test_a_line_names_a_batch():
    for value in ("1152921504606846976", 1 << 60, "0x1000000000000000"):
        assert spec_of_line(json.dumps({"batch": value}).encode(), topic="t", batch=5).batch == 1 << 60
    assert spec_of_line(b'{"batch": null}', topic="t", batch=5).batch == 5
    with pytest.raises(Invalid, match="'x' is not the id of a batch"):
        spec_of_line(b'{"batch": "x"}', topic="t")
    made = ItemSpec("t", b"x", batch=1 << 60)
    assert spec_of_line(json.dumps(spec_json(made)).encode(), topic="") == made
    assert "batch" not in spec_json(ItemSpec("t", b"x"))


def test_an_order_key_goes_with_a_copy():
    line = json.dumps(item_json(Item(id=5, topic="x", payload=b"p", order_key="k"))).encode()
    assert json.loads(line)["order_key"] == "k"
    assert copy_of_line(line, topic=None, now_ms=lambda: 0).order_key == "k"
    assert "order_key" not in item_json(Item(id=5, topic="x"))
    assert spec_of_line(b"{}", topic="t", order_key="k").order_key == "k"


def test_what_a_line_leaves_out_comes_from_the_command():
    assert spec('{"payload": "é"}') == ItemSpec("t", "é".encode(), priority=3, delay_ms=7)
    assert spec('{"deliver_after_ms": 5, "topic": "u"}').delay_ms is None


@pytest.mark.parametrize(
    "line",
    [
        "", "[]", "1", "{", '{"payload": 1}', '{"payload": "a", "payload_base64": "YQ=="}', '{"payload_base64": "?"}',
        '{"nope": 1}', '{"throttle_keys": "acme"}', '{"throttle_keys": {"a": 1}}', '{"delivery": "TWICE"}',
        '{"delivery": 1}', '{"payload": "\\ud800"}',
    ],
)  # fmt: skip
def test_a_line_that_is_not_an_item(line):
    with pytest.raises(Invalid):
        spec(line)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"priority": "high"}', 'priority is "high": it must be an integer'),
        ('{"priority": 1.5}', "priority is 1.5: it must be an integer"),
        ('{"delay_ms": true}', "delay_ms is true: it must be an integer"),
        ('{"ttl_ms": {"a": 1}}', "ttl_ms is .*: it must be an integer"),
        ('{"weight": "2"}', 'weight is "2": it must be an integer'),
    ],
)
def test_numbers_that_are_no_integers_are_refused(line, problem):
    with pytest.raises(Invalid, match=f"^{problem}$"):
        spec(line)
    assert spec('{"priority": null}').priority is None


@pytest.mark.parametrize("line", [b"{}", b"1", b'{"id": "x", "lease": "1"}', b'{"id": [], "lease": 1}', b"\xff"])
def test_a_line_that_is_not_a_lease(line):
    with pytest.raises(Invalid, match="line 4"):
        lease_of_line(line, 4)


@pytest.mark.parametrize("number", ["9" * 5_000, '"' + "9" * 5_000 + '"'])
def test_a_number_of_too_many_digits(number):
    line = f'{{"id": {number}, "lease": 1}}'.encode()
    for read in (lease_of_line, id_of_line):
        with pytest.raises(Invalid, match=r"^line 4.*(thousands of digits|the largest one)") as caught:
            read(line, 4)
        assert "sys." not in caught.value.message


def test_a_lease_is_read_in_hexadecimal_too():
    assert lease_of_line(b'{"id": "0x1000000000001", "lease": "0xff"}', 1) == Lease(281474976710657, 255)


NOW_MS = 1_000_000


def copy(item: Item | dict, topic: str | None = None, delay_ms: int | None = 7) -> ItemSpec:
    line = json.dumps(item if isinstance(item, dict) else item_json(item)).encode()
    return copy_of_line(line, topic=topic, priority=3, delay_ms=delay_ms, now_ms=lambda: NOW_MS)


def whole(**fields) -> Item:
    return Item(
        **{"id": 5, "lease": 6, "attempt": 2, "ns": "n", "topic": "x", "payload": b"p", "delivery": 1, **fields}
    )


def test_a_copy_keeps_what_describes_the_work():
    item = whole(payload=b"\xff", metadata=b"m", headers={"a": "b"}, priority=-4, delivery=2, deliver_after_ms=NOW_MS)
    item.enqueued_at_ms, item.lease_expires_at_ms, item.expires_at_ms = NOW_MS - 9, NOW_MS + 9, NOW_MS + 500
    assert copy(item) == ItemSpec(
        "x", b"\xff", b"m", {"a": "b"}, -4, delay_ms=7, expires_at_ms=NOW_MS + 500, delivery=Delivery.AT_MOST_ONCE
    )
    assert copy(item, "y").topic == "y"


def test_a_copy_keeps_its_tenant_and_throttle_keys():
    item = whole(fairness_key="acme", _throttle_keys=["a", "b"])
    assert {"fairness_key": "acme", "throttle_keys": ["a", "b"]}.items() <= item_json(item).items()
    assert (copy(item).fairness_key, copy(item).throttle_keys) == ("acme", ["a", "b"])
    assert not {"fairness_key", "throttle_keys"} & item_json(whole()).keys()


def test_keys_that_a_line_leaves_out_come_from_the_command():
    given = {"fairness_key": "acme", "throttle_keys": ["a"], "weight": 2}
    line = b'{"fairness_key": "zenith", "throttle_keys": [], "weight": 9}'
    assert spec_of_line(b"{}", topic="t", **given) == ItemSpec("t", b"", **given)
    assert spec_of_line(line, topic="t", **given) == ItemSpec(
        "t", b"", fairness_key="zenith", throttle_keys=[], weight=9
    )


def test_a_dead_letter_shows_the_keys_that_it_had():
    failure = Failure("t", "acme", ["a"], 3, 1, "no", 255, 9)
    assert item_json(whole(failure=failure))["failure"] == {
        "topic": "t", "fairness_key": "acme", "throttle_keys": ["a"], "attempts": 3, "cause": "FAILED", "reason": "no",
        "fingerprint": "00000000000000ff", "died_at_ms": 9,
    }  # fmt: skip
    failure = Failure("t", cause=1)
    assert not {"fairness_key", "throttle_keys"} & item_json(whole(failure=failure))["failure"].keys()


def test_a_copy_keeps_a_time_in_the_future():
    spec = copy(whole(deliver_after_ms=NOW_MS + 1))
    assert (spec.deliver_after_ms, spec.delay_ms) == (NOW_MS + 1, None)


def test_the_server_decides_which_times_of_a_copy_have_passed():
    def no_clock() -> int:
        raise AssertionError("without a delay of the command there is nothing to decide")

    item = whole(deliver_after_ms=NOW_MS - 9, expires_at_ms=NOW_MS - 5)
    spec = copy_of_line(json.dumps(item_json(item)).encode(), topic="t", now_ms=no_clock)
    assert (spec.deliver_after_ms, spec.expires_at_ms, spec.ttl_ms) == (NOW_MS - 9, NOW_MS - 5, None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"payload": "a"}, "id is missing"),
        ({"id": "5", "payload": "a"}, "no topic"),
        ({"id": "5", "topic": "t", "expires_at_ms": "soon"}, 'expires_at_ms is "soon"'),
        ({"id": "5", "topic": "t", "deliver_after_ms": 1.5}, "deliver_after_ms is 1.5"),
        ({"id": "5", "topic": "t", "delivery": "TWICE"}, "delivery"),
    ],
)
def test_a_line_that_is_no_item_has_no_copy(line, problem):
    with pytest.raises(Invalid, match=problem):
        copy(line)


def test_an_id_is_read_alone_or_from_an_item():
    lines = [b"5\n", b" 0x10 ", b'{"id": "7", "payload": "x"}', json.dumps(item_json(whole())).encode()]
    assert [id_of_line(line, 1) for line in lines] == [5, 16, 7, 5]


@pytest.mark.parametrize("line", [b"x", b"{}", b"{", b"\xff", b"-1", b'{"id": []}'])
def test_a_line_without_an_id_is_named(line):
    with pytest.raises(Invalid, match=r"^line 3: "):
        id_of_line(line, 3)


class Service:
    """Answers each enqueue with the next outcomes, and knows one item."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.asked = []

    def enqueue_many(self, specs):
        self.asked.append([spec.dedup_key for spec in specs])
        return self.outcomes.pop(0)

    def get_item(self, item_id):
        if item_id != 7:
            raise NotFound("no such item")
        return Item(id=7, ns="n", topic="t")


def specs(*sources):
    return {source: ItemSpec("t", b"x", dedup_key=str(source)) for source in sources}


def test_a_job_is_named_by_its_arguments():
    assert job_of("a", "b") == job_of("a", "b")
    assert len({job_of("a", "b"), job_of("b", "a"), job_of("ab", "")}) == 3


def test_a_key_names_the_kind_the_job_and_the_source():
    keys = {
        copy_key(*one) for one in (("move", "j", 1, 2), ("copy", "j", 1, 2), ("move", "j", 1, 3), ("move", "k", 1, 2))
    }
    assert len(keys) == 4


def test_only_copies_that_may_be_repeated_are_repeated():
    refused, busy = Invalid("too long"), Overloaded("busy")
    service = Service([11, refused, busy], [Duplicate(13)])
    assert store_copies(specs(1, 2, 3), service) == ({1: 11, 3: 13}, {2: refused})
    assert service.asked == [["1", "2", "3"], ["3"]]


def test_a_copy_is_tried_a_bounded_number_of_times():
    away = Unavailable("away")
    service = Service(*[[away]] * TRIES, [1])
    assert store_copies(specs(1), service) == ({}, {1: away})
    assert len(service.asked) == TRIES


def test_a_later_refusal_leaves_the_outcome_unknown():
    lost = OutcomeUnknown("lost")
    _, failed = store_copies(specs(1), Service([lost], [Invalid("closed")], [Unavailable("away")]))
    assert failed == {1: lost}
    assert store_copies(specs(1), Service([lost], [Duplicate(5)])) == ({1: 5}, {})


def test_a_copy_is_looked_for_in_its_topic():
    service = Service()
    assert is_there(7, "n", "t", service)
    assert not is_there(7, "n", "other", service)
    assert not is_there(8, "n", "t", service)
