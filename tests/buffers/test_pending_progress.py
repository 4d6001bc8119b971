"""Rows of checkpoints, progress and logs that wait for their write: none is lost, and the budget is exact."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from foqs.bounds import Budget
from foqs.buffers.pending_progress import WRITE_DELAY_MS, PendingProgress
from foqs.rows import LOG_BYTES, ProgressRow


class _Item:
    def __init__(self, item_id: int) -> None:
        self.id = item_id


ITEMS = cast("list[Any]", [_Item(1), _Item(2)])
PARTS = st.builds(
    ProgressRow,
    st.just(1),
    st.none() | st.binary(max_size=3),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.none() | st.binary(max_size=3),
    st.sampled_from([b"", b"a\n", b"x" * 5_000 + b"\n"]),
)


@given(st.lists(PARTS, min_size=1, max_size=6), st.sets(st.integers(0, 5)))
def test_changes_in_any_parts_make_one_row(rows: list[ProgressRow], failed: set[int]) -> None:
    """Parts whose transaction failed come back below the newer ones."""
    budget, pending = Budget(1 << 20), PendingProgress()
    whole = rows[0]
    for row in rows[1:]:
        whole = whole.then(row)
    for number, row in enumerate(rows):
        taken = pending.take(1, budget) if number in failed and pending else None
        assert pending.add(ITEMS[0], row, number, budget)
        if taken is not None:
            pending.put_back(ITEMS[0], taken, number, budget)
    assert pending[1].row == whole
    assert budget.used_bytes == whole.size_bytes
    assert len(whole.log) <= LOG_BYTES
    pending.drop(budget)
    assert (budget.used_bytes, pending) == (0, {})


def test_a_full_budget_refuses_a_row_and_keeps_the_last() -> None:
    budget, pending = Budget(10), PendingProgress()
    assert pending.add(ITEMS[0], ProgressRow(1, b"12345"), 0, budget)
    assert not pending.add(ITEMS[0], ProgressRow(1, b"123456"), 0, budget)
    assert pending[1].row.checkpoint == b"12345"
    pending.discard(1, budget)
    pending.discard(1, budget)
    assert budget.used_bytes == 0


def test_the_longest_waiting_row_says_when_to_write() -> None:
    budget, pending = Budget(100), PendingProgress()
    for at_ms, item in ((10, ITEMS[0]), (20, ITEMS[1]), (30, ITEMS[0])):
        pending.add(item, ProgressRow(item.id, b"c"), at_ms, budget)
    assert pending.due_ms == 10 + WRITE_DELAY_MS
    pending.shift(5)
    assert pending.due_ms == 15 + WRITE_DELAY_MS
    pending.take(1, budget)
    assert pending.due_ms == 25 + WRITE_DELAY_MS
