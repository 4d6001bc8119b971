"""Keys made from rows: each row is stored once, for any division and any number of repetitions of a batch."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="PySpark is not installed (pip install 'foqs[spark]')")

from foqs.client import ItemSpec
from foqs.errors import Invalid
from foqs.spark import write_files
from foqs.spark.write_files import Kept, Known
from foqs.spark.write_rows import KeyMaker, Sent, missing_rows

SCOPE = "query:7"


class Service:
    """Store an item for each new key."""

    def __init__(self) -> None:
        self.items: dict[str, ItemSpec] = {}

    def enqueue(self, spec: ItemSpec) -> bool:
        """Return False for a known key."""
        key = str(spec.dedup_key)
        if key in self.items:
            assert replace(spec) == self.items[key]
            return False
        self.items[key] = spec
        return True


def task(
    service: Service,
    rows: list[int],
    stops_after: int | None = None,
    folder: str | None = None,
    body: Callable[[int], bytes] = lambda row: b"%d" % row,
) -> Sent:
    keys, known = KeyMaker(SCOPE), Known(SCOPE, folder)
    for row in rows[:stops_after]:
        spec = ItemSpec("t", body(row))
        spec.dedup_key = keys.key(spec)
        if not service.enqueue(spec):
            known.add(spec)
    return Sent.of(keys.counts, known.close())


@st.composite
def tries(draw: Any) -> tuple[list[int], list[list[tuple[list[int], int]]]]:
    """Rows, many of them equal; for each attempt of the batch its partitions, and where their tasks stop."""
    rows = draw(st.lists(st.integers(0, 3), max_size=12))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(rows))
        cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
        parts = [order[low:high] for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        made.append([(part, draw(st.integers(0, len(part)))) for part in parts])
    return rows, made


@given(tries())
def test_other_partitions_store_no_row_twice(given_: Any) -> None:
    """All attempts except the last stop somewhere; only the last one reaches the driver's part."""
    rows, batches = given_
    service = Service()
    for parts in batches[:-1]:
        for part, stops_after in parts:
            task(service, part, stops_after)
    for _ in range(2):  # the second time after a crash between the driver's part and the commit
        sent = [task(service, part) for part, _ in batches[-1]]
        for spec in missing_rows(sent):
            service.enqueue(spec)
        assert Counter(int(spec.payload) for spec in service.items.values()) == Counter(rows)


def test_distinct_rows_leave_nothing_to_the_driver() -> None:
    service = Service()
    sent = [task(service, part) for part in ([1, 1, 2], [3, 3], [])]
    assert len(service.items) == 5
    assert list(missing_rows(sent)) == []
    assert list(missing_rows([])) == []


def test_rows_that_were_not_kept_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that cannot be repaired is always reported."""
    monkeypatch.setattr(write_files, "KEPT_BYTES", 400)
    service = Service()
    sent = [task(service, list(range(10))) for _ in range(2)]
    assert len(sent[1].kept.rows) == 1
    with pytest.raises(Invalid, match=r"^9 rows are equal to rows of other partitions.*equalRowsPath.*repartition"):
        list(missing_rows(sent))


def test_keys_of_the_frame_are_not_collected() -> None:
    known = Known(SCOPE)
    for key in (None, "k", f"{SCOPE}:mine", f"{SCOPE}x:{'0' * 32}:1", f"{SCOPE}:{'0' * 32}:1:2"):
        known.add(ItemSpec("t", b"x", dedup_key=key))
    assert known.close().rows == {}


def test_the_report_of_a_task_has_8_bytes_a_row() -> None:
    sent = task(Service(), list(range(1_000)))
    assert (len(sent.hashes), sent.repeats, sent.kept) == (8_000, {}, Kept())


def test_a_stream_refuses_keys_that_depend_on_partitions() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from foqs.spark.write import BatchWriter, StreamWriter

    schema = types.StructType([types.StructField("payload", types.StringType())])
    options = {"endpoints": "h:1", "namespace": "n", "topic": "t"}
    assert StreamWriter(options, schema, overwrite=False).keys == "row"
    assert BatchWriter(options, schema, overwrite=False).keys == "partition"
    assert BatchWriter({**options, "jobId": "j"}, schema, overwrite=False).keys == "row"
    assert BatchWriter({**options, "jobId": "j", "dedupKeys": "none"}, schema, overwrite=False).keys == "none"
    with pytest.raises(Invalid, match="dedupKeys=partition is not for streams"):
        StreamWriter({**options, "dedupKeys": "partition"}, schema, overwrite=False)
    with pytest.raises(Invalid, match="jobId is for df"):
        StreamWriter({**options, "jobId": "j"}, schema, overwrite=False)


@pytest.mark.parametrize(
    ("options", "columns", "in_stream", "warns"),
    [
        ({}, ("payload",), True, True),
        ({}, ("payload",), False, False),
        ({}, ("payload", "DEDUP_KEY"), True, False),
        ({"jobId": "j"}, ("payload",), True, False),
    ],
)
def test_a_warning_if_a_batch_would_be_stored_twice(
    options: dict[str, str], columns: tuple[str, ...], in_stream: bool, warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from foqs.spark.write import BatchWriter, Totals, Written

    schema = types.StructType([types.StructField(name, types.StringType()) for name in columns])
    writer = BatchWriter({"endpoints": "h:1", "namespace": "n", "topic": "t", **options}, schema, overwrite=False)
    writer.commit([Written("job", Totals(rows=1), in_stream=in_stream), None])
    assert ("set the option jobId" in capsys.readouterr().err) is warns
