"""Each check of a request refuses by a typed error that names the field, and takes the values at its bounds."""

import json
from typing import Any

import pytest

from foqs.api import validation
from foqs.api.dead_letters import _filter
from foqs.api.intake import Intake
from foqs.bounds import Limits
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.ids import content_of, digest_of
from foqs.rows import NewItem
from foqs.wire.usual_requests import SpecColumns
from tests.api.wire import spec

pytestmark = pytest.mark.memory

FIELDS = [name for name in dir(NewItem) if not name.startswith("_")]
NOW_MS = 1_000_000
REAL_MS = 1_764_112_000_000
DAY_MS = 86_400_000
LIMITS = Limits(payload_bytes=10, metadata_bytes=4, headers_bytes=6, name_bytes=5)


def taken(*specs: Any) -> Intake:
    return Intake("ns", list(specs), LIMITS, NOW_MS)


def refusal(**fields: Any) -> str:
    """Why an item with these fields is refused."""
    errors = taken(spec("t", **fields)).errors
    assert type(errors[0]) is Invalid
    return errors[0].message


def stored(**fields: Any) -> NewItem:
    intake = taken(spec("t", **fields))
    assert not intake.errors
    return intake.items[0]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "ns is missing"),
        (b"\xff", "ns is not UTF-8"),
        ("", "ns must have 1 to 5 bytes"),
        ("abcdef", "ns must have 1 to 5 bytes"),
        ("ééé", "ns must have 1 to 5 bytes"),
        (b"a\xc3", "ns is not UTF-8"),
        *((f"a{control}", "ns holds a control character") for control in "\0\n\x1f\x7f\x80\x85\x9f"),
    ],
)
def test_a_name_is_refused(value: object, why: str) -> None:
    with pytest.raises(Invalid) as error:
        validation.name(value, "ns", LIMITS)
    assert error.value.message == why


@pytest.mark.parametrize("value", ["a", "abcde", "éé", "a b", "a\u200bb"])
def test_a_name_is_taken(value: str) -> None:
    assert validation.name(value, "ns", Limits() if len(value.encode()) > 5 else LIMITS) == value


def test_the_time_of_a_caller_has_a_default() -> None:
    request = idl.AckRequest()
    assert validation.timeout_ms(request, LIMITS) == LIMITS.timeout_default_ms
    request.context = idl.RequestContext()
    assert validation.timeout_ms(request, LIMITS) == LIMITS.timeout_default_ms
    for good in (1, LIMITS.timeout_max_ms):
        request.context.timeout_ms = good
        assert validation.timeout_ms(request, LIMITS) == good


def test_a_list_has_one_to_so_many_entries() -> None:
    assert validation.counted([1, 2], "items", 2) == [1, 2]
    for empty in (None, []):
        with pytest.raises(Invalid, match=r"^items is empty$"):
            validation.counted(empty, "items", 2)
    with pytest.raises(Invalid, match=r"^items has 3 entries, more than 2$"):
        validation.counted([1, 2, 3], "items", 2)


def test_a_number_is_in_its_bounds_or_absent() -> None:
    assert [validation.within(one, "limit", 1, 3, 2) for one in (None, 1, 3)] == [2, 1, 3]
    for bad in (0, 4):
        with pytest.raises(Invalid, match=rf"^limit is {bad}, not in 1\.\.3$"):
            validation.within(bad, "limit", 1, 3, 2)


