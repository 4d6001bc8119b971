"""Enqueues with deduplication keys: each goes to the shard that has the slot of its key, and to no other.

A key is taken for new, and stored with its item in one transaction. The database refuses that if the key is there: then
the worker looks up the keys of the transaction, and stores what is left without those that are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from foqs.buffers.inserts import Chunk
from foqs.buffers.keys import Keyed, KeyedRequest
from foqs.buffers.round import Round, RoundResult
from foqs.dedup import slot_of
from foqs.errors import NotServed, Overloaded, Unavailable
from foqs.host import placing, slot_rows
from foqs.host.placing import RETRY_MS, cut
from foqs.host.requests import EnqueueCall
from foqs.host.shard import Shard
from foqs.rows import Batch, DedupRow
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.slots import bits_of, missing, slots_of

if TYPE_CHECKING:
    from foqs.host.host import Host

_BUDGET_SHARE = 0.3  # beyond the input's


def by_shard(slots: Sequence[int], items: Iterable[Keyed]) -> dict[int, list[Keyed]]:
    """By the number of the shard that has the key's slot; 0: none has it."""
    found: dict[int, list[Keyed]] = defaultdict(list)
    for one in items:
        found[slots[slot_of(one.dedup.digest)] if slots else 0].append(one)
    return found


def _split(shard: Shard, items: Sequence[Keyed]) -> tuple[list[Keyed], list[Keyed]]:
    """Those whose slots the shard has, and the others."""
    here: list[Keyed] = []
    away: list[Keyed] = []
    for one in items:
        (here if shard.keys.takes(one.dedup.digest) else away).append(one)
    return here, away


def place(host: Host, call: EnqueueCall, number: int, items: Sequence[Keyed], now_ms: int) -> list[Keyed]:
    """Gives `items` to the shard, or refuses them. Returns those whose slots are not on the shard (any more, or yet),
    for the caller to refuse or to hold."""
    away: list[Keyed] = []
    shard = host.shards.get(number)
    if shard is not None and not host.alone:
        items, away = _split(shard, items)
        if not items:
            return away
    if shard is None or shard.state is not ShardState.SERVING:
        # Where there are others, one of them may serve it.
        error = Unavailable("the keys' shard is not open", RETRY_MS) if host.alone or not number else NotServed()
        call.refused([one.at for one in items], error)
    elif not shard.healthy(now_ms):
        call.refused([one.at for one in items], placing.unusable(shard, now_ms))
    else:
        room = shard.config.pending_rows - shard.chunk_rows - len(shard.changes)
        if len(items) > room or not host.budget.fits(0, host.config.host.input_share + _BUDGET_SHARE):
            call.refused([one.at for one in items], Overloaded("the shard's buffers are full", RETRY_MS))
            return away
        full = len(shard.lanes) >= shard.config.lanes
        refused = [one for one in items if full and one.lane not in shard.lanes]
        if refused:
            call.refused([one.at for one in refused], placing.too_many_topics("the shard of the dedup_key", shard))
        taken = [one for one in items if one.lane in shard.lanes] if full else items
        _store(shard, call, [one for one in taken if shard.keys.add(one, call)])
        host.touch(shard)
    return away


