"""The host's terms as structs of the contract."""

from __future__ import annotations

from typing import Any

from foqs.counters import Counters
from foqs.dedup import Duplicate
from foqs.errors import FoqsError
from foqs.host.intake import headers_of
from foqs.idl import idl
from foqs.item import Item
from foqs.rows import Body, NewItem
from foqs.rpc.call import Call
from foqs.rpc.structs import lean

_Item = lean(idl.Item)
_EnqueueOutcome = lean(idl.EnqueueOutcome)
_OK = idl.ItemOutcome()


def _refused(error: FoqsError, counters: Counters) -> Any:
    counters.refused[error.code] += 1
    return idl.ItemError(int(error.code), error.message, error.retry_after_ms)


def enqueue_outcomes(call: Call, outcomes: list[int | FoqsError], counters: Counters) -> list[Any]:
    """What `call` is answered; the log hears of outcomes that nobody knows."""
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
            one.error = _refused(outcome, counters)
            if not outcome.outcome_known:
                unknown.append(outcome)
        made.append(one)
    if unknown:
        call.doubt(len(unknown), unknown[0].message)
    return made


def item_outcomes(call: Call, outcomes: list[FoqsError | None], counters: Counters) -> list[Any]:
    """As for `enqueue_outcomes`."""
    unknown: list[FoqsError] = []
    made = [_OK if error is None else _failed(error, counters, unknown) for error in outcomes]
    if unknown:
        call.doubt(len(unknown), unknown[0].message)
    return made


def _failed(error: FoqsError, counters: Counters, unknown: list[FoqsError]) -> Any:
    if not error.outcome_known:
        unknown.append(error)
    return idl.ItemOutcome(_refused(error, counters))


def leased(item: Item) -> Any:
    """What a consumer gets; the item's body is in memory."""
    body = item.body
    assert body is not None
    made = _with_body(item.lane.key, body)
    made.lease = item.lease
    made.attempt = item.attempt
    made.deliver_after_ms = item.deliver_after_ms
    made.lease_expires_at_ms = item.lease_expires_at_ms
    return made


def shown(key: tuple[str, str], body: Body, attempt: int, state: int, lease_expires_at_ms: int) -> Any:
    """What an operator gets: no lease to ack with."""
    made = _with_body(key, body)
    made.lease = 0
    made.attempt = attempt
    made.deliver_after_ms = body.deliver_after_ms
    made.lease_expires_at_ms = lease_expires_at_ms
    made.state = state
    return made


def _with_body(key: tuple[str, str], body: Body | NewItem) -> Any:
    made = _Item()
    made.id = body.id
    made.ns, made.topic = key
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
