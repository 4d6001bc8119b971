"""`foqs spark export`: what is queued, as Parquet in folders by namespace, topic and day."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.spark.jobs import command
from foqs.spark.jobs.session import Place, Source, session, snapshot, written
from foqs.spark.jobs.words import many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = ("namespace", "topic", "day")
_DAY_MS = 86_400_000


class Mode(StrEnum):
    ERROR = "errorifexists"
    APPEND = "append"
    OVERWRITE = "overwrite"


@command.one_line
@command.of_place
@command.of_source
def export(
    source: Source,
    place: Place,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Any path that Spark can write to.")],
    mode: Annotated[Mode, typer.Option("--mode", help="When DIR is there. overwrite: all of it.")] = Mode.ERROR,
    no_payloads: Annotated[bool, typer.Option("--no-payloads", help="No payload, metadata and headers.")] = False,
    namespace: command.NamespaceFilter = None,
    topic: command.TopicFilter = None,
) -> None:
    """Export items to Parquet, in folders namespace=.../topic=.../day=...; the day is that of the enqueue, in UTC.

    Spark escapes what a folder's name cannot hold. To read names back as they were, set
    spark.sql.sources.partitionColumnTypeInference.enabled=false: else a topic 007 is taken for the number 7. A
    name whose escaped form is longer than the file system's names may be (often 255 bytes) fails the export.
    """
    with session("foqs export", place) as spark:
        items = snapshot(spark, source, payloads=not no_payloads, namespace=namespace, topic=topic)
        count = write(items, out, mode)
    print(f"{many(count, 'item')} exported to {out}")


def write(items: DataFrame, out: str, mode: Mode = Mode.ERROR) -> int:
    """Writes a snapshot in folders by PARTITIONS; returns how many items that were. Reads the snapshot once."""

    def to_folders(frame: DataFrame) -> None:
        # Else each task would write a file into each folder that it has an item of; large folders are still cut up.
        even = frame.hint("rebalance", *PARTITIONS)
        even.write.mode(mode.value).partitionBy(*PARTITIONS).parquet(out)

    return written(with_day(items), to_folders)


def with_day(items: DataFrame) -> DataFrame:
    """With `day`, a date: that of enqueued_at in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as F

    day = F.floor(F.unix_millis("enqueued_at") / _DAY_MS).cast("int")
    return items.withColumn("day", F.date_from_unix_date(day))


if __name__ == "__main__":
    command.run(export)
