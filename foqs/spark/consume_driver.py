"""The driver's part of a consuming stream: leases batches, extends their leases, and acks batches that reached their
sink.

Calls of the service overlap with Spark's work: while Spark runs a batch, one thread acks the batch before it, and
another leases the next batch if the running one was full. Each spreads its calls over several connections. Only the
caller's thread changes the ledger.

A lease may end before its ack: the driver was dead for longer, the service was away, or a host died before it wrote the
lease. The service then delivers the item again, perhaps to this query. An item that the query has in a batch, or has
delivered, gets no second batch: it keeps its place with the new lease (`_new_ones`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import inf
from threading import Lock
from time import monotonic
from typing import Any

from foqs.client._sync.client import Client
from foqs.client._sync.job import Held
from foqs.client._sync.leases import Leases
from foqs.client.items import Item, Lease
from foqs.errors import FoqsError, NotFound, StaleLease, Unavailable
from foqs.spark.consume_lease import NOW_IMPOSSIBLE, LagWatch, Leaser, Rates, Taken, progress_report
from foqs.spark.consume_state import MOST_DELIVERED, StateFolder, joined, leases_of, ready_ms, split, without_body
from foqs.spark.options import ConsumeOptions
from foqs.travel import Value

log = logging.getLogger("foqs.spark")

UNSETTLED_BATCHES = 4
"""Batches with unsettled acks at which the driver leases no more items."""
_AVAILABLE_NOW_WAIT_MS = 500
_ACK_AGAIN_AFTER = 1 / 10
_ACKS_OF_A_CALL = 250
"""Acks below which another connection is not worth its request."""
_DELIVERED = 0
"""The place of a batch's number, for items that were delivered and came again. Batches are numbered from 1."""
_ASK_AGAIN_S = 60.0
_ASK_ITEMS = 10_000


@dataclass(slots=True)
class Counts(Value):
    """Counts of items. `gone`: acked before, deleted, or an at-most-once item whose lease had ended. `stale`: acks that
    were refused, because the service had delivered the item again. `again`: items that came again to this query, which
    did not deliver them again."""

    leased: int = 0
    acked: int = 0
    gone: int = 0
    stale: int = 0
    again: int = 0


@dataclass(slots=True)
class _Leased:
    """A batch with its file. `since_ms`: when it was leased, and `ready_ms`: when its first item became ready (Unix
    epoch, by the server's clock)."""

    seq: int
    held: list[Held]
    full: bool
    since_ms: int
    ready_ms: int


