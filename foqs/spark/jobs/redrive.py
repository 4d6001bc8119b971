"""One partition of a move, through the client: each item is stored anew, then its source is deleted.

Nothing here knows Spark: rows are anything with names, and tests give a client of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import time
from typing import Any, NamedTuple

from foqs.client import Client, Delivery, FoqsError, Invalid, ItemSpec, NotFound

BATCH_ITEMS = 500
BATCH_BYTES = 4 << 20
TRIES = 3
"""Of a batch, each as long as the client's own time-out: what may be repeated is repeated."""
NAMES = (
    "id",
    "payload",
    "priority",
    "state",
    "deliver_after_ms",
    "expires_at_ms",
    "lease_ms",
    "metadata",
    "headers",
    "delivery",
)
"""What a row has to have; times in Unix epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where items go, and how. `job` begins their dedup keys: the same job stores no item twice."""

    endpoints: str
    namespace: str
    topic: str
    job: str
    copy: bool = False
    token: str | None = field(default=None, repr=False)
    tls: str | None = None

    def client(self) -> Client:
        return Client(self.endpoints, self.namespace, token=self.token, tls=self.tls)


class Totals(NamedTuple):
    """stored   copies that are known to be there, those of an earlier try included
    deleted  sources that were deleted after their copy was stored
    gone     sources that were not there any more then: acked meanwhile, or deleted by an earlier try
    kept     sources that could not be deleted: they are there twice now
    failed   items of which no copy is known to be stored; their sources were left alone
    error    the first that was met
    """

    stored: int = 0
    deleted: int = 0
    gone: int = 0
    kept: int = 0
    failed: int = 0
    error: str | None = None

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.stored + other.stored,
            self.deleted + other.deleted,
            self.gone + other.gone,
            self.kept + other.kept,
            self.failed + other.failed,
            self.error or other.error,
        )


def move_rows(
    rows: Iterable[Any],
    target: Target,
    connect: Callable[[Target], AbstractContextManager[Any]] = Target.client,
) -> Totals:
    """Moves (or copies) the items of `rows`; what each of them came to is in the totals, nothing is raised for it.

    A source is deleted when the id of its copy is known, and never before. Memory is bounded by a batch.
    """
    totals = Totals()
    with connect(target) as client:
        for batch in batches(rows):
            totals = totals.plus(_move(batch, target, client))
    return totals


def spec_of(row: Any, target: Target, now_ms: int) -> ItemSpec:
    """The copy of an item: its own place in time, the rest of its TTL, and a key that names its source."""
    expires_at_ms = row["expires_at_ms"]
    return ItemSpec(
        target.topic,
        bytes(row["payload"]),
        metadata=None if row["metadata"] is None else bytes(row["metadata"]),
        headers=row["headers"],
        priority=row["priority"],
        deliver_after_ms=row["deliver_after_ms"] if row["state"] == "delayed" else None,
        lease_ms=row["lease_ms"],
        ttl_ms=None if expires_at_ms is None else max(1, expires_at_ms - now_ms),
        delivery=Delivery[row["delivery"].upper()],
        dedup_key=f"move:{target.job}:{row['id']}",
    )


def refuse_strangers(ids: Iterable[int], namespace: str, topic: str, client: Any) -> None:
    """Raises Invalid unless the hosts know one of `ids` as an item of that topic, and none as one of another.

    Ids are unique in a cluster only: with the hosts of another one, deletes would meet items that nobody meant.
    """
    known = False
    for item_id in ids:
        try:
            item = client.get_item(item_id)
        except NotFound:
            continue
        if (item.ns, item.topic) != (namespace, topic):
            raise Invalid(
                f"the hosts know item {item_id} as one of {item.ns}/{item.topic}: they are of another cluster"
            )
        known = True
    if not known:
        raise Invalid("the hosts know none of the first items: they are of another cluster, or the items are gone")


def batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Up to BATCH_ITEMS rows, and not much more than BATCH_BYTES of payload."""
    batch: list[Any] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row["payload"])
        if len(batch) == BATCH_ITEMS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _move(batch: list[Any], target: Target, client: Any) -> Totals:
    now_ms = int(time() * 1000)
    specs = {row["id"]: spec_of(row, target, now_ms) for row in batch}
    stored, error = _stored(specs, client)
    failed = len(specs) - len(stored)
    if target.copy or not stored:
        return Totals(stored=len(stored), failed=failed, error=error)
    deleted = gone = kept = 0
    for outcome in client.delete_items(stored):
        if outcome is None:
            deleted += 1
        elif isinstance(outcome, NotFound):
            # The copy stays: it may have been an earlier try of this task that deleted the source.
            gone += 1
        else:
            kept += 1
            error = error or str(outcome)
    return Totals(len(stored), deleted, gone, kept, failed, error)


def _stored(specs: Mapping[int, ItemSpec], client: Any) -> tuple[list[int], str | None]:
    """Ids of the sources whose copies are stored, and the first error of the others."""
    stored: list[int] = []
    left = list(specs)
    errors: list[FoqsError] = []
    for _ in range(TRIES):
        outcomes = client.enqueue_many([specs[source] for source in left])
        failed = [(source, one) for source, one in zip(left, outcomes, strict=True) if isinstance(one, FoqsError)]
        stored += [source for source, one in zip(left, outcomes, strict=True) if not isinstance(one, FoqsError)]
        errors = [error for _, error in failed]
        # An enqueue in doubt may be repeated here, because its key is the same.
        left = [source for source, error in failed if error.retryable or not error.outcome_known]
        if not left:
            break
    return stored, str(errors[0]) if errors else None
