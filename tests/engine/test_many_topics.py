"""Dequeues that name many topics: their cost, and that they find all ready items."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.engine import consumers, enqueue, item_ops
from foqs.engine.batch_reads import LanesRead, PageRead
from foqs.engine.calls import DequeueCall, EnqueueCall, ItemsCall
from foqs.engine.state import Callbacks
from foqs.errors import OutcomeUnknown, Overloaded, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.ids import shard_of
from foqs.item import Item
from foqs.rows import NewItem
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import Laboratory, merges, reads_of

FULL = "has 100 lanes (topics, fairness keys and sets of throttle keys), the most that host.lanes allows"
TOPICS: list[TopicKey] = [("ns", f"topic-{number:03}") for number in range(500)]


def fill(lab: Laboratory, keys: list[TopicKey]) -> None:
    for key in keys:
        item = NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1)
        lab.engine.enqueue(EnqueueCall(1, lambda outcomes: None), [0], [item], [key], [1], lab.now_ms, 5_000)
    lab.settle()


def reopen(lab: Laboratory) -> None:
    """The shards' items stay, nothing of them is in memory."""
    for number, shard in lab.engine.state.shards.items():
        lab.engine.drained(shard, lab.now_ms)
        lab.stores[number].close(clean=True)
        shard.owner.to(ShardState.ASSIGNED)
        lab.open(number)
    lab.settle()


def dequeue(lab: Laboratory, keys: list[TopicKey], wait_ms: int) -> list[list[int]]:
    answers: list[list[int]] = []

    def reply(items: list[Item], doubtful: list[int]) -> bool:
        answers.append([item.id for item in items])
        return True

    lab.engine.dequeue(DequeueCall([(key, 10) for key in keys], 60_000, 1 << 20, 0, reply), lab.now_ms, wait_ms)
    return answers


def test_small_first_pages_are_read_together() -> None:
    lab = Laboratory(1)
    fill(lab, TOPICS)
    reopen(lab)
    answers = dequeue(lab, TOPICS, 0)
    ((shard, batch),) = lab.send()
    assert not reads_of(batch, PageRead)
    assert [len(read.pages) for read in reads_of(batch, LanesRead)] == [len(TOPICS)]
    lab.arrive(shard, batch)
    lab.settle()
    assert [len(found) for found in answers] == [len(TOPICS)]


@pytest.mark.parametrize(
    ("leased", "windows", "left"),
    [
        (0, [(4, False), (3, False), (2, False)], []),
        (2, [(2, False), (3, False), (1, True)], []),
        (3, [(1, False), (3, True), (0, True)], [2]),
    ],
)
def test_lanes_read_together_may_have_leased_rows(
    leased: int, windows: list[tuple[int, bool]], left: list[int]
) -> None:
    """An item that is leased in memory counts in the database, and not among the ready items of its lane."""
    lab = Laboratory(1, tail_items=0)
    shard = lab.engine.state.shards[1]
    topics = TOPICS[:3]
    fill(lab, [topics[0]] * 4 + [topics[1]] * 3 + [topics[2]] * 2)
    lanes = [shard.memory.lanes[key] for key in topics]
    call = DequeueCall([(topics[0], leased)], 60_000, 1 << 20, 0, lambda items, doubtful: True)
    lab.engine.dequeue(call, lab.now_ms, 0)
    for lane in lanes:
        shard.memory.drop_window(lane)
        shard.memory.open_window(lane)
        shard.queue.pages_wanted[lane] = None
    lab.engine.state.touch(shard)
    shard.configure(shard.config.model_copy(update={"page_rows": sum(lane.ready for lane in lanes)}))
    ((_, batch),) = lab.send()
    assert [len(read.pages) for read in reads_of(batch, LanesRead)] == [3]
    lab.arrive(shard, batch)
    assert [(len(lane.window), lane.window.more) for lane in lanes if lane.window is not None] == windows
    assert list(shard.queue.pages_wanted) == [lanes[at] for at in left]


@pytest.mark.parametrize(("limit", "whole"), [(7, 3), (6, 2), (3, 1), (2, 0)])
def test_windows_that_gave_back_memory_are_read_together(limit: int, whole: int) -> None:
    """Each knows its first item. A result that is cut within a lane does not end before what its window knows."""
    lab = Laboratory(1, tail_items=0)
    shard = lab.engine.state.shards[1]
    topics = TOPICS[:3]
    fill(lab, [key for key in topics for _ in range(2)])
    lanes = [shard.memory.lanes[key] for key in topics]
    for lane in lanes:
        assert lane.window is not None
        shard.memory.cut_window(lane.window, 1)
        shard.queue.pages_wanted[lane] = None
    lab.engine.state.touch(shard)
    ((_, batch),) = lab.send()
    assert not reads_of(batch, PageRead)
    (read,) = reads_of(batch, LanesRead)
    assert [page.lane for page in read.pages] == lanes
    read.limit = limit
    lab.arrive(shard, batch)
    windows = [lane.window for lane in lanes if lane.window is not None]
    assert [(len(window), window.more) for window in windows] == [(2, False)] * whole + [(1, True)] * (3 - whole)
    lab.settle()
    assert [(len(window), window.more) for window in windows] == [(2, False)] * 3


