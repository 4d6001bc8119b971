"""Durations and sizes of a shard's batches."""

from __future__ import annotations

from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.histogram import ROWS, SECONDS, Histogram


class BatchMetrics:
    """`seconds` of whole batches, reads included; seconds and rows of their transactions alone."""

    __slots__ = ("seconds", "transaction_rows", "transaction_seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.transaction_seconds = Histogram(SECONDS)
        self.transaction_rows = Histogram(ROWS)

    def ended(self, batch: ShardBatch, result: BatchResult) -> None:
        self.seconds.observe(result.latency_ms / 1000)
        if batch.transaction is not None:
            self.transaction_seconds.observe(result.transaction_ms / 1000)
            self.transaction_rows.observe(batch.rows)
