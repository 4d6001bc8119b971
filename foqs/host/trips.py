"""How long a shard's trips to its database took, and how much they carried."""

from __future__ import annotations

from foqs.buffers.round import Round, RoundResult
from foqs.histogram import ROWS, SECONDS, Histogram


class Trips:
    """`seconds` of whole trips, reads included; of their transactions alone, and the rows those were to write."""

    __slots__ = ("seconds", "transaction_rows", "transaction_seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.transaction_seconds = Histogram(SECONDS)
        self.transaction_rows = Histogram(ROWS)

    def ended(self, round_: Round, result: RoundResult) -> None:
        self.seconds.observe(result.latency_ms / 1000)
        if round_.batch is not None:
            self.transaction_seconds.observe(result.transaction_ms / 1000)
            self.transaction_rows.observe(round_.rows)
