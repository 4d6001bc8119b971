"""Durations and sizes of batches, as they are exported."""

from __future__ import annotations

from foqs.counters import Histogram
from tests.engine.laboratory import Laboratory


def values(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), round(histogram.total, 6)


def test_a_transaction_counts_apart_from_its_reads() -> None:
    lab = Laboratory(1)
    metrics = lab.engine.shards[1].batch_metrics
    batches, transactions = values(metrics.seconds)[0], values(metrics.transaction_seconds)[0]
    lab.put(lab.item(), lab.item())
    lab.settle()
    assert values(metrics.seconds)[0] > batches
    assert values(metrics.transaction_seconds)[0] == transactions + 1


def test_a_batch_of_reads_counts_no_transaction() -> None:
    lab = Laboratory(1)
    metrics = lab.engine.shards[1].batch_metrics
    (item_id,) = lab.stored(lab.item())
    batches, transactions = values(metrics.seconds)[0], values(metrics.transaction_seconds)[0]
    lab.look(item_id)
    lab.settle()
    assert values(metrics.seconds)[0] == batches + 1
    assert values(metrics.transaction_seconds)[0] == transactions


def test_a_batch_that_failed_counts_as_well() -> None:
    lab = Laboratory(1)
    metrics = lab.engine.shards[1].batch_metrics
    before = values(metrics.transaction_rows)
    lab.faults[1].commits.append("busy")
    lab.put(lab.item(), lab.item())
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    count, rows = values(metrics.transaction_rows)
    assert (count - before[0], rows - before[1]) == (1, 2)
