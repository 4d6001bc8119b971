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
from foqs.spark.jobs.session import Source, session, snapshot
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
@command.of_source
def move(
    source: Source,
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
        str | None, typer.Option("--job-id", help="The same id stores no item twice. Default: made of the arguments.")
    ] = None,
    token: command.TokenOption = None,
    tls: command.TlsOption = None,
    dry_run: command.DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Move items to another topic, or copy them: a redrive.

    Each item is stored in the new topic with a dedup key made of the job and its id; when that is known to be done, its
    source is deleted. A task or command that is repeated stores nothing twice, as long as the queue remembers the keys.
    Priority, metadata, headers, delivery, a delay and the rest of a TTL are kept; the attempts begin anew.

    A snapshot is not a lock. An item that a consumer leases or acks between the look and the delete is moved all the
    same, and may be processed in both topics; an at-most-once item too. So may an item whose copy was stored by a task
    that then failed, when a consumer has it by the time of the next try. Stop the consumers of the old topic first,
    where that matters. Items that are leased in the snapshot are left alone, unless --include-leased. The items are
    looked for again after the question: what is moved may differ from what was shown by what happened meanwhile.

    Without --copy, the hosts have to be of the cluster that the shards are of; this is checked with the first items.
    """
    if (from_namespace, from_topic) == (to_namespace, to_topic):
        raise Invalid("source and target are the same topic")
    if job_id is not None and not _JOB.fullmatch(job_id):
        raise Invalid("--job-id: 1 to 64 letters, digits, dots, dashes and underscores")
    job = job_id or job_of(from_namespace, from_topic, to_namespace, to_topic, where)
    target = Target(endpoints, to_namespace, to_topic, job, copy, token, tls)
    verb = "copied" if copy else "moved"
    with session("foqs move") as spark:
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
    for line in said(totals, copy=copy):
        print(line)
    if totals.failed or totals.kept:
        raise NotMoved(f"{totals.failed + totals.kept} items are not {verb}, the first: {totals.error}")


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

    times = {f"{name}_ms": F.unix_millis(name) for name in ("deliver_after", "expires_at")}
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
    """The same for the same arguments, so that a command given again goes on where it was.

    >>> job_of("a", "b") == job_of("a", "b"), job_of("a", "b") == job_of("ab", "")
    (True, False)
    """
    return hashlib.sha256("\0".join(arguments).encode()).hexdigest()[:16]


def said(totals: Totals, *, copy: bool) -> list[str]:
    lines = [f"{totals.stored} stored in the new topic"]
    if not copy:
        lines.append(f"{totals.deleted} deleted from the old one")
    if totals.gone:
        lines.append(f"{totals.gone} were gone from it by then: perhaps processed as well")
    if totals.kept:
        lines.append(f"{totals.kept} could not be deleted from it: they are in both")
    if totals.failed:
        lines.append(f"{totals.failed} not known to be stored, and left where they are")
    return lines


if __name__ == "__main__":
    command.run(move)
