"""The stream of the format "foqs": consumes topics of a namespace, a leased batch at a time.

What is promised:

- A batch is acked when it has reached its sink: at the next trigger, when Spark asks for what comes next.
- A run with Trigger.AvailableNow acks all it took, and ends when no host has anything ready (or gives nothing of it
  for `timeoutMs`), or when a whole batch became ready after the run began: that one is given back. (Before PySpark 4.2
  it takes one batch, which the next run acks.)
- A batch that failed, or whose query was stopped, is given again with exactly the same rows when the query starts from
  its checkpoint: they are kept in `stateDir`. So the sink gets every item at least once, and exactly once where it
  knows a batch by its number.
- The leases are extended as long as the driver's reader lives, and at once when it starts again. When they run out
  before that (`leaseMs` after the reader died), other consumers may get the items too: their acks are then refused as
  stale, which is counted and logged. The last batch of a query that was stopped in the moment between its end and the
  next trigger is acked when the query starts again; not before.
- At-most-once items are gone when their lease ends: a reader that dies between getting and writing down a batch loses
  those in it. Spark may run their batch again, so the sink may see them twice unless it knows a batch by its number.
- When the query begins with a new checkpoint over an old `stateDir`, it goes on behind what is known to have reached
  the sink. A checkpoint and a `stateDir` that are not of one query are refused.

Not for asynchronous progress tracking of Spark: with it, an offset is named before it is safely written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from foqs.client.client import Client
from foqs.client.items import Delivery, Item
from foqs.spark.columns import read_as
from foqs.spark.consume_driver import Consumer
from foqs.spark.consume_options import ConsumeOptions
from foqs.spark.consume_state import split

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2: one batch for each run with Trigger.AvailableNow
    ReadMaxRows = None

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


COLUMNS = {
    "id": "bigint", "namespace": "string", "topic": "string", "priority": "int", "payload": "binary",
    "metadata": "binary", "headers": "map<string,string>", "attempt": "int", "deliver_after": "timestamp",
    "enqueued_at": "timestamp", "delivery": "string",
}  # fmt: skip
"""Names and types, as Spark spells them, in the order of `_row`. `metadata` and `headers` may be null; `delivery` is
AT_LEAST_ONCE or AT_MOST_ONCE."""
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

Row = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SEQ = "seq"


class ConsumePartition(InputPartition):
    """The rows themselves: whoever reads it, and however often, gets the same, on any machine."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(len(rows))
        self.rows = rows


class ConsumeReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Offsets are `{"seq": n}`: the batches 1 to n. Everything but `read` is called in the driver's reader process."""

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        """`schema`: a StructType of any of the columns, in any order. Raises Invalid. Connects to nothing yet: it is
        pickled for the tasks."""
        self._options = ConsumeOptions.parse(options)
        at = {name: place for place, name in enumerate(COLUMNS)}
        self._places = [at[name] for name in read_as(schema, COLUMNS)]
        self._consumer: Consumer | None = None

    def initialOffset(self) -> dict[str, int]:
        return {_SEQ: self._driver.first()}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._options.max_items_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.only_what_is_there()

    # Without parameters before PySpark 4.2. The bound of the options holds for a limit of Spark's as well: "all there
    # is" could not be leased at once.
    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        max_rows = getattr(limit, "max_rows", self._options.max_items_per_batch)
        return {_SEQ: self._driver.latest(None if start is None else start[_SEQ], max_rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        rows: list[Row] = [_row(item) for item in self._driver.batch(start[_SEQ], end[_SEQ])]
        if self._places != [*range(len(COLUMNS))]:
            rows = [tuple([row[place] for place in self._places]) for row in rows]
        return [ConsumePartition(part) for part in split(rows, self._options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        return iter(partition.rows)

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
            client = Client(
                options.endpoints,
                options.namespace,
                token=options.token,
                tls=options.tls,
                timeout_ms=options.timeout_ms,
            )
            self._consumer = Consumer(client, options)
        return self._consumer


def _row(item: Item) -> Row:
    return (
        item.id, item.ns, item.topic, item.priority, item.payload, item.metadata, item.headers, item.attempt,
        _time(item.deliver_after_ms), _time(item.enqueued_at_ms), Delivery(item.delivery).name,
    )  # fmt: skip


def _time(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)
