"""Frames and streams as items: `df.write.format("foqs")` and `df.writeStream.format("foqs")`.

Each task has its own client. Each item has a deduplication key: the frame's own, or one made from the job (or the query
and batch), the row and the number of equal rows before it. So a task that Spark repeats, or runs twice at once, stores
each row once. Keys of a job without `jobId` include the partition: such a job is never repeated as a whole, so its
partitions do not change.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from foqs.client import Client, Duplicate, ItemSpec
from foqs.client.key_order import breaks
from foqs.errors import FoqsError, Invalid
from foqs.second_answer import KEYED, ONCE, Verdict, judge
from foqs.spark.options import WriteOptions, check_columns, columns_of
from foqs.spark.write_files import InvalidRows, Known, folder_of_task, remove_kept, remove_others
from foqs.spark.write_rows import KeyMaker, Sent, local_folder, missing_rows, specs_of

_ATTEMPT_MS = 30_000
_PROGRESS_S = 10.0
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties of the tasks of a streaming batch, also of tasks that `foreachBatch` starts."""


@dataclass
class Totals:
    """Totals of a task or a job. `waited_s`: time in which requests waited because the service could not take them."""

    rows: int = 0
    bytes: int = 0
    duplicates: int = 0
    invalid: int = 0
    retries: int = 0
    waited_s: float = 0.0

    def add(self, other: Totals) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.bytes} bytes, {self.duplicates} duplicates, {self.invalid} invalid, "
            f"{self.retries} retries, {self.waited_s:.1f} s waited"
        )


class Refused(Exception):
    """A row was refused for good, or could not be stored in time. The task fails."""


Rejected = Callable[[int, ItemSpec | None, FoqsError], None]
"""(number of the row in its partition, the item if it is one, why)"""


@dataclass
class Written(WriterCommitMessage):
    """Result of one task of `job`. `sent` is set if keys are made from rows alone. `in_stream`: in `foreachBatch`."""

    job: str
    totals: Totals
    sent: Sent | None = None
    invalid_file: str | None = None
    in_stream: bool = False


