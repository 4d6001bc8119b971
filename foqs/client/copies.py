"""Copies of items: those of a move are stored once, whatever interrupts it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from foqs.client.items import ItemSpec
from foqs.errors import FoqsError, NotFound

TRIES = 3
"""Attempts for a batch, each with the client's own time-out; only requests that may be repeated are repeated."""


def job_of(*arguments: str) -> str:
    """The same for the same arguments, so that a repeated command continues the job.

    >>> job_of("a", "b") == job_of("a", "b"), job_of("a", "b") == job_of("ab", "")
    (True, False)
    """
    return hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:16]


def copy_key(verb: str, job: str, item_id: int, enqueued_at_ms: int) -> str:
    """Return the dedup key of a copy.

    It has the verb, because a copy is no move, and the time of the enqueue: an id alone is unique only within one
    cluster, and a shard restored from a backup may assign it again.
    """
    return f"{verb}:{job}:{item_id}:{enqueued_at_ms}"


def store_copies(specs: Mapping[int, ItemSpec], client: Any) -> tuple[dict[int, int], dict[int, FoqsError]]:
    """Store copies with dedup keys. Return the id of each by that of its source (a Duplicate if the key was known), and
    the errors of the rest.

    An enqueue of unknown outcome is repeated with the same key, so it stores the copy once. If the outcome of any
    attempt is unknown, so is that of the copy.
    """
    stored: dict[int, int] = {}
    failed: dict[int, FoqsError] = {}
    left = list(specs)
    for _ in range(TRIES):
        if not left:
            break
        outcomes = client.enqueue_many([specs[source] for source in left])
        for source, outcome in zip(left, outcomes, strict=True):
            if not isinstance(outcome, FoqsError):
                stored[source] = outcome
                failed.pop(source, None)
            elif source not in failed or failed[source].outcome_known:
                failed[source] = outcome
        left = [source for source in left if source in failed and _repeatable(failed[source])]
    return stored, failed


def is_there(copy: int, namespace: str, topic: str, client: Any) -> bool:
    """Return whether a topic has the item `copy` now. Raises FoqsError if the service does not answer that."""
    try:
        item = client.get_item(copy)
    except NotFound:
        return False
    return bool((item.ns, item.topic) == (namespace, topic))


def _repeatable(error: FoqsError) -> bool:
    return error.retryable or not error.outcome_known
