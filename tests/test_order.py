"""The order in which script/test begins its tests."""

from pathlib import Path

import pytest

from tests.support.order import FIRST, parts

ROOT = Path(__file__).resolve().parents[1]
PATHS = [
    *(f"tests/api/{number}" for number in range(20)),
    *(f"tests/cluster/{number}" for number in range(3)),
    *(f"tests/crash/{number}" for number in range(5)),
    *(f"tests/sim/{number}" for number in range(8)),
    *(f"tests/spark/{number}" for number in range(4)),
    *(f"tests/wire/{number}" for number in range(24)),
]


def test_each_worker_begins_with_tests_of_its_own_folders() -> None:
    ordered = parts(PATHS, str, 4)
    assert sorted(ordered) == sorted(PATHS)
    begins = [len(PATHS) * number // 4 for number in range(4)]
    heads = (("spark", 4), ("cluster", 3), ("sim", 8), ("crash", 5))
    for at, (folder, count) in zip(begins, heads, strict=True):
        assert ordered[at : at + count] == [f"tests/{folder}/{number}" for number in range(count)]
    others = [path for path in ordered if path.startswith(("tests/api", "tests/wire"))]
    assert others == [path for path in PATHS if path.startswith(("tests/api", "tests/wire"))]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 100])
def test_any_number_of_workers_gets_each_test_once(workers: int) -> None:
    assert sorted(parts(PATHS, str, workers)) == sorted(PATHS)
    assert parts([], str, workers) == []


def test_the_folders_and_files_are_there() -> None:
    assert all((ROOT / place).exists() for places in FIRST for place in places)
