"""The checker believes a true history and finds each kind of lie in one that was broken by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from foqs_lab.crash.checker import Rule, check, tally
from foqs_lab.crash.history import (
    NS_PER_MS,
    Ack,
    Answer,
    Crash,
    Delivery,
    Dequeue,
    Enqueue,
    Event,
    Log,
    Look,
    Nack,
    Step,
    read,
)

OK, UNKNOWN, REFUSED, STALE, NOT_FOUND = Answer.OK, Answer.UNKNOWN, Answer.REFUSED, Answer.STALE, Answer.NOT_FOUND
LEASE_MS = 1_000


def at(ms: int) -> tuple[int, int]:
    """From `ms` to a millisecond later."""
    return ms * NS_PER_MS, (ms + 1) * NS_PER_MS


def enqueued(ms: int, key: str, item_id: int, answer: Answer = OK, *, once: bool = False) -> Enqueue:
    return Enqueue(*at(ms), key, item_id, answer, once)


def delivered(ms: int, key: str, item_id: int, lease: int, attempt: int = 1) -> Delivery:
    return Delivery(*at(ms), key, item_id, lease, attempt, LEASE_MS)


def acked(ms: int, item_id: int, lease: int, answer: Answer = OK) -> Ack:
    return Ack(*at(ms), item_id, lease, answer)


def nacked(ms: int, item_id: int, lease: int, answer: Answer = OK) -> Nack:
    return Nack(*at(ms), item_id, lease, answer)


def looked(from_ms: int, item_id: int, state: int, result: str = "") -> Look:
    return Look(from_ms * NS_PER_MS, (from_ms + 1) * NS_PER_MS, item_id, state, result)


def stepped(ms: int, item_id: int, lease: int, number: int, answer: Answer = OK) -> Step:
    return Step(*at(ms), item_id, lease, number, answer)


def crashed(from_ms: int, to_ms: int, what: str = "host") -> Crash:
    return Crash(from_ms * NS_PER_MS, to_ms * NS_PER_MS, what)


LIFE: list[Event] = [enqueued(0, "a", 1), delivered(10, "a", 1, 100), acked(20, 1, 100)]

TRUE: dict[str, list[Event]] = {
    "a life": LIFE,
    "an unknown enqueue that was stored": [enqueued(0, "a", 0, UNKNOWN), *LIFE[1:]],
    "an unknown enqueue that was not": [enqueued(0, "a", 0, UNKNOWN)],
    "a refused enqueue": [enqueued(0, "a", 0, REFUSED)],
    "an unknown ack that was done": [*LIFE[:2], acked(20, 1, 100, UNKNOWN)],
    "an unknown ack that was not": [
        *LIFE[:2], acked(20, 1, 100, UNKNOWN), crashed(21, 500), delivered(600, "a", 1, 101, 2), acked(700, 1, 101),
    ],
    "a delivery under way when the ack was answered": [
        *LIFE[:2], Delivery(15 * NS_PER_MS, 90 * NS_PER_MS, "a", 1, 101, 2, LEASE_MS), crashed(16, 18),
        acked(20, 1, 100),
    ],
    "a lease that ended, taken over; the late ack refused": [
        *LIFE[:2], delivered(1_500, "a", 1, 101, 2), acked(1_600, 1, 100, STALE), acked(1_700, 1, 101),
    ],
    "a late ack without a rival": [*LIFE[:2], acked(5_000, 1, 100)],
    "a late ack after a second consumer took the item and acked": [
        *LIFE[:2], delivered(1_500, "a", 1, 101, 2), acked(1_600, 1, 101), acked(1_700, 1, 100, NOT_FOUND),
    ],
    "a nack, then another delivery": [
        *LIFE[:2], nacked(20, 1, 100), delivered(30, "a", 1, 101, 2), acked(40, 1, 100, STALE), acked(50, 1, 101),
    ],
    "a lease forgotten by a crash": [*LIFE[:2], crashed(20, 30), delivered(40, "a", 1, 101), acked(50, 1, 101)],
    "a lease forgotten by a crash, its ack refused": [
        *LIFE[:2], crashed(20, 30), delivered(40, "a", 1, 101), acked(45, 1, 100, STALE), acked(50, 1, 101),
    ],
    "a second lease forgotten by a crash, the first one's ack taken": [
        *LIFE[:2], delivered(1_500, "a", 1, 101, 2), crashed(1_510, 1_600), acked(1_700, 1, 100),
        acked(1_800, 1, 101, NOT_FOUND),
    ],
    "a wrong token refused": [*LIFE[:2], acked(15, 1, 999, STALE), LIFE[2]],
    "an ack done twice": [*LIFE, acked(30, 1, 100, NOT_FOUND)],
    "its result": [*LIFE, looked(30, 1, 4, "100")],
    "no end before the ack": [*LIFE, looked(15, 1, 3), looked(20, 1, 0)],
    "the result of an ack whose outcome is unknown": [*LIFE[:2], acked(20, 1, 100, UNKNOWN), looked(30, 1, 4, "100")],
    "no end after an ack whose outcome is unknown": [*LIFE[:2], acked(20, 1, 100, UNKNOWN), looked(30, 1, 3)],
    "its checkpoint": [
        *LIFE[:2], stepped(12, 1, 100, 5), delivered(1_500, "a", 1, 101, 2)._replace(checkpoint=5),
        acked(1_600, 1, 101),
    ],
    "its last checkpoint, whose outcome is unknown": [
        *LIFE[:2], stepped(12, 1, 100, 5), stepped(15, 1, 100, 6, UNKNOWN),
        delivered(1_500, "a", 1, 101, 2)._replace(checkpoint=6), acked(1_600, 1, 101),
    ],
    "a checkpoint whose outcome is unknown was not written": [
        *LIFE[:2], stepped(12, 1, 100, 5, UNKNOWN), delivered(1_500, "a", 1, 101, 2), acked(1_600, 1, 101),
    ],
    "an at-most-once item": [enqueued(0, "a", 1, once=True), delivered(10, "a", 1, 100)],
    "an at-most-once item without a delivery": [
        enqueued(0, "a", 1, once=True), Dequeue(*at(5), 1, answered=False),
    ],
    "an at-most-once item that an answer was not sure of": [
        enqueued(0, "a", 1, once=True), Dequeue(*at(5), 1, answered=True, doubtful=(1,)),
    ],
}  # fmt: skip

BROKEN: dict[str, tuple[Rule, list[Event]]] = {
    "never came": (Rule.LOST, LIFE[:1]),
    "came, was never acked, and is gone": (Rule.LOST, LIFE[:2]),
    "an unknown enqueue came and is gone": (Rule.LOST, [enqueued(0, "a", 0, UNKNOWN), LIFE[1]]),
    "only a stale ack": (Rule.LOST, [*LIFE[:2], acked(5_000, 1, 100, STALE)]),
    "an at-most-once item that no dequeue can have taken": (
        Rule.LOST_AT_MOST_ONCE, [enqueued(0, "a", 1, once=True), Dequeue(*at(5), 1, answered=True)],
    ),
    "two at-most-once items, one untold dequeue": (
        Rule.LOST_AT_MOST_ONCE,
        [enqueued(0, "a", 1, once=True), enqueued(0, "b", 2, once=True), Dequeue(*at(5), 1, answered=False)],
    ),
    "an answer that was not sure of another at-most-once item": (
        Rule.LOST_AT_MOST_ONCE,
        [enqueued(0, "a", 1, once=True), Dequeue(*at(5), 1, answered=True, doubtful=(2,))],
    ),
    "delivered after its ack": (Rule.CAME_BACK, [*LIFE, crashed(22, 25), delivered(30, "a", 1, 101, 2)]),
    "at most once, delivered twice": (
        Rule.TWICE,
        [enqueued(0, "a", 1, once=True), delivered(10, "a", 1, 100), crashed(20, 30), delivered(40, "a", 1, 101, 2)],
    ),
    "a wrong token acked": (Rule.STALE_ACK, [*LIFE[:2], acked(15, 1, 999)]),
    "an old token acked": (
        Rule.STALE_ACK, [*LIFE[:2], delivered(1_500, "a", 1, 101, 2), acked(1_600, 1, 100)],
    ),
    "an old token acked, the crash was before": (
        Rule.STALE_ACK, [*LIFE[:2], crashed(20, 30), delivered(40, "a", 1, 101, 2), acked(60, 1, 100)],
    ),
    "an ack after the nack": (
        Rule.STALE_ACK, [*LIFE[:2], nacked(20, 1, 100), acked(30, 1, 100)],
    ),
    "a living lease refused": (Rule.REFUSED_ACK, [*LIFE[:2], acked(20, 1, 100, STALE), acked(30, 1, 100)]),
    "a living lease gone": (Rule.REFUSED_ACK, [*LIFE[:2], acked(20, 1, 100, NOT_FOUND)]),
    "a database's crash excuses no refusal": (
        Rule.REFUSED_ACK, [*LIFE[:2], crashed(15, 18, "database"), acked(20, 1, 100, STALE), acked(30, 1, 100)],
    ),
    "two holders": (Rule.TWO_HOLDERS, [*LIFE[:2], delivered(500, "a", 1, 101, 2), acked(600, 1, 101)]),
    "two holders, a database's crash": (
        Rule.TWO_HOLDERS,
        [*LIFE[:2], crashed(100, 200, "database"), delivered(500, "a", 1, 101, 2), acked(600, 1, 101)],
    ),
    "two holders, the nack was refused": (
        Rule.TWO_HOLDERS,
        [*LIFE[:2], nacked(20, 1, 100, STALE), delivered(500, "a", 1, 101, 2), acked(600, 1, 101)],
    ),
    "an unknown enqueue stored twice": (
        Rule.DUPLICATE,
        [enqueued(0, "a", 0, UNKNOWN), *LIFE[1:], delivered(10, "a", 2, 200), acked(20, 2, 200)],
    ),
    "an acknowledged enqueue stored twice": (
        Rule.DUPLICATE, [*LIFE, delivered(10, "a", 2, 200), acked(20, 2, 200)],
    ),
    "the result of another lease": (Rule.WRONG_RESULT, [*LIFE, looked(30, 1, 4, "101")]),
    "no result": (Rule.WRONG_RESULT, [*LIFE, looked(30, 1, 4)]),
    "a result before the ack": (Rule.WRONG_RESULT, [*LIFE, looked(15, 1, 4, "100")]),
    "a kept item is gone": (Rule.FORGOTTEN, [*LIFE, looked(30, 1, 0)]),
    "a kept item is leased": (Rule.FORGOTTEN, [*LIFE, looked(30, 1, 3)]),
    "no checkpoint": (
        Rule.STEPPED_BACK,
        [*LIFE[:2], stepped(12, 1, 100, 5), delivered(1_500, "a", 1, 101, 2), acked(1_600, 1, 101)],
    ),
    "an older checkpoint": (
        Rule.STEPPED_BACK,
        [
            *LIFE[:2], stepped(12, 1, 100, 5), stepped(14, 1, 100, 6),
            delivered(1_500, "a", 1, 101, 2)._replace(checkpoint=5), acked(1_600, 1, 101),
        ],
    ),
    "the checkpoint of another item": (
        Rule.NOT_GIVEN,
        [*LIFE[:2], delivered(1_500, "a", 1, 101, 2)._replace(checkpoint=5), acked(1_600, 1, 101)],
    ),
    "a checkpoint that was refused": (
        Rule.NOT_GIVEN,
        [
            *LIFE[:2], stepped(12, 1, 100, 5, STALE), delivered(1_500, "a", 1, 101, 2)._replace(checkpoint=5),
            acked(1_600, 1, 101),
        ],
    ),
    "delivered after its end": (
        Rule.CAME_BACK,
        [
            *LIFE[:2], acked(20, 1, 100, UNKNOWN), looked(30, 1, 4, "100"), delivered(2_000, "a", 1, 101, 2),
            acked(2_010, 1, 101),
        ],
    ),
    "a refused enqueue came": (Rule.REFUSED_STORED, [enqueued(0, "a", 0, REFUSED), *LIFE[1:]]),
    "an item without an enqueue": (Rule.INVENTED, LIFE[1:]),
    "an id given twice": (
        Rule.SAME_ID, [*LIFE, enqueued(30, "b", 1), delivered(40, "b", 1, 101), acked(50, 1, 101)],
    ),
    "an id delivered as two items": (
        Rule.SAME_ID, [*LIFE, enqueued(30, "b", 0, UNKNOWN), delivered(40, "b", 1, 101), acked(50, 1, 101)],
    ),
    "another id": (Rule.INVENTED, [enqueued(0, "a", 7), *LIFE[1:], acked(50, 7, 1, UNKNOWN)]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_a_true_history_is_believed(name: str) -> None:
    assert check(TRUE[name]) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_lie_is_found(name: str) -> None:
    rule, events = BROKEN[name]
    assert rule in {lie.rule for lie in check(events)}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BROKEN.values()} == set(Rule)


def test_one_lie_is_found_among_many_truths_in_any_order() -> None:
    events = [event for n in range(500) for event in renamed(LIFE, n)]
    assert check(events) == []
    events += renamed(BROKEN["two holders"][1], 1_000)
    random.Random(1).shuffle(events)
    assert {lie.rule for lie in check(events)} == {Rule.TWO_HOLDERS}


def renamed(events: list[Event], number: int) -> list[Event]:
    """The same history of another item."""
    made: list[Event] = []
    for event in events:
        fields = event._asdict()
        fields |= {name: f"{fields[name]}{number}" for name in ("key",) if name in fields}
        fields |= {name: fields[name] + 1_000 * number for name in ("id", "lease") if name in fields}
        made.append(type(event)(**fields))
    return made


def test_the_tally_counts_each_kind() -> None:
    events = [*TRUE["a lease that ended, taken over; the late ack refused"], crashed(0, 1), crashed(0, 1, "database")]
    counts = tally(
        [
            *events,
            enqueued(0, "b", 0, UNKNOWN),
            enqueued(0, "c", 0, REFUSED),
            acked(0, 9, 9, UNKNOWN),
            looked(0, 9, 4),
            looked(0, 9, 0),
            stepped(0, 9, 1, 1),
            stepped(0, 9, 1, 2, STALE),
        ]
    )
    assert counts == (1, 1, 1, 1, 1, 0, 2, 1, 1, 1, 1, 1, 1)


def test_logs_come_back_as_they_were_written(tmp_path: Path) -> None:
    events = [
        *TRUE["a nack, then another delivery"], Dequeue(*at(5), 3, answered=False), Dequeue(*at(5), 3, True, (1, 2)),
        crashed(6, 7), looked(8, 1, 4, "100"), stepped(9, 1, 100, 7),
    ]  # fmt: skip
    for number in range(2):
        log = Log(tmp_path / f"client-{number}.jsonl")
        log.add(events[number::2])
        log.close()
    assert read(tmp_path) == sorted(events, key=lambda event: event.began)
