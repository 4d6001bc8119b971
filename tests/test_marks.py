"""Marks: a shard's ids, remembered outside its database."""

from __future__ import annotations

import pytest

from foqs.errors import Invalid
from foqs.ids import MARK_STEP, Mark, Stamp, decode_mark, encode_mark, mark_ahead
from foqs.store.ownership import ShardRow, Start, start_of

EPOCH_JUMP, NUMBER_JUMP = 1 << 20, 1 << 30


def row(epoch: int, next_number: int, seq: int = 0) -> ShardRow:
    return ShardRow(True, epoch, seq, next_number, 0, 0, 0, 0, b"")


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = Mark(3, 500, 1 << 40, 77, Stamp(1_000, 990, "host-a"))
    assert decode_mark(encode_mark(mark)) == mark


def test_unknown_keys_of_a_mark_are_ignored() -> None:
    assert decode_mark(b'{"epoch": 1, "number": 2, "ceiling": 3, "more": "x"}') == Mark(1, 2, 3)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"epoch": 1, "number": 2}', b'{"epoch": 1, "number": 2, "ceiling": -1}']
)
def test_a_mark_that_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode_mark(data)


def test_a_mark_of_a_wrong_seq_or_stamp_counts_without_it() -> None:
    assert decode_mark(b'{"epoch": 1, "number": 2, "ceiling": 3, "seq": "x", "stamp": [1]}') == Mark(1, 2, 3)


def test_without_a_mark_the_row_counts() -> None:
    assert start_of(row(4, 100), 0) == Start(5, 100, behind=False)
    assert start_of(row(4, 100), 300) == Start(5, 301, behind=False)
    assert start_of(row(4, 100), 0, epoch_above=9) == Start(10, 100, behind=False)


def test_after_an_orderly_close_no_number_is_skipped() -> None:
    assert start_of(row(4, 100), 0, mark=Mark(4, 100, 100)) == Start(5, 100, behind=False)


def test_after_a_crash_at_most_one_step_is_skipped() -> None:
    """The row may be what the owner left, or a copy from its time: the two look alike."""
    assert start_of(row(4, 250), 0, mark=mark_ahead(4, 100)) == Start(5, 100 + MARK_STEP, behind=False)


@pytest.mark.parametrize("found", [row(3, 100), row(4, 99), row(0, 1)])
def test_an_older_copy_is_jumped_over(found: ShardRow) -> None:
    """Its epoch, or its number, is one that the database had left behind."""
    start = start_of(found, 0, mark=Mark(4, 100, 100 + MARK_STEP))
    assert start == Start(4 + EPOCH_JUMP + 1, 100 + MARK_STEP + NUMBER_JUMP, behind=True)


def test_a_mark_behind_the_row_changes_nothing() -> None:
    """Another host had the shard since, and remembered it elsewhere."""
    assert start_of(row(9, 5_000), 0, mark=Mark(4, 100, 200)) == Start(10, 5_000, behind=False)


def test_a_changed_server_is_jumped_over() -> None:
    assert start_of(row(4, 100), 0, moved=True) == Start(5 + EPOCH_JUMP, 100 + NUMBER_JUMP, behind=False)


def test_a_copy_from_before_the_last_commits_is_an_older_one() -> None:
    """Nothing was enqueued since: the epoch and the number are those of the mark."""
    assert not start_of(row(4, 100, 7), 0, mark=Mark(4, 100, 100, 7)).behind
    assert not start_of(row(4, 100, 9), 0, mark=Mark(4, 100, 100, 7)).behind
    assert start_of(row(4, 100, 6), 0, mark=Mark(4, 100, 100, 7)).behind


def test_numbers_that_another_shard_may_have_given_are_skipped() -> None:
    """Its identity differs, so it says nothing of this shard's epochs."""
    assert start_of(row(4, 100), 0, mark=Mark(4, 100, 100), floor=5_000) == Start(5, 5_000, behind=False)
    assert start_of(row(4, 6_000), 0, mark=Mark(4, 100, 100), floor=5_000) == Start(5, 6_000, behind=False)


def test_a_shard_that_was_served_and_has_no_mark_is_jumped_over() -> None:
    """It may be a copy that was restored beside no marks. A new shard begins with 1."""
    assert start_of(row(4, 100), 0, unknown=True) == Start(5, 100 + NUMBER_JUMP, behind=False)
    assert start_of(row(0, 1), 0, unknown=True) == Start(1, 1, behind=False)
