"""Frames that do not arrive whole at once: their bytes, and their room in the byte budget.

`foqs.rpc.frames` decides which frame may hold more bytes. `Admission` asks it, and wakes the connections that waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from foqs.bounds import Budget
from foqs.rpc.call import RpcCounters
from foqs.rpc.frames import Frame, Frames
from foqs.wire.protocol import SMALL_BYTES

_LOOK_S = 0.1
"""Interval of the search for slow frames, and for frames whose rest has arrived, while any frame waits."""
_LATE_S = 0.05
"""Usual lateness of a timer of a busy loop."""
_LEAST_BYTES: Final = 4 * 1024
_MOST_BYTES: Final = 1024 * 1024
_HEAD_BYTES: Final = 512
"""More than the head of a message takes: its version, its method's name and its sequence number."""


class Admission:
    """The owner of a frame has `admitted()`, called when a frame that waited has room, and `arrived_bytes()`: the
    bytes in its socket that the host has not read. `relieve()` closes slow frames for the waiting ones.

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
        """Return True if the frame may hold `more_bytes` more now; if not, its owner is called when it may."""
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


class Arrival:
    """Holds a frame in chunks, each as large as the bytes received before it (4 KiB at least, 1 MiB at most). So it
    holds at most twice the received bytes, plus 4 KiB. A chunk is made when the budget has room for it; until then the
    frame waits, and `owner.admitted()` is called when there is room.

    Before `announce` it is a frame of unknown length, or a TLS handshake. A skipped frame is read to its end, so its
    sender can read the answer, but only its head is held. `known`: the caller has proven itself.
    """

    __slots__ = ("_admission", "_chunk", "_chunks", "_filled", "frame", "held_bytes", "known", "left_bytes", "skipped")

    def __init__(self, admission: Admission, owner: Any, address: str, *, known: bool) -> None:
        self._admission = admission
        self.frame = admission.begin(owner, address, known=known)
        self._chunk = bytearray()
        self._chunks = [self._chunk]
        self._filled = 0  # of the last chunk
        self.held_bytes = self.left_bytes = 0
        self.known = False  # its length
        self.skipped = False

    def announce(self, size_bytes: int, begun: bytearray, *, skip: bool) -> None:
        """Set the length of the frame. `begun` is its first bytes and belongs to the arrival from now on."""
        self.known = True
        self.skipped = skip
        self._chunk = self._chunks[0] = begun[:_HEAD_BYTES] if skip else begun
        self._filled = self.held_bytes = len(self._chunk)
        self.left_bytes = size_bytes - len(begun)
        if skip:
            self.frame.received_bytes = len(begun)
        else:
            self._admission.frames.announce(self.frame, size_bytes, len(begun))
            self._grow()

    def shake(self, received_bytes: int) -> None:
        """Count the bytes of a TLS handshake beyond the bytes that every handshake may hold."""
        frame = self.frame
        frame.received_bytes = received_bytes
        if not frame.wants_bytes and received_bytes > frame.held_bytes:
            self._admission.admit(frame, received_bytes - frame.held_bytes)

    def room(self, scratch: memoryview) -> memoryview:
        """Return the buffer for the next bytes. Must not be called while the arrival waits."""
        if self.skipped:
            return scratch[: min(self.left_bytes, SMALL_BYTES)]
        return memoryview(self._chunk)[self._filled :]

    def came(self, scratch: memoryview, size_bytes: int) -> bool:
        """Count `size_bytes` received into `room`. Return True if the frame is whole."""
        self.frame.received_bytes += size_bytes
        self.left_bytes -= size_bytes
        if self.skipped:
            self._chunk += scratch[: min(max(0, _HEAD_BYTES - len(self._chunk)), size_bytes)]
            self.held_bytes = len(self._chunk)
            return not self.left_bytes
        self._filled += size_bytes
        if self.left_bytes and self._filled == len(self._chunk):
            self._grow()
        return not self.left_bytes

    def admitted(self) -> None:
        """Make the next chunk: the budget has room for it."""
        if self.known:
            self._add(self._next_bytes())

    def content(self) -> bytes:
        """Return the whole frame, or the head of a skipped one."""
        return b"".join(self._chunks)

    def end(self) -> None:
        """End the arrival: the frame is whole, or given up."""
        self._admission.end(self.frame)

    def _grow(self) -> None:
        more_bytes = self._next_bytes()
        if self._admission.admit(self.frame, more_bytes):
            self._add(more_bytes)

    def _next_bytes(self) -> int:
        return min(self.left_bytes, max(_LEAST_BYTES, min(self.frame.received_bytes, _MOST_BYTES)))

    def _add(self, chunk_bytes: int) -> None:
        self._chunk = bytearray(chunk_bytes)
        self._chunks.append(self._chunk)
        self._filled = 0
        self.held_bytes += chunk_bytes
