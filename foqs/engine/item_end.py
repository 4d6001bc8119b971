"""What the end of an attempt means for its item: it returns, now or later, it moves to the dead-letter topic, or it is
removed. At-most-once items do not come here: they end with their lease.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from foqs.engine.shard import Shard
from foqs.fairness.keys import lane_key, pack_throttles, tenancy_of
from foqs.hooks.protocol import Action, FailureResult
from foqs.item import Cause, Change, Item, Move, To, Waits
from foqs.policies.failures import fingerprint
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import REASON_BYTES, FailureCause, FailureRow


class Fate(Enum):
    AGAIN = "again"
    DEAD = "dead"
    REMOVED = "removed"


class End(NamedTuple):
    """`delay_ms`: until an item whose fate is AGAIN may be leased. `by_script`: the topic's script ended it."""

    fate: Fate
    delay_ms: int = 0
    by_script: bool = False


class Ended(NamedTuple):
    """How an attempt ended. `delay_ms` is what the consumer asked for; it counts only where the policy has no rule.
    `age_ms`: the time since the first possible delivery; 0 where the policy does not ask for it. `decision`: of the
    topic's script; None where none was asked."""

    cause: FailureCause
    reason: str = ""
    delay_ms: int = 0
    age_ms: int = 0
    decision: FailureResult | None = None


AGAIN, DEAD, REMOVED = End(Fate.AGAIN), End(Fate.DEAD), End(Fate.REMOVED)


def end_of(policy: TopicPolicy, item_id: int, attempt: int, ended: Ended) -> End:
    """Return the fate of an item whose `attempt` ended. A script may end the item before the policy does, and keep one
    that was rejected. It cannot give more attempts, or more time, than the policy allows."""
    action, delay_ms = None, None
    if ended.decision is not None:
        action, delay_ms = ended.decision.action, ended.decision.delay_ms
    if action is Action.DROP:
        return End(Fate.REMOVED, by_script=True)
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
    """Whether the end of a lease by time may be more than the item's return."""
    if policy.hooks is not None and policy.hooks.on_failure is not None:
        return True
    return policy.max_total_ms > 0 or 0 < policy.max_attempts <= attempt


def change_at_end(
    shard: Shard, item: Item, ended: Ended, now_ms: int, *, waits: Waits | None = None, metadata: bytes | None = None
) -> Change:
    """Return what `end_of` means for the item's row. The token of a lease that ended by time stays with the row: a late
    ack of it still counts. An attempt that was not begun does not count if its lease ended by time, and the item keeps
    its place."""
    policy = shard.policies.of(item.lane.topic.key)
    cause = ended.cause
    attempt = item.attempts_begun if cause is FailureCause.EXPIRED else item.attempt
    end = end_of(policy, item.id, attempt, ended)
    lease = 0 if cause in (FailureCause.FAILED, FailureCause.REJECTED) else item.lease
    if end.fate is Fate.REMOVED:
        removed = Cause.REJECTED if cause is FailureCause.REJECTED else Cause.EXHAUSTED
        return Change(item, To.GONE, Cause.HOOK if end.by_script else removed, waits)
    if end.fate is Fate.DEAD:
        change = Change(item, To.MOVED, _CAUSES[cause], waits, attempt=0, lease=lease, metadata=metadata)
        why = ended._replace(cause=FailureCause.HOOK) if end.by_script else ended
        change.move = _to_dead_letters(item, policy, attempt, why, now_ms)
        return change
    if end.delay_ms:
        due_ms = now_ms + end.delay_ms
        return Change(item, To.DELAYED, _CAUSES[cause], waits, due_ms=due_ms, attempt=attempt, metadata=metadata)
    due_ms = _behind_ms(item, attempt, now_ms)
    return Change(item, To.READY, _CAUSES[cause], waits, due_ms=due_ms, attempt=attempt, lease=lease, metadata=metadata)


def change_at_expiry(item: Item, now_ms: int) -> Change:
    """Return the change of an item whose lease ended by time, where `may_end` says that it returns."""
    attempt = item.attempts_begun
    due_ms = _behind_ms(item, attempt, now_ms)
    return Change(item, To.READY, Cause.EXPIRED, due_ms=due_ms, attempt=attempt, lease=item.lease)


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
    ns, topic = item.lane.topic.key
    fairness, throttles = tenancy_of(item.lane.key)
    assert policy.dead_topic is not None, "the item has somewhere to go"
    failure = FailureRow(
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
    )
    expires_at_ms = now_ms + policy.dead_ttl_ms if policy.dead_ttl_ms is not None else 0
    return Move(lane_key((ns, policy.dead_topic)), now_ms, expires_at_ms, failure)


def _cut(reason: str) -> bytes:
    """The first REASON_BYTES of it in UTF-8, cut at a character."""
    return reason.encode(errors="replace")[:REASON_BYTES].decode(errors="ignore").encode()


_CAUSES = {
    FailureCause.FAILED: Cause.NACK,
    FailureCause.EXPIRED: Cause.EXPIRED,
    FailureCause.REJECTED: Cause.REJECTED,
    FailureCause.LIMIT: Cause.LIMIT,
}
