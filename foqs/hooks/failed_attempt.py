"""An attempt that ended without an ack, as the script of a topic reads it, and how a script is asked about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.hooks.results import FailureResult
from foqs.rows import FailureCause


class FailedAttempt(NamedTuple):
    """`headers` as they are stored: a JSON object in UTF-8. `within_ms`: the script has this much time; None: the time
    of a request."""

    topic: TopicKey
    headers: bytes | None
    payload_bytes: int
    priority: int
    attempt: int
    cause: FailureCause
    reason: str
    within_ms: int | None


Decided = Callable[[FailureResult | FoqsError | None, int], None]
"""Called once with (outcome, now_ms). A result is what the script decided, None leaves the item to its policy, and the
error refuses the request."""
AskScript = Callable[[FailedAttempt, Decided], None]
