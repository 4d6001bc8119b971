"""Pages of a redrive into topics that are closed or full."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.engine import item_ops
from foqs.engine.dead_letters import Granted, PageAsk, PageOutcome, RedrivePage, Refused
from foqs.errors import FoqsError, Overloaded, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.policies.settings import Settings
from tests.engine.laboratory import Laboratory
from tests.engine.test_redrive import ALL, DEAD, dead_letters

OTHER = ("ns", "other")
FULL = Overloaded("the topic is full", 200)


class Rooms:
    """Admits up to `left` items of each topic, at once or when a test says so. `held` counts tokens that are neither
    spent nor given back."""

    def __init__(self, **left: int) -> None:
        self.left = left
        self.held = 0
        self.waiting: list[tuple[str, int, Granted]] = []
        self.at_once = True

    def admit(self, key: TopicKey, items: int, _deadline_ms: int, granted: Granted) -> None:
        self.waiting.append((key[1], items, granted))
        if self.at_once:
            self.answer()

    def answer(self) -> None:
        topic, items, granted = self.waiting.pop(0)
        got = min(items, self.left[topic])
        self.left[topic] -= got
        self.held += got

        def settle(unused: int) -> None:
            assert 0 <= unused <= got
            self.held -= got
            self.left[topic] += unused

        granted(got, None if got == items else FULL, settle)


def laboratory(**policies: Any) -> Laboratory:
    """Topics `topic` and `other` have their dead letters in one topic."""
    lab = Laboratory(1)
    apply(lab, 1, **policies)
    return lab


def apply(lab: Laboratory, version: int, **policies: Any) -> None:
    own = {"topic": {}, "other": {"dead": {"topic": DEAD[1]}}}
    entries = {f"topic.{name}": json.dumps(own[name] | policies.get(name, {})) for name in own}
    lab.engine.apply_settings(Settings("ns", version, entries))


def begin(lab: Laboratory, rooms: Rooms | None = None, most: int = 500, **how: Any) -> list[PageOutcome | FoqsError]:
    answers: list[PageOutcome | FoqsError] = []
    ask = PageAsk(DEAD, 1, how.pop("after", None), ALL, most, **how)
    page = RedrivePage(lab.engine, ask, answers.append, rooms.admit if rooms is not None else None)
    page.begin(lab.now_ms, lab.now_ms + 5_000)
    return answers


def redrive(lab: Laboratory, rooms: Rooms | None = None, **how: Any) -> PageOutcome:
    answers = begin(lab, rooms, **how)
    lab.settle()
    (outcome,) = answers
    assert isinstance(outcome, PageOutcome)
    return outcome


def counts(outcome: PageOutcome) -> tuple[int, dict[str, int]]:
    assert sum(outcome.taken.values()) == outcome.redriven
    return outcome.redriven, {topic: refused.items for topic, refused in outcome.refused.items()}


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_closed_topic_stops_no_other_topic(dry_run: bool) -> None:
    lab = laboratory(topic={"closed": True})
    apply(lab, 2)
    closed, others = dead_letters(lab, "a", "b"), dead_letters(lab, "a", "b", "c", key=OTHER)
    apply(lab, 3, topic={"closed": True})
    outcome = redrive(lab, dry_run=dry_run)
    assert counts(outcome) == (3, {"topic": 2})
    error = outcome.refused["topic"].error
    assert isinstance(error, Unavailable)
    assert error.message == "the topic topic is closed to enqueues until `foqs topic open topic --ns ns`"
    assert lab.dbs[1].failures.keys() == {*closed, *(others if dry_run else ())}
    apply(lab, 4)
    assert counts(redrive(lab)) == (5 if dry_run else 2, {})


def test_a_paused_topic_takes_its_items() -> None:
    lab = laboratory()
    dead_letters(lab, "a")
    apply(lab, 2, topic={"paused": True})
    assert counts(redrive(lab)) == (1, {})


@pytest.mark.parametrize("most", [1, 2, 500])
def test_a_full_topic_takes_what_fits(most: int) -> None:
    lab = laboratory(topic={"max_stored": 9})
    dead_letters(lab, *"abcde")
    others = dead_letters(lab, *"abc", key=OTHER)
    rooms, after, moved, refused = Rooms(topic=2), None, 0, 0
    while True:
        outcome = redrive(lab, rooms, most=most, after=after)
        moved += outcome.redriven
        refused += counts(outcome)[1].get("topic", 0)
        assert all(one == Refused(one.items, FULL) for one in outcome.refused.values())
        assert (outcome.redriven <= most, rooms.held) == (True, 0)
        after = outcome.next
        if after is None:
            break
    assert (moved, refused, rooms.left) == (5, 3, {"topic": 0})
    assert len(lab.dbs[1].failures) == 3
    assert sorted(lab.taken(keys=[OTHER])) == others


def test_rows_that_changed_while_room_was_asked_for() -> None:
    """They are read again: an item that is gone by then is not moved, and its token returns."""
    lab = laboratory(topic={"max_stored": 9})
    gone, leased, stays = dead_letters(lab, "a", "b", "c")
    rooms = Rooms(topic=9)
    rooms.at_once = False
    answers = begin(lab, rooms)
    lab.settle()
    ((topic, items, _),) = rooms.waiting
    assert (topic, items, answers) == ("topic", 3, [])
    taken = lab.taken(keys=[DEAD])
    lab.ack((gone, lab.lease_of(gone)))
    for item_id in set(taken) - {gone, leased}:
        lab.operate(item_id, item_ops.release(lab.lease_of(item_id)))
    lab.settle()
    rooms.answer()
    lab.settle()
    assert [(one.redriven, one.leased) for one in answers] == [(1, 1)]
    assert (rooms.held, rooms.left) == (0, {"topic": 8})
    assert lab.dbs[1].failures.keys() == {leased}
    assert lab.taken() == [stays]


def test_room_that_comes_too_late_is_given_back() -> None:
    lab = laboratory(topic={"max_stored": 9})
    dead_letters(lab, "a")
    rooms = Rooms(topic=9)
    rooms.at_once = False
    answers = begin(lab, rooms)
    lab.settle()
    lab.ring(5_000)
    assert isinstance(answers[0], Unavailable)
    rooms.answer()
    lab.settle()
    assert (rooms.held, rooms.left, len(lab.dbs[1].failures), len(answers)) == (0, {"topic": 9}, 1, 1)


def test_room_of_items_that_the_database_refuses_is_given_back() -> None:
    lab = laboratory(topic={"max_stored": 9})
    dead_letters(lab, "a", "b")
    lab.faults[1].commits.append("full")
    rooms = Rooms(topic=9)
    answers = begin(lab, rooms)
    lab.settle()
    assert isinstance(answers[0], Unavailable)
    assert (rooms.held, rooms.left) == (0, {"topic": 9})


def test_one_topic_for_all() -> None:
    lab = laboratory()
    dead_letters(lab, "a")
    dead_letters(lab, "b", key=OTHER)
    apply(lab, 2, other={"max_stored": 1})
    assert counts(redrive(lab, Rooms(other=1), to_topic="other")) == (1, {"other": 1})
    apply(lab, 3, other={"closed": True})
    assert counts(redrive(lab, to_topic="other")) == (0, {"other": 1})
    assert counts(redrive(lab, to_topic="elsewhere")) == (1, {})


def test_a_canary_takes_another_item_of_its_group() -> None:
    lab = laboratory()
    dead_letters(lab, "a")
    dead_letters(lab, "a", key=OTHER)
    apply(lab, 2, topic={"closed": True})
    assert counts(redrive(lab, per_group=1)) == (1, {"topic": 1})
