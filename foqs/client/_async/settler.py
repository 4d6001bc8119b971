"""How items of a worker end: acks, nacks and releases are sent in batches, counted, and their leases given up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from foqs.client._async.client import AsyncClient
from foqs.client._async.job import Held
from foqs.client._async.leases import Leases
from foqs.client._async.waits import Condition, Event, SimpleQueue, guarded_task
from foqs.client.call import AGAIN
from foqs.client.ending import Counts, Failure, Outcome, delay_of, outcome_of, shown_ms, without_refused, word_of
from foqs.client.guard import SafeLog, is_a, renew_after_fork
from foqs.client.handlers import bounded
from foqs.client.items import Ack, Nack
from foqs.client.timing import Backoff, Batcher
from foqs.errors import FoqsError, Invalid, Unavailable
from foqs.second_answer import END_ITEM, ONCE, Verdict, judge, unknown

log = SafeLog()

CALL_TIMEOUT_MS = 5_000
GIVE_UP_AFTER_LEASES = 1.0
"""Lease durations after the end of a lease: an ack may still be taken then, if no other consumer got the item."""
_LAST_S = 0.2
"""After the deadline of a stop the outcomes that were not taken are given up, which takes this long at most."""
HOLD_MS = 50.0
"""Endings wait this long for the acks that went with a dequeue, as they do for an ack that the settler sends."""
_NO_RESULT = "the result was refused"
_AGAIN = Backoff(first_ms=100, longest_ms=5_000)
_NOTHING: Mapping[int, Any] = {}


class Ending(NamedTuple):
    """`nack` is None for an ack, which may bring a result; one with `release` gives back an item that was not
    started. `failure` is logged with the answer to the nack, or without it after the first request that has none."""

    held: Held
    nack: Nack | None
    result: bytes | None = None
    failure: Failure | None = None

    @property
    def size_bytes(self) -> int:
        return self.nack.size_bytes if self.nack else 32 + len(self.result or b"")

    def logged(self, after: Any) -> Ending:
        if self.failure is not None:
            self.failure.log(sequel(self.held, self.nack), after)
        return self._replace(failure=None)


def sequel(held: Held, nack: Nack | None) -> str:
    """Return the next step of an item after a failed attempt, for the log."""
    if nack is None:
        return "it is acked all the same"
    if held.at_most_once:
        return "it is lost, as an at-most-once item is not delivered again"
    if nack.reject:
        return "it is rejected"
    if held.gone:
        return "its lease is lost, so it is delivered again without this nack"
    if nack.failed:
        return f"attempt {held.attempt}; again, or a dead letter, as its rules or its topic's policy say"
    return f"attempt {held.attempt}, again in {shown_ms(nack.delay_ms or 0)}"


Settled = tuple[Ending, FoqsError | None]


class Settler:
    """One task, which gives every ending to `outcomes` once; so does a task that calls `answered`. `broken(error)`
    is called if the task ends by an error: the endings that it has are not sent.

    A nack that was refused is sent again without the refused part; `backoff` sets the delay in place of a refused one.

    `room` is offered due acks, to go along with a dequeue. If it takes them, each is given to `answered`, `failed` or
    `send_back` later.
    """

    def __init__(
        self,
        client: AsyncClient,
        outcomes: Outcomes,
        room: Room,
        *,
        lease_ms: int,
        max_items: int,
        linger_ms: float,
        backoff: Backoff,
        broken: Callable[[BaseException], object],
    ) -> None:
        self._client = client
        self._outcomes = outcomes
        self._room = room
        self._backoff = backoff
        self._lease_s = lease_ms / 1000
        self._batcher: Batcher[Ending] = Batcher(max_items, 1 << 20, linger_ms)
        self._again: list[Ending] = []
        self._back: list[Ending] = []
        self._again_at_ms = 0.0
        self._failures = 0
        self._hold_until_ms = 0.0
        self._closed = False
        self._until_ms = inf
        self.inherited = False
        self._change = Condition()
        self._sender = guarded_task("foqs-settler", broken, self._run)

    def start(self) -> None:
        renew_after_fork(self)
        self._sender.start()

    def after_fork(self) -> None:
        self.inherited = True

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child: the task is in the parent, and does not see what the child puts."""
        if self.inherited:
            raise RuntimeError(
                "a handler called os.fork(), and the child returned to the Worker, which works in the parent: let the "
                "child end with os._exit(), or use subprocess or multiprocessing"
            )

    def put(self, ending: Ending) -> None:
        self.check_process()
        ending.held.settling = True
        with self._change:
            if self._batcher.add(ending, ending.size_bytes, monotonic() * 1000):
                self._change.notify()

    def answered(self, acks: Sequence[Ending], outcomes: Sequence[FoqsError | None]) -> None:
        """Settle acks that went with a dequeue. Send acks again that may be repeated."""
        done, again = self._judge(acks, outcomes)
        self._outcomes.settled(done)
        self._hold_until_ms = 0.0
        self.send_back(again)

    def failed(self, acks: Sequence[Ending], error: FoqsError) -> None:
        """Send acks again whose request with a dequeue failed as a whole, perhaps because of the dequeue."""
        if judge(END_ITEM, error, doubtful=False) is Verdict.AGAIN_DOUBTFUL:
            for ending in acks:
                ending.held.doubtful = True
        self._hold_until_ms = 0.0
        self.send_back(acks)

    def send_back(self, acks: Sequence[Ending]) -> None:
        """Send acks that were taken along, at once and in a request without a dequeue."""
        if acks:
            with self._change:
                self._back += acks
                self._change.notify()

    async def close(self, deadline: float) -> None:
        """Settle the queued endings without lingering; give up the rest at the deadline (monotonic seconds)."""
        with self._change:
            self._closed = True
            self._until_ms = deadline * 1000
            self._change.notify()
        if self._sender.ident is not None:  # it was started
            await self._sender.join(max(0.0, deadline - monotonic()) + _LAST_S)

    async def _run(self) -> None:
        while batch := await self._next_batch():
            acks = [ending for ending in batch if ending.nack is None]
            nacks = [ending for ending in batch if ending.nack is not None and not ending.nack.release]
            releases = [ending for ending in batch if ending.nack is not None and ending.nack.release]
            await self._settle(
                acks,
                self._client.ack_many,
                [ending.held if ending.result is None else Ack.of(ending.held, ending.result) for ending in acks],
            )
            after: dict[int, Any] = {}
            nack = partial(self._client._nack_after, after=after)
            await self._settle(nacks, nack, [ending.nack for ending in nacks], after)
            await self._settle(releases, self._client.release_many, [ending.held for ending in releases])
        left = _logged([*self._back, *self._again, *self._batcher.drain()])
        self._outcomes.settled(
            [(ending, Unavailable("the worker has ended, and its lease runs out")) for ending in left]
        )

    async def _next_batch(self) -> list[Ending]:
        """Wait for endings to send; empty at the end."""
        while True:
            batch, is_new = await self._due()
            acks = [ending for ending in batch if ending.nack is None and ending.result is None]
            if not (is_new and acks and self._take_along(acks)):
                return batch
            if len(acks) < len(batch):
                return [ending for ending in batch if ending.nack is not None or ending.result is not None]

    def _take_along(self, acks: list[Ending]) -> bool:
        self._hold_until_ms = monotonic() * 1000 + HOLD_MS  # before the offer, whose end may come first
        taken = self._room.offer(acks)
        if not taken:
            self._hold_until_ms = 0.0
        return taken

    async def _due(self) -> tuple[list[Ending], bool]:
        """Wait for endings to send. Return them, and True if they were not sent before; no endings at the end."""
        with self._change:
            while True:
                now_ms = monotonic() * 1000
                if now_ms >= self._until_ms:
                    return [], False
                if self._back:
                    batch, self._back = self._back, []
                    return batch, False
                if self._again and self._again_at_ms <= now_ms:
                    batch, self._again = self._again, []
                    return batch, False
                due_at_ms = self._batcher.due_at_ms()
                if due_at_ms is not None:
                    due_at_ms = max(due_at_ms, self._hold_until_ms)
                    if due_at_ms <= now_ms or self._closed:
                        return self._batcher.take(), True
                if self._closed and not self._again:
                    return [], False
                again_at_ms = self._again_at_ms if self._again else inf
                at_ms = min(inf if due_at_ms is None else due_at_ms, again_at_ms, self._until_ms)
                await self._change.wait(None if at_ms == inf else (at_ms - now_ms) / 1000)

    async def _settle(
        self, endings: list[Ending], call: Callable[..., Awaitable[list[FoqsError | None]]], entries: list[Any],
        after: Mapping[int, Any] = _NOTHING,
    ) -> None:  # fmt: skip
        if not endings:
            return
        left_ms = self._until_ms - monotonic() * 1000
        timeout_ms = CALL_TIMEOUT_MS if left_ms >= CALL_TIMEOUT_MS else max(1, int(left_ms))
        outcomes = await call(entries, timeout_ms=timeout_ms)
        done, again = self._judge(_logged(endings, after), outcomes)
        self._outcomes.settled(done)
        with self._change:
            if done:
                self._failures = 0
            if again:
                self._failures += 1
                self._again += again
                self._again_at_ms = monotonic() * 1000 + _AGAIN.delay_ms(self._failures, random.random)

    def _judge(
        self, endings: Sequence[Ending], outcomes: Sequence[FoqsError | None]
    ) -> tuple[list[Settled], list[Ending]]:
        """Return the endings that are settled, and the endings to repeat."""
        again: list[Ending] = []
        done: list[Settled] = []
        for ending, error in zip(endings, outcomes, strict=True):
            if error is None:
                done.append((ending, None))
                continue
            if is_a(error, Invalid) and (repaired := self._without_refused(ending, error)) is not None:
                self.send_back((repaired,))
                continue
            # A nack is not repeated across calls: that would delay the item, or count its attempt, a second time.
            verdict = judge(END_ITEM if ending.nack is None else ONCE, error, ending.held.doubtful)
            if verdict is Verdict.AGAIN_DOUBTFUL:
                ending.held.doubtful = True
            if verdict in AGAIN and self._lease_may_last(ending):
                again.append(ending)
            elif verdict is Verdict.DONE:
                done.append((ending, None))
            else:
                done.append((ending, unknown(error) if verdict is Verdict.UNKNOWN else error))
        return done, again

    def _without_refused(self, ending: Ending, error: FoqsError) -> Ending | None:
        if ending.result is not None:
            log.error("the result of %s was refused: %s; the item has failed", ending.held, error.message)
            return Ending(
                ending.held, Nack.of(ending.held, reason=bounded(f"{_NO_RESULT}: {error.message}"), failed=True)
            )
        if ending.nack is None or ending.nack.release:
            return None
        nack = without_refused(ending.nack, error.message, delay_of(self._backoff, ending.held.attempt))
        if nack is None:
            return None
        log.warning("the nack of %s was refused: %s; it is sent again without that", ending.held, error.message)
        return Ending(ending.held, nack)

    def _lease_may_last(self, ending: Ending) -> bool:
        return monotonic() < ending.held.expires + self._lease_s * GIVE_UP_AFTER_LEASES


