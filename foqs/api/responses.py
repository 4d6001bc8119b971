"""Outcomes and items of the engine as answers: structs of the contract, and usual replies as bytes.

Functions that return bytes make no struct for each item. The structs and the codec are the reference: these functions
return exactly the same bytes, or None for outcomes that the structs have to carry (errors, duplicates).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Any

from foqs.counters import Counters
from foqs.engine.item_ops import Failing, Op
from foqs.engine.listing import last_failure_struct
from foqs.engine.ordered import is_behind
from foqs.errors import FoqsError, KeyElsewhere, wire_code
from foqs.fairness.keys import (
    LaneKey,
    TopicKey,
    fairness_of,
    is_plain,
    rules_of,
    tenancy_of,
    topic_key,
    unpack_throttles,
)
from foqs.fairness.ledger import Ledgers, Overtaken
from foqs.idl import idl, is_forwarded
from foqs.item import Item, Phase, Place
from foqs.peers.tenant_shares import Elsewhere
from foqs.policies.failures import is_newer
from foqs.prefetch.lane import Lane
from foqs.rows import Body, FailureRow, LastFailure, NewItem, ProgressRow
from foqs.rpc.call import Call
from foqs.rules import ItemRules, unpack_rules
from foqs.second_answer import Duplicate, Replaced
from foqs.wire.protocol import I32, I64, LIST, MAP, STRING, STRUCT, encode_struct, field_head, lean

_STOP = b"\0"
_LIST_FIELD = field_head(LIST, 1) + bytes((STRUCT,))
_SECOND_LIST_FIELD = field_head(LIST, 2) + bytes((STRUCT,))
_ID_FIELD = field_head(I64, 1)
_NAMES_KEPT = 1_024

_count = Struct(">I").pack
_outcome = Struct(">3sqB").pack
# Up to the attempt; priority and the payload's length; the delivery and the times behind it.
_head = Struct(">3sq3sq3si").pack
_middle = Struct(">3si3sI").pack
_tail = Struct(">3si3sq3sq3sq").pack
_i64 = Struct(">3sq").pack
_read_json = json.JSONDecoder().raw_decode
_LEASE, _ATTEMPT, _NS, _TOPIC = field_head(I64, 2), field_head(I32, 3), field_head(STRING, 4), field_head(STRING, 5)
_PRIORITY, _PAYLOAD, _DELIVERY = field_head(I32, 6), field_head(STRING, 7), field_head(I32, 10)
_FAIRNESS, _THROTTLES = field_head(STRING, 17), field_head(LIST, 18) + bytes((STRING,))
_CHECKPOINT, _RULES, _ORDER_KEY = field_head(STRING, 23), field_head(STRUCT, 26), field_head(STRING, 28)
_BATCH = field_head(I64, 29)
_DELIVER_AFTER, _ENQUEUED_AT, _EXPIRES_AT = field_head(I64, 11), field_head(I64, 12), field_head(I64, 13)
_METADATA, _HEADERS, _TTL_END = field_head(STRING, 8), field_head(MAP, 9) + bytes((STRING, STRING)), field_head(I64, 14)


_Item = lean(idl.Item)
_EnqueueOutcome = lean(idl.EnqueueOutcome)
_OK = idl.ItemOutcome()
_ERROR_BYTES = 32
"""Size of an error in an answer without its message."""
_CHARACTER_BYTES = 4
REPLY_OVERHEAD_BYTES = 1024
"""Bound on the size of a reply without its items and the limits of topics with `per_worker`."""
_LIMIT_BYTES = 8
"""Size of a topic's limit in an answer without the topic's name."""


def answer_enqueue(call: Call, counters: Counters, outcomes: list[int | FoqsError]) -> None:
    """Reply with an EnqueueResponse."""
    if set(map(type, outcomes)) == {int}:  # all were stored, none of them a duplicate
        stored = b"".join(map(_outcome, repeat(_ID_FIELD), outcomes, repeat(0)))
        call.reply(b"".join((_LIST_FIELD, _count(len(outcomes)), stored, _STOP)))
    else:
        call.reply(idl.EnqueueResponse(enqueue_outcomes(call, outcomes, counters)))


def answer_items(
    call: Call, response: Any, counters: Counters,
    of_entries: Callable[[Sequence[FoqsError | None]], list[FoqsError | None]] | None,
    outcomes: list[FoqsError | None],
) -> None:  # fmt: skip
    """Reply with the response to acks, nacks, extensions or deletes, a struct of the class `response`. `of_entries`
    makes the outcomes of the request's entries where `outcomes` are of some of them."""
    if of_entries is not None:
        outcomes = of_entries(outcomes)
    count = len(outcomes)
    if outcomes.count(None) == count:  # an outcome without an error is its STOP
        call.reply(_LIST_FIELD + _count(count) + bytes(count + 1))
    else:
        call.reply(response(item_outcomes(call, outcomes, counters)))


