"""Mutants of the tail, the items without a row in `ready`: see test_mutants.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foqs.buffers import shard_batch, tail
from foqs.buffers.shard_batch import ShardBatch
from foqs.buffers.tail import Tail
from foqs.engine import batch_apply, batch_build
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.item import Change, Item, Phase, To
from foqs.rows import Batch, ReadyRow
from tests.sim.memory_database import MemoryDatabase
from tests.sim.mutants import Patch, mutant


@mutant
def a_window_forgets_unindexed_items(patch: Patch) -> None:
    """They leave memory without a row: no page finds them."""
    patch.setattr(ShardMemory, "index", lambda memory, item: memory.forget(item))


@mutant
def an_unindexed_item_of_a_cut_window_is_not_kept(patch: Patch) -> None:
    """The window was cut while the transaction that stored it was in flight."""
    patch.setattr(ShardMemory, "_index_new", lambda memory, news, lane: None)


@mutant
def unindexed_items_outlive_their_room(patch: Patch) -> None:
    """Nothing bounds what the next owner has to index."""

    def take(shard: Shard, *rest: Any) -> None:
        config = shard.config
        shard.configure(config.model_copy(update={"tail_items": 1 << 30}))
        original(shard, *rest)
        shard.configure(config)

    original: Any = batch_build._take_inserts
    patch.setattr(batch_build, "_take_inserts", take)


@mutant
def the_index_mark_passes_items_of_its_own_transaction(patch: Patch) -> None:
    def build(shard: Shard, *rest: Any) -> Batch | None:
        transaction = original(shard, *rest)
        if transaction is not None and transaction.inserts and not shard.memory.tail.count:
            transaction.indexed_to = transaction.inserts[-1].id
        return transaction

    original: Any = batch_build._build_transaction
    patch.setattr(batch_build, "_build_transaction", build)


@mutant
def the_index_mark_passes_leased_items(patch: Patch) -> None:
    """Leases that are not written: after a crash nothing says that the items are ready."""

    def items(tail: Tail) -> Iterator[Item]:
        return (item for item in original(tail) if item.phase is not Phase.LEASED)

    original = Tail.items
    patch.setattr(Tail, "items", items)


@mutant
def the_index_mark_passes_items_whose_ttl_is_put_off(patch: Patch) -> None:
    """Such a change writes no row of the item."""

    class Unlike:
        KEPT = None

    patch.setattr(tail, "To", Unlike)


@mutant
def a_part_of_a_transaction_saves_the_index_mark_of_the_whole(patch: Patch) -> None:
    """The other part fails, and its items stay unindexed."""

    def part(batch: Batch, ids: set[int], *, lanes: bool) -> Batch:
        made = only(batch, ids, lanes=lanes)
        made.indexed_to = batch.indexed_to
        return made

    only = Batch.only
    patch.setattr(Batch, "only", part)


@mutant
def items_that_are_settled_late_are_the_last_of_the_tail(patch: Patch) -> None:
    """A part of a transaction was committed before: its items have greater ids."""

    class Unsorted(Tail):
        def add(self, ids: list[int], size_bytes: int) -> None:
            self.count += len(ids)
            self.bytes += size_bytes
            self._ids += ids

    patch.setattr("foqs.engine.shard_memory.Tail", Unsorted)


@mutant
def a_next_owner_indexes_items_that_have_a_timer(patch: Patch) -> None:
    """They are found twice: when their lease or delay ends, and as ready."""

    def index_tail(db: MemoryDatabase) -> None:
        for item_id, body in db.items.items():
            if db.indexed_to and item_id > db.indexed_to and item_id not in db.ready:
                db._ready_new(ReadyRow(body.lane, body.priority, body.deliver_after_ms, item_id, 0, 0, 0))

    patch.setattr(MemoryDatabase, "index_tail", index_tail)


@mutant
def a_next_owner_indexes_nothing(patch: Patch) -> None:
    patch.setattr(MemoryDatabase, "index_tail", lambda db: None)


@mutant
def a_change_is_classified_when_it_arrives(patch: Patch) -> None:
    """The row of its item is written before the change is."""

    def init(change: Change, item: Item, *rest: Any, **more: Any) -> None:
        original(change, item, *rest, **more)
        change.came_unindexed = item.unindexed  # type: ignore[attr-defined]

    def early(change: Change, transaction: Batch) -> None:
        item, now = change.item, change.item.unindexed
        item.unindexed = change.came_unindexed  # type: ignore[attr-defined]
        emit(change, transaction)
        item.unindexed = now

    original, emit = Change.__init__, shard_batch.emit
    patch.setattr(Change, "__init__", init)
    patch.setattr(batch_build, "emit", early)


@mutant
def a_failed_transaction_indexes_its_items(patch: Patch) -> None:
    """Their rows are not there."""

    def mixed(shard: Shard, batch: ShardBatch, *rest: Any) -> None:
        for item in batch.indexed:
            shard.memory.indexed(item)
        batch.indexed.clear()
        original(shard, batch, *rest)

    original: Any = batch_apply._apply_mixed
    patch.setattr(batch_apply, "_apply_mixed", mixed)


@mutant
def a_lease_keeps_its_item_unindexed(patch: Patch) -> None:
    """The next change of the item leaves the lease's row behind."""

    def committed(memory: ShardMemory, change: Change, now_ms: int) -> None:
        unindexed = change.item.unindexed
        original(memory, change, now_ms)
        if change.to is To.LEASED and unindexed:
            change.item.unindexed = True
            memory.tail.add([change.item.id], change.item.bytes)

    original = batch_apply.committed
    patch.setattr(batch_apply, "committed", committed)


@mutant
def ready_items_are_listed_before_they_are_indexed(patch: Patch) -> None:
    """An operator does not see them."""
    patch.setattr(batch_build, "_index_tail", lambda shard, batch, transaction: None)