def _logged(endings: Sequence[Ending], after: Mapping[int, Any] = _NOTHING) -> list[Ending]:
    """Log the failures, with what their hosts said of them, and return the endings without them."""
    return [ending if ending.failure is None else ending.logged(after.get(ending.held.id)) for ending in endings]


class Room:
    """Where the settler's task passes due acks to the worker's task, while it waits for room: the acks make
    the room, and go with the request for the items that take it. A worker with room asks at once, without acks.

    `queue` has the items that wait for a handler; above `refill_at` of them requests are put off."""

    def __init__(self, leases: Leases, stopping: Event, queue: SimpleQueue[Held | None], refill_at: int) -> None:
        self._leases = leases
        self._stopping = stopping
        self._queue = queue
        self._refill_at = refill_at
        self._waits = False
        self._acks: list[Ending] = []

    @property
    def low(self) -> bool:
        """True if few items wait for a handler. A worker whose handlers all hang takes none."""
        return self._queue.qsize() <= self._refill_at and not self._leases.limits.all_hang

    async def wait(self) -> tuple[int, list[Ending]]:
        """Return the room for items, and the acks to send with the request; these make more room. Returns at once when
        the worker stops."""
        leases = self._leases
        with leases.change:
            self._waits = True
            await leases.change.wait_for(self._ends)
            self._waits = False
            acks, self._acks = self._acks, []
            return leases.room, acks

    def offer(self, acks: list[Ending]) -> bool:
        """Give `acks` to the task in `wait`. Return True if it takes them."""
        with self._leases.change:
            waits = self._waits and not self._acks and not self._stopping.is_set() and self.low
            if not waits or self._leases.room + len(acks) <= 0:
                return False
            self._acks = acks
            self._leases.change.notify_all()
            return True

    def _ends(self) -> bool:
        return self._stopping.is_set() or bool(self._acks) or (self._leases.room > 0 and self.low)


class Outcomes:
    """Counts the outcomes of items and gives up their leases."""

    def __init__(self, leases: Leases) -> None:
        self.counts = Counts()
        self._leases = leases

    def count(self, outcome: Outcome, number: int = 1) -> None:
        with self._leases.change:
            setattr(self.counts, outcome, getattr(self.counts, outcome) + number)

    def ended(self, held: Held, outcome: Outcome) -> None:
        """Count an item without an ending to send."""
        self.count(outcome)
        self._leases.remove((held,))

    def settled(self, settled: Sequence[Settled]) -> None:
        numbers = Counter[Outcome]()
        for ending, error in settled:
            self.note(ending, error)
            numbers[outcome_of(ending.nack, error)] += 1
        for outcome, number in numbers.items():
            self.count(outcome, number)
        self._leases.remove(ending.held for ending, _ in settled)

    def note(self, ending: Ending, error: FoqsError | None) -> None:
        """Note in the span and the log that the server took an outcome, or `error` is why not."""
        if ending.held.traced is not None:
            ending.held.traced.settled(word_of(ending.nack), error)
        if error is not None:
            log.warning("%s of %s: %s", word_of(ending.nack), ending.held, error.message)
