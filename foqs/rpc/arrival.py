"""The bytes of one frame that does not arrive whole at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from foqs.wire.protocol import SMALL_BYTES

if TYPE_CHECKING:
    from foqs.rpc.admission import Admission

_LEAST_BYTES: Final = 4 * 1024
_MOST_BYTES: Final = 1024 * 1024
_HEAD_BYTES: Final = 512
"""More than the head of a message takes: its version, its method's name and its sequence number."""


class Arrival:
    """Holds a frame in chunks, each as large as the bytes received before it (4 KiB at least, 1 MiB at most). So it
    holds at most twice the received bytes, plus 4 KiB. A chunk is made when the budget has room for it; until then the
    arrival is `waiting`, and `owner.admitted()` is called when there is room.

    Before `announce` it is a frame of unknown length, or a TLS handshake. A skipped frame is read to its end, so its
    sender can read the answer, but only its head is held. `known`: the caller has proven itself.
    """

    __slots__ = ("_admission", "_chunk", "_chunks", "_filled", "_frame", "held_bytes", "known", "left_bytes", "skipped")

    def __init__(self, admission: Admission, owner: Any, address: str, *, known: bool) -> None:
        self._admission = admission
        self._frame = admission.begin(owner, address, known=known)
        self._chunk = bytearray()
        self._chunks = [self._chunk]
        self._filled = 0  # of the last chunk
        self.held_bytes = self.left_bytes = 0
        self.known = False  # its length
        self.skipped = False

    @property
    def waiting(self) -> bool:
        return self._frame.wants_bytes > 0

    @property
    def loose_bytes(self) -> int:
        """The bytes that are held although the frame was never admitted."""
        return self._frame.loose_bytes

    @property
    def received_bytes(self) -> int:
        return self._frame.received_bytes

    def announce(self, size_bytes: int, begun: bytearray, *, skip: bool) -> None:
        """Set the length of the frame. `begun` is its first bytes and belongs to the arrival from now on."""
        self.known = True
        self.skipped = skip
        self._chunk = self._chunks[0] = begun[:_HEAD_BYTES] if skip else begun
        self._filled = self.held_bytes = len(self._chunk)
        self.left_bytes = size_bytes - len(begun)
        if skip:
            self._frame.received_bytes = len(begun)
        else:
            self._admission.frames.announce(self._frame, size_bytes, len(begun))
            self._grow()

    def shake(self, received_bytes: int) -> bool:
        """Count the bytes of a TLS handshake, which are beyond those that every handshake may hold. Return False while
        it must wait for room."""
        frame = self._frame
        frame.received_bytes = received_bytes
        return frame.wants_bytes == 0 and (
            received_bytes <= frame.held_bytes or self._admission.admit(frame, received_bytes - frame.held_bytes)
        )

    def room(self, scratch: memoryview) -> memoryview:
        """Return the buffer for the next bytes. Must not be called while the arrival waits."""
        if self.skipped:
            return scratch[: min(self.left_bytes, SMALL_BYTES)]
        return memoryview(self._chunk)[self._filled :]

    def came(self, scratch: memoryview, size_bytes: int) -> bool:
        """Count `size_bytes` received into `room`. Return whether the frame is whole."""
        self._frame.received_bytes += size_bytes
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
        self._admission.end(self._frame)

    def _grow(self) -> None:
        more_bytes = self._next_bytes()
        if self._admission.admit(self._frame, more_bytes):
            self._add(more_bytes)

    def _next_bytes(self) -> int:
        return min(self.left_bytes, max(_LEAST_BYTES, min(self._frame.received_bytes, _MOST_BYTES)))

    def _add(self, chunk_bytes: int) -> None:
        self._chunk = bytearray(chunk_bytes)
        self._chunks.append(self._chunk)
        self._filled = 0
        self.held_bytes += chunk_bytes
