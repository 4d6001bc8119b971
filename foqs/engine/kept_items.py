"""Items that a topic keeps after their end: their rows, and when and how these are removed.

A topic's policy says for how long, and how many. The transaction that ends an item moves its narrow row to `done`; its
body stays where it was written. A time-ordered scan finds the rows whose time has ended. `foqs.buffers.kept` counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from foqs.buffers.reads import Read, ScanRead, StoreReads
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine.calls import ItemsCall
from foqs.engine.endings import NO_ITEM, Ending, Living
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.errors import FoqsError, NotFound
from foqs.fairness.keys import TopicKey, pack_throttles, rules_of, tenancy_of
from foqs.item import Cause, Change, Item
from foqs.policies.failures import fingerprint, pack_failure, unpack_failure
from foqs.policies.topic_policy import MOST_KEPT, KeepEntry
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, EndedRow, EndedState, FailureRow, Found
from foqs.rules import pack_rules

_LANES = 1_000
"""Lanes of a topic, the fullest first, that are looked at for the oldest kept items."""
_SPARE = 16
"""A topic with too many kept items loses this part of them more, so that few transactions have to do it."""


def mark_end(shard: Shard, change: Change, now_ms: int) -> bool:
    """Give a change that removes its item the rows of a kept one. Return True if its policy or its rules keep it."""
    change.ended = change.stored = None  # it may have waited before
    keep = keep_of(shard, change)
    if keep is None:
        return False
    if change.cause is Cause.ACK:
        _keep(change, EndedState.COMPLETED, keep.completed_ms, change.result if keep.results else None, now_ms)
    elif change.failure is not None:
        _keep(change, EndedState.FAILED, keep.failed_ms, pack_failure(change.failure), now_ms)
    return change.ended is not None


def keep_of(shard: Shard, change: Change) -> KeepEntry | None:
    """Return how long the item of a change is kept after its end; None if it is not."""
    lane = change.item.lane
    return shard.policy_of(lane).keep if lane.topic.key[0] in shard.policies.keeping or rules_of(lane.key) else None


def _keep(change: Change, state: EndedState, for_ms: int, stored: bytes | None, now_ms: int) -> None:
    item = change.item
    number = item.lane.number
    assert number is not None, "a stored item's lane has a number"
    if for_ms:
        change.ended = EndedRow(now_ms + for_ms, item.id, number, state, item.attempt, now_ms, item.bytes)
        change.stored = stored


def failure_of(row: EndedRow, stored: bytes, lane: Lane[Item]) -> FailureRow:
    """Return why a kept item has FAILED."""
    cause, worker, reason = unpack_failure(stored)
    fairness, throttles = tenancy_of(lane.key)
    return FailureRow(
        row.lane, fingerprint(reason.decode()), row.id, cause, row.attempt, row.ended_at_ms,
        lane.topic.key[1].encode(), fairness.encode(), reason, pack_throttles(throttles),
        pack_rules(rules_of(lane.key)), worker,
    )  # fmt: skip


def end_of(memory: ShardMemory, item: Item | None, found: Found | None) -> Ending | Living | FoqsError:
    """Return how an item ended, of which `found` are the rows; an item that has not ended as it is."""
    lane = None if found is None else memory.lane_numbers.get(found.body.lane)
    if found is None or lane is None:
        return NotFound(NO_ITEM)
    ns, ended, failure = lane.topic.key[0], found.ended, found.failure
    if ended is not None and ended.state == EndedState.COMPLETED:
        return Ending(EndedState.COMPLETED, ns, found.stored, ended.ended_at_ms, progress=found.progress)
    if ended is not None:
        failure = failure_of(ended, found.stored or b"\0", lane)
    if failure is not None:
        return Ending(EndedState.FAILED, ns, None, failure.died_at_ms, failure, found.progress)
    return NotFound(NO_ITEM) if item is None else Living(item, found)


def visible(found: Found, now_ms: int) -> bool:
    """Return False for an item that is kept no longer, though its row may be there for a moment."""
    return found.ended is None or found.ended.until_ms > now_ms


# ------------------------------------------------------------------------------------------ items that ended


def check_most(shard: Shard) -> None:
    """Have the oldest items of topics read that keep more than their policy allows."""
    kept = shard.queue.kept
    for topic in kept.take_grown():
        if topic not in kept.oldest_wanted and (count := excess(shard, topic)):
            memory, found = shard.memory, list[int]()
            for lane in memory.topics.of(topic).lanes():
                if lane.number in kept.lanes and memory.lane_numbers.get(lane.number) is lane:
                    found.append(lane.number)
            most = sorted(found, key=lambda number: -sum(kept.lanes[number]))[:_LANES]
            kept.oldest_wanted[topic] = OldestRead(topic, most, count)


def excess(shard: Shard, topic: TopicKey) -> int:
    """Return how many kept items of the topic go because it has too many."""
    keep, count = shard.policies.of(topic).keep, shard.queue.kept.staying(topic)
    most = MOST_KEPT if keep is None else keep.most  # without: items with rules are kept
    return 0 if count <= most else count - most + most // _SPARE


# ------------------------------------------------------------------------------------------ items that are removed


def take_removals(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    """Remove kept items in this transaction, a bounded number."""
    batch.removals = shard.queue.kept.take(shard.config.batch_rows)
    ids = [row.id for row in batch.removals]
    transaction.fill()
    transaction.ended_gone += ids
    transaction.item_gone += ids
    transaction.progress_gone += [item_id for item_id in ids if item_id in shard.memory.noted]
    batch.rows += len(ids)


def removed(shard: Shard, row: EndedRow, now_ms: int) -> None:
    """Note that a kept item is gone. A lane without any other item may be removed now."""
    kept, lane = shard.queue.kept, shard.memory.lane_numbers.get(row.lane)
    waits = kept.removed(row.id, now_ms)
    shard.memory.noted.pop(row.id, None)
    if lane is not None and not lane.total and row.lane not in kept.lanes:
        shard.memory.idle_lane(lane, now_ms)
    for request, at in waits:
        request.settled(at, None)


def delete(shard: Shard, call: ItemsCall, at: int, row: EndedRow, ns: str | None) -> None:
    """Remove a kept item for a request."""
    lane = lane_for(shard, call, row, ns)
    if lane is None:
        call.settled(at, NotFound("no such item"))
        return
    call.items[at] = False
    shard.queue.kept.remove(row, lane.topic.key, waits=[(call, at)])


def lane_for(shard: Shard, call: ItemsCall, row: EndedRow, ns: str | None) -> Lane[Item] | None:
    """Return the lane of a kept item, None if the caller may not know the item. `ns`: of the request, if it has one."""
    lane = shard.memory.lane_numbers.get(row.lane)
    found = None if lane is None else lane.topic.key[0]
    if ns not in (None, found) or (call.within is not None and found not in call.within):
        return None
    return lane


@dataclass(slots=True, eq=False)
class EndedRead(ScanRead):
    """Kept items whose time has ended."""

    def run(self, store: StoreReads) -> int:
        self.found = store.ended_due(self.wanted.from_ms, self.wanted.to_ms, self.limit)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        kept, found = shard.queue.kept, self.found
        until_ms = min(now_ms, found.db_now_ms + shard.config.clock_jump_ms)
        kept.scan.outstanding = 1  # held by this loop, as in `DueRead`
        for row in found.rows:
            lane = shard.owned_lane(row.lane)
            if lane is None or row.until_ms > until_ms:
                kept.scan.left(row.until_ms)
            else:
                kept.remove(row, lane.topic.key, scanned=True)
        kept.scan.read(found.rows[-1].until_ms if found.rows else 0, found.complete, found.next_ms)
        kept.scan.outstanding -= 1
        if not kept.scan.outstanding:
            kept.scan.finish(now_ms)


@dataclass(slots=True, eq=False)
class OldestRead(Read):
    """The kept items of a topic that go first because it has too many."""

    topic: TopicKey
    lanes: list[int]
    count: int
    rows: list[EndedRow] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.rows = store.list_ended(self.lanes, 0, None, self.count)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        kept = shard.queue.kept
        left = excess(shard, self.topic)  # what else was removed since the question does not count
        for row in self.rows:
            if left > 0 and kept.remove(row, self.topic):
                left -= 1
        kept.grown[self.topic] = None  # more may have ended since
        check_most(shard)

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.kept.oldest_wanted.setdefault(self.topic, self)
