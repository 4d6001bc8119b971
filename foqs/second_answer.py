"""What an answer means, to the first request and to a repeated one: a table for clients and for hosts that forward.

A request can fail in three ways. It changed nothing (BUSY): any request may be repeated. It was refused: it is not
repeated. Its reply was lost, or the answer is OUTCOME_UNKNOWN (LOST): the change may have been made. A request that
asks twice for the same end is repeated; a plain enqueue is not, because that would store the item twice.

After a LOST answer the item is doubtful, and the next answer is read with the second row of its policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from foqs.errors import (
    FoqsError,
    LostReply,
    NotFound,
    NotSent,
    NotServed,
    OutcomeUnknown,
    Overloaded,
    StaleLease,
    Unavailable,
    caused,
)


class Duplicate(int):
    """The id of an item that was stored before, under the same key."""

    __slots__ = ()


class Replaced(Duplicate):
    """A duplicate that has the body of this enqueue now (`OnDuplicate.REPLACE`)."""

    __slots__ = ()


class OwnDuplicate(Duplicate):
    """A duplicate that may be this request's own item: a host sent the request on twice."""

    __slots__ = ()


class Answer(Enum):
    """The columns of the table."""

    BUSY = 0  # OVERLOADED, UNAVAILABLE, NOT_OWNER, or the request was not sent: this request changed nothing
    LOST = 1  # OUTCOME_UNKNOWN, or no usable reply
    NOT_FOUND = 2
    STALE_LEASE = 3
    REFUSED = 4  # INVALID, UNAUTHENTICATED, FORBIDDEN, or a code of a newer version


class Verdict(Enum):
    AGAIN = 1  # repeat the request
    AGAIN_DOUBTFUL = 2  # repeat it; it may have been carried out
    DONE = 3
    FAILED = 4  # report this answer
    UNKNOWN = 5  # report OUTCOME_UNKNOWN: the answer does not say whether an earlier request was carried out


_LOST = Answer.LOST.value
Row = tuple[Verdict, Verdict, Verdict, Verdict, Verdict]


@dataclass(frozen=True, eq=False)
class Policy:
    """One kind of request. `first` and `second` have a verdict for each `Answer`, `second` for a doubtful item.
    `changes` is False for a look-up, whose lost reply is UNAVAILABLE, not OUTCOME_UNKNOWN."""

    first: Row
    second: Row
    changes: bool = True

    @cached_property
    def repeatable(self) -> bool:
        """True if the request may be repeated after a lost reply."""
        return self.first[_LOST] is not Verdict.FAILED


_A, _D, _F, _U = Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL, Verdict.FAILED, Verdict.UNKNOWN
_OK = Verdict.DONE
# An answer REFUSED comes from another host, or after another configuration: it says nothing of the first request.
#                        BUSY LOST NOT_FOUND STALE_LEASE REFUSED
_FIRST: Row = (          _A,  _D,  _F,       _F,         _F)  # fmt: skip
LOOK = Policy(          (_A,  _A,  _F,       _F,         _F),
                        (_A,  _A,  _F,       _F,         _F), changes=False)  # fmt: skip
# No request of this policy is repeated while an item is doubtful.
ONCE = Policy(          (_A,  _F,  _F,       _F,         _F),
                        (_U,  _F,  _U,       _U,         _U))  # fmt: skip
# An enqueue with a dedup_key: a host that has stored the item answers with its id.
KEYED = Policy(_FIRST,  (_A,  _D,  _F,       _F,         _U))  # fmt: skip
# STALE_LEASE is no success of an ack: the item is still there, so no ack was carried out.
END_ITEM = Policy(_FIRST, (_A, _D, _OK,      _F,         _U))  # fmt: skip
# An ack that a host forwards: the lost ack removed the item, or an earlier holder's ack did. A client's library reads
# the OUTCOME_UNKNOWN, repeats the ack, and takes NOT_FOUND as done: the item is gone in either case.
FORWARDED_ACK = Policy(_FIRST, (_A, _D, _U,  _F,         _U))  # fmt: skip
EXTEND = Policy(_FIRST, (_A,  _D,  _F,       _F,         _U))  # fmt: skip
# After a change whose reply was lost a consumer may have leased the item.
CHANGE = Policy(_FIRST, (_A,  _D,  _F,       _F,         _U))  # fmt: skip
# Both answers say that the lease has ended, not whether the nack ended it with its delay and metadata, or whether the
# extension gave its checkpoint, progress or log before.
NACK = GIVE = Policy(_FIRST, (_A, _D, _U,    _U,         _U))  # fmt: skip
RELEASE = Policy(_FIRST, (_A, _D,  _OK,      _OK,        _U))  # fmt: skip


def of_extensions(items: Iterable[Any]) -> Policy:
    """Return the policy of a request with these extensions."""
    given = any(one.checkpoint is not None or one.progress is not None or one.log is not None for one in items)
    return GIVE if given else EXTEND


def answer_of(error: FoqsError) -> Answer:
    """Return the column of `error`."""
    if isinstance(error, Overloaded | Unavailable):
        return Answer.BUSY
    if isinstance(error, OutcomeUnknown):
        return Answer.LOST
    if isinstance(error, NotFound):
        return Answer.NOT_FOUND
    return Answer.STALE_LEASE if isinstance(error, StaleLease) else Answer.REFUSED


def judge(policy: Policy, error: FoqsError, doubtful: bool) -> Verdict:
    """Return what `error` means; `doubtful`: an earlier request for the same item may have been carried out."""
    return (policy.second if doubtful else policy.first)[answer_of(error).value]


def judge_forwarded(policy: Policy, error: FoqsError, doubtful: bool) -> Verdict:
    """Return what `error` means to a host that forwards. The host repeats a request that did not reach the shard's
    owner, or that is in doubt. Any other OVERLOADED or UNAVAILABLE goes to the client, which repeats the request
    itself. So does an OUTCOME_UNKNOWN with `retry_after_ms`: the owner still has the shard, and its database does not
    answer."""
    verdict = judge(policy, error, doubtful)
    if verdict is Verdict.AGAIN_DOUBTFUL and error.retry_after_ms is not None:
        return Verdict.FAILED
    if verdict is Verdict.AGAIN and not doubtful and not isinstance(error, NotSent | NotServed | LostReply):
        return Verdict.FAILED
    return verdict


def last_word(policy: Policy, error: FoqsError, doubtful: bool) -> FoqsError:
    """Return the error to report when no time is left to repeat the request."""
    if not policy.changes:
        return caused(Unavailable(error.message), error) if isinstance(error, LostReply) else error
    if doubtful and not isinstance(error, OutcomeUnknown):
        return unknown(error)
    return error


def unknown(error: FoqsError) -> OutcomeUnknown:
    """Return the error to report for `Verdict.UNKNOWN`."""
    return caused(OutcomeUnknown(f"an earlier reply was lost; then: {error.message}"), error)


def stored(item_id: int, doubtful: bool) -> int:
    """Return the id that a repeated enqueue was answered with; a duplicate may be this request's own item."""
    return OwnDuplicate(item_id) if doubtful and isinstance(item_id, Duplicate) else item_id
