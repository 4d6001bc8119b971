"""The simulation is itself tested: with a rule of the host or of its store taken out, some seed must fail.

This file has the rules of shards, their windows and stores. `test_topic_mutants` has those of topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foqs.buffers import shard_batch, tail
from foqs.buffers.checkpoint import NEVER_MS, Checkpoint
from foqs.buffers.pending_dedup import DedupKeys, Keyed, KeyedRequest
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.buffers.tail import Tail
from foqs.engine import batch_apply, batch_build, batch_reads, consumers, dedup, item_ops, ready_lanes
from foqs.engine.batch_reads import ExpiringRead, LanesRead, PageRead
from foqs.engine.calls import DequeueCall
from foqs.engine.changing import Changing
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.state import State
from foqs.fairness.tenants import HELD, IDLE
from foqs.fairness.turns import Turns
from foqs.item import KNOWN_BYTES, Change, Item, Phase, To
from foqs.peers.hash_slots import SlotMigration
from foqs.prefetch.lane import Window
from foqs.prefetch.residents import WINDOW_SHARE, Residents
from foqs.rows import Batch, ReadyRow
from foqs.server import shard_thread
from foqs.server.clock import DatabaseClock
from foqs.store.protocol import ShardStore
from tests.kernel.mutants import Mutants, constant
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore
from tests.sim.simulation import simulate

MANY = 300
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- scans and outcomes

put("inserts_do_not_lower_the_checkpoint", Checkpoint, "inserted", constant(None))
put("rows_left_do_not_lower_the_checkpoint", Checkpoint, "left", constant(None))


@around(Checkpoint, "failed")
def a_failed_scan_moves_the_checkpoint(original: Any, scan: Checkpoint, now_ms: int) -> None:
    scan.outstanding = 0
    scan.read(0, True, 0)
    scan.finish(now_ms)


@around(MemoryStore, "reconnect")
def unknown_is_taken_for_failed(original: Any, store: MemoryStore) -> bool:
    original(store)
    return False


@around(MemoryStore, "reconnect", seed=3)
def unknown_is_taken_for_committed(original: Any, store: MemoryStore) -> bool:
    unknown = store._unknown
    original(store)
    return unknown


@around(batch_apply, "apply")
def other_rounds_run_before_unknown_is_settled(
    original: Any, shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int
) -> None:
    if result.outcome is Outcome.UNKNOWN:
        result.outcome = Outcome.FAILED
    original(shard, batch, result, now_ms)


# --------------------------------------------------------------------------------------------- the fence

# An owner that was replaced goes on writing.
put("no_fence", MemoryStore, "_fence", constant(None), "rival", seed=6)


@around(MemoryDatabase, "begin_late", seed=20)
def a_late_packet_goes_on_behind_its_fence(original: Any, db: MemoryDatabase) -> None:
    """The fence matches no row, and no error ends the packet before its COMMIT."""
    late, db.late = db.late, []
    for packet in late:
        if not db.refuses(packet.batch):
            db.run(packet)


@around(MemoryStore, "reconnect", seed=48)
def settling_leaves_the_old_connection_in_the_row(original: Any, store: MemoryStore) -> bool:
    """A session that hung begins a packet that was settled as lost, and its fence holds."""
    before = store._db.connection
    committed: bool = original(store)
    store._db.connection = store._connection = before
    return committed


put("an_unconfirmed_owner_hands_out", ShardOwner, "confirmed", constant(True), "rival", seed=4)
put("a_new_owner_hands_out_at_once", ShardOwner, "in_takeover_grace", constant(False), "rival", seed=22)
# Items are removed before their TTL is over, or delivered early.
put(
    "the_machines_clock_is_trusted", DatabaseClock, "admit",
    lambda timekeeper, number, server, db_ahead_ms, stamp, then: then(), "skew",
    also=[(DatabaseClock, "_read", constant(None))],
)  # fmt: skip


# --------------------------------------------------------------------------------------------- leases and changes

put("leases_are_never_written", batch_build, "_take_leases", constant(None))
put("any_lease_will_do", item_ops, "_holds", constant(True))
# The caller got the reply that nothing was changed.
put("a_withdrawn_change_stays_queued", Shard, "withdraw", constant(True))
put(
    "leases_of_a_dead_connection_are_kept",
    item_ops,
    "take_back",
    lambda shard, item, *_: shard.memory.unlease(item),
    seed=6,
)
put("bodies_are_never_given_back_to_the_budget", ShardMemory, "drop_body",
    lambda memory, item: setattr(item, "held", KNOWN_BYTES), seed=4)  # fmt: skip


@around(consumers, "_lease_first", seed=1)
def at_most_once_goes_out_before_its_lease_is_committed(
    original: Any, shard: Shard, item: Item, waits: Any, now_ms: int
) -> None:
    waits[0].open.discard(waits[1])


@around(consumers, "_deliver", seed=63)
def an_answer_does_not_say_what_it_is_not_sure_of(original: Any, state: State, call: DequeueCall, found: Any) -> None:
    """At-most-once items whose lease is committed too late, or by an owner that is gone."""
    call.doubtful = []
    original(state, call, found)


@around(batch_reads, "when_due")
def an_expired_lease_cannot_be_acked(original: Any, *args: Any) -> Change:
    change: Change = original(*args)
    change.lease = 0
    return change


@around(ExpiringRead, "apply")
def ttl_ends_live_leases(original: Any, read: ExpiringRead, shard: Shard, saved: bool, now_ms: int) -> None:
    for item in shard.memory.known.values():
        if item.phase is Phase.LEASED:
            item.lease_expires_at_ms = min(item.lease_expires_at_ms, now_ms)
    original(read, shard, saved, now_ms)


@around(Engine, "pump")
def nobody_is_woken(original: Any, host: Engine, now_ms: int) -> None:
    """Then a consumer that waits is answered with nothing, and items that are ready are delivered late or never."""
    if host.state.rng.random() < 0.5:
        original(host, now_ms)
    else:
        host.state.dirty.clear()


# --------------------------------------------------------------------------------------------- windows and lanes

# Also an item behind the window's end, where the database has rows before it.
put("every_item_is_put_into_the_window", Window, "covers", constant(True), seed=2)
put("the_merge_overtakes_what_was_not_read", ready_lanes, "known_until", constant(None), seed=3)


@around(PageRead, "fill", seed=8)
def no_skip_of_known_page_rows(original: Any, read: PageRead, memory: ShardMemory, *rows: Any, full: bool) -> None:
    """A page puts items into the window that are leased or being changed."""

    class Nothing(dict[int, Item]):
        def __contains__(self, item_id: object) -> bool:
            return False

    known, memory.known = memory.known, Nothing(memory.known)
    try:
        original(read, memory, *rows, full=full)
    finally:
        known.update(memory.known)
        memory.known = known


@around(Window, "cut", "cut", seed=21)
def a_window_that_was_cut_takes_the_page_asked_for_before(original: Any, window: Window, keep: int) -> list[Item]:
    generation = window.generation
    gone: list[Item] = original(window, keep)
    window.generation = generation
    return gone


@around(LanesRead, "apply", "topics")
def a_cut_page_of_lanes_is_taken_for_whole(original: Any, lanes: LanesRead, *rest: Any) -> None:
    """Lanes behind the last row seem to be empty."""
    original(replace(lanes, limit=len(lanes.rows) + 1), *rest)


@around(PageRead, "fill", "topics")
def a_cut_lane_is_taken_for_whole(
    original: Any, read: PageRead, shard: Any, rows: list[ReadyRow], bodies: Any, *, full: bool
) -> None:
    """The last lane of a page seems to have no more rows than were read."""
    original(read, shard, rows, bodies, full=full and len(rows) >= read.limit)


@around(batch_build, "_take_inserts", seed=8)
def a_lane_that_gets_an_item_is_removed(original: Any, shard: Shard, batch: ShardBatch, *rest: Any) -> None:
    """The transaction that inserts into an empty lane removes its row, to make room for a new one."""
    idle = shard.memory.idle_lanes.copy()
    original(shard, batch, *rest)
    shard.memory.idle_lanes.update({lane.key: lane for lane in batch.lanes_filled if lane.key in idle})


@around(batch_apply, "_apply_transaction", seed=15)
def an_empty_lane_is_forgotten_by_a_failed_transaction(
    original: Any, shard: Shard, batch: ShardBatch, *rest: Any
) -> None:
    """Its row stays for ever."""
    batch.lanes_filled = []
    original(shard, batch, *rest)


def _wanted_bodies(original: Any, shard: Shard, room: int) -> Any:
    return original(shard, room) if room else ([], 0)


def _room_bytes(residents: Residents, most_bytes: int) -> int:
    budget = residents._budget
    return max(0, min(most_bytes, int(budget.limit_bytes * WINDOW_SHARE) - budget.used_bytes))


# Windows without a consumer leave no room for the pages that a dequeue needs.
around(
    batch_reads, "_wanted_bodies", "topics", name="windows_keep_what_they_hold",
    also=[(Residents, "relieve", constant(None)), (Residents, "room_bytes", _room_bytes)],
)(_wanted_bodies)  # fmt: skip


# --------------------------------------------------------------------------------------------- the tail

# They leave memory without a row: no page finds them.
put("a_window_forgets_unindexed_items", ShardMemory, "index", lambda memory, item: memory.forget(item), seed=8)
# The window was cut while the transaction that stored it was in flight.
put("an_unindexed_item_of_a_cut_window_is_not_kept", ShardMemory, "_index_new", constant(None), seed=25)
# Such a change writes no row of the item.
put("the_index_mark_passes_items_whose_ttl_is_put_off", tail, "To", type("Unlike", (), {"KEPT": None}), "calm", seed=11)
put("a_next_owner_indexes_nothing", MemoryDatabase, "index_tail", constant(None), seed=14)
# An operator does not see them.
put("ready_items_are_listed_before_they_are_indexed", batch_build, "_index_tail", constant(None), seed=20)


@around(batch_build, "_take_inserts")
def unindexed_items_outlive_their_room(original: Any, shard: Shard, *rest: Any) -> None:
    """Nothing bounds what the next owner has to index."""
    config = shard.config
    shard.configure(config.model_copy(update={"tail_items": 1 << 30}))
    original(shard, *rest)
    shard.configure(config)


@around(batch_build, "build")
def the_index_mark_passes_items_of_its_own_transaction(original: Any, shard: Shard, now_ms: int) -> ShardBatch | None:
    batch: ShardBatch | None = original(shard, now_ms)
    transaction = None if batch is None else batch.transaction
    if transaction is not None and transaction.inserts and not shard.memory.tail.count:
        transaction.indexed_to = transaction.inserts[-1].id
    return batch


@around(Tail, "items", seed=5)
def the_index_mark_passes_leased_items(original: Any, tail: Tail) -> Iterator[Item]:
    """Leases that are not written: after a crash nothing says that the items are ready."""
    return (item for item in original(tail) if item.phase is not Phase.LEASED)


@around(Batch, "only", "refused")
def a_part_of_a_transaction_saves_the_index_mark_of_the_whole(
    original: Any, batch: Batch, ids: set[int], *, lanes: bool
) -> Batch:
    """The other part fails, and its items stay unindexed."""
    made: Batch = original(batch, ids, lanes=lanes)
    made.indexed_to = batch.indexed_to
    return made


@around(Tail, "add", "refused", seed=8)
def items_that_are_settled_late_are_the_last_of_the_tail(
    original: Any, tail: Tail, ids: list[int], size_bytes: int
) -> None:
    """A part of a transaction was committed before: its items have greater ids."""
    tail.count += len(ids)
    tail.bytes += size_bytes
    tail._ids += ids


@around(MemoryDatabase, "index_tail", seed=17)
def a_next_owner_indexes_items_that_have_a_timer(original: Any, db: MemoryDatabase) -> None:
    """They are found twice: when their lease or delay ends, and as ready."""
    for item_id, body in db.items.items():
        if db.indexed_to and item_id > db.indexed_to and item_id not in db.ready:
            db._ready_new(ReadyRow(body.lane, body.priority, body.deliver_after_ms, item_id, 0, 0, 0))


def _came(original: Any, change: Change, item: Item, *rest: Any, **more: Any) -> None:
    original(change, item, *rest, **more)
    change.came_unindexed = item.unindexed


def _as_it_came(change: Change, transaction: Batch) -> None:
    item, now = change.item, change.item.unindexed
    item.unindexed = change.came_unindexed
    shard_batch.emit(change, transaction)
    item.unindexed = now


# The row of its item is written before the change is.
around(
    Change, "__init__", name="a_change_is_classified_when_it_arrives", also=[(batch_build, "emit", _as_it_came)]
)(_came)  # fmt: skip


@around(batch_apply, "_apply_mixed", seed=38)
def a_failed_transaction_indexes_its_items(original: Any, shard: Shard, batch: ShardBatch, *rest: Any) -> None:
    """Their rows are not there."""
    for item in batch.indexed:
        shard.memory.indexed(item)
    batch.indexed = []
    original(shard, batch, *rest)


@around(batch_apply, "committed")
def a_lease_keeps_its_item_unindexed(original: Any, memory: ShardMemory, change: Change, now_ms: int) -> None:
    """The next change of the item leaves the lease's row behind."""
    unindexed = change.item.unindexed
    original(memory, change, now_ms)
    if change.to is To.LEASED and unindexed:
        change.item.unindexed = True
        memory.tail.add([change.item.id], change.item.bytes)


