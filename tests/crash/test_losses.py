"""An older copy of a database explains the loss of commits since it was made, and of nothing else."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from foqs_lab.crash import schedules, tenants, unique
from foqs_lab.crash.checker import Rule, check
from foqs_lab.crash.clients import Progress
from foqs_lab.crash.history import NS_PER_MS, Crash, Event, Log, Loss, read
from foqs_lab.crash.losses import Losses, losses_of
from tests.crash.test_checker import (
    LEASE_MS,
    NOT_FOUND,
    STALE,
    UNKNOWN,
    acked,
    delivered,
    enqueued,
    looked,
    nacked,
    stepped,
)

SHARD = 0
"""The items of the histories are in it: their ids are small."""


def lost(from_ms: int = 1_000, to_ms: int = 2_000, shard: int = SHARD, what: str = "restored") -> Loss:
    """The copy took 100 ms, and it was served 100 ms after the original was gone."""
    times = (from_ms, to_ms, from_ms + 100, to_ms + 100)
    return Loss(*(ms * NS_PER_MS for ms in times), (shard,), what)


BEFORE: list[Event] = [enqueued(0, "a", 1), delivered(800, "a", 1, 100)]
AGAIN: list[Event] = [delivered(2_200, "a", 1, 101, 2), acked(2_300, 1, 101)]

NAMED: dict[str, tuple[Rule, str, list[Event]]] = {
    "an item": (Rule.LOST, "items lost", [enqueued(1_500, "a", 1)]),
    "an item that had come": (Rule.LOST, "items lost", [enqueued(1_500, "a", 1), delivered(1_600, "a", 1, 100)]),
    "an item whose enqueue had no answer": (
        Rule.LOST, "items lost", [enqueued(500, "a", 0, UNKNOWN), delivered(1_600, "a", 1, 100)],
    ),
    "an item that was stored while the copy was made": (Rule.LOST, "items lost", [enqueued(1_050, "a", 1)]),
    "an at-most-once item": (Rule.LOST_AT_MOST_ONCE, "items lost", [enqueued(1_500, "a", 1, once=True)]),
    "an ack": (Rule.CAME_BACK, "acks undone", [*BEFORE, acked(1_500, 1, 100), *AGAIN]),
    "an ack that was repeated, and answered from memory": (
        Rule.CAME_BACK, "acks undone", [*BEFORE, acked(1_500, 1, 100), acked(2_010, 1, 100), *AGAIN],
    ),
    "an ack whose end was seen": (
        Rule.CAME_BACK, "acks undone", [*BEFORE, acked(1_500, 1, 100, UNKNOWN), looked(1_600, 1, 4, "100"), *AGAIN],
    ),
    "the end of a kept item": (
        Rule.FORGOTTEN, "acks undone", [*BEFORE, acked(1_500, 1, 100), looked(2_150, 1, 3), *AGAIN],
    ),
    "a checkpoint": (Rule.STEPPED_BACK, "checkpoints undone", [*BEFORE, stepped(1_500, 1, 100, 5), *AGAIN]),
    "a delivery of an at-most-once item": (
        Rule.TWICE, "at-most-once deliveries undone",
        [enqueued(0, "a", 1, once=True), delivered(1_500, "a", 1, 100), delivered(2_200, "a", 1, 101)],
    ),
    "a nack": (
        Rule.STALE_ACK, "nacks undone", [*BEFORE, nacked(1_500, 1, 100), acked(2_200, 1, 100)],
    ),
    "a lease": (
        Rule.TWO_HOLDERS, "leases ended",
        [enqueued(0, "a", 1), delivered(1_500, "a", 1, 100), *AGAIN],
    ),
    "a lease, whose ack is refused": (
        Rule.REFUSED_ACK, "leases ended",
        [enqueued(0, "a", 1), delivered(1_500, "a", 1, 100), acked(2_150, 1, 100, NOT_FOUND), *AGAIN],
    ),
    "a lease after another one, which is valid again": (
        Rule.STALE_ACK, "leases ended",
        [enqueued(0, "a", 1), delivered(200, "a", 1, 100), delivered(1_500, "a", 1, 101, 2), acked(2_200, 1, 100)],
    ),
}  # fmt: skip
"""What a loss of shard 0 from 1 s to 2 s explains: the rule that is broken without it, and its name."""

REFUSED: dict[str, tuple[Rule, list[Event]]] = {
    "an item of before": (Rule.LOST, [enqueued(500, "a", 1)]),
    "an item of after": (Rule.LOST, [enqueued(2_050, "a", 1)]),
    "an item that was acked in the window, and never came back": (Rule.LOST, [*BEFORE, acked(1_500, 1, 100)]),
    "an at-most-once item of before": (Rule.LOST_AT_MOST_ONCE, [enqueued(500, "a", 1, once=True)]),
    "an ack of before": (Rule.CAME_BACK, [*BEFORE, acked(900, 1, 100), *AGAIN]),
    "an ack of before that was repeated in the window": (
        Rule.CAME_BACK, [*BEFORE, acked(900, 1, 100), acked(1_500, 1, 100), *AGAIN],
    ),
    "an ack of after": (
        Rule.CAME_BACK, [enqueued(0, "a", 1), *AGAIN, delivered(4_000, "a", 1, 102), acked(4_100, 1, 102)],
    ),
    "an item that came back before the original was gone": (
        Rule.CAME_BACK,
        [*BEFORE, acked(1_500, 1, 100), delivered(1_900, "a", 1, 101, 2), acked(1_950, 1, 101), *AGAIN],
    ),
    "an end of before": (Rule.FORGOTTEN, [*BEFORE, acked(900, 1, 100), looked(2_200, 1, 0)]),
    "a checkpoint of before": (
        Rule.STEPPED_BACK, [*BEFORE, stepped(850, 1, 100, 5), stepped(1_500, 1, 100, 6), *AGAIN],
    ),
    "a checkpoint of no consumer": (
        Rule.NOT_GIVEN, [*BEFORE, delivered(2_200, "a", 1, 101, 2)._replace(checkpoint=5), acked(2_300, 1, 101)],
    ),
    "an at-most-once item that was delivered before": (
        Rule.TWICE,
        [enqueued(0, "a", 1, once=True), delivered(500, "a", 1, 100), delivered(2_200, "a", 1, 101)],
    ),
    "an id that was given in the window, and again": (
        Rule.SAME_ID,
        [enqueued(1_500, "a", 1), enqueued(2_200, "b", 1), delivered(2_300, "b", 1, 1), acked(2_400, 1, 1)],
    ),
    "an enqueue that stored two items": (
        Rule.DUPLICATE, [enqueued(1_500, "a", 0, UNKNOWN), *AGAIN, delivered(2_300, "a", 2, 7), acked(2_400, 2, 7)],
    ),
    "two holders, both of after": (
        Rule.TWO_HOLDERS,
        [enqueued(0, "a", 1), delivered(2_200, "a", 1, 100), delivered(2_300, "a", 1, 101, 2), acked(2_400, 1, 101)],
    ),
    "two holders, both of before": (
        Rule.TWO_HOLDERS, [*BEFORE, delivered(1_100, "a", 1, 101, 2), acked(1_200, 1, 101), *AGAIN],
    ),
    "a living lease of after": (
        Rule.REFUSED_ACK, [enqueued(0, "a", 1), delivered(2_200, "a", 1, 100), acked(2_300, 1, 100, STALE), AGAIN[1]],
    ),
    "a token that no delivery had": (Rule.STALE_ACK, [*BEFORE, acked(1_500, 1, 999), *AGAIN]),
}  # fmt: skip
"""What the same loss does not explain."""


def rules(events: list[Event]) -> set[Rule]:
    return {lie.rule for lie in check(events)}


@pytest.mark.parametrize("name", NAMED)
def test_a_loss_is_named(name: str) -> None:
    _, what, events = NAMED[name]
    events = [*events, lost()]
    losses = losses_of(events)
    assert check(events, losses) == []
    assert losses.named()["restored"][what] == 1


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    "windows",
    [[], [lost(5_000, 6_000)], [lost(100, 400)], [lost(shard=7)], [Crash(0, 1, "database")]],
    ids=["none", "later", "earlier", "of another shard", "a crash"],
)
def test_the_same_loss_outside_of_a_window_is_a_lie(name: str, windows: list[Event]) -> None:
    rule, _, events = NAMED[name]
    assert rule in rules([*events, *windows])


@pytest.mark.parametrize("name", REFUSED)
def test_a_window_explains_nothing_else(name: str) -> None:
    rule, events = REFUSED[name]
    assert rule in rules([*events, lost()])


def test_an_ack_that_may_be_in_the_copy_ends_its_item() -> None:
    assert check([*BEFORE, acked(1_050, 1, 100), lost()]) == []
    assert check([*BEFORE, acked(1_050, 1, 100), *AGAIN, lost()]) == []


def test_each_loss_is_counted_once_by_its_fault() -> None:
    events = [
        enqueued(1_500, "a", 1), enqueued(1_600, "b", 2), lost(), lost(5_000, 6_000, 3),
    ]  # fmt: skip
    losses = losses_of(events)
    assert check(events, losses) == []
    assert check(events, losses) == []
    assert str(losses) == "losses of 2 restored: 2 items lost, all in their windows"
    assert str(losses_of([lost(what="late")])) == "losses of 1 late: nothing was lost, all in their windows"
    assert str(Losses()) == ""


def test_losses_come_back_from_a_log(tmp_path: Path) -> None:
    log = Log(tmp_path / "one.jsonl")
    log.add([lost()])
    log.close()
    assert read(tmp_path) == [lost()]


# ------------------------------------------------------------------------------------------------------ whole runs


class Queue:
    """A queue whose database is put back to copies at random moments. Each step takes a millisecond."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []
        self.items: dict[int, int] = {}  # in the database, with their checkpoints
        self.leases: dict[int, int] = {}
        self.numbers = count(1)
        self.ms = 0

    def run(self) -> list[Event]:
        for _ in range(3):
            self.work(100)
            copy, copied = dict(self.items), self.ms
            self.work(60)
            self.items = copy
            self.leases.clear()
            self.events.append(lost(copied, self.ms)._replace(copied=copied * NS_PER_MS, back=self.ms * NS_PER_MS))
        self.work(100)
        self.leases.clear()
        self.ms += LEASE_MS
        for item_id in list(self.items):
            self.lease(item_id)
            self.ack(item_id)
        return self.events

    def work(self, steps: int) -> None:
        for _ in range(steps):
            free = [one for one in self.items if one not in self.leases]
            luck = self.rng.random()
            if luck < 0.4 or not free:
                self.store()
            elif luck < 0.7:
                self.lease(self.rng.choice(free))
            elif self.leases:
                one = self.rng.choice(sorted(self.leases))
                self.ack(one) if luck < 0.9 else self.step(one)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.ms += 2

    def store(self) -> None:
        number = next(self.numbers)
        once = self.rng.random() < 0.2
        item_id = 2 * number + once
        self.items[item_id] = 0
        self.add(enqueued(self.ms, f"k{number}", item_id, once=once))

    def lease(self, item_id: int) -> None:
        lease = self.leases[item_id] = next(self.numbers)
        step = self.items[item_id]
        if item_id % 2:  # at most once
            del self.items[item_id], self.leases[item_id]
        self.add(delivered(self.ms, f"k{item_id // 2}", item_id, lease)._replace(checkpoint=step))

    def ack(self, item_id: int) -> None:
        if item_id in self.leases:
            del self.items[item_id]
            self.add(acked(self.ms, item_id, self.leases.pop(item_id)))

    def step(self, item_id: int) -> None:
        self.items[item_id] = next(self.numbers)
        self.add(stepped(self.ms, item_id, self.leases[item_id], self.items[item_id]))


