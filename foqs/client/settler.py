"""Sends acks, nacks and releases to the server, gathered into batches.

The nack that a worker sends in place of a nack that the server, or the codec, refused. Pure.

A nack that is not sent again loses the reason of the failure, and the item waits until its lease ends.

Counts of the items that a Worker got, by their outcomes.

When a worker asks for items, for how many, and which acks go with the request.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import NamedTuple

from foqs.client.client import Client
from foqs.client.guard import SafeLog, is_a, renew_after_fork, run_to_end
from foqs.client.items import Nack
from foqs.client.job import REASON_BYTES, Held, bounded
from foqs.client.leases import Leases
from foqs.client.timing import Backoff, Batcher
from foqs.errors import FoqsError, Invalid, NotFound, StaleLease
from foqs.second_answer import END_ITEM, ONCE, Policy, Verdict, judge, unknown
from foqs.travel import Value

SHORT_REASON_BYTES = 64
_NOTE_BYTES = 300
_METADATA, _DELAY, _REASON = "metadata", "delay_ms", "reason"


def without_refused(nack: Nack, why: str, delay_ms: int) -> Nack | None:
    """Return `nack` without the part that `why`, the text of the error, begins with. If it names none, that is the
    metadata if there are any, else the delay. The reason names the refused part. None if there is nothing to leave out,
    so repeated calls end.

    `delay_ms` takes the place of a delay that a handler asked for: the item has failed then, so a retry rule counts.
    """
    named = why.partition(" ")[0]
    if named == _REASON:
        return _with_shorter_reason(nack)
    parts = (named,) if named in (_METADATA, _DELAY) else (_METADATA, _DELAY)
    refused = next((part for part in parts if getattr(nack, part) is not None), None)
    if refused is None:
        return None
    reason = _noted(nack.reason, refused, why)
    if refused == _METADATA:
        return replace(nack, reason=reason, metadata=None)
    return replace(nack, reason=reason, failed=True, delay_ms=None if nack.failed else delay_ms)


def _with_shorter_reason(nack: Nack) -> Nack | None:
    if nack.reason is None:
        return None
    shorter = bounded(nack.reason, SHORT_REASON_BYTES)
    return replace(nack, reason=None if shorter == nack.reason else shorter)


def _noted(reason: str | None, part: str, why: str) -> str:
    note = bounded(f"sent without {part}, which was refused: {why}", _NOTE_BYTES)
    if not reason:
        return note
    return f"{bounded(reason, REASON_BYTES - len(note.encode()) - 2)}; {note}"


log = SafeLog()

CALL_TIMEOUT_MS = 5_000
GIVE_UP_AFTER_LEASES = 1.0
"""So many lease times after a lease ended (an ack may still be taken then, if no other consumer got the item)."""
HOLD_MS = 50.0
"""Endings wait this long for the acks that went with a dequeue, as they do for an ack that the settler sends."""
_AGAIN = Backoff(first_ms=100, longest_ms=5_000)


class Ending(NamedTuple):
    """`nack` is None for an ack; one with `release` gives back an item that was not started."""

    held: Held
    nack: Nack | None


Settled = tuple[Ending, FoqsError | None]


class Settler:
    """One thread. `settled` is called for every ending once, from that thread or from the one that calls `answered`.
    `broken(error)` is called if the thread ends by an error: the endings that it has are not sent.

    A nack that was refused is sent again without the refused part; `delay_ms(held)` takes the place of a delay.

    `offer` is asked to take due acks along with a dequeue. If it takes them, each is given to `answered`, `failed` or
    `send_back` later.
    """

    def __init__(
        self,
        client: Client,
        settled: Callable[[list[Settled]], None],
        *,
        lease_ms: int,
        max_items: int,
        linger_ms: float,
        offer: Callable[[list[Ending]], bool],
        delay_ms: Callable[[Held], int],
        broken: Callable[[BaseException], object],
    ) -> None:
        self._client = client
        self._settled = settled
        self._offer = offer
        self._delay_ms = delay_ms
        self._lease_s = lease_ms / 1000
        self._batcher: Batcher[Ending] = Batcher(max_items, 1 << 20, linger_ms)
        self._again: list[Ending] = []
        self._back: list[Ending] = []
        self._again_at_ms = 0.0
        self._failures = 0
        self._hold_until_ms = 0.0
        self._closed = False
        self.inherited = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=run_to_end, args=(broken, self._run), name="foqs-settler", daemon=True)

    def start(self) -> None:
        renew_after_fork(self)
        self._thread.start()

    def after_fork(self) -> None:
        self.inherited = True

    def check_process(self) -> None:
        """Raises RuntimeError in a child of the process of the thread, which does not see what the child puts."""
        if self.inherited:
            raise RuntimeError(
                "a handler called os.fork(), and the child returned to the Worker, which works in the parent: let the "
                "child end with os._exit(), or use subprocess or multiprocessing"
            )

    def put(self, ending: Ending) -> None:
        self.check_process()
        ending.held.settling = True
        with self._change:
            due_at_ms = self._batcher.due_at_ms()
            self._batcher.add(ending, ending.nack.size_bytes if ending.nack else 32, monotonic() * 1000)
            if due_at_ms is None or (due_at_ms > 0 and self._batcher.due_at_ms() == 0):
                self._change.notify()

    def answered(self, acks: Sequence[Ending], outcomes: Sequence[FoqsError | None]) -> None:
        """Settle acks that went with a dequeue. Those that may be repeated are sent again."""
        done, again = self._judge(acks, outcomes)
        self._settled(done)
        self._hold_until_ms = 0.0
        self.send_back(again)

    def failed(self, acks: Sequence[Ending], error: FoqsError) -> None:
        """Send acks again whose request, with a dequeue, failed as a whole: because of the dequeue, perhaps."""
        if judge(END_ITEM, error, doubtful=False) is Verdict.AGAIN_DOUBTFUL:
            for ending in acks:
                ending.held.doubtful = True
        self._hold_until_ms = 0.0
        self.send_back(acks)

    def send_back(self, acks: Sequence[Ending]) -> None:
        """Send acks that were taken along by themselves, at once."""
        with self._change:
            self._back += acks
            self._change.notify()

    def close(self, deadline: float) -> None:
        """Settle the queued endings without lingering; give up those not settled by the deadline (monotonic
        seconds).
        """
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread.ident is not None:  # it was started
            self._thread.join(max(0.0, deadline - monotonic()))

    def _run(self) -> None:
        while batch := self._next_batch():
            self._settle([e for e in batch if e.nack is None], self._ack)
            self._settle([e for e in batch if e.nack is not None and not e.nack.release], self._nack)
            self._settle([e for e in batch if e.nack is not None and e.nack.release], self._release)

    def _next_batch(self) -> list[Ending]:
        """Waits for something to do; empty at the end."""
        while True:
            batch, is_new = self._due()
            acks = [ending for ending in batch if ending.nack is None]
            if not (is_new and acks and self._take_along(acks)):
                return batch
            if len(acks) < len(batch):
                return [ending for ending in batch if ending.nack is not None]

    def _take_along(self, acks: list[Ending]) -> bool:
        self._hold_until_ms = monotonic() * 1000 + HOLD_MS  # before the offer, whose end may come first
        taken = self._offer(acks)
        if not taken:
            self._hold_until_ms = 0.0
        return taken

    def _due(self) -> tuple[list[Ending], bool]:
        """Wait for endings to send. Return them, and whether they are sent for the first time; none at the end."""
        with self._change:
            while True:
                now_ms = monotonic() * 1000
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
                times = [t for t in (due_at_ms, self._again_at_ms if self._again else None) if t is not None]
                self._change.wait((min(times) - now_ms) / 1000 if times else None)

    def _ack(self, endings: list[Ending]) -> list[FoqsError | None]:
        return self._client.ack_many([e.held for e in endings], timeout_ms=CALL_TIMEOUT_MS)

    def _nack(self, endings: list[Ending]) -> list[FoqsError | None]:
        return self._client.nack_many([e.nack for e in endings if e.nack], timeout_ms=CALL_TIMEOUT_MS)

    def _release(self, endings: list[Ending]) -> list[FoqsError | None]:
        return self._client.release_many([e.held for e in endings], timeout_ms=CALL_TIMEOUT_MS)

    def _settle(self, endings: list[Ending], call: Callable[[list[Ending]], list[FoqsError | None]]) -> None:
        if not endings:
            return
        done, again = self._judge(endings, call(endings))
        self._settled(done)
        self._put_off(again, progress=bool(done))

    def _judge(
        self, endings: Sequence[Ending], outcomes: Sequence[FoqsError | None]
    ) -> tuple[list[Settled], list[Ending]]:
        """Return the endings that are settled, and those to repeat."""
        again: list[Ending] = []
        done: list[Settled] = []
        for ending, error in zip(endings, outcomes, strict=True):
            if error is None:
                done.append((ending, None))
                continue
            if is_a(error, Invalid) and (repaired := self._without_refused(ending, error)) is not None:
                self.send_back((repaired,))
                continue
            verdict = judge(_policy_of(ending), error, ending.held.doubtful)
            if verdict is Verdict.AGAIN_DOUBTFUL:
                ending.held.doubtful = True
            if verdict in (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL) and self._lease_may_stand(ending):
                again.append(ending)
            elif verdict is Verdict.DONE:
                done.append((ending, None))
            else:
                done.append((ending, unknown(error) if verdict is Verdict.UNKNOWN else error))
        return done, again

    def _without_refused(self, ending: Ending, error: FoqsError) -> Ending | None:
        if ending.nack is None or ending.nack.release:
            return None
        nack = without_refused(ending.nack, error.message, self._delay_ms(ending.held))
        if nack is None:
            return None
        log.warning("the nack of %s was refused: %s; it is sent again without that", ending.held, error.message)
        return Ending(ending.held, nack)

    def _lease_may_stand(self, ending: Ending) -> bool:
        return monotonic() < ending.held.expires + self._lease_s * GIVE_UP_AFTER_LEASES

    def _put_off(self, again: list[Ending], *, progress: bool) -> None:
        with self._change:
            if progress:
                self._failures = 0
            if again:
                self._failures += 1
                self._again += again
                self._again_at_ms = monotonic() * 1000 + _AGAIN.delay_ms(self._failures, random.random)


def _policy_of(ending: Ending) -> Policy:
    """A nack is not repeated across calls: that would delay the item, or count its attempt, a second time."""
    return END_ITEM if ending.nack is None else ONCE


@dataclass(slots=True)
class Counts(Value):
    """Outcomes of the items that a worker got. `done`: acked; with ACK_FIRST, the handler returned as well. `failed`:
    nacked, rejected, or an exception after ACK_FIRST. `lost`: the lease was over before the outcome could be sent, or
    before work was begun, so the item is delivered again; `unsettled`: the server did not take the outcome in time.
    `left_open`: the handler of a MANUAL worker returned without an outcome. `hung`: handlers that ran longer than the
    worker's `time_limit_ms`, each counted once when its time was over, and again by its outcome if it ends.
    """

    done: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    unsettled: int = 0
    left_open: int = 0
    hung: int = 0


class Outcomes:
    """Counts the outcomes of items and gives up their leases. Thread-safe."""

    def __init__(self, leases: Leases) -> None:
        self.counts = Counts()
        self._leases = leases

    def lost(self, held: Held) -> None:
        with self._leases.change:
            self.counts.lost += 1
        self._leases.remove((held,))

    def left_open(self, held: Held) -> None:
        with self._leases.change:
            self.counts.left_open += 1
        self._leases.remove((held,))

    def hung(self, handlers: int) -> None:
        with self._leases.change:
            self.counts.hung += handlers

    def settled(self, settled: list[Settled]) -> None:
        for ending, error in settled:
            self.note(ending, error)
            with self._leases.change:
                self._count(ending, error)
        self._leases.remove(ending.held for ending, _ in settled)

    def note(self, ending: Ending, error: FoqsError | None) -> None:
        """Note in the span and the log that the server took an outcome, or `error` is why not."""
        if ending.held.traced is not None:
            ending.held.traced.settled(_word(ending), error)
        if error is not None:
            log.warning("%s of %s: %s", _word(ending), ending.held, error.message)

    def worked(self, held: Held, *, failed: bool) -> None:
        """The handler of an item that was acked first has ended."""
        with self._leases.change:
            self.counts.failed += failed
            self.counts.done += not failed
        self._leases.remove((held,))

    def _count(self, ending: Ending, error: FoqsError | None) -> None:
        count = self.counts
        if isinstance(error, StaleLease | NotFound):
            count.lost += 1
        elif error is not None:
            count.unsettled += 1
        elif ending.nack is None:
            count.done += 1
        elif ending.nack.release:
            count.released += 1
        else:
            count.failed += 1


def _word(ending: Ending) -> str:
    if ending.nack is None:
        return "ack"
    if ending.nack.reject:
        return "reject"
    return "release" if ending.nack.release else "nack"


class Room:
    """Where the settler's thread passes due acks to the worker's thread, while that one waits for room: the acks make
    the room, and go with the request for the items that take it. A worker with room asks at once, without acks.

    `queued` is how many items wait for a handler; above `refill_at` requests are put off."""

    def __init__(self, leases: Leases, stopping: threading.Event, queued: Callable[[], int], refill_at: int) -> None:
        self._leases = leases
        self._stopping = stopping
        self._queued = queued
        self._refill_at = refill_at
        self._waits = False
        self._acks: list[Ending] = []

    def wait(self) -> tuple[int, list[Ending]]:
        """Return the room for items, and the acks to send with the request; these make more room. Returns at once when
        the worker stops."""
        leases = self._leases
        with leases.change:
            self._waits = True
            leases.change.wait_for(self._ends)
            self._waits = False
            acks, self._acks = self._acks, []
            return leases.room, acks

    def offer(self, acks: list[Ending]) -> bool:
        """Give `acks` to the thread in `wait`. Return whether it takes them."""
        with self._leases.change:
            waits = self._waits and not self._acks and not self._stopping.is_set() and self.low
            if not waits or self._leases.room + len(acks) <= 0:
                return False
            self._acks = acks
            self._leases.change.notify_all()
            return True

    @property
    def low(self) -> bool:
        """Whether few items wait for a handler."""
        return self._queued() <= self._refill_at

    def _ends(self) -> bool:
        return self._stopping.is_set() or bool(self._acks) or (self._leases.room > 0 and self.low)
