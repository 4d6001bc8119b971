"""When a Worker acks an item, and the reasons of failures that it gives."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from foqs.client.guard import is_a, kind_of, text_of
from foqs.client.outcome_arguments import WrongArgument

REASON_BYTES = 1_024


class AckPolicy(StrEnum):
    """What a Worker does with an item when its handler returns, raises an exception, or is killed with the process.

    ===============  ===================  ========================================  ==========================
    policy           handler returns      exception                                 process killed
    ===============  ===================  ========================================  ==========================
    NACK_ON_ERROR    ack                  nack as `failed`: a retry, at last a      again, when its lease ends
                                          dead letter
    ACK_FIRST        (acked before)       stays acked                               stays acked
    REJECT_ON_ERROR  ack                  reject: a dead letter at once             again, when its lease ends
    ACK              ack                  ack                                       again, when its lease ends
    MANUAL           as the `Job` says    as the `Job` says                         again, when its lease ends
    ===============  ===================  ========================================  ==========================

    ACK_FIRST: the handler runs when the server confirmed the ack, and does not run if it was refused or not confirmed.
    MANUAL: the handler calls one of `job.ack`, `job.nack` and `job.reject`. An item without any of these keeps its
    lease until that ends by time, as it is not extended after the handler's return.
    """

    NACK_ON_ERROR = "nack_on_error"
    ACK_FIRST = "ack_first"
    REJECT_ON_ERROR = "reject_on_error"
    ACK = "ack"
    MANUAL = "manual"


AckPolicyName = Literal["nack_on_error", "ack_first", "reject_on_error", "ack", "manual"]


def reason_of(error: BaseException, *, text: bool) -> str:
    """Return the reason that the server gets: the type's name, with the error's `text` only if asked for, as it may
    hold what a payload held. At most REASON_BYTES bytes. Never raises, whatever the error's methods do.

    >>> reason_of(ValueError("no such user: 7"), text=True)
    'ValueError: no such user: 7'
    """
    name = kind_of(error)
    if not text and not is_a(error, WrongArgument):
        return bounded(name)
    said = text_of(error)
    return bounded(f"{name}: {said}" if said else name)


def bounded(reason: str, most_bytes: int = REASON_BYTES) -> str:
    """Return `reason`, cut at a character if it is too long for the server."""
    return reason.encode("utf-8", "replace")[: max(0, most_bytes)].decode(errors="ignore")
