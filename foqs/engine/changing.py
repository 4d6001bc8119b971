"""ChangeItems: another priority or time for an item that no consumer has. It leaves its place in its lane and enters at
the new one, as a fresh item with that priority and time would.

A change of the same item that waits, or is being committed, comes first: the item is looked up behind it, and decided
on then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from foqs.engine.calls import ItemsCall
from foqs.engine.item_ops import Verdict, change_of, given_of
from foqs.engine.shard import Shard
from foqs.errors import Conflict, FoqsError, Invalid, NotFound, NotServed
from foqs.item import UNREAD, Cause, Change, Item, Phase, Place, To, Waits
from foqs.rows import EndedRow, EndedState, Found


@dataclass(frozen=True, slots=True)
class Changing:
    """An op of `foqs.engine.ack.operate`. `priority` None: it stays. `at_ms` (Unix epoch): the item is delivered not
    before it, a past time: at once; None: its time stays. An item that is ready stays at its place for a past time."""

    priority: int | None
    at_ms: int | None

    def __call__(self, shard: Shard, item: Item, waits: Waits, now_ms: int) -> Verdict:
        change = change_of(item)
        if item.phase is Phase.LEASED and (change is None or change.to in (To.LEASED, To.KEPT)):
            return _leased(shard, item)
        if change is not None or (self.at_ms is not None and item.expires_at_ms == UNREAD):
            self._look_first(shard, item.id, waits)
            return False
        return self._change(shard, item, waits, now_ms, item.expires_at_ms)

    def _look_first(self, shard: Shard, item_id: int, waits: Waits) -> None:
        request, at = waits
        assert isinstance(request, ItemsCall), "requests about items by id have this op"

        def looked(item: Item | None, found: Found | None, error: FoqsError | None) -> None:
            if request.done:
                return
            verdict: Verdict
            if found is None:
                verdict = error or NotFound("no such item")
            elif found.ended is not None:
                verdict = kept(found.ended)
            elif item is None:
                verdict = NotServed()
            elif item.expires_at_ms == UNREAD and change_of(item) is None:
                verdict = self._change(shard, item, waits, shard.queue.now_ms(), found.body.expires_at_ms)
            else:
                verdict = self(shard, item, waits, shard.queue.now_ms())
            if verdict is not False:
                request.settled(at, None if verdict is True else verdict)

        shard.queue.looks.add(item_id, looked)
        shard.queue.touch()

    def _change(self, shard: Shard, item: Item, waits: Waits, now_ms: int, expires_at_ms: int) -> Verdict:
        """`item` has no change, and is not leased."""
        priority = item.priority if self.priority is None else self.priority
        due_ms, to = item.deliver_after_ms, To.READY if item.place is Place.READY else To.DELAYED
        if self.at_ms is not None and self.at_ms > now_ms:
            due_ms, to = self.at_ms, To.DELAYED
            if 0 < expires_at_ms <= due_ms:
                return Invalid(
                    f"the item may not wait until {shown_time(due_ms)}: its TTL ends at {shown_time(expires_at_ms)}"
                )
        elif self.at_ms is not None and to is To.DELAYED:
            due_ms, to = min(due_ms, now_ms), To.READY
        stays = (item.place is Place.READY) is (to is To.READY)
        if stays and (priority, due_ms) == (item.priority, item.deliver_after_ms) and shard.owner.confirmed(now_ms):
            return True
        lease = item.lease if to is To.READY else 0  # a late ack of a lease that ended by time still counts
        change = Change(item, to, Cause.CHANGE, waits, due_ms=due_ms, lease=lease)
        change.priority = priority
        shard.put(change, now_ms)
        return False


def _leased(shard: Shard, item: Item) -> Conflict:
    worker, topic = given_of(shard.owner, item).worker, item.lane.topic.key[1]
    who = f"worker {worker}" if worker else "a consumer"
    return Conflict(
        f"{who} has leased the item until {shown_time(item.lease_expires_at_ms)}: it may nack it with a delay, and "
        f"`foqs release {topic}` ends leases"
    )


def kept(ended: EndedRow) -> Conflict:
    """Return the error for an item that has ended, and that its topic keeps."""
    state = EndedState(ended.state).name
    return Conflict(f"the item has ended ({state}, {shown_time(ended.ended_at_ms)}) and is kept: it is not delivered")


def shown_time(at_ms: int) -> str:
    """Return a time of Unix epoch milliseconds as a person reads it.

    >>> shown_time(1_767_225_600_500)
    '2026-01-01T00:00:00.500Z'
    """
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
