"""Decide which unfinished frame may hold more bytes, and which one is cut when memory is short. Pure: no clock, no I/O.

The budget is charged for a frame's bytes in memory, never for the length that it announces. Frames that hold parts
could then fill it with none of them able to finish. These rules exclude that:

- Small frames have shares of their own (`SmallShare`): one for callers that have proven themselves, and a
  small one for strangers and TLS handshakes. A small frame gets its whole length, or waits with almost nothing. One
  whose rest has arrived in the socket waits for no share.
- The oldest large frame (the senior) may always grow: the other large frames leave the room of one largest frame free
  for it. Addresses take turns at it.
- Large frames leave the shares of small ones free, so acks and small calls never wait for large ones.
- Large frames hold at most a quarter of the budget together, and the frames of one address an eighth (or one frame),
  their requests in progress included. A frame that reaches a bound waits; its connection is not read and its deadline
  does not count.
- Bytes of frames that were not admitted yet have a share too: `loose_bytes`, counted by the connections.

A frame that arrives too slowly, counted from its first byte, is cut as soon as another frame waits for its room. Pauses
of the host do not count. Costs: O(1) for a frame that finds room; a scan of the waiting frames when room is made.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from foqs.wire.protocol import SMALL_BYTES

F = TypeVar("F")

FREE_BYTES: Final = 1024
"""Bytes that a frame may hold without room in a share."""


class SmallShare(Generic[F]):
    """Room for `limit_bytes` of small frames (`F`) that are not whole yet, half of it at most for one address.

    A small frame takes its whole length from the share before it may hold more than `FREE_BYTES`. So a frame with its
    room never waits for more, and no two frames can block each other. A frame of `FREE_BYTES` or less takes nothing.
    Invariant: `taken_bytes` is the sum over the addresses. `roomy`: a frame of any small length and any address fits.
    """

    __slots__ = ("_address_bytes", "_full", "_limit_bytes", "_queues", "_taken_by", "roomy", "taken_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._address_bytes = max(limit_bytes // 2, SMALL_BYTES)
        self._taken_by: dict[str, int] = {}
        self._full: set[str] = set()  # addresses without room for a frame of `SMALL_BYTES`
        self._queues: dict[str, dict[F, None]] = {}  # waiting frames by address, in order
        self.taken_bytes = 0
        self.roomy = True

    def refusal(self, address: str, size_bytes: int) -> str:
        """Return why there is no room: "share" or "address"; empty when there is some."""
        if self.taken_bytes + size_bytes > self._limit_bytes:
            return "share"
        return "address" if self._taken_by.get(address, 0) + size_bytes > self._address_bytes else ""

    def take(self, address: str, size_bytes: int) -> None:
        """Take room for a frame; a negative size gives it back."""
        taken_bytes = self._taken_by.get(address, 0) + size_bytes
        self.taken_bytes += size_bytes
        if taken_bytes:
            self._taken_by[address] = taken_bytes
        else:
            del self._taken_by[address]
        if taken_bytes + SMALL_BYTES > self._address_bytes:
            self._full.add(address)
        else:
            self._full.discard(address)
        self.roomy = not self._full and self.taken_bytes + SMALL_BYTES <= self._limit_bytes

    def wait(self, address: str, frame: F) -> None:
        """Put a frame into the queue of its address."""
        self._queues.setdefault(address, {})[frame] = None

    def leave(self, address: str, frame: F) -> None:
        """Take a waiting frame out of its queue."""
        queue = self._queues[address]
        del queue[frame]
        if not queue:
            del self._queues[address]

    def next(self, passed_over: Container[str]) -> F | None:
        """Return the first waiting frame of the address that has the least room of all but those `passed_over`."""
        taken_by = self._taken_by
        least = min(
            (address for address in self._queues if address not in passed_over),
            key=lambda address: taken_by.get(address, 0),
            default=None,
        )
        return None if least is None else next(iter(self._queues[least]))

    def __repr__(self) -> str:
        waiting = sum(map(len, self._queues.values()))
        return f"SmallShare({self.taken_bytes}/{self._limit_bytes} bytes, {waiting} waiting)"


PATIENCE_S: Final = 1.0
"""Time that every frame has, and the shortest measurement of a pace that counts."""
MIN_BYTES_PER_S: Final = 64 * 1024
"""A frame that arrives at this pace from its first byte on, or faster, is slow only if it misses its deadline."""
_WORTH_BYTES: Final = 1024
"""Cutting a frame that holds less frees nothing that matters."""
_CLAIM_S: Final = 0.25
"""A frame whose rest had arrived is whole within this time. Under TLS the rest may turn out shorter: such a frame is
cut."""
_CLAIMS_PER_LOOK: Final = 1_000

_KNOWN_SHARE = 16
_KNOWN_LEAST_BYTES = 8 * SMALL_BYTES
_KNOWN_MOST = 8
_STRANGERS_SHARE = 32
_LOOSE_SHARE = 32
_CLAIMS_SHARE = 64
_LARGE_SHARE = 4
_ADDRESS_SHARE = 8


class Frame:
    """A frame that has begun to arrive, or a TLS handshake.

    `known`: its caller has proven itself. `size_bytes` is 0 until the length is known. `held_bytes` are in memory,
    `received_bytes` came. `wants_bytes` is what a waiting frame asks for, else 0. `admitted`: it got room before.
    """

    __slots__ = (
        "address", "admitted", "began_s", "charged_bytes", "claimed_s", "held_bytes", "known", "owner", "pace",
        "received_bytes", "refusal", "seen_bytes", "seen_s", "size_bytes", "waits_since_s", "wants_bytes",
    )  # fmt: skip

    def __init__(self, owner: Any, address: str, now_s: float, *, known: bool) -> None:
        self.owner = owner
        self.address = address
        self.known = known
        self.size_bytes = 0
        self.held_bytes = 0
        self.charged_bytes = 0  # to its share
        self.received_bytes = 0
        self.wants_bytes = 0
        self.refusal = ""  # why it waits
        self.admitted = False
        self.claimed_s: float | None = None  # when its rest had arrived, so it waited for no share
        self.began_s = now_s
        self.waits_since_s = now_s
        self.seen_s = now_s  # when its pace was measured last, at `seen_bytes`
        self.seen_bytes = 0
        self.pace: float | None = None  # bytes a second, None until measured

    @property
    def small(self) -> bool:
        """True also for a handshake, and for a frame of unknown length."""
        return self.size_bytes <= SMALL_BYTES

    @property
    def loose_bytes(self) -> int:
        """The bytes that it holds although it was never admitted."""
        return 0 if self.admitted or not self.size_bytes else self.held_bytes

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
        # A small budget has room for some frames of known callers, too.
        known_bytes = max(self._share(_KNOWN_SHARE), min(_KNOWN_LEAST_BYTES, limit_bytes // _KNOWN_MOST))
        strangers_bytes = self._share(_STRANGERS_SHARE)
        self.small_share_bytes = known_bytes + strangers_bytes
        """Room that large frames leave to small ones."""
        self.loose_share_bytes = self._share(_LOOSE_SHARE)
        """Bytes that frames may hold before they are admitted, and behind calls in progress."""
        if frame_bytes + self.small_share_bytes > limit_bytes:
            raise ValueError(
                f"a byte budget of {limit_bytes} does not hold one frame of {frame_bytes} bytes and a share of "
                f"{self.small_share_bytes} bytes for small frames"
            )
        self._shares: dict[bool, SmallShare[Frame]] = {
            True: SmallShare(known_bytes), False: SmallShare(strangers_bytes)
        }  # by `known`  # fmt: skip
        self._claims_bytes = self._share(_CLAIMS_SHARE)
        self._claimed_bytes = 0
        self._promised_bytes = 0  # to small frames that are admitted, beyond what they hold
        self._large_bytes = limit_bytes // _LARGE_SHARE
        self._address_bytes = max(limit_bytes // _ADDRESS_SHARE, frame_bytes)
        self.unfinished: dict[Frame, None] = {}  # in the order of their beginning, as `_large`
        self._large: dict[Frame, None] = {}
        self._senior: Frame | None = None  # of the large frames
        self._turn = 0
        self._turns: dict[str, tuple[int, int]] = {}  # by address: its large frames, and its last turn as the senior
        self._large_held_bytes = 0
        self._held_by: dict[str, int] = {}  # of large frames, unfinished and in progress, by address
        self._in_progress: dict[str, int] = {}  # of large frames that are complete and not answered, by address
        self._waiting: dict[Frame, None] = {}

    def __len__(self) -> int:
        return len(self.unfinished)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def first_bytes(self, address: str, most_bytes: int, *, known: bool) -> int:
        """Return how much may be read of a frame that is not known yet: `most_bytes`, or `FREE_BYTES` where a frame
        might find no room: bytes that were read cannot be put back."""
        share = self._shares[known]
        if share.roomy or not share.refusal(address, SMALL_BYTES):
            if not known:
                return most_bytes
            held_bytes = self._held_by.get(address, 0) + SMALL_BYTES
            if held_bytes <= self._address_bytes and self._large_held_bytes + SMALL_BYTES <= self._large_bytes:
                return most_bytes
        return FREE_BYTES

    def begin(self, owner: Any, address: str, now_s: float, *, known: bool) -> Frame:
        """Add a frame of unknown length, or a handshake."""
        frame = Frame(owner, address, now_s, known=known)
        self.unfinished[frame] = None
        return frame

    def announce(self, frame: Frame, size_bytes: int, held_bytes: int) -> None:
        """Set the length of a frame; `held_bytes` came with it."""
        frame.size_bytes = size_bytes
        frame.held_bytes = frame.received_bytes = frame.seen_bytes = held_bytes
        if not frame.small:
            self._large[frame] = None
            count, turn = self._turns.get(frame.address, (0, 0))
            self._turns[frame.address] = count + 1, turn
            self._hold(frame, held_bytes)

    def admit(self, frame: Frame, more_bytes: int, used_bytes: int, now_s: float) -> bool:
        """Return True if the frame may hold `more_bytes` more now. If not, it waits for `grants` or `claim`. A frame
        without a length is a handshake."""
        refusal = self._refusal(frame, more_bytes, used_bytes)
        if refusal:
            frame.wants_bytes, frame.refusal, frame.waits_since_s = more_bytes, refusal, now_s
            self._waiting[frame] = None
            if frame.small:
                self._shares[frame.known].wait(frame.address, frame)
            return False
        self._grow(frame, more_bytes)
        return True

    def claim(self, frame: Frame, arrived_bytes: int, used_bytes: int, now_s: float) -> bool:
        """Return True if a waiting small frame is admitted because its rest is among the `arrived_bytes` in its socket:
        it waits for no share then."""
        left_bytes = frame.size_bytes - frame.received_bytes
        if not frame.size_bytes or arrived_bytes < left_bytes or frame.refusal == "budget":
            return False
        if self._claimed_bytes + frame.size_bytes > self._claims_bytes or not self._budget_has(frame, used_bytes):
            return False
        frame.claimed_s = now_s
        self._claimed_bytes += frame.size_bytes
        self._go_on(frame, now_s)
        return True

    def claimants(self) -> list[Frame]:
        """Return some of the waiting small frames: the caller asks `claim` for each of them."""
        found = [frame for frame in islice(self._waiting, _CLAIMS_PER_LOOK) if frame.small]
        if len(self._waiting) > _CLAIMS_PER_LOOK:  # the rest next; the order of grants is kept elsewhere
            for frame in list(islice(self._waiting, _CLAIMS_PER_LOOK)):
                self._waiting[frame] = self._waiting.pop(frame)
        return found

    def end(self, frame: Frame) -> None:
        """Remove a frame that is complete, or whose connection is closed."""
        del self.unfinished[frame]
        if frame in self._waiting:
            self._wait_no_more(frame)
        if not frame.small:
            del self._large[frame]
            count, turn = self._turns.pop(frame.address)
            if count > 1:
                self._turns[frame.address] = count - 1, turn
            if frame is self._senior:
                self._senior = None
            self._hold(frame, -frame.held_bytes)
            return
        if frame.charged_bytes:
            self._shares[frame.known].take(frame.address, -frame.charged_bytes)
        if frame.claimed_s is not None:
            self._claimed_bytes -= frame.size_bytes
        if frame.admitted and frame.size_bytes:
            self._promised_bytes -= frame.size_bytes - frame.held_bytes

    def started(self, address: str, size_bytes: int) -> None:
        """Count a request of a large frame as in progress."""
        _add(self._in_progress, address, size_bytes)
        _add(self._held_by, address, size_bytes)

    def answered(self, address: str, size_bytes: int) -> None:
        """Stop counting a request of a large frame: it was answered, or its caller is gone."""
        _add(self._in_progress, address, -size_bytes)
        _add(self._held_by, address, -size_bytes)

    def grants(self, used_bytes: Callable[[], int], now_s: float) -> Iterator[Frame]:
        """Yield the waiting frames that have room now, each after its bytes are counted here. The caller charges them
        to the budget before it asks for the next one."""
        for share in self._shares.values():
            full: set[str] = set()
            yield from self._grant_each(iter(partial(share.next, full), None), full, used_bytes, now_s)
        senior = self._large_senior()
        if senior is not None and self._grant(senior, used_bytes(), now_s) == "":
            yield senior
        large = [frame for frame in self._large if frame.wants_bytes]
        yield from self._grant_each(large, set(), used_bytes, now_s)

    def paused(self, pause_s: float, now_s: float) -> None:
        """Leave a pause of the host, in which no frame was read, out of the time of each frame."""
        for frame in self.unfinished:
            frame.began_s = min(frame.began_s + pause_s, now_s)
            frame.seen_s = min(frame.seen_s + pause_s, now_s)
            frame.waits_since_s = min(frame.waits_since_s + pause_s, now_s)
            if frame.claimed_s is not None:
                frame.claimed_s = min(frame.claimed_s + pause_s, now_s)

    def late(self, now_s: float, timeout_s: float) -> list[Frame]:
        """Return the frames whose deadline has passed. A frame that waits for room has none."""
        return [frame for frame in self.unfinished if frame.began_s + timeout_s <= now_s and not frame.wants_bytes]

    def slow(self, now_s: float, timeout_s: float) -> list[Frame]:
        """Return the frames to cut for the frames that wait: slow ones, oldest first, no more than needed; and frames
        whose claim was wrong."""
        cut = [
            frame for frame in self.unfinished if frame.claimed_s is not None and frame.claimed_s + _CLAIM_S <= now_s
        ]
        if not self._waiting:
            return cut
        needs: dict[tuple[object, ...], int] = {}
        for frame in self._waiting:
            wants_bytes = frame.wants_bytes if not frame.small else frame.size_bytes or frame.wants_bytes
            for need in self._needs(frame):
                needs[need] = needs.get(need, 0) + wants_bytes
        senior = self._large_senior()
        for frame in sorted(self._slow(now_s, timeout_s), key=lambda frame: frame.began_s):
            large = [need for need in needs if need[0] == "large"] if frame is senior else []
            helps = [need for need in (*self._frees(frame), *large) if needs.get(need, 0) > 0]
            if helps and frame not in cut:
                for need in helps:
                    needs[need] -= max(frame.charged_bytes, frame.held_bytes)
                cut.append(frame)
        return cut

    # ------------------------------------------------------------------------------------- inside

    def _share(self, part: int) -> int:
        return max(self.limit_bytes // part, SMALL_BYTES)

    def _needs(self, frame: Frame) -> list[tuple[object, ...]]:
        """Return the kinds of room that a waiting frame needs. A large one may also wait for the senior's end."""
        if frame.refusal == "budget":
            return [("budget",)] if frame.small else [("budget",), ("large", "budget")]
        if frame.small:
            return [("small", frame.known, frame.address if frame.refusal == "address" else None)]
        return [("large", frame.address if frame.refusal == "address" else None)]

    def _frees(self, frame: Frame) -> list[tuple[object, ...]]:
        """Return the kinds of room that the end of a frame frees."""
        frees: list[tuple[object, ...]] = []
        if frame.charged_bytes:
            frees += [("small", frame.known, None), ("small", frame.known, frame.address)]
        if frame.held_bytes >= _WORTH_BYTES:
            frees.append(("budget",))
            if not frame.small:
                frees += [("large", None), ("large", frame.address)]
        return frees

    def _refusal(self, frame: Frame, more_bytes: int, used_bytes: int) -> str:
        """Return why the frame has no room for more: "budget", "share", "large" or "address"; empty when it has."""
        if frame.small:
            return self._small_refusal(frame, more_bytes, used_bytes)
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

    def _small_refusal(self, frame: Frame, more_bytes: int, used_bytes: int) -> str:
        if frame.admitted and frame.size_bytes:
            return ""
        if not self._budget_has(frame, used_bytes):
            return "budget"
        if 0 < frame.size_bytes <= FREE_BYTES:
            return ""
        return self._shares[frame.known].refusal(frame.address, frame.size_bytes or more_bytes)

    def _budget_has(self, frame: Frame, used_bytes: int) -> bool:
        """Return True if the budget holds the rest of a small frame, and of the admitted ones."""
        return used_bytes + self._promised_bytes + frame.size_bytes - frame.held_bytes <= self.limit_bytes

    def _large_senior(self) -> Frame | None:
        """Return the senior among the large frames. It stays senior to its own end, as it may hold the room that is
        kept free for the senior. The next senior is the oldest frame of the address whose last turn is the longest ago:
        many slow frames of one address cost another address one turn. A frame whose address has too much in progress is
        passed over: its turn would end only with those requests."""
        if self._senior is None:
            may = (
                frame
                for frame in self._large
                if self._in_progress.get(frame.address, 0) + frame.size_bytes <= self._address_bytes
            )
            self._senior = senior = min(may, key=lambda frame: self._turns[frame.address][1], default=None)
            if senior is not None:
                self._turn += 1
                self._turns[senior.address] = self._turns[senior.address][0], self._turn
        return self._senior

    def _grant_each(
        self, frames: Iterable[Frame], full: set[str], used_bytes: Callable[[], int], now_s: float
    ) -> Iterator[Frame]:
        """Yield the frames that have room. `full` collects the addresses that have none left."""
        for frame in frames:
            if frame.address in full:
                continue
            refusal = self._grant(frame, used_bytes(), now_s)
            if not refusal:
                yield frame
            elif refusal == "address":
                full.add(frame.address)
            else:
                return

    def _grant(self, frame: Frame, used_bytes: int, now_s: float) -> str:
        """Return why a waiting frame has still no room; empty when it is admitted."""
        if not frame.wants_bytes:
            return "not waiting"
        refusal = self._refusal(frame, frame.wants_bytes, used_bytes)
        if refusal:
            frame.refusal = refusal
            return refusal
        self._go_on(frame, now_s)
        return ""

    def _go_on(self, frame: Frame, now_s: float) -> None:
        more_bytes = frame.wants_bytes
        self._wait_no_more(frame)
        self._grow(frame, more_bytes)
        frame.began_s += now_s - frame.waits_since_s
        frame.seen_s, frame.seen_bytes, frame.pace = now_s, frame.received_bytes, None

    def _wait_no_more(self, frame: Frame) -> None:
        del self._waiting[frame]
        frame.wants_bytes = 0
        if frame.small:
            self._shares[frame.known].leave(frame.address, frame)

    def _grow(self, frame: Frame, more_bytes: int) -> None:
        if not frame.small:
            self._hold(frame, more_bytes)
        elif not frame.size_bytes:
            self._charge(frame, more_bytes)
        elif frame.admitted:
            self._promised_bytes -= more_bytes
        else:
            self._promised_bytes += frame.size_bytes - frame.held_bytes - more_bytes
            if frame.size_bytes > FREE_BYTES and frame.claimed_s is None:
                self._charge(frame, frame.size_bytes)
        frame.admitted = True
        frame.held_bytes += more_bytes

    def _charge(self, frame: Frame, size_bytes: int) -> None:
        frame.charged_bytes += size_bytes
        self._shares[frame.known].take(frame.address, size_bytes)

    def _hold(self, frame: Frame, more_bytes: int) -> None:
        self._large_held_bytes += more_bytes
        _add(self._held_by, frame.address, more_bytes)

    def _slow(self, now_s: float, timeout_s: float) -> Iterator[Frame]:
        """Measure the pace of all frames that do not wait, and yield the slow ones. A handshake that waits can be slow,
        too: it waits with its bytes."""
        for frame in self.unfinished:
            if frame.wants_bytes and frame.size_bytes:
                continue
            watched_s = now_s - frame.seen_s
            if watched_s >= PATIENCE_S:
                frame.pace = (frame.received_bytes - frame.seen_bytes) / watched_s
                frame.seen_s, frame.seen_bytes = now_s, frame.received_bytes
            left_s = max(frame.began_s + timeout_s - now_s, 0.001)
            needs = max(float(MIN_BYTES_PER_S), (frame.size_bytes - frame.received_bytes) / left_s)
            old = frame.began_s + PATIENCE_S + frame.received_bytes / MIN_BYTES_PER_S <= now_s
            # Without a pace it was admitted less than `PATIENCE_S` ago.
            if frame.pace is not None and (old or frame.pace < needs):
                yield frame


def _add(counts: dict[str, int], key: str, more: int) -> None:
    left = counts.get(key, 0) + more
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)
