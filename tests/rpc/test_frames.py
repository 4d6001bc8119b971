"""The admission of unfinished frames, on a clock of its own: no order of arrivals stops it."""

from __future__ import annotations

import random

import pytest

from foqs.rpc.frames import FREE_BYTES, PATIENCE_S, Frame, Frames
from foqs.wire.protocol import SMALL_BYTES

KIB, MIB = 1 << 10, 1 << 20
TIMEOUT_S = 30.0


class Sender:
    """Sends `size_bytes`, `pace` bytes a tick, in chunks as `Arrival` asks for them; None: stops after `stops_at`."""

    def __init__(self, address: str, size_bytes: int, pace: int, stops_at: int | None = None) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.pace = pace
        self.stops_at = size_bytes if stops_at is None else stops_at
        self.frame: Frame | None = None
        self.began_s = self.ended_s = 0.0
        self.answered_at: float | None = None
        self.cut = False
        self.arrived = False

    @property
    def honest(self) -> bool:
        return self.stops_at >= self.size_bytes


class Room:
    """A server's admission, with requests in progress that take `work_s`, and `others_bytes` held by the host."""

    def __init__(self, limit_bytes: int, frame_bytes: int, others_bytes: int = 0, work_s: float = 0.5) -> None:
        self.frames = Frames(limit_bytes, frame_bytes)
        self.others_bytes = others_bytes
        self.work_s = work_s
        self.now_s = 0.0
        self.senders: list[Sender] = []

    def used_bytes(self) -> int:
        held = self.others_bytes
        for sender in self.senders:
            if sender.frame is not None:
                held += sender.frame.held_bytes
            elif sender.arrived and sender.answered_at is None:
                held += sender.size_bytes
        return held

    def begin(self, sender: Sender) -> None:
        self.senders.append(sender)
        sender.began_s = self.now_s
        sender.frame = self.frames.begin(sender, sender.address, self.now_s, known=True)
        self.frames.announce(sender.frame, sender.size_bytes, 0)

    def tick(self, step_s: float) -> None:
        self.now_s += step_s
        for frame in [*self.frames.late(self.now_s, TIMEOUT_S), *self.frames.slow(self.now_s, TIMEOUT_S)]:
            if frame.owner.frame is frame:
                self.frames.end(frame)
                frame.owner.frame, frame.owner.cut = None, True
        for sender in self.senders:
            if sender.frame is not None:
                self._receive(sender, sender.frame)
            elif sender.arrived and sender.answered_at is None and sender.ended_s + self.work_s <= self.now_s:
                sender.answered_at = self.now_s
                if sender.size_bytes > SMALL_BYTES:
                    self.frames.answered(sender.address, sender.size_bytes)
        for frame in self.frames.claimants():
            sender = frame.owner
            arrived = sender.stops_at - frame.received_bytes if sender.pace >= sender.size_bytes else 0
            self.frames.claim(frame, arrived, self.used_bytes(), self.now_s)
        for _ in self.frames.grants(self.used_bytes, self.now_s):
            pass
        assert self.used_bytes() <= self.frames.limit_bytes

    def _receive(self, sender: Sender, frame: Frame) -> None:
        """The bytes of one tick, which fit the admitted room."""
        may = min(sender.pace, sender.stops_at - frame.received_bytes)
        while may > 0 and not frame.wants_bytes:
            room = frame.held_bytes - frame.received_bytes
            if not room:
                left = sender.size_bytes - frame.received_bytes
                more = min(left, max(4 * KIB, min(frame.received_bytes, MIB)))
                self.frames.admit(frame, more, self.used_bytes(), self.now_s)
                continue
            came = min(room, may)
            frame.received_bytes += came
            may -= came
        if frame.received_bytes == sender.size_bytes:
            self.frames.end(frame)
            sender.frame, sender.arrived, sender.ended_s = None, True, self.now_s
            if sender.size_bytes > SMALL_BYTES:
                self.frames.started(sender.address, sender.size_bytes)


