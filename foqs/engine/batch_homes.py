"""Batches of items at their homes: they are created, hear of their members, end, and are removed.

A batch may end when it is closed or cancelled, and by the last reports of all shards each member has ended. Its state,
its callbacks and its count in a batch that it is a member of are one transaction. From the decision to its commit no
report on the batch is taken, so no member is added in between.

A report says more members than there are if a shard has refused some, or if its owner died. So the home of a batch that
waits for ends asks the shards that lack some, with growing pauses. After a restore of an older copy it hears all shards
before it ends a batch: a shard may have got members since the copy.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.item_batches import (
    ASK_MS,
    LONGEST_ASK_MS,
    LOOK_MS,
    Creation,
    FindBatch,
    Home,
    Homes,
    Question,
    Report,
    Reported,
    Told,
    Turn,
    failed_ids,
)
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.engine import batch_members, enqueue
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.engine.state import State
from foqs.errors import FoqsError, Invalid, NotFound, NotServed, OutcomeUnknown, Overloaded
from foqs.ids import shard_of
from foqs.item_batch import (
    NO_BATCH,
    BatchEnd,
    BatchInfo,
    BatchPart,
    BatchRow,
    BatchState,
    Ends,
    HowEnded,
    NewBatch,
)
from foqs.rows import Batch, NewItem
from foqs.shardmgr.lifecycle import ShardState

T = TypeVar("T")
ENDED = "the batch has ended"
_CANCELLED = "the batch was cancelled"
_QUESTIONS = 1_000
RETRY_MS = 1_000
_HOW = {
    BatchState.SUCCEEDED: HowEnded.COMPLETED,
    BatchState.ENDED: HowEnded.FAILED,
    BatchState.EXPIRED: HowEnded.EXPIRED,
    BatchState.CANCELLED: HowEnded.CANCELLED,
}


# ------------------------------------------------------------------------------------------ requests


class Once(Generic[T]):
    """Replies once: the outcome of a request, or at its deadline that it is not known."""

    def __init__(self, reply: Callable[[T | FoqsError], None]) -> None:
        self.done = False
        self._reply = reply

    def __call__(self, outcome: T | FoqsError) -> None:
        if not self.done:
            self.done = True
            reply, self._reply = self._reply, _answered  # deadlines keep this for a while
            reply(outcome)

    def timed_out(self, shards: object) -> None:
        self(OutcomeUnknown("the shard of the batch did not answer in time; the change may have been made"))


def _answered(_: object) -> None:
    """The caller has its answer."""


def create(state: State, new: NewBatch, reply: Callable[[int | FoqsError], None], now_ms: int) -> None:
    """Create a batch on one of the shards that can take items now."""
    shards = [shard for shard in state.serving if enqueue.takes(shard, now_ms)]
    if not shards:
        reply(enqueue.nowhere(state, now_ms))
        return
    shard = shards[int(state.rng.random() * len(shards))]
    shard.queue.use_batches()
    homes = shard.queue.homes
    if len(homes.live) + homes.created >= shard.config.batches:
        why = f"the shard has {shard.config.batches:,} batches that have not ended, the most that host.batches allows"
        reply(Overloaded(why, enqueue.RETRY_MS))
        return
    homes.created += 1
    made = Creation(new, now_ms, reply)
    if new.parent:
        shard.queue.members.join(made, made.counts, new.ns, now_ms)
    else:
        homes.creations.append(made)
    state.touch(shard)


def change(
    state: State, ns: str, batch: int, to: BatchState, reply: Callable[[FoqsError | None], None]
) -> None:  # fmt: skip
    """Close or cancel a batch."""
    shard = _served(state, batch)
    if isinstance(shard, FoqsError):
        reply(shard)
    else:
        shard.queue.use_batches()
        shard.queue.homes.turns.append(Turn(ns, batch, to, reply))
        state.touch(shard)


def find(state: State, ns: str, batch: int, reply: Callable[[BatchInfo | FoqsError], None]) -> None:
    """Reply a batch, and its counts as far as they are reported."""
    shard = _served(state, batch)
    if isinstance(shard, FoqsError):
        reply(shard)
        return
    home = shard.queue.homes.live.get(batch)
    if home is None:
        shard.queue.use_batches()
        shard.queue.homes.unknown.append(FindBatch(ns, batch, reply))
        state.touch(shard)
    elif home.row.ns != ns.encode():
        reply(NotFound(NO_BATCH))
    else:
        reply(BatchInfo(home.row, home.counts(), failed_ids(home.parts.values())))


def _served(state: State, batch: int) -> Shard | FoqsError:
    shard = state.shards.get(shard_of(batch))
    if shard is None:
        return NotServed() if state.shards_elsewhere else NotFound(NO_BATCH)
    return shard if shard.owner.state is ShardState.SERVING else NotServed()


def take(state: State, number: int, reports: Sequence[Report], told: Told) -> None:
    """Take reports of shards. Each is answered when it is committed."""
    shard = state.shards.get(number)
    if shard is None or shard.owner.state is not ShardState.SERVING:
        told([NotServed()] * len(reports))
        return
    outcomes: list[FoqsError | None] = [None] * len(reports)
    left = len(reports)

    def answered(at: int, error: FoqsError | None) -> None:
        nonlocal left
        outcomes[at], left = error, left - 1
        if not left:
            told(outcomes)

    shard.queue.use_batches()
    shard.queue.homes.reports += [Reported(one, partial(answered, at)) for at, one in enumerate(reports)]
    state.touch(shard)


# ------------------------------------------------------------------------------------------ the next transaction


def fill(shard: Shard, batch: ShardBatch, transaction: Batch, now_ms: int) -> bool:
    """Add the requests that wait to the transaction. Return True if there are any."""
    homes = shard.queue.homes
    if not homes.writes:
        return False
    changes = batch_members.rows(transaction)
    _take_creations(shard, batch, transaction)
    _take_reports(homes, batch, transaction)
    _take_turns(homes, batch, transaction)
    ends, homes.ends = homes.ends, {}
    for ended, state in ends.items():
        end(homes, BatchEnd(ended, state, False, False), (), transaction, now_ms)
    changes.removed, homes.removed = homes.removed, []
    return bool(batch.creations or batch.reported or batch.turns or ends or changes.removed)


def _take_creations(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    homes, changes = shard.queue.homes, batch_members.rows(transaction)
    room = shard.queue.max_batch_bytes // 2
    taken = list[Creation]()
    for made in homes.creations:
        new = made.new
        row = BatchRow(
            shard.first_id + transaction.next_number, new.ns.encode(), BatchState.OPEN, made.created_at_ms,
            new.expires_at_ms, 0, new.parent,
            None if new.on_success is None else new.on_success.pack(),
            None if new.on_end is None else new.on_end.pack(),
        )  # fmt: skip
        room -= len(row.on_success or b"") + len(row.on_end or b"")
        if taken and room < 0:
            break
        transaction.next_number += 1
        made.id = row.id
        changes.created.append(row)
        if new.parent:
            changes.new.append((row.id, new.parent))
        taken.append(made)
    del homes.creations[: len(taken)]
    batch.creations = taken


def _take_reports(homes: Homes, batch: ShardBatch, transaction: Batch) -> None:
    taken = list[Reported]()
    parts: dict[tuple[int, int], BatchPart] = {}
    for one in homes.reports:
        part, ns = one.report
        home = homes.live.get(part.batch)
        if home is None:
            if part.batch in homes.recent:
                one.answer(None if ns is None else Invalid(ENDED))
            else:
                homes.unknown.append(one)
        elif home.ending:
            homes.held.append(one)
        elif ns is not None and ns.encode() != home.row.ns:
            one.answer(Invalid(NO_BATCH))
        else:
            key = part.batch, part.shard
            if part.is_newer(parts.get(key, home.parts.get(part.shard))):
                parts[key] = part
            taken.append(one)
    homes.reports, batch.reported = [], taken
    batch_members.rows(transaction).parts = list(parts.values())


def _take_turns(homes: Homes, batch: ShardBatch, transaction: Batch) -> None:
    waiting, taken, turned = list[Turn](), list[Turn](), set[int]()
    for turn in homes.turns:
        home = homes.live.get(turn.batch)
        if home is None:
            homes.unknown.append(turn)
        elif turn.ns is not None and turn.ns.encode() != home.row.ns:
            turn.reply(NotFound(NO_BATCH))
        elif home.row.state in (turn.state, BatchState.CANCELLED):
            turn.reply(None)
        elif home.ending:
            homes.held.append(turn)
        elif turn.batch in turned:  # the next transaction knows its state
            waiting.append(turn)
        else:
            turned.add(turn.batch)
            batch_members.rows(transaction).states.append((turn.batch, turn.state))
            taken.append(turn)
    homes.turns, batch.turns = waiting, taken


def end(homes: Homes, ending: BatchEnd, items: Sequence[NewItem], transaction: Batch, now_ms: int) -> None:
    """Add the end of a batch, whose callbacks are `items` of the transaction."""
    changes, ids = batch_members.rows(transaction), [item.id for item in items]
    success_id = ids.pop(0) if ending.on_success and ids else 0
    end_id = ids.pop(0) if ending.on_end and ids else 0
    changes.ends.append(Ends(ending.batch, ending.state, now_ms, success_id, end_id))
    if success_id and end_id:
        transaction.fill()
        transaction.together.append((success_id, end_id))
    home = homes.live.get(ending.batch)
    if home is None or not home.row.parent:
        return
    how = _HOW[BatchState(ending.state)]
    if how == HowEnded.FAILED:
        changes.failed.append(ending.batch)
    else:
        changes.ended.setdefault(how, []).append(ending.batch)


# ------------------------------------------------------------------------------------------ its result


def created(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    """Follow a transaction that creates batches: of each of them, it may be refused alone."""
    for made in batch.creations:
        whole = result.outcome is Outcome.COMMITTED and made.id not in result.failed
        refused = result.rejected.get(made.id) if result.rejected else None
        _created(shard, made, now_ms, refused, committed=whole or made.id in result.committed)


def applied(shard: Shard, batch: ShardBatch, now_ms: int, *, saved: bool) -> None:
    """Follow a transaction. `saved`: what belongs to no item of it is committed."""
    homes, transaction = shard.queue.homes, batch.transaction
    assert transaction is not None, "the caller has looked"
    changed = dict[int, None]()
    for one in batch.reported:
        home = homes.live.get(one.report.part.batch)
        if not saved or home is None:
            homes.reports.append(one)  # its serial number says that it is older than later ones
            continue
        _heard(home, one.report.part, now_ms)
        changed[home.row.id] = None
        cancelled = one.report.ns is not None and home.row.state == BatchState.CANCELLED
        one.answer(Invalid(_CANCELLED) if cancelled else None)
    for turn in batch.turns:
        if saved and turn.batch in homes.live:
            _turned(homes, turn, now_ms)
            changed[turn.batch] = None
        else:
            homes.turns.append(turn)
    _ends_applied(shard, transaction, now_ms, saved=saved)
    for number in changed:
        if number in homes.live:
            _look(shard, homes.live[number], now_ms)


def _turned(homes: Homes, turn: Turn, now_ms: int) -> None:
    home = homes.live[turn.batch]
    home.row = home.row._replace(state=turn.state)
    home.ask_ms, home.pause_ms = now_ms, ASK_MS
    homes.at(now_ms, turn.batch)
    turn.reply(None)


def _ends_applied(shard: Shard, transaction: Batch, now_ms: int, *, saved: bool) -> None:
    homes, changes = shard.queue.homes, transaction.members
    assert changes is not None, "the caller has looked"
    for over in changes.ends:
        if over.success_id or over.end_id:
            continue  # `batch_callbacks` hears of its items
        if saved:
            ended(shard, over.batch, now_ms)
        else:
            homes.ends[over.batch] = over.state
    if not saved:
        homes.removed += changes.removed
    for removed in changes.removed if saved else ():
        homes.removals.pop(removed, None)


def _created(shard: Shard, made: Creation, now_ms: int, refused: str | None, *, committed: bool) -> None:
    homes = shard.queue.homes
    if refused is None and not committed:
        homes.creations.append(made)
        return
    homes.created -= 1
    if refused is not None:
        made.reply(Invalid("the database refuses this batch"))
        return
    new = made.new
    homes.live[made.id] = Home(
        BatchRow(made.id, new.ns.encode(), BatchState.OPEN, made.created_at_ms, new.expires_at_ms, 0, new.parent)
    )
    homes.at(new.expires_at_ms, made.id)
    if homes.look_ms == NEVER_MS:
        homes.look_ms = now_ms + LOOK_MS
    shard.counters.batches_created += 1
    made.reply(made.id)


def _heard(home: Home, part: BatchPart, now_ms: int) -> None:
    home.unheard.discard(part.shard)
    if part.is_newer(home.parts.get(part.shard)):
        home.parts[part.shard] = part
        home.pause_ms = ASK_MS
        if home.ask_ms != NEVER_MS:
            home.ask_ms = now_ms + ASK_MS


def ended(shard: Shard, batch: int, now_ms: int) -> None:
    shard.queue.homes.ended(batch)
    shard.counters.batches_ended += 1
    shard.queue.members.note(now_ms)  # it may be a member


def _look(shard: Shard, home: Home, now_ms: int) -> None:
    """End a batch whose members have all ended, or have the shards asked that lack some."""
    if home.ending or home.row.state not in (BatchState.CLOSED, BatchState.CANCELLED):
        return
    lacking = home.lacking()
    if lacking and (known := shard.queue.links.all_shards()):
        lacking &= known  # of a shard that was removed, the members are gone
    if not lacking:
        counts, state = home.counts(), BatchState(home.row.state)
        if state != BatchState.CANCELLED:
            all_acked = counts.completed == counts.members
            state = BatchState.SUCCEEDED if all_acked else BatchState.ENDED
        _begin_end(shard, home, state)
    elif home.ask_ms == NEVER_MS:
        home.ask_ms = now_ms + home.pause_ms
        shard.queue.homes.at(home.ask_ms, home.row.id)


def _begin_end(shard: Shard, home: Home, state: BatchState) -> None:
    home.ending = True
    shard.queue.homes.specs[home.row.id] = state
    shard.queue.touch()


def take_waiting(queue: ShardQueue, batches: Sequence[ShardBatch]) -> list[Callable[[FoqsError], object]]:
    """Take out the requests that wait, or are in one of `batches`, of a shard that is closed. Return what answers
    each: of a request that was sent, the outcome is not known."""
    waiting: list[_Request] = [join.what for join in queue.members.joins if isinstance(join.what, Creation)]
    waiting += queue.homes.take_waiting()
    queue.members.joins = []
    answers = list(map(_answer_of, waiting))
    for batch in batches:
        answers += [_in_doubt(one.reply) for one in batch.creations]
        answers += [_in_doubt(one.reply) for one in batch.turns]
        answers += [one.answer for one in batch.reported]
    return answers


def _in_doubt(reply: Callable[[FoqsError], object]) -> Callable[[FoqsError], object]:
    return lambda _: reply(OutcomeUnknown("the shard of the batch moved to another host"))


_Request = Creation | Reported | Turn | FindBatch


def _answer_of(one: _Request) -> Callable[[FoqsError], object]:
    return one.answer if isinstance(one, Reported) else one.reply


# ------------------------------------------------------------------------------------------ time


def turn(shard: Shard, now_ms: int) -> None:
    """Expire batches, and ask shards for the ends of members."""
    homes = shard.queue.homes
    questions = defaultdict[int, list[Question]](list)
    while homes.times and homes.times[0][0] <= now_ms:
        _, number = heapq.heappop(homes.times)
        home = homes.live.get(number)
        if home is None:
            continue
        if home.ending or shard.owner.held:  # the clock may be wrong
            homes.at(now_ms + RETRY_MS, number)
        elif home.row.expires_at_ms <= now_ms:
            _begin_end(shard, home, BatchState.EXPIRED)
        elif home.ask_ms <= now_ms:
            home.ask_ms = NEVER_MS
            _look(shard, home, now_ms)
            if not home.ending:
                home.pause_ms = min(2 * home.pause_ms, LONGEST_ASK_MS)
                cancel = home.row.state == BatchState.CANCELLED
                for lacking in home.lacking():
                    questions[lacking].append(Question(number, cancel))
        elif home.ask_ms != NEVER_MS:
            homes.at(home.ask_ms, number)
    for number, asked in questions.items():
        for at in range(0, len(asked), _QUESTIONS):
            shard.queue.links.ask_members(number, asked[at : at + _QUESTIONS], _no_answer)


def _no_answer(_: list[int]) -> None:
    """The reports come by themselves."""
