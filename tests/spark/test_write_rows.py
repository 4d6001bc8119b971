"""Columns, options and keys, without Spark."""

from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.spark.options import WRITE_COLUMNS, WriteOptions, check_columns

GOOD = {name: kinds[0] for name, kinds in WRITE_COLUMNS.items() if name != "delay_ms"}


def test_every_column_in_every_type() -> None:
    check_columns(GOOD.items(), has_topic=False)
    for name, kinds in WRITE_COLUMNS.items():
        for kind in kinds:
            check_columns({"payload": "binary", name: kind}.items(), has_topic=True)


@pytest.mark.parametrize(
    ("columns", "has_topic", "says"),
    [
        ({"topic": "string"}, False, "column payload is missing"),
        ({"payload": "binary"}, False, "column topic is missing"),
        ({**GOOD, "colour": "string"}, False, "column colour is unknown: the columns are topic, payload, "),
        ({**GOOD, "Payload": "binary"}, False, "column payload is there twice"),
        ({**GOOD, "priority": "bigint"}, False, "column priority is bigint, not tinyint or smallint or int"),
        ({**GOOD, "deliver_after": "timestamp_ntz"}, False, "column deliver_after is timestamp_ntz"),
        ({**GOOD, "headers": "map<string,int>"}, False, "column headers is map<string,int>"),
        ({**GOOD, "delay_ms": "int"}, False, "deliver_after or delay_ms, not both"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, str], has_topic: bool, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        check_columns(columns.items(), has_topic=has_topic)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({}, "option endpoints is missing; option namespace is missing"),
        ({"onInvalid": "collect"}, "invalidPath"),
        ({"onInvalid": "drop"}, "option onInvalid"),
        ({"maxRowsPerSecond": "10"}, "option tasks"),
        ({"maxRowsPerSecond": "-1", "tasks": "1"}, "option maxRowsPerSecond"),
        ({"batchRows": "many"}, "option batchRows"),
        ({"jobId": "a:b"}, "option jobId: .*'a:b' is not 1 to 100 letters"),
        ({"dedupKeys": "some"}, "option dedupKeys"),
        ({"colour": "red"}, "option colour is unknown; the options are endpoints, namespace, topic, .*, extraColumns$"),
    ],
)
def test_wrong_options_are_named(given_: dict[str, str], says: str) -> None:
    base = {"ENDPOINTS": "h:1", "namespace": "n"} if given_ else {}
    with pytest.raises(Invalid, match=says):
        WriteOptions.parse({**base, **given_})


def test_columns_of_any_case() -> None:
    check_columns({"PayLoad": "binary", "TOPIC": "string"}.items(), has_topic=False)
    pa = pytest.importorskip("pyarrow")
    from foqs.client import ItemSpec
    from foqs.spark.write_rows import specs_of

    batch = pa.RecordBatch.from_pydict({"PayLoad": ["p"], "TOPIC": ["a"], "Deliver_After": pa.array([1], "int64")})
    assert list(specs_of(batch, None, None)) == [ItemSpec("a", b"p", deliver_after_ms=1)]


def test_other_columns_become_headers() -> None:
    kinds = {
        "payload": "binary",
        "customer": "string",
        "Big": "bigint",
        "ok": "boolean",
        "headers": "map<string,string>",
    }
    with pytest.raises(Invalid, match=r"column customer is unknown.*extraColumns=headers.*column Big is unknown"):
        check_columns(kinds.items(), has_topic=True)
    check_columns(kinds.items(), has_topic=True, extra="headers")
    wrong = {"payload": "int", "at": "timestamp", "part": "double", "list": "array<string>"}
    with pytest.raises(Invalid, match=r"payload is int.*at is timestamp, and a header is string or bool.*part.*list"):
        check_columns(wrong.items(), has_topic=True, extra="headers")
    with pytest.raises(Invalid, match="column x is there twice"):
        check_columns([("payload", "binary"), ("x", "string"), ("x", "string")], has_topic=True, extra="headers")
    pa = pytest.importorskip("pyarrow")
    from foqs.client import ItemSpec
    from foqs.spark.write_rows import KeyMaker, specs_of

    columns = {
        "payload": [b"1", b"2", b"3", b"4"],
        "customer": ["acme", None, "acme", "acme"],
        "Big": pa.array([-(1 << 63), None, None, None], "int64"),
        "ok": [True, None, False, None],
    }
    plain = pa.RecordBatch.from_pydict(columns)
    assert [spec.headers for spec in specs_of(plain, "t", None)] == [
        {"customer": "acme", "Big": "-9223372036854775808", "ok": "true"},
        None,
        {"customer": "acme", "ok": "false"},
        {"customer": "acme"},
    ]
    pairs = [[("k", "v")], [("customer", "kept")], [("customer", "acme")], [("customer", "other")]]
    both = plain.append_column("headers", pa.array(pairs, pa.map_(pa.string(), pa.string())))
    *specs, refused = specs_of(both, "t", KeyMaker("job"))
    assert [spec.headers for spec in specs if isinstance(spec, ItemSpec)] == [
        {"k": "v", "customer": "acme", "Big": "-9223372036854775808", "ok": "true"},
        {"customer": "kept"},
        {"customer": "acme", "ok": "false"},
    ]
    assert len({spec.dedup_key for spec in specs if isinstance(spec, ItemSpec)}) == 3
    assert "the column customer and the column headers have two values of the header 'customer'" in str(refused)


