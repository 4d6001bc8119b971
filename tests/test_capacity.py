"""The estimate of the capacity, from figures that a host measured."""

from __future__ import annotations

import pytest

from foqs.capacity import Capacity, estimate, shard_growth
from foqs.counters import BatchSums
from foqs.figures import HostStatus, ShardStatus


def host(name: str, items_per_s: float = 100.0, loop: float = 0.25, **fields: object) -> HostStatus:
    return HostStatus("a:1", name, "1", loop_busy=loop, items_per_s=items_per_s)._replace(**fields)  # type: ignore[arg-type]


def test_the_first_full_part_limits_all() -> None:
    assert estimate([host("a"), host("b", 300.0, 0.5)]) == Capacity(400.0, 400.0, "the event loop of b")
    machine = host("b", loop=0.3, loop_waiting=0.5)
    assert estimate([host("a"), machine]) == Capacity(200.0, pytest.approx(50.0), "the processors of the machine of b")
    waits = host("b", loop=0.5, loop_waiting=0.3)
    assert estimate([host("a"), waits]) == Capacity(200.0, pytest.approx(50.0), "the event loop of b")
    shards = (ShardStatus(1, growth=9.0), ShardStatus(2, growth=3.0), ShardStatus(3))
    assert estimate([host("a", shards=shards)]) == Capacity(100.0, 200.0, "the database of shard 2")


def test_a_full_part_leaves_nothing() -> None:
    assert estimate([host("a", loop=1.0)]) == Capacity(100.0, 0.0, "the event loop of a")


def test_hosts_that_do_little_give_no_estimate() -> None:
    assert estimate([]) is None
    assert estimate([host("a", items_per_s=4.0)]) is None
    assert estimate([host("a", loop=0.01)]) is None
    assert estimate([host("a", loop=0.01, shards=(ShardStatus(1, growth=500.0),))]) is None
    low = estimate([host("a", loop=0.01), host("b")])
    assert low is not None and low.more_per_s == 600.0, "the event loop of b is the limit"
    found = estimate([host("a"), host("idle", items_per_s=0.0, loop=0.9)])
    assert found is not None and found.limit == "the event loop of a"


def sums(*batches: tuple[int, float]) -> BatchSums:
    """Of transactions of (rows, seconds)."""
    return BatchSums(
        len(batches), sum(rows for rows, _ in batches), sum(s for _, s in batches),
        sum(rows * rows for rows, _ in batches), sum(rows * s for rows, s in batches), 0.0,
    )  # fmt: skip


def test_full_transactions_cost_a_row_less() -> None:
    """10 ms for a transaction and 0.1 ms for a row: 1,000 rows take 110 ms, so 9,091 a second."""
    batches = [(rows, 0.01 + rows * 0.0001) for rows in (10, 20, 30, 40)] * 5
    growth = shard_growth(sums(*batches), 10.0, 1_000)
    assert growth == pytest.approx(1_000 / 0.11 / 50)


def test_transactions_of_one_size_are_taken_as_they_are() -> None:
    assert shard_growth(sums(*[(10, 0.02)] * 20), 4.0, 1_000) == pytest.approx(10.0)
    assert shard_growth(sums(*[(10, 0.02)] * 20), 0.1, 1_000) == 1.0, "it cannot do less than it did"


def test_smaller_transactions_that_took_longer_give_no_line() -> None:
    growth = shard_growth(sums(*[(10, 0.02), (20, 0.01)] * 10), 10.0, 100)
    assert growth == pytest.approx(100 / 0.015 * 10 / 300)


def test_too_few_transactions_give_nothing() -> None:
    assert shard_growth(sums(*[(10, 0.02)] * 9), 4.0, 1_000) is None
    assert shard_growth(BatchSums(), 4.0, 1_000) is None
