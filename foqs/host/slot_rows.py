"""Rows of deduplication keys on their way from the shard that had their slot to the one that is to have it: what a trip
to the database does for either. `foqs.host.slot_moves` says when.

Who gives a slot away writes first, behind the fence, that the shard has it no more; only then are its rows read. So no
key is stored that the copy does not hold, whoever believes to be the owner.
"""

from __future__ import annotations

from foqs.buffers.keys import Give
from foqs.buffers.round import Round, RoundResult
from foqs.errors import Unavailable
from foqs.host.placing import RETRY_MS
from foqs.host.shard import Shard
from foqs.rows import Batch, Holding
from foqs.shardmgr.slots import without


def due(shard: Shard) -> bool:
    """Whether a trip has something to do."""
    return bool(shard.keys.copies) or _next_give(shard) is not None


def fill_batch(shard: Shard, round_: Round, batch: Batch) -> None:
    keys = shard.keys
    round_.copies, keys.copies = keys.copies, []
    for copy in round_.copies:
        batch.dedup_copied += copy.rows
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
    round_.give = give
    keys.wanted = Holding(give.stamp, without(give.slot, last.bits))


def applied(shard: Shard, round_: Round, result: RoundResult) -> None:
    """Tells those who wait. What failed they ask for again."""
    committed = result.saved
    error = Unavailable("the keys' shard cannot be used now", RETRY_MS)
    give, round_.give = round_.give, None
    copies, round_.copies = round_.copies, []
    for copy in copies:
        copy.done(None if committed else error)
    if give is not None:
        shard.keys.gives.remove(give)
        give.done(result.given if committed and result.given is not None else error)


def _next_give(shard: Shard) -> Give | None:
    """The first whose slot has no key on its way: none comes any more."""
    return next((give for give in shard.keys.gives if not shard.keys.under_way(give.slot)), None)
