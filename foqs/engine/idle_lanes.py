"""Empty lanes, and which of their rows a transaction removes: the longest empty ones first, a bounded number."""

from __future__ import annotations

from itertools import islice, takewhile

from foqs.buffers.shard_batch import Chunk, ShardBatch
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.item import Item
from foqs.prefetch.lane import Lane
from foqs.rows import Batch

_IDLE_LANES = 100
"""Rows of empty lanes that a transaction removes; or twice the number of rows that it adds. With fewer, the lanes of
tenants that come once would fill the shard up to its bound."""
_LANES_SHARE = 0.9
"""Of the most lanes. With more, empty lanes are removed at once, so that new topics find room."""


def are_many(shard: Shard) -> bool:
    """Return True if the shard nears the bound on its lanes."""
    return len(shard.memory.lanes) > _LANES_SHARE * shard.config.lanes


def _is_over(shard: Shard, lane: Lane[Item], now_ms: int) -> bool:
    """Return True if the row of an empty lane may be removed: after `lane_idle_ms`, or at once when lanes are many."""
    config, since_ms = shard.config, max(lane.empty_since_ms, shard.owner.opened_ms)
    return now_ms - since_ms >= config.lane_idle_ms or len(shard.memory.lanes) > _LANES_SHARE * config.lanes


def is_due(shard: Shard, now_ms: int) -> bool:
    """Return True if the lane that has been empty for the longest time may be removed."""
    lane = next(iter(shard.memory.idle_lanes.values()), None)
    return lane is not None and _is_over(shard, lane, now_ms)


def take(shard: Shard, batch: ShardBatch, transaction: Batch, now_ms: int) -> None:
    """Remove rows of lanes whose idle time has passed, a bounded number, the longest empty first."""
    memory = shard.memory
    first = islice(memory.idle_lanes.values(), max(_IDLE_LANES, 2 * len(transaction.lanes_new)))
    for lane in list(takewhile(lambda lane: _is_over(shard, lane, now_ms), first)):
        if lane.total:
            del memory.idle_lanes[lane.key]
        else:
            _remove_lane(memory, lane, batch)
    transaction.lanes_gone = [lane.number for lane in batch.lanes_gone if lane.number is not None]


def make_room(memory: ShardMemory, chunk: Chunk, batch: ShardBatch) -> bool:
    """Remove the longest empty lanes in this transaction: one for each lane of `chunk` beyond the bound. Return whether
    `chunk` may be stored: new lanes of one chunk may exceed the bound, if it was not reached before."""
    new = len({key for key in chunk.keys if key not in memory.lanes})
    over = len(memory.lanes) - len(batch.lanes_gone) + new - memory.config.lanes
    while new and over > 0 and (lane := memory.longest_empty()) is not None:
        _remove_lane(memory, lane, batch)
        over -= 1
    return over < new or not new


def _remove_lane(memory: ShardMemory, lane: Lane[Item], batch: ShardBatch) -> None:
    """Remove an empty lane. An insert into it in a later transaction gives it a new row."""
    del memory.idle_lanes[lane.key]
    if lane.stored:
        batch.lanes_gone = batch.lanes_gone or {}
        batch.lanes_gone[lane] = None
    else:  # the transaction with its row failed
        memory.forget_lane(lane)
