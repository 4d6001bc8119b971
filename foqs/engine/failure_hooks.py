"""Scripts that decide about failed items: which end of a lease asks one, and how its answer is used.

A nack asks the script before it is carried out, and begins again with the answer: its lease may have ended by then. The
end of a lease by time is left to a later scan, which finds the answer. No state of an item changes while a script is
asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foqs.engine.asked_scripts import WAIT_MS, Answer
from foqs.engine.pending import ItemsCall, change_of
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, NotFound
from foqs.hooks.protocol import Decided, FailedAttempt, FailureResult
from foqs.item import Item, To
from foqs.rows import Body, FailureCause, Found, NewItem

BY_POLICY = Answer()
_Read = Callable[[NewItem | Body | None, FoqsError | None], None]
"""Called with the body of an item, or None where there is none or the error kept it from being read."""


def has_hook(shard: Shard, item: Item) -> bool:
    """Whether a script decides about the item's failures. At-most-once items end with their lease."""
    if shard.ask_script is None or item.at_most_once:
        return False
    rule = shard.policies.of(item.lane.topic.key).hooks
    return rule is not None and rule.on_failure is not None


def asks_first(shard: Shard, item: Item, lease: int) -> bool:
    """Whether a script is asked before a nack with this token: it is the item's, and nothing else ends its lease."""
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

    _with_body(shard, item, read)
    state.touch(shard)


def answer_at_expiry(shard: Shard, item: Item, now_ms: int) -> Answer | None:
    """Return what decides about an item whose lease is over; None: leave it, its script is being asked."""
    if item.attempts_begun < item.attempt or not has_hook(shard, item):
        return BY_POLICY
    asked, key, topic = shard.asked, (item.id, item.lease, item.lease_expires_at_ms), item.lane.topic.key
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

    _with_body(shard, item, read)
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


def _with_body(shard: Shard, item: Item, read: _Read) -> None:
    """Call `read` with the item's body, at once if it is in memory: the headers are in the body's row."""
    if item.body is not None:
        read(item.body, None)
    else:
        shard.looks.add(item.id, partial(_looked, read))


def _looked(read: _Read, _item: Item | None, found: Found | None, error: FoqsError | None) -> None:
    read(None if found is None else found.body, error)
