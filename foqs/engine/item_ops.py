"""What an ack, a nack, an extension or a delete does to an item that is known, and what the end of an attempt means for
it: pure decisions on one item.

An op returns an error, True (done, nothing to wait for), or False (a change is queued, and settles `waits`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple

from foqs.bounds import REASON_BYTES
from foqs.engine import throttling
from foqs.engine.shard import Shard
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.shard_queue import ShardQueue
from foqs.errors import Conflict, FoqsError, Invalid, NotFound, Overloaded, StaleLease, Unavailable
from foqs.fairness.keys import TopicKey, lane_key, pack_throttles, rules_of, tenancy_of, topic_key
from foqs.hooks.protocol import Action, FailureResult
from foqs.item import Cause, Change, Given, Item, Move, Phase, Place, To, Waits
from foqs.policies.failures import fingerprint
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import FailureCause, FailureRow, Found, LastFailure, NewItem, ProgressRow
from foqs.rules import pack_lane

Verdict = FoqsError | bool
Op = Callable[[Shard, Item, Waits, int], Verdict]
"""(shard, item, waits, now_ms)"""

_After = Callable[[Shard, Item, Waits, int, int], Change]
"""(shard, item, waits, now_ms, since_ms): the change of a nack. `since_ms` is 0 where the nack does not ask for it."""
_STALE = "the lease given is not the item's current lease"
_RETRY_MS = 100
_DEAD = "the lease has ended, and its item goes to another topic"


def change_of(item: Item) -> Change | None:
    """Return the change that decides the item's fate next, waiting or in flight."""
    return item.change or item.in_flight


def _holds(item: Item, lease: int) -> bool:
    return lease != 0 and item.lease == lease


def _ends_anyway(item: Item, waits: Waits, cause: Cause) -> Verdict | None:
    """Return None if the op may proceed: no queued change ends the lease."""
    now = change_of(item)
    if now is None or now.to is To.KEPT:
        return None
    if now.cause is cause or (cause is Cause.ACK and now.to is To.GONE):
        now.waits.append(waits)  # the same op (a client's retry), or the item is gone either way: one outcome for both
        return False
    if now.to is To.MOVED and cause is not Cause.ACK:
        return StaleLease(_DEAD)
    if now.cause is Cause.CHANGE:  # the lease ended before it: a late ack still counts
        return None if cause is Cause.ACK else StaleLease(_STALE)
    if now.cause in (Cause.LEASE, Cause.EXTEND, Cause.EXPIRED, Cause.LIMIT, Cause.REDRIVE):
        return None
    return StaleLease("the lease is being ended by another request")


def ack(lease: int, result: bytes | None = None) -> Op:
    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if not _holds(item, lease):
            return StaleLease(_STALE)
        verdict = _ends_anyway(item, waits, Cause.ACK)
        if verdict is None:
            change = Change(item, To.GONE, Cause.ACK, waits)
            if result is not None:
                change.result = result
            shard.put(change, now_ms)
            return False
        return verdict

    return decide


def nack(lease: int, delay_ms: int, metadata: bytes | None, *, counted: bool = True) -> Op:
    """Let the item return. An at-most-once item, or an item whose TTL has passed, ends. `counted`: as an attempt."""

    def after(shard: Shard, item: Item, waits: Waits, now_ms: int, since_ms: int) -> Change:
        attempt = item.attempt if counted else item.attempt - 1
        if delay_ms:
            due_ms = now_ms + delay_ms
            return Change(item, To.DELAYED, Cause.NACK, waits, due_ms=due_ms, metadata=metadata, attempt=attempt)
        return Change(item, To.READY, Cause.NACK, waits, metadata=metadata, attempt=attempt)

    return partial(_decide_nack, lease, (bool(delay_ms), metadata, counted), after, False, None)


class AfterFailure(NamedTuple):
    """What happens to an item whose attempt failed. `again_in_ms` None: it does not come again. `max_attempts` None: no
    limit. `dead_topic` None: it is no dead letter."""

    again_in_ms: int | None
    max_attempts: int | None
    dead_topic: str | None


