"""Counts of the items that a Worker got, by their outcomes."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.client.guard import SafeLog
from foqs.client.held import Held
from foqs.client.leases import Leases
from foqs.client.settler import Ending, Settled
from foqs.errors import FoqsError, NotFound, StaleLease
from foqs.travel import Value

log = SafeLog()


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
