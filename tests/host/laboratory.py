"""A host over stores in memory, whose trips are carried out and come back one by one, when a test says so."""

from __future__ import annotations

import random
from typing import Any

from foqs.budget import Budget
from foqs.buffers.keys import Keyed
from foqs.buffers.round import Round, RoundResult
from foqs.config import Config
from foqs.dedup import Dedup, digest_of
from foqs.host import keyed
from foqs.host.host import Host
from foqs.host.requests import DequeueCall, EnqueueCall
from foqs.host.shard import Shard
from foqs.host.worker import run
from foqs.item import Item
from foqs.rows import NewItem
from foqs.sections import ShardSection
from foqs.shardmgr.lifecycle import ShardState
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore

KEY = ("ns", "topic")


class Laboratory:
    """`now_ms` is the clock of all."""

    def __init__(self, *numbers: int) -> None:
        self.now_ms = 1_000_000
        self.flights: list[tuple[Shard, Round]] = []
        sections = tuple(ShardSection(id=number, url=f"sqlite:///{number}.db") for number in numbers)
        self.host = Host(
            Config(shards=sections), Budget(1 << 30), random.Random(1), lambda *sent: self.flights.append(sent)
        )
        self.dbs = {number: MemoryDatabase(lambda: self.now_ms) for number in numbers}
        self.stores = {number: MemoryStore(db) for number, db in self.dbs.items()}
        for number in numbers:
            self.open(number)
        self.settle()

    def open(self, number: int) -> Shard:
        shard, store = self.host.shards[number], self.stores[number]
        shard.to(ShardState.OPENING)
        opened = store.open("host", take_over=False)
        self.host.opened(shard, opened, store.max_batch_bytes, self.now_ms, self.now_ms)
        return shard

    def send(self) -> list[tuple[Shard, Round]]:
        """The trips that begin now; they are carried out by `arrive`."""
        self.host.pump(self.now_ms)
        sent, self.flights = self.flights, []
        return sent

    def arrive(self, shard: Shard, round_: Round, result: RoundResult | None = None) -> None:
        self.host.finished(shard, round_, result or run(self.stores[shard.number], round_), self.now_ms)

    def settle(self) -> None:
        """All trips there are, one after the other."""
        while sent := self.send():
            for shard, round_ in sent:
                self.arrive(shard, round_)

    def enqueue(self, payload: bytes = b"payload", timeout_ms: int = 5_000) -> list[Any]:
        """What the call is answered is put into the list."""
        answers: list[Any] = []
        item = NewItem(payload, None, None, 0, self.now_ms, 0, self.now_ms, 0, 0, 1)
        call = EnqueueCall(1, answers.extend)
        self.host.enqueue(call, [0], [item], [KEY], [len(payload)], self.now_ms, timeout_ms)
        return answers

    def enqueue_keyed(self, *keys: str, shard: int = 1, timeout_ms: int = 5_000) -> list[Any]:
        """As `enqueue`, one item a key, all in one request to `shard`."""
        answers: list[Any] = []
        call = EnqueueCall(len(keys), answers.extend)
        self.host.deadlines.push(self.now_ms + timeout_ms, call)
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
        keyed.place(self.host, call, shard, items, self.now_ms)
        return answers

    def dequeue(self, wait_ms: int = 0) -> list[Any]:
        answers: list[Any] = []

        def reply(items: list[Item], doubtful: list[int]) -> bool:
            answers.append([item.id for item in items])
            return True

        self.host.dequeue(DequeueCall([(KEY, 10)], 60_000, 1 << 20, 0, reply), self.now_ms, wait_ms)
        return answers