@dataclass(slots=True, eq=False)
class Failing:
    """A nack whose effect on the item the topic's policy decides, with the `decision` of the topic's script
    if there is one. A rejected item becomes a dead letter, or is removed, unless the script keeps it.

    `after` is for the answer: empty until that is decided, and the last one counts."""

    lease: int
    cause: FailureCause
    reason: str
    delay_ms: int = 0
    metadata: bytes | None = None
    decision: FailureResult | None = None
    after: list[AfterFailure] = field(default_factory=list)

    def __call__(self, shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        rejected = self.cause is FailureCause.REJECTED
        asked = ("rejected",) if rejected else ("failed", bool(self.delay_ms), self.metadata)
        by_age = self.decision is not None or not rejected
        failed = partial(_failed_attempt, item, self.cause, self.reason)
        return _decide_nack(self.lease, asked, self._change, by_age, failed, shard, item, waits, now_ms)

    def _change(self, shard: Shard, item: Item, waits: Waits, now_ms: int, since_ms: int) -> Change:
        age_ms = now_ms - since_ms if since_ms else 0
        ended = Ended(self.cause, self.reason, self.delay_ms, age_ms, self.decision)
        change = change_at_end(shard, item, ended, now_ms, waits=waits, metadata=self.metadata)
        again = change.to is To.READY or change.to is To.DELAYED
        delay_ms = max(0, change.due_ms - now_ms) if change.to is To.DELAYED else 0
        dead_topic = None if change.move is None else topic_key(change.move.lane)[1]
        most = shard.policy_of(item.lane).max_attempts
        self.after.append(AfterFailure(delay_ms if again else None, most or None, dead_topic))
        return change


def fail(lease: int, delay_ms: int, metadata: bytes | None, reason: str) -> Op:
    return Failing(lease, FailureCause.FAILED, reason, delay_ms, metadata)


def reject(lease: int, reason: str) -> Op:
    return Failing(lease, FailureCause.REJECTED, reason)


def _decide_nack(
    lease: int, asked: tuple[object, ...], after: _After, by_age: bool, failed: Callable[[int], LastFailure] | None,
    shard: Shard, item: Item, waits: Waits, now_ms: int, since_ms: int = 0,
) -> Verdict:  # fmt: skip
    """End a lease as `after` decides, unless the item ends anyway. `by_age`: it may need the time since which the item
    could be delivered, which only the database says. `failed` makes the failed attempt of an item that ends anyway."""
    if not _holds(item, lease):
        return StaleLease(_STALE)
    same = change_of(item)
    if same is not None and same.asked is not None:
        if same.asked != asked:
            return StaleLease("the lease is being ended by another nack")
        same.waits.append(waits)
        return False
    verdict = _ends_anyway(item, waits, Cause.NACK)
    if verdict is not None:
        return verdict
    if not item.attempt:
        return StaleLease(_DEAD)
    if by_age and not since_ms and shard.policy_of(item.lane).max_total_ms:
        decide = partial(_decide_nack, lease, asked, after, by_age, failed, shard)
        _look_first(shard.queue, item, waits, lambda found, at_ms: decide(found, waits, now_ms, at_ms))
        return False
    if item.at_most_once:
        change = Change(item, To.GONE, Cause.DROPPED, waits)
    elif 0 < item.expires_at_ms <= now_ms - shard.owner.late_ms:
        change = Change(item, To.GONE, Cause.TTL, waits)
    else:
        change = after(shard, item, waits, now_ms, since_ms)
    if failed is not None and change.failed is None:
        change.failed = failed(now_ms)
    change.asked = asked
    shard.put(change, now_ms)
    return False


def _look_first(queue: ShardQueue, item: Item, waits: Waits, decide: Callable[[Item, int], Verdict]) -> None:
    """Read since when the item could be delivered, and decide then."""
    request, at = waits

    def looked(known: Item | None, found: Found | None, error: FoqsError | None) -> None:
        if known is None or found is None:
            request.settled(at, error or NotFound("no such item"))
            return
        verdict = decide(known, found.since_ms)
        if verdict is not False:
            request.settled(at, None if verdict is True else verdict)

    queue.looks.add(item.id, looked)


def release(lease: int) -> Op:
    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if not _holds(item, lease):
            return StaleLease(_STALE)
        verdict = _ends_anyway(item, waits, Cause.RELEASE)
        if verdict is not None:
            return verdict
        if item.phase is not Phase.LEASED:
            return StaleLease("the lease has ended")
        give_back(shard, item, waits, now_ms)
        return waits not in (item.change.waits if item.change is not None else ())

    return decide


def give_back(shard: Shard, item: Item, waits: Waits | None, now_ms: int) -> None:
    """End the lease of an item that its consumer did not begin; at once when the lease was never written."""
    if item.lane.flow is not None and item.given is not None and item.given.moment is not None:  # it was charged here
        item.lane.flow.refund(item.bytes)
        throttling.give_back(item)
    if 0 < item.expires_at_ms <= now_ms - shard.owner.late_ms:
        shard.put(Change(item, To.GONE, Cause.TTL, waits), now_ms)
    elif item.place is Place.READY and not item.busy and item.id not in shard.queue.progress:
        item.lane.namespace.released += 1
        shard.memory.unlease(item)
    else:
        shard.put(Change(item, To.READY, Cause.RELEASE, waits, attempt=item.attempt - 1), now_ms)


def take_back(shard: Shard, item: Item, lease: int, now_ms: int) -> None:
    """End a lease that did not reach its consumer, unless it has ended or is being ended."""
    if shard.memory.known.get(item.id) is item and stands(item, lease):
        give_back(shard, item, None, now_ms)


def stands(item: Item, lease: int) -> bool:
    """Return True if the item is leased by `lease`, and nothing is ending that."""
    change = change_of(item)
    return item.lease == lease and item.phase is Phase.LEASED and (change is None or change.to in (To.LEASED, To.KEPT))


def mark(item: Item, *, begun: bool) -> None:
    """Note if the consumer of a leased item has begun it."""
    if item.given is not None:
        item.given = item.given._replace(begun=begun)


def given_of(owner: ShardOwner, item: Item) -> Given:
    """Return when a leased item was given, with its worker. Of a lease that this owner did not give, or has forgotten,
    only the last extension is known; it counts from the shard's opening at the earliest."""
    if item.given is None:
        item.given = Given(max(owner.opened_ms, item.lease_expires_at_ms - item.lease_ms), "")
    return item.given


def extend(
    lease: int, lease_ms: int, begun: bool | None = None, given: ProgressRow | None = None, *, durable: bool = False
) -> Op:
    """`lease_ms` 0: the duration of the original lease; with `begun` or `given`, the lease's end stays. What the
    consumer has `given` is written later, unless it is `durable`."""
    stays = not lease_ms and (begun is not None or given is not None)

    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if not _holds(item, lease):
            return StaleLease(_STALE)
        now = change_of(item)
        ended = now is not None and now.to is not To.LEASED and now.to is not To.KEPT
        if item.phase is not Phase.LEASED or ended:
            return StaleLease("the lease has ended")
        if begun is not None:
            mark(item, begun=begun)
            if stays and given is None:
                return True
        if not stays:
            given_of(shard.owner, item)  # from the present end of the lease, which says more than the next one
        until_ms = item.lease_expires_at_ms if stays else now_ms + (lease_ms or item.lease_ms)
        stuck_after_ms = 0 if stays else shard.policies.of(item.lane.topic.key).stuck_after_ms
        if stuck_after_ms:
            until_ms = min(until_ms, given_of(shard.owner, item).at_ms + stuck_after_ms)
            if until_ms <= now_ms:
                return StaleLease(f"the item was delivered more than stuck_after_ms ({stuck_after_ms}) ago")
        if given is not None:
            if not shard.queue.progress.add(item, given, now_ms, shard.memory.budget):
                return Overloaded("the host's memory is full", _RETRY_MS)
            shard.memory.noted.setdefault(item.id, 0)
            if stays and not durable and item.id in shard.memory.known and shard.owner.confirmed(now_ms):
                return True
        if not stays:
            item.extended(now_ms)
        if item.place is Place.READY and now is None and not durable and shard.owner.confirmed(now_ms):
            # Not written yet: the write, within the bound, will have this end. (An owner that may have lost the shard
            # has to ask the database.)
            item.lease_expires_at_ms = until_ms
            item.lane.namespace.extended += 1
            return True
        shard.put(Change(item, To.LEASED, Cause.EXTEND, waits, due_ms=until_ms), now_ms)
        return False

    return decide


def delete(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
    now = change_of(item)
    keeps = bool(shard.policies.keeping) or rules_of(item.lane.key) is not None
    if now is not None and now.to is To.GONE and (now.cause is Cause.DELETE or not keeps):
        now.waits.append(waits)
        return False
    shard.put(Change(item, To.GONE, Cause.DELETE, waits), now_ms)  # in place of an end after which the item is kept
    return False


def cancel(digest: bytes | None, *, leased: bool) -> Op:
    """Remove the item that has the key, and free the key; a `leased` one, too. `digest` None: an item of a batch."""

    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        now = change_of(item)
        if now is not None and now.cause is Cause.CANCEL:
            now.waits.append(waits)
            return False
        if (refusal := _cannot_change(item, now)) is not None:
            return refusal
        if item.phase is Phase.LEASED and not leased:
            return Conflict("a consumer has the item")
        change = Change(item, To.GONE, Cause.CANCEL, waits)
        if digest is not None and not item.lane.until:
            change.digest = digest
            shard.memory.hold()
        shard.put(change, now_ms)
        return False

    return decide


def _cannot_change(item: Item, now: Change | None) -> FoqsError | None:
    """Return why a key's item cannot be changed: it is a dead letter, or ends or moves with a transaction to come."""
    if now is not None and now.to in (To.GONE, To.MOVED):
        return Unavailable("the item is about to end, or to return", _RETRY_MS)
    return NotFound("the item has ended") if item.lane.dead else None


def replace(body: NewItem, topic: TopicKey) -> Op:
    """Give an item that has not begun another body, priority and time."""

    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if (refusal := _cannot_change(item, change_of(item))) is not None:
            return refusal
        if item.lane.topic.key != topic:
            return Invalid("the dedup_key was enqueued with another topic before")
        if item.phase is Phase.LEASED or item.attempt or item.id in shard.memory.noted:
            return Conflict("the item has begun")
        body.id = item.id
        if body.due_ms <= now_ms:
            body.due_ms = 0
        to = To.DELAYED if body.due_ms else To.READY
        change = Change(item, to, Cause.REPLACE, waits, due_ms=body.deliver_after_ms)
        change.body = body
        shard.put(change, now_ms)
        return False

    return decide


class Fate(Enum):
    AGAIN = "again"
    DEAD = "dead"
    REMOVED = "removed"


class End(NamedTuple):
    """`delay_ms`: until an item whose fate is AGAIN may be leased. `by_script`: the topic's script ended it. `dropped`:
    it did so for another reason than the failure."""

    fate: Fate
    delay_ms: int = 0
    by_script: bool = False
    dropped: bool = False


class Ended(NamedTuple):
    """How an attempt ended. `delay_ms` is what the consumer asked for; it counts only where the policy has no rule.
    `age_ms`: the time since the first possible delivery; 0 where the policy does not ask for it. `decision`: of the
    topic's script; None where none was asked."""

    cause: FailureCause
    reason: str = ""
    delay_ms: int = 0
    age_ms: int = 0
    decision: FailureResult | None = None


AGAIN = End(Fate.AGAIN)


def end_of(policy: TopicPolicy, item_id: int, attempt: int, ended: Ended) -> End:
    """Return the fate of an item whose `attempt` ended. A script may end the item before the policy does, and keep one
    that was rejected. It cannot give more attempts, or more time, than the policy allows."""
    action, delay_ms = None, None
    if ended.decision is not None:
        action, delay_ms = ended.decision.action, ended.decision.delay_ms
    if action is Action.DROP:
        return End(Fate.REMOVED, by_script=True, dropped=True)
    gives_up = action is Action.DEAD
    spent = 0 < policy.max_attempts <= attempt or 0 < policy.max_total_ms <= ended.age_ms
    if spent or gives_up or (ended.cause is FailureCause.REJECTED and action is not Action.RETRY):
        return End(Fate.DEAD if policy.dead_topic is not None else Fate.REMOVED, by_script=gives_up and not spent)
    if delay_ms is not None:
        return End(Fate.AGAIN, delay_ms)
    if ended.cause not in (FailureCause.FAILED, FailureCause.REJECTED):
        return AGAIN
    if policy.retry is None:
        return End(Fate.AGAIN, ended.delay_ms)
    return End(Fate.AGAIN, policy.retry.delay_ms(attempt, item_id))


def may_end(policy: TopicPolicy, attempt: int) -> bool:
    """Return True if the end of a lease by time may be more than the item's return."""
    if policy.hooks is not None and policy.hooks.on_failure is not None:
        return True
    return policy.max_total_ms > 0 or 0 < policy.max_attempts <= attempt


def change_at_end(
    shard: Shard, item: Item, ended: Ended, now_ms: int, *, waits: Waits | None = None, metadata: bytes | None = None
) -> Change:
    """Return what `end_of` means for the item's row. The token of a lease that ended by time stays with the row: a late
    ack of it still counts. An attempt that was not begun does not count if its lease ended by time, and the item keeps
    its place."""
    policy = shard.policy_of(item.lane)
    cause = ended.cause
    attempt = item.attempts_begun if cause is FailureCause.EXPIRED else item.attempt
    end = end_of(policy, item.id, attempt, ended)
    why = ended._replace(cause=FailureCause.HOOK) if end.by_script else ended
    failed = None
    if cause is not FailureCause.LIMIT and attempt == item.attempt:  # else it did not begin
        failed = _failed_attempt(item, why.cause, ended.reason, now_ms)
    lease = 0 if cause in (FailureCause.FAILED, FailureCause.REJECTED) else item.lease
    if end.fate is Fate.REMOVED:
        removed = Cause.REJECTED if cause is FailureCause.REJECTED else Cause.EXHAUSTED
        change = Change(item, To.GONE, Cause.HOOK if end.by_script else removed, waits, metadata=metadata)
        if not end.dropped:
            change.failure = _failure_of(item, attempt, why, now_ms)
    elif end.fate is Fate.DEAD:
        change = Change(item, To.MOVED, _CAUSES[cause], waits, attempt=0, lease=lease, metadata=metadata)
        change.move = _to_dead_letters(item, policy, attempt, why, now_ms)
    else:
        to, due_ms = To.READY, _behind_ms(item, attempt, now_ms)
        if end.delay_ms:
            to, due_ms, lease = To.DELAYED, now_ms + end.delay_ms, 0
        change = Change(item, to, _CAUSES[cause], waits, due_ms=due_ms, attempt=attempt, lease=lease, metadata=metadata)
    if failed is not None:
        change.failed = failed
    return change


def change_at_expiry(item: Item, now_ms: int) -> Change:
    """Return the change of an item whose lease ended by time, where `may_end` says that it returns."""
    attempt = item.attempts_begun
    due_ms = _behind_ms(item, attempt, now_ms)
    change = Change(item, To.READY, Cause.EXPIRED, due_ms=due_ms, attempt=attempt, lease=item.lease)
    if attempt == item.attempt:  # else it did not begin
        change.failed = _failed_attempt(item, FailureCause.EXPIRED, "", now_ms)
    return change


def dropped_at_expiry(item: Item, now_ms: int) -> Change:
    """Return the change of an at-most-once item whose lease ended by time."""
    change = Change(item, To.GONE, Cause.DROPPED)
    if item.attempts_begun == item.attempt:
        change.failed = _failed_attempt(item, FailureCause.EXPIRED, "", now_ms)
    return change


def _behind_ms(item: Item, attempt: int, now_ms: int) -> int:
    """Return the time that takes an item, whose attempt failed, behind the items of its priority in its lane; 0 if
    nothing failed, as the work was not begun.

    At its old place, an item that fails again and again would be delivered before all of them. 1 ms more, because
    items that were enqueued in this millisecond may have greater ids."""
    return 0 if attempt < item.attempt else max(now_ms, item.deliver_after_ms) + 1


def change_at_limit(shard: Shard, item: Item, now_ms: int) -> Change | None:
    """Return what ends an item that is ready with all its attempts used up; None if it may be delivered."""
    if item.at_most_once:
        return None
    change = change_at_end(shard, item, Ended(FailureCause.LIMIT), now_ms)
    return None if change.to is To.READY else change


def _to_dead_letters(item: Item, policy: TopicPolicy, attempt: int, ended: Ended, now_ms: int) -> Move:
    assert policy.dead_topic is not None, "the item has somewhere to go"
    expires_at_ms = now_ms + policy.dead_ttl_ms if policy.dead_ttl_ms is not None else 0
    lane = lane_key((item.lane.topic.key[0], policy.dead_topic))
    return Move(lane, now_ms, expires_at_ms, _failure_of(item, attempt, ended, now_ms))


def _failed_attempt(item: Item, cause: FailureCause, reason: str, now_ms: int) -> LastFailure:
    """Return the attempt of a leased item that ends now."""
    return LastFailure(item.attempt, cause, now_ms, fingerprint(reason), _worker_of(item), _cut(reason))


def _worker_of(item: Item) -> bytes:
    """Return the worker that had the last lease; b"" if this owner did not give it, or has forgotten it."""
    return b"" if item.given is None else item.given.worker.encode()


def _failure_of(item: Item, attempt: int, ended: Ended, now_ms: int) -> FailureRow:
    _, topic = item.lane.topic.key
    fairness, throttles = tenancy_of(item.lane.key)
    return FailureRow(
        lane=0,
        fingerprint=fingerprint(ended.reason),
        id=item.id,
        cause=ended.cause,
        attempts=attempt,
        died_at_ms=now_ms,
        topic=topic.encode(),
        fairness=fairness.encode(),
        reason=_cut(ended.reason),
        throttles=pack_throttles(throttles),
        rules=pack_lane(rules_of(item.lane.key), item.lane.until, item.lane.members),
        worker=_worker_of(item),
    )


def _cut(reason: str) -> bytes:
    """Return the first REASON_BYTES of `reason` in UTF-8, cut at a character."""
    return reason.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore").encode()


_CAUSES = {
    FailureCause.FAILED: Cause.NACK,
    FailureCause.EXPIRED: Cause.EXPIRED,
    FailureCause.REJECTED: Cause.REJECTED,
    FailureCause.LIMIT: Cause.LIMIT,
}
