"""What a consuming stream asks of the service: leases over several connections at a time, and its lag.

Spark 4.3 takes no metrics from a source in Python. It copies the offset that `reportLatestOffset` returns into the
progress (`sources[].latestOffset`), and uses it for nothing else. So the report of lag, rates and counts is such an
offset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from time import monotonic, sleep
from typing import Any, NamedTuple

from foqs.client._sync.client import Client
from foqs.client._sync.leases import EXTEND_AFTER
from foqs.client._sync.worker import topics_of_turn
from foqs.client.items import Item
from foqs.errors import FoqsError, OutcomeUnknown, Overloaded, Unavailable
from foqs.figures import ActiveTopic
from foqs.spark.consume_state import split
from foqs.spark.options import ConsumeOptions
from foqs.travel import bare

log = logging.getLogger("foqs.spark")

NOW_IMPOSSIBLE = (Overloaded, Unavailable, OutcomeUnknown)
_ROUNDS = 8
_LOOK_AGAIN_S = 0.05
_PAGE_TOPICS = 10_000
_ASK_EVERY_S = 1.0
_REST = 20
"""The least time from one question to the next, by the time that the answer took: an answer of a namespace with very
many topics takes long, and is work for its hosts."""
_WAIT_S = 0.1
_GOOD_S = 10.0
"""Age of the last answer from which on the report has no lag, unless the questions are rarer."""
_WINDOW_S = 10.0


class Taken(NamedTuple):
    """`full`: a batch may not have more items, or more bytes, than these."""

    items: list[Item]
    full: bool


class Leaser:
    """Leases items of the topics of one query. One thread at a time calls it; it asks in those of `threads`."""

    def __init__(self, client: Client, settings: ConsumeOptions, threads: Executor) -> None:
        self._client = client
        self._settings = settings
        self._threads = threads
        self._answered = False  # True after the first answer of the service
        self._turn = 0

    def take(self, count: int, wait_ms: int, *, must_answer: bool = False) -> Taken:
        """Lease items until there are `count`, or the bytes of a batch; wait up to `wait_ms` for the first.

        One answer has the items of one host only. With a wait, one connection asks first: the rest join when it got its
        whole share. Raise FoqsError if the service refuses, if it never answered, and with `must_answer` if it does
        not answer; otherwise a missing answer means no items now.
        """
        items: list[Item] = []
        connections = self._settings.connections
        left_bytes = self._settings.max_bytes_per_batch
        wants = [-(-count // connections)] if wait_ms else _split(count, connections)
        each_bytes = left_bytes // connections
        until = inf
        for _ in range(_ROUNDS):
            timeout_ms = None
            if items or len(wants) > 1:  # nothing extends the leases of the first answers yet
                until = min(until, monotonic() + self._settings.lease_ms / 1000 * EXTEND_AFTER)
                timeout_ms = min(self._settings.timeout_ms, int((until - monotonic()) * 1000))
                if timeout_ms <= 0:
                    break
            answers, error = self._ask(wants, max(1, each_bytes), 0 if items else wait_ms, timeout_ms)
            sizes = [sum(map(_size_bytes, answer)) for answer in answers]
            items += [item for answer in answers for item in answer]
            left_bytes -= sum(sizes)
            if error is not None:
                if not items:
                    self._raise(error, must_answer=must_answer)
                break  # the items are leased, so a failure to get more must not lose the batch
            if not any(answers) or len(items) >= count or left_bytes <= 0:
                break
            whole = any(
                len(answer) >= want or size >= each_bytes
                for answer, size, want in zip(answers, sizes, wants, strict=True)
            )
            wants = _split(count - len(items), connections if whole else 1)
            each_bytes = left_bytes // len(wants)
        return Taken(items, len(items) >= count or left_bytes <= 0)

    def take_what_is_ready(self, count: int, wait_ms: int) -> Taken:
        """Lease items as `take`, and return none only if the topics are empty, or if ready items could not be leased
        for `timeout_ms`. One empty answer proves nothing: its host may not know yet that another host has ready items,
        a shard's database may have been slow, or another topic had its turn."""
        deadline = monotonic() + self._settings.timeout_ms / 1000
        topics = self._settings.topics
        while not (taken := self.take(count, wait_ms, must_answer=True)).items and active_among(self._client, topics):
            if monotonic() >= deadline:
                log.warning(
                    "the topics have ready items, but none could be leased within %d ms: the run ends without them",
                    self._settings.timeout_ms,
                )
                break
            sleep(_LOOK_AGAIN_S)  # a stopping host ends waits at once
        return taken

    def _raise(self, error: FoqsError, *, must_answer: bool) -> None:
        if must_answer or not self._answered or not isinstance(error, NOW_IMPOSSIBLE):
            try:
                raise error
            finally:
                del error
        log.warning("no items now: %s", error.message)

    def _ask(
        self, wants: Sequence[int], max_bytes: int, wait_ms: int, timeout_ms: int | None
    ) -> tuple[list[list[Item]], FoqsError | None]:
        """Return the answers to requests for `wants` items each, and the last error."""
        asked = []
        for count in wants:
            self._turn += 1
            counts = dict.fromkeys(topics_of_turn(self._settings.topics, self._turn), count)
            asked.append(self._threads.submit(self._dequeue, counts, count, max_bytes, wait_ms, timeout_ms))
        answers: list[list[Item]] = []
        error = None
        for future in asked:
            try:
                answers.append(future.result())
                self._answered = True
            except FoqsError as failed:
                answers.append([])
                error = bare(failed)
        return answers, error

    def _dequeue(
        self, counts: dict[str, int], most: int, max_bytes: int, wait_ms: int, timeout_ms: int | None
    ) -> list[Item]:
        return self._client.dequeue(
            counts, most=most, wait_ms=wait_ms, lease_ms=self._settings.lease_ms, max_bytes=max_bytes,
            timeout_ms=timeout_ms,
        )  # fmt: skip