class _Writer:
    """Common part of batch and stream writers, made on the driver and sent to every task."""

    def __init__(self, options: Mapping[str, str], schema: Any, *, overwrite: bool, keys: str) -> None:
        """Check options and columns. `keys` is the meaning of `dedupKeys=auto`. Raises Invalid, which names the wrong
        option or column."""
        self.options = WriteOptions.parse(options)
        if overwrite:
            raise Invalid("foqs cannot overwrite a queue: use the mode append")
        check_columns(columns_of(schema), has_topic=self.options.topic is not None, extra=self.options.extra_columns)
        self.keys = keys if self.options.dedup_keys == "auto" else self.options.dedup_keys
        self.folder = self.options.equal_rows_path or local_folder()

    def send(self, batches: Iterator[Any], job: str) -> Written:
        """Raises Refused."""
        options, partition = self.options, TaskContext.get().partitionId()
        scope = job if self.keys == "row" else f"{job}:{partition}"
        keys = None if self.keys == "none" else KeyMaker(scope)
        folder = folder_of_task(self.folder, given=options.equal_rows_path is not None)
        known = Known(scope, folder) if self.keys == "row" else None
        invalid = InvalidRows(options.invalid_path, job, partition) if options.invalid_path else None

        def rejected(row: int, spec: ItemSpec | None, error: FoqsError) -> None:
            if options.on_invalid == "fail" or invalid is None:
                raise Refused(f"row {row} of partition {partition} is invalid: {error.message}")
            invalid.add(row, spec, error)
            if keys is not None and known is not None and spec is not None:
                # An equal row of another partition is invalid as well, and the driver must not look for it.
                keys.counts.forget(known.hash_of(spec) or 0)

        try:
            rows = (spec for batch in batches for spec in specs_of(batch, options.topic, keys))
            totals = self._store(rows, rejected, _Progress(partition), known.add if known is not None else None)
            sent = Sent.of(keys.counts, known.close()) if keys is not None and known is not None else None
        except BaseException:
            if invalid is not None:
                invalid.discard()
            if known is not None:
                known.discard()
            raise
        finally:
            if keys is not None:
                keys.counts.close()
        return Written(job, totals, sent, invalid.close() if invalid is not None else None)

    def finished(self, messages: list[Any], what: str) -> None:
        """Store the rows that only the driver can identify, and report the totals of all tasks. Raises Refused and
        Invalid."""
        totals, written = _total(messages), [message for message in messages if message is not None]
        if written and self.options.invalid_path is not None:
            files = {message.invalid_file for message in written if message.invalid_file is not None}
            remove_others(self.options.invalid_path, written[0].job, files)
        equal = missing_rows([message.sent for message in written if message.sent is not None])
        if (first := next(equal, None)) is not None:

            def rejected(row: int, spec: ItemSpec | None, error: FoqsError) -> None:
                raise Refused(f"a row that equals one of another partition is invalid: {error.message}")

            stored = self._store(chain([first], equal), rejected, lambda _totals: None)
            # The tasks counted these rows, all as duplicates.
            totals.duplicates -= stored.rows - stored.duplicates
            totals.retries += stored.retries
            totals.waited_s += stored.waited_s
        self.clean(written)
        self.report(totals, what)

    def clean(self, messages: list[Any]) -> None:
        """Remove what the tasks left for the driver."""
        jobs = {message.job for message in messages if message is not None and message.sent is not None}
        for job in jobs:
            remove_kept(self.folder, job)

    def report(self, totals: Totals, what: str) -> None:
        print(f"foqs: {what}: {totals}", file=sys.stderr)
        if self.options.metrics_path is not None:
            path = Path(self.options.metrics_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"what": what, **asdict(totals)}) + "\n")

    def _store(
        self,
        rows: Iterable[ItemSpec | Invalid],
        rejected: Rejected,
        progress: Callable[[Totals], None],
        known: Callable[[ItemSpec], None] | None = None,
    ) -> Totals:
        options = self.options
        with options.client(pool_size=8 * options.in_flight) as client:
            sender = Sender(client, options, rejected, progress, known)
            sender.write(rows)
        return sender.totals


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: Any, *, overwrite: bool) -> None:
        """Raises Invalid."""
        super().__init__(options, schema, overwrite=overwrite, keys="partition")
        if self.options.job_id is not None and self.options.dedup_keys == "auto":
            self.keys = "row"
        self.job = uuid4().hex
        names = {name.lower() for name, _ in columns_of(schema)}
        self._twice_when_repeated = self.options.job_id is None and "dedup_key" not in names

    def write(self, iterator: Iterator[Any]) -> Written:
        # In `foreachBatch`, each batch is a job of its own.
        batch = [name for name in map(TaskContext.get().getLocalProperty, (_QUERY, _BATCH)) if name is not None]
        job = self.options.job_id
        written = self.send(iterator, self.job if job is None else ":".join([job, *batch]))
        written.in_stream = bool(batch)
        return written

    def commit(self, messages: list[Any]) -> None:
        self.finished(messages, "written")
        if self._twice_when_repeated and any(message is not None and message.in_stream for message in messages):
            print(
                "foqs: the write is part of a streaming batch, and its rows are stored twice if Spark repeats the "
                "batch: set the option jobId",
                file=sys.stderr,
            )

    def abort(self, messages: list[Any]) -> None:
        """Stored rows stay."""
        self.clean(messages)
        self.report(_total(messages), "failed after")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: Any, *, overwrite: bool) -> None:
        """Raises Invalid."""
        super().__init__(options, schema, overwrite=overwrite, keys="row")
        if self.options.job_id is not None:
            raise Invalid("option jobId is for df.write: the checkpoint of a stream says which query and batch it is")
        if self.keys == "partition":
            raise Invalid(
                "option dedupKeys=partition is not for streams: a query that is restarted may divide a batch into "
                "other partitions, and would store its rows twice; use row (the default), or a column dedup_key"
            )

    def write(self, iterator: Iterator[Any]) -> Written:
        query, batch = (TaskContext.get().getLocalProperty(name) for name in (_QUERY, _BATCH))
        if query is None or batch is None:
            raise Refused("Spark does not say which query and batch this is")
        return self.send(iterator, f"{query}:{batch}")

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.finished(messages, f"batch {batchId} written")

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Stored rows stay, and the next attempt of the batch makes the same keys."""
        self.clean(messages)
        self.report(_total(messages), f"batch {batchId} failed after")


class _Progress:
    """Log progress to stderr, which is the task's log, every few seconds."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._next_at = monotonic() + _PROGRESS_S

    def __call__(self, totals: Totals) -> None:
        if monotonic() >= self._next_at:
            self._next_at = monotonic() + _PROGRESS_S
            print(f"foqs: partition {self._partition}: {totals}", file=sys.stderr)


def _total(messages: list[Any]) -> Totals:
    totals = Totals()
    for message in messages:
        if message is not None:
            totals.add(message.totals)
    return totals


