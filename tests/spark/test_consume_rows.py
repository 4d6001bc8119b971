"""The rows of a batch, in its file, in its parts and as Spark gets them."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.client.items import Item
from foqs.errors import Invalid
from foqs.spark.consume_state import (
    COLUMNS,
    batch_text,
    joined,
    leases_of,
    parts_of,
    read_batch,
    sealed,
    table_of,
    unpacked,
)

ITEM = Item(
    id=1 << 62, lease=-(1 << 63), attempt=3, ns="n", topic="t", priority=-7, payload=b"\x00\xff", metadata=b"",
    headers={"é": "ü"}, delivery=2, deliver_after_ms=5, enqueued_at_ms=-4, fairness_key="acme",
    _throttle_keys=["api:acme", "db"],
)  # fmt: skip
BARE = Item(id=2, lease=9, ns="n", topic="t", delivery=1)
ROW = {
    "lease": -(1 << 63), "id": 1 << 62, "namespace": "n", "topic": "t", "priority": -7, "payload": b"\x00\xff",
    "metadata": b"", "headers": [("é", "ü")], "attempt": 3, "delivery": "AT_MOST_ONCE",
    "fairness_key": "acme", "throttle_keys": ["api:acme", "db"],
}  # fmt: skip
BARE_ROW = {
    "lease": 9, "id": 2, "namespace": "n", "topic": "t", "priority": 0, "payload": b"", "metadata": None,
    "headers": None, "attempt": 0, "delivery": "AT_LEAST_ONCE", "fairness_key": "", "throttle_keys": [],
}  # fmt: skip


def plain(table: Any) -> list[dict[str, Any]]:
    return table.drop_columns(["deliver_after", "enqueued_at"]).to_pylist()


def test_a_batch_comes_back_as_it_was() -> None:
    table = read_batch(batch_text(4, [ITEM, BARE]), 4)
    assert plain(table) == [ROW, BARE_ROW]
    assert table["deliver_after"].cast("int64").to_pylist() == [5_000, 0]
    assert table["enqueued_at"].cast("int64").to_pylist() == [-4_000, 0]


def test_damaged_and_foreign_files_are_refused() -> None:
    text = batch_text(4, [ITEM])
    for wrong in (b"", text[:-1], text[:70], text.replace(b"AT_MOST", b"AT_LAST")):
        with pytest.raises(Invalid, match="damaged"):
            read_batch(wrong, 4)
    with pytest.raises(Invalid, match="holds batch 4"):
        read_batch(text, 5)
    with pytest.raises(Invalid, match="format 2 is not known"):
        read_batch(sealed(b'{"format": 2, "seq": 4}\n'), 4)


def test_leases_are_what_stays_in_memory() -> None:
    (item, bare) = leases_of(table_of([ITEM, BARE]))
    assert [getattr(item, name) for name in ("id", "lease", "attempt", "ns", "topic", "priority", "payload")] == [
        1 << 62, -(1 << 63), 3, "n", "t", -7, b""
    ]  # fmt: skip
    assert (bare.id, bare.lease) == (2, 9)


@pytest.mark.parametrize(("parts", "rows"), [(1, [5]), (2, [3, 2]), (9, [1] * 5)])
def test_parts_have_the_chosen_columns_of_their_rows_only(parts: int, rows: list[int]) -> None:
    items = [Item(id=n, payload=b"%d" % n * 1_000, delivery=1) for n in range(5)]
    packed = parts_of(table_of(items), ["payload", "id"], parts)
    tables = [unpacked(part).read_all() for part in packed]
    assert [len(table) for table in tables] == rows
    assert joined([]).num_rows == 0
    assert [row for table in tables for row in table.to_pylist()] == [
        {"payload": b"%d" % n * 1_000, "id": n} for n in range(5)
    ]
    assert sum(map(len, packed)) < 5 * 1_000 + len(packed) * 1_000, "each part has its own rows only"


def test_no_rows_have_no_parts() -> None:
    assert parts_of(joined([]), list(COLUMNS), 2) == []
