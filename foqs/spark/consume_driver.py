"""The driver's part of a consuming stream: leases batches, keeps them leased, and acks what reached its sink."""

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
from foqs.client.items import Item
from foqs.client.leases import EXTEND_AFTER, Held, Leases
from foqs.client.worker import shares
from foqs.errors import FoqsError, NotFound, OutcomeUnknown, Overloaded, StaleLease, Unavailable
from foqs.spark.consume_folder import StateFolder
from foqs.spark.consume_state import only_new, without_body

log = logging.getLogger("foqs.spark")

UNSETTLED_BATCHES = 4
"""With so many batches whose acks the service could not take, nothing more is leased."""
_PASSES = 8
_AVAILABLE_NOW_WAIT_MS = 500
_ACK_AGAIN_AFTER = 1 / 10
_LOOK_AGAIN_S = 0.05
_NOW_IMPOSSIBLE = (Overloaded, Unavailable, OutcomeUnknown)


class ConsumeSettings(Protocol):
    """What a consumer is told; see `ConsumeOptions`."""

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
    """Of items. `stale`: somebody else has the item by now, so it is delivered twice. `gone`: acked before, deleted, or
    an at-most-once item whose lease had ended."""

    leased: int = 0
    acked: int = 0
    gone: int = 0
    stale: int = 0


class Consumer:
    """One thread at a time. Every method opens the folder first: see `StateFolder.open` for what that raises.

    At most one batch is leased that Spark has not committed, and `UNSETTLED_BATCHES` that wait for their acks.
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
        self._answered = False  # whether the service ever did
        self._turn = 0
        self._ack_again_at = 0.0
        self._planned = 0
        self._ran = 0
        self._ends_when_empty = False
        self._began_ms: float = inf
        self._ended = False

    def first(self) -> int:
        """Where a query without a checkpoint begins: behind the last batch that is known to have reached its sink.
        What was leased after it is given again."""
        self._open()
        return self._folder.ledger.committed

    def only_what_is_there(self) -> None:
        """From now on `latest` comes to an end: when no host has anything ready, or only what became ready after the
        first items were leased; or when what is ready is not to be had for `timeout_ms`."""
        self._ends_when_empty = True

    def latest(self, start: int | None, max_items: int) -> int:
        """Acks everything up to `start`, then leases the next batch. Without `start`: up to the batch that ran last.

        The number of that batch, or `start` when there is none. A batch that is in the folder and was not planned is
        given again under its number. Raises FoqsError when the service refuses, when it never answered, and under
        `only_what_is_there` whenever it does not answer; else that is waited for.
        """
        self._open()
        # Before PySpark 4.2 Spark does not say where it is. It asks for more when the batch that ran is done.
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
        """The items of the batches behind `start` up to `end`: always the same. Acks everything up to `start`.

        Raises Invalid when they are not in the folder, or damaged.
        """
        self._open()
        self._planned = max(self._planned, end)
        # Spark names the last offset that it planned by an empty range: that one may not have reached its sink.
        if start == end:
            return []
        self._folder.commit(start)
        self._settle()
        items = [item for seq in self._folder.ledger.wanted(start, end) for item in self._folder.read(seq)]
        self._ran = end
        return items

    def committed(self, end: int) -> None:
        """Everything up to `end` has reached its sink."""
        self._open()
        if end > self._folder.ledger.committed:
            self._folder.commit(end)
        self._settle()

    def close(self) -> None:
        """Acks nothing: whether the last batch reached its sink is not known. Its leases run out, unless the query
        begins again before."""
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
                self._folder.remove(seq)  # first: it may be in its place, and would be given again
                self._client.release_many(items)
            raise
        self.counts.leased += len(items)

    def _all_new(self, items: Sequence[Item]) -> bool:
        if self._began_ms == inf:
            self._began_ms = min(item.lease_expires_at_ms for item in items) - self._settings.lease_ms
            return False
        return only_new(items, int(self._began_ms))

    def _take(self, count: int) -> list[Item]:
        """One answer is what one host has; more are asked for until the batch is full."""
        items: list[Item] = []
        wait_ms = self._settings.wait_ms
        if self._ends_when_empty:
            wait_ms = max(wait_ms, _AVAILABLE_NOW_WAIT_MS)
        left_bytes = self._settings.max_bytes_per_batch
        timeout_ms = None
        until = inf
        for _ in range(_PASSES):
            if items:  # nobody extends them yet
                until = min(until, monotonic() + self._settings.lease_ms / 1000 * EXTEND_AFTER)
                timeout_ms = min(self._settings.timeout_ms, int((until - monotonic()) * 1000))
                if timeout_ms <= 0:
                    break
            try:
                more = self._dequeue(count - len(items), left_bytes, 0 if items else wait_ms, timeout_ms)
            except FoqsError as error:
                if items:
                    break  # they are leased: the batch must not be lost for want of more
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
        """An answer with nothing is no end: another host may have something of which the one that was asked was not
        told yet, or a shard's database may have been slow, or the turn was another topic's."""
        deadline = monotonic() + self._settings.timeout_ms / 1000
        while self._something_ready():
            items = self._take(count)
            if items:
                return items
            if monotonic() >= deadline:
                log.warning(
                    "something is ready, and %d ms brought nothing of it: left alone", self._settings.timeout_ms
                )
                break
            sleep(_LOOK_AGAIN_S)  # a host that is stopping does not let anybody wait
        return []

    def _something_ready(self) -> bool:
        topics = set(self._settings.topics)
        last = max(topics)  # they come in order
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
        """Acks what reached its sink. What the service cannot take now is tried again at a later call."""
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
        """An error that will not pass by itself, if there is one."""
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
            log.warning("%d items were delivered to somebody else as well: their leases had run out", stale)
        return refused


def _size_bytes(item: Item) -> int:
    headers = sum(len(key) + len(value) for key, value in (item.headers or {}).items())
    return len(item.payload) + len(item.metadata or b"") + headers
