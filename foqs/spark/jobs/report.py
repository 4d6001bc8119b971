"""`foqs spark report`: number, age and size of the queued items, by topic.

Spark computes all sums; the data that reaches the driver is bounded by the topics that the page shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.page.words import many, size
from foqs.spark.jobs import command
from foqs.spark.jobs.command import Place, Source, snapshot, spark_session, time_of
from foqs.spark.jobs.page import AGES_MS, PRIORITIES, SIZES_BYTES, STATES, Figures, Report, Topic, render, template

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TOPIC = ("namespace", "topic")
_NEEDED = (*_TOPIC, "id", "state", "priority", "deliver_after", "enqueued_at", "attempt", "bytes", "payload_bytes")
DATASETS = ("topics", "total")
TOP_TOPICS = 100


@command.job
def report(
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="The Parquet files `topics` and `total` go to this folder."),
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", metavar="FILE", help="The page is this HTML file.")] = None,
    namespace: command.NamespaceFilter = None,
    topic: command.TopicFilter = None,
    oldest: Annotated[
        int, typer.Option(min=0, max=100, help="The report lists this many of each topic's oldest items.")
    ] = 5,
    top: Annotated[
        int, typer.Option(min=1, max=1_000, help="The page shows this many topics, and the sum of the rest.")
    ] = TOP_TOPICS,
    now: Annotated[
        str | None,
        typer.Option(
            "--now",
            metavar="TIME",
            help="Ages count up to this time (ISO 8601). Default: now, by the databases' clock.",
        ),
    ] = None,
    *,
    source: Source,
    place: Place,
) -> None:
    """Report on the queued items: Parquet for other programs, a page for people.

    Under --out, `topics` has one row for each topic, and `total` has one row for all; each run replaces both. With
    neither --out nor --page, the job only prints the totals.
    """
    if page is not None:
        template()
    given_ms = None if now is None else command.epoch_ms(now)
    with spark_session("foqs report", place) as spark:
        now_ms = time_of(source) if given_ms is None else given_ms
        items = snapshot(spark, source, payloads=False, namespace=namespace, topic=topic)
        items = items.where(f"state IN {STATES}")  # without items that have ended
        found = summarise(items, now_ms, out=out, oldest=oldest, top=top)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(render(found), encoding="utf-8")
    total = found.total
    states = ", ".join(f"{getattr(total, state)} {state}" for state in STATES)
    print(f"{many(total.items, 'item')} of {many(found.topic_count, 'topic')}: {states}; {size(total.bytes)}")
    for written in (*(f"{out}/{name}" for name in DATASETS if out), *((str(page),) if page else ())):
        print(written)


def summarise(
    items: DataFrame, now_ms: int, *, out: str | None = None, oldest: int = 5, top: int = TOP_TOPICS
) -> Report:
    """Return the report of a snapshot (payloads are not needed) at `now_ms` (Unix epoch); write `topics` and `total`
    under `out`.

    Read the snapshot once: Spark keeps the needed numbers in memory or on its disks.
    """
    from pyspark.sql import functions as F
    from pyspark.storagelevel import StorageLevel

    kept = items.select(*_NEEDED).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        topics = by_topic(kept, now_ms, oldest).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            total = figures(kept, now_ms, ())
            if out is not None:
                at = F.timestamp_millis(F.lit(now_ms)).alias("at")
                topics.select(at, "*").write.mode("overwrite").parquet(f"{out}/topics")
                total.select(at, "*").write.mode("overwrite").parquet(f"{out}/total")
            counted = topics.agg(
                F.count("*").alias("topics"), F.count_distinct("namespace").alias("namespaces")
            ).first()
            shown = topics.orderBy(F.desc("items"), *_TOPIC).limit(top).collect()
            whole = total.first()
        finally:
            topics.unpersist()
    finally:
        kept.unpersist()
    assert counted is not None and whole is not None  # an aggregate without keys has one row, also for no items
    return Report(
        now_ms,
        Figures.of(whole),
        counted["namespaces"],
        counted["topics"],
        tuple(
            Topic(
                row["namespace"],
                row["topic"],
                Figures.of(row),
                tuple((one["id"], one["enqueued_at_ms"]) for one in row["oldest"] or ()),
            )
            for row in shown
        ),
    )


def by_topic(items: DataFrame, now_ms: int, oldest: int) -> DataFrame:
    """Return `figures` of each topic, with `oldest`: an array of (id, enqueued_at_ms), the oldest first; null for 0 of
    them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    row = F.row_number().over(Window.partitionBy(*_TOPIC).orderBy("enqueued_at", "id"))
    # Spark keeps the first rows of each topic before it exchanges them (WindowGroupLimit): no task sorts a whole topic.
    first = items.select(*_TOPIC, "enqueued_at", "id", row.alias("place")).where(F.col("place") <= oldest)
    one = F.struct("place", "id", F.unix_millis("enqueued_at").alias("enqueued_at_ms"))
    ids = first.groupBy(*_TOPIC).agg(F.sort_array(F.collect_list(one)).alias("found"))
    ids = ids.select(*_TOPIC, F.transform("found", lambda found: found.dropFields("place")).alias("oldest"))
    return figures(items, now_ms, _TOPIC).join(ids, list(_TOPIC), "left")