# --------------------------------------------------------------------------------------------- deduplication keys

# An item with a key is stored again when its key is enqueued again.
put("keys_are_not_refused", MemoryDatabase, "has_keys", constant(False), seed=2)
# Its enqueue is answered as if it had been stored.
put("what_is_known_is_not_settled", dedup, "settle_known", constant(None), seed=2)
# A key that was stored is new where its slot went.
put("a_slot_moves_without_its_rows", SlotMigration, "_store", lambda moves, pull, *_: moves._arrived(pull), seed=8)
# Its owner goes on taking keys of the slot when the rows were read.
put("a_slot_is_given_away_and_kept", dedup, "without", lambda slot, bits: bits, seed=9)


@around(shard_thread, "_without_known", seed=2)
def keys_that_are_there_are_taken_for_expired(
    original: Any, store: ShardStore, batch: Batch, now_ms: int, result: BatchResult
) -> Batch:
    return original(store, batch, NEVER_MS, result)


@around(shard_thread, "_without_known", seed=2)
def what_is_known_is_stored_too(original: Any, store: ShardStore, batch: Batch, *about: Any) -> Batch:
    """The item gets a second one, and its key names the first."""
    return replace(original(store, batch, *about), inserts=batch.inserts)


@around(shard_thread, "_without_known", seed=2)
def one_key_that_is_there_fails_its_neighbours(
    original: Any, store: ShardStore, batch: Batch, now_ms: int, result: BatchResult
) -> Batch:
    """As if the whole transaction had been the item."""
    left: Batch = original(store, batch, now_ms, result)
    result.rejected.update((item.id, "a key is there") for item in left.inserts)
    return left.only(set(left.ids()) - result.rejected.keys(), lanes=True)


