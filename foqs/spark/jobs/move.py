"""`foqs spark move`: moves the items of a topic that match a predicate to another topic, or copies them.

Each task has a client. It stores each copy, then deletes the source. A job stores an item at most once while the
service remembers the item's key. A source is deleted only if this request stored its copy, or if an earlier one did and
the copy is still in the new topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from foqs.errors import FoqsError, Invalid, NotFound
from foqs.page.words import many
from foqs.second_answer import Duplicate
from foqs.spark.jobs import command
from foqs.spark.jobs.command import Place, Source, snapshot, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from foqs.client import Client, ItemSpec


BATCH_ITEMS = 500
BATCH_BYTES = 4 << 20
_JOB = re.compile(r"[\w.-]{1,64}", re.ASCII)
_SAMPLE = ("id", "state", "priority", "attempt", "enqueued_at", "payload_bytes")
_SAMPLE_ROWS = 5
ROW_NAMES = (
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
    "rules",
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
    duplicates  copies that an earlier run or try of the job stored; of a move: copies still in the new topic
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
        *counts, error = self
        *others, other_error = other
        return Totals._make((*map(add, counts, others), error or other_error))


class NotMoved(FoqsError):
    """Some items were left in the old topic; the same command can be repeated."""

    retryable = True


@command.job
def move(
    from_namespace: Annotated[str, typer.Option("--from-namespace", help="The items are in this namespace.")],
    from_topic: Annotated[str, typer.Option("--from-topic", help="The items are in this topic.")],
    to_namespace: Annotated[str, typer.Option("--to-namespace", help="The items go to this namespace.")],
    to_topic: Annotated[str, typer.Option("--to-topic", help="The items go to this topic.")],
    endpoints: command.EndpointsOption,
    where: Annotated[
        str,
        typer.Option(
            "--where",
            metavar="SQL",
            help="The job takes items for which this holds, such as \"attempt > 3 and state = 'ready'\".",
        ),
    ] = "true",
    copy: Annotated[bool, typer.Option("--copy", help="The items stay in their old topic too.")] = False,
    include_leased: Annotated[
        bool,
        typer.Option("--include-leased", help="The job takes leased items too; their consumers process them as well."),
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job-id", help="A job stores an item once under this name. Default: made of topics, --where and --copy."
        ),
    ] = None,
    delete_consumed: Annotated[
        bool,
        typer.Option(
            "--delete-consumed",
            help="The job also deletes sources whose copy an earlier try stored and that is gone by now.",
        ),
    ] = False,
    token: command.TokenOption = None,
    tls: command.TlsOption = None,
    dry_run: command.DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="The command does not ask for confirmation.")] = False,
    *,
    source: Source,
    place: Place,
) -> None:
    """Move items to another topic, or copy them: a redrive.

    Each item is stored in the new topic with a dedup key made of the job, the item's id and the time of its enqueue. A
    repeated task or command stores no item twice while the queue remembers the keys (limits.dedup_window_ms, a day). A
    copy and a move are different jobs, also with the same --job-id. The copy keeps priority, metadata, headers,
    delivery, fairness key, throttle keys, a delay and the end of a TTL; its attempts begin at 0.

    A move deletes a source when its copy is stored. If an earlier attempt stored the copy, the move looks for it first.
    If the copy is gone (a consumer of the new topic acked it, or it expired), the move keeps and counts the source:
    --delete-consumed deletes such sources, another --job-id moves them again.

    A snapshot is not a lock. If a consumer leases or acks an item between the snapshot and the delete, the item is
    moved all the same, and may be processed in both topics; this holds for at-most-once items too. To avoid that, stop
    the consumers of the old topic first. Items leased in the snapshot stay in the old topic, unless --include-leased is
    given. The command reads the snapshot again after the question, so the moved items may differ from the items shown.

    Without --copy, hosts and shards must belong to the same cluster; the command checks this with the first items.
    """
    from foqs.client.item_copies import job_of

    if (from_namespace, from_topic) == (to_namespace, to_topic):
        raise Invalid("source and target are the same topic")
    if copy and delete_consumed:
        raise Invalid("--delete-consumed needs a move: a copy deletes nothing")
    if job_id is not None and not _JOB.fullmatch(job_id):
        raise Invalid("--job-id: 1 to 64 letters, digits, dots, dashes and underscores")
    verb = "copied" if copy else "moved"
    job = job_id or job_of(verb, from_namespace, from_topic, to_namespace, to_topic, where)
    target = Target(endpoints, to_namespace, to_topic, job, copy, token, tls, delete_consumed)
    with spark_session("foqs move", place) as spark:
        shots = (
            snapshot(spark, source, payloads=payloads, namespace=from_namespace, topic=from_topic)
            for payloads in (False, True)
        )
        light, full = (partial(chosen, items, where, include_leased=include_leased) for items in shots)
        count, first = show(_resolved(light, full))
        print(f"{many(count, 'item')} would be {verb} to {to_namespace}/{to_topic}; job {job}", flush=True)
        if dry_run or not count:
            return
        command.ask(f"{'Copy' if copy else 'Move'} {many(count, 'item')}?", yes=yes)
        if not copy:
            with target.client() as client:
                refuse_strangers(first, from_namespace, from_topic, client)
        totals = carry_out(full(), target)
    for line in said(totals, copy=copy, delete_consumed=delete_consumed):
        print(line)
    left = totals.failed + totals.kept + (0 if delete_consumed else totals.consumed)
    if left:
        raise NotMoved(f"{many(left, 'item')} not {verb}{f'; the first error: {totals.error}' if totals.error else ''}")


def chosen(items: DataFrame, where: str, *, include_leased: bool = False) -> DataFrame:
    """Return the rows of a snapshot that the move applies to: of items that have not ended."""
    states = ("ready", "delayed", "leased") if include_leased else ("ready", "delayed")
    return items.where(where).where(f"state IN {states}")


def show(found: DataFrame) -> tuple[int, list[int]]:
    """Print counts by state and some items to stdout; return the number of items and the ids of those shown."""
    counts = {row["state"]: row["count"] for row in found.groupBy("state").count().collect()}
    for state in sorted(counts):
        print(f"{state}: {counts[state]}")
    sample = found.select(*_SAMPLE).limit(_SAMPLE_ROWS).collect() if counts else []
    for row in sample:
        print("  " + "  ".join(f"{name}={row[name]}" for name in _SAMPLE))
    return sum(counts.values()), [row["id"] for row in sample]


def _resolved(light: Callable[[], DataFrame], full: Callable[[], DataFrame]) -> DataFrame:
    """Read the snapshot without payloads, unless the predicate uses them."""
    from pyspark.errors import AnalysisException

    try:
        return light()
    except AnalysisException:
        return full()


def carry_out(found: DataFrame, target: Target) -> Totals:
    """Move the `chosen` rows, each partition in a task with its own client."""
    from pyspark.sql import functions as F

    times = {f"{name}_ms": F.unix_millis(name) for name in ("enqueued_at", "deliver_after", "expires_at")}
    rows = found.withColumns(times).select(*ROW_NAMES)

    def task(part: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        yield tuple(move_rows(part, target))

    # Each partition returns one small tuple, from its successful attempt.
    parts = rows.rdd.mapPartitions(task).collect()
    totals = Totals()
    for part in parts:
        totals = totals.plus(Totals(*part))
    return totals


def said(totals: Totals, *, copy: bool, delete_consumed: bool = False) -> list[str]:
    lines = [f"{totals.stored} stored in the new topic"]
    if totals.duplicates:
        lines.append(f"{totals.duplicates} not stored again: an earlier attempt of this job stored them")
    if not copy:
        lines.append(f"{totals.deleted} deleted from the old topic")
    if totals.consumed:
        line = (
            f"{totals.consumed} not stored again: an earlier attempt stored them, and they are gone from the new topic"
        )
        left = "; left in the old topic: --delete-consumed deletes them there, another --job-id moves them again"
        lines.append(line if delete_consumed else line + left)
    if totals.gone:
        lines.append(
            f"{totals.gone} were gone from the old topic before the delete: consumers may have processed them there too"
        )
    if totals.kept:
        lines.append(f"{totals.kept} could not be deleted from the old topic: they are in both topics")
    if totals.failed:
        lines.append(f"{totals.failed} with an unknown outcome: left in the old topic")
    return lines


# ------------------------------------------------------------------------------------------ a task


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
    from foqs.client.rules import rules_of_json

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
        rules=None if row["rules"] is None else rules_of_json(json.loads(row["rules"])),
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


if __name__ == "__main__":
    command.run(import_module("foqs.spark.jobs.move").move)  # tasks find its functions by this name