def figures(items: DataFrame, now_ms: int, keys: Sequence[str]) -> DataFrame:
    """One row for each value of `keys` (one in all without keys), of counts, spreads and histograms: `summary.Figures`.

    Columns: `keys`, items, ready, delayed, leased, age_ms, wait_ms, item_bytes (structs p50, p90, p99, max),
    total_bytes, total_payload_bytes, attempts (struct mean, max, repeated), and age_histogram, priority_histogram,
    size_histogram: arrays of (low, items) for each bucket that holds something, from `low` to before the next bound.
    """
    from pyspark.sql import functions as F

    enqueued, due = F.unix_millis("enqueued_at"), F.unix_millis("deliver_after")
    zero = F.lit(0).cast("long")
    measured = items.select(
        *keys,
        "state",
        "priority",
        "bytes",
        "payload_bytes",
        "attempt",
        F.greatest(zero, F.lit(now_ms) - enqueued).alias("age"),
        F.when(F.col("state") == "ready", F.greatest(zero, F.lit(now_ms) - F.greatest(enqueued, due))).alias("wait"),
    )
    return measured.groupBy(*keys).agg(
        F.count("*").alias("items"),
        *(F.count_if(F.col("state") == state).alias(state) for state in STATES),
        _spread("age").alias("age_ms"),
        _spread("wait").alias("wait_ms"),
        _spread("bytes").alias("item_bytes"),
        F.sum("bytes").alias("total_bytes"),
        F.sum("payload_bytes").alias("total_payload_bytes"),
        F.struct(
            F.avg("attempt").alias("mean"),
            F.max("attempt").alias("max"),
            F.count_if(F.col("attempt") > 1).alias("repeated"),
        ).alias("attempts"),
        _histogram("age", AGES_MS).alias("age_histogram"),
        _histogram("priority", PRIORITIES).alias("priority_histogram"),
        _histogram("bytes", SIZES_BYTES).alias("size_histogram"),
    )


def _spread(name: str) -> Column:
    from pyspark.sql import functions as F

    found = F.percentile_approx(name, [0.5, 0.9, 0.99])
    parts = (found[position].cast("long").alias(part) for position, part in enumerate(("p50", "p90", "p99")))
    return F.struct(*parts, F.max(name).cast("long").alias("max"))


def _histogram(name: str, bounds: Sequence[int]) -> Column:
    from pyspark.sql import functions as F

    column = F.col(name)
    buckets = []
    for low, after in zip(bounds, (*bounds[1:], None), strict=True):
        inside = column >= low if after is None else (column >= low) & (column < after)
        buckets.append(F.struct(F.lit(low).cast("long").alias("low"), F.count_if(inside).alias("items")))
    return F.filter(F.array(*buckets), lambda bucket: bucket["items"] > 0)


if __name__ == "__main__":
    command.run(report)
