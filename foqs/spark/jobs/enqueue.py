"""`foqs spark enqueue`: files of any format that Spark reads, as items of a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.errors import Invalid
from foqs.page.words import many
from foqs.spark.jobs import command
from foqs.spark.jobs.command import Place, spark_session
from foqs.spark.options import WRITE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE_ROWS = 5


class OnInvalid(StrEnum):
    FAIL = "fail"
    COLLECT = "collect"


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows become items. Raises Invalid when it contradicts itself.

    payload_column  is the payload; default: a column of the name `payload`
    payload_json    the payload is the whole row as JSON, nulls included
    select          SQL expressions over the row (and its `payload`): what they name are the item's columns
    """

    topic: str | None = None
    topic_column: str | None = None
    payload_column: str | None = None
    payload_json: bool = False
    select: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.payload_json and self.payload_column:
            raise Invalid("--payload-json makes the payload of the whole row: give it or --payload-column")
        if self.topic and self.topic_column:
            raise Invalid("give --topic or --topic-column")

    def unused(self, given: Sequence[str], taken: Sequence[str]) -> list[str]:
        """Return the columns that are in no item, unless an option selects the columns explicitly."""
        if self.select or self.payload_json:
            return []
        used = {name.lower() for name in (*taken, self.payload_column, self.topic_column) if name is not None}
        return [name for name in given if name.lower() not in used]


@command.job
def enqueue(
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="PATH", help="The rows are in this file or folder. Repeat it for each."),
    ],
    namespace: Annotated[str, typer.Option("--namespace", "--ns", "-n", help="The items go to this namespace.")],
    endpoints: command.EndpointsOption,
    format: Annotated[
        str, typer.Option("--format", help="The files are json, csv, parquet, orc, text, or another format of Spark.")
    ] = "json",
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="K=V", help="The reader of the format gets this option. Repeat it for each option."
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="All items go to this topic.")] = None,
    topic_column: Annotated[
        str | None,
        typer.Option("--topic-column", metavar="NAME", help="This column is the item's topic. Default: topic."),
    ] = None,
    payload_column: Annotated[
        str | None,
        typer.Option("--payload-column", metavar="NAME", help="This column is the item's payload. Default: payload."),
    ] = None,
    payload_json: Annotated[
        bool, typer.Option("--payload-json", help="Use the whole row as payload, as JSON.")
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="SQL",
            help="This expression makes a column, such as `cast(urgency as int) as priority`. Repeat it for each.",
        ),
    ] = None,
    max_rows_per_second: Annotated[
        float | None,
        typer.Option(
            "--max-rows-per-second",
            min=0,
            max=1e9,
            help="All tasks together enqueue at most this many rows in a second; 0: no limit.",
        ),
    ] = None,
    on_invalid: Annotated[
        OnInvalid,
        typer.Option(
            "--on-invalid",
            help="A bad row fails the job, or, with collect, the job writes it to --invalid-path and continues.",
        ),
    ] = OnInvalid.FAIL,
    invalid_path: Annotated[
        str | None, typer.Option("--invalid-path", metavar="DIR", help="The job writes bad rows to this folder.")
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job-id",
            metavar="NAME",
            help="Rows are stored once under this name, even if the command runs again within a day.",
        ),
    ] = None,
    token: command.TokenOption = None,
    tls: command.TlsOption = None,
    dry_run: command.DryRunOption = False,
    *,
    place: Place,
) -> None:
    """Enqueue the rows of files.

    A row's columns by name: topic, payload (text or bytes), priority, deliver_after (a timestamp) or delay_ms,
    lease_ms, ttl_ms or expires_at (a timestamp), metadata, headers, delivery, dedup_key, fairness_key, order_key,
    throttle_keys, weight. With --select, it names these columns; with --payload-json alone, the row's columns are in
    the payload only. A task that Spark repeats stores nothing twice. The whole command does when it is run again,
    unless it has the same --job-id, or its rows have a dedup_key
    (--select "concat('import-7:', id) as dedup_key").
    """
    plan = Plan(topic, topic_column, payload_column, payload_json, tuple(select or ()))
    if (invalid_path is None) != (on_invalid is OnInvalid.FAIL):
        raise Invalid("--on-invalid collect and --invalid-path go together")
    given: dict[str, object] = {
        "endpoints": endpoints,
        "namespace": namespace,
        "topic": topic,
        "jobId": job_id,
        "token": token,
        "tls": tls,
        "maxRowsPerSecond": max_rows_per_second,
        "onInvalid": on_invalid.value,
        "invalidPath": invalid_path,
    }
    with spark_session("foqs enqueue", place) as spark:
        rows = read(spark, inputs, format, pairs(options or ()))
        found = items(rows, plan)
        if unused := plan.unused(rows.columns, found.columns):
            print(f"unused columns: {', '.join(unused)}", file=sys.stderr)
        if dry_run:
            show(found)
            return
        with TemporaryDirectory() as folder:
            totals_file = Path(folder) / "totals.json"
            # Each core of the cluster runs one task at a time.
            given |= {"metricsPath": totals_file, "tasks": spark.sparkContext.defaultParallelism}
            write(found, {name: str(value) for name, value in given.items() if value is not None})
            totals = json.loads(totals_file.read_text())
    stored = totals["rows"] - totals["duplicates"]
    print(
        f"{many(stored, 'item')} enqueued, {totals['duplicates']} were there before, {totals['invalid']} invalid; "
        f"{totals['bytes']} bytes, {totals['retries']} retries, {totals['waited_s']:.1f} s waited"
    )