# ------------------------------------------------------------------------------------------------ requests


class Sender:
    """Sends the rows of one task: several requests at a time, each repeated until its items are stored or refused.

    One thread uses it. `known` gets each item that the service had stored before under the same key.
    """

    def __init__(
        self,
        client: Client,
        options: WriteOptions,
        rejected: Rejected,
        progress: Callable[[Totals], None],
        known: Callable[[ItemSpec], None] | None,
    ) -> None:
        self.totals = Totals()
        self._client = client
        self._rejected = rejected
        self._options = options
        self._pace_s = 0.0 if options.rows_per_second is None else 1 / options.rows_per_second
        self._progress = progress
        self._known = known
        self._threads = ThreadPoolExecutor(options.in_flight, thread_name_prefix="foqs-spark")
        self._sent: deque[tuple[list[int], list[ItemSpec], Future[list[Any]]]] = deque()
        self._ordered = False  # some row had an order key
        self._next_at = monotonic()

    def write(self, rows: Iterable[ItemSpec | Invalid]) -> None:
        """Send the rows. Raises Refused, or the errors of `rejected`; some of the rows are stored then."""
        most_rows, most_bytes = self._options.batch_rows, self._options.batch_bytes
        batch: list[ItemSpec] = []
        numbers: list[int] = []
        size = 0
        try:
            for number, spec in enumerate(rows):
                if isinstance(spec, Invalid):
                    self._reject(number, None, spec)
                    continue
                if batch and (len(batch) == most_rows or size + spec.size_bytes > most_bytes):
                    self._send(numbers, batch)
                    batch, numbers, size = [], [], 0
                batch.append(spec)
                numbers.append(number)
                size += spec.size_bytes
            if batch:
                self._send(numbers, batch)
            while self._sent:
                self._settle()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _send(self, numbers: list[int], batch: list[ItemSpec]) -> None:
        self._ordered = self._ordered or any(spec.order_key for spec in batch)
        while len(self._sent) >= (1 if self._ordered else self._options.in_flight):  # or batches overtake each other
            self._settle()
        self._keep_pace(len(batch))
        self._sent.append((numbers, batch, self._threads.submit(self._store, batch)))

    def _keep_pace(self, rows: int) -> None:
        if not self._pace_s:
            return
        now = monotonic()
        if self._next_at > now:
            sleep(self._next_at - now)
        self._next_at = max(self._next_at, now) + rows * self._pace_s

    def _store(self, batch: list[ItemSpec]) -> list[Any]:
        """Return the outcome of each item once none needs a repetition; runs in a thread."""
        deadline = monotonic() + self._options.timeout_ms / 1000
        outcomes: list[Any] = [None] * len(batch)
        left = list(range(len(batch)))
        while left:
            left_ms = int((deadline - monotonic()) * 1000)
            made = self._client.enqueue_many([batch[i] for i in left], timeout_ms=max(1, min(_ATTEMPT_MS, left_ms)))
            for i, outcome in zip(left, made, strict=True):
                outcomes[i] = outcome
            again = [i for i in left if _may_come(batch[i], outcomes[i])]
            failed = {i for i in left if breaks(outcomes[i])}.difference(again)
            behind = any(batch[i].order_key for i in failed)  # rows of the key that must not be stored now
            left = [] if behind or monotonic() >= deadline else again
        return outcomes

    def _settle(self) -> None:
        numbers, batch, future = self._sent.popleft()
        totals = self.totals
        for number, spec, outcome in zip(numbers, batch, future.result(), strict=True):
            if isinstance(outcome, Invalid):
                self._reject(number, spec, outcome)
            elif isinstance(outcome, FoqsError):
                raise Refused(f"row {number}: {outcome.code.name}: {outcome.message}") from outcome
            else:
                totals.rows += 1
                totals.bytes += len(spec.payload)
                if isinstance(outcome, Duplicate):
                    totals.duplicates += 1
                    if self._known is not None:
                        self._known(spec)
        totals.retries, totals.waited_s = self._client.waits
        self._progress(totals)

    def _reject(self, number: int, spec: ItemSpec | None, error: FoqsError) -> None:
        self.totals.invalid += 1
        self._rejected(number, spec, error)


def _may_come(spec: ItemSpec, outcome: Any) -> bool:
    """Return whether the sender may repeat an item that was not stored."""
    if not isinstance(outcome, FoqsError):
        return False
    verdict = judge(ONCE if spec.dedup_key is None else KEYED, outcome, doubtful=False)
    return verdict in (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL)
