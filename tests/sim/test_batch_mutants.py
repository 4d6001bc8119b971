"""Rules of batches of items that are taken out, as in `test_mutants`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from foqs.buffers.item_batches import Home, Homes, Reported
from foqs.buffers.pending_dedup import KeyedRequest
from foqs.buffers.shard_batch import Chunk
from foqs.engine import (
    batch_build,
    batch_callbacks,
    batch_homes,
    batch_members,
    enqueue,
    home_reads,
    item_ops,
)
from foqs.engine.batch_callbacks import _Ending
from foqs.engine.batch_members import ForgetRead, SweepRead
from foqs.engine.home_reads import EndedRead, LoadRead, RowsRead
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.errors import NotFound
from foqs.item import Cause, Change, To
from foqs.item_batch import BatchEnd, BatchPart, BatchState, Counts
from foqs.rows import Batch
from tests.kernel.mutants import Mutants
from tests.sim.simulation import simulate

MANY = 300
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- ends are counted


def _forgets(name: str, causes: set[Cause], *, moves: bool = False, failed: bool = False, seed: int = 0) -> None:
    """Add a mutant that does not count members that end by one of `causes`."""

    def body(original: Any, change: Change, transaction: Batch) -> None:
        if change.to is To.GONE and change.cause in causes:
            return
        if (
            change.to is To.MOVED
            and change.move is not None
            and ((moves and change.move.failure is not None) or (failed and change.move.failure is None))
        ):
            return
        original(change, transaction)

    around(batch_members, "note", "batches", seed, name=name)(body)


_forgets("an_acked_member_does_not_count", {Cause.ACK})
_forgets("a_dead_letter_does_not_count", set(), moves=True, seed=1)
_forgets("a_member_that_failed_for_good_does_not_count", {Cause.REJECTED, Cause.EXHAUSTED, Cause.LIMIT}, seed=9)
_forgets("an_expired_member_does_not_count", {Cause.TTL}, seed=3)
_forgets("a_deleted_member_does_not_count", {Cause.DELETE}, seed=1)
_forgets("a_dropped_member_does_not_count", {Cause.DROPPED}, seed=13)
_forgets("a_swept_member_does_not_count", {Cause.CANCEL}, seed=1)
_forgets("a_redriven_member_is_not_taken_back", set(), failed=True, seed=9)


@around(batch_build, "_take_extras", "batches")
def a_new_member_counts_twice(
    original: Any, shard: Shard, chunk: Any, batch: Any, transaction: Batch, now_ms: int
) -> None:
    original(shard, chunk, batch, transaction, now_ms)
    if chunk.members:
        batch_members.rows(transaction).new += [(-item.id, item.batch) for item in chunk.items if item.batch]


@around(batch_members, "note", "batches", seed=1)
def a_deleted_dead_letter_counts_again(original: Any, change: Change, transaction: Batch) -> None:
    if change.to is To.GONE and change.item.lane.dead:
        batch_members.rows(transaction).redriven.append(change.item.id)
    original(change, transaction)


@around(batch_members, "note", "batches", seed=3)
def an_expired_member_counts_as_acked(original: Any, change: Change, transaction: Batch) -> None:
    cause = change.cause
    if change.to is To.GONE and cause is Cause.TTL:
        change.cause = Cause.ACK
    original(change, transaction)
    change.cause = cause


@around(batch_homes, "end", "batches")
def a_batch_does_not_count_in_its_parent(
    original: Any, homes: Homes, ending: BatchEnd, items: Any, transaction: Batch, now_ms: int
) -> None:
    home = homes.live.get(ending.batch)
    row = None if home is None else home.row
    if home is not None:
        home.row = home.row._replace(parent=0)
    original(homes, ending, items, transaction, now_ms)
    if home is not None and row is not None:
        home.row = row


# --------------------------------------------------------------------------------------------- members join


@around(batch_members, "_report", "batches", seed=4)
def a_report_lacks_the_members_that_wait(original: Any, shard: Shard, found: Any) -> None:
    for join in shard.queue.members.joins:
        join.counts = Counter()
    original(shard, found)


put("a_report_lacks_the_members_in_flight", batch_members, "_may_follow", lambda queue: Counter(), "batches", seed=10)


@around(batch_members, "_may_follow", "batches", seed=10)
def a_report_lacks_members_that_wait_for_another_batch(original: Any, queue: ShardQueue) -> Counter[int]:
    joins, queue.members.joins = queue.members.joins, []
    found: Counter[int] = original(queue)
    queue.members.joins = joins
    return found


@around(batch_members, "_report", "batches")
def members_are_stored_before_the_home_knows_of_them(original: Any, shard: Shard, found: Any) -> None:
    original(shard, found)
    for join in shard.queue.members.joins:
        join.waits.clear()
    shard.queue.go_on()


@around(ShardQueue, "refuse_members", "batches")
def a_second_answer_refuses_again(original: Any, queue: ShardQueue, join: Any, batch: int, error: Any) -> None:
    if isinstance(join.what, Chunk):
        join.waits.add(batch)
    original(queue, join, batch, error)


@around(enqueue, "chunk_of", "batches")
def items_with_keys_do_not_join(original: Any, *rest: Any) -> Any:
    chunk = original(*rest)
    chunk.members = False
    return chunk


@around(KeyedRequest, "refused", "batches", seed=3)
def a_refused_item_ends_the_request_of_others(original: Any, request: KeyedRequest, *rest: Any) -> None:
    original(request, *rest)
    request.done = not request.sent


@around(batch_members, "_told", "batches", seed=10)
def members_of_no_batch_wait(original: Any, shard: Shard, members: Any, covered: Any, outcomes: Any) -> None:
    known = zip(covered, outcomes, strict=True)
    original(shard, members, [(one, [] if isinstance(e, NotFound) else join) for (one, join), e in known], outcomes)


@around(batch_members, "_told", "batches", seed=34)
def members_of_another_namespace_wait(original: Any, shard: Shard, members: Any, covered: Any, outcomes: Any) -> None:
    before = set(members.wanted)
    original(shard, members, covered, outcomes)
    for (one, _), error in zip(covered, outcomes, strict=True):
        if error is None and one.batch not in before:
            members.wanted.pop(one.batch, None)


# --------------------------------------------------------------------------------------------- reports

put("an_older_report_counts", BatchPart, "is_newer", lambda part, than: True, "batches", seed=11)
put(
    "a_report_of_an_older_owner_counts", BatchPart, "is_newer",
    lambda part, than: than is None or part.serial > than.serial, "batches", seed=46,
)  # fmt: skip


@around(batch_homes, "_take_reports", "batches")
def a_report_is_answered_before_it_is_stored(original: Any, homes: Homes, batch: Any, transaction: Batch) -> None:
    for one in homes.reports:
        home = homes.live.get(one.report.part.batch)
        if home is not None and (one.report.ns is None or one.report.ns.encode() == home.row.ns):
            answer, one.answer = one.answer, lambda outcome: None
            answer(None)
    original(homes, batch, transaction)


@around(batch_homes, "_take_reports", "batches")
def an_ending_batch_takes_reports(original: Any, homes: Homes, batch: Any, transaction: Batch) -> None:
    ending = [home for home in homes.live.values() if home.ending]
    for home in ending:
        home.ending = False
    original(homes, batch, transaction)
    for home in ending:
        home.ending = True


@around(batch_homes, "_take_reports", "batches", seed=7)
def any_namespace_is_accepted(original: Any, homes: Homes, batch: Any, transaction: Batch) -> None:
    for one in homes.reports:
        home = homes.live.get(one.report.part.batch)
        if home is not None and one.report.ns is not None:
            one.report = one.report._replace(ns=home.row.ns.decode())
    original(homes, batch, transaction)


@around(RowsRead, "apply", "batches")
def an_ended_batch_takes_members(original: Any, read: RowsRead, shard: Shard, saved: bool, now_ms: int) -> None:
    for one in read.asked:
        if isinstance(one, Reported):
            one.report = one.report._replace(ns=None)
    original(read, shard, saved, now_ms)


@around(batch_homes, "applied", "batches", seed=12)
def a_cancelled_batch_refuses_no_members(original: Any, shard: Shard, batch: Any, now_ms: int, *, saved: bool) -> None:
    for one in batch.reported:
        one.report = one.report._replace(ns=None)
    original(shard, batch, now_ms, saved=saved)


# --------------------------------------------------------------------------------------------- ends of batches


@around(Home, "lacking", "batches")
def a_batch_ends_while_members_live(original: Any, home: Home) -> set[int]:
    return set(list(original(home))[1:])


@around(Homes, "at", "batches")
def the_home_never_asks(original: Any, homes: Homes, at_ms: int, batch: int) -> None:
    home = homes.live.get(batch)
    if home is not None and at_ms == home.ask_ms:
        return
    original(homes, at_ms, batch)


@around(batch_homes, "turn", "batches")
def batches_do_not_expire(original: Any, shard: Shard, now_ms: int) -> None:
    for home in shard.queue.homes.live.values():
        home.row = home.row._replace(expires_at_ms=1 << 60)
    original(shard, now_ms)


@around(batch_homes, "_begin_end", "batches")
def on_success_is_called_for_any_end(original: Any, shard: Shard, home: Home, state: BatchState) -> None:
    original(shard, home, BatchState.SUCCEEDED if state == BatchState.ENDED else state)


@around(batch_callbacks, "end_headers", "batches", seed=3)
def the_headers_lack_a_count(original: Any, batch: int, state: Any, counts: Counts, failed: Any) -> Any:
    return original(batch, state, counts._replace(completed=0), failed)


@around(batch_homes, "end", "batches")
def the_end_is_not_written(
    original: Any, homes: Homes, ending: BatchEnd, items: Any, transaction: Batch, now_ms: int
) -> None:
    original(homes, ending, items, transaction, now_ms)
    if ending.on_success or ending.on_end:
        batch_members.rows(transaction).ends.pop()


@around(_Ending, "refused", "batches")
def a_failed_end_is_lost(original: Any, *rest: Any) -> None:
    """The batch stays."""


@around(batch_homes, "end", "batches", seed=11)
def the_callbacks_are_stored_apart(original: Any, homes: Homes, ending: BatchEnd, *rest: Any) -> None:
    original(homes, ending, *rest)
    transaction: Batch = rest[1]
    transaction.together = []


@around(LoadRead, "apply", "batches", seed=8)
def a_new_owner_loses_reports(original: Any, read: LoadRead, *rest: Any) -> None:
    read.parts = []
    original(read, *rest)


@around(LoadRead, "apply", "batches", seed=1)
def a_new_owner_loses_a_batch(original: Any, read: LoadRead, *rest: Any) -> None:
    lost = {row.id for row in read.rows[:1]}
    read.rows = [row for row in read.rows if row.id not in lost]
    read.parts = [part for part in read.parts if part.batch not in lost]
    original(read, *rest)


# --------------------------------------------------------------------------------------------- cancels


@around(item_ops, "cancel", "batches", seed=5)
def a_cancel_removes_leased_members(original: Any, digest: bytes | None, *, leased: bool) -> Any:
    return original(digest, leased=True)


@around(SweepRead, "apply", "batches", seed=36)
def a_cancelled_batch_keeps_its_members(original: Any, read: SweepRead, *rest: Any) -> None:
    read._found = []
    original(read, *rest)


@around(batch_homes, "_take_turns", "batches", seed=3)
def a_close_ends_a_cancel(original: Any, homes: Homes, batch: Any, transaction: Batch) -> None:
    original(homes, batch, transaction)
    taken = {turn.batch: turn for turn in batch.turns}
    for turn in [turn for turn in homes.turns if turn.batch in taken]:
        homes.turns.remove(turn)
        batch_members.rows(transaction).states.append((turn.batch, turn.state))
        batch.turns = [*batch.turns, turn]


# --------------------------------------------------------------------------------------------- removal


@around(EndedRead, "apply", "batches")
def a_batch_is_removed_before_its_shards_forget_it(original: Any, read: EndedRead, *rest: Any) -> None:
    read.parts = []
    original(read, *rest)


@around(ForgetRead, "apply", "batches", seed=12)
def a_shard_forgets_the_counts_before_the_members(original: Any, read: ForgetRead, *rest: Any) -> None:
    original(read, *rest)
    read.one.last = True


@around(EndedRead, "apply", "batches")
def ended_batches_stay(original: Any, read: EndedRead, *rest: Any) -> None:
    read.found = []
    original(read, *rest)


@around(home_reads, "_forgotten", "batches", seed=5)
def the_first_shard_that_forgets_is_enough(
    original: Callable[..., None], shard: Shard, homes: Homes, number: int, batches: list[int]
) -> None:
    for batch in batches:
        if batch in homes.removals:
            homes.removals[batch] = {number} & homes.removals[batch]
    original(shard, homes, number, batches)
