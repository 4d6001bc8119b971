"""The parts of a transaction: no list of rows is forgotten when it is cut."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from foqs.item_batch import BatchPart, BatchRow, BatchState, Counts, Ends, HowEnded, MemberRows
from foqs.order import OrderRow, Standing
from foqs.rows import (
    Batch,
    DedupRow,
    EndedRow,
    EndedState,
    FailureCause,
    FailureRow,
    HeldKey,
    KeyRows,
    LaneRow,
    NewItem,
    ProgressRow,
    ReadyRow,
    TimerRow,
)

KEPT_BY = {"lanes_new", "weights", "lanes_gone", "together"}
"""Lists of rows that belong to no item: `only` keeps them as its caller says, or always."""


def rows_of(item_id: int) -> dict[str, Any]:
    """A row of each list that names an item."""
    new = NewItem(b"", None, None, 0, 0, 0, 0, 0, 0, 1)
    new.id = item_id
    return {
        "dedup_new": DedupRow(b"d", 0, item_id, 0),
        "dedup_again": DedupRow(b"d", 0, item_id, 0),
        "inserts": new,
        "ready_gone": (1, 0, 0, item_id),
        "timer_gone": item_id,
        "metadata_new": (item_id, b""),
        "deliver_after_new": (item_id, 0),
        "failed_new": (item_id, 0, b""),
        "bodies_new": new,
        "placed": (item_id, 0, 0, False),
        "moved": (item_id, 2, 0, 0),
        "order_gone": OrderRow(b"d", Standing.IN_ORDER, item_id, item_id, 1),
        "order_new": OrderRow(b"d", Standing.IN_ORDER, item_id, item_id, 1),
        "order_at_new": (item_id, b""),
        "ready_new": ReadyRow(1, 0, 0, item_id, 0, 0, 0),
        "timer_new": TimerRow(0, item_id, 1, 0, 0, 0, 0),
        "expiry_gone": item_id,
        "expiry_new": (0, item_id),
        "failure_gone": item_id,
        "failure_new": FailureRow(1, 0, item_id, FailureCause.FAILED, 1, 0, b"", b"", b""),
        "ended_new": EndedRow(9, item_id, 1, EndedState.COMPLETED, 1, 0, 0),
        "results_new": (item_id, b""),
        "ended_gone": item_id,
        "progress_new": ProgressRow(item_id),
        "progress_gone": item_id,
        "item_gone": item_id,
    }


def test_each_list_of_a_batch_is_here() -> None:
    batch = Batch()
    batch.fill()
    lists = {one.name for one in fields(Batch) if isinstance(getattr(batch, one.name), list)}
    assert lists == rows_of(1).keys() | KEPT_BY


@pytest.mark.parametrize("name", rows_of(1))
def test_a_part_has_the_rows_of_its_items(name: str) -> None:
    rows = {item_id: rows_of(item_id)[name] for item_id in (5, 6, 7)}
    batch = Batch(**{name: list(rows.values())})
    part = batch.only({5, 7}, lanes=False)
    assert getattr(part, name) == [rows[5], rows[7]]


@pytest.mark.parametrize("name", [name for name in rows_of(1) if not name.startswith("dedup")])
def test_the_items_of_a_batch(name: str) -> None:
    """A key comes with its item, so it names none beside."""
    assert Batch(**{name: [rows_of(item_id)[name] for item_id in (5, 6, 5)]}).ids() == [5, 6]


def test_items_that_go_together_are_one_part() -> None:
    batch = Batch(item_gone=[5, 6])
    batch.fill()
    batch.timer_gone, batch.together = [7, 8], [(5, 7), (6, 8)]
    assert batch.ids() == [5, 6]
    part = batch.only({6}, lanes=False)
    assert (part.item_gone, part.timer_gone) == ([6], [8])


def test_lanes_go_with_one_part() -> None:
    lane = LaneRow(1, b"ns", b"topic", b"")
    batch = Batch(lanes_new=[lane], weights=[(1, 4)], lanes_gone=[2])
    kept, left = batch.only(set(), lanes=True), batch.only(set(), lanes=False)
    assert (kept.lanes_new, kept.weights, kept.lanes_gone) == ([lane], [(1, 4)], [2])
    assert (left.lanes_new, left.weights, left.lanes_gone) == ([], [], [])


def test_a_part_has_the_keys_of_its_items() -> None:
    held, of_none = [HeldKey(1, b"a"), HeldKey(2, b"b")], [HeldKey(9, b"c")]
    keys = KeyRows(b"", held, [1, 2], [2, 1], [1], of_none, of_none, of_none, cleared=[5])
    part = Batch(keys=keys).only({2}, lanes=False).keys
    assert part == KeyRows(b"", held[1:], [2], [2], [], of_none, of_none, of_none, cleared=[5])


def test_a_part_has_the_members_of_its_items() -> None:
    """What belongs to no item of the shard goes with each part. A batch ends with its first callback, and then it ends
    as a member of another batch, too."""
    rows = {batch: BatchRow(batch, b"ns", BatchState.OPEN, 0, 9) for batch in (1, 2)}
    ends = [Ends(5, 3, 1, 1, 2), Ends(6, 3, 1, 0, 2), Ends(7, 3, 1, 0, 0)]
    of_none = {
        "sent": [(8, 1)], "left": [1], "forgotten": [1], "states": [(8, 1)], "removed": [1],
        "parts": [BatchPart(8, 1, 1, 1, Counts())],
    }  # fmt: skip
    members = MemberRows(
        new=[(1, 8), (2, 8)], ended={HowEnded.COMPLETED: [1, 2, 5, 6, 7], HowEnded.DROPPED: [1]}, failed=[1, 2, 6],
        redriven=[2, 1], created=list(rows.values()), ends=ends, **of_none,
    )  # fmt: skip
    assert Batch(members=members).ids() == [1, 2]
    assert Batch(members=members).only({2}, lanes=False).members == MemberRows(
        new=[(2, 8)], ended={HowEnded.COMPLETED: [2, 6, 7], HowEnded.DROPPED: []}, failed=[2, 6], redriven=[2],
        created=[rows[2]], ends=ends[1:], **of_none,
    )  # fmt: skip
