"""The stream of the format "foqs": consumes topics of a namespace, a leased batch at a time.

Promises:

- A batch is acked when its sink has it: from the next trigger on, when Spark asks for the next batch.
- A run with Trigger.AvailableNow acks all items that it leased. It ends when no host has ready items, when the query
  could not lease ready items for `timeoutMs`, or when all items of a batch became ready after the run began; it returns
  that batch. (Before PySpark 4.2 a run takes one batch, which the next run acks.)
- If a batch failed or its query was stopped, the query gets exactly the same rows when it starts from its checkpoint:
  `stateDir` has them. An item is in one batch of its query. So the sink gets every item at least once, and exactly
  once if it identifies a batch by its number.
- Behind a full batch the reader leases the next one while Spark runs the first. So it holds leases of up to two batches
  that did not reach their sink.
- The driver's reader extends the leases while it runs, and at once when it starts again. If they run out before that
  (`leaseMs` after the reader died), the items come again. This query keeps them in their batch, or acks them if they
  were delivered. Other consumers may get them too: the service then refuses the acks as stale, and the reader counts
  and logs them. If a query stops between the end of a batch and the next trigger, it acks that batch when it starts
  again.
- At-most-once items are gone when their lease ends: a reader that dies before it has written a batch to disk loses the
  items in it. Spark may run a batch again, so the sink may see such items twice unless it identifies a batch by its
  number.
- A query with a new checkpoint and an old `stateDir` continues after the last batch that is known to have reached the
  sink. A checkpoint and a `stateDir` of different queries are refused.

Spark's asynchronous progress tracking is not supported: with it, Spark names an offset before it has stored it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from foqs.spark.consume_driver import Consumer
from foqs.spark.consume_state import COLUMNS, parts_of, unpacked
from foqs.spark.options import ConsumeOptions, read_as

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2: one batch for each run with Trigger.AvailableNow
    ReadMaxRows = None

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
_SEQ = "seq"
_POOL_SIZE = 16


class ConsumePartition(InputPartition):
    """A part of a batch with its rows, packed. Every read returns the same rows, on any machine."""

    def __init__(self, part: bytes) -> None:
        super().__init__(len(part))
        self.part = part


class ConsumeReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Stream reader whose offsets are `{"seq": n}`: the batches 1 to n. The driver's reader process calls all methods
    except `read`."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        """Connect to nothing: Spark pickles the reader for the tasks. `schema` is a StructType of any of the columns,
        in any order. Raises Invalid."""
        self._options = ConsumeOptions.parse(options)
        self._reading = read_as(schema, COLUMNS, self._options.extra_columns)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._consumer: Consumer | None = None

    def initialOffset(self) -> dict[str, int]:
        return {_SEQ: self._driver.first()}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._options.max_items_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.only_what_is_there()

    # PySpark before 4.2 passes no arguments. The option's bound also applies to a limit of Spark: a batch of "all that
    # exists" could not be leased at once.
    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        max_rows = getattr(limit, "max_rows", self._options.max_items_per_batch)
        return {_SEQ: self._driver.latest(None if start is None else start[_SEQ], max_rows)}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the lag and the rates: Spark shows them in the progress, and never reads from this offset."""
        return self._driver.report()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        table = self._driver.batch(start[_SEQ], end[_SEQ])
        return [ConsumePartition(part) for part in parts_of(table, self._reading.names, self._options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in unpacked(partition.part):
            # Spark compares names, in their case, and types with all that they allow to be null.
            found = self._reading.columns(batch.columns)
            columns = [column.cast(field.type) for column, field in zip(found, self._schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def commit(self, end: dict[str, int]) -> None:
        self._driver.committed(end[_SEQ])

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def _driver(self) -> Consumer:
        if self._consumer is None:
            options = self._options
            pool_size = _POOL_SIZE + 2 * options.connections
            client = options.client(timeout_ms=options.timeout_ms, pool_size=pool_size)
            self._consumer = Consumer(client, options)
        return self._consumer
