"""Sends the rows of one task: several requests at a time, each repeated until its items are stored or refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any

from foqs.client import Client, Duplicate, ItemSpec
from foqs.errors import FoqsError, Invalid
from foqs.second_answer import KEYED, ONCE, Verdict, judge

_ATTEMPT_MS = 30_000


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


class Sender:
    """Sender of one task, used by one thread."""

    def __init__(
        self,
        client: Client,
        rejected: Rejected,
        *,
        batch_rows: int,
        batch_bytes: int,
        in_flight: int,
        timeout_ms: int,
        rows_per_second: float | None,
        progress: Callable[[Totals], None],
        known: Callable[[ItemSpec], None] | None = None,
    ) -> None:
        """Call `known` with each item that the service had stored before under the same key."""
        self.totals = Totals()
        self._client = client
        self._rejected = rejected
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._in_flight = in_flight
        self._timeout_s = timeout_ms / 1000
        self._pace_s = 0.0 if rows_per_second is None else 1 / rows_per_second
        self._progress = progress
        self._known = known
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="foqs-spark")
        self._under_way: deque[tuple[list[int], list[ItemSpec], Future[list[Any]]]] = deque()
        self._next_at = monotonic()

    def write(self, rows: Iterable[ItemSpec | Invalid]) -> None:
        """Send the rows. Raises Refused, or the errors of `rejected`; some of the rows are stored then."""
        batch: list[ItemSpec] = []
        numbers: list[int] = []
        size = 0
        try:
            for number, spec in enumerate(rows):
                if isinstance(spec, Invalid):
                    self._reject(number, None, spec)
                    continue
                if batch and (len(batch) == self._batch_rows or size + spec.size_bytes > self._batch_bytes):
                    self._send(numbers, batch)
                    batch, numbers, size = [], [], 0
                batch.append(spec)
                numbers.append(number)
                size += spec.size_bytes
            if batch:
                self._send(numbers, batch)
            while self._under_way:
                self._settle()
        finally:
            self._threads.shutdown(cancel_futures=True)

    def _send(self, numbers: list[int], batch: list[ItemSpec]) -> None:
        while len(self._under_way) >= self._in_flight:
            self._settle()
        self._keep_pace(len(batch))
        self._under_way.append((numbers, batch, self._threads.submit(self._store, batch)))

    def _keep_pace(self, rows: int) -> None:
        if not self._pace_s:
            return
        now = monotonic()
        if self._next_at > now:
            sleep(self._next_at - now)
        self._next_at = max(self._next_at, now) + rows * self._pace_s

    def _store(self, batch: list[ItemSpec]) -> list[Any]:
        """Return the outcome of each item once none needs a repetition; runs in a thread."""
        deadline = monotonic() + self._timeout_s
        outcomes: list[Any] = [None] * len(batch)
        left = list(range(len(batch)))
        while left:
            left_ms = int((deadline - monotonic()) * 1000)
            made = self._client.enqueue_many([batch[i] for i in left], timeout_ms=max(1, min(_ATTEMPT_MS, left_ms)))
            for i, outcome in zip(left, made, strict=True):
                outcomes[i] = outcome
            left = [i for i in left if _may_come(batch[i], outcomes[i])] if monotonic() < deadline else []
        return outcomes

    def _settle(self) -> None:
        numbers, batch, future = self._under_way.popleft()
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
