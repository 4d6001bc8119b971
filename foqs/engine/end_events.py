"""End events: the transaction that ends an item stores a small item in the topic that the policy `on_end_topic` names.

An event goes with its item: both are committed, or neither. A change that is not committed makes another event when it
is tried again. No bound of the topic of the events applies, so an event never refuses an end.
"""

from __future__ import annotations

import json
from base64 import b64encode

from foqs.engine.shard import Shard
from foqs.fairness.keys import LaneKey, lane_key, tenancy_of
from foqs.item import Cause, Change, Item, To
from foqs.item_batch import HowEnded
from foqs.prefetch.lane import Lane
from foqs.rows import FailureCause, NewItem

_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
HEADERS = b'{"content-type":"application/json"}'
_HOW = {
    Cause.ACK: HowEnded.COMPLETED,
    Cause.TTL: HowEnded.EXPIRED,
    Cause.DELETE: HowEnded.DELETED,
    Cause.CANCEL: HowEnded.CANCELLED,
    Cause.DROPPED: HowEnded.LEASE_ENDED,
    Cause.HOOK: HowEnded.DROPPED,
}
"""Any other end is that of an item that has failed."""


def how_ended(change: Change) -> HowEnded | None:
    """Return how the item of a change ends, None if it does not. A dead letter has ended."""
    if change.to is To.GONE:
        return HowEnded.FAILED if change.failure is not None else _HOW.get(change.cause, HowEnded.FAILED)
    return HowEnded.FAILED if change.move is not None and change.move.failure is not None else None


def has_event(shard: Shard, change: Change) -> bool:
    return how_ended(change) is not None and _topic_of(shard, change.item.lane) is not None


def event_of(shard: Shard, change: Change, now_ms: int) -> tuple[LaneKey, NewItem] | None:
    """Return the event of a change, and its lane: that of the same tenant in the other topic. What an enqueue there
    would get from the topic's policy, the event gets, too. None if the change has no event."""
    how = how_ended(change)
    if how is None:
        return None
    lane = change.item.lane
    topic = _topic_of(shard, lane)
    if topic is None:
        return None
    key = lane.topic.key[0], topic
    policy = shard.policies.of(key)
    payload = _payload(change, how, now_ms)
    if len(payload) > shard.queue.payload_bytes:  # a reply must hold any item of that length
        payload = _payload(change, how, now_ms, whole=False)
    due_ms = now_ms + policy.delay_ms if policy.delay_ms else 0
    event = NewItem(
        payload, None, HEADERS, policy.priority, due_ms or now_ms, due_ms, now_ms,
        now_ms + policy.ttl_ms if policy.ttl_ms else 0, policy.lease_ms or 0, policy.delivery,
    )  # fmt: skip
    return lane_key(key, tenancy_of(lane.key)[0]), event


def _topic_of(shard: Shard, lane: Lane[Item]) -> str | None:
    """Return the topic that gets the events of a lane, None without events: also where a topic takes dead letters, so
    that their removal is no second end."""
    return shard.policy_of(lane).on_end_topic if lane.topic.key[0] in shard.policies.reporting else None


def _payload(change: Change, how: HowEnded, now_ms: int, *, whole: bool = True) -> bytes:
    """Return what the event says: docs/do/results.md describes its fields. Not `whole`: without the result."""
    item = change.item
    said: dict[str, object] = {
        "id": str(item.id),  # JavaScript has no integers of 64 bits
        "topic": item.lane.topic.key[1],
        "how": how.name.lower(),
        "ended_at_ms": now_ms,
    }
    if change.result is not None:
        said |= _text("result", change.result) if whole else {"result_bytes": len(change.result)}
    failure = change.failure if change.move is None else change.move.failure
    if failure is not None:
        said["failure"] = _failure(failure.cause, failure.attempts, failure.reason, failure.worker)
    elif change.failed is not None:
        failed = change.failed
        said["failure"] = _failure(failed.cause, failed.attempt, failed.reason, failed.worker)
    return _encoded(said).encode()


def _failure(cause: int, attempts: int, reason: bytes, worker: bytes) -> dict[str, object]:
    return {
        "cause": FailureCause(cause).name.lower(),
        "attempts": attempts,
        "reason": reason.decode(),
        "worker": worker.decode(),
    }


def _text(name: str, value: bytes) -> dict[str, object]:
    """Return a field with a value that is UTF-8, or with any other one in base64, as CloudEvents names it."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}
