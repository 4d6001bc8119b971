"""Rules of topics that are taken out, as in `test_mutants`: lanes, dead letters, redrives, tenants, throttles, slots,
schedules.

`tests/limits/test_slots.py` has the mutants of the messages about slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from foqs.bounds import NANO, Quota
from foqs.buffers.held_keys import HeldKeys
from foqs.buffers.kept import KeptItems
from foqs.buffers.pending_progress import PendingProgress
from foqs.buffers.reads import DeadRead
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import (
    batch_apply,
    batch_build,
    batch_reads,
    consumers,
    dead_letters,
    dedup,
    item_ops,
    kept_items,
    shard_life,
    unique,
)
from foqs.engine.concurrency import AnyGate, LaneSlots, Parked
from foqs.engine.dead_letters import RedrivePage
from foqs.engine.endings import Awaited
from foqs.engine.fair_dequeue import TenantDequeue
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.state import State
from foqs.engine.throttling import Throttling
from foqs.fairness.keys import TopicKey, lane_key, topic_key
from foqs.fairness.tenants import IDLE, PARKED, Level, Tenant
from foqs.fairness.topics import Topic
from foqs.fairness.turns import Turns
from foqs.ids import FOREVER_MS
from foqs.item import Cause, Change, Item, Move, Phase, To
from foqs.limits.bucket import Bucket
from foqs.limits.lease_slots import LeaseSlots, ShardSlots
from foqs.limits.throttle_key import ThrottleKey
from foqs.peers import scheduler
from foqs.peers.scheduler import Owner, Schedule, Scheduler
from foqs.policies.layers import Policies
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, DueRow, FailureCause, Found
from foqs.rules import ItemRules
from tests.kernel.mutants import Mutants, constant
from tests.sim.simulation import simulate

MANY = 300
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- lanes of a topic

# Its items are stored and never delivered.
put("a_lane_belongs_to_no_topic", Topic, "attach", constant(None))
put("a_closed_shards_lanes_stay_in_their_topics", shard_life, "_detach", lambda *about: iter(()), "rival", seed=2)


@around(Shard, "close", "rival", seed=12, also=[(shard_life, "_LANES", 1)])
def a_closed_shards_lanes_are_merged(original: Any, shard: Shard) -> None:
    """They are in their topics until they are detached."""
    term = shard.memory.term
    original(shard)
    term.shard = shard


@around(consumers, "wake", "topics", seed=1)
def a_stalled_topic_is_not_tried_again(original: Any, state: State, shard: Shard, now_ms: int) -> None:
    """Its consumer goes on waiting when the shard hands out again."""
    shard.memory.stalled.clear()
    original(state, shard, now_ms)


# --------------------------------------------------------------------------------------------- attempts

# It is delivered before all items of its priority, again and again.
put("an_item_that_failed_keeps_its_place", item_ops, "_behind_ms", constant(0), "dead")
put("a_failed_attempt_is_not_written", item_ops, "_failed_attempt", constant(None), "dead")
# Each consumer counts as one that has not begun.
put("a_lease_of_begun_work_is_no_attempt", Item, "attempts_begun", property(lambda item: item.attempt - 1), "dead")
put("items_without_attempts_are_delivered", item_ops, "change_at_limit", constant(None), "dead")
# It returns, and nothing looks at it before it is delivered.
put(
    "the_last_attempt_of_an_unwritten_lease_is_repeated", batch_build, "_ends_in_scan", constant(False), "dead",
    also=[(item_ops, "change_at_limit", constant(None))],
)  # fmt: skip
# It never becomes too old.
put(
    "the_time_of_an_item_counts_from_its_last_delay", DueRow, "since_ms", property(lambda row: row.deliver_after_ms),
    "dead", seed=53, also=[(Found, "since_ms", property(lambda found: found.body.deliver_after_ms))],
)  # fmt: skip


@around(item_ops, "change_at_end", "dead")
def a_lease_that_ends_by_time_is_no_attempt(
    original: Any, shard: Shard, item: Item, ended: item_ops.Ended, *rest: Any, **more: Any
) -> Change:
    change: Change = original(shard, item, ended, *rest, **more)
    if ended.cause is FailureCause.EXPIRED and change.move is None:
        change.attempt -= 1
    return change


@around(consumers, "send", "dead", seed=10)
def exact_attempts_go_out_before_they_are_committed(original: Any, state: Any, call: Any, now_ms: int) -> None:
    """An owner that crashes forgets them."""
    call.commits = any(item.at_most_once for _, item, _ in call.found)
    original(state, call, now_ms)


@around(batch_reads, "when_due", "dead", seed=2)
def an_item_at_most_once_becomes_a_dead_letter(original: Any, shard: Shard, item: Item, *rest: Any) -> Change:
    at_most_once, item.at_most_once = item.at_most_once, False
    change: Change = original(shard, item, *rest)
    item.at_most_once = at_most_once
    return change


@around(Policies, "apply", "dead")
def a_topic_keeps_its_bounds_when_policies_change(original: Any, policies: Policies, settings: Any) -> None:
    original(policies, settings)
    policies.changes = 1


# --------------------------------------------------------------------------------------------- dead letters

_late: list[Any] = []


@around(batch_build, "build", "dead")
def a_dead_letter_is_written_in_two_transactions(original: Any, shard: Shard, now_ms: int) -> ShardBatch | None:
    """The row of its failure comes with the next one."""
    batch: ShardBatch | None = original(shard, now_ms)
    if batch is not None and (transaction := batch.transaction) is not None:
        new, transaction.failure_new = transaction.failure_new, _late.copy()
        _late[:] = new
    return batch


@around(Batch, "only", "dead", seed=10)
def a_part_of_a_transaction_forgets_failures(original: Any, batch: Batch, ids: set[int], *, lanes: bool) -> Batch:
    made: Batch = original(batch, ids, lanes=lanes)
    made.failure_new = []
    return made


@around(Batch, "only", "dead", seed=7)
def a_part_of_a_transaction_keeps_failures_of_items_that_are_gone(
    original: Any, batch: Batch, ids: set[int], *, lanes: bool
) -> Batch:
    made: Batch = original(batch, ids, lanes=lanes)
    made.failure_gone = []
    return made


@around(batch_build, "_stored_lane", "dead")
def the_lane_of_dead_letters_has_no_row(
    original: Any, shard: Shard, lane: Lane[Item], batch: Any, transaction: Batch
) -> Lane[Item]:
    found: Lane[Item] = original(shard, lane, batch, transaction)
    if lane.topic.key[1].endswith(".dlq"):
        transaction.lanes_new = [row for row in transaction.lanes_new if row.lane != lane.number]
    return found


@around(shard_life, "fill", "dead", seed=5)
def a_new_owner_does_not_know_its_dead_letters(original: Any, shard: Shard, opened: Any) -> Iterator[None]:
    """It removes items, and leaves their failures behind."""
    opened.dead.clear()
    return original(shard, opened)


@around(batch_apply, "_moved", "dead")
def an_owner_does_not_note_its_first_dead_letter(
    original: Any, memory: ShardMemory, change: Change, now_ms: int
) -> None:
    assert change.target is not None
    before = change.target.dead
    original(memory, change, now_ms)
    change.target.dead = before


@around(batch_apply, "_moved", "dead")
def a_dead_letter_counts_in_its_old_lane(original: Any, memory: ShardMemory, change: Change, now_ms: int) -> None:
    item, target = change.item, change.target
    assert target is not None
    item.lane, target.dead = target, True
    memory.drop_body(item)


@around(item_ops, "change_at_end", "dead", seed=4)
def a_dead_letter_forgets_the_lease_that_ended_by_time(original: Any, *args: Any, **more: Any) -> Change:
    """A late ack is refused, though no other consumer got the item."""
    change: Change = original(*args, **more)
    if change.move is not None:
        change.lease = 0
    return change


@around(item_ops, "_ends_anyway", "dead", seed=116)
def a_late_nack_moves_a_dead_letter_again(original: Any, item: Item, waits: Any, cause: Cause) -> Any:
    """It came while the transaction that moves the item was in flight."""
    now = item.change or item.in_flight
    moving = now is not None and now.move is not None and cause is not Cause.ACK
    return None if moving else original(item, waits, cause)


# --------------------------------------------------------------------------------------------- redrives

put("a_redrive_takes_items_that_another_one_takes", dead_letters, "_stays", constant(True), "dead", seed=48)


@around(
    RedrivePage, "_choose", "dead",
    also=[(dead_letters, "DeadRead", lambda *about: DeadRead(*about[:3], about[3] + 1, *about[4:]))],
)  # fmt: skip
def a_redrive_goes_beyond_its_count(original: Any, page: RedrivePage, *rest: Any) -> Any:
    page._ask = replace(page._ask, most=page._ask.most + 1)
    chosen = original(page, *rest)
    page._ask = replace(page._ask, most=page._ask.most - 1)
    return chosen


@around(batch_build, "emit", "dead")
def a_redrive_leaves_the_failure(original: Any, change: Change, transaction: Batch) -> None:
    original(change, transaction)
    if change.cause is Cause.REDRIVE:
        transaction.failure_gone.remove(change.item.id)


@around(dead_letters, "Change", "dead")
def a_redriven_item_keeps_its_attempts(original: Any, item: Item, *about: Any, attempt: int, **more: Any) -> Change:
    return original(item, *about, attempt=item.attempt + 1, **more)


@around(
    RedrivePage, "_choose", "dead",
    also=[
        (dead_letters, "Phase", type("Phases", (), {"IDLE": Phase.IDLE, "LEASED": object()})),
        (dead_letters, "_item_of", constant(None)),
    ],
)  # fmt: skip
def a_redrive_takes_leased_items(original: Any, page: RedrivePage, shard: Shard, found: Any) -> Any:
    """It ends the lease of a consumer that works on the item."""
    known = [row for row in found.rows if row.failure.id in shard.memory.known]
    return original(page, shard, found._replace(rows=known))


# --------------------------------------------------------------------------------------------- tenants

put("a_dead_letter_forgets_its_throttle_keys", item_ops, "pack_throttles", constant(b""), "tenants", seed=5)


@around(RedrivePage, "_move", "tenants", seed=5)
def a_redriven_item_forgets_its_tenant(original: Any, page: RedrivePage, *about: Any) -> Move:
    made: Move = original(page, *about)
    return made._replace(lane=lane_key(topic_key(made.lane)))


@around(batch_apply, "_apply_transaction", "tenants")
def weights_in_memory_are_those_of_the_first_items(original: Any, shard: Any, batch: Any, *rest: Any) -> None:
    weights, batch.weights = batch.weights, {}
    original(shard, batch, *rest)
    batch.weights = weights


def _returns(name: str, kind: str, seed: int, was_away: Any, change: Callable[[Tenant[Any], float], None]) -> None:
    """Add a mutant that changes a tenant which takes turns again. `change` also gets the start that it had."""

    def enter(original: Any, turns: Turns[Any], tenant: Tenant[Any], **how: Any) -> None:
        away, start = tenant.away, tenant.start
        original(turns, tenant, **how)
        if away == was_away and tenant.seq:
            turns._withdraw(tenant)
            change(tenant, start)
            turns._queue(tenant)

    around(Turns, "enter", kind, seed, name=name)(enter)


def _keep_start(tenant: Tenant[Any], start: float) -> None:
    tenant.start, tenant.newcomer = start, False


def _no_newcomer(tenant: Tenant[Any], start: float) -> None:
    tenant.newcomer = False


# It catches up on all that it did not ask for, or on what its throttles held.
_returns("an_idle_tenant_keeps_its_start", "fair", 0, IDLE, _keep_start)
_returns("a_tenant_that_was_parked_keeps_its_start", "throttles", 14, PARKED, _keep_start)
# It waits for an item of each other tenant.
_returns("a_tenant_that_returns_is_no_newcomer", "fair", 0, IDLE, _no_newcomer)


@around(Level, "first", "fair")
def newcomers_always_go_first(original: Any, level: Level[Any]) -> Any:
    """A flood of them starves older tenants."""
    level.took_newcomer = False
    return original(level)


@around(Turns, "charge", "fair")
def every_tenant_has_the_same_weight(
    original: Any, turns: Turns[Any], tenant: Tenant[Any], cost: float, **how: Any
) -> None:
    original(turns, tenant, cost * tenant.weight, **how)


@around(TenantDequeue, "_open", "fair", seed=23)
def urgent_items_of_a_shard_that_returns_wait_for_others(original: Any, round_: TenantDequeue, *about: Any) -> Any:
    """Their tenant took turns without them, and is not looked at again."""
    taking = original(round_, *about)
    round_._turns.incomplete.clear()
    return taking


# --------------------------------------------------------------------------------------------- rules of items

put("rules_have_no_effect", Shard, "policy_of", lambda shard, lane: shard.policies.of(lane.topic.key), "rules")
put("a_new_owner_forgets_the_rules_of_lanes", shard_life, "unpack_rules", constant(None), "rules")
put("a_dead_letter_forgets_its_rules", item_ops, "pack_lane", constant(b""), "rules")
put("a_redrive_forgets_the_rules", dead_letters, "unpack_rules", constant(None), "rules")
put("a_delete_is_answered_though_rules_keep_the_item", item_ops, "rules_of", constant(None), "rules")


@around(item_ops, "nack", "rules")
def a_nack_counts_an_attempt_all_the_same(original: Any, *about: Any, counted: bool = True) -> Any:
    return original(*about)


@around(Policies, "bounds", "rules")
def deliveries_have_the_limit_of_the_policy(original: Any, policies: Policies, key: TopicKey, *_: Any) -> Any:
    return original(policies, key)


@around(Policies, "with_rules", "rules")
def an_item_has_the_rules_of_another_lane(original: Any, policies: Policies, key: TopicKey, rules: Any) -> Any:
    return original(policies, key, ItemRules(max_attempts=1) if rules is not None else None)


# --------------------------------------------------------------------------------------------- checkpoints

put("checkpoints_are_never_written_behind", batch_build, "_queue_progress", constant(None), "progress")
put("a_failed_transaction_loses_checkpoints", PendingProgress, "put_back", constant(None), "progress")
put("a_delivery_has_no_checkpoint", batch_reads, "bodies_of", lambda store, ids, noted: store.bodies(ids), "progress")
put("a_body_in_memory_keeps_its_old_checkpoint", ShardMemory, "has_progress", constant(None), "progress")


@around(PendingProgress, "add", "progress")
def the_first_of_two_checkpoints_stays(original: Any, pending: Any, item: Any, row: Any, *about: Any) -> Any:
    return item.id in pending or original(pending, item, row, *about)


@around(Shard, "open", "progress")
def a_new_owner_forgets_checkpoints(original: Any, shard: Any, memory: Any, opened: Any, *about: Any) -> None:
    original(shard, memory, replace(opened, noted={}), *about)


@around(Shard, "withdraw", "progress")
def a_refused_extension_is_written(original: Any, shard: Shard, change: Change, waits: Any) -> bool:
    undone = original(shard, change, waits)
    return undone or (change.cause is Cause.EXTEND and not change.waits and change.item.change is None)


# --------------------------------------------------------------------------------------------- unique work

put("a_key_is_never_free", unique, "note", constant(None), "unique")
put("a_redrive_takes_no_key", dead_letters, "_holds", constant(False), "unique")
put("the_shard_of_a_key_is_never_told", HeldKeys, "note", constant(None), "unique")


@around(unique, "note", "unique")
def a_key_is_free_when_an_attempt_ends(original: Any, shard: Shard, change: Change, transaction: Batch) -> None:
    original(shard, change, transaction)
    if change.item.lane.until and change.cause is Cause.NACK:
        shard.queue.key_rows(transaction).ended.append(change.item.id)


@around(unique, "note", "unique")
def a_cancelled_item_leaves_its_key(original: Any, shard: Shard, change: Change, transaction: Batch) -> None:
    if change.digest is None:
        original(shard, change, transaction)


@around(item_ops, "replace", "unique")
def an_item_that_has_begun_is_replaced(original: Any, body: Any, topic: TopicKey) -> item_ops.Op:
    def decide(shard: Shard, item: Item, waits: Any, now_ms: int) -> item_ops.Verdict:
        if item.phase is not Phase.LEASED or item.busy:
            return original(body, topic)(shard, item, waits, now_ms)  # type: ignore[no-any-return]
        body.id, body.due_ms = item.id, 0
        change = Change(item, To.READY, Cause.REPLACE, waits, due_ms=body.deliver_after_ms)
        change.body = body
        shard.put(change, now_ms)
        return False

    return decide


@around(ShardMemory, "body_changed", "unique")
def a_new_body_is_not_read(original: Any, memory: ShardMemory, item: Item, body: Any) -> None:
    if body is None:
        original(memory, item, body)


@around(unique, "tell", "unique")
def a_key_that_another_item_has_is_taken(original: Any, state: State, number: int, rows: Any, told: Any) -> None:
    original(state, number, rows, lambda outcomes: told([row.id for row in rows] if outcomes else []))


@around(dedup, "_add_moved_slots", "unique")
def a_slot_arrives_beside_its_old_rows(original: Any, queue: Any, batch: Any, transaction: Batch) -> None:
    original(queue, batch, transaction)
    if transaction.keys is not None:
        transaction.keys.cleared = []


# --------------------------------------------------------------------------------------------- kept items

put("a_caller_that_waits_is_never_woken", Awaited, "committed", constant(None), "kept")
put("callers_of_a_shard_that_moved_wait_on", Awaited, "closed", constant(None), "kept")
put("an_item_is_kept_without_why_it_failed", kept_items, "pack_failure", constant(None), "kept")
put(
    "items_are_removed_until_one_is_left",
    kept_items,
    "excess",
    lambda shard, topic: shard.queue.kept.staying(topic) - 1,
    "kept",
)
put("kept_items_are_never_too_many", kept_items, "excess", constant(0), "kept")
put("a_new_owner_does_not_count_kept_items", KeptItems, "count_topics", constant(None), "kept")
put("kept_items_stay_after_their_time", kept_items, "EndedRead", dedup.ExpiredKeysRead, "kept")


@around(item_ops, "ack", "kept")
def acks_lose_their_results(original: Any, lease: int, result: bytes | None = None) -> Any:
    return original(lease)


@around(kept_items, "end_of", "kept")
def a_new_owner_says_nothing_of_results(original: Any, memory: ShardMemory, item: Any, found: Found | None) -> Any:
    """The result is lost where its end was not seen."""
    return original(memory, item, found and found._replace(stored=None))


@around(kept_items, "mark_end", "kept")
def an_item_is_kept_for_another_time(original: Any, shard: Shard, change: Change, now_ms: int) -> bool:
    kept: bool = original(shard, change, now_ms)
    if change.ended is not None:
        change.ended = change.ended._replace(until_ms=change.ended.until_ms - 1)
    return kept


@around(ShardMemory, "idle_lane", "kept")
def the_row_of_a_lane_with_kept_items_is_removed(original: Any, memory: ShardMemory, *about: Any) -> None:
    lanes, memory.queue.kept.lanes = memory.queue.kept.lanes, {}
    original(memory, *about)
    memory.queue.kept.lanes = lanes


@around(batch_apply, "_gone", "kept", seed=12)
def an_item_stays_kept_though_a_delete_was_answered(
    original: Any, memory: ShardMemory, change: Any, later: Any, *about: Any
) -> None:
    ended, change.ended = change.ended, None
    original(memory, change, later, *about)
    change.ended = ended


# --------------------------------------------------------------------------------------------- throttles

put("parked_flows_are_never_woken", ThrottleKey, "wake", lambda *about: [], "throttles")
put("a_flow_that_parks_on_another_key_keeps_its_wake", ThrottleKey, "holds_up", constant(()), "throttles", seed=4)
put("throttles_are_kept_over_a_version", Throttling, "changed", constant(None), "throttles")


@around(Throttling, "take", "throttles", seed=5)
def tokens_are_taken_before_all_keys_were_looked_at(
    original: Any, throttling: Throttling, flow: Parked, item: Item
) -> AnyGate | None:
    """Those of the first keys are lost when a later key is dry."""
    dry: AnyGate | None = original(throttling, flow, item)
    at_ms = throttling.monotonic_ms()
    if isinstance(dry, ThrottleKey):
        for key in flow.rules.keys[: flow.rules.keys.index(dry)]:
            key.settled(flow)
            key.spend(at_ms)
            throttling.agenda.schedule(key, at_ms)
    return dry


@around(Bucket, "__init__", "throttles", seed=59)
def a_new_coordinator_begins_with_a_full_bucket(original: Any, bucket: Bucket, quota: Quota, empty_at_ms: int) -> None:
    original(bucket, quota, empty_at_ms)
    bucket._level = quota.burst * NANO


# --------------------------------------------------------------------------------------------- slots of leases

put("leases_with_slots_are_written_later", LaneSlots, "commits", False, "slots")
put("flows_without_a_slot_are_never_woken", ShardSlots, "wake", lambda *about: [], "slots", seed=3)
put(
    "freed_slots_stay_where_others_wait", ShardSlots, "hear", constant(None), "slots", seed=7,
    also=[(LeaseSlots, "_warn", constant(False))],
)  # fmt: skip


@around(LeaseSlots, "__init__", "slots", seed=537)
def a_new_coordinator_lends_before_it_counted(original: Any, slots: LeaseSlots, *about: Any, **more: Any) -> None:
    original(slots, *about, **more)
    slots.unknown.clear()


@around(ShardSlots, "tie_all", "slots", seed=20)
def leases_over_a_new_limit_leave_their_slots(original: Any, gate: Any) -> None:
    original(gate)
    gate._tied = 0


# --------------------------------------------------------------------------------------------- schedules

_firing: list[Owner] = []


@around(
    Scheduler, "_fire", "schedules", seed=1,
    also=[(scheduler, "item_key", lambda name, at_ms: f"{name}/{at_ms}/{_firing[-1]}")],
)  # fmt: skip
def each_coordinator_has_its_own_keys(original: Any, coordinator: Scheduler, schedule: Schedule, at_ms: int) -> None:
    """A time that was fired behind the row is stored once more."""
    _firing[:] = [schedule.owner]
    original(coordinator, schedule, at_ms)


@around(Scheduler, "_was_read", "schedules")
def a_new_coordinator_begins_now(original: Any, coordinator: Scheduler, schedule: Schedule, _: Any, error: Any) -> None:
    original(coordinator, schedule, None, error)


@around(dedup.GiveRead, "apply", "schedules")
def a_slot_moves_without_its_schedules(original: Any, read: dedup.GiveRead, *about: Any) -> None:
    read.rows = [row for row in read.rows if row.expires_at_ms < FOREVER_MS]
    original(read, *about)


@around(Scheduler, "_fire", "schedules")
def a_time_is_decided_before_its_item_is_stored(
    original: Any, coordinator: Scheduler, schedule: Schedule, at_ms: int
) -> None:
    original(coordinator, schedule, at_ms)
    coordinator._decided(schedule, at_ms, schedule.last_id)


@around(Scheduler, "_overlaps", "schedules")
def times_overlap(original: Any, coordinator: Scheduler, schedule: Schedule, at_ms: int, _: Any) -> None:
    original(coordinator, schedule, at_ms, lives=False)


@around(Scheduler, "_was_read", "schedules", seed=1)
def a_new_coordinator_does_not_know_the_last_item(
    original: Any, coordinator: Scheduler, schedule: Schedule, row: Any, error: Any
) -> None:
    """The next time overlaps."""
    original(coordinator, schedule, row and row._replace(id=0), error)


@around(Scheduler, "_was_read", "schedules", seed=7)
def times_of_a_pause_are_an_outage(
    original: Any, coordinator: Scheduler, schedule: Schedule, row: Any, error: Any
) -> None:
    """A new coordinator catches up on them."""
    original(coordinator, schedule, row and row._replace(content=abs(row.content)), error)


@around(Scheduler, "_mark", "schedules")
def a_removed_schedule_leaves_its_row(original: Any, coordinator: Scheduler, schedule: Schedule, **_: Any) -> None:
    """One that gets its name later would catch up."""
    original(coordinator, schedule)
