"""What an ack, a nack, an extension or a delete does to an item that is known: pure decisions on one item.

Each returns an error, True (done, nothing to wait for), or False (a change is queued, and settles `waits`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foqs.engine import item_end, throttling
from foqs.engine.pending import change_of
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, NotFound, StaleLease
from foqs.hooks.protocol import FailureResult
from foqs.item import Cause, Change, Given, Item, Phase, Place, To, Waits
from foqs.rows import FailureCause, Found

Verdict = FoqsError | bool
Op = Callable[[Shard, Item, Waits, int], Verdict]
"""(shard, item, waits, now_ms)"""

_After = Callable[[Shard, Item, Waits, int, int], Change]
"""(shard, item, waits, now_ms, since_ms): the change of a nack. `since_ms` is 0 where the nack does not ask for it."""
_STALE = "the lease given is not the item's current lease"
_DEAD = "the lease is over, and its item goes to another topic"


def _holds(item: Item, lease: int) -> bool:
    return lease != 0 and item.lease == lease


def _ends_anyway(item: Item, waits: Waits, cause: Cause) -> Verdict | None:
    """Return None when the op may go on: no queued change ends the lease."""
    now = change_of(item)
    if now is None or now.to is To.KEPT:
        return None
    if now.cause is cause or (cause is Cause.ACK and now.to is To.GONE):
        now.waits.append(waits)  # the same op (a client's retry), or the item is gone either way: one outcome for both
        return False
    if now.to is To.MOVED and cause is not Cause.ACK:
        return StaleLease(_DEAD)
    if now.cause in (Cause.LEASE, Cause.EXTEND, Cause.EXPIRED, Cause.LIMIT, Cause.REDRIVE):
        return None
    return StaleLease("the lease is being ended by another request")


def ack(lease: int) -> Op:
    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if not _holds(item, lease):
            return StaleLease(_STALE)
        verdict = _ends_anyway(item, waits, Cause.ACK)
        if verdict is None:
            shard.put(Change(item, To.GONE, Cause.ACK, waits), now_ms)
            return False
        return verdict

    return decide


def nack(lease: int, delay_ms: int, metadata: bytes | None) -> Op:
    """The item returns. An at-most-once item, or one whose TTL is over, ends here."""

    def after(shard: Shard, item: Item, waits: Waits, now_ms: int, since_ms: int) -> Change:
        if delay_ms:
            return Change(item, To.DELAYED, Cause.NACK, waits, due_ms=now_ms + delay_ms, metadata=metadata)
        return Change(item, To.READY, Cause.NACK, waits, metadata=metadata)

    return _nack(lease, (bool(delay_ms), metadata), after)


class Failing:
    """As `nack`, but the policy of the topic decides what a failure means for the item, with the `decision` of the
    topic's script if there is one. A rejected item becomes a dead letter, or is removed, unless the script keeps it."""

    __slots__ = ("_delay_ms", "_metadata", "cause", "decision", "lease", "reason")

    def __init__(
        self, lease: int, cause: FailureCause, reason: str, delay_ms: int = 0, metadata: bytes | None = None,
        decision: FailureResult | None = None,
    ) -> None:  # fmt: skip
        self.lease = lease
        self.cause = cause
        self.reason = reason
        self.decision = decision
        self._delay_ms = delay_ms
        self._metadata = metadata

    def with_decision(self, decision: FailureResult) -> Failing:
        return Failing(self.lease, self.cause, self.reason, self._delay_ms, self._metadata, decision)

    def __call__(self, shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        rejected = self.cause is FailureCause.REJECTED
        asked = ("rejected",) if rejected else ("failed", bool(self._delay_ms), self._metadata)
        by_age = self.decision is not None or not rejected
        return _nack(self.lease, asked, self._change, by_age=by_age)(shard, item, waits, now_ms)

    def _change(self, shard: Shard, item: Item, waits: Waits, now_ms: int, since_ms: int) -> Change:
        age_ms = now_ms - since_ms if since_ms else 0
        ended = item_end.Ended(self.cause, self.reason, self._delay_ms, age_ms, self.decision)
        return item_end.change_at_end(shard, item, ended, now_ms, waits=waits, metadata=self._metadata)


def fail(lease: int, delay_ms: int, metadata: bytes | None, reason: str) -> Op:
    return Failing(lease, FailureCause.FAILED, reason, delay_ms, metadata)


def reject(lease: int, reason: str) -> Op:
    return Failing(lease, FailureCause.REJECTED, reason)


def _nack(lease: int, asked: tuple[object, ...], after: _After, *, by_age: bool = False) -> Op:
    """The end of a lease as `after` decides, unless the item ends anyway. `by_age`: it may need the time since
    which the item could be delivered, which only the database says."""
    # Not a function in here: one that names itself lives until the garbage collector runs.
    return partial(_decide_nack, lease, asked, after, by_age)


def _decide_nack(
    lease: int, asked: tuple[object, ...], after: _After, by_age: bool,
    shard: Shard, item: Item, waits: Waits, now_ms: int, since_ms: int = 0,
) -> Verdict:  # fmt: skip
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
    if by_age and not since_ms and shard.policies.of(item.lane.topic.key).max_total_ms:
        again = partial(_decide_nack, lease, asked, after, by_age)
        _look_first(shard, item, waits, lambda found, at_ms: again(shard, found, waits, now_ms, at_ms))
        return False
    if item.at_most_once:
        change = Change(item, To.GONE, Cause.DROPPED, waits)
    elif 0 < item.expires_at_ms <= now_ms - shard.late_ms:
        change = Change(item, To.GONE, Cause.TTL, waits)
    else:
        change = after(shard, item, waits, now_ms, since_ms)
    change.asked = asked
    shard.put(change, now_ms)
    return False


def _look_first(shard: Shard, item: Item, waits: Waits, decide: Callable[[Item, int], Verdict]) -> None:
    """Read since when the item could be delivered, and decide then."""
    request, at = waits

    def looked(known: Item | None, found: Found | None, error: FoqsError | None) -> None:
        if known is None or found is None:
            request.settled(at, error or NotFound("no such item"))
            return
        verdict = decide(known, found.since_ms)
        if verdict is not False:
            request.settled(at, None if verdict is True else verdict)

    shard.looks.add(item.id, looked)


def release(lease: int) -> Op:
    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if not _holds(item, lease):
            return StaleLease(_STALE)
        verdict = _ends_anyway(item, waits, Cause.RELEASE)
        if verdict is not None:
            return verdict
        if item.phase is not Phase.LEASED:
            return StaleLease("the lease is over")
        give_back(shard, item, waits, now_ms)
        return waits not in (item.change.waits if item.change is not None else ())

    return decide


def give_back(shard: Shard, item: Item, waits: Waits | None, now_ms: int) -> None:
    """End the lease of an item that its consumer did not begin; at once when the lease was never written."""
    if item.lane.flow is not None and item.given is not None and item.given.moment is not None:  # it was charged here
        item.lane.flow.refund(item.bytes)
        throttling.give_back(item)
    if 0 < item.expires_at_ms <= now_ms - shard.late_ms:
        shard.put(Change(item, To.GONE, Cause.TTL, waits), now_ms)
    elif item.place is Place.READY and not item.busy:
        item.lane.namespace.released += 1
        shard.unlease(item)
    else:
        shard.put(Change(item, To.READY, Cause.RELEASE, waits, attempt=item.attempt - 1), now_ms)


def take_back(shard: Shard, item: Item, lease: int, now_ms: int) -> None:
    """Ends a lease that did not reach its consumer, unless it is over or being ended."""
    if shard.known.get(item.id) is item and stands(item, lease):
        give_back(shard, item, None, now_ms)


def stands(item: Item, lease: int) -> bool:
    """Whether the item is leased by `lease`, and nothing is ending that."""
    change = change_of(item)
    return item.lease == lease and item.phase is Phase.LEASED and (change is None or change.to in (To.LEASED, To.KEPT))


def mark(item: Item, *, begun: bool) -> None:
    """Note whether the consumer of a leased item has begun it."""
    if item.given is not None:
        item.given = item.given._replace(begun=begun)


def given_of(shard: Shard, item: Item) -> Given:
    """Return when a leased item was given, with its worker. Of a lease that this owner did not give, or has forgotten,
    only the last extension is known; it counts from the shard's opening at the earliest."""
    if item.given is None:
        item.given = Given(max(shard.opened_ms, item.lease_expires_at_ms - item.lease_ms), "")
    return item.given


def extend(lease: int, lease_ms: int, begun: bool | None = None) -> Op:
    """`lease_ms` 0: the duration of the original lease; with `begun`, the lease's end stays."""

    def decide(shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        if not _holds(item, lease):
            return StaleLease(_STALE)
        now = change_of(item)
        ended = now is not None and now.to is not To.LEASED and now.to is not To.KEPT
        if item.phase is not Phase.LEASED or ended:
            return StaleLease("the lease is over")
        if begun is not None:
            mark(item, begun=begun)
            if not lease_ms:
                return True
        until_ms = now_ms + (lease_ms or item.lease_ms)
        stuck_after_ms = shard.policies.of(item.lane.topic.key).stuck_after_ms
        if stuck_after_ms:
            until_ms = min(until_ms, given_of(shard, item).at_ms + stuck_after_ms)
            if until_ms <= now_ms:
                return StaleLease(f"the item was delivered more than stuck_after_ms ({stuck_after_ms}) ago")
        if item.place is Place.READY and now is None and shard.confirmed(now_ms):
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
    if now is not None and now.to is To.GONE:
        now.waits.append(waits)
        return False
    shard.put(Change(item, To.GONE, Cause.DELETE, waits), now_ms)
    return False


def lease_first(shard: Shard, item: Item, waits: Waits, now_ms: int) -> None:
    """Queue the lease of an at-most-once item, which is delivered only when its lease is committed."""
    shard.put(Change(item, To.LEASED, Cause.LEASE, waits), now_ms)