def _store(shard: Shard, call: EnqueueCall, new: list[Keyed]) -> None:
    for start, end, size in cut([one.size_bytes for one in new], shard.max_batch_bytes // 2):
        part = new[start:end]
        request = KeyedRequest(shard.keys, call, part)
        call.unsent.append(request)
        chunk = Chunk(
            request,
            range(len(part)),
            [one.item for one in part],
            [one.lane for one in part],
            size,
            [one.dedup for one in part],
        )
        shard.chunks.append(chunk)
        shard.chunk_rows += len(part)


# ------------------------------------------------------------------------------------------ trips


def add_reads(shard: Shard, round_: Round, now_ms: int) -> None:
    if shard.state is ShardState.SERVING and shard.keys.scan.due_ms(now_ms) <= now_ms:
        round_.dedup_expired = (shard.keys.scan.begin(now_ms), shard.config.scan_rows)


def fill_batch(shard: Shard, round_: Round, batch: Batch) -> bool:
    """What a transaction does beside items; whether there is anything of it."""
    slot_rows.fill_batch(shard, round_, batch)
    batch.dedup_gone, shard.keys.gone = shard.keys.gone, None
    batch.slots, shard.keys.wanted = shard.keys.wanted, None
    shard.keys.flying = batch.slots
    return batch.dedup_gone is not None or batch.slots is not None or bool(batch.dedup_copied)


def rows_of(shard: Shard, chunk: Chunk, now_ms: int) -> list[DedupRow]:
    """The rows of a chunk's keys, for the transaction being built; its items have their ids."""
    assert isinstance(chunk.request, KeyedRequest)
    chunk.request.sent = True
    expires_at_ms = now_ms + shard.dedup_window_ms
    shard.keys.scan.inserted(expires_at_ms)
    return [
        DedupRow(dedup.digest, dedup.content, item.id, expires_at_ms)
        for dedup, item in zip(chunk.dedup or (), chunk.items, strict=True)
    ]


def batch_applied(shard: Shard, batch: Batch | None, now_ms: int, *, committed: bool) -> None:
    if batch is None:
        return
    if batch.slots is not None:
        shard.keys.flying = None
        if committed:
            shard.keys.held = batch.slots
        elif shard.keys.wanted is None:
            shard.keys.wanted = batch.slots
    if batch.dedup_gone is not None and shard.keys.scan.outstanding:
        if committed:
            shard.keys.scan.outstanding = 0
            shard.keys.scan.finish(now_ms)
        else:
            shard.keys.gone = batch.dedup_gone


def settle_known(round_: Round, known: Mapping[int, DedupRow]) -> None:
    """Those of the round that were stored before leave it, whatever became of the others. `known`: by the id that they
    would have got."""
    for at, chunk in enumerate(round_.chunks):
        there = [i for i, item in enumerate(chunk.items) if item.id in known]
        if there and isinstance(chunk.request, KeyedRequest):
            chunk.request.found([chunk.indices[i] for i in there], [known[chunk.items[i].id] for i in there])
            round_.chunks[at] = chunk.part([i for i, item in enumerate(chunk.items) if item.id not in known])
    round_.rows -= len(known)


def apply_reads(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    slot_rows.applied(shard, round_, result)
    if round_.dedup_expired is not None:
        _expire(shard, round_, result, now_ms)


def _expire(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    scan, found = shard.keys.scan, result.dedup_expired
    if found is None or round_.dedup_expired is None:
        scan.failed(now_ms)
        return
    # Where the host's clock is ahead of the database's, no key is forgotten before it expires there.
    until_ms = min(now_ms, found.db_now_ms + shard.config.clock_jump_ms)
    if found.first_ms and found.first_ms > until_ms:
        scan.left(found.first_ms)
    bound_ms = min(found.bound_ms, until_ms)
    scan.read(bound_ms, found.complete and bound_ms == found.bound_ms, found.next_ms)
    if found.first_ms and found.first_ms <= bound_ms:
        scan.outstanding = 1
        shard.keys.gone = (round_.dedup_expired[0].from_ms, bound_ms)
    else:
        scan.finish(now_ms)


# ------------------------------------------------------------------------------------------ slots of a host alone


def share_out(host: Host) -> None:
    """A host that is alone gives slots that no shard has to the shards that have fewest, when all are open: one that is
    not may have them. `host.slots` is what is known by then."""
    serving = {shard.number: shard.keys.held.bits for shard in host.serving}
    host.slots = slots_of(serving)
    if len(serving) < len(host.shards) or any(shard.keys.wanted is not None for shard in host.serving):
        return
    for number, slots in missing(serving).items():
        shard = host.shards[number]
        held = shard.keys.held
        shard.keys.wanted = held._replace(bits=bits_of(slots, held.bits))
        host.touch(shard)