def test_bytes_may_be_absent_but_not_too_long() -> None:
    assert validation.blob(None, "metadata", 2) is None
    assert validation.blob(b"ab", "metadata", 2) == b"ab"
    with pytest.raises(Invalid, match=r"^metadata has 3 bytes, more than 2$"):
        validation.blob(b"abc", "metadata", 2)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"payload": None}, "payload is missing"),
        ({"payload": b"x" * 11}, "payload has 11 bytes, more than 10"),
        ({"metadata": b"12345"}, "metadata has 5 bytes, more than 4"),
        ({"headers": {"abc": "defg"}}, "headers have 7 bytes, more than 6"),
        ({"headers": {"a": b"\xff"}}, "headers hold text that is not UTF-8"),
        ({"headers": {b"\xff": "a"}}, "headers hold text that is not UTF-8"),
        ({"delivery": 0}, "delivery is neither AT_LEAST_ONCE nor AT_MOST_ONCE"),
        ({"delivery": 3}, "delivery is neither AT_LEAST_ONCE nor AT_MOST_ONCE"),
        ({"deliver_after_ms": 1, "delay_ms": 0}, "both deliver_after_ms and delay_ms are given"),
        ({"delay_ms": -1}, f"delay_ms is -1, not in 0..{366 * DAY_MS}"),
        ({"delay_ms": 366 * DAY_MS + 1}, f"delay_ms is {366 * DAY_MS + 1}, not in 0..{366 * DAY_MS}"),
        (
            {"deliver_after_ms": NOW_MS + 366 * DAY_MS + 1},
            f"deliver_after_ms is {NOW_MS + 366 * DAY_MS + 1}, more than {366 * DAY_MS} ms ahead",
        ),
        ({"lease_ms": 99}, "lease_ms is 99, not in 100..43200000"),
        ({"lease_ms": 43_200_001}, "lease_ms is 43200001, not in 100..43200000"),
        ({"ttl_ms": 0}, f"ttl_ms is 0, not in 1..{366 * DAY_MS}"),
        ({"ttl_ms": 366 * DAY_MS + 1}, f"ttl_ms is {366 * DAY_MS + 1}, not in 1..{366 * DAY_MS}"),
        ({"expires_at_ms": REAL_MS, "ttl_ms": 5}, "both expires_at_ms and ttl_ms are given"),
        ({"expires_at_ms": -1}, "expires_at_ms is -1: it must be Unix epoch milliseconds"),
        ({"expires_at_ms": 0}, "expires_at_ms is 0: it must be Unix epoch milliseconds"),
        ({"dedup_key": ""}, "dedup_key must have 1 to 5 bytes"),
        ({"dedup_key": b"\xff"}, "dedup_key is not UTF-8"),
    ],
)
def test_an_item_is_refused_by_the_field_at_fault(fields: dict[str, Any], why: str) -> None:
    assert refusal(**fields) == why


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": b"x" * 10}, {"metadata": b"1234"}, {"headers": {"abc": "def"}}, {"headers": {"é": "éé"}},
        {"priority": -(2**31)}, {"priority": 2**31 - 1}, {"delivery": 1}, {"delivery": 2},
        {"lease_ms": 100}, {"lease_ms": 43_200_000}, {"ttl_ms": 1}, {"ttl_ms": 366 * DAY_MS},
        {"delay_ms": 366 * DAY_MS}, {"deliver_after_ms": NOW_MS + 366 * DAY_MS}, {"dedup_key": "abcde"},
    ],
    ids=str,
)  # fmt: skip
def test_values_at_their_bounds_are_accepted(fields: dict[str, Any]) -> None:
    assert not taken(spec("t", **{"payload": b"", **fields})).errors


@pytest.mark.parametrize(("topic", "why"), [(None, "topic is missing"), ("x" * 6, "topic must have 1 to 5 bytes")])
def test_an_item_is_refused_by_its_topic(topic: Any, why: str) -> None:
    assert taken(spec(topic)).errors[0].message == why


def test_times_of_an_item_count_from_the_enqueue() -> None:
    plain = stored()
    assert (plain.deliver_after_ms, plain.due_ms, plain.expires_at_ms, plain.lease_ms) == (NOW_MS, 0, 0, 0)
    later = stored(delay_ms=50, ttl_ms=70, lease_ms=100)
    assert (later.deliver_after_ms, later.due_ms) == (NOW_MS + 50, NOW_MS + 50)
    assert (later.expires_at_ms, later.lease_ms) == (NOW_MS + 70, 100)
    assert stored(deliver_after_ms=NOW_MS + 9).due_ms == NOW_MS + 9


@pytest.mark.parametrize("past", [{"delay_ms": 0}, {"deliver_after_ms": NOW_MS}, {"deliver_after_ms": -5}])
def test_a_time_in_the_past_means_now(past: dict[str, int]) -> None:
    item = stored(**past)
    assert (item.due_ms, item.deliver_after_ms) == (0, NOW_MS)


@pytest.mark.parametrize(
    ("at_ms", "why"),
    [
        (
            REAL_MS // 1_000,
            "which is in January 1970: give Unix epoch milliseconds (of seconds 1,000 times the number)",
        ),
        (60_000, "which is in January 1970"),
        (REAL_MS * 1_000, "which is after the year 5000"),
    ],
)
def test_a_time_in_another_unit_is_refused(at_ms: int, why: str) -> None:
    fields = ("deliver_after_ms", "expires_at_ms")
    good = [spec("t", deliver_after_ms=REAL_MS - 5), spec("t")]
    intake = Intake("ns", [*(spec("t", **{field: at_ms}) for field in fields), *good], LIMITS, REAL_MS)
    for field, error in zip(fields, intake.errors.values(), strict=True):
        assert error.message.startswith(f"{field} is {at_ms}, {why}")
    assert (list(intake.errors), intake.indices) == ([0, 1], [2, 3])
    with pytest.raises(Invalid, match=f"^died_after_ms is {at_ms}, "):
        _filter(idl.FailureFilter(died_after_ms=at_ms), LIMITS, REAL_MS)
    with pytest.raises(Invalid, match=f"^died_before_ms is {at_ms}, "):
        _filter(idl.FailureFilter(died_before_ms=at_ms), LIMITS, REAL_MS)


