"""The engine's outcomes and items as structs of the contract. `reply_bytes.py` has the usual replies as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.api.validation import headers_of
from foqs.counters import Counters
from foqs.errors import FoqsError, wire_code
from foqs.fairness.keys import LaneKey, TopicKey, fairness_of, is_plain, tenancy_of, topic_key, unpack_throttles
from foqs.fairness.ledger import Ledgers, Overtaken
from foqs.idl import idl
from foqs.ids import Duplicate
from foqs.item import Item
from foqs.peers.tenant_shares import Elsewhere
from foqs.rows import Body, FailureRow, NewItem
from foqs.rpc.call import Call
from foqs.wire.protocol import lean

_Item = lean(idl.Item)
_EnqueueOutcome = lean(idl.EnqueueOutcome)
_OK = idl.ItemOutcome()
_ERROR_BYTES = 32
"""What an error takes in an answer beside its message."""
_CHARACTER_BYTES = 4
REPLY_OVERHEAD_BYTES = 1024
"""The most that a reply has beside its items, and the limits of topics with `per_worker`."""
_LIMIT_BYTES = 8
"""What a limit takes in an answer beside the name of its topic."""


def limits_bytes(keys: Sequence[tuple[TopicKey, int]]) -> int:
    """Return the most bytes that the limits of the topics take in an answer."""
    return sum([len(topic.encode()) + _LIMIT_BYTES for (_, topic), _ in keys])


def refusal(call: Call, error: FoqsError, counters: Counters) -> Any:
    """Return `error` as the answer to an item, or to a part of a request."""
    counters.refused[error.code] += 1
    return idl.ItemError(wire_code(error, call.request), error.message, error.retry_after_ms)


def enqueue_outcomes(call: Call, outcomes: list[int | FoqsError], counters: Counters) -> list[Any]:
    """Return the outcomes for the answer to `call`. Unknown outcomes are logged."""
    made = []
    unknown: list[FoqsError] = []
    for outcome in outcomes:
        one = _EnqueueOutcome()
        if isinstance(outcome, int):
            one.id = outcome
            if isinstance(outcome, Duplicate):
                one.duplicate = True
                counters.duplicates += 1
        else:
            one.error = refusal(call, outcome, counters)
            if not outcome.outcome_known:
                unknown.append(outcome)
        made.append(one)
    if unknown:
        call.doubt(len(unknown), unknown[0].message)
    return made


def item_outcomes(call: Call, outcomes: list[FoqsError | None], counters: Counters) -> list[Any]:
    """As `enqueue_outcomes`, for items by id."""
    unknown: list[FoqsError] = []
    made = [_OK if error is None else _failed(call, error, counters, unknown) for error in outcomes]
    if unknown:
        call.doubt(len(unknown), unknown[0].message)
    return made


def _failed(call: Call, error: FoqsError, counters: Counters, unknown: list[FoqsError]) -> Any:
    if not error.outcome_known:
        unknown.append(error)
    return idl.ItemOutcome(refusal(call, error, counters))


def outcomes_bytes(outcomes: list[Any]) -> int:
    """Return the most bytes that item outcomes take in an answer."""
    errors = [_ERROR_BYTES + _CHARACTER_BYTES * len(one.error.message) for one in outcomes if one.error is not None]
    return len(outcomes) + sum(errors)


def leased(item: Item) -> Any:
    """Return the item as its consumer gets it. Its body is in memory."""
    body = item.body
    assert body is not None
    made = _with_body(item.lane.key, body)
    made.lease = item.lease
    made.attempt = item.attempt
    made.deliver_after_ms = item.deliver_after_ms
    made.lease_expires_at_ms = item.lease_expires_at_ms
    return made


def with_ledgers(
    items: Sequence[Item], made: Sequence[Any], ledgers: Ledgers, elsewhere: Elsewhere, now_ms: int
) -> None:
    """Give each of `made`, the items as their consumer gets them now, its ledger."""
    of_topics: dict[TopicKey, list[tuple[str, int]]] = {}
    for item in items:
        of_topics.setdefault(item.lane.topic.key, []).append((fairness_of(item.lane.key), item.id))
    overtaken: dict[int, Overtaken | None] = {}
    urgent = {key: elsewhere.most_urgent(key) for key in of_topics}
    for key, named in of_topics.items():
        overtaken.update(zip([item_id for _, item_id in named], ledgers.overtaken(key, named), strict=True))
    for item, one in zip(items, made, strict=True):
        one.ledger = ledger = idl.Ledger(max(0, now_ms - one.deliver_after_ms))
        found = overtaken[item.id]
        if found is not None:
            ledger.overtaken = found.own
            if item.lane.flow is not None:
                ledger.other_tenants = found.others
        topic = item.lane.topic
        other = urgent[topic.key]
        if other is not None and other.priority < item.priority and (topic.turns is None or topic.turns.ranked):
            ledger.more_urgent_elsewhere, ledger.more_urgent_age_ms = other


def shown(
    lane: LaneKey,
    body: Body,
    attempt: int,
    state: int,
    lease_expires_at_ms: int,
    failure: FailureRow | None,
) -> Any:
    """Return an item as an operator gets it: with no lease to ack it."""
    made = _with_body(lane, body)
    made.lease = 0
    made.attempt = attempt
    made.deliver_after_ms = body.deliver_after_ms
    made.lease_expires_at_ms = lease_expires_at_ms
    made.state = state
    if failure is not None:
        made.failure = idl.Failure(
            topic=failure.topic.decode(),
            fairness_key=failure.fairness.decode(),
            throttle_keys=list(unpack_throttles(failure.throttles)),
            attempts=failure.attempts,
            cause=failure.cause,
            reason=failure.reason.decode(),
            fingerprint=failure.fingerprint,
            died_at_ms=failure.died_at_ms,
        )
    return made


def _with_body(lane: LaneKey, body: Body | NewItem) -> Any:
    made = _Item()
    made.id = body.id
    made.ns, made.topic = topic_key(lane)
    if not is_plain(lane):
        fairness, throttles = tenancy_of(lane)
        made.fairness_key = fairness or None
        made.throttle_keys = list(throttles) or None
    made.priority = body.priority
    made.payload = body.payload
    made.delivery = body.delivery
    made.enqueued_at_ms = body.enqueued_at_ms
    if body.metadata is not None:
        made.metadata = body.metadata
    if body.headers is not None:
        made.headers = headers_of(body.headers)
    if body.expires_at_ms:
        made.expires_at_ms = body.expires_at_ms
    return made
