"""Mutants of retries and dead letters: see test_mutants.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from foqs.buffers.reads import DeadRead
from foqs.engine import batch_apply, batch_build, batch_reads, consumers, dead_letters, item_ops, shard_life
from foqs.engine.dead_letters import RedrivePage
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.item import Cause, Change, Item, Phase
from foqs.policies.layers import Policies
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, DueRow, FailureCause, Found
from tests.sim.mutants import Patch, mutant


@mutant
def a_dead_letter_is_written_in_two_transactions(patch: Patch) -> None:
    """The row of its failure comes with the next one."""
    late: list[Any] = []

    def build(shard: Shard, *rest: Any) -> Batch | None:
        transaction = original(shard, *rest)
        if transaction is not None:
            new, transaction.failure_new = transaction.failure_new, late.copy()
            late[:] = new
        return transaction

    original: Any = batch_build._build_transaction
    patch.setattr(batch_build, "_build_transaction", build)


@mutant
def a_lease_that_ends_by_time_is_no_attempt(patch: Patch) -> None:
    def at_end(shard: Shard, item: Item, ended: item_ops.Ended, *rest: Any, **more: Any) -> Change:
        change = original(shard, item, ended, *rest, **more)
        if ended.cause is FailureCause.EXPIRED and change.move is None:
            change.attempt -= 1
        return change

    original = item_ops.change_at_end
    patch.setattr(item_ops, "change_at_end", at_end)


@mutant
def an_item_that_failed_keeps_its_place(patch: Patch) -> None:
    """It is delivered before all items of its priority, again and again."""
    patch.setattr(item_ops, "_behind_ms", lambda item, attempt, now_ms: 0)


@mutant
def the_time_of_an_item_counts_from_its_last_delay(patch: Patch) -> None:
    """It never becomes too old."""
    patch.setattr(DueRow, "since_ms", property(lambda row: row.deliver_after_ms))
    patch.setattr(Found, "since_ms", property(lambda found: found.body.deliver_after_ms))


@mutant
def a_lease_of_begun_work_is_no_attempt(patch: Patch) -> None:
    """Each consumer counts as one that has not begun."""
    patch.setattr(Item, "attempts_begun", property(lambda item: item.attempt - 1))


@mutant
def a_part_of_a_transaction_forgets_failures(patch: Patch) -> None:
    def part(batch: Batch, ids: set[int], *, lanes: bool) -> Batch:
        made = only(batch, ids, lanes=lanes)
        made.failure_new = []
        return made

    only = Batch.only
    patch.setattr(Batch, "only", part)


@mutant
def a_part_of_a_transaction_keeps_failures_of_items_that_are_gone(patch: Patch) -> None:
    def part(batch: Batch, ids: set[int], *, lanes: bool) -> Batch:
        made = only(batch, ids, lanes=lanes)
        made.failure_gone = []
        return made

    only = Batch.only
    patch.setattr(Batch, "only", part)


@mutant
def a_topic_keeps_its_bounds_when_policies_change(patch: Patch) -> None:
    def apply(policies: Policies, settings: Any) -> None:
        original(policies, settings)
        policies.changes = 1

    original = Policies.apply
    patch.setattr(Policies, "apply", apply)


@mutant
def the_lane_of_dead_letters_has_no_row(patch: Patch) -> None:
    def stored_lane(shard: Shard, lane: Lane, batch: Any, transaction: Batch) -> Lane:
        found: Lane = original(shard, lane, batch, transaction)
        if lane.topic.key[1].endswith(".dlq"):
            transaction.lanes_new = [row for row in transaction.lanes_new if row.lane != lane.number]
        return found

    original: Any = batch_build._stored_lane
    patch.setattr(batch_build, "_stored_lane", stored_lane)


@mutant
def a_new_owner_does_not_know_its_dead_letters(patch: Patch) -> None:
    """It removes items, and leaves their failures behind."""

    def fill(shard: Shard, opened: Any) -> Iterator[None]:
        opened.dead.clear()
        return original(shard, opened)

    original: Any = shard_life.fill
    patch.setattr(shard_life, "fill", fill)


@mutant
def an_owner_does_not_note_its_first_dead_letter(patch: Patch) -> None:
    def moved(memory: ShardMemory, change: Change, now_ms: int) -> None:
        assert change.target is not None
        before = change.target.dead
        original(memory, change, now_ms)
        change.target.dead = before

    original: Any = batch_apply._moved
    patch.setattr(batch_apply, "_moved", moved)


@mutant
def a_dead_letter_counts_in_its_old_lane(patch: Patch) -> None:
    def moved(memory: ShardMemory, change: Change, now_ms: int) -> None:
        item, target = change.item, change.target
        assert target is not None
        item.lane, target.dead = target, True
        memory.drop_body(item)

    patch.setattr(batch_apply, "_moved", moved)


@mutant
def a_dead_letter_forgets_the_lease_that_ended_by_time(patch: Patch) -> None:
    """A late ack is refused, though no other consumer got the item."""

    def at_end(*args: Any, **more: Any) -> Change:
        change = original(*args, **more)
        if change.move is not None:
            change.lease = 0
        return change

    original = item_ops.change_at_end
    patch.setattr(item_ops, "change_at_end", at_end)


@mutant
def exact_attempts_go_out_before_they_are_committed(patch: Patch) -> None:
    """An owner that crashes forgets them."""

    def send(state: Any, call: Any, now_ms: int) -> None:
        call.commits = any(item.at_most_once for _, item, _ in call.found)
        original(state, call, now_ms)

    original: Any = consumers.send
    patch.setattr(consumers, "send", send)


@mutant
def items_without_attempts_are_delivered(patch: Patch) -> None:
    patch.setattr(item_ops, "change_at_limit", lambda shard, item, now_ms: None)


@mutant
def the_last_attempt_of_an_unwritten_lease_is_repeated(patch: Patch) -> None:
    """It returns, and nothing looks at it before it is delivered."""
    patch.setattr(batch_build, "_ends_in_scan", lambda shard, item: False)
    patch.setattr(item_ops, "change_at_limit", lambda shard, item, now_ms: None)


@mutant
def an_item_at_most_once_becomes_a_dead_letter(patch: Patch) -> None:
    def when_due(shard: Shard, item: Item, *rest: Any) -> Change:
        at_most_once, item.at_most_once = item.at_most_once, False
        change: Change = original(shard, item, *rest)
        item.at_most_once = at_most_once
        return change

    original: Any = batch_reads.when_due
    patch.setattr(batch_reads, "when_due", when_due)


@mutant
def a_late_nack_moves_a_dead_letter_again(patch: Patch) -> None:
    """It came while the transaction that moves the item was in flight."""

    def ends_anyway(item: Item, waits: Any, cause: Cause) -> Any:
        now = item.change or item.in_flight
        moving = now is not None and now.move is not None and cause is not Cause.ACK
        return None if moving else original(item, waits, cause)

    original: Any = item_ops._ends_anyway
    patch.setattr(item_ops, "_ends_anyway", ends_anyway)


@mutant
def a_redrive_goes_beyond_its_count(patch: Patch) -> None:
    def choose(page: RedrivePage, *rest: Any) -> Any:
        page._ask = replace(page._ask, most=page._ask.most + 1)
        chosen = original(page, *rest)
        page._ask = replace(page._ask, most=page._ask.most - 1)
        return chosen

    original = RedrivePage._choose
    patch.setattr(RedrivePage, "_choose", choose)
    patch.setattr(dead_letters, "DeadRead", lambda *about: DeadRead(*about[:3], about[3] + 1, *about[4:]))


@mutant
def a_redrive_leaves_the_failure(patch: Patch) -> None:
    def emit(change: Change, transaction: Batch) -> None:
        original(change, transaction)
        if change.cause is Cause.REDRIVE:
            transaction.failure_gone.remove(change.item.id)

    original: Any = batch_build.emit
    patch.setattr(batch_build, "emit", emit)


@mutant
def a_redrive_takes_items_that_another_one_takes(patch: Patch) -> None:
    patch.setattr(dead_letters, "_stays", lambda shard, item, now_ms: True)


@mutant
def a_redriven_item_keeps_its_attempts(patch: Patch) -> None:
    def change(item: Item, *about: Any, attempt: int | None = None, **more: Any) -> Change:
        return Change(item, *about, attempt=item.attempt + 1, **more)

    patch.setattr(dead_letters, "Change", change)


@mutant
def a_redrive_takes_leased_items(patch: Patch) -> None:
    """It ends the lease of a consumer that works on the item."""

    class Phases:
        IDLE = Phase.IDLE
        LEASED = object()

    patch.setattr(dead_letters, "Phase", Phases)
    patch.setattr(dead_letters, "_item_of", lambda row, lane: None)
    original = RedrivePage._choose

    def choose(page: RedrivePage, shard: Shard, found: Any) -> Any:
        known = [row for row in found.rows if row.failure.id in shard.memory.known]
        return original(page, shard, found._replace(rows=known))

    patch.setattr(RedrivePage, "_choose", choose)