@around(DedupKeys, "add")
def keys_on_their_way_are_not_known(original: Any, keys: DedupKeys, items: Sequence[Keyed], call: Any) -> list[Keyed]:
    """Two enqueues with one key at the same time are stored both."""
    keys.pending.update((keyed.dedup.digest, keyed) for keyed in items)
    return list(items)


@around(KeyedRequest, "withdraw", seed=39)
def withdrawn_keys_stay_queued(original: Any, request: KeyedRequest) -> Sequence[int]:
    """The caller got the reply that nothing was changed."""
    indices: Sequence[int] = original(request)
    if indices:
        request.done = False
        request._keys.pending.update({one.dedup.digest: one for one in request._entries})
    return indices


# --------------------------------------------------------------------------------------------- changes and pauses

put("a_changed_item_keeps_its_body", ShardMemory, "body_changed", constant(None), "changed")
put("no_tenant_is_paused", Turns, "hold", constant(None), "changed")


@around(Item, "commit", "changed")
def memory_forgets_a_new_priority(original: Any, item: Item, change: Change) -> None:
    change.priority, priority = None, change.priority
    original(item, change)
    change.priority = priority


@around(Changing, "__call__", "changed")
def a_leased_item_is_changed(original: Any, op: Changing, shard: Shard, item: Item, waits: Any, now_ms: int) -> Any:
    if item.phase is Phase.LEASED and not item.busy and item.expires_at_ms >= 0:
        return op._change(shard, item, waits, now_ms, item.expires_at_ms)
    return original(op, shard, item, waits, now_ms)


@around(Turns, "enter", "changed")
def a_new_item_wakes_a_paused_tenant(original: Any, turns: Turns[Any], tenant: Any, *, opened: bool = False) -> None:
    if tenant.away == HELD:
        tenant.away = IDLE
    original(turns, tenant, opened=opened)
