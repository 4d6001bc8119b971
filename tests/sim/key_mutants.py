"""Mutants of deduplication keys and their slots: see test_mutants.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.pending_dedup import DedupKeys, Keyed, KeyedRequest, TakesOutcomes
from foqs.buffers.shard_batch import BatchResult
from foqs.engine import dedup
from foqs.peers.hash_slots import SlotMigration
from foqs.rows import Batch
from foqs.server import shard_thread
from foqs.store.protocol import ShardStore
from tests.sim.memory_database import MemoryDatabase
from tests.sim.mutants import Patch, mutant


@mutant
def keys_are_not_refused(patch: Patch) -> None:
    """An item with a key is stored again when its key is enqueued again."""
    patch.setattr(MemoryDatabase, "has_keys", lambda db, batch: False)


@mutant
def keys_that_are_there_are_taken_for_expired(patch: Patch) -> None:
    without_known = shard_thread._without_known
    later = lambda store, batch, now_ms, result: without_known(store, batch, NEVER_MS, result)  # noqa: E731
    patch.setattr(shard_thread, "_without_known", later)


@mutant
def what_is_known_is_stored_too(patch: Patch) -> None:
    """The item gets a second one, and its key names the first."""

    def all_of_it(store: ShardStore, batch: Batch, now_ms: int, result: BatchResult) -> Batch:
        left = without_known(store, batch, now_ms, result)
        return replace(left, inserts=batch.inserts)

    without_known = shard_thread._without_known
    patch.setattr(shard_thread, "_without_known", all_of_it)


@mutant
def what_is_known_is_not_settled(patch: Patch) -> None:
    """Its enqueue is answered as if it had been stored."""
    patch.setattr(dedup, "settle_known", lambda batch, known: None)


@mutant
def one_key_that_is_there_fails_its_neighbours(patch: Patch) -> None:
    """As if the whole transaction had been the item."""

    def everything(store: ShardStore, batch: Batch, now_ms: int, result: BatchResult) -> Batch:
        left = without_known(store, batch, now_ms, result)
        result.rejected.update((item.id, "a key is there") for item in left.inserts)
        return left.only(set(left.ids()) - result.rejected.keys(), lanes=True)

    without_known = shard_thread._without_known
    patch.setattr(shard_thread, "_without_known", everything)


@mutant
def keys_on_their_way_are_not_known(patch: Patch) -> None:
    """Two enqueues with one key at the same time are stored both."""

    def add(keys: DedupKeys, keyed: Keyed, call: TakesOutcomes) -> bool:
        keys.pending[keyed.dedup.digest] = keyed
        return True

    patch.setattr(DedupKeys, "add", add)


@mutant
def withdrawn_keys_stay_queued(patch: Patch) -> None:
    """The caller got the reply that nothing was changed."""

    def withdraw(request: KeyedRequest) -> Sequence[int]:
        indices = original(request)
        if indices:
            request.done = False
            request._keys.pending.update({one.dedup.digest: one for one in request._entries})
        return indices

    original = KeyedRequest.withdraw
    patch.setattr(KeyedRequest, "withdraw", withdraw)


@mutant
def a_slot_moves_without_its_rows(patch: Patch) -> None:
    """A key that was stored is new where its slot went."""
    patch.setattr(SlotMigration, "_store", lambda moves, pull, low, rows: moves._arrived(pull))


@mutant
def a_slot_is_given_away_and_kept(patch: Patch) -> None:
    """Its owner goes on taking keys of the slot when the rows were read."""
    patch.setattr(dedup, "without", lambda slot, bits: bits)
