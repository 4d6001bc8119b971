"""A store whose transactions run on an event loop, each to its end."""

from __future__ import annotations

import uvloop

from foqs.rows import Batch
from foqs.server.loop_transactions import LoopTransactions
from foqs.store.sql import SqlStore
from tests.store.shards import NUMBER, ServerShard


class LoopStore(SqlStore):
    """`ran` counts transactions that ran on the loop."""

    def __init__(self, url: str, *, shard: int, **timeouts: float) -> None:
        super().__init__(url, shard=shard, **timeouts)
        self.loop = uvloop.new_event_loop()
        self.transactions = LoopTransactions(self.loop, self.io_timeout_s)
        self.ran = 0

    def commit(self, batch: Batch) -> None:
        transaction = self.begin(batch)
        connection = self.plain_socket
        assert connection is not None
        errors: list[Exception | None] = []

        def done(error: Exception | None) -> None:
            errors.append(error)
            self.loop.stop()

        self.transactions.run(connection, transaction, done)
        self.loop.run_forever()
        assert errors == [None]
        self.ran += 1
        self.transactions.detach()
        self.conclude(transaction)


class LoopShard(ServerShard):
    def __init__(self, url: str, **timeouts: float) -> None:
        super().__init__(url, **timeouts)
        self._stores: list[LoopStore] = []

    def make(self, url: str, **timeouts: float) -> LoopStore:
        self._stores.append(LoopStore(url, shard=NUMBER, **timeouts))
        return self._stores[-1]

    def close(self) -> None:
        super().close()
        for store in self._stores:
            store.transactions.close()
            store.loop.close()
