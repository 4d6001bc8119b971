"""Consumers that wait: the order in which they are served, how each wait ends, and what a pause changes."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.buffers.shard_batch import BatchResult
from foqs.engine import consumers, item_ops
from foqs.engine.calls import DequeueCall
from foqs.engine.state import Callbacks
from foqs.item import Item
from foqs.policies.settings import Settings
from foqs.prefetch.lane import LaneKey
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory, merges

OTHER: LaneKey = ("ns", "other")


def two_shards() -> tuple[Laboratory, int, int]:
    """Return a laboratory with an item on each of two shards, nothing of them in memory, and their ids.

    The item of shard 2 is the first of the topic.
    """
    lab = Laboratory(1, 2)
    lab.engine.state.shards[1].owner.takes_new = False
    (first,) = lab.stored(lab.item(priority=1))
    lab.engine.state.shards[1].owner.takes_new, lab.engine.state.shards[2].owner.takes_new = True, False
    (second,) = lab.stored(lab.item(priority=2))
    lab.reopen()
    return lab, second, first


def test_the_consumer_that_waits_longest_is_served_first() -> None:
    lab = Laboratory(1)
    waiting = [lab.dequeue(wait_ms=5_000, count=1) for _ in range(3)]
    ids = lab.stored(lab.item(priority=1), lab.item(priority=2))
    assert waiting == [[[ids[0]]], [[ids[1]]], []]
    ids += lab.stored()
    assert waiting[2] == [[ids[2]]]


def test_consumers_that_wait_for_one_topic_share_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(1, 2)
    lab.engine.state.shards[1].owner.takes_new = False
    waiting = [lab.dequeue(wait_ms=5_000, count=2) for _ in range(50)]
    made = merges(monkeypatch)
    ids = lab.stored(*[lab.item(priority=n // 2) for n in range(80)])
    assert waiting[:40] == [[ids[2 * n : 2 * n + 2]] for n in range(40)]
    assert waiting[40:] == [[]] * 10
    assert len(made) == 1, "one for all; for the next consumer the topic is empty"


def test_a_consumer_of_several_topics_keeps_its_place() -> None:
    lab = Laboratory(1)
    waiting = [lab.dequeue(wait_ms=5_000, count=1) for _ in range(2)]
    waiting.append(lab.dequeue(wait_ms=5_000, count=1, keys=[OTHER, KEY]))
    waiting += [lab.dequeue(wait_ms=5_000, count=1) for _ in range(2)]
    ids = lab.stored(*[lab.item(priority=n) for n in range(4)])
    assert waiting == [[[ids[0]]], [[ids[1]]], [[ids[2]]], [[ids[3]]], []]
    assert [len(calls) for calls in lab.engine.state.waiting.values()] == [1]


def test_each_consumer_of_a_merge_has_its_own_bound() -> None:
    lab = Laboratory(1)
    got: list[list[int]] = []

    def reply(items: list[Item], doubtful: list[int]) -> bool:
        got.append([item.id for item in items])
        return True

    for most_bytes in (1, 1 << 20, 250):
        lab.engine.dequeue(DequeueCall([(KEY, 3)], 60_000, most_bytes, 0, reply), lab.now_ms, 5_000)
    ids = lab.stored(*[lab.item(b"x" * 100, priority=n) for n in range(6)])
    assert got == [ids[:1], ids[1:4], ids[4:6]]


def test_an_item_that_its_consumer_did_not_get_goes_to_the_next() -> None:
    """The consumers share a merge, and the connection of the first was closed when its reply was sent."""
    lab = Laboratory(1)
    gone = lab.dequeue(wait_ms=5_000, count=1, delivers=lambda: False)
    waiting = [lab.dequeue(wait_ms=5_000, count=1) for _ in range(2)]
    first, second = lab.stored(lab.item(priority=1), lab.item(priority=2))
    assert gone == [[first]]
    assert waiting == [[[second]], [[first]]]


def test_consumers_of_at_most_once_items_share_a_merge() -> None:
    lab = Laboratory(1)
    waiting = [lab.dequeue(wait_ms=5_000, count=1) for _ in range(2)]
    lab.put(lab.item(priority=1, delivery=AT_MOST_ONCE), lab.item(priority=2))
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert [len(answers) for answers in waiting] == [0, 1], "the lease of the first is not committed"
    lab.settle()
    assert [len(answers) for answers in waiting] == [1, 1]


def test_a_wait_ends_with_one_empty_reply() -> None:
    lab = Laboratory(1)
    consumer = lab.dequeue(wait_ms=500)
    lab.go_on(499)
    assert not consumer
    lab.go_on(1)
    assert consumer == [[]]
    ids = lab.stored()
    assert consumer == [[]]
    assert lab.taken() == ids
    assert not lab.engine.state.waiting


def test_a_dequeue_that_may_not_wait_is_answered_at_once() -> None:
    assert Laboratory(1).dequeue() == [[]]


def test_a_consumer_of_two_topics_gets_the_one_that_fills() -> None:
    lab = Laboratory(1)
    consumer = lab.dequeue(wait_ms=5_000, keys=[KEY, OTHER])
    ids = lab.stored(key=OTHER)
    assert consumer == [ids]
    lab.stored()
    assert consumer == [ids]
    assert not lab.engine.state.waiting


def test_a_cancelled_consumer_leaves_its_place() -> None:
    lab = Laboratory(1)

    def reply(items: list[Item], doubtful: list[int]) -> bool:
        pytest.fail("its connection is closed")

    gone = DequeueCall([(KEY, 10)], 60_000, 1 << 20, 0, reply)
    lab.engine.dequeue(gone, lab.now_ms, 5_000)
    waiting = lab.dequeue(wait_ms=5_000)
    lab.engine.cancel(gone)
    ids = lab.stored()
    assert waiting == [ids]
    lab.go_on(6_000)


def test_a_reply_that_is_lost_serves_the_next_consumer() -> None:
    lab = Laboratory(1)
    lost = lab.dequeue(wait_ms=5_000, delivers=lambda: False)
    waiting = lab.dequeue(wait_ms=5_000)
    ids = lab.stored()
    assert lost == [ids]
    assert waiting == [ids]


def test_a_drain_answers_all_that_wait() -> None:
    lab = Laboratory(1)
    waiting = [lab.dequeue(wait_ms=5_000, keys=keys) for keys in ([KEY], [KEY, OTHER])]
    lab.engine.drain(lab.now_ms)
    assert waiting == [[[]], [[]]]
    assert not lab.engine.state.waiting


def test_topics_beyond_a_slice_are_served_in_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long turn of the event loop would delay commits and confirmations of ownership."""
    monkeypatch.setattr(consumers, "_TOPICS", 2)
    woken: list[None] = []
    lab = Laboratory(1, callbacks=Callbacks(wake=lambda: woken.append(None)))
    keys = [("ns", f"topic-{number}") for number in range(5)]
    waiting = [lab.dequeue(wait_ms=5_000, keys=[key]) for key in keys]
    for key in keys:
        lab.put(lab.item(), key=key)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    served = [sum(len(answers) for answers in waiting)]
    for another_turn in (True, False):
        woken.clear()
        lab.send()
        assert bool(woken) is another_turn
        served.append(sum(len(answers) for answers in waiting))
    assert served == [2, 4, 5]


