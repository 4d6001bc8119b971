"""`foqs spark move`: items of one topic that a predicate names, to another topic."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.errors import FoqsError, Invalid
from foqs.spark.jobs import command
from foqs.spark.jobs.redrive import NAMES, Target, Totals, move_rows, refuse_strangers
from foqs.spark.jobs.session import Place, Source, session, snapshot
from foqs.spark.jobs.words import many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOB = re.compile(r"[\w.-]{1,64}", re.ASCII)
_SAMPLE = ("id", "state", "priority", "attempt", "enqueued_at", "payload_bytes")
_SAMPLE_ROWS = 5


class NotMoved(FoqsError):
    """Some items were left where they are; the same command may be given again."""

    retryable = True


@command.one_line
@command.of_place
@command.of_source
def move(
    source: Source,
    place: Place,
    from_namespace: Annotated[str, typer.Option("--from-namespace")],
    from_topic: Annotated[str, typer.Option("--from-topic")],
    to_namespace: Annotated[str, typer.Option("--to-namespace")],
    to_topic: Annotated[str, typer.Option("--to-topic")],
    endpoints: command.EndpointsOption,
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="As \"attempt > 3 and state = 'ready'\". Default: all.")
    ] = "true",
    copy: Annotated[bool, typer.Option("--copy", help="Leave the sources where they are.")] = False,
    include_leased: Annotated[
        bool, typer.Option("--include-leased", help="Also items that a consumer has: they are processed as well.")
    ] = False,
    job_id: Annotated[
        str | None,
        typer.Option("--job-id", help="A job stores an item once. Default: made of topics, --where and --copy."),
    ] = None,
    delete_consumed: Annotated[
        bool,
        typer.Option(
            "--delete-consumed", help="Delete also sources whose copy an earlier try stored and that is gone since."
        ),
    ] = False,
    token: command.TokenOption = None,
    tls: command.TlsOption = None,
    dry_run: command.DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Move items to another topic, or copy them: a redrive.

    Each item is stored in the new topic with a dedup key made of the job, the item's id and the time of its enqueue.
    A task or command that is repeated stores no item twice while the queue remembers the keys (limits.dedup_window_ms,
    a day). A copy and a move are different jobs, also with the same --job-id. Priority, metadata, headers, delivery, a
    delay and the rest of a TTL are kept; the attempts begin at 0.

    A move deletes a source when its copy is stored. If an earlier try stored the copy, the move looks for it first. If
    the copy is gone (a consumer of the new topic acked it, or it expired), the source stays where it is and is counted:
    --delete-consumed deletes such sources, another --job-id moves them again.

    A snapshot is not a lock. An item that a consumer leases or acks between the look and the delete is moved all the
    same, and may be processed in both topics; an at-most-once item too. Stop the consumers of the old topic first,
    where that matters. Items that are leased in the snapshot are left alone, unless --include-leased. The snapshot is
    read again after the question, so the items that are moved may differ from those that were shown.

    Without --copy, the hosts have to be of the cluster that the shards are of; this is checked with the first items.
    """
    if (from_namespace, from_topic) == (to_namespace, to_topic):
        raise Invalid("source and target are the same topic")
    if copy and delete_consumed:
        raise Invalid("--delete-consumed goes with a move: a copy deletes nothing")
    if job_id is not None and not _JOB.fullmatch(job_id):
        raise Invalid("--job-id: 1 to 64 letters, digits, dots, dashes and underscores")
    verb = "copied" if copy else "moved"
    job = job_id or job_of(verb, from_namespace, from_topic, to_namespace, to_topic, where)
    target = Target(endpoints, to_namespace, to_topic, job, copy, token, tls, delete_consumed)
    with session("foqs move", place) as spark:
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
        raise NotMoved(f"{left} items are not {verb}{f'; the first error: {totals.error}' if totals.error else ''}")


def chosen(items: DataFrame, where: str, *, include_leased: bool = False) -> DataFrame:
    """Of a snapshot, what is to be moved."""
    found = items.where(where)
    return found if include_leased else found.where("state <> 'leased'")


def show(found: DataFrame) -> tuple[int, list[int]]:
    """Counts by state and some items, on stdout; returns how many there are, and the ids of those shown."""
    counts = {row["state"]: row["count"] for row in found.groupBy("state").count().collect()}
    for state in sorted(counts):
        print(f"{state}: {counts[state]}")
    sample = found.select(*_SAMPLE).limit(_SAMPLE_ROWS).collect() if counts else []
    for row in sample:
        print("  " + "  ".join(f"{name}={row[name]}" for name in _SAMPLE))
    return sum(counts.values()), [row["id"] for row in sample]


def _resolved(light: Callable[[], DataFrame], full: Callable[[], DataFrame]) -> DataFrame:
    """Without payloads, unless the predicate speaks of them."""
    from pyspark.errors import AnalysisException

    try:
        return light()
    except AnalysisException:
        return full()


def carry_out(found: DataFrame, target: Target) -> Totals:
    """Moves what is `chosen`, each partition by a task with a client of its own."""
    from pyspark.sql import functions as F

    times = {f"{name}_ms": F.unix_millis(name) for name in ("enqueued_at", "deliver_after", "expires_at")}
    rows = found.withColumns(times).select(*NAMES)

    def task(part: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        yield tuple(move_rows(part, target))

    # What comes back is one small tuple a partition, of the try that succeeded.
    parts = rows.rdd.mapPartitions(task).collect()
    totals = Totals()
    for part in parts:
        totals = totals.plus(Totals(*part))
    return totals


def job_of(*arguments: str) -> str:
    """The same for the same arguments, so that a repeated command continues the job.

    >>> job_of("a", "b") == job_of("a", "b"), job_of("a", "b") == job_of("ab", "")
    (True, False)
    """
    return hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:16]


def said(totals: Totals, *, copy: bool, delete_consumed: bool = False) -> list[str]:
    lines = [f"{totals.stored} stored in the new topic"]
    if totals.duplicates:
        lines.append(f"{totals.duplicates} not stored again: an earlier try of this job stored them")
    if not copy:
        lines.append(f"{totals.deleted} deleted from the old one")
    if totals.consumed:
        line = f"{totals.consumed} not stored again: an earlier try stored them, and they are gone from the new topic"
        left = "; left in the old one: --delete-consumed deletes them there, another --job-id moves them again"
        lines.append(line if delete_consumed else line + left)
    if totals.gone:
        lines.append(f"{totals.gone} were gone from the old one before the delete: perhaps processed there as well")
    if totals.kept:
        lines.append(f"{totals.kept} could not be deleted from the old one: they are in both")
    if totals.failed:
        lines.append(f"{totals.failed} not known to be stored: left where they are")
    return lines


if __name__ == "__main__":
    command.run(move)