@pytest.mark.parametrize("seed", range(30))
def test_a_run_is_true_with_its_windows_alone(seed: int) -> None:
    """No window can be left out, moved, or made shorter than the time in which changes were undone."""
    events = Queue(seed).run()
    losses = losses_of(events)
    assert check(events, losses) == []
    assert len(losses.named()["restored"]) >= 3
    rest = [event for event in events if not isinstance(event, Loss)]
    assert rules(rest) >= {Rule.LOST, Rule.CAME_BACK}
    for number, window in enumerate(losses.all):
        others = losses.all[:number] + losses.all[number + 1 :]
        later = window.began + (window.ended - window.began) * 9 // 10
        long = 5_000 * NS_PER_MS
        moved = Loss(*(at + long for at in window[:4]), *window[4:])
        for wrong in ([], [window._replace(began=later, copied=later)], [moved], [window._replace(shards=(7,))]):
            assert check([*rest, *others, *wrong]), f"window {number} as {wrong}"


# -------------------------------------------------------------------------------------------------- the other checks

WINDOW = Losses([Loss(100, 200, 110, 220, (SHARD,), "restored")])
ELSEWHERE = Losses([Loss(100, 200, 110, 220, (7,), "restored")])


@pytest.mark.parametrize(
    "events",
    [
        # The second one took the key after the first one's end, which was undone.
        [
            unique.Stored(0, 1, 7, 1), unique.Ended(120, 121, 1), unique.Stored(130, 131, 7, 2),
            unique.Delivered(140, 141, 7, 2, 1), unique.Delivered(230, 231, 7, 1, 1),
        ],
        # The same, and an owner that had not noticed delivered the second one.
        [
            unique.Stored(0, 1, 7, 1), unique.Ended(120, 121, 1), unique.Stored(130, 131, 7, 2),
            unique.Delivered(205, 206, 7, 2, 1), unique.Delivered(230, 231, 7, 1, 1),
        ],
        # The first one was lost.
        [unique.Stored(120, 121, 7, 1), unique.Stored(230, 231, 7, 2)],
    ],
)  # fmt: skip
def test_a_key_may_change_hands_by_a_loss(events: list[unique.Event]) -> None:
    assert unique.overlaps(events, unique.live_spans(events, WINDOW)) == []
    for losses in (Losses(), ELSEWHERE):
        assert len(unique.overlaps(events, unique.live_spans(events, losses))) == 1


