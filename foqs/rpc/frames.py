"""Decide which unfinished frame may hold more bytes, and which one is cut when memory is short. Pure: no clock, no I/O.

A frame is charged for its bytes in memory, never for the length that it announces. Frames that hold parts could then
fill the budget with none of them able to finish. Three rules exclude that:

- The oldest large frame (the senior) may always grow: the other large frames leave the room of one largest frame free
  for it. Small frames have a senior of their own.
- Large frames leave a share of the budget to small frames, so acks and small calls never wait for large ones.
- Large frames hold at most a quarter of the budget together, and those of one address an eighth (or one frame), their
  requests in progress included. A frame that reaches a bound waits; its connection is not read and its deadline stands
  still.

A frame that arrives too slowly is cut only while another frame waits for its room. Costs: O(1) for a frame that finds
room; a scan of the waiting frames when room is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from foqs.wire.protocol import SMALL_BYTES

PATIENCE_S: Final = 1.0
"""How long a frame waits before slow frames are cut for it, and how long a pace is measured before it counts."""
MIN_BYTES_PER_S: Final = 64 * 1024
"""A frame that arrives at this pace, or faster, is slow only if it misses its deadline at that pace."""
_WORTH_BYTES: Final = 1024
"""Cutting a frame that holds less frees nothing that matters."""

_SMALL_SHARE = 16
_LARGE_SHARE = 4
_ADDRESS_SHARE = 8


class Frame:
    """A frame that has begun to arrive, or a TLS handshake.

    `size_bytes` is 0 until the length is known. `held_bytes` are in memory, `received_bytes` came. `wants_bytes` is
    what a waiting frame asks for, else 0.
    """

    __slots__ = (
        "address", "began_s", "held_bytes", "owner", "pace", "received_bytes", "refusal", "seen_bytes", "seen_s",
        "size_bytes", "waits_since_s", "wants_bytes",
    )  # fmt: skip

    def __init__(self, owner: Any, address: str, now_s: float) -> None:
        self.owner = owner
        self.address = address
        self.size_bytes = 0
        self.held_bytes = 0
        self.received_bytes = 0
        self.wants_bytes = 0
        self.refusal = ""  # why it waits
        self.began_s = now_s
        self.waits_since_s = now_s
        self.seen_s = now_s  # when its pace was measured last, at `seen_bytes`
        self.seen_bytes = 0
        self.pace: float | None = None  # bytes a second, None until measured

    def __repr__(self) -> str:
        return f"Frame({self.address}, {self.held_bytes}/{self.size_bytes} bytes, wants {self.wants_bytes})"


class Frames:
    """All unfinished frames of a server. The budget's `used_bytes` and the time are passed in.

    Invariants: `held_bytes` of a class is the sum over its frames; a waiting frame is unfinished.
    """

    def __init__(self, limit_bytes: int, frame_bytes: int) -> None:
        """`limit_bytes` of the budget, `frame_bytes` of the largest frame. Raises ValueError when it does not fit."""
        self.limit_bytes = limit_bytes
        self.frame_bytes = frame_bytes
        self.small_share_bytes = max(limit_bytes // _SMALL_SHARE, SMALL_BYTES)
        """What large frames leave to small ones."""
        if frame_bytes + self.small_share_bytes > limit_bytes:
            raise ValueError(
                f"a byte budget of {limit_bytes} does not hold one frame of {frame_bytes} bytes and a share of "
                f"{self.small_share_bytes} bytes for small frames"
            )
        self._large_bytes = limit_bytes // _LARGE_SHARE
        self._address_bytes = max(limit_bytes // _ADDRESS_SHARE, frame_bytes)
        self._all: dict[Frame, None] = {}  # in the order of their beginning, as are the two below
        self._small: dict[Frame, None] = {}
        self._large: dict[Frame, None] = {}
        self._senior: Frame | None = None  # of the large frames
        self._large_held_bytes = 0
        self._held_by: dict[str, int] = {}  # of large frames, unfinished and in progress, by address
        self._in_progress: dict[str, int] = {}  # of large frames that are complete and not answered, by address
        self._waiting: dict[Frame, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def begin(self, owner: Any, address: str, now_s: float) -> Frame:
        """A frame of unknown length, or a handshake, begins."""
        frame = Frame(owner, address, now_s)
        self._all[frame] = None
        return frame

    def announce(self, frame: Frame, size_bytes: int, held_bytes: int) -> None:
        """The length is known; `held_bytes` came with it."""
        frame.size_bytes = size_bytes
        frame.held_bytes = frame.received_bytes = frame.seen_bytes = held_bytes
        if size_bytes <= SMALL_BYTES:
            self._small[frame] = None
        else:
            self._large[frame] = None
            self._hold(frame, held_bytes)

    def admit(self, frame: Frame, more_bytes: int, used_bytes: int, now_s: float) -> bool:
        """Whether the frame may hold so many more bytes now. If not it waits until `grants` yields it."""
        refusal = self._refusal(frame, more_bytes, used_bytes)
        if refusal:
            frame.wants_bytes, frame.refusal, frame.waits_since_s = more_bytes, refusal, now_s
            self._waiting[frame] = None
            return False
        self._grow(frame, more_bytes)
        return True

    def end(self, frame: Frame) -> None:
        """The frame is complete, or its connection is closed."""
        del self._all[frame]
        self._waiting.pop(frame, None)
        if frame in self._large:
            del self._large[frame]
            if frame is self._senior:
                self._senior = None
            self._hold(frame, -frame.held_bytes)
        else:
            self._small.pop(frame, None)

    def started(self, address: str, size_bytes: int) -> None:
        """A request of a large frame is in progress."""
        _add(self._in_progress, address, size_bytes)
        _add(self._held_by, address, size_bytes)

    def answered(self, address: str, size_bytes: int) -> None:
        """A request of a large frame was answered, or its caller is gone."""
        _add(self._in_progress, address, -size_bytes)
        _add(self._held_by, address, -size_bytes)

    def grants(self, used_bytes: Callable[[], int], now_s: float) -> Iterator[Frame]:
        """Yield the waiting frames that have room now, each after its bytes are counted here. The caller charges them
        to the budget before it asks for the next one."""
        for senior in (self._small_senior(), self._large_senior()):
            if senior is not None and self._grant(senior, used_bytes(), now_s) == "":
                yield senior
        small_full = large_full = False
        full: set[str] = set()  # addresses
        for frame in list(self._waiting):
            small = frame.size_bytes <= SMALL_BYTES
            if (small_full if small else large_full) or (frame.address in full and not small):
                continue
            refusal = self._grant(frame, used_bytes(), now_s)
            if not refusal:
                yield frame
            elif refusal == "address":
                full.add(frame.address)
            elif small:
                small_full = True
            else:
                large_full = True
            if small_full and large_full:
                return

    def late(self, now_s: float, timeout_s: float) -> list[Frame]:
        """Frames whose deadline is over. A frame that waits for room has none."""
        return [frame for frame in self._all if frame.began_s + timeout_s <= now_s and not frame.wants_bytes]

    def slow(self, now_s: float, timeout_s: float) -> list[Frame]:
        """Frames to cut for those that have waited for `PATIENCE_S`: the slowest first, no more than needed."""
        if not self._waiting:
            return []
        waiting = [frame for frame in self._waiting if frame.waits_since_s + PATIENCE_S <= now_s]
        needed_bytes = sum(frame.wants_bytes for frame in waiting)
        refusals = {frame.refusal for frame in waiting}
        addresses = {frame.address for frame in waiting if frame.refusal == "address"}
        seniors = (self._small_senior(), self._large_senior())
        cut = []
        for frame in sorted(self._slow(now_s, timeout_s), key=lambda frame: frame.pace or 0.0):
            if needed_bytes <= 0:
                break
            large = frame.size_bytes > SMALL_BYTES
            senior = frame in seniors
            helps = "budget" in refusals or (large and (senior or "large" in refusals or frame.address in addresses))
            if helps and (senior or frame.held_bytes >= _WORTH_BYTES):
                needed_bytes -= frame.held_bytes
                cut.append(frame)
        return cut

    # ------------------------------------------------------------------------------------- inside

    def _refusal(self, frame: Frame, more_bytes: int, used_bytes: int) -> str:
        """Why the frame has no room for more: "budget", "large" or "address"; empty when it has."""
        if frame.size_bytes <= SMALL_BYTES:
            reserve_bytes = 0 if frame is self._small_senior() else SMALL_BYTES
            return "budget" if used_bytes + more_bytes + reserve_bytes > self.limit_bytes else ""
        room_bytes = self.limit_bytes - self.small_share_bytes - used_bytes - more_bytes
        senior = self._large_senior()
        if frame is senior:
            return "" if room_bytes >= 0 else "budget"
        senior_held_bytes = 0 if senior is None else senior.held_bytes
        if self._held_by.get(frame.address, 0) + more_bytes > self._address_bytes:
            return "address"
        if room_bytes < self.frame_bytes - senior_held_bytes:
            return "budget"
        if self._large_held_bytes - senior_held_bytes + more_bytes > self._large_bytes:
            return "large"
        return ""

    def _small_senior(self) -> Frame | None:
        return next(iter(self._small), None)

    def _large_senior(self) -> Frame | None:
        """The oldest large frame when the senior before it ended. It stays senior to its own end, as it may hold the
        room that is kept free for the senior. A frame whose address has too much in progress is passed over: its turn
        would end only with those requests."""
        if self._senior is None:
            for frame in self._large:
                if self._in_progress.get(frame.address, 0) + frame.size_bytes <= self._address_bytes:
                    self._senior = frame
                    break
        return self._senior

    def _grant(self, frame: Frame, used_bytes: int, now_s: float) -> str:
        """Why a waiting frame has still no room; empty when it goes on."""
        if not frame.wants_bytes:
            return "not waiting"
        refusal = self._refusal(frame, frame.wants_bytes, used_bytes)
        if refusal:
            frame.refusal = refusal
            return refusal
        del self._waiting[frame]
        self._grow(frame, frame.wants_bytes)
        frame.wants_bytes = 0
        frame.began_s += now_s - frame.waits_since_s
        frame.seen_s, frame.seen_bytes, frame.pace = now_s, frame.received_bytes, None
        return ""

    def _grow(self, frame: Frame, more_bytes: int) -> None:
        frame.held_bytes += more_bytes
        if frame.size_bytes > SMALL_BYTES:
            self._hold(frame, more_bytes)

    def _hold(self, frame: Frame, more_bytes: int) -> None:
        self._large_held_bytes += more_bytes
        _add(self._held_by, frame.address, more_bytes)

    def _slow(self, now_s: float, timeout_s: float) -> Iterator[Frame]:
        """Measure the pace of all frames that do not wait; yield those that are slow."""
        for frame in self._all:
            if frame.wants_bytes:
                continue
            watched_s = now_s - frame.seen_s
            if watched_s >= PATIENCE_S:
                frame.pace = (frame.received_bytes - frame.seen_bytes) / watched_s
                frame.seen_s, frame.seen_bytes = now_s, frame.received_bytes
            left_s = max(frame.began_s + timeout_s - now_s, 0.001)
            needs = max(float(MIN_BYTES_PER_S), (frame.size_bytes - frame.received_bytes) / left_s)
            if frame.pace is not None and frame.pace < needs:
                yield frame


def _add(counts: dict[str, int], key: str, more: int) -> None:
    left = counts.get(key, 0) + more
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)
