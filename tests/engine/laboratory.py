"""An engine over stores in memory. A test decides when each batch is carried out and when its result arrives."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

import pytest

import foqs
from foqs.bounds import Budget
from foqs.buffers.pending_dedup import Keyed
from foqs.buffers.reads import Read
from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.config.load import Config
from foqs.config.schema import HostSection, ShardSection
from foqs.engine import dedup, dequeue, item_ops
from foqs.engine.calls import DequeueCall, EnqueueCall, ItemsCall, LookCall
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.state import UNCONNECTED, Callbacks, State
from foqs.errors import FoqsError
from foqs.fairness.keys import ORDERED, lane_key, topic_key
from foqs.ids import Dedup, digest_of, order_digest, shard_of
from foqs.item import Item
from foqs.prefetch.lane import LaneKey
from foqs.rows import AT_LEAST_ONCE, NewItem, NewOrdered
from foqs.server.shard_thread import run
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.protocol import StoreError
from tests.sim.faults import Faults
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore

KEY = ("ns", "topic")
ORDERED_LANE = lane_key(KEY, until=ORDERED)

R = TypeVar("R", bound=Read)


def merges(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows with each merge of a topic's windows. Skips the test against the compiled wheel, whose
    modules call their own functions past a patch."""
    if foqs.build() == "compiled":
        pytest.skip("a compiled module calls its own functions past a patch")
    made: list[Any] = []
    original = dequeue._merge

    def merge(*args: Any) -> Any:
        made.append(args)
        return original(*args)

    monkeypatch.setattr(dequeue, "_merge", merge)
    return made


def reads_of(batch: ShardBatch, kind: type[R]) -> list[R]:
    """Return the reads of that class, in order."""
    return [read for read in batch.reads if isinstance(read, kind)]


class NextFaults(Faults):
    """The faults of the next commits (see `Faults.committing`), and of the next reads; "" and None are none. `no_tail`:
    the next owner has no room for the rows of unindexed items."""

    def __init__(self) -> None:
        self.no_tail = False
        self.commits: deque[str] = deque()
        self.reads: deque[StoreError | None] = deque()

    def reading(self) -> None:
        error = self.reads.popleft() if self.reads else None
        if error is not None:
            raise error

    def committing(self) -> str:
        return self.commits.popleft() if self.commits else ""

    def lacks_room_for_tail(self) -> bool:
        return self.no_tail


