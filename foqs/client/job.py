"""The job that a Worker gives to a handler beside the item."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from foqs.client.ack_policy import bounded
from foqs.client.held import Held
from foqs.client.items import Item, Nack
from foqs.client.outcome_arguments import WrongArgument, delay_argument, metadata_argument, reason_argument
from foqs.travel import Local, TravellingError

_closing = threading.Lock()


class Retry(TravellingError):
    """Raised by a handler that wants its item again: after `delay_ms` (default: as the retry rule of the topic's policy
    says, else after the worker's backoff), with `metadata` in place of the item's (default: `job.metadata`, else
    kept). Raises Invalid unless `delay_ms` is whole milliseconds, 0 or more, and `metadata` is bytes."""

    def __init__(self, delay_ms: int | None = None, metadata: bytes | None = None) -> None:
        checked_ms, checked = delay_argument(delay_ms), metadata_argument(metadata)
        super().__init__("the handler asks for another attempt")
        self.delay_ms, self.metadata = checked_ms, checked


def asked_by(retry: Any) -> tuple[int | None, bytes | None]:
    """Return the delay and the metadata that a Retry asks for. Raises Invalid if they were changed to something else,
    and whatever a subclass raises when they are read."""
    return delay_argument(retry.delay_ms), metadata_argument(retry.metadata)


class Job(Local):
    """One handler at work on one item.

    item        the leased item
    lease_lost  an Event: the lease is over, or could not be extended in time; another consumer may get the item
    time_is_up  an Event: the worker's `time_limit_ms` is over, so the lease is not extended any more; what the handler
                returns or raises after that is a failure with the reason "time limit"
    stopping    an Event: the worker is asked to stop, and waits for its grace
    metadata    set it to record progress: it replaces the item's metadata if this attempt fails. Raises Invalid
                unless it is bytes (copied here) or None. If the server refuses it, as it is too long, the item fails
                without it, and the reason of the failure says so

    Methods raise Invalid for an argument of a wrong type, or below its range: nothing was done then.

    It stays in the process of its worker: send another process the item.
    """

    instead = "send job.item, and end the job in the process of its worker"

    def __init__(
        self,
        held: Held,
        extend: Callable[[Held, int], None],
        stopping: threading.Event,
        end: Callable[[Job, Nack | None], None] | None = None,
    ) -> None:
        """`extend(held, lease_ms)` extends the lease at once; `end(job, nack)` sends the outcome that a handler of a
        MANUAL worker decides, None for an ack."""
        self.item: Item = held.item
        self.stopping = stopping
        self._metadata: bytes | None = None
        self.open = end is not None
        self.held = held
        self._extend = extend
        self._end = end

    @property
    def metadata(self) -> bytes | None:
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: bytes | None) -> None:
        self._metadata = metadata_argument(metadata)

    @property
    def lease_lost(self) -> threading.Event:
        return self.held.event()

    @property
    def time_is_up(self) -> threading.Event:
        return self.held.time_is_up()

    def time_left_ms(self) -> float | None:
        """The time until the worker's `time_limit_ms` is over, at least 0; None without a limit."""
        return None if self.held.stop_at is None else max(0.0, (self.held.stop_at - monotonic()) * 1000)

    def extend(self, lease_ms: int) -> None:
        """Makes the lease end `lease_ms` from now at the earliest (the worker extends it as well, by itself).
        Raises StaleLease or NotFound when it is lost.
        """
        checked_ms = delay_argument(lease_ms, "lease_ms", least=1)
        if checked_ms is None:
            raise WrongArgument("lease_ms is None: give whole milliseconds")
        self._extend(self.held, checked_ms)

    def ack(self) -> None:
        """Ends the item. This and the next two are for workers with the ack policy MANUAL, and exactly one of them is
        called, once, also after the handler's return: else RuntimeError. The worker sends the outcome soon after.
        """
        self._close(None)

    def nack(self, delay_ms: int | None = None, reason: str | None = None) -> None:
        """Gives the item back: after `delay_ms`, or without one as a failure, as the topic's policy says."""
        delay_ms = delay_argument(delay_ms)
        text = None if reason is None else bounded(reason_argument(reason))
        failed = delay_ms is None
        self._close(Nack.of(self.held, delay_ms=delay_ms, metadata=self._metadata, failed=failed, reason=text))

    def reject(self, reason: str) -> None:
        """The work can never succeed: the item is a dead letter at once. `reason`: at most 1,024 bytes, cut."""
        self._close(Nack.of(self.held, reason=bounded(reason_argument(reason)), reject=True))

    def _close(self, nack: Nack | None) -> None:
        if self._end is None:
            raise RuntimeError("the worker decides the item's outcome: only with ack_policy MANUAL a job does")
        with _closing:
            if not self.open:
                raise RuntimeError(f"the outcome of item {self.held.id} was given before")
            self.open = False
        self._end(self, nack)


Call = Callable[[Item, Job], object]
