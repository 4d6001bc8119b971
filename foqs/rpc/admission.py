"""Give unfinished frames their room in the byte budget: `foqs.rpc.frames` decides, this wakes the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from foqs.bounds import Budget
from foqs.rpc.counters import RpcCounters
from foqs.rpc.frames import Frame, Frames

_LOOK_S = 0.1
"""How often slow frames, and frames whose rest has arrived, are looked for while any frame waits."""
_LATE_S = 0.05
"""By how much a timer of a busy loop is late."""


class Admission:
    """The owner of a frame has `admitted()`, called when a frame that waited may go on, and `arrived_bytes()`: what its
    socket has received and the host has not read. `relieve()` closes slow frames for those that wait.

    Invariant: the budget knows at most one waker of this object.
    """

    __slots__ = ("_armed", "_counters", "_due", "_look_s", "_looking", "_loop", "_relieve", "budget", "frames")

    def __init__(
        self,
        budget: Budget,
        frames: Frames,
        counters: RpcCounters,
        loop: asyncio.AbstractEventLoop,
        relieve: Callable[[], None],
    ) -> None:
        self._counters = counters
        self.budget = budget
        self.frames = frames
        self._loop = loop
        self._relieve = relieve
        self._armed = False
        self._due = False
        self._looking: asyncio.TimerHandle | None = None
        self._look_s = 0.0  # when `_looking` is due

    def begin(self, owner: Any, address: str, *, known: bool) -> Frame:
        """Register a frame that begins to arrive, or a TLS handshake. `known`: the caller has proven itself."""
        return self.frames.begin(owner, address, self._loop.time(), known=known)

    def admit(self, frame: Frame, more_bytes: int) -> bool:
        """Return whether the frame may hold `more_bytes` more now; if not, its owner is called when it may."""
        if self.frames.admit(frame, more_bytes, self.budget.used_bytes, self._loop.time()):
            return True
        if frame.small and self._claims(frame):
            return True
        self._counters.budget_waits += 1
        self._arm()
        if self._looking is None:
            self._look_after(0.0)
        return False

    def end(self, frame: Frame) -> None:
        """Remove a frame that is complete, or whose connection is closed. Another frame may be the oldest now and have
        room, although the budget got nothing back."""
        self.frames.end(frame)
        if self.frames.waiting:
            self._wake()

    def started(self, address: str, size_bytes: int) -> None:
        """Count a request of a large frame as in progress."""
        self.frames.started(address, size_bytes)

    def answered(self, address: str, size_bytes: int) -> None:
        """Stop counting a request of a large frame: it was answered, or its caller disconnected."""
        self.frames.answered(address, size_bytes)
        if self.frames.waiting:
            self._wake()

    def ran(self, due_s: float) -> None:
        """Let no frame pay for a pause of the host, which reads nothing then. A timer runs that was due at `due_s`, by
        `time.monotonic`."""
        late_s = monotonic() - due_s
        if late_s > _LATE_S:
            self.frames.paused(late_s, self._loop.time())

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self.budget.when_given(self._given)

    def _given(self) -> None:
        self._armed = False
        self._wake()

    def _wake(self) -> None:
        # Bytes are given back in the middle of other work: connections are resumed after it.
        if not self._due and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon(self._grant)

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def _claims(self, frame: Frame) -> bool:
        return self.frames.claim(frame, frame.owner.arrived_bytes(), self.budget.used_bytes, self._loop.time())

    def _look_after(self, wait_s: float) -> None:
        self._look_s = monotonic() + wait_s
        self._looking = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._looking = None
        self.ran(self._look_s)
        for frame in self.frames.claimants():
            if self._claims(frame):
                frame.owner.admitted()
        if self.frames.waiting:
            self._relieve()
            self._grant()
        if self.frames.waiting:
            self._look_after(_LOOK_S)

    def _grant(self) -> None:
        self._due = False
        for frame in self.frames.grants(lambda: self.budget.used_bytes, self._loop.time()):
            frame.owner.admitted()
        if self.frames.waiting:
            self._arm()