def test_what_spark_adds_to_options_is_ignored() -> None:
    """The options of CREATE TABLE: given twice, with properties of the catalog."""
    given_ = {
        "option.endpoints": "h:1", "option.nameSpace": "n", "endpoints": "h:1", "nameSpace": "n", "provider": "foqs",
        "owner": "root", "comment": "c", "a.property": "x", "location": "/x",
    }  # fmt: skip
    assert WriteOptions.parse(given_).namespace == "n"
    added = {"path": "/x", "owner": "root", "transient_lastDdlTime": "1", "serialization.format": "1", "spark.x": "y"}
    assert WriteOptions.parse({"endpoints": "h:1", "namespace": "n", **added}).endpoints == "h:1"
    with pytest.raises(Invalid, match=r"endpoints is missing.*CREATE TEMPORARY VIEW.*INSERT INTO name WITH"):
        WriteOptions.parse({"owner": "root"})


def test_options_of_any_case() -> None:
    options = WriteOptions.parse({"EndPoints": "h:1", "NAMESPACE": "n", "maxrowspersecond": "10", "tasks": "4"})
    assert options.rows_per_second == 2.5


ROWS = st.lists(
    st.fixed_dictionaries(
        {"topic": st.sampled_from("ab"), "payload": st.binary(max_size=2)},
        optional={"priority": st.integers(0, 1), "headers": st.dictionaries(st.sampled_from("xy"), st.just("z"))},
    ),
    max_size=30,
)


@given(ROWS, st.randoms(use_true_random=False))
def test_rows_in_another_order_get_the_same_keys(rows: list[dict[str, Any]], rng: Any) -> None:
    pytest.importorskip("pyarrow")
    from foqs.client import ItemSpec
    from foqs.spark.write_rows import KeyMaker

    def keys(rows: list[dict[str, Any]]) -> list[str]:
        maker = KeyMaker("job:1")
        return [maker.key(ItemSpec(**row)) for row in rows]

    made = keys(rows)
    assert len(set(made)) == len(rows), "rows that are alike are items of their own"
    shuffled = list(rows)
    rng.shuffle(shuffled)
    assert sorted(keys(shuffled)) == sorted(made)


def test_times_of_the_first_years_are_in_the_past() -> None:
    """Frames have them in place of a time; the checks of a client would take them for another unit."""
    pa = pytest.importorskip("pyarrow")
    from foqs.spark.write_rows import specs_of

    day_us = 86_400_000_000
    times = [0, 3_600_000_000, day_us * 1_000, -day_us * 20_000, day_us * 20_000]
    columns = {"payload": ["p"] * 5, "deliver_after": pa.array(times, pa.timestamp("us", "UTC"))}
    made = [spec.deliver_after_ms for spec in specs_of(pa.RecordBatch.from_pydict(columns), "t", None)]
    assert made == [0, 0, 0, -20_000 * 86_400_000, 20_000 * 86_400_000]


def test_rows_as_items() -> None:
    """A null is the same as no column; a row that is no item has a reason."""
    pa = pytest.importorskip("pyarrow")
    from foqs.client import Delivery, ItemSpec
    from foqs.spark.write_rows import KeyMaker, specs_of

    columns = {
        "payload": ["p", None, "q", "r", "s"],
        "topic": ["a", "a", None, None, "b"],
        "priority": pa.array([None, 1, 2, 3, 4], pa.int32()),
        "deliver_after": pa.array([None, 1, 1_000, 1_001, -1], pa.timestamp("us", "UTC")),
        "headers": pa.array([None, [], [], [("x", "y")], []], pa.map_(pa.string(), pa.string())),
        "delivery": ["at_most_once", None, None, None, "twice"],
        "dedup_key": ["k", None, None, None, None],
    }
    batch = pa.RecordBatch.from_pydict(columns)
    full, payload, item, late, delivery = specs_of(batch, "t", None)
    assert full == ItemSpec("a", b"p", delivery=Delivery.AT_MOST_ONCE, dedup_key="k")
    assert item == ItemSpec("t", b"q", priority=2, deliver_after_ms=1, headers={})
    assert late == ItemSpec("t", b"r", priority=3, deliver_after_ms=2, headers={"x": "y"})
    assert [str(error) for error in (payload, delivery)] == [
        "payload is null",
        "delivery is 'twice', not one of AT_LEAST_ONCE, AT_MOST_ONCE",
    ]
    assert [str(row) for row in specs_of(batch.slice(2, 1), None, None)] == ["topic is null"]
    full, _, item, *_ = specs_of(batch, "t", KeyMaker("job:1"))
    assert isinstance(full, ItemSpec) and isinstance(item, ItemSpec)
    assert full.dedup_key == "k" and item.dedup_key is not None and item.dedup_key.startswith("job:1:")