def read(spark: SparkSession, paths: Sequence[str], format: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format(format).options(**options).load(list(paths))


def items(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows in columns of the writer, in any case. Raises Invalid if payload or topic is missing."""
    from pyspark.sql import functions as F

    base = rows
    if plan.payload_json:
        whole = F.struct(*(F.col(_quoted(name)) for name in rows.columns))
        base = rows.withColumn("payload", F.to_json(whole, {"ignoreNullFields": "false"}))
    elif plan.payload_column:
        base = rows.withColumn("payload", F.col(_quoted(plan.payload_column)))
    if plan.topic_column:
        base = base.withColumn("topic", F.col(_quoted(plan.topic_column)))
    made = ["payload"] * bool(plan.payload_json or plan.payload_column) + ["topic"] * bool(plan.topic_column)
    if plan.select:
        found = base.selectExpr(*plan.select)
        found = base.selectExpr(*plan.select, *(name for name in made if name not in _by_name(found)))
        if unknown := sorted(name for lower, name in _by_name(found).items() if lower not in WRITE_COLUMNS):
            known = ", ".join(WRITE_COLUMNS)
            raise Invalid(f"--select names columns that an item does not have: {', '.join(unknown)} (it has {known})")
    else:
        there = _by_name(base)
        wanted = made if plan.payload_json else WRITE_COLUMNS
        found = base.select(*(_quoted(there[name]) for name in wanted if name in there))
    if plan.topic and "topic" in _by_name(found):
        found = found.drop(_by_name(found)["topic"])
    if "payload" not in _by_name(found):
        raise Invalid(f"no column is the payload: give --payload-column (one of {', '.join(rows.columns)}) or another")
    if not plan.topic and "topic" not in _by_name(found):
        raise Invalid("no topic: give --topic or --topic-column")
    return found


def write(found: DataFrame, options: dict[str, str], format: str = "foqs") -> None:
    found.write.format(format).options(**options).mode("append").save()


def show(found: DataFrame) -> None:
    """Print schema, count and some rows to stdout."""
    found.printSchema()
    print(f"{many(found.count(), 'row')} would be enqueued; the first:")
    found.show(_SAMPLE_ROWS, truncate=60)


def pairs(options: Sequence[str]) -> dict[str, str]:
    """
    >>> pairs(["header=true", "sep=="])
    {'header': 'true', 'sep': '='}

    Raises Invalid.
    """
    for option in options:
        if not option.partition("=")[1]:
            raise Invalid(f"--option {option!r}: not in the form name=value")
    return {name: value for name, _, value in (option.partition("=") for option in options)}


def _by_name(frame: DataFrame) -> dict[str, str]:
    """Return the columns' names by their lower case."""
    return {name.lower(): name for name in frame.columns}


def _quoted(name: str) -> str:
    """Return a column of any name, dots included."""
    return "`" + name.replace("`", "``") + "`"


if __name__ == "__main__":
    command.run(enqueue)
