"""Decisions about a snapshot before any database is read."""

from itertools import pairwise

import pytest

from foqs.errors import Invalid
from foqs.spark.snapshot_shards import MAX_ID, SnapshotOptions, ranges


@pytest.mark.parametrize(("least", "greatest"), [(5, 5), (1, 10), (1, 2), (10, 1_000_003), (MAX_ID - 1, MAX_ID)])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_ranges_hold_every_id_once(least: int, greatest: int, parts: int) -> None:
    found = ranges(least, greatest, parts)
    assert found[0][0] == 0
    assert found[-1][1] == MAX_ID
    assert len(found) <= parts
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert all(low < high for low, high in found)


def test_shards_are_listed_with_or_without_numbers() -> None:
    options = SnapshotOptions.parse({"shards": "2=sqlite:////a, mysql://u:p,w@h/x?a=1\n3=mysql://h/y"})
    assert options.urls == [(2, "sqlite:////a"), (None, "mysql://u:p,w@h/x?a=1"), (3, "mysql://h/y")]
    assert "p,w" not in repr(options)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"shards": "sqlite:////a", "config": "x"},
        {"shards": " "},
        {"shards": "1=sqlite:////a 1=sqlite:////b"},
        {"config": "x", "password": "secret"},
        {"config": "x", "partitionsPerShard": "0"},
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refused:
        SnapshotOptions.parse(given)
    assert "secret" not in str(refused.value)