def test_a_key_has_one_item_after_a_loss() -> None:
    events: list[unique.Event] = [
        unique.Stored(0, 1, 7, 1), unique.Ended(120, 121, 1), unique.Delivered(230, 231, 7, 1, 1),
        unique.Stored(240, 241, 7, 2),
    ]  # fmt: skip
    assert len(unique.overlaps(events, unique.live_spans(events, WINDOW))) == 1
    waiting: list[unique.Event] = [unique.Stored(230, 231, 7, 1), unique.Stored(240, 241, 7, 2)]
    assert len(unique.overlaps(waiting, unique.waiting_spans(waiting, WINDOW))) == 1


@pytest.mark.parametrize("ended", [121, 229], ids=["in the window", "after it"])
def test_an_item_that_waited_may_be_lost(ended: int) -> None:
    events: list[unique.Event] = [unique.Stored(120, ended, 7, 1), unique.Stored(230, 231, 7, 2)]
    assert unique.overlaps(events, unique.waiting_spans(events, WINDOW)) == []
    for losses in (Losses(), ELSEWHERE):
        assert len(unique.overlaps(events, unique.waiting_spans(events, losses))) == 1


def test_a_payload_may_be_undone() -> None:
    def events(at: int) -> list[unique.Event]:
        return [
            unique.Stored(0, 1, 7, 1, 10), unique.Changed(at, at + 1, 7, 1, 11),
            unique.Delivered(230, 231, 7, 1, 1, 10),
        ]  # fmt: skip

    assert unique.old_payloads(events(120), WINDOW) == []
    assert len(unique.old_payloads(events(120), ELSEWHERE)) == len(unique.old_payloads(events(50), WINDOW)) == 1


