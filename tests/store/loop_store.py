"""A store whose transactions run on an event loop, each to its end."""

from __future__ import annotations

from typing import Any

import uvloop

from foqs.rows import Batch
from foqs.server.shard_worker import LoopTransactions
from foqs.store.link import Link
from foqs.store.protocol import ShardStore
from foqs.store.server import Facts
from foqs.store.sql import SqlStore
from foqs.store.transaction import Transaction
from tests.store.proxy import Break
from tests.store.shards import NUMBER, Moment, ServerShard


class LoopStore(SqlStore):
    """`ran` counts transactions that ran on the loop."""

    def __init__(self, url: str, *, shard: int, binary_inserts: bool = False, **timeouts: float) -> None:
        super().__init__(url, shard=shard, binary_inserts=binary_inserts, **timeouts)
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

        self.transactions.attach(connection)
        self.transactions.run(transaction, done)
        self.loop.run_forever()
        assert errors == [None]
        self.ran += 1
        self.transactions.detach()
        self.conclude(transaction)


class BinaryStore(LoopStore):
    """Sends the new items of every batch as parameters, to MySQL too. `pipelines` counts these transactions."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, binary_inserts=True, **options)
        self.pipelines = 0

    def _connect(self) -> tuple[Link, Facts, Any]:
        made = super()._connect()
        if made[0].inserts is None:
            made[0].prepare_inserts()
        self._planner = self._planner._replace(one_packet_bytes=0)
        return made

    def begin(self, batch: Batch) -> Transaction:
        made = super().begin(batch)
        self.pipelines += made.commands > 1
        return made


class LoopShard(ServerShard):
    store_type: type[LoopStore] = LoopStore

    def __init__(self, url: str, **timeouts: float) -> None:
        super().__init__(url, **timeouts)
        self._stores: list[LoopStore] = []

    def make(self, url: str, **timeouts: float) -> LoopStore:
        self._stores.append(self.store_type(url, shard=NUMBER, **timeouts))
        return self._stores[-1]

    def close(self) -> None:
        super().close()
        for store in self._stores:
            store.transactions.close()
            store.loop.close()


class BinaryShard(LoopShard):
    store_type = BinaryStore

    def lose_next(self, store: ShardStore, moment: Moment) -> None:
        """COMMIT always has a packet of its own."""
        first = Break("SET autocommit = 0", arrives=True)
        self.proxy(store).arm(first if moment is Moment.BEFORE_COMMIT else Break("COMMIT", arrives=moment.committed))
