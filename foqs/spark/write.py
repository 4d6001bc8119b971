"""Frames and streams as items: `df.write.format("foqs")` and `df.writeStream.format("foqs")`.

Each task has a client of its own. What it sends carries a deduplication key, the frame's or one made of the job (or of
the query and epoch), the partition, the row and how often that row came before: so a task that is tried again, or twice
at the same time, stores nothing twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from foqs.client import Client, ItemSpec
from foqs.errors import FoqsError, Invalid
from foqs.spark.write_columns import check, columns_of
from foqs.spark.write_invalid import InvalidRows
from foqs.spark.write_options import WriteOptions
from foqs.spark.write_rows import KeyMaker, specs_of
from foqs.spark.write_sender import Refused, Sender, Totals

_PROGRESS_S = 10.0
_QUERY, _EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Names that Spark gives them among the properties of a task."""


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    totals: Totals


class _Writer:
    """What batches and streams have in common. Made on the driver, and sent to every task."""

    def __init__(self, options: Mapping[str, str], schema: Any, *, overwrite: bool) -> None:
        """Raises Invalid, which names the option or column that is wrong."""
        self.options = WriteOptions.parse(options)
        if overwrite:
            raise Invalid("a queue is not overwritten: use the mode append")
        check(columns_of(schema), has_topic=self.options.topic is not None)
        self.job = uuid4().hex

    def send(self, batches: Iterator[Any], job: str) -> Written:
        """Raises Refused."""
        options, partition = self.options, _context().partitionId()
        keys = KeyMaker(f"{job}:{partition}") if options.dedup_keys == "auto" else None
        invalid = InvalidRows(options.invalid_path, job, partition) if options.invalid_path else None

        def rejected(row: int, spec: ItemSpec | None, error: FoqsError) -> None:
            if options.on_invalid == "fail" or invalid is None:
                raise Refused(f"row {row} of partition {partition} is invalid: {error.message}")
            invalid.add(row, spec, error)

        with Client(
            options.endpoints,
            options.namespace,
            token=options.token,
            tls=options.tls,
            pool_size=8 * options.in_flight,
        ) as client:
            sender = Sender(
                client,
                rejected,
                batch_rows=options.batch_rows,
                batch_bytes=options.batch_bytes,
                in_flight=options.in_flight,
                timeout_ms=options.timeout_ms,
                rows_per_second=options.rows_per_second,
                progress=_Progress(partition),
            )
            try:
                sender.write(spec for batch in batches for spec in specs_of(batch, options.topic, keys))
            finally:
                if invalid is not None:
                    invalid.close()
        return Written(sender.totals)

    def finished(self, messages: list[Any], what: str) -> None:
        """Says, and writes down, what all tasks did."""
        totals = Totals()
        for message in messages:
            if message is not None:
                totals.add(message.totals)
        print(f"foqs: {what}: {totals}", file=sys.stderr)
        if self.options.metrics_path is not None:
            path = Path(self.options.metrics_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"what": what, **asdict(totals)}) + "\n")


class BatchWriter(_Writer, DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        return self.send(iterator, self.job)

    def commit(self, messages: list[Any]) -> None:
        self.finished(messages, "written")

    def abort(self, messages: list[Any]) -> None:
        """What was stored stays: only keys of the frame's own keep the next job from storing it again."""
        self.finished(messages, "failed after")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        query, epoch = (_context().getLocalProperty(name) for name in (_QUERY, _EPOCH))
        if query is None or epoch is None:
            raise Refused("Spark does not say which query and batch this is")
        return self.send(iterator, f"{query}:{epoch}")

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.finished(messages, f"batch {batchId} written")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """As for a frame; but the query's next try makes the same keys."""
        self.finished(messages, f"batch {batchId} failed after")


class _Progress:
    """A line on stderr, which is the task's log, every few seconds."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._next_at = monotonic() + _PROGRESS_S

    def __call__(self, totals: Totals) -> None:
        if monotonic() >= self._next_at:
            self._next_at = monotonic() + _PROGRESS_S
            print(f"foqs: partition {self._partition}: {totals}", file=sys.stderr)


def _context() -> Any:
    return TaskContext.get()
