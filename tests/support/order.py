"""The order of tests in script/test, which loads this plugin: what takes long begins first, one kind on each worker.

pytest-xdist gives each worker one part of the list. A worker that has ended its part takes tests from the end of
another worker's. The first tests of a part stay on its worker, which alone starts what they share: Spark takes 15 s of
processor time to start. The last ones, which any worker may run, are short.
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

FIRST = (
    ("tests/spark/",),  # in a JVM
    ("tests/cluster/",),  # most of them wait
    ("tests/sim/", "tests/sim_cluster/", "tests/sim_peers/"),  # these compute
    ("tests/crash/", "tests/deploy/test_kubernetes.py", "tests/console/"),  # most of them wait; a browser has 400 MB
)
"""Folders and files whose tests a worker begins with."""

Item = TypeVar("Item")


def parts(items: Sequence[Item], path: Callable[[Item], str], workers: int) -> list[Item]:
    """Return `items` in an order that begins each of `workers` equal parts with tests of `FIRST`."""
    heads: list[list[Item]] = [[] for _ in range(workers)]
    rest: list[Item] = []
    for item in items:
        found = (number for number, folders in enumerate(FIRST) if path(item).startswith(folders))
        number = next(found, None)
        (rest if number is None else heads[number % workers]).append(item)
    ordered: list[Item] = []
    for number, head in enumerate(heads):
        ends = len(items) * (number + 1) // workers
        room = max(0, ends - len(ordered) - len(head))
        ordered += [*head, *rest[:room]]
        del rest[:room]
    return ordered + rest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        root = config.rootpath
        items[:] = parts(items, lambda item: item.path.relative_to(root).as_posix(), workers)