def test_a_later_dequeue_keeps_the_page_that_was_asked_for() -> None:
    """Dequeues that come more often than pages would otherwise each discard the page of the one before."""
    lab = Laboratory(1)
    fill(lab, TOPICS[:1])
    reopen(lab)
    answers = dequeue(lab, TOPICS[:1], 0)
    ((shard, batch),) = lab.send()
    dequeue(lab, TOPICS[:1], 0)
    lab.arrive(shard, batch)
    assert [len(found) for found in answers] == [1]


def test_a_wake_tries_only_the_topics_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty consumers name all topics. One enqueue must not make the host look at all of them again."""
    lab = Laboratory(1)
    answers = [dequeue(lab, TOPICS, 60_000) for _ in range(20)]
    tried = merges(monkeypatch)
    fill(lab, [TOPICS[7]])
    assert [len(got) for got in answers] == [1] + [0] * 19
    assert len(tried) <= 3


def test_stalled_topics_are_tried_when_the_shard_may_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(1)
    shard = lab.engine.state.shards[1]
    answers = dequeue(lab, TOPICS[:20], 60_000)
    shard.owner.grace_from_ms = lab.now_ms
    tried = merges(monkeypatch)
    fill(lab, TOPICS[:20])
    assert not tried
    assert list(shard.memory.stalled) == TOPICS[:20]
    lab.go_on(shard.config.confirm_ms + 100)
    assert [len(found) for found in answers] == [20]
    assert len(tried) == 20


def test_a_page_wakes_each_of_its_topics_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a page of 500 topics is 500 topics for the consumers that wait for them, and not 500 for each."""
    lab = Laboratory(1, 2)
    fill(lab, TOPICS)
    reopen(lab)
    answers = dequeue(lab, TOPICS, 60_000)
    tried = merges(monkeypatch)
    lab.settle()
    assert len(answers) == 1
    assert len(tried) <= 2 * len(TOPICS)


def test_first_come_first_served_by_topic() -> None:
    """A consumer of many topics does not take the items of a topic that another one has waited longer for."""
    lab = Laboratory(1)
    only = dequeue(lab, [TOPICS[1]], 60_000)
    many = dequeue(lab, TOPICS[:2], 60_000)
    keys = [TOPICS[0], TOPICS[1]]
    items = [NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1) for _ in keys]
    lab.engine.enqueue(EnqueueCall(2, lambda outcomes: None), [0, 1], items, keys, [1, 1], lab.now_ms, 5_000)
    lab.settle()
    assert [len(got) for got in (*many, *only)] == [1, 1]


def test_all_topics_are_drained_when_memory_is_full() -> None:
    """Slices of the topics one after another, without waiting, in a budget that holds few of their items."""
    lab = Laboratory(1, 2)
    fill(lab, TOPICS)
    lab.engine.state.budget.limit_bytes = 40_000
    reopen(lab)
    found: set[int] = set()
    for _ in range(20):
        for at in range(0, len(TOPICS), 100):
            answers = dequeue(lab, TOPICS[at : at + 100], 0)
            lab.settle()
            lab.now_ms += 60
            lab.engine.tick(lab.now_ms)
            lab.settle()
            (got,) = answers
            found.update(got)
            ack(lab, got)
        if len(found) == len(TOPICS):
            return
    pytest.fail(f"only {len(found)} of {len(TOPICS)} items came")


def ack(lab: Laboratory, ids: list[int]) -> None:
    call = ItemsCall(len(ids), lambda outcomes: None)
    leases = [lab.engine.state.shards[shard_of(item_id)].memory.known[item_id].lease for item_id in ids]
    asked = [(item_id, item_ops.ack(lease)) for item_id, lease in zip(ids, leases, strict=True)]
    if asked:
        lab.engine.settle(call, asked, None, lab.now_ms, 5_000)
        lab.settle()


def crowded(*numbers: int) -> Laboratory:
    """Shards that may have 100 topics each."""
    lab = Laboratory(*numbers)
    for shard in lab.engine.state.shards.values():
        shard.configure(shard.config.model_copy(update={"lanes": 100}))
    return lab


def test_empty_topics_make_room_for_new_ones() -> None:
    """Long before `lane_idle_ms` is over."""
    lab = crowded(1)
    fill(lab, TOPICS[:100])
    (items,) = dequeue(lab, TOPICS[:100], 0)
    assert len(items) == 100
    held = [(item_id, lab.engine.state.shards[1].memory.known[item_id].lease) for item_id in items]
    lab.engine.settle(
        ItemsCall(100, lambda outcomes: None),
        [(item_id, item_ops.ack(lease)) for item_id, lease in held],
        None, lab.now_ms, 5_000,
    )  # fmt: skip
    lab.settle()
    assert len(lab.dbs[1].lanes) <= 90
    lab.engine.tick(lab.now_ms)
    lab.settle()
    fill(lab, TOPICS[200:210])
    assert len(lab.dbs[1].items) == 10