# ------------------------------------------------------------------------------------------ items not in memory


def test_a_ready_item_is_waited_for_by_a_call_that_cannot_wait() -> None:
    """Ready items that are only in the database arrive with the next page."""
    lab = Laboratory(1)
    ids = lab.stored()
    lab.reopen()
    assert lab.engine.ready(KEY) == 1
    answers = lab.dequeue()
    assert not answers
    lab.settle()
    assert answers == [ids]
    assert lab.engine.state.counters.window_misses == 1


def test_the_extra_wait_ends_when_the_items_are_gone() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.reopen()
    deleted = lab.operate(item_id, item_ops.delete)
    ((shard, batch),) = lab.send()  # the look-up of the item, before any page
    answers = lab.dequeue()
    lab.arrive(shard, batch)
    lab.settle()
    assert deleted == [None]
    lab.ring(0)
    assert answers == [[]]


def test_the_extra_wait_lasts_while_any_of_the_topics_has_items() -> None:
    lab = Laboratory(1)
    lab.dequeue(keys=[("ns", "other")], wait_ms=60_000)
    keys = [("ns", "one"), ("ns", "two")]
    call = DequeueCall([(key, 1) for key in keys], 1_000, 1 << 20, 0, lambda *_: True)
    lab.engine.state.staying[call] = lab.now_ms

    def delete(item_id: int) -> bool:
        lab.operate(item_id, item_ops.delete)
        lab.settle()
        return call in lab.engine.state.staying

    (one,), (two,) = (lab.stored(lab.item(), key=key) for key in keys)
    assert delete(one), "the second topic has an item"
    (new,) = lab.stored(lab.item(), key=keys[0])
    assert delete(two), "the first topic has one again"
    assert not delete(new)


def test_a_merge_waits_for_a_late_shard_and_then_goes_on() -> None:
    lab, second, first = two_shards()
    answers = lab.dequeue()
    flights = dict(lab.send())
    one, two = lab.engine.state.shards[1], lab.engine.state.shards[2]
    lab.arrive(one, flights[one])
    lab.ring(lab.engine.state.config.host.merge_wait_ms - 1)
    assert not answers
    lab.ring(1)
    assert answers == [[second]]
    lab.arrive(two, flights[two])
    assert lab.taken() == [first]


def test_a_merge_is_in_order_when_all_shards_answer() -> None:
    lab, second, first = two_shards()
    answers = lab.dequeue()
    lab.settle()
    assert answers == [[first, second]]


def test_a_failed_shard_delays_a_merge_as_a_late_one_does() -> None:
    lab, second, _ = two_shards()
    answers = lab.dequeue()
    flights = dict(lab.send())
    one, two = lab.engine.state.shards[1], lab.engine.state.shards[2]
    lab.arrive(one, flights[one])
    assert not answers
    lab.arrive(two, flights[two], BatchResult(down=True, error="gone"))
    lab.ring(lab.engine.state.config.host.merge_wait_ms)
    assert answers == [[second]]


OTHER_TOPIC = ("ns", "other")


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
    others = lab.stored(key=OTHER_TOPIC)
    lab.pause("topic")
    assert lab.taken(keys=[KEY, OTHER_TOPIC]) == others


def test_a_closer_entry_resumes_a_topic_of_a_prefix() -> None:
    lab = Paused(1)
    ids = lab.stored()
    lab.stored(key=OTHER_TOPIC)
    lab.pause("*")
    lab.resume("topic")
    assert lab.taken(keys=[OTHER_TOPIC, KEY]) == ids


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
    assert lab.engine.state.topics[KEY].ready == 1
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
    monkeypatch.setattr(consumers, "_SLICE", 2)
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
