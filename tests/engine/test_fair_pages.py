"""Which pages a dequeue of very many tenants asks for, and when."""

from __future__ import annotations

import pytest

from foqs.engine import fair_dequeue
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of

TENANTS = 1_500


@pytest.fixture
def opened() -> Laboratory:
    """A shard of so many tenants with an item each, none of which is in memory."""
    lab = Laboratory(1)
    for number in range(TENANTS):
        lab.put(lab.item(), key=of(f"tenant {number}"))
    lab.settle()
    lab.reopen()
    while lab.engine.long_work:
        lab.engine.pump(lab.now_ms)
    return lab


def windows(lab: Laboratory) -> int:
    return sum(lane.window is not None for lane in lab.engine.shards[1].lanes.values())


def test_only_pages_of_the_next_tenants_are_read(opened: Laboratory) -> None:
    taken: list[int] = []
    while len(taken) < 400:
        taken += opened.taken(count=10)
    assert windows(opened) <= len(taken) + 3 * fair_dequeue._AHEAD


def test_tenants_keep_their_places_while_their_pages_are_read(opened: Laboratory) -> None:
    """An item is not delivered long after its page was read: its tenant does not go behind all of them."""
    assert opened.taken(count=10)
    there = {
        item.id
        for lane in opened.engine.shards[1].lanes.values()
        if lane.window is not None
        for *_, item in lane.window.entries
    }
    later: list[int] = []
    while len(later) < len(there):
        later += opened.taken(count=10)
    assert len(there) > 100
    assert len(there & {*later[: len(there)]}) > 0.9 * len(there)


def test_a_steady_consumer_waits_for_the_first_page_alone(opened: Laboratory) -> None:
    waited, left = 0, TENANTS
    while left:
        answer = opened.dequeue(5_000, count=10)
        waited += not answer
        opened.settle()
        left -= len(answer[0])
    assert waited == 1


def test_more_is_read_ahead_for_a_faster_consumer(opened: Laboratory) -> None:
    """Pages arrive only when a dequeue waits."""
    turns = opened.engine.topics[KEY].turns
    assert turns is not None
    reaches: list[int] = []
    left = TENANTS
    while left:
        answer = opened.dequeue(5_000, count=10)
        if not answer:
            reaches.append(turns.reach)
            opened.settle()
        left -= len(answer[0])
    assert reaches == [fair_dequeue._AHEAD * times for times in (1, 4, 4)]
