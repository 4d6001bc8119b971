"""Durations and sizes of batches, as they are exported."""

from __future__ import annotations

from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.engine.metrics import BatchMetrics
from foqs.histogram import Histogram
from foqs.rows import Batch
from tests.engine.laboratory import Laboratory


def values(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), round(histogram.total, 6)


def test_a_transaction_counts_apart_from_its_reads() -> None:
    metrics = BatchMetrics()
    metrics.ended(ShardBatch(transaction=Batch(), rows=7), BatchResult(latency_ms=30.0, transaction_ms=20.0))
    assert values(metrics.seconds) == (1, 0.03)
    assert values(metrics.transaction_seconds) == (1, 0.02)
    assert values(metrics.transaction_rows) == (1, 7)


def test_a_batch_of_reads_counts_no_transaction() -> None:
    metrics = BatchMetrics()
    metrics.ended(ShardBatch(confirm=True), BatchResult(latency_ms=30.0))
    assert values(metrics.seconds) == (1, 0.03)
    assert values(metrics.transaction_seconds) == values(metrics.transaction_rows) == (0, 0)


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
