"""Callers that wait for the end of an item, by its id. Each gets its answer when the end is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from foqs.errors import FoqsError, NotFound
from foqs.ids import shard_of
from foqs.item import Cause, Change, Item, To
from foqs.rows import EndedState, FailureRow, Found, ProgressRow

NO_ITEM = "no such item"
"""The message of an error that says nothing more of the id."""
_WAYS = {
    Cause.TTL: "its TTL ended",
    Cause.DELETE: "it was deleted",
    Cause.CANCEL: "it was cancelled",
    Cause.DROPPED: "the lease of an at-most-once item ended",
    Cause.HOOK: "the script of its topic dropped it",
}


class Ending(NamedTuple):
    """How an item ended. `failure` of a FAILED item, which may be in a dead-letter topic. `ns`: its namespace.
    `progress`: as it is stored."""

    state: EndedState
    ns: str
    result: bytes | None
    ended_at_ms: int
    failure: FailureRow | None = None
    progress: ProgressRow | None = None


class Living(NamedTuple):
    """An item that has not ended."""

    item: Item
    found: Found


def ending_of(change: Change, now_ms: int) -> Ending | FoqsError | None:
    """Return the end of an item whose `change` is committed; None if it has not ended."""
    ns, kept = change.item.lane.topic.key[0], change.ended
    failure = change.move.failure if change.move is not None else change.failure
    if failure is not None:
        if kept is not None:  # with the time that a later call gets
            failure = failure._replace(died_at_ms=kept.ended_at_ms)
        return Ending(EndedState.FAILED, ns, None, failure.died_at_ms, failure)
    if change.to is not To.GONE:
        return None
    if change.cause is Cause.ACK:
        return Ending(EndedState.COMPLETED, ns, change.result, now_ms if kept is None else kept.ended_at_ms)
    return NotFound(f"the item ended without a result: {_WAYS.get(change.cause, change.cause.name.lower())}")


class EndCall:
    """A request for the end of an item. `reply` is called once, with the end, with the item if it has not ended by the
    time that it waits for, or with an error.

    While `waits`, the end is awaited. `over` is called at the end of the wait, to read the item's state. `ending`: the
    item has ended, and its progress is read; the answer if that fails, or finds that the item is kept no longer."""

    __slots__ = ("_over", "_reply", "done", "ending", "item_id", "waits")

    def __init__(
        self, item_id: int, reply: Callable[[Ending | Living | FoqsError], None], over: Callable[[EndCall], None]
    ) -> None:  # fmt: skip
        self.item_id = item_id
        self.waits = False
        self.done = False
        self.ending: Ending | FoqsError | None = None
        self._reply = reply
        self._over = over

    def end(self, outcome: Ending | Living | FoqsError) -> None:
        if not self.done:
            self.done = True
            reply, self._reply, self._over = self._reply, _answered, _answered
            reply(self.ending if self.ending is not None and isinstance(outcome, FoqsError) else outcome)

    def look(self) -> None:
        """Wait no longer: read the item's state."""
        self.waits = False
        self._over(self)

    def timed_out(self, shards: object) -> None:
        self.look()


def _answered(_: Any) -> None:
    """The call has ended."""


class Awaited:
    """The calls that wait on a host, by the id of their item."""

    __slots__ = ("calls", "count")

    def __init__(self) -> None:
        self.calls: dict[int, list[EndCall]] = {}
        self.count = 0

    def add(self, call: EndCall) -> None:
        call.waits = True
        self.calls.setdefault(call.item_id, []).append(call)
        self.count += 1

    def discard(self, call: EndCall) -> None:
        """Forget a call that waits no longer."""
        waiting = self.calls.get(call.item_id, [])
        if call in waiting:
            waiting.remove(call)
            self.count -= 1
            if not waiting:
                del self.calls[call.item_id]

    def committed(self, change: Change, now_ms: int, *, noted: bool) -> None:
        """Tell the callers that wait for an item whose `change` is committed. `noted`: the item that is kept has
        progress or a log, which is read for them."""
        item_id = change.item.id
        if item_id not in self.calls or (ending := ending_of(change, now_ms)) is None:
            return
        if noted and change.ended is not None:
            for call in self._take(item_id):
                call.ending = ending
                call.look()
        else:
            self._end(item_id, ending)

    def closed(self, shard: int, error: FoqsError) -> None:
        """Refuse the calls for items of a shard that is no longer served."""
        for item_id in [item_id for item_id in self.calls if shard_of(item_id) == shard]:
            self._end(item_id, error)

    def _end(self, item_id: int, outcome: Ending | FoqsError) -> None:
        for call in self._take(item_id):
            call.end(outcome)

    def _take(self, item_id: int) -> list[EndCall]:
        waiting = self.calls.pop(item_id)
        self.count -= len(waiting)
        return waiting