def test_a_budget_that_holds_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="1048576 does not hold one frame of 1048576 bytes and a share of 196608"):
        Frames(MIB, MIB)
    Frames(MIB, MIB - 3 * SMALL_BYTES)


def test_frames_that_fill_the_budget_half_received_finish() -> None:
    """From one address, and from one each: they begin together and are four times the room."""
    for addresses in (["a"] * 32, [f"a{number}" for number in range(32)]):
        room = Room(64 * MIB, 16 * MIB)
        for address in addresses:
            room.begin(Sender(address, 8 * MIB, 4 * MIB))
        for _ in range(400):
            room.tick(0.1)
        assert all(sender.answered_at is not None for sender in room.senders)
        assert len(room.frames) == room.frames.waiting == 0
        assert not room.frames._held_by
        assert not room.frames._in_progress


def test_small_frames_pass_large_ones_that_hold_their_share() -> None:
    room = Room(64 * MIB, 16 * MIB, others_bytes=32 * MIB)
    for number in range(64):
        room.begin(Sender(f"a{number}", 16 * MIB, MIB, stops_at=15 * MIB))
    for _ in range(5):
        room.tick(0.1)
    assert room.frames.waiting > 0
    for number in range(40):
        small = Sender(f"b{number}", SMALL_BYTES, SMALL_BYTES)
        room.begin(small)
        room.tick(0.01)
        assert small.arrived


def test_a_frame_alone_at_a_small_budget_finishes() -> None:
    room = Room(2 * MIB, MIB)
    room.begin(Sender("a", MIB, 100 * KIB))
    for _ in range(30):
        room.tick(0.1)
    assert room.senders[0].answered_at is not None


def test_one_address_leaves_room_for_other_addresses() -> None:
    room = Room(128 * MIB, 16 * MIB)
    for _ in range(100):
        room.begin(Sender("greedy", 16 * MIB, MIB, stops_at=12 * MIB))
    for _ in range(5):
        room.tick(0.1)
    other = Sender("other", 4 * MIB, MIB)
    room.begin(other)
    for _ in range(5):
        room.tick(0.1)
    assert other.arrived
    assert room.used_bytes() <= 64 * MIB


def test_the_slowest_are_cut_and_no_more_than_needed() -> None:
    room = Room(64 * MIB, 16 * MIB)
    for number in range(8):
        room.begin(Sender(f"a{number}", 12 * MIB, 12 * MIB, stops_at=2 * MIB * (number % 3)))
    for _ in range(5):
        room.tick(0.1)
    honest = [Sender(f"b{number}", 10 * MIB, 10 * MIB) for number in range(2)]
    for sender in honest:
        room.begin(sender)
    for _ in range(100):
        room.tick(0.1)
    assert all(sender.answered_at is not None for sender in honest)
    assert any(sender.cut for sender in room.senders)
    assert not all(sender.cut for sender in room.senders if not sender.honest)


def test_nothing_is_cut_while_nothing_waits() -> None:
    room = Room(64 * MIB, 16 * MIB)
    for number in range(4):
        room.begin(Sender(f"a{number}", 12 * MIB, 1))
    for _ in range(290):
        room.tick(0.1)
    assert not any(sender.cut for sender in room.senders)
    for _ in range(20):
        room.tick(0.1)
    assert all(sender.cut for sender in room.senders)