def test_leases_of_a_limit_end_by_a_loss() -> None:
    """Three leases before the loss, and three after it."""
    held = [delivered(ms, f"a/throttled:{ms}", ms, ms) for ms in (1_700, 1_750, 1_800, 2_200, 2_250, 2_300)]
    assert tenants.most_at_once(held, [], Losses([lost()])) == 3
    assert tenants.most_at_once(held, [], Losses([lost(shard=7)])) == 6
    assert tenants.most_at_once([*held, delivered(2_350, "b", 9, 9)], [], Losses([lost()])) == 4


def test_items_that_a_loss_may_have_taken_do_not_starve() -> None:
    def found(losses: Losses) -> list[str]:
        waiting = [enqueued(1_500, f"p/free:{3 * n}", 3 * n + 1) for n in range(200)]  # of the first tenant
        others = [f"p/free:{3 * n + 1}" for n in range(2_500)]
        stored = [enqueued(0, key, n + 10_000) for n, key in enumerate(others)]
        came = [delivered(2_200 + n, key, n + 10_000, n) for n, key in enumerate(others)]
        return tenants.lies([*waiting, *stored, *came], 1 << 60, losses)

    assert found(Losses([lost()])) == []
    assert any("got none" in text for text in found(Losses([lost(shard=7)])))


@pytest.mark.parametrize(
    ("items", "from_ms", "good"),
    [
        ({1_000: {1: 1_005}, 3_000: {3: 3_001}}, 1_900, True),
        ({1_000: {1: 1_005}, 3_000: {3: 3_001}}, 500, False),
        ({1_000: {1: 1_005}, 3_000: {3: 3_001}}, 3_100, False),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005, 4: 2_900}, 3_000: {3: 3_001}}, 1_900, True),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005, 4: 2_900}, 3_000: {3: 3_001}}, 2_100, False),
    ],
)
def test_seconds_of_a_schedule(items: dict[int, dict[int, int]], from_ms: int, good: bool) -> None:
    losses = Losses([lost(from_ms, from_ms + 300)])
    assert schedules.verdict(items, 1, schedules.Kills(0), 3_000, None, losses, 0).good is good
    assert len(losses.named()["restored"]) == good
    assert not schedules.verdict(items, 1, schedules.Kills(0), 3_000, None, Losses(), 0).good


def test_producers_do_not_wait_for_items_that_are_lost() -> None:
    progress = Progress()
    progress.add(stored=[1, 2, 3, 1 << 48], ended=[3, 4])
    assert not progress.wait_below(2, 0)
    progress.forget({SHARD}, 0)
    assert progress.wait_below(1, 0)
    assert not progress.wait_below(0, 0)
    progress.add(ended=[1 << 48])
    progress.add(stored=[4])
    assert progress.wait_below(0, 0)
