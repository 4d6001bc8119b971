"""Ids: positive i64s that carry their shard, in the order in which a shard gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.ids import MAX_NUMBER, MAX_SHARD, first_id, make_id, number_of, shard_of

shards = st.integers(1, MAX_SHARD)
numbers = st.integers(1, MAX_NUMBER)


@given(shards, numbers)
def test_an_id_gives_back_what_it_was_made_of(shard: int, number: int) -> None:
    item_id = make_id(shard, number)
    assert (shard_of(item_id), number_of(item_id)) == (shard, number)
    assert 0 < item_id < 1 << 63
    assert item_id == first_id(shard) + number


@given(shards, numbers, shards, numbers)
def test_ids_sort_as_shard_and_number_do(a: int, i: int, b: int, j: int) -> None:
    assert (make_id(a, i) < make_id(b, j)) == ((a, i) < (b, j))


@pytest.mark.parametrize(("shard", "number"), [(0, 1), (MAX_SHARD + 1, 1), (1, 0), (1, MAX_NUMBER + 1), (-1, 1)])
def test_what_does_not_fit_is_refused(shard: int, number: int) -> None:
    with pytest.raises(ValueError, match="not in 1"):
        make_id(shard, number)


@given(st.integers(-(1 << 63), 0))
def test_what_is_no_id_belongs_to_no_shard(value: int) -> None:
    assert shard_of(value) <= 0
