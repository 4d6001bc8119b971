"""Acks, nacks, extensions, changes and deletes of a request: find each item, ask the script of a failed item, and
decide the op.

A nack asks the topic's script before it is carried out, and begins again with the answer: its lease may have ended by
then. The end of a lease by time is left to a later scan, which finds the answer. No state of an item changes while a
script is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from foqs.engine import item_ops, kept_items
from foqs.engine.asked_scripts import WAIT_MS, Answer
from foqs.engine.calls import ItemsCall
from foqs.engine.changing import Changing, kept
from foqs.engine.item_ops import change_of
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.engine.state import State
from foqs.errors import FoqsError, NotFound, NotServed, Overloaded, Unavailable
from foqs.hooks.protocol import Decided, FailedAttempt, FailureResult
from foqs.ids import shard_of
from foqs.item import Item, Place, To
from foqs.rows import Body, FailureCause, Found, NewItem

_RETRY_MS = 100


def operate(state: State, call: ItemsCall, at: int, item_id: int, op: item_ops.Op, ns: str | None, now_ms: int) -> None:
    """Decide `op` on one item, after a look-up if it is not in memory."""
    shard = state.shards.get(shard_of(item_id))
    if shard is None:
        call.settled(at, state.absent())
    elif not state.settles(shard):
        call.settled(at, NotServed())
    elif shard.queue.full:
        call.settled(at, Overloaded("too much waits for the item's shard", _RETRY_MS))
    else:
        item = shard.memory.known.get(item_id)
        if item is not None:
            _decide(state, call, at, shard, item, op, ns, now_ms)
        else:
            _look_first(state, call, at, shard, item_id, op, ns)
        state.touch(shard)


def _decide(
    state: State, call: ItemsCall, at: int, shard: Shard, item: Item, op: item_ops.Op, ns: str | None, now_ms: int
) -> None:
    found = item.lane.topic.key[0]
    if (ns is not None and found != ns) or (call.within is not None and found not in call.within):
        call.settled(at, NotFound("no such item"))
        return
    if item.place is Place.READY and shard.owner.in_takeover_grace(now_ms):
        # The previous owner may still have the item in memory, and could lease it after it was removed here.
        retry_after_ms = shard.config.confirm_ms
        call.settled(at, Unavailable("the item's shard was just taken from another host", retry_after_ms))
        return
    if isinstance(op, item_ops.Failing) and op.decision is None and asks_first(shard, item, op.lease):
        go_on = lambda decision: operate(state, call, at, item.id, replace(op, decision=decision), ns, state.now_ms)  # noqa: E731
        ask_first(state, call, at, shard, item, op.cause, op.reason, go_on)
        return
    call.items[at] = item
    verdict = op(shard, item, (call, at), now_ms)
    if verdict is not False:
        call.settled(at, None if verdict is True else verdict)


def _look_first(
    state: State, call: ItemsCall, at: int, shard: Shard, item_id: int, op: item_ops.Op, ns: str | None
) -> None:
    def look(item: Item | None, found: Found | None, error: FoqsError | None) -> None:
        if call.done:
            return
        if error is not None:
            call.settled(at, error)
        elif found is not None and found.ended is not None and op is item_ops.delete:
            kept_items.delete(shard, call, at, found.ended, ns)
            state.touch(shard)
        elif found is not None and found.ended is not None and isinstance(op, Changing):
            visible = kept_items.lane_for(shard, call, found.ended, ns) is not None
            call.settled(at, kept(found.ended) if visible else NotFound("no such item"))
        elif item is None:
            call.settled(at, NotFound("no such item"))
        else:
            _decide(state, call, at, shard, item, op, ns, state.now_ms)

    shard.queue.looks.add(item_id, look)


BY_POLICY = Answer()
_Read = Callable[[NewItem | Body | None, FoqsError | None], None]
"""Called with the body of an item, or with None and the error that kept it from being read, if any."""


def has_hook(shard: Shard, item: Item) -> bool:
    """Return True if a script decides about the item's failures. At-most-once items end with their lease."""
    if shard.ask_script is None or item.at_most_once:
        return False
    rule = shard.policies.of(item.lane.topic.key).hooks
    return rule is not None and rule.on_failure is not None


def asks_first(shard: Shard, item: Item, lease: int) -> bool:
    """Return True if a script is asked before a nack with this token: it is the item's, and nothing else ends it."""
    change = change_of(item)
    ends = change is not None and change.to is not To.LEASED and change.to is not To.KEPT
    return lease != 0 and item.lease == lease and item.attempt > 0 and not ends and has_hook(shard, item)


def ask_first(
    state: State, call: ItemsCall, at: int, shard: Shard, item: Item, cause: FailureCause, reason: str,
    go_on: Callable[[FailureResult], None],
) -> None:  # fmt: skip
    """Ask the script of a nack, and call `go_on` with its answer, or refuse the entry of `call`."""

    def decided(outcome: FailureResult | FoqsError | None, now_ms: int) -> None:
        if call.done:
            return
        state.now_ms = now_ms
        if isinstance(outcome, FoqsError):
            call.settled(at, outcome)
        else:
            go_on(outcome or FailureResult())

    def read(body: NewItem | Body | None, error: FoqsError | None) -> None:
        if call.done:
            return
        if body is None:
            call.settled(at, error or NotFound("no such item"))
        else:
            _ask(shard, item, body, cause, reason, None, decided)

    _with_body(shard.queue, item, read)
    state.touch(shard)


def answer_at_expiry(shard: Shard, item: Item, now_ms: int) -> Answer | None:
    """Return what decides about an item whose lease has ended; None: leave it, its script is being asked."""
    if item.attempts_begun < item.attempt or not has_hook(shard, item):
        return BY_POLICY
    asked, key, topic = shard.queue.asked, (item.id, item.lease, item.lease_expires_at_ms), item.lane.topic.key
    answer = asked.take(key)
    if answer is not None and answer.changes == shard.policies.changes:
        return answer
    if key in asked:
        return None
    if asked.resting(topic, now_ms):
        return BY_POLICY
    if asked.full(topic):
        return None
    asked.ask(key, topic, now_ms)

    def decided(outcome: FailureResult | FoqsError | None, at_ms: int) -> None:
        result = None if isinstance(outcome, FoqsError) else outcome
        asked.answered(key, topic, result, at_ms, shard.policies.changes)

    def read(body: NewItem | Body | None, error: FoqsError | None) -> None:
        if body is None:  # gone, or the shard was not read: the scan asks again if the row is still there
            asked.forget(key)
        else:
            _ask(shard, item, body, FailureCause.EXPIRED, "", WAIT_MS, decided)

    _with_body(shard.queue, item, read)
    return None


def _ask(
    shard: Shard, item: Item, body: NewItem | Body, cause: FailureCause, reason: str, within_ms: int | None,
    decided: Decided,
) -> None:  # fmt: skip
    assert shard.ask_script is not None, "the topic has a hook"
    size_bytes = len(body.payload)
    attempt = FailedAttempt(
        item.lane.topic.key, body.headers, size_bytes, item.priority, item.attempt, cause, reason, within_ms
    )
    shard.ask_script(attempt, decided)


def _with_body(queue: ShardQueue, item: Item, read: _Read) -> None:
    """Call `read` with the item's body, at once if it is in memory: the headers are in the body's row."""
    if item.body is not None:
        read(item.body, None)
    else:
        queue.looks.add(item.id, partial(_looked, read))


def _looked(read: _Read, _item: Item | None, found: Found | None, error: FoqsError | None) -> None:
    read(None if found is None else found.body, error)