def active_among(client: Client, topics: Sequence[str], *, all_states: bool = False) -> list[ActiveTopic]:
    """Return those of `topics` with ready items; `all_states`: with any, and their counts. Raises FoqsError."""
    last = max(topics)  # topics come in this order
    found = client.active_topics(all_states=all_states, page_topics=_PAGE_TOPICS)
    return [one for one in takewhile(lambda one: one.topic <= last, found) if one.topic in topics]


def _split(count: int, parts: int) -> list[int]:
    return [len(run) for run in split(range(count), parts)]


def _size_bytes(item: Item) -> int:
    headers = sum(len(key) + len(value) for key, value in (item.headers or {}).items())
    return len(item.payload) + len(item.metadata or b"") + headers


@dataclass(frozen=True, slots=True)
class Lag:
    """Items of the query's topics by state, and how long the ready item that waits longest has waited (0: none)."""

    ready: int
    delayed: int
    leased: int
    lag_ms: int


class Rates:
    """Items in a second, over the last ten seconds. Pure."""

    def __init__(self, now: float) -> None:
        """`now` is monotonic, in seconds."""
        self._samples: deque[tuple[float, int, int]] = deque([(now, 0, 0)])

    def add(self, now: float, leased: int, acked: int) -> tuple[float, float]:
        """Add the counts since the start. Return the rates of leases and acks."""
        samples = self._samples
        samples.append((now, leased, acked))
        while len(samples) > 2 and samples[1][0] <= now - _WINDOW_S:
            samples.popleft()
        began, leased_before, acked_before = samples[0]
        seconds = max(now - began, 0.001)
        return round((leased - leased_before) / seconds, 1), round((acked - acked_before) / seconds, 1)


class LagWatch:
    """Asks the service for the lag in a thread of its own, at most once a second, and rarely where answers take long.
    No trigger waits for it for longer than a tenth of a second."""

    def __init__(self, client: Client, topics: Sequence[str]) -> None:
        self._client = client
        self._topics = topics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="foqs-lag")
        self._asked: Future[Lag] | None = None
        self._ask_at = 0.0
        self._every_s = _ASK_EVERY_S
        self._last: tuple[float, Lag] | None = None
        self._said = ""

    def lag(self) -> Lag | None:
        """Return the newest answer, or None if the service has given none for ten seconds."""
        if self._asked is None and monotonic() >= self._ask_at:
            self._asked = self._thread.submit(self._timed)
        if self._asked is not None:
            try:
                self._last = monotonic(), self._asked.result(_WAIT_S)
                self._asked = None
            except TimeoutError:
                pass
            except FoqsError as error:
                self._asked = None
                if error.message != self._said:
                    log.warning("the progress has no lag: %s", error.message)
                    self._said = error.message
        if self._last is None or self._last[0] < monotonic() - max(_GOOD_S, 2 * self._every_s):
            return None
        return self._last[1]

    def close(self) -> None:
        """Wait for the answer in progress. Close the client first."""
        self._thread.shutdown(cancel_futures=True)

    def _timed(self) -> Lag:
        began = monotonic()
        try:
            return self._ask()
        finally:
            self._every_s = max(_ASK_EVERY_S, _REST * (monotonic() - began))
            self._ask_at = began + self._every_s

    def _ask(self) -> Lag:
        now_ms = self._client.server_info().now_ms
        found = active_among(self._client, self._topics, all_states=True)
        oldest = [one.oldest_ready_at_ms for one in found if one.oldest_ready_at_ms]
        return Lag(
            sum(one.ready for one in found),
            sum(one.delayed or 0 for one in found),
            sum(one.leased or 0 for one in found),
            max(0, now_ms - min(oldest)) if oldest else 0,
        )


def progress_report(seq: int, counts: Any, rates: tuple[float, float], waiting: int, lag: Lag | None) -> dict[str, Any]:
    """Return the report. `counts` are those of a Consumer; `waiting` batches wait for their acks."""
    return {
        "seq": seq,
        "ready": None if lag is None else lag.ready,
        "delayed": None if lag is None else lag.delayed,
        "leased": None if lag is None else lag.leased,
        "lagMs": None if lag is None else lag.lag_ms,
        "leasedPerSecond": rates[0],
        "ackedPerSecond": rates[1],
        "leasedItems": counts.leased,
        "ackedItems": counts.acked,
        "goneItems": counts.gone,
        "staleItems": counts.stale,
        "againItems": counts.again,
        "unackedBatches": waiting,
    }