def answer_nacks(
    call: Call, counters: Counters, answers: Sequence[int | FoqsError] | None, op: Callable[[int], Op],
    outcomes: list[FoqsError | None],
) -> None:  # fmt: skip
    """Reply with the NackResponse, which says what happens to items that failed. `answers`: as of `Sifted`; None: each
    entry has an outcome of its own."""
    ops = [op(at) for at in range(len(outcomes))]
    after = [one.after if isinstance(one, Failing) else [] for one in ops]
    entries = range(len(outcomes)) if answers is None else answers
    given = [at if isinstance(at, FoqsError) else outcomes[at] for at in entries]
    if not any(after):
        answer_items(call, idl.NackResponse, counters, None, given)
        return
    made = item_outcomes(call, given, counters)
    for entry, at in enumerate(entries):
        if isinstance(at, int) and outcomes[at] is None and after[at]:
            made[entry] = idl.ItemOutcome(None, idl.AfterFailure(*after[at][-1]))
    call.reply(idl.NackResponse(made))


def dequeue_response(items: Sequence[Item]) -> bytes:
    """Return the DequeueResponse of leased items whose bodies are in memory."""
    parts = [_LIST_FIELD, _count(len(items))]
    lane, names, end, headers, pairs = None, b"", _STOP, None, b""
    ends: dict[Lane[Item], bytes] = {}
    for item in items:
        body = item.body
        assert body is not None
        extras = expiry = b""
        if body.metadata is not None:
            extras = _METADATA + _count(len(body.metadata)) + body.metadata
        if body.headers is not None:
            if body.headers != headers:
                headers, pairs = body.headers, _headers(body.headers)
            extras += pairs
        if body.expires_at_ms:
            expiry = _i64(_TTL_END, body.expires_at_ms)
        if item.lane is not lane:
            lane = item.lane
            names = _names(*lane.topic.key)
            end = _STOP if lane.tenants is None else ends.get(lane) or ends.setdefault(lane, _lane_fields(lane.key))
        payload, last = body.payload, end
        if body.checkpoint is not None:
            last = _lane_fields(lane.key, _CHECKPOINT + _count(len(body.checkpoint)) + body.checkpoint)
        if body.order_key is not None:
            last = b"".join((last[: -len(_STOP)], _ORDER_KEY, _count(len(body.order_key)), body.order_key, _STOP))
        if body.batch:
            last = last[: -len(_STOP)] + _i64(_BATCH, body.batch) + _STOP
        parts += (
            _head(_ID_FIELD, item.id, _LEASE, item.lease, _ATTEMPT, item.attempt),
            names,
            _middle(_PRIORITY, body.priority, _PAYLOAD, len(payload)),
            payload,
            extras,
            _tail(
                _DELIVERY, body.delivery, _DELIVER_AFTER, item.deliver_after_ms, _ENQUEUED_AT, body.enqueued_at_ms,
                _EXPIRES_AT, item.lease_expires_at_ms,
            ),
            expiry,
            last,
        )  # fmt: skip
    parts.append(_STOP)
    return b"".join(parts)


def ack_and_dequeue_response(acks: int, acked: bytes, dequeued: bytes) -> bytes:
    """Return the AckAndDequeueResponse with the outcomes of the AckResponse `acked` and the items of
    `dequeue_response`. `acked` is empty if all of `acks` were carried out."""
    outcomes = acked[: -len(_STOP)] or _LIST_FIELD + _count(acks) + bytes(acks)
    return b"".join((outcomes, _SECOND_LIST_FIELD, dequeued[len(_LIST_FIELD) :]))


@lru_cache(_NAMES_KEPT)
def _names(ns: str, topic: str) -> bytes:
    """Return the fields `ns` and `topic` of an item."""
    return _text(_NS, ns) + _text(_TOPIC, topic)


def _headers(stored: bytes) -> bytes:
    """Return the field `headers` of an item."""
    found, _ = _read_json(stored.decode())
    texts = [text.encode() for pair in found.items() for text in pair]
    return _HEADERS + _count(len(found)) + b"".join([_count(len(text)) + text for text in texts])


def _lane_fields(lane: LaneKey, between: bytes = b"") -> bytes:
    """Return the fields `fairness_key`, `throttle_keys` and `rules` of an item, and its end; before `rules`, those
    `between`. (A cache across replies would hold blocks of memory for tenants that are gone.)"""
    (fairness, throttles), rules = tenancy_of(lane), rules_of(lane)
    made = b""
    if fairness:  # `_text`
        encoded = fairness.encode()
        made = _FAIRNESS + _count(len(encoded)) + encoded
    if throttles:
        made += _THROTTLES + _count(len(throttles)) + b"".join([_text(b"", key) for key in throttles])
    made += between
    if rules is not None:
        made += _RULES + encode_struct(rules_struct(rules))
    return made + _STOP


def _text(head: bytes, value: str) -> bytes:
    encoded = value.encode()
    return head + _count(len(encoded)) + encoded


def limits_bytes(keys: Sequence[tuple[TopicKey, int]]) -> int:
    """Return the most bytes that the limits of the topics take in an answer."""
    return sum([len(topic.encode()) + _LIMIT_BYTES for (_, topic), _ in keys])


