"""`foqs spark move`: moves the items of a topic that match a predicate to another topic."""

from __future__ import annotations

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
    """Return the rows of a snapshot that the move applies to."""
    found = items.where(where)
    return found if include_leased else found.where("state <> 'leased'")


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
    rows = found.withColumns(times).select(*NAMES)

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


if __name__ == "__main__":
    command.run(move)
