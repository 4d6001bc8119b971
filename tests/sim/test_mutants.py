"""The simulation is itself tested: with a rule of the host or of its store taken out, some seed must fail.

Every mutant is production code patched for the length of the test; MANY seeds are tried, first the one in KNOWN, and
the first failure ends it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from foqs.buffers.checkpoint import Checkpoint
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.engine import batch_apply, batch_build, batch_reads, consumers, item_ops, ready_lanes
from foqs.engine.batch_reads import ExpiringRead, LanesRead, PageRead
from foqs.engine.calls import DequeueCall
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.state import State
from foqs.item import KNOWN_BYTES, Change, Item, Phase
from foqs.prefetch.lane import Lane, Window
from foqs.prefetch.residents import WINDOW_SHARE, Residents
from foqs.rows import Batch, Body, ReadyRow
from foqs.server.clock import DatabaseClock
from tests.sim import (
    dead_mutants,
    fair_mutants,
    fence_mutants,  # noqa: F401 - it adds its mutants
    key_mutants,  # noqa: F401
    slot_mutants,
    tail_mutants,  # noqa: F401
    tenant_mutants,
    throttle_mutants,
    topic_mutants,  # noqa: F401
)
from tests.sim.memory_store import MemoryStore
from tests.sim.mutants import MUTANTS, Patch, mutant
from tests.sim.simulation import simulate
from tests.support import seeds

MANY = 300
# Found only where shards are taken over.
RIVALS = (
    "no_fence",
    "an_unconfirmed_owner_hands_out",
    "a_new_owner_hands_out_at_once",
    "a_closed_shards_lanes_stay_in_their_topics",
    "a_closed_shards_lanes_are_merged",
)
# Found only where the clocks of machines are wrong.
SKEWED = ("the_machines_clock_is_trusted",)
# Found only with many topics in little memory.
TOPICS = (
    "a_stalled_topic_is_not_tried_again",
    "windows_keep_what_they_hold",
    "a_cut_page_of_lanes_is_taken_for_whole",
    "a_cut_lane_is_taken_for_whole",
)
# Found only where a TTL ends during an early lease.
CALM = ("the_index_mark_passes_items_whose_ttl_is_put_off",)
# Found only where windows are short.
CUT = ("a_window_that_was_cut_takes_the_page_asked_for_before",)
# Found only where transactions are stored in parts.
REFUSED = (
    "items_that_are_settled_late_are_the_last_of_the_tail",
    "a_part_of_a_transaction_saves_the_index_mark_of_the_whole",
)

# Seeds that find what few seeds find.
KNOWN = {
    "a_new_coordinator_lends_before_it_counted": 28,
    "leases_over_a_new_limit_leave_their_slots": 15,
    "flows_without_a_slot_are_never_woken": 3,
    "freed_slots_stay_where_others_wait": 6,
    "urgent_items_of_a_shard_that_returns_wait_for_others": 322,
    "a_late_nack_moves_a_dead_letter_again": 74,
    "settling_leaves_the_old_connection_in_the_row": 48,
    "an_unindexed_item_of_a_cut_window_is_not_kept": 89,
    "the_index_mark_passes_items_whose_ttl_is_put_off": 130,
    "a_failed_transaction_indexes_its_items": 78,
    "an_answer_does_not_say_what_it_is_not_sure_of": 331,
    "a_window_that_was_cut_takes_the_page_asked_for_before": 17,
    "an_empty_lane_is_forgotten_by_a_failed_transaction": 39,
    "nobody_is_woken": 15,
    "a_stalled_topic_is_not_tried_again": 7,
    "a_tenant_that_was_parked_keeps_its_start": 10,
    "a_flow_that_parks_on_another_key_keeps_its_wake": 28,
    "a_new_coordinator_begins_with_a_full_bucket": 18,
}


@mutant
def no_skip_of_known_page_rows(patch: Patch) -> None:
    """A page puts items into the window that are leased or being changed."""

    class Nothing(dict[int, Item]):
        def __contains__(self, item_id: object) -> bool:
            return False

    def page(read: PageRead, memory: ShardMemory, rows: Any, bodies: Any, *, full: bool) -> None:
        known, memory.known = memory.known, Nothing(memory.known)
        try:
            fill(read, memory, rows, bodies, full=full)
        finally:
            known.update(memory.known)
            memory.known = known

    fill = PageRead.fill
    patch.setattr(PageRead, "fill", page)


@mutant
def inserts_do_not_lower_the_checkpoint(patch: Patch) -> None:
    patch.setattr(Checkpoint, "inserted", lambda scan, at_ms: None)


@mutant
def rows_left_do_not_lower_the_checkpoint(patch: Patch) -> None:
    patch.setattr(Checkpoint, "left", lambda scan, at_ms: None)


@mutant
def a_failed_scan_moves_the_checkpoint(patch: Patch) -> None:
    def failed(scan: Checkpoint, now_ms: int) -> None:
        scan.outstanding = 0
        scan.read(0, True, 0)
        scan.finish(now_ms)

    patch.setattr(Checkpoint, "failed", failed)


@mutant
def unknown_is_taken_for_failed(patch: Patch) -> None:
    _settle_as(patch, False)


@mutant
def unknown_is_taken_for_committed(patch: Patch) -> None:
    _settle_as(patch, True)


def _settle_as(patch: Patch, committed: bool) -> None:
    reconnect = MemoryStore.reconnect

    def guess(store: MemoryStore) -> bool:
        unknown = store._unknown
        reconnect(store)
        return unknown and committed

    patch.setattr(MemoryStore, "reconnect", guess)


@mutant
def other_rounds_run_before_unknown_is_settled(patch: Patch) -> None:
    apply = batch_apply.apply

    def forget(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
        if result.outcome is Outcome.UNKNOWN:
            result.outcome = Outcome.FAILED
        apply(shard, batch, result, now_ms)

    patch.setattr(batch_apply, "apply", forget)


@mutant
def at_most_once_goes_out_before_its_lease_is_committed(patch: Patch) -> None:
    patch.setattr(consumers, "_lease_first", lambda shard, item, waits, now_ms: waits[0].open.discard(waits[1]))


@mutant
def an_answer_does_not_say_what_it_is_not_sure_of(patch: Patch) -> None:
    """At-most-once items whose lease is committed too late, or by an owner that is gone."""

    def deliver(state: State, call: DequeueCall, found: list[tuple[Shard, Item, int]]) -> None:
        call.doubtful = []
        original(state, call, found)

    original = consumers._deliver
    patch.setattr(consumers, "_deliver", deliver)


@mutant
def leases_are_never_written(patch: Patch) -> None:
    patch.setattr("foqs.engine.batch_build._take_leases", lambda *args: None)


@mutant
def a_window_that_was_cut_takes_the_page_asked_for_before(patch: Patch) -> None:
    def cut(window: Window, keep: int) -> list[Item]:
        generation = window.generation
        gone = original(window, keep)
        window.generation = generation
        return gone

    original = Window.cut
    patch.setattr(Window, "cut", cut)


@mutant
def a_cut_page_of_lanes_is_taken_for_whole(patch: Patch) -> None:
    """Lanes behind the last row seem to be empty."""

    def whole(lanes: LanesRead, *rest: Any) -> None:
        apply(replace(lanes, limit=len(lanes.rows) + 1), *rest)

    apply = LanesRead.apply
    patch.setattr(LanesRead, "apply", whole)


@mutant
def a_cut_lane_is_taken_for_whole(patch: Patch) -> None:
    """The last lane of a page seems to have no more rows than were read."""

    def page(read: PageRead, memory: ShardMemory, rows: list[ReadyRow], bodies: dict[int, Body], *, full: bool) -> None:
        fill(read, memory, rows, bodies, full=full and len(rows) >= read.limit)

    fill = PageRead.fill
    patch.setattr(PageRead, "fill", page)


@mutant
def a_lane_that_gets_an_item_is_removed(patch: Patch) -> None:
    """The transaction that inserts into an empty lane removes its row, to make room for a new one."""

    def fill(shard: Shard, lane: Lane[Item], batch: ShardBatch, transaction: Batch) -> Lane[Item]:
        idle, gone = lane.key in shard.memory.idle_lanes, lane in batch.lanes_gone
        stored_lane(shard, lane, batch, transaction)
        if idle:
            shard.memory.idle_lanes[lane.key] = lane
        if gone:
            batch.lanes_gone[lane] = None
        return lane

    stored_lane = batch_build._stored_lane
    patch.setattr(batch_build, "_stored_lane", fill)


@mutant
def an_empty_lane_is_forgotten_by_a_failed_transaction(patch: Patch) -> None:
    """Its row stays for ever."""

    def apply(shard: Shard, batch: ShardBatch, *rest: object) -> None:
        batch.lanes_filled.clear()
        apply_transaction(shard, batch, *rest)

    apply_transaction: Any = batch_apply._apply_transaction
    patch.setattr(batch_apply, "_apply_transaction", apply)


@mutant
def every_item_is_put_into_the_window(patch: Patch) -> None:
    """Also one behind its end, where the database has rows before it."""
    patch.setattr(Window, "covers", lambda window, key: True)


@mutant
def the_merge_overtakes_what_was_not_read(patch: Patch) -> None:
    patch.setattr(ready_lanes, "known_until", lambda windows: None)


@mutant
def an_unconfirmed_owner_hands_out(patch: Patch) -> None:
    patch.setattr(ShardOwner, "confirmed", lambda owner, now_ms: True)


@mutant
def a_new_owner_hands_out_at_once(patch: Patch) -> None:
    patch.setattr(ShardOwner, "in_takeover_grace", lambda owner, now_ms: False)


@mutant
def any_lease_will_do(patch: Patch) -> None:
    patch.setattr(item_ops, "_holds", lambda item, lease: True)


@mutant
def an_expired_lease_cannot_be_acked(patch: Patch) -> None:
    patch.setattr(batch_reads, "when_due", _without_token(batch_reads.when_due))


def _without_token(when_due: Callable[..., Change]) -> Callable[..., Change]:
    def decide(*args: Any) -> Change:
        change = when_due(*args)
        change.lease = 0
        return change

    return decide


@mutant
def ttl_ends_live_leases(patch: Patch) -> None:

    apply = ExpiringRead.apply

    def blind(read: ExpiringRead, shard: Shard, saved: bool, now_ms: int) -> None:
        for item in shard.memory.known.values():
            if item.phase is Phase.LEASED:
                item.lease_expires_at_ms = min(item.lease_expires_at_ms, now_ms)
        apply(read, shard, saved, now_ms)

    patch.setattr(ExpiringRead, "apply", blind)


@mutant
def nobody_is_woken(patch: Patch) -> None:
    """Then a consumer that waits is answered with nothing, and items that are ready are delivered late or never."""
    patch.setattr(Engine, "pump", _half_a_pump(Engine.pump))


def _half_a_pump(pump: Callable[[Engine, int], None]) -> Callable[[Engine, int], None]:
    def every_other(host: Engine, now_ms: int) -> None:
        if host.state.rng.random() < 0.5:
            pump(host, now_ms)
        else:
            host.state.dirty.clear()

    return every_other


@mutant
def a_withdrawn_change_stays_queued(patch: Patch) -> None:
    """The caller got the reply that nothing was changed."""
    patch.setattr(Shard, "withdraw", lambda shard, change, waits: True)


@mutant
def leases_of_a_dead_connection_are_kept(patch: Patch) -> None:
    patch.setattr(item_ops, "take_back", lambda shard, item, lease, now_ms: shard.memory.unlease(item))


@mutant
def bodies_are_never_given_back_to_the_budget(patch: Patch) -> None:
    patch.setattr(ShardMemory, "drop_body", lambda memory, item: setattr(item, "held", KNOWN_BYTES))


@mutant
def the_machines_clock_is_trusted(patch: Patch) -> None:
    """Items are removed before their TTL is over, or delivered early."""
    patch.setattr(DatabaseClock, "admit", lambda timekeeper, number, server, db_ahead_ms, stamp, then: then())
    patch.setattr(DatabaseClock, "_read", lambda timekeeper, shard, ahead_ms: None)


@mutant
def windows_keep_what_they_hold(patch: Patch) -> None:
    """Windows without a consumer leave no room for the pages that a dequeue needs."""

    def room_bytes(residents: Residents, most_bytes: int) -> int:
        budget = residents._budget
        return max(0, min(most_bytes, int(budget.limit_bytes * WINDOW_SHARE) - budget.used_bytes))

    wanted_bodies = batch_reads._wanted_bodies
    patch.setattr(Residents, "relieve", lambda residents: None)
    patch.setattr(Residents, "room_bytes", room_bytes)
    patch.setattr(batch_reads, "_wanted_bodies", lambda shard, room: wanted_bodies(shard, room) if room else ([], 0))


OF_MODULE = {
    dead_mutants.__name__: "dead",
    tenant_mutants.__name__: "tenants",
    fair_mutants.__name__: "fair",
    throttle_mutants.__name__: "throttles",
    slot_mutants.__name__: "slots",
}


def trouble_of(name: str) -> str:
    """The kind of simulation that finds the mutant."""
    if MUTANTS[name].__module__ in OF_MODULE:
        return OF_MODULE[MUTANTS[name].__module__]
    kinds = {"rival": RIVALS, "skew": SKEWED, "calm": CALM, "cut": CUT, "refused": REFUSED, "topics": TOPICS}
    return next((kind for kind, names in kinds.items() if name in names), "")


@pytest.fixture
def patch() -> Iterator[Patch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, patch: Patch) -> None:
    MUTANTS[name](patch)
    found = seeds.finds(lambda seed: simulate(seed, trouble_of(name)), MANY, KNOWN.get(name, 0))
    assert found, f"no seed below {MANY} fails with {name}"
