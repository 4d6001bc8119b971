"""ReleaseLeases on one host: ends leases of a topic as if by time. And counts of leases by worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from foqs.buffers.shard_batch import ListRead
from foqs.engine import turns
from foqs.engine.expiry import when_due
from foqs.engine.item_ops import given_of, stands
from foqs.engine.lane_groups import Spot, lanes_at
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, Unavailable
from foqs.fairness.keys import TopicKey, lane_key
from foqs.item import Item, Phase, Settles, from_found
from foqs.rows import Body, Found, TimerRow

_PAGE_ROWS = 200
_PAGE_BYTES = 1 << 20
_ITEMS = 5_000
"""Items that a count looks at in one turn of the event loop."""
MOST_WORKERS = 1_000
"""Workers that are reported, those with the oldest leases: consumers choose their names."""


class WorkerLeases(NamedTuple):
    """The leases that one worker holds in a topic."""

    worker: str
    held: int
    oldest_given_ms: int


def workers(state: State, key: TopicKey, done: Callable[[list[WorkerLeases]], None]) -> None:
    """Count the leases of a topic that are in memory, by worker, the oldest lease first. "" has the leases of consumers
    without a name, and those that an earlier owner of the shard gave."""
    turns.begin(state, _count(state, key, done))


def _count(state: State, key: TopicKey, done: Callable[[list[WorkerLeases]], None]) -> Iterator[None]:
    found: dict[str, WorkerLeases] = {}
    looked = 0
    for shard in list(state.serving):
        plain = shard.lanes.get(lane_key(key))
        if key not in shard.tenants and (plain is None or not plain.leased):
            continue
        for item in list(shard.known.values()):
            if item.phase is Phase.LEASED and item.lane.topic.key == key:
                at_ms, worker, *_ = given_of(shard, item)
                _, held, oldest_ms = found.get(worker, (worker, 0, at_ms))
                found[worker] = WorkerLeases(worker, held + 1, min(oldest_ms, at_ms))
            looked += 1
            if looked % _ITEMS == 0:
                yield
    done(sorted(found.values(), key=lambda one: (one.oldest_given_ms, one.worker))[:MOST_WORKERS])


class Releasing(Settles):
    """Reads the leases of a topic page by page, shard after shard, and ends those of `worker` (None: of all) that were
    given at `given_until_ms` or before. Calls `reply` once with the number of ended leases and the error that kept it
    from going on, if any."""

    __slots__ = ("_at", "_error", "_given_until_ms", "_key", "_open", "_released", "_reply", "_shards", "_state",
                 "_worker", "done")  # fmt: skip

    def __init__(
        self, state: State, key: TopicKey, worker: str | None, given_until_ms: int,
        reply: Callable[[int, FoqsError | None], None],
    ) -> None:  # fmt: skip
        self._state = state
        self._key = key
        self._worker = worker
        self._given_until_ms = given_until_ms
        self._reply = reply
        self._shards = list(state.serving)
        self._at = Spot()
        self._open = 0  # ends that are not committed yet
        self._released = 0
        self._error: FoqsError | None = None
        self.done = False

    def go_on(self) -> None:
        """Read the next page, or reply when every end is committed."""
        turns.begin(self._state, self._ask())

    def _ask(self) -> Iterator[None]:
        while self._shards and self._error is None:
            shard = self._shards[0]
            lanes, self._at = yield from lanes_at(shard, self._key, "leased", self._at)
            if self.done:
                return
            if lanes:
                after = self._at.after_in(lanes, "leased")
                shard.lists.append(ListRead(lanes, "leased", after, _PAGE_ROWS, _PAGE_BYTES, self._read))
                self._state.touch(shard)
                return
            self._next_shard()
        if not self._open and not self.done:
            self.done = True
            self._reply(self._released, self._error)

    def settled(self, at: int, error: FoqsError | None) -> None:
        self._released += error is None
        self._ended(error)

    def _ended(self, error: FoqsError | None) -> None:
        self._open -= 1
        if self.done:
            return
        self._error = self._error or error
        if not self._shards or self._error is not None:
            self.go_on()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.done = True
        for shard in shards.values():  # as in `Listing`: one without a connection would keep the read
            shard.lists = [read for read in shard.lists if read.done != self._read]
        self._reply(self._released, Unavailable("a shard did not answer in time"))

    def _next_shard(self) -> None:
        del self._shards[0]
        self._at = Spot()

    def _read(self, rows: list[TimerRow], bodies: dict[int, Body], _failures: object, error: FoqsError | None) -> None:
        if self.done:
            return
        if error is not None:
            self._error = error
            self.go_on()
            return
        shard, now_ms = self._shards[0], self._state.now_ms
        for row in rows:
            self._at = self._at._replace(after=(row.due_ms, row.id))
            item = shard.known.get(row.id)
            lane = shard.lane_numbers.get(row.lane)
            if item is None and row.id in bodies and lane is not None:
                item = from_found(Found(bodies[row.id], None, row), lane)
            if item is None or not stands(item, row.lease):
                continue
            given = given_of(shard, item)
            if self._worker not in (None, given.worker) or given.at_ms > self._given_until_ms:
                continue
            self._open += 1
            if shard.policies.of(self._key).max_total_ms:
                shard.looks.add(item.id, partial(self._looked, shard, row.lease))
            else:
                self._release(shard, item, now_ms)
        if not rows:
            self._at = self._at.behind()
        self._state.soon(self.go_on)

    def _release(self, shard: Shard, item: Item, since_ms: int) -> None:
        now_ms = self._state.now_ms
        change = when_due(shard, item, since_ms, now_ms - shard.late_ms)
        change.waits.append((self, 0))
        shard.put(change, now_ms)
        self._state.touch(shard)

    def _looked(
        self, shard: Shard, lease: int, item: Item | None, found: Found | None, error: FoqsError | None
    ) -> None:
        """End a lease for which the policy asks since when the item could be delivered. It may be over by now."""
        if item is not None and found is not None and stands(item, lease):
            self._release(shard, item, found.since_ms)
        else:
            self._ended(error)
