"""An engine over stores in memory. A test decides when each batch is carried out and when its result arrives."""

from __future__ import annotations

import random
from typing import Any

from foqs.budget import Budget
from foqs.buffers.pending_dedup import Keyed
from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.config.load import Config
from foqs.config.schema import ShardSection
from foqs.dedup import Dedup, digest_of
from foqs.engine import dedup
from foqs.engine.engine import Engine
from foqs.engine.pending import DequeueCall, EnqueueCall
from foqs.engine.shard import Shard
from foqs.engine.state import UNCONNECTED, Callbacks
from foqs.item import Item
from foqs.rows import NewItem
from foqs.server.shard_thread import run
from foqs.shardmgr.lifecycle import ShardState
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore

KEY = ("ns", "topic")


class Laboratory:
    """`now_ms` is the clock of all."""

    def __init__(self, *numbers: int, callbacks: Callbacks = UNCONNECTED) -> None:
        self.now_ms = 1_000_000
        self.flights: list[tuple[Shard, ShardBatch]] = []
        sections = tuple(ShardSection(id=number, url=f"sqlite:///{number}.db") for number in numbers)
        self.engine = Engine(
            Config(shards=sections),
            Budget(1 << 30),
            random.Random(1),
            lambda *sent: self.flights.append(sent),
            callbacks,
        )
        self.dbs = {number: MemoryDatabase(lambda: self.now_ms) for number in numbers}
        self.stores = {number: MemoryStore(db) for number, db in self.dbs.items()}
        for number in numbers:
            self.open(number)
        self.settle()

    def open(self, number: int) -> Shard:
        shard, store = self.engine.shards[number], self.stores[number]
        shard.to(ShardState.OPENING)
        opened = store.open("host", take_over=False)
        self.engine.opened(shard, opened, store.max_batch_bytes, self.now_ms, self.now_ms)
        return shard

    def send(self) -> list[tuple[Shard, ShardBatch]]:
        """Return the batches that are sent now; `arrive` carries them out."""
        self.engine.pump(self.now_ms)
        sent, self.flights = self.flights, []
        return sent

    def arrive(self, shard: Shard, batch: ShardBatch, result: BatchResult | None = None) -> None:
        self.engine.finished(shard, batch, result or run(self.stores[shard.number], batch), self.now_ms)

    def settle(self) -> None:
        """Carry out all batches, one after the other."""
        while sent := self.send():
            for shard, batch in sent:
                self.arrive(shard, batch)

    def enqueue(self, payload: bytes = b"payload", timeout_ms: int = 5_000) -> list[Any]:
        """What the call is answered is put into the list."""
        answers: list[Any] = []
        item = NewItem(payload, None, None, 0, self.now_ms, 0, self.now_ms, 0, 0, 1)
        call = EnqueueCall(1, answers.extend)
        self.engine.enqueue(call, [0], [item], [KEY], [len(payload)], self.now_ms, timeout_ms)
        return answers

    def enqueue_keyed(self, *keys: str, shard: int = 1, timeout_ms: int = 5_000) -> list[Any]:
        """As `enqueue`, one item a key, all in one request to `shard`."""
        answers: list[Any] = []
        call = EnqueueCall(len(keys), answers.extend)
        self.engine.deadlines.push(self.now_ms + timeout_ms, call)
        items = [
            Keyed(
                at,
                Dedup(digest_of("ns", key), 0),
                NewItem(b"x", None, None, 0, self.now_ms, 0, self.now_ms, 0, 0, 1),
                KEY,
                1,
            )
            for at, key in enumerate(keys)
        ]
        dedup.place(self.engine, call, shard, items, self.now_ms)
        return answers

    def dequeue(self, wait_ms: int = 0) -> list[Any]:
        answers: list[Any] = []

        def reply(items: list[Item], doubtful: list[int]) -> bool:
            answers.append([item.id for item in items])
            return True

        self.engine.dequeue(DequeueCall([(KEY, 10)], 60_000, 1 << 20, 0, reply), self.now_ms, wait_ms)
        return answers