def refusal(call: Call, error: FoqsError, counters: Counters) -> Any:
    """Return `error` as the answer to an item, or to a part of a request."""
    counters.refused[error.code] += 1
    made = idl.ItemError(wire_code(error, call.request), error.message, error.retry_after_ms)
    if isinstance(error, KeyElsewhere) and is_forwarded(call.request):
        made.home = idl.KeyHome(*error.home)
    return made


def enqueue_outcomes(call: Call, outcomes: list[int | FoqsError], counters: Counters) -> list[Any]:
    """Return the outcomes for the answer to `call`. Unknown outcomes are logged."""
    made = []
    for outcome in outcomes:
        one = _EnqueueOutcome()
        if isinstance(outcome, int):
            one.id = outcome
            if isinstance(outcome, Duplicate):
                one.duplicate = True
                if isinstance(outcome, Replaced):
                    one.replaced = True
                counters.duplicates += 1
        else:
            one.error = refusal(call, outcome, counters)
        made.append(one)
    _doubt_unknown(call, outcomes)
    return made


def item_outcomes(call: Call, outcomes: list[FoqsError | None], counters: Counters) -> list[Any]:
    """Return the outcomes of items by id for the answer to `call`. Unknown outcomes are logged."""
    if outcomes.count(None) == len(outcomes):
        return [_OK] * len(outcomes)
    _doubt_unknown(call, outcomes)
    return [_OK if error is None else idl.ItemOutcome(refusal(call, error, counters)) for error in outcomes]


def _doubt_unknown(call: Call, outcomes: Sequence[object]) -> None:
    unknown = [one for one in outcomes if isinstance(one, FoqsError) and not one.outcome_known]
    if unknown:
        call.doubt(len(unknown), unknown[0].message)


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
    ended_at_ms: int = 0,
    progress: ProgressRow | None = None,
    last_failure: LastFailure | None = None,
) -> Any:
    """Return an item as an operator gets it: with no lease to ack it."""
    made = _with_body(lane, body)
    made.lease = 0
    made.attempt = attempt
    made.deliver_after_ms = body.deliver_after_ms
    made.lease_expires_at_ms = lease_expires_at_ms
    made.state = state
    if failure is not None:
        made.failure = failure_struct(failure)
        rules = unpack_rules(failure.rules)
        made.rules = None if rules is None else rules_struct(rules)
    if last_failure is not None and is_newer(last_failure, failure):
        made.last_failure = last_failure_struct(last_failure)
    if ended_at_ms:
        made.ended_at_ms = ended_at_ms
    if progress is not None:
        made.progress, made.log = progress_fields(progress)
    return made


def state_of(item: Item) -> Any:
    """Return the ItemState of an item that has not ended."""
    if item.phase is Phase.LEASED:
        return idl.ItemState.LEASED
    if item.place is Place.TIMER:
        return idl.ItemState.DELAYED
    return idl.ItemState.BEHIND if is_behind(item) else idl.ItemState.READY


_KINDS = {"constant": 1, "linear": 2, "exponential": 3}


def rules_struct(rules: ItemRules) -> Any:
    retry = None if rules.retry is None else idl.RetryRule(_KINDS[rules.retry.kind], *rules.retry[1:])
    return idl.ItemRules(retry, *rules[1:])


def progress_fields(row: ProgressRow | None) -> tuple[Any, list[str] | None]:
    """Return the fields `progress` and `log`."""
    if row is None:
        return None, None
    text = None if row.text is None else row.text.decode()
    return None if row.done is None else idl.Progress(row.done, row.total, text), row.lines() or None


def failure_struct(failure: FailureRow) -> Any:
    return idl.Failure(
        topic=failure.topic.decode(),
        fairness_key=failure.fairness.decode(),
        throttle_keys=list(unpack_throttles(failure.throttles)),
        attempts=failure.attempts,
        cause=failure.cause,
        reason=failure.reason.decode(),
        fingerprint=failure.fingerprint,
        died_at_ms=failure.died_at_ms,
        worker=failure.worker.decode() or None,
    )


def _with_body(lane: LaneKey, body: Body | NewItem) -> Any:
    made = _Item()
    made.id = body.id
    made.ns, made.topic = topic_key(lane)
    if not is_plain(lane):
        fairness, throttles = tenancy_of(lane)
        made.fairness_key = fairness or None
        made.throttle_keys = list(throttles) or None
        rules = rules_of(lane)
        if rules is not None:
            made.rules = rules_struct(rules)
    made.priority = body.priority
    made.payload = body.payload
    made.delivery = body.delivery
    made.enqueued_at_ms = body.enqueued_at_ms
    if body.metadata is not None:
        made.metadata = body.metadata
    if body.checkpoint is not None:
        made.checkpoint = body.checkpoint
    if body.headers is not None:
        made.headers = json.loads(body.headers)
    if body.expires_at_ms:
        made.expires_at_ms = body.expires_at_ms
    if body.order_key is not None:
        made.order_key = body.order_key.decode()
    if body.batch:
        made.batch = body.batch
    return made
