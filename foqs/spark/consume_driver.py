"""The driver's part of a consuming stream: leases batches, extends their leases, and acks batches that reached their
sink."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from time import monotonic, sleep
from typing import Protocol

from foqs.client.client import Client
from foqs.client.held import Held
from foqs.client.items import Item
from foqs.client.leases import EXTEND_AFTER, Leases
from foqs.client.worker import shares
from foqs.errors import FoqsError, NotFound, OutcomeUnknown, Overloaded, StaleLease, Unavailable
from foqs.spark.consume_folder import StateFolder
from foqs.spark.consume_state import only_new, without_body

log = logging.getLogger("foqs.spark")

UNSETTLED_BATCHES = 4
"""Batches with unsettled acks at which the driver leases no more items."""
_PASSES = 8
_AVAILABLE_NOW_WAIT_MS = 500
_ACK_AGAIN_AFTER = 1 / 10
_LOOK_AGAIN_S = 0.05
_NOW_IMPOSSIBLE = (Overloaded, Unavailable, OutcomeUnknown)


class ConsumeSettings(Protocol):
    """Settings of a consumer; see `ConsumeOptions`."""

    namespace: str
    state_dir: str
    lease_ms: int
    max_items_per_batch: int
    max_bytes_per_batch: int
    wait_ms: int
    timeout_ms: int

    @property
    def topics(self) -> Sequence[str]: ...


@dataclass(slots=True)
class Counts:
    """Counts of items. `stale`: another consumer has the item by now, so it is delivered twice. `gone`: acked before,
    deleted, or an at-most-once item whose lease had ended."""

    leased: int = 0
    acked: int = 0
    gone: int = 0
    stale: int = 0


class Consumer:
    """Leases, keeps and acks the batches of one query, called by one thread at a time.

    Every method opens the folder first, and raises the errors of `StateFolder.open`. At most one leased batch is not
    yet committed by Spark, and at most `UNSETTLED_BATCHES` wait for their acks.
    """

    def __init__(self, client: Client, settings: ConsumeSettings) -> None:
        self.counts = Counts()
        self._client = client
        self._settings = settings
        self._folder = StateFolder(settings.state_dir, settings.namespace)
        bound = settings.max_items_per_batch * (UNSETTLED_BATCHES + 2)
        self._leases = Leases(client, settings.lease_ms, bound)
        self._held: dict[int, list[Held]] = {}
        self._opened = False
        self._answered = False  # True after the first answer of the service
        self._turn = 0
        self._ack_again_at = 0.0
        self._planned = 0
        self._ran = 0
        self._ends_when_empty = False
        self._began_ms: float = inf
        self._ended = False

    def first(self) -> int:
        """Return the start of a query without a checkpoint: the last batch that is known to have reached its sink.
        Later leased batches are delivered again."""
        self._open()
        return self._folder.ledger.committed

    def only_what_is_there(self) -> None:
        """Make `latest` end: when no host has ready items, when all items of a batch became ready after the first
        lease, or when the query could not lease ready items for `timeout_ms`."""
        self._ends_when_empty = True

    def latest(self, start: int | None, max_items: int) -> int:
        """Ack everything up to `start`, then lease the next batch. Without `start`, ack up to the batch that ran last.

        Return the number of the new batch, or `start` if there is none. A batch that is in the folder and was not
        planned is returned again under its number. Raises FoqsError if the service refuses, if it never answered, and
        in the mode `only_what_is_there` at the first missing answer; otherwise a missing answer means no items now.
        """
        self._open()
        # Before PySpark 4.2 Spark passes no start offset. It asks for more when the batch that ran is done.
        known = max(self._folder.ledger.committed, self._ran) if start is None else start
        self._folder.commit(known)
        self._settle()
        position = max(known, self._planned) if start is None else known
        ledger = self._folder.ledger
        if position + 1 in ledger.batches:
            return position + 1
        if len(ledger.unsettled) >= UNSETTLED_BATCHES:
            if self._ends_when_empty:
                raise Unavailable(f"the service could not take the acks of {len(ledger.unsettled)} batches")
            return position
        if self._ended:
            return position
        count = min(max_items, self._settings.max_items_per_batch)
        items = self._take(count)
        if not items and self._ends_when_empty:
            items = self._take_what_is_ready(count)
        if not items:
            return position
        if self._ends_when_empty and self._all_new(items):
            self._ended = True
            self._client.release_many(items)
            return position
        self._keep(position + 1, items)
        return position + 1

    def batch(self, start: int, end: int) -> list[Item]:
        """Ack everything up to `start`. Return the items of the batches after `start` up to `end`: the same at every
        call.

        Raises Invalid if the folder lacks them, or if they are damaged.
        """
        self._open()
        self._planned = max(self._planned, end)
        # An empty range is the last offset that Spark planned: its batch may not have reached the sink.
        if start == end:
            return []
        self._folder.commit(start)
        self._settle()
        items = [item for seq in self._folder.ledger.wanted(start, end) for item in self._folder.read(seq)]
        self._ran = end
        return items

    def committed(self, end: int) -> None:
        """Commit everything up to `end`: it has reached its sink."""
        self._open()
        if end > self._folder.ledger.committed:
            self._folder.commit(end)
        self._settle()

    def close(self) -> None:
        """Stop without acks: the last batch may not have reached its sink. Its leases run out unless the query starts
        again before."""
        self._leases.abandon()
        self._client.close()
        self._folder.close()
        self._opened = False

    def _open(self) -> None:
        if self._opened:
            return
        self._folder.open(self._settings.timeout_ms / 1000)
        try:
            for seq in self._folder.ledger.batches:
                self._hold(seq, self._folder.read(seq), overdue=True)
        except BaseException:
            self._leases.abandon()
            self._folder.close()
            raise
        self._opened = True

    def _hold(self, seq: int, items: Sequence[Item], *, overdue: bool = False) -> None:
        self._held[seq] = self._leases.add([without_body(item) for item in items], overdue=overdue)

    def _keep(self, seq: int, items: list[Item]) -> None:
        self._hold(seq, items)
        try:
            self._folder.add(seq, items)
        except BaseException:
            self._leases.remove(self._held.pop(seq))
            with suppress(FoqsError, OSError):
                self._folder.remove(seq)  # counted first: the file may exist already, and would be delivered again
                self._client.release_many(items)
            raise
        self.counts.leased += len(items)

    def _all_new(self, items: Sequence[Item]) -> bool:
        if self._began_ms == inf:
            self._began_ms = min(item.lease_expires_at_ms for item in items) - self._settings.lease_ms
            return False
        return only_new(items, int(self._began_ms))

    def _take(self, count: int) -> list[Item]:
        """Lease items until the batch is full; one answer has the items of one host only."""
        items: list[Item] = []
        wait_ms = self._settings.wait_ms
        if self._ends_when_empty:
            wait_ms = max(wait_ms, _AVAILABLE_NOW_WAIT_MS)
        left_bytes = self._settings.max_bytes_per_batch
        timeout_ms = None
        until = inf
        for _ in range(_PASSES):
            if items:  # nothing extends these leases yet
                until = min(until, monotonic() + self._settings.lease_ms / 1000 * EXTEND_AFTER)
                timeout_ms = min(self._settings.timeout_ms, int((until - monotonic()) * 1000))
                if timeout_ms <= 0:
                    break
            try:
                more = self._dequeue(count - len(items), left_bytes, 0 if items else wait_ms, timeout_ms)
            except FoqsError as error:
                if items:
                    break  # the items are leased, so a failure to get more must not lose the batch
                if self._ends_when_empty or not self._answered or not isinstance(error, _NOW_IMPOSSIBLE):
                    raise
                log.warning("no items now: %s", error.message)
                break
            self._answered = True
            items += more
            left_bytes -= sum(map(_size_bytes, more))
            if not more or len(items) >= count or left_bytes <= 0:
                break
        return items

    def _take_what_is_ready(self, count: int) -> list[Item]:
        """Return whether the topics are empty. One empty answer proves nothing: its host may not know yet that another
        host has ready items, a shard's database may have been slow, or another topic had its turn."""
        deadline = monotonic() + self._settings.timeout_ms / 1000
        while self._something_ready():
            items = self._take(count)
            if items:
                return items
            if monotonic() >= deadline:
                log.warning(
                    "the topics have ready items, but none could be leased within %d ms: the run ends without them",
                    self._settings.timeout_ms,
                )
                break
            sleep(_LOOK_AGAIN_S)  # a stopping host ends waits at once
        return []

    def _something_ready(self) -> bool:
        topics = set(self._settings.topics)
        last = max(topics)  # in priority order
        active = takewhile(lambda topic: topic <= last, (found.topic for found in self._client.active_topics()))
        return any(topic in topics for topic in active)

    def _dequeue(self, count: int, max_bytes: int, wait_ms: int, timeout_ms: int | None) -> list[Item]:
        self._turn += 1
        return self._client.dequeue(
            shares(self._settings.topics, count, self._turn),
            wait_ms=wait_ms,
            lease_ms=self._settings.lease_ms,
            max_bytes=max_bytes,
            timeout_ms=timeout_ms,
        )

    def _settle(self) -> None:
        """Ack the batches that reached their sink. Acks that the service cannot take now are repeated at a later
        call."""
        if monotonic() < self._ack_again_at:
            return
        self._ack_again_at = 0.0
        for seq in self._folder.ledger.unsettled:
            held = self._held.get(seq, [])
            for one in held:
                one.settling = True
            outcomes = self._client.ack_many([one.item for one in held])
            ended = [one for one, error in zip(held, outcomes, strict=True) if not isinstance(error, _NOW_IMPOSSIBLE)]
            left = [one for one, error in zip(held, outcomes, strict=True) if isinstance(error, _NOW_IMPOSSIBLE)]
            refused = self._count(outcomes)
            if refused is not None:
                raise refused
            self._leases.remove(ended)
            if left:
                self._held[seq] = left
                log.warning("%d acks of batch %d could not be settled; trying again", len(left), seq)
                self._ack_again_at = monotonic() + self._settings.lease_ms / 1000 * _ACK_AGAIN_AFTER
            else:
                self._held.pop(seq, None)
                self._folder.remove(seq)

    def _count(self, outcomes: Sequence[FoqsError | None]) -> FoqsError | None:
        """Return an error that a retry cannot solve, if there is one."""
        refused = None
        stale = 0
        for error in outcomes:
            if error is None:
                self.counts.acked += 1
            elif isinstance(error, NotFound):
                self.counts.gone += 1
            elif isinstance(error, StaleLease):
                stale += 1
            elif not isinstance(error, _NOW_IMPOSSIBLE):
                refused = error
        if stale:
            self.counts.stale += stale
            log.warning("%d items were also delivered to another consumer: their leases had expired", stale)
        return refused


def _size_bytes(item: Item) -> int:
    headers = sum(len(key) + len(value) for key, value in (item.headers or {}).items())
    return len(item.payload) + len(item.metadata or b"") + headers
