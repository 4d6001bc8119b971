"""Sends acks, nacks and releases to the server, gathered into batches."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

from foqs.client.backoff import Backoff
from foqs.client.batcher import Batcher
from foqs.client.client import Client
from foqs.client.forks import renew_after_fork
from foqs.client.guard import SafeLog, is_a, run_to_end
from foqs.client.held import Held
from foqs.client.items import Nack
from foqs.client.refused import without_refused
from foqs.errors import FoqsError, Invalid
from foqs.second_answer import END_ITEM, ONCE, Policy, Verdict, judge, unknown

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
