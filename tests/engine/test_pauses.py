"""A paused topic delivers nothing, to new consumers or to those that wait; a resumed one delivers at once."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.engine import consumers
from foqs.engine.state import Callbacks
from foqs.policies.settings import Settings
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory

OTHER = ("ns", "other")


class Paused(Laboratory):
    def __init__(self, *numbers: int, **options: Any) -> None:
        self.settings = Settings("ns")
        super().__init__(*numbers, **options)

    def pause(self, *names: str, paused: bool = True) -> None:
        self.settings = self.settings.changed(
            {f"topic.{name}": f'{{"paused": {str(paused).lower()}}}' for name in names}, ()
        )
        self.engine.apply_settings(self.settings)

    def resume(self, *names: str) -> None:
        self.pause(*names, paused=False)
        self.settle()


def test_items_of_a_paused_topic_stay() -> None:
    lab = Paused(1)
    ids = lab.stored()
    lab.pause("topic")
    assert lab.taken() == []
    ids += lab.stored()
    assert lab.taken() == []
    lab.resume("topic")
    assert lab.taken() == ids


def test_other_topics_of_a_request_are_delivered() -> None:
    lab = Paused(1)
    lab.stored()
    others = lab.stored(key=OTHER)
    lab.pause("topic")
    assert lab.taken(keys=[KEY, OTHER]) == others


def test_a_closer_entry_resumes_a_topic_of_a_prefix() -> None:
    lab = Paused(1)
    ids = lab.stored()
    lab.stored(key=OTHER)
    lab.pause("*")
    lab.resume("topic")
    assert lab.taken(keys=[OTHER, KEY]) == ids


def test_a_pause_holds_consumers_back_that_wait_already() -> None:
    lab = Paused(1)
    answers = lab.dequeue(wait_ms=5_000)
    several = [lab.dequeue(wait_ms=5_000, count=1) for _ in range(2)]
    lab.pause("topic")
    ids = lab.stored(*[lab.item() for _ in range(4)])
    lab.go_on(1_000)
    assert answers == []
    lab.resume("topic")
    assert [answers, *several] == [[ids], [], []]
    ids = lab.stored(*[lab.item() for _ in range(2)])
    assert several == [[ids[:1]], [ids[1:]]]


def test_a_wait_for_a_paused_topic_ends_in_time() -> None:
    lab = Paused(1)
    lab.stored()
    lab.pause("topic")
    answers = lab.dequeue(wait_ms=2_000)
    lab.go_on(1_990)
    assert answers == []
    lab.go_on(20)
    assert answers == [[]]


def test_items_out_of_memory_are_delivered_after_a_resume() -> None:
    lab = Paused(1, 2)
    ids = lab.stored(*[lab.item(priority=n) for n in range(3)])
    lab.pause("topic")
    lab.reopen()
    answers = lab.dequeue(wait_ms=60_000)
    lab.go_on(500)
    assert answers == []
    lab.resume("topic")
    lab.go_on(50)
    assert answers == [ids]


def test_a_call_kept_for_a_late_shard_ends_with_its_wait() -> None:
    """Its items come with a page; the pause comes first."""
    lab = Paused(1)
    lab.stored()
    lab.reopen()
    answers = lab.dequeue(wait_ms=1_000)
    lab.pause("topic")
    lab.settle()
    lab.go_on(1_010)
    assert answers == [[]]


def test_an_at_most_once_item_that_is_being_leased_stays() -> None:
    lab = Paused(1)
    (item_id,) = lab.stored(lab.item(delivery=AT_MOST_ONCE))
    answers = lab.dequeue()
    ((shard, batch),) = lab.send()
    lab.pause("topic")
    lab.arrive(shard, batch)
    assert answers == [[]]
    lab.settle()
    lab.resume("topic")
    assert lab.taken() == [item_id]


def test_leases_end_as_usual() -> None:
    lab = Paused(1)
    (item_id,) = lab.stored()
    assert lab.taken(lease_ms=1_000) == [item_id]
    lab.pause("topic")
    lab.go_on(1_500)
    assert lab.engine.topics[KEY].ready == 1
    assert lab.taken() == []
    lab.resume("topic")
    assert lab.taken() == [item_id]


def test_a_paused_topic_is_not_published() -> None:
    published: list[Any] = []
    lab = Paused(1, callbacks=Callbacks(became_ready=published.append))
    lab.pause("topic")
    lab.stored()
    assert lab.engine.ready(KEY) == 0
    published.clear()
    lab.resume("topic")
    assert published == [KEY]
    assert lab.engine.ready(KEY) == 1


def test_consumers_left_waiting_by_a_resume_are_reported() -> None:
    """Their items may be on another host."""
    left: list[Any] = []
    lab = Paused(1, callbacks=Callbacks(left_waiting=left.append))
    lab.pause("topic")
    lab.dequeue(wait_ms=5_000)
    lab.resume("topic")
    assert left == [KEY]


def test_a_resume_of_very_many_topics_goes_on_in_later_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_TOPICS", 2)
    lab = Paused(1)
    lab.pause("*")
    ids = [lab.stored(key=("ns", f"t{n}"))[0] for n in range(7)]
    answers = [lab.dequeue(wait_ms=5_000, keys=[("ns", f"t{n}")]) for n in range(7)]
    lab.pause("*", paused=False)
    lab.send()
    assert sum(map(len, answers)) == 2
    lab.pause("t5")
    for _ in range(3):
        lab.settle()
    assert answers == [[[ids[n]]] if n != 5 else [] for n in range(7)]


def test_settings_of_another_namespace_pause_nothing() -> None:
    lab = Paused(1)
    ids = lab.stored()
    lab.engine.apply_settings(Settings("other", 1, {"topic.*": '{"paused": true}'}))
    assert lab.taken() == ids