def test_a_wait_for_room_does_not_count_for_the_deadline() -> None:
    frames = Frames(MIB, 512 * KIB)
    frame = frames.begin("one", "a", 0.0, known=True)
    frames.announce(frame, 100 * KIB, 10)
    assert not frames.admit(frame, 90 * KIB, MIB, 10.0)
    assert frames.late(1_000.0, TIMEOUT_S) == []
    assert list(frames.grants(lambda: 0, 100.0)) == [frame]
    assert frames.late(119.0, TIMEOUT_S) == []
    assert frames.late(121.0, TIMEOUT_S) == [frame]


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_arrivals_stops_honest_frames(seed: int) -> None:
    """Attackers stop at any byte or drip, from few or many addresses; small and large frames come at any time."""
    dice = random.Random(seed)
    frame_bytes = dice.choice((MIB, 4 * MIB, 16 * MIB))
    limit_bytes = dice.choice((2, 3, 8)) * frame_bytes
    room = Room(limit_bytes, frame_bytes, others_bytes=int(limit_bytes * dice.choice((0, 0, 0.1, 0.3))))
    addresses = [f"a{number}" for number in range(dice.choice((1, 2, 5, 50)))]
    honest = []
    for _ in range(300):
        for _ in range(dice.choice((0, 0, 1, 2, 5)) if room.now_s < 15 else 0):
            size = dice.choice((1, KIB, SMALL_BYTES, SMALL_BYTES + 1, MIB // 2, frame_bytes, frame_bytes // 3))
            sender = Sender(dice.choice(addresses), size, dice.choice((size, size // 4 + KIB, MIB)))
            if dice.random() < 0.4:
                sender.stops_at = dice.randrange(size)
                sender.pace = dice.choice((1, 100, size))
            else:
                honest.append(sender)
            room.begin(sender)
        room.tick(0.1)
    deadline_s = room.now_s + 20 * TIMEOUT_S
    while room.now_s < deadline_s and len(room.frames):
        room.tick(0.5)
    assert len(room.frames) == 0
    room.tick(room.work_s)
    lost = [sender for sender in honest if sender.answered_at is None and not sender.cut]
    assert lost == []
    # A sender with a pace is not cut; frames that wait are not slow.
    fast = [sender for sender in honest if sender.pace >= sender.size_bytes]
    assert not any(sender.cut for sender in fast)
    small = [sender for sender in fast if sender.size_bytes <= SMALL_BYTES]
    assert all(sender.ended_s - sender.began_s <= 5 * PATIENCE_S for sender in small)


# ------------------------------------------------------------------------------------------------- small frames


class Smalls:
    """Small frames that begin, are granted and cut."""

    def __init__(self, limit_bytes: int = 64 * MIB) -> None:
        self.frames = Frames(limit_bytes, MIB)
        self.now_s = 0.0

    def begin(self, address: str = "a", size: int = SMALL_BYTES, *, known: bool = False, received: int = 4) -> Frame:
        frame = self.frames.begin(address, address, self.now_s, known=known)
        self.frames.announce(frame, size, received)
        self.frames.admit(frame, size - received, 0, self.now_s)
        return frame

    def granted(self) -> list[Frame]:
        return list(self.frames.grants(lambda: 0, self.now_s))

    def cut(self) -> list[Frame]:
        found = self.frames.slow(self.now_s, TIMEOUT_S)
        for frame in found:
            self.frames.end(frame)
        return found


STRANGERS = 64 * MIB // 32 // SMALL_BYTES
"""How many frames of `SMALL_BYTES` have room."""


def test_strangers_have_a_share_of_their_own() -> None:
    smalls = Smalls()
    strangers = [smalls.begin(f"a{number}") for number in range(STRANGERS + 1)]
    assert [frame.wants_bytes > 0 for frame in strangers] == [False] * STRANGERS + [True]
    assert smalls.begin("b", known=True).wants_bytes == 0
    assert smalls.begin("c", FREE_BYTES).wants_bytes == 0  # it needs no room in a share
    assert smalls.frames.first_bytes("d", SMALL_BYTES, known=False) == FREE_BYTES
    assert smalls.frames.first_bytes("d", SMALL_BYTES, known=True) == SMALL_BYTES


def test_an_address_takes_half_of_a_share() -> None:
    smalls = Smalls()
    greedy = [smalls.begin("greedy") for _ in range(STRANGERS)]
    assert sum(frame.wants_bytes > 0 for frame in greedy) == STRANGERS // 2
    others = [smalls.begin("other") for _ in range(STRANGERS // 2)]
    assert not any(frame.wants_bytes for frame in others)
    late = smalls.begin("late")
    assert late.wants_bytes > 0
    smalls.frames.end(greedy[0])
    assert smalls.granted() == [late]


def test_a_frame_whose_rest_has_arrived_waits_for_no_share() -> None:
    smalls = Smalls()
    for number in range(STRANGERS):
        smalls.begin(f"a{number}")
    frame, other = smalls.begin("whole"), smalls.begin("short")
    assert smalls.frames.claimants() == [frame, other]
    assert not smalls.frames.claim(other, SMALL_BYTES - 5, 0, 0.0)
    assert smalls.frames.claim(frame, SMALL_BYTES - 4, 0, 0.0)
    assert not frame.wants_bytes
    smalls.now_s = 0.3  # its rest was not there: it is cut, although it is young
    assert smalls.cut() == [frame]


def test_claims_are_bounded_and_wait_for_the_budget() -> None:
    smalls = Smalls()
    for number in range(STRANGERS):
        smalls.begin(f"a{number}")
    waiting = [smalls.begin("liar") for _ in range(50)]
    claimed = [frame for frame in waiting if smalls.frames.claim(frame, SMALL_BYTES, 0, 0.0)]
    assert len(claimed) == STRANGERS // 2
    smalls.frames.end(claimed[0])
    assert not smalls.frames.claim(waiting[-1], SMALL_BYTES, 64 * MIB, 0.0)
    assert smalls.frames.claim(waiting[-1], SMALL_BYTES, 0, 0.0)


def test_old_frames_are_cut_as_soon_as_one_waits() -> None:
    """Age counts from the first byte, however often another byte comes."""
    smalls = Smalls()
    trickling = []
    for number in range(STRANGERS):
        smalls.now_s = number / 100
        trickling.append(smalls.begin(f"a{number}"))
    for second in range(1, 25):
        smalls.now_s = second
        for frame in trickling:
            frame.received_bytes += 1
        assert smalls.cut() == []  # while no frame waits
    waiting = smalls.begin("b")
    assert smalls.cut() == trickling[:1]  # the oldest, and no more than needed
    assert smalls.granted() == [waiting]


def test_frames_that_wait_for_another_share_cut_nothing() -> None:
    smalls = Smalls()
    known = smalls.begin("k", known=True)
    strangers = [smalls.begin(f"a{number}") for number in range(STRANGERS)]
    smalls.now_s = 10.0
    assert smalls.begin("b").wants_bytes
    cut = smalls.cut()
    assert cut
    assert known not in cut
    assert set(cut) <= set(strangers)


def test_handshakes_take_room_as_they_grow() -> None:
    smalls = Smalls()
    shaking = []
    for number in range(2 * STRANGERS):
        frame = smalls.frames.begin(number, f"a{number}", 0.0, known=False)
        smalls.frames.admit(frame, SMALL_BYTES // 2, 0, 0.0)
        shaking.append(frame)
    assert smalls.frames.waiting == 0
    assert not smalls.frames.admit(shaking[-1], 1, 0, 0.0)
    smalls.now_s = 0.9
    assert smalls.cut() == []
    smalls.now_s = 1.0
    assert smalls.cut() == shaking[:1]
    assert smalls.granted() == [shaking[-1]]
    for frame in shaking[1:]:
        smalls.frames.end(frame)
    assert all(share.taken_bytes == 0 for share in smalls.frames._shares.values())


def test_addresses_take_turns_as_the_senior() -> None:
    frames = Frames(64 * MIB, 16 * MIB)

    def begin(address: str) -> Frame:
        frame = frames.begin(address, address, 0.0, known=True)
        frames.announce(frame, 16 * MIB, 0)
        return frame

    crowd = [begin("crowd") for _ in range(100)]
    assert frames.admit(crowd[0], MIB, 0, 0.0)
    other = begin("other")
    frames.end(crowd[0])
    assert frames._large_senior() is other
    frames.end(other)
    assert frames._large_senior() is crowd[1]
    for frame in crowd[1:]:
        frames.end(frame)
    assert not frames._turns
