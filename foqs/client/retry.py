"""What may be tried again, what a second answer means, and how long to wait before: pure decisions.

A request can fail in three ways. Nothing was changed (OVERLOADED, UNAVAILABLE, or it was never sent whole):
it may be repeated, whatever it is. It was refused: it may not. Nobody knows (the reply was lost, or the
server says so): what asks twice for the same end may be repeated, an enqueue may not, because it would store
the item twice.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeVar

from foqs.client.connection import LostReply
from foqs.client.request_ids import named
from foqs.errors import FoqsError, NotFound, OutcomeUnknown, Overloaded, StaleLease, Unavailable

FIRST_PAUSE_MS = 20.0
LONGEST_PAUSE_MS = 2_000.0

E = TypeVar("E", bound=FoqsError)


class Policy(NamedTuple):
    """`repeatable`: whether it may be asked again when nobody knows whether it was done.

    After such a doubt, an answer among `done_if` says that it is done, and one among `unclear_if` leaves the
    doubt, as does one that is about the request alone. `changes` is False for what only looks: then a lost reply is no
    unknown outcome.
    """

    repeatable: bool
    changes: bool = True
    done_if: tuple[type[FoqsError], ...] = ()
    unclear_if: tuple[type[FoqsError], ...] = ()


ONCE = Policy(repeatable=False)
KEYED = Policy(repeatable=True)  # an enqueue with a dedup_key
LOOK = Policy(repeatable=True, changes=False)
# STALE_LEASE is no success of an ack: the item is still there, so it was not this ack that the server carried
# out.
END_ITEM = Policy(repeatable=True, done_if=(NotFound,))
EXTEND = Policy(repeatable=True)
# Either answer says that the lease is over, not whether it was the nack with its delay and metadata that
# ended it.
NACK = Policy(repeatable=True, unclear_if=(NotFound, StaleLease))
RELEASE = Policy(repeatable=True, done_if=(NotFound, StaleLease))


class Verdict(Enum):
    AGAIN = 1  # ask again
    AGAIN_DOUBTFUL = 2  # ask again; what was asked may have been done
    DONE = 3
    FAILED = 4
    UNKNOWN = 5  # failed, and nobody can tell whether an earlier request did it


def judge(policy: Policy, error: FoqsError, doubtful: bool) -> Verdict:
    """What `error` means; `doubtful` when an earlier request for the same may have been carried out."""
    if isinstance(error, OutcomeUnknown):
        return Verdict.AGAIN_DOUBTFUL if policy.repeatable else Verdict.FAILED
    if isinstance(error, Overloaded | Unavailable):
        return Verdict.AGAIN
    if doubtful and isinstance(error, policy.done_if):
        return Verdict.DONE
    if doubtful and isinstance(error, policy.unclear_if):
        return Verdict.UNKNOWN
    # Who refuses to do it now (another host, another configuration) does not say what became of it before.
    if doubtful and not isinstance(error, NotFound | StaleLease):
        return Verdict.UNKNOWN
    return Verdict.FAILED


def last_word(policy: Policy, error: FoqsError, doubtful: bool) -> FoqsError:
    """The error to report when there is no time left to ask again."""
    if not policy.changes:
        return unavailable(error) if isinstance(error, LostReply) else error
    if doubtful and not isinstance(error, OutcomeUnknown):
        return unknown(error)
    return error


def unknown(error: FoqsError) -> OutcomeUnknown:
    return caused(OutcomeUnknown(f"an earlier reply was lost; then: {error.message}"), error)


def unavailable(error: FoqsError) -> Unavailable:
    return caused(Unavailable(error.message), error)


def caused(error: E, cause: BaseException) -> E:
    """`error`, chained to its cause without being raised; about the same request."""
    error.__cause__ = cause
    if isinstance(cause, FoqsError) and cause.request_id is not None:
        named(error, cause.request_id)
    return error


def pause_ms(tries: int, retry_after_ms: int | None, rng: Callable[[], float]) -> float:
    """How long to wait after the `tries`-th failure (from 1). A server's wish is a lower bound; `rng` gives
    [0, 1).
    """
    if retry_after_ms is not None and retry_after_ms > 0:
        return retry_after_ms * (1 + rng() / 2)
    longest = min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2.0 ** min(tries - 1, 30))
    return longest * (0.5 + rng() / 2)
