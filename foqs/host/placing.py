"""Which shard takes an enqueue."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.buffers.inserts import Chunk
from foqs.errors import FoqsError, Overloaded, Unavailable
from foqs.host.requests import EnqueueCall
from foqs.host.shard import Shard
from foqs.prefetch.lane import LaneKey
from foqs.rows import NewItem

if TYPE_CHECKING:
    from foqs.host.host import Host

_CHUNK_ROWS = 1_000
_GATHER_ROWS = 32
_GATHER_MS = 10
RETRY_MS = 100


def place_all(
    host: Host,
    call: EnqueueCall,
    indices: Sequence[int],
    items: list[NewItem],
    keys: Sequence[LaneKey],
    sizes: Sequence[int],
    now_ms: int,
) -> None:
    """Cuts `items` into chunks that fit a transaction and places each. `sizes` are the bytes of each body."""
    most_bytes = min((shard.max_batch_bytes for shard in host.serving), default=1 << 20) // 2
    for start, end, size in cut(sizes, most_bytes):
        chunk = Chunk(call, indices[start:end], items[start:end], keys[start:end], size)
        call.chunks.append(chunk)
        place(host, chunk, now_ms)


def place(host: Host, chunk: Chunk, now_ms: int) -> None:
    """Gives `chunk` to one of the healthy shards, or refuses it."""
    if chunk.request.done:
        return
    if chunk.dedup is not None:  # no other shard knows whether the keys were there before
        chunk.request.refused(chunk.indices, Unavailable("the keys' shard cannot be used now", RETRY_MS))
        return
    healthy = [shard for shard in host.serving if shard.takes_new and shard.healthy(now_ms)]
    if not healthy:
        error: FoqsError = Unavailable("no shard can take items now", retry_after_ms=RETRY_MS)
        chunk.request.refused(chunk.indices, error)
        return
    room = [shard for shard in healthy if shard.takes(chunk)]
    if not room or not host.budget.fits(0, host.config.host.input_share + 0.3):
        chunk.request.refused(chunk.indices, Overloaded("the host's buffers are full", retry_after_ms=RETRY_MS))
        return
    shard = _choose(room, host.rng, now_ms)
    shard.chunks.append(chunk)
    shard.chunk_rows += len(chunk.items)
    host.touch(shard)


def _choose(room: list[Shard], rng: random.Random, now_ms: int) -> Shard:
    """Where the next transaction is already gathering and still small, because each costs a flush and two hops
    between threads; else the less loaded of two chosen at random (Mitzenmacher 2001)."""
    gathering = [
        shard
        for shard in room
        if shard.chunk_rows < _GATHER_ROWS
        and shard.flight is not None
        and now_ms - shard.flight.begun_ms <= _GATHER_MS  # not where a database begins to hang
    ]
    if gathering:
        return max(gathering, key=lambda shard: shard.chunk_rows)
    shard, other = rng.choice(room), rng.choice(room)
    return other if other.load < shard.load else shard


def cut(sizes: Sequence[int], max_bytes: int) -> list[tuple[int, int, int]]:
    """(start, end, bytes) of consecutive parts of at most `_CHUNK_ROWS` items and `max_bytes`; one always fits."""
    total = sum(sizes)
    if len(sizes) <= _CHUNK_ROWS and total <= max_bytes:
        return [(0, len(sizes), total)]
    parts, start, size = [], 0, 0
    for at, one in enumerate(sizes):
        if at > start and (at - start >= _CHUNK_ROWS or size + one > max_bytes):
            parts.append((start, at, size))
            start, size = at, 0
        size += one
    parts.append((start, len(sizes), size))
    return parts