class Laboratory:
    """`now_ms` is the clock of all; the databases' clocks are `db_behind_ms` behind it."""

    def __init__(
        self,
        *numbers: int,
        callbacks: Callbacks = UNCONNECTED,
        shards_elsewhere: bool = False,
        sections: Mapping[str, Any] | None = None,
        **host: Any,
    ) -> None:
        """`sections` of the configuration by name; `host` has settings of the section of that name."""
        self.now_ms = 1_000_000
        self.db_behind_ms = 0
        self.flights: list[tuple[Shard, ShardBatch]] = []
        self.doubtful: list[int] = []  # of all replies
        shards = tuple(ShardSection(id=number, url=f"sqlite:///{number}.db") for number in numbers)
        config = Config(shards=shards, host=HostSection(**host), **(sections or {}))
        state = State(config, Budget(1 << 30), random.Random(1), callbacks, shards_elsewhere=shards_elsewhere)
        self.engine = Engine(state, lambda *sent: self.flights.append(sent))
        self.dbs = {number: MemoryDatabase(lambda: self.now_ms - self.db_behind_ms) for number in numbers}
        self.faults = {number: NextFaults() for number in numbers}
        self.stores = {number: MemoryStore(db, self.faults[number]) for number, db in self.dbs.items()}
        for number in numbers:
            self.open(number)
        self.settle()

    # ------------------------------------------------------------------------------------- shards

    def open(self, number: int) -> Shard:
        shard, store = self.engine.state.shards[number], self.stores[number]
        shard.owner.to(ShardState.OPENING)
        opened = store.open("host", take_over=False)
        self.engine.opened(shard, opened, store.max_batch_bytes, self.now_ms, self.now_ms)
        return shard

    def reopen(self, *, clean: bool = True) -> None:
        """Drop all memory and open the shards again; not `clean`: as if another host had owned them."""
        for number, shard in self.engine.state.shards.items():
            self.engine.drained(shard, self.now_ms)
            self.stores[number].close(clean=clean)
            shard.owner.to(ShardState.ASSIGNED)
            self.open(number)
        self.settle()

    # ------------------------------------------------------------------------------------- batches and time

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

    def ring(self, after_ms: int) -> None:
        """Let time pass and the timer ring once."""
        self.now_ms += after_ms
        self.engine.tick(self.now_ms)

    def go_on(self, for_ms: int) -> None:
        """Let time pass, ring the timer whenever something is due, and carry out all batches."""
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            next_ms = self.engine.next_ms(self.now_ms)
            self.ring(min(max(next_ms - self.now_ms, 1), until_ms - self.now_ms))
            self.settle()

    # ------------------------------------------------------------------------------------- enqueues

    def item(
        self,
        payload: bytes = b"payload",
        *,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        delivery: int = AT_LEAST_ONCE,
    ) -> NewItem:
        at_ms = self.now_ms + delay_ms
        expires_at_ms = self.now_ms + ttl_ms if ttl_ms else 0
        return NewItem(
            payload, None, None, priority, at_ms, at_ms if delay_ms else 0, self.now_ms, expires_at_ms, 0, delivery
        )

    def put(
        self,
        *items: NewItem,
        key: LaneKey = KEY,
        timeout_ms: int = 5_000,
        weights: Mapping[LaneKey, int] | None = None,
    ) -> list[Any]:
        """Enqueue `items` in one request, and return a list that gets the reply."""
        answers: list[Any] = []
        count, sizes = len(items), [len(item.payload) for item in items]
        call = EnqueueCall(count, answers.extend)
        self.engine.enqueue(call, range(count), list(items), [key] * count, sizes, self.now_ms, timeout_ms, weights)
        return answers

    def enqueue(self, payload: bytes = b"payload", timeout_ms: int = 5_000) -> list[Any]:
        """Enqueue one item, and return a list that gets the reply."""
        return self.put(self.item(payload), timeout_ms=timeout_ms)

    def stored(self, *items: NewItem, key: LaneKey = KEY) -> list[int]:
        """Store `items`, one without any, and return their ids."""
        answers = self.put(*(items or (self.item(),)), key=key)
        self.settle()
        return answers

    def enqueue_keyed(self, *keys: str, shard: int = 1, timeout_ms: int = 5_000) -> list[Any]:
        """As `enqueue`, one item a key, all in one request to `shard`."""
        answers: list[Any] = []
        call = EnqueueCall(len(keys), answers.extend)
        self.engine.state.deadlines.push(self.now_ms + timeout_ms, call)
        items = [Keyed(at, Dedup(digest_of("ns", key), 0), self.item(b"x"), KEY, 1) for at, key in enumerate(keys)]
        place = dedup.place_taken if self.engine.state.shards_elsewhere else dedup.place
        place(self.engine.state, call, shard, items, self.now_ms)
        return answers

    def put_ordered(self, *keys: str, shard: int = 1, lane: LaneKey = ORDERED_LANE, **how: Any) -> list[Any]:
        """As `enqueue`, one item an order key, all in one request to `shard`. `how`: as `item`."""
        answers: list[Any] = []
        call = EnqueueCall(len(keys), answers.extend)
        self.engine.state.deadlines.push(self.now_ms + 5_000, call)
        items = []
        for at, key in enumerate(keys):
            item = NewOrdered.of(self.item(b"x", **how), key.encode(), order_digest(*topic_key(lane), key))
            items.append(Keyed(at, Dedup(item.digest, 0), item, lane, 1))
        dedup.place(self.engine.state, call, shard, items, self.now_ms)
        return answers

    def ordered(self, *keys: str, **how: Any) -> list[int]:
        """Store an item for each order key, and return their ids."""
        answers = self.put_ordered(*keys, **how)
        self.settle()
        return answers

    # ------------------------------------------------------------------------------------- dequeues

    def dequeue(
        self,
        wait_ms: int = 0,
        *,
        keys: Sequence[LaneKey] = (KEY,),
        count: int = 10,
        lease_ms: int = 60_000,
        delivers: Callable[[], bool] = lambda: True,
        worker: str = "",
        begins: int | None = None,
        most: int | None = None,
        weights: Mapping[LaneKey, int] | None = None,
        max_bytes: int = 1 << 20,
    ) -> list[Any]:
        """Return a list that gets the ids of each reply; `doubtful` gets the ids of its doubtful leases. `delivers`:
        whether a reply reaches the consumer."""
        answers: list[Any] = []

        def reply(items: list[Item], doubtful: list[int]) -> bool:
            answers.append([item.id for item in items])
            self.doubtful += doubtful
            return delivers()

        wants = [(key, count) for key in keys]
        call = DequeueCall(
            wants, lease_ms, max_bytes, 0, reply, worker=worker, begins=begins,
            most=most if len(wants) > 1 else None, weights=weights,
        )  # fmt: skip
        self.engine.dequeue(call, self.now_ms, wait_ms)
        return answers

    def taken(self, **how: Any) -> list[int]:
        """Return the ids that one dequeue gets, read from the database if need be."""
        answers = self.dequeue(**how)
        self.settle()
        (ids,) = answers
        return ids

    # ------------------------------------------------------------------------------------- items by id

    def lease_of(self, item_id: int) -> int:
        return self.engine.state.shards[shard_of(item_id)].memory.known[item_id].lease

    def ack(self, *acked: tuple[int, int], ns: str | None = None, timeout_ms: int = 5_000) -> list[FoqsError | None]:
        """Ack each (id, lease) in one request, and return a list that gets the reply."""
        answers: list[FoqsError | None] = []
        ids, leases = zip(*acked, strict=True)
        self.engine.ack(ItemsCall(len(ids), answers.extend), ids, leases, ns, self.now_ms, timeout_ms)
        return answers

    def operate(
        self,
        item_id: int,
        op: item_ops.Op,
        *,
        ns: str | None = None,
        within: Container[str] | None = None,
        timeout_ms: int = 5_000,
    ) -> list[FoqsError | None]:
        answers: list[FoqsError | None] = []
        call = ItemsCall(1, answers.extend)
        call.within = within
        self.engine.settle(call, [(item_id, op)], ns, self.now_ms, timeout_ms)
        return answers

    def look(self, item_id: int) -> list[Any]:
        """Return a list that gets (item, body, error)."""
        answers: list[Any] = []
        self.engine.look(item_id, LookCall(lambda *found: answers.append(found)), self.now_ms, 5_000)
        return answers
