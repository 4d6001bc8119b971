"""`foqs spark export`: writes queued items as Parquet, in folders by namespace, topic and day."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.bounds import DAY_MS
from foqs.page.words import many
from foqs.spark.jobs import command
from foqs.spark.jobs.command import Place, Source, snapshot, spark_session, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = ("namespace", "topic", "day")


class Mode(StrEnum):
    ERROR = "errorifexists"
    APPEND = "append"
    OVERWRITE = "overwrite"


@command.job
def export(
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="The files go to this path, which Spark can write to.")
    ],
    mode: Annotated[
        Mode, typer.Option("--mode", help="This mode applies if DIR exists: overwrite replaces all of it.")
    ] = Mode.ERROR,
    no_payloads: Annotated[
        bool, typer.Option("--no-payloads", help="The files have no payload, metadata and headers.")
    ] = False,
    namespace: command.NamespaceFilter = None,
    topic: command.TopicFilter = None,
    *,
    source: Source,
    place: Place,
) -> None:
    """Export items to Parquet files by namespace, topic and day.

    The folders are namespace=.../topic=.../day=...; the day is that of the enqueue, in UTC.

    Spark escapes characters that a folder's name cannot have. To read names back unchanged, set
    spark.sql.sources.partitionColumnTypeInference.enabled=false; otherwise Spark reads the topic 007 as the number 7.
    The export fails if a name's escaped form is longer than the file system allows (often 255 bytes).
    """
    with spark_session("foqs export", place) as spark:
        items = snapshot(spark, source, payloads=not no_payloads, namespace=namespace, topic=topic)
        count = write(items, out, mode)
    print(f"{many(count, 'item')} exported to {out}")


def write(items: DataFrame, out: str, mode: Mode = Mode.ERROR) -> int:
    """Write a snapshot in folders by PARTITIONS and return its number of items. Read the snapshot once."""

    def to_folders(frame: DataFrame) -> None:
        # Otherwise each task would write a file into each folder for which it has an item; large folders are still
        # split.
        even = frame.hint("rebalance", *PARTITIONS)
        even.write.mode(mode.value).partitionBy(*PARTITIONS).parquet(out)

    return written(with_day(items), to_folders)


def with_day(items: DataFrame) -> DataFrame:
    """Add `day`, the date of enqueued_at in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as F

    day = F.floor(F.unix_millis("enqueued_at") / DAY_MS).cast("int")
    return items.withColumn("day", F.date_from_unix_date(day))


if __name__ == "__main__":
    command.run(export)
