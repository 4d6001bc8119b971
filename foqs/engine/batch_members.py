"""The members of batches on one shard: they join before they are stored, and their ends are counted and reported.

A batch must not end before its last member. So the home of a batch knows of each member before the member is stored:

1. New members wait (`Join`) while their shard reports to the home. The count `members` of a report has the members that
   are stored, and all that may be stored yet: they wait, or their transactions have not ended.
2. The home commits the report. Then the members go to the queue, and the shard stores them with their counts.
3. A transaction that ends a member counts it. The shard reports changed counts after BEAT_MS, again and again until the
   home has committed them.

Counts are read behind a transaction, and reported as soon as its result is applied. No other transaction is in flight
then, so a report lacks no member: one that is not in the row waits or is in flight. A report that has too many members
(some were refused, or the owner died) is corrected by the next one; the home asks for it. Reports carry the epoch of
the owner and a serial number; the home commits none that is older than the last. An owner that was replaced can store
nothing, so its promises are void: the first report of its successor has the rows alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.item_batches import Question, Report, Turn
from foqs.buffers.members import AGAIN_MS, BEAT_MS, JOIN_MS, Forgetting, Join, Members
from foqs.buffers.reads import Read, StoreReads
from foqs.buffers.shard_batch import Chunk, ShardBatch
from foqs.engine import item_ops
from foqs.engine.ack import operate
from foqs.engine.calls import ItemsCall
from foqs.engine.end_events import how_ended
from foqs.engine.enqueue import RETRY_MS
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.engine.state import State
from foqs.errors import FoqsError, Invalid, NotFound, NotServed, Unavailable
from foqs.item import Change, To
from foqs.item_batch import BatchPart, BatchState, Counts, HowEnded, MemberRows, ShardCounts
from foqs.rows import Batch
from foqs.shardmgr.lifecycle import ShardState

_READ_ROWS = 1_000
_AWAY = "the home of the batch cannot be reached now"


def _nothing(_: object) -> None:
    """No caller waits for the outcome."""


def rows(transaction: Batch) -> MemberRows:
    """Return what the transaction changes about batches."""
    if transaction.members is None:
        transaction.members = MemberRows()
    return transaction.members


# ------------------------------------------------------------------------------------------ members end


def note(change: Change, transaction: Batch) -> None:
    """Count a member that ends, becomes a dead letter, or is redriven, if the item of the change is one."""
    item, how = change.item, how_ended(change)
    if how is None:
        if change.to is To.MOVED:
            rows(transaction).redriven.append(item.id)
    elif not (item.lane.members or (item.lane.dead and change.to is To.GONE)):
        return
    elif how == HowEnded.FAILED:
        rows(transaction).failed.append(item.id)
    else:
        rows(transaction).ended.setdefault(how, []).append(item.id)


def applied(shard: Shard, transaction: Batch, now_ms: int, *, committed: bool) -> None:
    """Follow a transaction that changed rows of batches. `committed`: what belongs to no item of it."""
    members, changes = shard.queue.members, transaction.members
    assert changes is not None, "the caller has looked"
    if changes.new or changes.ended or changes.failed or changes.redriven:
        members.note(now_ms + BEAT_MS)
    if not committed:
        members.sent += changes.sent
    leaving, members.leaving = members.leaving, []
    for one in leaving:
        if not committed:
            members.forgotten.append(one)
        elif one.last:
            del members.forgetting[one.batch]
            for done in one.done:
                done()
        else:
            members.reads.append(ForgetRead(one))


def fill(shard: Shard, transaction: Batch) -> bool:
    """Add the rows that wait to the transaction. Return True if there are any."""
    members = shard.queue.members
    if not members.writes:
        return False
    changes = rows(transaction)
    changes.sent, members.sent = members.sent, []
    members.leaving, members.forgotten = members.forgotten, []
    stored = {batch for _, batch in changes.new}
    for one in members.leaving:
        changes.left += one.ids
        one.last = one.last and one.batch not in stored  # a late member of an expired batch is removed, too
        changes.forgotten.append(one.batch)  # at first: members without rows must not seem to be damage
    return True


# ------------------------------------------------------------------------------------------ reports


def add_reads(shard: Shard, batch: ShardBatch, now_ms: int) -> None:
    """Add the reads of counts and members that are due."""
    members = shard.queue.members
    reads, members.reads = members.reads, []
    if members.again_ms <= now_ms:
        members.again_ms = NEVER_MS
        waiting = {one for join in members.joins for one in join.waits} - members.reporting
        members.wanted.update(dict.fromkeys(sorted(waiting)))
    if members.wanted:
        first = list(members.wanted)[:_READ_ROWS]
        for one in first:
            del members.wanted[one]
        reads.append(CountsRead(first))
    if members.due_ms <= now_ms:
        members.due_ms = NEVER_MS
        reads.append(UnsentRead(members.after))
    batch.reads = [*batch.reads, *reads]


def _may_follow(queue: ShardQueue) -> Counter[int]:
    """Return by batch how many members may be stored that are not: the home knows of them, and their transactions have
    not ended. Some wait for the homes of other batches."""
    flights = [one for one in (queue.in_flight, queue.unsettled) if one is not None]
    chunks = [*queue.chunks, *queue.returned, *(chunk for one in flights for chunk in one.chunks)]
    found: Counter[int] = Counter()
    for chunk in chunks:
        if chunk.members and chunk.joined is queue.members:
            found.update(chunk.batches())
    for join in queue.members.joins:
        if isinstance(join.what, Chunk):
            found.update({batch: count for batch, count in join.what.batches().items() if batch not in join.waits})
    creations = [*queue.homes.creations, *(made for one in flights for made in one.creations)]
    for made in creations:
        found.update(made.counts)
    return found


def _report(shard: Shard, found: Iterable[ShardCounts]) -> None:
    """Report these counts, which were read behind the last transaction, with all members that may follow."""
    queue, members = shard.queue, shard.queue.members
    follow, waiting = _may_follow(queue), defaultdict[int, list[Join]](list)
    for join in members.joins:
        for wanted in join.waits:
            waiting[wanted].append(join)
    reports, covered = list[Report](), list[tuple[ShardCounts, list[Join]]]()
    for one in found:
        batch, all_joins = one.batch, waiting.get(one.batch, [])
        ns = all_joins[0].ns if all_joins else None
        joining = [join for join in all_joins if join.ns == ns]  # another namespace may have no right to the batch
        more = follow[batch] + sum([join.counts[batch] for join in joining])
        members.serial += 1
        counts = one.counts._replace(members=one.counts.members + more)
        part = BatchPart(batch, shard.number, shard.owner.epoch, members.serial, counts, one.failed_ids)
        reports.append(Report(part, ns))
        covered.append((one, joining))
        members.reporting.add(batch)
    for at in range(0, len(reports), _READ_ROWS):
        part_of = covered[at : at + _READ_ROWS]
        queue.links.tell_homes(reports[at : at + _READ_ROWS], partial(_told, shard, members, part_of))


def _told(
    shard: Shard, members: Members, covered: Sequence[tuple[ShardCounts, list[Join]]], outcomes: list[FoqsError | None]
) -> None:
    if shard.queue.members is not members:
        return  # the shard was opened again
    for (counts, joining), error in zip(covered, outcomes, strict=True):
        batch = counts.batch
        members.reporting.discard(batch)
        if error is None:
            if counts.changes:
                members.sent.append((batch, counts.changes))
            for join in joining:
                join.waits.discard(batch)
        elif isinstance(error, (Invalid, NotFound)):
            for join in joining:
                shard.queue.refuse_members(join, batch, Invalid(error.message))
            if isinstance(error, NotFound):
                forget(shard, batch)
            else:
                members.wanted[batch] = None  # the report had members that will not be stored
        else:
            _not_told(shard, batch, joining, error)
            continue
        if joining and any(batch in join.waits and join.ns != joining[0].ns for join in members.joins):
            members.wanted[batch] = None  # the report was not theirs
    shard.queue.go_on()


def _not_told(shard: Shard, batch: int, joining: Sequence[Join], error: FoqsError) -> None:
    """The home did not answer: report again."""
    members, now_ms = shard.queue.members, shard.queue.now_ms()
    members.note(now_ms + AGAIN_MS)
    members.again_ms = min(members.again_ms, now_ms + AGAIN_MS)  # members of another namespace may wait, too
    for join in joining:
        if join.until_ms <= now_ms:
            shard.queue.refuse_members(join, batch, Unavailable(f"{_AWAY}: {error.message}", RETRY_MS))


# ------------------------------------------------------------------------------------------ what homes ask


def ask(
    state: State, number: int, questions: Sequence[Question], forgotten: Callable[[list[int]], None]
) -> None:  # fmt: skip
    """Report the members of batches to their homes, and remove or forget them. Raises NotServed."""
    shard = state.shards.get(number)
    if shard is None or shard.owner.state is not ShardState.SERVING:
        raise NotServed
    shard.queue.use_batches()
    members = shard.queue.members
    asked = dict.fromkeys(question.batch for question in questions if question.forget)
    left = [batch for batch in asked if batch not in members.forgetting]  # of any other batch the home asks again
    gone = list[int]()

    def done(batch: int) -> None:
        gone.append(batch)
        if len(gone) == len(left):
            forgotten(gone)

    for batch in left:
        forget(shard, batch, partial(done, batch))
    for question in questions:
        if question.forget:
            continue
        members.wanted[question.batch] = None
        if question.cancel and question.batch not in members.sweeps:
            members.sweeps[question.batch] = None
            members.reads.append(SweepRead(question.batch, state))
    if not left:
        forgotten([])
    state.touch(shard)


def forget(shard: Shard, batch: int, done: Callable[[], None] | None = None) -> None:
    """Remove all rows of a batch, and call `done`."""
    members = shard.queue.members
    if batch not in members.forgetting:
        members.forgetting[batch] = Forgetting(batch)
        members.reads.append(ForgetRead(members.forgetting[batch]))
    if done is not None:
        members.forgetting[batch].done.append(done)
    shard.queue.touch()


# ------------------------------------------------------------------------------------------ reads


@dataclass(slots=True, eq=False)
class CountsRead(Read):
    """The counts of batches that are asked for; a batch without a row has none."""

    batches: list[int]
    found: list[ShardCounts] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.member_counts(self.batches)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        counts = {one.batch: one for one in self.found}
        _report(shard, [counts.get(batch) or ShardCounts(batch, Counts(), 0) for batch in self.batches])

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.members.wanted.update(dict.fromkeys(self.batches))


@dataclass(slots=True, eq=False)
class UnsentRead(Read):
    """Counts that have changed since their homes heard of them."""

    after: int
    found: list[ShardCounts] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.unsent_counts(self.after, _READ_ROWS)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        members = shard.queue.members
        if len(self.found) == _READ_ROWS:
            members.after = self.found[-1].batch
            members.note(now_ms)
        else:
            members.after = 0
        busy = [one for one in self.found if one.batch in members.reporting or one.batch in members.forgetting]
        if busy:
            members.note(now_ms + AGAIN_MS)
        skipped = {one.batch for one in busy}
        _report(shard, [one for one in self.found if one.batch not in skipped])

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.members.note(now_ms + AGAIN_MS)


@dataclass(slots=True, eq=False)
class ForgetRead(Read):
    """The next members of a batch whose rows are removed."""

    one: Forgetting
    found: list[tuple[bool, int]] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.members_of(self.one.batch, (False, 0), _READ_ROWS)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        self.one.ids = [item_id for _, item_id in self.found]
        self.one.last = len(self.found) < _READ_ROWS
        shard.queue.members.forgotten.append(self.one)
        shard.queue.touch()

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.members.reads.append(self)


class SweepRead(Read):
    """The next members of a cancelled batch; it removes each one that no consumer has."""

    __slots__ = ("_after", "_batch", "_found", "_state")

    def __init__(self, batch: int, state: State, after: int = 0) -> None:
        self._batch = batch
        self._state = state
        self._after = after
        self._found: list[int] = []

    def run(self, store: StoreReads) -> int:
        found = store.members_of(self._batch, (False, self._after), _READ_ROWS)
        self._found = [item_id for failed, item_id in found if not failed]
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        state, found = self._state, self._found
        homes = shard.queue.homes
        ids = [one for one in found if one not in homes.live]
        for one in found:
            if one in homes.live:
                homes.turns.append(Turn(None, one, BatchState.CANCELLED, _nothing))
        state.touch(shard)
        if not found:
            shard.queue.members.sweeps.pop(self._batch, None)
            return
        after = found[-1]

        def removed(_: list[FoqsError | None]) -> None:
            if not full:
                members.sweeps.pop(self._batch, None)
            elif shard.queue.members is members:
                members.reads.append(SweepRead(self._batch, state, after))
                state.touch(shard)

        members, full = shard.queue.members, len(found) == _READ_ROWS
        if not ids:
            removed([])
            return
        call, remove = ItemsCall(len(ids), removed), item_ops.cancel(None, leased=False)
        state.deadlines.push(now_ms + JOIN_MS, call)
        state.alarm(now_ms + JOIN_MS)
        for at, item_id in enumerate(ids):
            operate(state, call, at, item_id, remove, None, now_ms)

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.members.reads.append(self)