def test_a_topic_too_many_is_refused_in_words() -> None:
    lab = crowded(1, 2)
    for _ in range(8):  # until each shard has all of them
        fill(lab, TOPICS[:100])
    outcomes: list[Any] = []
    item = NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1)
    lab.engine.enqueue(EnqueueCall(1, outcomes.extend), [0], [item], [TOPICS[200]], [1], lab.now_ms, 5_000)
    (refused,) = outcomes
    assert str(refused) == f"each shard of the host {FULL}"
    assert refused.retry_after_ms == enqueue.RETRY_MS


def enqueue_all(lab: Laboratory, keys: list[TopicKey]) -> tuple[EnqueueCall, list[Any]]:
    """Give an enqueue of an item for each of `keys`. The outcomes come later."""
    outcomes: list[Any] = []
    call = EnqueueCall(len(keys), outcomes.extend)
    items = [NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1) for _ in keys]
    lab.engine.enqueue(call, range(len(keys)), items, keys, [1] * len(keys), lab.now_ms, 5_000)
    return call, outcomes


def test_a_topic_too_many_fails_no_other_item_of_its_request() -> None:
    """Each shard has topics that the other one does not have."""
    lab = crowded(1, 2)
    for number, topics in ((1, TOPICS[:100]), (2, TOPICS[100:200])):
        lab.engine.state.serving = [lab.engine.state.shards[number]]
        fill(lab, topics)
    lab.engine.state.serving = list(lab.engine.state.shards.values())
    _, outcomes = enqueue_all(lab, [TOPICS[1], TOPICS[300], TOPICS[101], TOPICS[301], TOPICS[2]])
    lab.settle()
    assert [isinstance(one, int) and shard_of(one) for one in outcomes] == [1, False, 2, False, 1]
    assert {str(one) for one in outcomes[1::2]} == {f"each shard of the host {FULL}"}


def test_items_beside_a_topic_too_many_time_out_by_themselves() -> None:
    lab = crowded(1)
    fill(lab, TOPICS[:100])
    call, outcomes = enqueue_all(lab, [TOPICS[1], TOPICS[300]])
    ((shard, batch),) = lab.send()
    call.timed_out(lab.engine.state.shards)
    assert [type(one) for one in outcomes] == [OutcomeUnknown, Overloaded]
    lab.arrive(shard, batch)
    late, outcomes = enqueue_all(lab, [TOPICS[1], TOPICS[300]])
    late.timed_out(lab.engine.state.shards)
    assert [type(one) for one in outcomes] == [Unavailable, Overloaded]


def test_a_topic_too_many_with_a_key_is_refused_in_words() -> None:
    lab = crowded(1)
    fill(lab, TOPICS[:100])
    (refused,) = lab.enqueue_keyed("a")  # its topic is not among the first 100
    assert str(refused) == f"the shard of the key {FULL}"
    assert refused.retry_after_ms == enqueue.RETRY_MS


def test_topics_are_woken_a_slice_at_a_time() -> None:
    """A shard that opens may wake every topic of the host."""
    reported: list[TopicKey] = []
    lab = Laboratory(1, callbacks=Callbacks(became_ready=reported.append))
    shard = lab.engine.state.shards[1]
    keys = [("ns", f"topic-{number:05}") for number in range(2 * consumers._TOPICS + 1)]
    shard.memory.woken = dict.fromkeys(keys)
    lab.engine.state.touch(shard)
    slices = [0]
    while len(reported) < len(keys):
        lab.engine.pump(lab.now_ms)
        slices.append(len(reported))
    assert slices == [0, consumers._TOPICS, 2 * consumers._TOPICS, len(keys)]
    assert reported == keys


def test_a_shard_that_recovers_wakes_a_slice_of_the_topics() -> None:
    reported: list[TopicKey] = []
    lab = Laboratory(1, callbacks=Callbacks(became_ready=reported.append))
    shard = lab.engine.state.shards[1]
    keys = [("ns", f"topic-{number:05}") for number in range(3 * consumers._TOPICS)]
    dequeue(lab, keys, 60_000)
    consumers.wake_all(lab.engine.state, shard)
    assert len(shard.memory.woken) == consumers._TOPICS
    for _ in range(3):
        lab.engine.pump(lab.now_ms)
        assert len(shard.memory.woken) <= consumers._TOPICS
    assert reported == keys


def test_topics_whose_merge_waited_go_on_a_slice_at_a_time() -> None:
    lab = Laboratory(1)
    keys = [("ns", f"topic-{number:05}") for number in range(2 * consumers._TOPICS)]
    lab.engine.state.held_up = dict.fromkeys(keys, lab.now_ms)
    lab.engine.tick(lab.now_ms)
    assert len(lab.engine.state.held_up) == consumers._TOPICS
    assert lab.engine.next_ms(lab.now_ms) <= lab.now_ms
    lab.engine.tick(lab.now_ms)
    assert not lab.engine.state.held_up
