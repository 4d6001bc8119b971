"""Move or copy the rows of one partition through the client: store each copy, then delete its source.

A job stores an item at most once while the service remembers the item's key. A source is deleted only if this request
stored its copy, or if an earlier one did and the copy is still in the new topic. This module does not use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.errors import FoqsError, Invalid, NotFound
from foqs.ids import Duplicate

if TYPE_CHECKING:
    from foqs.client import Client, ItemSpec

BATCH_ITEMS = 500
BATCH_BYTES = 4 << 20
NAMES = (
    "id",
    "payload",
    "priority",
    "state",
    "enqueued_at_ms",
    "deliver_after_ms",
    "expires_at_ms",
    "lease_ms",
    "metadata",
    "headers",
    "delivery",
    "fairness_key",
    "throttle_keys",
)
"""Required columns of a row; times in Unix epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a job, and its mode. The same `job` stores no item twice; a copy and a move are never the same job.

    `delete_consumed`: delete also the sources of `Totals.consumed`.
    """

    endpoints: str
    namespace: str
    topic: str
    job: str
    copy: bool = False
    token: str | None = field(default=None, repr=False)
    tls: str | None = None
    delete_consumed: bool = False

    def client(self) -> Client:
        from foqs.client import Client

        return Client(self.endpoints, self.namespace, token=self.token, tls=self.tls)


class Totals(NamedTuple):
    """Counts of items, and the first error.

    stored      copies that this run stored
    duplicates  copies that an earlier run or try of the job stored; of a move: those that are still in the new topic
    consumed    of a move: copies that an earlier run or try stored and that are gone from the new topic. Their sources
                stay, unless `Target.delete_consumed`
    deleted     sources that were deleted
    gone        sources that were gone before they could be deleted: acked, expired, or deleted by an earlier try
    kept        sources that could not be deleted although their copy is stored: they are in both topics
    failed      items whose copy is not known to be stored; their sources stay
    """

    stored: int = 0
    duplicates: int = 0
    consumed: int = 0
    deleted: int = 0
    gone: int = 0
    kept: int = 0
    failed: int = 0
    error: str | None = None

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.stored + other.stored,
            self.duplicates + other.duplicates,
            self.consumed + other.consumed,
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
    """Move (or copy) the items of `rows`. The totals count the result of each item; an item's error is not raised.

    Memory is bounded by a batch.
    """
    totals = Totals()
    with connect(target) as client:
        for batch in batches(rows):
            totals = totals.plus(_move(batch, target, client))
    return totals


def spec_of(row: Any, target: Target) -> ItemSpec:
    """Return the copy of an item: with its own time, its own end of the TTL, and a key that names its source."""
    from foqs.client import Delivery, ItemSpec
    from foqs.client.item_copies import copy_key

    verb = "copy" if target.copy else "move"
    return ItemSpec(
        target.topic,
        bytes(row["payload"]),
        metadata=None if row["metadata"] is None else bytes(row["metadata"]),
        headers=row["headers"],
        priority=row["priority"],
        deliver_after_ms=row["deliver_after_ms"] if row["state"] == "delayed" else None,
        lease_ms=row["lease_ms"],
        delivery=Delivery[row["delivery"].upper()],
        dedup_key=copy_key(verb, target.job, row["id"], row["enqueued_at_ms"]),
        fairness_key=row["fairness_key"] or None,
        throttle_keys=row["throttle_keys"] or None,
        expires_at_ms=row["expires_at_ms"],
    )


def refuse_strangers(ids: Iterable[int], namespace: str, topic: str, client: Any) -> None:
    """Check that the hosts belong to the cluster of `ids`.

    Raises Invalid unless the hosts know one of `ids` as an item of that topic, and none as an item of another topic.
    Ids are unique in a cluster only: with the hosts of another cluster, the move would delete unrelated items.
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
        raise Invalid(
            "the hosts know none of the first items: the hosts belong to another cluster, or the items are gone"
        )


def batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield batches of up to BATCH_ITEMS rows, and not much more than BATCH_BYTES of payload."""
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
    from foqs.client.item_copies import is_there, store_copies

    specs = {row["id"]: spec_of(row, target) for row in batch}
    copies, failures = store_copies(specs, client)
    error = next((str(failure) for failure in failures.values()), None)
    duplicates = {source for source, copy in copies.items() if isinstance(copy, Duplicate)}
    totals = Totals(stored=len(copies) - len(duplicates), failed=len(specs) - len(copies), error=error)
    if target.copy:
        return totals.plus(Totals(duplicates=len(duplicates)))
    consumed: set[int] = set()
    unknown: set[int] = set()
    for source in duplicates:
        try:
            if not is_there(copies[source], target.namespace, target.topic, client):
                consumed.add(source)
        except FoqsError as refused:
            unknown.add(source)
            error = error or str(refused)
    looked = Totals(
        duplicates=len(duplicates - consumed - unknown), consumed=len(consumed), failed=len(unknown), error=error
    )
    left_alone = unknown if target.delete_consumed else unknown | consumed
    sources = [source for source in copies if source not in left_alone]
    return totals.plus(looked).plus(_delete(sources, client))


def _delete(sources: list[int], client: Any) -> Totals:
    deleted = gone = kept = 0
    error = None
    for outcome in client.delete_items(sources) if sources else ():
        if outcome is None:
            deleted += 1
        elif isinstance(outcome, NotFound):
            gone += 1
        else:
            kept += 1
            error = error or str(outcome)
    return Totals(deleted=deleted, gone=gone, kept=kept, error=error)
