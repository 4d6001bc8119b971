"""What a consuming stream reports of itself in Spark's progress: its lag, its rates and its counts.

Spark 4.3 takes no metrics from a source in Python. It copies the offset that `reportLatestOffset` returns into the
progress (`sources[].latestOffset`), and uses it for nothing else. So the report is such an offset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any

from foqs.client.client import Client
from foqs.errors import FoqsError
from foqs.spark.consume_lease import active_among

log = logging.getLogger("foqs.spark")

_ASK_EVERY_S = 1.0
_REST = 20
"""The least time from one question to the next, by the time that the answer took: an answer of a namespace with very
many topics takes long, and is work for its hosts."""
_WAIT_S = 0.1
_GOOD_S = 10.0
"""Age of the last answer from which on the report has no lag, unless the questions are rarer."""
_WINDOW_S = 10.0


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


def report(seq: int, counts: Any, rates: tuple[float, float], waiting: int, lag: Lag | None) -> dict[str, Any]:
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
