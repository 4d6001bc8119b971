"""Moves rows of deduplication keys between shards: the part that a batch does on either shard. The steps and their
order are in `foqs.peers.slot_migration`.

The shard that gives a slot away first writes, behind the fence, that it no longer has the slot; only then are its rows
read. So the copy has every stored key, even if a replaced owner still runs.
"""

from __future__ import annotations

from foqs.buffers.pending_dedup import Give
from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.engine.enqueue import RETRY_MS
from foqs.engine.shard import Shard
from foqs.errors import Unavailable
from foqs.rows import Batch, Holding
from foqs.shardmgr.routing import without


def due(shard: Shard) -> bool:
    """Whether the next batch has rows to copy or a slot to give."""
    return bool(shard.keys.copies) or _next_give(shard) is not None


def fill_transaction(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    keys = shard.keys
    batch.copies, keys.copies = keys.copies, []
    for copy in batch.copies:
        transaction.dedup_copied += copy.rows
        if copy.rows:
            keys.scan.inserted(min(row.expires_at_ms for row in copy.rows))
    give = _next_give(shard)
    if give is None:
        return
    last = keys.last
    if give.stamp < last.stamp:
        keys.gives.remove(give)
        give.done(Unavailable("the shard was given slots by a later record", RETRY_MS))
        return
    batch.give = give
    keys.wanted = Holding(give.stamp, without(give.slot, last.bits))


def applied(shard: Shard, batch: ShardBatch, result: BatchResult) -> None:
    """Settle the requests that wait. After an error they are repeated."""
    committed = result.saved
    error = Unavailable("the keys' shard cannot be used now", RETRY_MS)
    give, batch.give = batch.give, None
    copies, batch.copies = batch.copies, []
    for copy in copies:
        copy.done(None if committed else error)
    if give is not None:
        shard.keys.gives.remove(give)
        give.done(result.given if committed and result.given is not None else error)


def _next_give(shard: Shard) -> Give | None:
    """Return the first give whose slot has no pending key: none is accepted any more."""
    return next((give for give in shard.keys.gives if not shard.keys.under_way(give.slot)), None)
