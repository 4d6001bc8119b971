"""Unique work: keys that items hold until they start or are done.

The transaction by which an item starts, ends or becomes a dead letter frees its key, if the key is in the same shard.
Else the owner of the item asks the owner of the key for that (`foqs.buffers.held_keys`). A redrive takes the key for
its item first, in three steps that each are committed: a claim, by which the key is freed later; the key; the move of
the item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from foqs.buffers.held_keys import AGAIN_MS, CLAIM_MS, FREE_MS, Claim, ClaimRead, HeldKeys, Told
from foqs.buffers.pending_dedup import Freed, KeyTake
from foqs.buffers.reads import Read, StoreReads
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import enqueue
from foqs.engine.calls import EnqueueCall
from foqs.engine.item_ops import change_of
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, Invalid, NotServed, Unavailable
from foqs.fairness.keys import until_of
from foqs.ids import FOREVER_MS, HASH_SLOTS, Until, content_of
from foqs.item import Cause, Change, To
from foqs.rows import Batch, DedupRow, HeldKey, KeyRows
from foqs.shardmgr.lifecycle import ShardState

_MOST = 100
"""Keys to free at a time."""
_ALL_SLOTS = b"\xff" * (HASH_SLOTS // 8)
_GONE, _MOVED, _KEPT = To.GONE, To.MOVED, To.KEPT


def hold(shard: Shard, rows: Sequence[DedupRow], transaction: Batch) -> None:
    """Note which of the new items hold their keys."""
    held = [HeldKey(row.id, row.digest) for row in rows if row.expires_at_ms >= FOREVER_MS]
    if held:
        shard.queue.key_rows(transaction).held += held


def note(shard: Shard, change: Change, transaction: Batch) -> None:
    """Free the key of an item that has started, is done, or is dead; or note that a redrive has taken it."""
    item, to = change.item, change.to
    if item.order is not None:
        return  # it has no deduplication key
    until = item.lane.until
    if to is _GONE:
        if change.digest is not None:
            shard.queue.key_rows(transaction).held.append(HeldKey(item.id, change.digest))
        if until or item.lane.dead or change.digest is not None:
            shard.queue.key_rows(transaction).ended.append(item.id)
    elif to is _MOVED:
        assert change.move is not None, "a move says where to"
        if change.move.failure is None:
            if until_of(change.move.lane) == Until.DONE:
                shard.queue.key_rows(transaction).redriven.append(item.id)
        elif until:
            keys = shard.queue.key_rows(transaction)
            (keys.dead if until == Until.DONE else keys.ended).append(item.id)
    elif until == Until.STARTED and change.attempt and to is not _KEPT:
        shard.queue.key_rows(transaction).ended.append(item.id)


def schedule(shard: Shard, keys: KeyRows, now_ms: int) -> None:
    """Have the owner look for keys that a transaction may not free, as they are in other shards."""
    if keys.bits != _ALL_SLOTS and (keys.ended or keys.dead):
        shard.queue.held.note(now_ms + FREE_MS)


def fill_transaction(shard: Shard, batch: ShardBatch, transaction: Batch, now_ms: int) -> bool:
    """Add what redrives take and claim, and which keys other shards have freed. Return True if there is any of it."""
    waiting, held = shard.queue.keys, shard.queue.held
    if not (waiting.redrives or held.claims or held.freed):
        return False
    keys = shard.queue.key_rows(transaction)
    if waiting.redrives:
        takes, waiting.redrives = waiting.redrives, []
        keys.taken = [take.row for take in takes]
        keys.taken_ms = now_ms - shard.owner.late_ms
        batch.reads = [*batch.reads, TakenRead(takes)]
    claims, held.claims = held.claims, []
    for claim in claims:
        keys.claims += [HeldKey(item_id, b"", 0, claim.free_at_ms) for item_id in claim.ids]
        held.note(claim.free_at_ms)
    batch.reads = [*batch.reads, *map(ClaimRead, claims)]
    keys.noted, held.freed = held.freed, []
    return True


@dataclass(slots=True, eq=False)
class FreeRead(Read):
    """The next keys to free, behind a position: keys whose shards do not answer hold up no other ones."""

    now_ms: int
    after: tuple[int, int]
    found: list[HeldKey] = field(default_factory=list)
    next_ms: int = 0

    def run(self, store: StoreReads) -> int:
        self.found, self.next_ms = store.keys_to_free(self.after, self.now_ms, _MOST)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        held, found = shard.queue.held, self.found
        new = [key for key in found if key.id not in held.freeing and not _is_redriven(shard, key.id)]
        if len(found) == _MOST:
            held.after = found[-1].free_at_ms, found[-1].id
            held.note(now_ms)
        else:
            held.after = (0, 0)
            if self.next_ms:
                held.note(self.next_ms)
            if held.freeing or len(new) < len(found):
                held.note(now_ms + AGAIN_MS)
        if new:
            held.freeing.update((key.id, key) for key in new)
            shard.queue.tell(new, partial(_told, shard, held, new))

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.held.note(now_ms + AGAIN_MS)


def _is_redriven(shard: Shard, item_id: int) -> bool:
    """Return True if the dead letter is about to hold its key again."""
    item = shard.memory.known.get(item_id)
    change = None if item is None else change_of(item)
    return change is not None and change.cause is Cause.REDRIVE


def _told(shard: Shard, held: HeldKeys, keys: Sequence[HeldKey], outcomes: list[int | FoqsError]) -> None:
    if shard.queue.held is not held:
        return  # the shard was opened again
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, FoqsError):
            del held.freeing[key.id]
            held.note(shard.queue.now_ms() + AGAIN_MS)
        else:
            held.freed.append(key)
    shard.queue.touch()


# ------------------------------------------------------------------------------------------ in the shard of the keys


def tell(state: State, number: int, rows: Sequence[DedupRow | HeldKey], told: Told) -> None:
    """Take keys for redrives (DedupRow), and free keys (HeldKey), in slots of the shard."""
    shard = state.shards.get(number)
    if shard is None or shard.owner.state is not ShardState.SERVING:
        told([NotServed()] * len(rows))
        return
    if not shard.healthy(state.now_ms):
        told([enqueue.unusable(shard, state.now_ms)] * len(rows))
        return
    call, keys = EnqueueCall(len(rows), told), shard.queue.keys
    freed: list[tuple[int, HeldKey]] = []
    for at, row in enumerate(rows):
        if not keys.takes(row.digest):
            call.settled((at,), (NotServed(),))
        elif isinstance(row, HeldKey):
            freed.append((at, row))
        elif not (state.freed_keys.takes(row) and keys.take(row, call, at)):
            call.settled((at,), (Unavailable("the key is about to be stored, or freed", enqueue.RETRY_MS),))
    if freed:
        places, ids = [at for at, _ in freed], [key.id for _, key in freed]
        done = lambda error: call.settled(places, ids if error is None else [error] * len(ids))  # noqa: E731
        keys.copies.append(Freed([key for _, key in freed], done))
        for _, key in freed:
            state.freed_keys.add(key)
    state.touch(shard)


@dataclass(slots=True, eq=False)
class TakenRead(Read):
    """Which items have the keys that the transaction before has taken where they were free."""

    takes: list[KeyTake]
    found: dict[bytes, DedupRow] = field(default_factory=dict)

    def run(self, store: StoreReads) -> int:
        self.found = {row.digest: row for row in store.dedup([take.row.digest for take in self.takes])}
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        for take in self.takes:
            row = self.found.get(take.row.digest)
            if row is None or not saved:
                take.request.refused((0,), _not_taken())
            elif row.id == take.row.id:
                take.request.stored((0,), [take.item])
            else:
                take.request.found((0,), [row])

    def missed(self, shard: Any, now_ms: int) -> None:
        self.refuse(_not_taken())

    def refuse(self, error: FoqsError) -> None:
        takes, self.takes = self.takes, []
        for take in takes:
            take.request.refused((0,), error)


def _not_taken() -> Unavailable:
    return Unavailable("the keys' shard cannot be used now", enqueue.RETRY_MS)


# ------------------------------------------------------------------------------------------ redrives


def free_again(state: State, shard: Shard, ids: Iterable[int]) -> None:
    """Free the keys of those items that are dead letters still."""
    shard.queue.held.claims.append(Claim(list(ids), state.now_ms, lambda _: None))
    state.touch(shard)


class Taking:
    """Takes the keys of dead letters again. `done` gets two sets of ids, once: of items that have their keys, and of
    items whose keys other items have. For the rest, no owner of a key has answered."""

    def __init__(
        self, state: State, shard: Shard, topics: dict[int, str], done: Callable[[set[int], set[int]], None]
    ) -> None:
        """`topics`: by id, the topic of the item after its redrive."""
        self._shard = shard
        self._topics = topics
        self._done = done
        self._held = shard.queue.held
        self._held.claims.append(Claim(list(topics), state.now_ms + CLAIM_MS, self._claimed))
        state.touch(shard)

    def _claimed(self, found: list[HeldKey] | FoqsError) -> None:
        if isinstance(found, FoqsError):
            self._done(set(), set())
            return
        rows = [
            DedupRow(key.digest, content_of(self._topics[key.id], b""), key.id, FOREVER_MS + key.number)
            for key in found
            if key.id not in self._held.freeing
        ]
        without = self._topics.keys() - {key.id for key in found}  # their rows are lost: they keep no item out
        if rows:
            self._shard.queue.tell(rows, partial(self._taken, rows, without))
        else:
            self._done(without, set())

    def _taken(self, rows: Sequence[DedupRow], have: set[int], outcomes: list[int | FoqsError]) -> None:
        others = set[int]()
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome == row.id:
                if row.id not in self._held.freeing:
                    have.add(row.id)
            elif isinstance(outcome, int | Invalid):
                others.add(row.id)
        self._done(have, others)
