"""The callbacks of a batch of items, which its home stores when it ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from foqs.buffers.item_batches import Home, failed_ids, total
from foqs.buffers.reads import Read, StoreReads
from foqs.buffers.shard_batch import Chunk
from foqs.engine.batch_homes import RETRY_MS, ended
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, Invalid
from foqs.fairness.keys import LaneKey, lane_key
from foqs.item_batch import BatchEnd, BatchRow, BatchState, Callback, Counts
from foqs.rows import NewItem
from foqs.rules import unpack_rules


@dataclass(slots=True, eq=False)
class SpecsRead(Read):
    """The callbacks of batches that end."""

    states: dict[int, int]
    found: list[BatchRow] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.batch_rows(list(self.states))
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        homes = shard.queue.homes
        for row in self.found:
            home, state = homes.live[row.id], BatchState(self.states[row.id])
            success = row.on_success if state == BatchState.SUCCEEDED else None
            if success is None and row.on_end is None:
                homes.ends[row.id] = state
            else:
                _store_callbacks(shard, home, row._replace(on_success=success, state=state), now_ms)
        shard.queue.touch()

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.homes.specs.update(self.states)


class _Ending:
    """Takes the outcome of the callbacks of a batch. The batch ends with the first one."""

    done = False

    def __init__(self, shard: Shard, home: Home, state: int) -> None:
        self._shard = shard
        self._home = home
        self._state = state

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None:
        if 0 in indices:
            ended(self._shard, self._home.row.id, self._shard.queue.now_ms())

    def refused(self, indices: Sequence[int], error: FoqsError) -> None:
        homes, batch = self._shard.queue.homes, self._home.row.id
        if 0 not in indices or homes.live.get(batch) is not self._home:
            return
        if isinstance(error, Invalid):  # the database will refuse it again
            homes.ends[batch] = self._state
        else:
            self._home.ending = False
            homes.release()
            self._home.ask_ms = self._shard.queue.now_ms() + RETRY_MS
            homes.at(self._home.ask_ms, batch)


def _store_callbacks(shard: Shard, home: Home, row: BatchRow, now_ms: int) -> None:
    parts = home.parts.values()
    counts, failed = total(parts), failed_ids(parts)
    ns = row.ns.decode()
    made: list[tuple[LaneKey, NewItem, int]] = []
    if row.on_success is not None:
        made.append(_item(ns, Callback.unpack(row.on_success), {"foqs-batch": str(row.id)}, now_ms))
    if row.on_end is not None:
        more = end_headers(row.id, BatchState(row.state), counts, failed)
        made.append(_item(ns, Callback.unpack(row.on_end), more, now_ms))
    keys, items = [key for key, _, _ in made], [item for _, item, _ in made]
    size = sum(len(item.payload) + len(item.metadata or b"") + len(item.headers or b"") for item in items)
    chunk = Chunk(_Ending(shard, home, row.state), range(len(items)), items, keys, size)
    chunk.weights = {key: weight for key, _, weight in made if weight} or None
    chunk.end = BatchEnd(row.id, row.state, row.on_success is not None, row.on_end is not None)
    shard.queue.add(chunk)


def end_headers(batch: int, state: BatchState, counts: Counts, failed: Sequence[int]) -> dict[str, str]:
    """Return what `on_end` says of the batch: at most 2,296 bytes."""
    known = {name: count for name, count in counts._asdict().items() if count}
    return {
        "foqs-batch": str(batch),
        "foqs-batch-state": state.name,
        "foqs-batch-counts": json.dumps(known, separators=(",", ":")),
        "foqs-batch-failed": ",".join(map(str, failed)),
    }


def _item(ns: str, callback: Callback, more: dict[str, str], now_ms: int) -> tuple[LaneKey, NewItem, int]:
    headers = json.dumps({**callback.headers, **more}, ensure_ascii=False).encode()
    due_ms = now_ms + callback.delay_ms if callback.delay_ms else 0
    item = NewItem(
        callback.payload, callback.metadata, headers, callback.priority, due_ms or now_ms, due_ms, now_ms,
        now_ms + callback.ttl_ms if callback.ttl_ms else 0, callback.lease_ms, callback.delivery,
    )  # fmt: skip
    key = lane_key(
        (ns, callback.topic), callback.fairness, callback.throttles, unpack_rules(callback.rules.encode())
    )  # fmt: skip
    return key, item, callback.weight