@pytest.mark.parametrize("past", [0, 1, 999, REAL_MS - 1, -(1 << 63)])
def test_a_time_in_the_past_is_accepted(past: int) -> None:
    intake = Intake("ns", [spec("t", deliver_after_ms=past)], LIMITS, REAL_MS)
    assert not intake.errors and intake.items[0].due_ms == 0
    assert _filter(idl.FailureFilter(died_before_ms=past), LIMITS, REAL_MS).died_before_ms == past


def test_a_ttl_may_be_given_by_its_end() -> None:
    """A time that has passed is the shortest TTL."""
    ends_ms = (REAL_MS + DAY_MS, REAL_MS - DAY_MS, 10**14)
    intake = Intake("ns", [spec("t", expires_at_ms=end_ms) for end_ms in ends_ms], LIMITS, REAL_MS)
    assert [item.expires_at_ms for item in intake.items] == [REAL_MS + DAY_MS, REAL_MS + 1]
    assert intake.errors[2].message == f"expires_at_ms is {10**14}, more than {366 * DAY_MS} ms ahead"


@pytest.mark.parametrize("field", ["delay_ms", "ttl_ms", "lease_ms"])
def test_a_time_in_place_of_a_duration_is_named(field: str) -> None:
    assert refusal(**{field: REAL_MS}).endswith("which is a time and no duration")
    assert not refusal(**{field: -1}).endswith("which is a time and no duration")


def test_bytes_of_an_item_are_payload_metadata_and_headers() -> None:
    intake = taken(spec("t", b"12345"), spec("t", b"1", metadata=b"23", headers={"a": "b"}))
    headers = intake.items[1].headers
    assert headers is not None
    assert intake.sizes == [5, 3 + len(headers)]
    assert json.loads(headers) == {"a": "b"}


def test_a_refused_item_leaves_the_other_items_in_their_places() -> None:
    intake = taken(spec("a"), spec(""), spec("b", dedup_key="k"), spec("a", None), spec("b"))
    assert sorted(intake.errors) == [1, 3]
    assert (intake.indices, intake.keys) == ([0, 4], [("ns", "a"), ("ns", "b")])
    (keyed,) = intake.keyed
    assert (keyed.at, keyed.lane) == (2, ("ns", "b"))


@pytest.mark.parametrize(
    "shared",
    [
        {}, {"delay_ms": 5}, {"deliver_after_ms": NOW_MS + 9}, {"lease_ms": 200, "ttl_ms": 7}, {"delivery": 2},
        {"delivery": 3}, {"delay_ms": -1}, {"topic": ""},
    ],
)  # fmt: skip
@pytest.mark.parametrize("payloads", [[b"", b"ab", b"c"], [b"a", b"x" * 11, b"b"], [b"x" * 11, b"a"], [b"a"]])
def test_columns_of_specs_are_taken_as_the_specs(shared: dict[str, Any], payloads: list[bytes]) -> None:
    columns = SpecColumns(idl.ItemSpec(payload=payloads[0], priority=3, **{"topic": "t", **shared}))
    columns.payloads = payloads
    columns.priorities = [3, 9, -2][: len(payloads)]
    by_columns, one_by_one = Intake("ns", columns, LIMITS, NOW_MS), taken(*columns)
    for run in ("keys", "indices", "sizes", "keyed"):
        assert getattr(by_columns, run) == getattr(one_by_one, run)
    for got, reference in zip(by_columns.items, one_by_one.items, strict=True):
        assert all(getattr(got, name) == getattr(reference, name) for name in FIELDS)
    assert {at: str(error) for at, error in by_columns.errors.items()} == {
        at: str(error) for at, error in one_by_one.errors.items()
    }


@pytest.mark.parametrize("shared", [{}, {"weight": 3}, {"throttle_keys": ["b", "a"], "weight": 2}, {"weight": 0}])
@pytest.mark.parametrize(
    "tenants", [["a", "b", "a"], ["", "b", ""], ["a", "", "x" * 256], ["a", "a", "\n"], ["\n"] * 3]
)
def test_columns_of_tenants_are_taken_as_the_specs(shared: dict[str, Any], tenants: list[str]) -> None:
    columns = SpecColumns(idl.ItemSpec(topic="t", payload=b"a", priority=3, fairness_key=tenants[0], **shared))
    columns.payloads, columns.priorities, columns.tenants = [b"a", b"b", b"c"], [3, 9, -2], tenants
    by_columns, one_by_one = Intake("ns", columns, LIMITS, NOW_MS), taken(*columns)
    for run in ("keys", "indices", "sizes", "weights"):
        assert getattr(by_columns, run) == getattr(one_by_one, run)
    assert [one.payload for one in by_columns.items] == [one.payload for one in one_by_one.items]
    assert len({id(key) for key in by_columns.keys}) == len(set(by_columns.keys))
    assert {at: str(error) for at, error in by_columns.errors.items()} == {
        at: str(error) for at, error in one_by_one.errors.items()
    }