def test_rows_in_order_get_no_made_key() -> None:
    pa = pytest.importorskip("pyarrow")
    from foqs.client import ItemSpec
    from foqs.spark.write_rows import KeyMaker, specs_of

    columns = {"payload": ["p", "q", "r"], "order_key": ["k", "", None]}
    first, empty, plain = specs_of(pa.RecordBatch.from_pydict(columns), "t", KeyMaker("job:1"))
    assert first == ItemSpec("t", b"p", order_key="k")
    assert isinstance(empty, ItemSpec) and isinstance(plain, ItemSpec)
    assert empty.dedup_key is not None and plain.dedup_key is not None


def test_rows_of_unique_work() -> None:
    pa = pytest.importorskip("pyarrow")
    from foqs.client import DedupUntil, ItemSpec, OnDuplicate
    from foqs.spark.write_rows import KeyMaker, specs_of

    columns = {
        "payload": ["p"] * 5,
        "dedup_key": ["a", "b", "c", None, None],
        "dedup_until": ["done", None, "never", "DONE", None],
        "on_duplicate": ["Replace", "drop", None, None, None],
    }
    full, on_duplicate, until, keyless, plain = specs_of(pa.RecordBatch.from_pydict(columns), "t", KeyMaker("job:1"))
    assert full == ItemSpec(
        "t", b"p", dedup_key="a", dedup_until=DedupUntil.DONE, on_duplicate=OnDuplicate.REPLACE
    )  # fmt: skip
    assert str(until) == "dedup_until is 'never', not one of WINDOW, STARTED, DONE"
    assert str(on_duplicate) == "on_duplicate is 'drop', not one of KEEP, REPLACE"
    assert (keyless.dedup_key, keyless.dedup_until) == (None, DedupUntil.DONE), "the client refuses it"
    assert plain.dedup_key is not None


def test_rows_of_tenants() -> None:
    pa = pytest.importorskip("pyarrow")
    from foqs.client import ItemSpec
    from foqs.spark.write_rows import specs_of

    columns = {
        "payload": ["p", "q", "r"],
        "fairness_key": ["acme", None, None],
        "throttle_keys": pa.array([["db", "api:acme"], None, ["db", None]], pa.list_(pa.string())),
        "weight": pa.array([3, None, None], pa.int16()),
    }
    full, plain, wrong = specs_of(pa.RecordBatch.from_pydict(columns), "t", None)
    assert full == ItemSpec("t", b"p", fairness_key="acme", throttle_keys=["db", "api:acme"], weight=3)
    assert plain == ItemSpec("t", b"q")
    assert str(wrong) == "throttle_keys has a null"


def test_equal_rows_of_tenants_are_items_of_their_own() -> None:
    pytest.importorskip("pyarrow")
    from foqs.client import ItemSpec
    from foqs.spark.write_rows import KeyMaker

    given: list[dict[str, Any]] = [{}, {"fairness_key": "a"}, {"throttle_keys": ["a"]}, {"weight": 2}]
    maker = KeyMaker("job:1")
    made = [maker.key(ItemSpec("t", b"x", priority=2, headers={"a": "b"}, **fields)) for fields in given]
    assert len({key.rsplit(":", 1)[0] for key in made}) == 4


class Slow:
    """A client that counts the requests that it has at a time."""

    waits = 0, 0.0

    def __init__(self, outcomes: list[Any]) -> None:
        self.outcomes = outcomes
        self.asked: list[list[bytes]] = []
        self.at_a_time = self.most = 0

    def enqueue_many(self, specs: list[Any], timeout_ms: int) -> list[Any]:
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        self.asked.append([spec.payload for spec in specs])
        sleep(0.02)
        self.at_a_time -= 1
        return self.outcomes.pop(0) if self.outcomes else [1] * len(specs)


def sender(client: Slow) -> Any:
    from foqs.spark.write import Sender

    options = WriteOptions.parse({"endpoints": "h:1", "namespace": "n", "batchRows": "2"})
    return Sender(client, options, lambda *_: None, lambda _: None, None)  # type: ignore[arg-type]


@pytest.mark.threads
def test_rows_in_order_are_sent_one_request_at_a_time() -> None:
    pytest.importorskip("pyspark")
    from foqs.client import ItemSpec

    client = Slow([])
    sender(client).write([ItemSpec("t", b"%d" % n, order_key="k") for n in range(6)])
    assert client.asked == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]
    assert client.most == 1


@pytest.mark.threads
def test_rows_behind_one_in_doubt_are_not_sent() -> None:
    pytest.importorskip("pyspark")
    from foqs.client import ItemSpec, OutcomeUnknown, Unavailable
    from foqs.spark.write import Refused

    client = Slow([[OutcomeUnknown("lost"), Unavailable("held")]])
    with pytest.raises(Refused, match="lost"):
        sender(client).write([ItemSpec("t", b"%d" % n, order_key="k") for n in range(4)])
    assert client.asked == [[b"0", b"1"]]
