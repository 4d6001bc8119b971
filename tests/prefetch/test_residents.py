"""Windows give back memory: first those far from any demand; never one with a waiting consumer."""

from __future__ import annotations

from foqs.bounds import Budget
from foqs.fairness.keys import TopicKey
from foqs.item import Item
from foqs.prefetch.lane import Lane, Window
from foqs.prefetch.residents import Residents
from tests.support.lanes import lone_lane

ITEM_BYTES = 100
ROWS = 4


class Rig:
    """A holder of windows with ROWS items each, in a budget of 10,000 bytes of which windows may fill 7,000."""

    def __init__(self, lanes: int) -> None:
        self.now_ms = 100_000
        self.budget = Budget(10_000)
        self.waiting: set[TopicKey] = set()
        self.residents = Residents(self.budget, self.waiting, lambda: self.now_ms)
        self.lanes = [self.lane(number) for number in range(lanes)]

    def lane(self, number: int) -> Lane[Item]:
        lane = lone_lane(f"topic-{number}", number)
        lane.window = Window(complete=True, page_rows=ROWS)
        for at in range(ROWS):
            lane.window.add(Item(number * 1_000 + at, lane, 0, 0, 0, 0, 0, None).entry)
        self.budget.take(ROWS * ITEM_BYTES)
        self.residents.add(lane, self)
        return lane

    def cut_window(self, window: Window[Item], keep: int) -> None:
        self.budget.give(ITEM_BYTES * len(window.cut(keep)))

    def drop_window(self, lane: Lane[Item]) -> None:
        assert lane.window is not None
        self.cut_window(lane.window, 0)
        lane.window = None
        self.residents.discard(lane)

    def rows(self) -> list[int]:
        return [0 if lane.window is None else len(lane.window) for lane in self.lanes]


def test_windows_within_their_share_keep_everything() -> None:
    rig = Rig(16)
    rig.residents.relieve()
    assert rig.residents.room_bytes(200) == 200
    assert rig.rows() == [ROWS] * 16


def test_windows_of_a_closed_shard_are_left_alone() -> None:
    """The shard has given their memory back."""
    rig = Rig(20)
    for lane in rig.lanes[:15]:
        lane.term.shard = None
    rig.residents.relieve()
    assert rig.rows()[:15] == [ROWS] * 15
    assert len(rig.residents) == sum(lane.window is not None for lane in rig.lanes[15:])


def test_idle_windows_go_first_and_whole() -> None:
    rig = Rig(20)
    for lane in rig.lanes[:10]:
        assert lane.window is not None
        lane.window.used_ms = rig.now_ms
    rig.residents.relieve()
    assert rig.rows() == [ROWS] * 10 + [0] * 4 + [ROWS] * 6
    assert not rig.residents.full


def test_used_windows_give_their_far_half() -> None:
    rig = Rig(20)
    for lane in rig.lanes:
        assert lane.window is not None
        lane.window.used_ms = rig.now_ms
    rig.residents.relieve()
    assert rig.rows() == [ROWS // 2] * 7 + [ROWS] * 13


def test_a_window_with_a_waiting_consumer_stays() -> None:
    rig = Rig(30)
    rig.waiting |= {lane.topic.key for lane in rig.lanes[:5]}
    for _ in range(20):
        rig.now_ms += 1
        rig.budget.take(1_000)  # other parts of the host fill the budget
        rig.residents.relieve()
    assert rig.rows() == [ROWS] * 5 + [0] * 25


def test_a_window_whose_page_is_in_flight_stays() -> None:
    rig = Rig(20)
    window = rig.lanes[0].window
    assert window is not None
    window.asked_ms = rig.now_ms
    rig.residents.relieve()
    assert rig.rows()[:2] == [ROWS, 0]


def test_a_read_always_has_some_room() -> None:
    rig = Rig(25)
    rig.waiting |= {lane.topic.key for lane in rig.lanes}
    assert rig.residents.room_bytes(1_000) == 10_000 // 64
    rig.waiting.clear()
    rig.now_ms += 1
    assert rig.residents.room_bytes(300) == 300


def test_steps_of_one_call_are_bounded() -> None:
    """The hand goes on where it stopped, so windows behind many windows with a consumer are reached, too."""
    rig = Rig(2_500)
    rig.waiting |= {lane.topic.key for lane in rig.lanes[:2_400]}
    calls = 0
    while rig.lanes[2_400].window is not None:
        rig.now_ms += 1
        rig.residents.relieve()
        calls += 1
    assert 1 < calls <= 3


def test_idle_windows_are_dropped_by_time() -> None:
    rig = Rig(20)
    for at, lane in enumerate(rig.lanes):
        assert lane.window is not None
        lane.window.used_ms = rig.now_ms - 1_000 * at
    rig.residents.drop_idle(0.0, 15_000, 100)
    assert rig.rows() == [ROWS] * 15 + [0] * 5