class Consumer:
    """Leases, keeps and acks the batches of one query, called by one thread at a time.

    Every method opens the folder first, and raises the errors of `StateFolder.open`. At most two leased batches are not
    yet committed by Spark: the running batch and the next. At most `UNSETTLED_BATCHES` wait for their acks.
    """

    def __init__(self, client: Client, settings: ConsumeOptions) -> None:
        self.counts = Counts()
        self._client = client
        self._settings = settings
        self._folder = StateFolder(settings.state_dir, settings.namespace)
        bound = settings.max_items_per_batch * (UNSETTLED_BATCHES + 2)
        self._leases = Leases(client, settings.lease_ms, bound)
        self._held: dict[int, dict[int, Held]] = {}
        self._lock = Lock()  # of `_held` and the folder's `again`, which the thread that leases ahead uses too
        self._found: set[int] = set()
        self._opened = False
        self._lease_calls = ThreadPoolExecutor(settings.connections, thread_name_prefix="foqs-lease")
        self._ack_calls = ThreadPoolExecutor(settings.connections, thread_name_prefix="foqs-ack")
        self._ahead_thread = ThreadPoolExecutor(1, thread_name_prefix="foqs-ahead")
        self._leaser = Leaser(client, settings, self._lease_calls)
        self._watch = LagWatch(client, settings.topics)
        self._rates = Rates(monotonic())
        self._acks: dict[int, list[tuple[Sequence[Held], Future[list[FoqsError | None]]]]] = {}
        self._asked: tuple[list[Lease], Future[list[FoqsError | None]]] | None = None
        self._ask_at = 0.0
        self._ahead: Future[_Leased | None] | None = None
        self._full = 0  # number of the last batch that was full
        self._count = settings.max_items_per_batch
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
        """Begin to ack everything up to `start`, then return the number of the next batch, or `start` if there is none.
        Without `start`, ack up to the batch that ran last. Without a new batch, all acks have been tried.

        A batch that is in the folder and was not planned is returned again under its number. Raises FoqsError if the
        service refuses, if it never answered, and in the mode `only_what_is_there` at the first missing answer;
        otherwise a missing answer means no items now.
        """
        self._open()
        # Before PySpark 4.2 Spark passes no start offset. It asks for more when the batch that ran is done.
        known = max(self._folder.ledger.committed, self._ran) if start is None else start
        self._settle()
        self._folder.commit(known)
        self._ack()
        if self._may_be_over():
            self._settle()  # an ack in time saves a delivery
        self._count = min(max_items, self._settings.max_items_per_batch)
        position = max(known, self._planned) if start is None else known
        end = self._next(position)
        if end == position:
            self._settle()
            self._ack()  # of items that came again
            self._settle()
        return end

    def batch(self, start: int, end: int) -> Any:
        """Begin to ack everything up to `start`. Return the items of the batches after `start` up to `end` as a table:
        the same at every call.

        Raises Invalid if the folder lacks them, or if they are damaged.
        """
        self._open()
        self._planned = max(self._planned, end)
        # An empty range is the last offset that Spark planned: its batch may not have reached the sink.
        if start == end:
            return joined([])
        self._folder.commit(start)
        self._ack()
        table = joined([self._folder.read(seq) for seq in self._folder.ledger.wanted(start, end)])
        self._ran = end
        self._lease_ahead(end)
        return table

    def committed(self, end: int) -> None:
        """Commit everything up to `end`: it has reached its sink."""
        self._open()
        if end > self._folder.ledger.committed:
            self._folder.commit(end)
        self._ack()

    def report(self) -> dict[str, Any]:
        """Return what Spark's progress shows of the source: see `consume_progress`."""
        ledger, counts = self._folder.ledger, self.counts
        rates = self._rates.add(monotonic(), counts.leased, counts.acked)
        seq = max(ledger.committed, *ledger.batches, 0)
        return progress_report(seq, counts, rates, len(ledger.unsettled), self._watch.lag())

    def close(self) -> None:
        """Stop without acks: the last batch may not have reached its sink. Its leases run out unless the query starts
        again before."""
        self._client.close()
        # A thread that leases may write to the folder until it ends.
        for threads in (self._ahead_thread, self._lease_calls, self._ack_calls):
            threads.shutdown()
        self._watch.close()
        self._leases.abandon()
        self._folder.close()
        self._opened = False

    def _open(self) -> None:
        if self._opened:
            return
        self._folder.open(self._settings.timeout_ms / 1000)
        try:
            left = dict(self._folder.again.leases)
            for seq in self._folder.ledger.batches:
                items = leases_of(self._folder.read(seq))
                for item in items:
                    item.lease = left.pop(item.id, item.lease)
                self._hold(seq, items, overdue=True)
            if left:
                self._hold(_DELIVERED, [Item(item_id, lease) for item_id, lease in left.items()], overdue=True)
            self._found = set(self._held)
        except BaseException:
            self._leases.abandon()
            self._folder.close()
            raise
        self._opened = True

    def _hold(self, seq: int, items: Sequence[Item], *, overdue: bool = False) -> None:
        self._held.setdefault(seq, {}).update((one.id, one) for one in self._leases.add(items, overdue=overdue))

    # ------------------------------------------------------------------------------------- leases

    def _next(self, position: int) -> int:
        """Return the number of the batch after `position`, leased now or before, or `position` if there is none."""
        if position + 1 in self._folder.ledger.batches:
            return position + 1
        leased = self._leased_ahead()
        if leased is None:
            if self._ended or not self._acks_allow_more():
                return position
            leased = self._lease(position + 1)
        if leased is None:
            return position
        with self._lock:
            self._held[leased.seq] = {one.id: one for one in leased.held}
        self._folder.add(leased.seq)
        if self._ends_when_empty:
            if self._began_ms == inf:
                self._began_ms = leased.since_ms
            elif leased.ready_ms > self._began_ms:
                self._ended = True
                self._give_back(leased)
                return position
        self.counts.leased += len(leased.held)
        if leased.full:
            self._full = leased.seq
        return leased.seq

    def _acks_allow_more(self) -> bool:
        if len(self._folder.ledger.unsettled) < UNSETTLED_BATCHES:
            return True
        self._settle()
        unsettled = len(self._folder.ledger.unsettled)
        if self._ends_when_empty and unsettled >= UNSETTLED_BATCHES:
            raise Unavailable(f"the service could not take the acks of {unsettled} batches")
        return unsettled < UNSETTLED_BATCHES

    def _lease(self, seq: int) -> _Leased | None:
        count, wait_ms = self._count, self._settings.wait_ms
        until = monotonic() + self._settings.timeout_ms / 1000
        while True:
            if self._ends_when_empty:
                taken = self._leaser.take_what_is_ready(count, max(wait_ms, _AVAILABLE_NOW_WAIT_MS))
            else:
                taken = self._leaser.take(count, wait_ms)
            leased = self._keep(seq, taken)
            if leased is not None or not taken.items or monotonic() >= until:
                return leased

    def _lease_ahead(self, position: int) -> None:
        """Lease the batch after `position` while Spark runs a full one: there is probably more."""
        ledger, count = self._folder.ledger, self._count
        if self._ahead is not None or self._full != position or position + 1 in ledger.batches:
            return
        if not self._ended and len(ledger.unsettled) < UNSETTLED_BATCHES:
            self._ahead = self._ahead_thread.submit(lambda: self._keep(position + 1, self._leaser.take(count, 0)))

    def _leased_ahead(self) -> _Leased | None:
        """Return the batch that was leased ahead, if there is one."""
        if self._ahead is None:
            return None
        leased, self._ahead = self._ahead, None
        try:
            return leased.result()
        except FoqsError as error:  # the next attempt decides
            log.warning("could not lease a batch ahead: %s", error.message)
            return None

    def _keep(self, seq: int, taken: Taken) -> _Leased | None:
        """Write leased items to the folder, and extend their leases from now on. Leave out items that the query has
        already."""
        items = self._new_ones(taken.items)
        if not items:
            return None
        held = self._leases.add(list(map(without_body, items)))
        try:
            self._folder.write(seq, items)
        except BaseException:
            self._leases.remove(held)
            with suppress(FoqsError, OSError):
                self._folder.erase(seq)  # the file may exist already, and would be delivered again
                self._client.release_many(items)
            raise
        since_ms = min(item.lease_expires_at_ms for item in items) - self._settings.lease_ms
        return _Leased(seq, held, taken.full, since_ms, min(map(ready_ms, items)))

    def _new_ones(self, items: Sequence[Item]) -> list[Item]:
        """Return the items that the query does not have, and did not deliver. The known ones get the newest lease."""
        newest = {item.id: item for item in items}
        with self._lock:
            again = self._folder.again
            came = {item_id: seq for seq, held in self._held.items() for item_id in newest.keys() & held.keys()}
            came = dict.fromkeys(newest.keys() & again.leases.keys(), _DELIVERED) | came
            for item_id, seq in came.items():
                item = newest.pop(item_id)
                again.note(item_id, item.lease)
                self._hold(seq, [without_body(item)])
            self._folder.save_again()
        if came:
            self.counts.again += len(came)
            log.warning("%d leases had ended and their items came again: they are not delivered again", len(came))
        return list(newest.values())

    def _may_be_over(self) -> bool:
        """Return True if the lease of an item that waits for its ack may have ended."""
        now = monotonic()
        with self._lock:
            waiting = [seq for seq in (_DELIVERED, *self._folder.ledger.unsettled) if seq in self._held]
            return any(
                seq in self._found or not all(one.usable(now) for one in self._held[seq].values()) for seq in waiting
            )

    def _give_back(self, leased: _Leased) -> None:
        with self._lock:
            self._leases.remove(self._held.pop(leased.seq).values())
            self._folder.again.end(one.id for one in leased.held)  # they were not delivered
            self._folder.save_again()
        self._folder.remove(leased.seq)
        self._client.release_many([one.item for one in leased.held])

    # ------------------------------------------------------------------------------------- acks

    def _ack(self) -> None:
        """Begin to ack the batches that reached their sink. Acks that the service cannot take now are repeated at a
        later call."""
        if monotonic() < self._ack_again_at:
            return
        self._ack_again_at = 0.0
        for seq in (_DELIVERED, *self._folder.ledger.unsettled):
            with self._lock:
                held = list(self._held.get(seq, {}).values())
            if seq not in self._acks and (held or seq):
                calls = max(1, min(self._settings.connections, len(held) // _ACKS_OF_A_CALL))
                self._acks[seq] = [(run, self._ack_calls.submit(self._ack_some, run)) for run in split(held, calls)]
        self._ask_for_delivered()

    def _ask_for_delivered(self) -> None:
        """Ask from time to time, by an ack with an old lease, which delivered items with a refused ack are gone."""
        if self._asked is not None and self._asked[1].done():
            (asked, answer), self._asked = self._asked, None
            gone = [one.id for one, error in zip(asked, _answers(answer, len(asked)), strict=True) if _gone(error)]
            with self._lock:
                self._folder.again.end(gone)
                self._folder.save_again()
        if self._asked is None and monotonic() >= self._ask_at:
            self._ask_at = monotonic() + _ASK_AGAIN_S
            with self._lock:
                again, batches = self._folder.again, self._in_batches()
                if dropped := again.drop_beyond(MOST_DELIVERED, batches):
                    log.warning("%d delivered items were not acked, and would be delivered again", dropped)
                asked = [Lease(*pair) for pair in again.leases.items() if pair[0] not in batches][:_ASK_ITEMS]
                for one in asked:
                    again.note(*one)  # the last to be asked for again
            if asked:
                self._asked = asked, self._ack_calls.submit(self._client.ack_many, asked)

    def _in_batches(self) -> set[int]:
        return set(chain.from_iterable(self._held.values()))

    def _ack_some(self, held: Sequence[Held]) -> list[FoqsError | None]:
        for one in held:
            one.settling = True
        outcomes = self._client.ack_many([one.item for one in held])
        self._leases.remove(one for one, error in zip(held, outcomes, strict=True) if not _later(error))
        return outcomes

    def _settle(self) -> None:
        """Wait for the acks that were begun, and settle their batches."""
        for seq in list(self._acks):
            outcomes = [
                (one, error) for run, call in self._acks.pop(seq) for one, error in zip(run, call.result(), strict=True)
            ]
            refused = self._count_outcomes([error for _, error in outcomes])
            if refused is not None:
                try:
                    raise refused
                finally:
                    del refused, outcomes
            left = self._settle_each(seq, outcomes)
            if later := sum(_later(error) for _, error in outcomes):
                log.warning("%d acks of %s could not be settled; trying again", later, _named(seq))
                self._ack_again_at = monotonic() + self._settings.lease_ms / 1000 * _ACK_AGAIN_AFTER
            if not left and seq != _DELIVERED:
                self._folder.remove(seq)

    def _settle_each(self, seq: int, outcomes: Sequence[tuple[Held, FoqsError | None]]) -> bool:
        """Settle the acks of a batch. Return True if some are left, to repeat or with a newer lease."""
        with self._lock:
            again, held = self._folder.again, self._held.setdefault(seq, {})
            for one, error in outcomes:
                if held.get(one.id) is not one or _later(error):
                    continue
                del held[one.id]
                if isinstance(error, StaleLease):
                    again.note(one.id, one.lease)
                else:
                    again.end([one.id])
            if not held:
                del self._held[seq]
                self._found.discard(seq)
            self._folder.save_again()  # before the file of the batch goes
            return bool(held)

    def _count_outcomes(self, outcomes: Sequence[FoqsError | None]) -> FoqsError | None:
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
            elif not _later(error):
                refused = error
        if stale:
            self.counts.stale += stale
            log.warning(
                "the acks of %d items were refused: their leases had ended, and the items were leased again. Another "
                "consumer may have them; if they come again to this query, it acks them without a second delivery",
                stale,
            )
        return refused


def _later(error: FoqsError | None) -> bool:
    return isinstance(error, NOW_IMPOSSIBLE)


def _gone(error: FoqsError | None) -> bool:
    return error is None or isinstance(error, NotFound)


def _answers(call: Future[list[FoqsError | None]], count: int) -> list[FoqsError | None]:
    try:
        return call.result()
    except FoqsError as error:  # the next question comes soon
        return [error] * count


def _named(seq: int) -> str:
    return "items that came again" if seq == _DELIVERED else f"batch {seq}"