SAME = {"a": "bc"}


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": [b"", b"ab", b"abcd"]},
        {"metadata": [b"", b"ab", b"abcde"]},
        {"headers": [SAME, SAME, {"a": '"\n'}]},
        {"headers": [{}, {"a": "\u00e9"}, {"a": "bcdefg"}]},
        {"headers": [SAME, SAME, SAME], "metadata": [b"a"] * 3, "fairness_key": ["a", "b", "a"]},
        {"dedup_key": ["a", "b", "a"]},
        {"dedup_key": ["a", "b", "a"], "headers": [SAME, {}, SAME], "fairness_key": ["a", "", "b"], "weight": [3] * 3},
        {"dedup_key": ["a", "", "b"]},
        {"dedup_key": ["a", "b\n", "c"], "headers": [SAME, SAME, SAME]},
        {"dedup_key": ["a", "b\u00e9", "\u4e2d"]},
        {"dedup_key": ["a", "abcdef", "c"]},
        {"dedup_key": ["a", "\u00e9\u00e9\u00e9", "c"]},
        {"dedup_key": ["a", "\ud800", "c"]},
    ],
)
def test_columns_of_fields_are_taken_as_the_specs(fields: dict[str, list[Any]]) -> None:
    columns = SpecColumns(idl.ItemSpec("t", b"a", priority=3, **{name: column[0] for name, column in fields.items()}))
    columns.payloads, columns.priorities = [b"a", b"b", b"c"], [3, 9, -2]
    columns.metadata, columns.headers = fields.get("metadata"), fields.get("headers")
    columns.dedup_keys, columns.tenants = fields.get("dedup_key"), fields.get("fairness_key")
    by_columns, one_by_one = Intake("ns", columns, LIMITS, NOW_MS), taken(*columns)
    for run in ("keys", "indices", "sizes", "weights"):
        assert getattr(by_columns, run) == getattr(one_by_one, run)
    shown = [(one.at, one.dedup, one.lane, one.size_bytes, one.weight) for one in by_columns.keyed]
    assert shown == [(one.at, one.dedup, one.lane, one.size_bytes, one.weight) for one in one_by_one.keyed]
    items = [*by_columns.items, *(one.item for one in by_columns.keyed)]
    for got, reference in zip(items, [*one_by_one.items, *(one.item for one in one_by_one.keyed)], strict=True):
        assert all(getattr(got, name) == getattr(reference, name) for name in FIELDS)
    assert {at: str(error) for at, error in by_columns.errors.items()} == {
        at: str(error) for at, error in one_by_one.errors.items()
    }


@pytest.mark.parametrize("pairs", [{}, SAME, {"\u00e9": '"\\', "\n": "\x7f\u2028"}, {"": ""}])
def test_headers_are_kept_as_json(pairs: dict[str, str]) -> None:
    assert validation.headers(pairs, Limits()) == json.dumps(pairs, ensure_ascii=False).encode()


def test_a_name_is_checked_by_the_limits_of_its_time() -> None:
    assert validation.name("long", "ns", LIMITS) == "long"
    with pytest.raises(Invalid, match="ns must have 1 to 3 bytes"):
        validation.name("long", "ns", Limits(name_bytes=3))
    for number in range(5_000):
        assert validation.name(f"n{number}", "ns", Limits())
    assert len(validation.name_bytes) <= validation._NAMES_KEPT


def test_a_key_is_kept_as_hashes_of_the_key_and_the_content() -> None:
    (keyed,) = taken(spec("t", b"x", dedup_key="k")).keyed
    assert keyed.dedup == (digest_of("ns", "k"), content_of("t", b"x"))


def test_a_caught_error_refers_to_no_payload() -> None:
    assert taken(spec("t", None)).errors[0].__traceback__ is None


@pytest.mark.parametrize("count", range(6))
def test_keep_drops_all_but_the_first_items(count: int) -> None:
    """Items with and without keys count alike, in the order of the request."""
    intake = taken(spec("a"), spec("b", dedup_key="1"), spec("c"), spec("", b""), spec("d", dedup_key="2"), spec("e"))
    there = [0, 1, 2, 4, 5]
    assert intake.places() == there
    intake.keep(count)
    assert intake.places() == there[:count]
    assert len(intake.items) == len(intake.keys) == len(intake.sizes) == len(intake.indices)
