"""Ids: positive i64s that carry their shard, in the order in which a shard gives them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client.items import Item as ClientItem
from foqs.errors import Invalid
from foqs.ids import MAX_NUMBER, MAX_SHARD, first_id, make_id, number_of, parse_id, shard_of
from foqs.item import Item
from tests.support.lanes import lone_lane

shards = st.integers(1, MAX_SHARD)
numbers = st.integers(1, MAX_NUMBER)


@given(shards, numbers)
def test_an_id_returns_its_shard_and_number(shard: int, number: int) -> None:
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
def test_an_invalid_id_belongs_to_no_shard(value: int) -> None:
    assert shard_of(value) <= 0


@given(shards, numbers)
def test_an_id_is_read_in_decimal_and_in_hexadecimal(shard: int, number: int) -> None:
    item_id = make_id(shard, number)
    for spelled in (item_id, str(item_id), f"{item_id:#x}", f"{item_id:#X}", f" {item_id} "):
        assert parse_id(spelled) == item_id


@pytest.mark.parametrize(
    "given", ["", "0x", "1000a", "-5", "+5", "1_000", "1.5", "٣", "0x8000000000000000", "9" * 20, "item", None, 1.5]
)
def test_what_spells_no_id_is_named_in_the_error(given: Any) -> None:
    with pytest.raises(Invalid, match=re.escape(repr(given))):
        parse_id(given)


@pytest.mark.parametrize("given", ["9" * 20, "9" * 5_000, "0x8000000000000000", "0x" + "f" * 5_000, str(1 << 63)])
def test_a_number_that_is_too_large_is_no_spelling_mistake(given: str) -> None:
    with pytest.raises(Invalid, match=r"^.{1,50} is not a lease: the largest one is 9223372036854775807$"):
        parse_id(given, "a lease")
    assert parse_id("0" * 5_000 + "7") == 7


def test_ids_are_printed_in_decimal_everywhere() -> None:
    """No module formats one in hexadecimal: a search for an id finds it in all logs, errors and files."""
    root = Path(__file__).parent.parent
    files = (path for name in ("foqs", "foqs_lab") for path in (root / name).rglob("*.py"))
    found = [str(path) for path in files if re.search(r"#x\}|\bhex\(\w", path.read_text())]
    assert found == []
    item_id = make_id(1, 1)
    assert str(item_id) in repr(ClientItem(id=item_id, topic="t"))
    assert str(item_id) in repr(Item(item_id, lone_lane(), 0, 0, 0, 0, 0, None))
