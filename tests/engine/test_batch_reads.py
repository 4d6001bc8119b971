"""Pages, bodies and look-ups: which of them a batch reads, and how the rows enter memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foqs.buffers.shard_batch import BatchResult, ShardBatch
from foqs.engine import batch_reads
from foqs.engine.batch_reads import BodiesRead, LanesRead, LookRead, PageRead
from foqs.engine.calls import DequeueCall
from foqs.engine.shard_memory import FIRST_PAGE_ROWS
from foqs.engine.shard_owner import RETRY_MS
from foqs.engine.shard_queue import Looks
from foqs.errors import NotFound, NotServed, Overloaded, Unavailable
from foqs.ids import make_id
from foqs.item import Item, Phase
from foqs.prefetch.lane import LaneKey
from foqs.rows import Found
from foqs.store.protocol import StoreBusy
from tests.engine.laboratory import KEY, Laboratory, reads_of


def backlog(items: int, keys: Sequence[LaneKey] = (KEY,), **host: int) -> tuple[Laboratory, list[int]]:
    """Return a laboratory whose shard has that many items in each topic, none in memory, and their ids."""
    lab = Laboratory(1, **host)
    ids: list[int] = []
    for key in keys:
        ids += lab.stored(*(lab.item() for _ in range(items)), key=key)
    lab.reopen()
    return lab, ids


def topics_read(batch: ShardBatch) -> list[LaneKey]:
    together = [page for read in reads_of(batch, LanesRead) for page in read.pages]
    return [page.lane.key for page in (*reads_of(batch, PageRead), *together)]


def rows_read(batch: ShardBatch) -> int:
    """The most rows that the pages of a batch may have."""
    return sum(page.limit for page in reads_of(batch, PageRead)) + sum(
        read.limit for read in reads_of(batch, LanesRead)
    )


# ------------------------------------------------------------------------------------------ order and completeness


def test_pages_deliver_all_items_in_order() -> None:
    lab, ids = backlog(500)
    got: list[int] = []
    while len(got) < len(ids):
        taken = lab.taken(count=60)
        assert taken
        got += taken
    assert got == ids
    assert lab.engine.state.counters.page_rows == len(ids), "each row is read once"


def test_pages_of_a_topic_grow() -> None:
    """The first page is small, for a quick answer; a topic that is drained reads larger ones."""
    lab, _ = backlog(3_000)
    limits = []
    for _ in range(6):
        answers = lab.dequeue(count=500)
        while sent := lab.send():
            ((shard, batch),) = sent
            limits += [page.limit for page in reads_of(batch, PageRead)]
            lab.arrive(shard, batch)
        assert answers
    assert limits == sorted(limits)
    assert limits[0] == FIRST_PAGE_ROWS < limits[-1] <= lab.engine.state.config.host.page_rows


def test_an_item_enqueued_during_a_read_is_not_lost() -> None:
    """It belongs into the page by its priority, but the database did not have it yet."""
    lab, ids = backlog(3)
    answers = lab.dequeue(wait_ms=5_000, count=10)
    ((shard, batch),) = lab.send()
    assert topics_read(batch) == [KEY]
    new = lab.put(lab.item(priority=-5))
    lab.arrive(shard, batch)
    lab.settle()
    assert answers == [ids]
    assert lab.taken() == new


def test_a_page_is_asked_for_once() -> None:
    lab, _ = backlog(3)
    lab.dequeue(wait_ms=5_000)
    shard, batch, again = lab.engine.state.shards[1], ShardBatch(), ShardBatch()
    batch_reads.add_pages(shard, batch, lab.now_ms)
    lab.dequeue(wait_ms=5_000)
    batch_reads.add_pages(shard, again, lab.now_ms)
    assert (topics_read(batch), topics_read(again)) == ([KEY], [])


# ------------------------------------------------------------------------------------------ stale rows


def test_a_page_of_an_older_generation_is_ignored() -> None:
    """The window gave its memory back while the page was in flight; a page that is asked for later has the items."""
    lab, ids = backlog(3)
    answers = lab.dequeue(wait_ms=5_000)
    ((shard, batch),) = lab.send()
    shard.memory.drop_window(shard.memory.lanes[KEY])
    lab.arrive(shard, batch)
    assert not answers
    assert not shard.memory.known
    lab.settle()
    assert answers == [ids]


def test_an_item_leased_in_memory_is_not_read_again() -> None:
    """Its row is still ready, because the lease is not written yet."""
    lab = Laboratory(1, tail_items=0)
    ids = lab.stored(lab.item(priority=1), lab.item(priority=2))
    assert lab.taken(count=1) == ids[:1]
    shard = lab.engine.state.shards[1]
    shard.memory.drop_window(shard.memory.lanes[KEY])
    assert set(lab.dbs[1].ready) == set(ids)
    assert lab.taken() == ids[1:]
    assert lab.taken() == []


def test_rows_leased_in_memory_may_cut_a_read_of_topics() -> None:
    """They count in the database, and not in the number of ready items by which topics are read together."""
    lab = Laboratory(1, page_rows=10, tail_items=0)
    other = ("ns", "other")
    ids, more = lab.stored(*(lab.item() for _ in range(8))), lab.stored(*(lab.item() for _ in range(5)), key=other)
    assert lab.taken(count=6) == ids[:6]
    shard = lab.engine.state.shards[1]
    for lane in list(shard.memory.lanes.values()):
        shard.memory.drop_window(lane)
    got = lab.taken(keys=[KEY, other])
    got += lab.taken(keys=[other])
    got += lab.taken(keys=[other])
    assert got == ids[6:] + more


def test_an_item_being_acked_is_not_read_again() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(priority=1), lab.item(priority=2))
    lab.taken(count=1)
    shard = lab.engine.state.shards[1]
    shard.memory.drop_window(shard.memory.lanes[KEY])
    consumer = lab.dequeue(wait_ms=5_000)
    ((_, batch),) = lab.send()
    acked = lab.ack((ids[0], lab.lease_of(ids[0])))
    lab.arrive(shard, batch)
    lab.settle()
    assert consumer == [ids[1:]]
    assert acked == [None]


# ------------------------------------------------------------------------------------------ bounds


def test_a_batch_reads_a_bounded_number_of_rows() -> None:
    """Commits wait behind the reads of a batch."""
    keys = [("ns", f"topic-{number}") for number in range(10)]
    lab, _ = backlog(20, keys, page_rows=10)
    answers = [lab.dequeue(wait_ms=5_000, keys=[key], count=10) for key in keys]
    batches = 0
    while sent := lab.send():
        ((shard, batch),) = sent
        assert rows_read(batch) <= 4 * 10
        batches += bool(topics_read(batch))
        lab.arrive(shard, batch)
    assert batches >= 3
    assert [len(answer[0]) for answer in answers] == [10] * 10


def test_topics_with_a_waiting_consumer_are_read_first() -> None:
    keys = [("ns", f"topic-{number}") for number in range(10)]
    lab, _ = backlog(20, keys, page_rows=10)

    def reply(items: list[Item], doubtful: list[int]) -> bool:
        pytest.fail("the call was cancelled")

    gone = DequeueCall([(key, 10) for key in keys[:9]], 60_000, 1 << 20, 0, reply)
    lab.engine.dequeue(gone, lab.now_ms, 5_000)
    lab.engine.cancel(gone)
    lab.dequeue(wait_ms=5_000, keys=keys[9:])
    ((_, batch),) = lab.send()
    assert topics_read(batch)[0] == keys[9]


def test_a_window_does_not_grow_beyond_its_bound() -> None:
    lab, ids = backlog(100, window_rows=16)
    got: list[int] = []
    for _ in range(20):
        got += lab.taken(count=5)
        window = lab.engine.state.shards[1].memory.lanes[KEY].window
        assert window is not None
        assert len(window) <= 16
    assert got == ids


def test_one_batch_answers_consumers_of_small_topics() -> None:
    keys = [("ns", f"topic-{number}") for number in range(3)]
    lab, ids = backlog(3, keys)
    answers = [lab.dequeue(wait_ms=5_000, keys=[key]) for key in keys]
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert answers == [[ids[:3]], [ids[3:6]], [ids[6:]]]


# ------------------------------------------------------------------------------------------ bodies


def large(lab: Laboratory, count: int) -> list[int]:
    ids: list[int] = []
    for _ in range(count):
        ids += lab.stored(lab.item(b"x" * 1_500_000))
        lab.now_ms += 1
    lab.reopen()
    return ids


def test_a_page_brings_bodies_within_its_bytes() -> None:
    """Bodies that did not fit are read when their items come first, within the same bytes."""
    lab = Laboratory(1)
    ids = large(lab, 5)
    assert lab.taken() == ids[:1], "a reply has one item at least, whatever its bytes"
    assert lab.engine.state.counters.body_reads == 0
    assert lab.taken() == ids[1:2]
    answers = lab.dequeue()
    ((shard, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, BodiesRead)] == [ids[2:4]]
    lab.arrive(shard, batch)
    assert answers == [ids[2:3]]
    assert [lab.taken(), lab.taken()] == [ids[3:4], ids[4:]]


def test_a_body_is_read_though_memory_is_full() -> None:
    lab = Laboratory(1)
    ids = large(lab, 2)
    lab.engine.state.budget.limit_bytes = 1_000_000
    answers = lab.dequeue(wait_ms=5_000)
    lab.settle()
    assert answers == [ids[:1]]


# ------------------------------------------------------------------------------------------ failures


def test_a_page_that_was_not_read_is_read_again() -> None:
    lab, ids = backlog(3)
    answers = lab.dequeue(wait_ms=5_000)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(error="lock wait"))
    assert not answers
    lab.go_on(100)
    assert answers == [ids]


def test_a_body_that_was_not_read_is_read_again() -> None:
    lab = Laboratory(1)
    ids = large(lab, 3)
    for _ in range(2):
        lab.taken()
    answers = lab.dequeue(wait_ms=5_000)
    ((shard, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, BodiesRead)] == [ids[2:]]
    lab.arrive(shard, batch, BatchResult(error="lock wait"))
    lab.ring(RETRY_MS)
    ((_, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, BodiesRead)] == [ids[2:]]
    lab.arrive(shard, batch)
    assert answers == [ids[2:]]


def test_some_of_the_pages_of_a_batch_may_be_missing() -> None:
    """The database refuses a read behind the first of three topics."""
    keys = [("ns", f"topic-{number}") for number in range(3)]
    lab, _ = backlog(20, keys, page_rows=10)
    answers = [lab.dequeue(wait_ms=5_000, keys=[key]) for key in keys]
    lab.faults[1].reads += [None, None, StoreBusy("lock wait")]  # a page, its bodies, a page
    ((shard, batch),) = lab.send()
    assert topics_read(batch) == keys
    lab.arrive(shard, batch)
    assert [len(answer) for answer in answers] == [1, 0, 0]
    lab.go_on(200)
    assert [len(answer[0]) for answer in answers] == [10, 10, 10]


def test_callers_of_one_item_are_taken_together() -> None:
    looks, seen = Looks(), []

    def look(item: Item | None, found: Found | None, error: Exception | None) -> None:
        seen.append((item, found, error))

    for item_id in (1, 2, 1):
        looks.add(item_id, look)
    assert (list(looks), looks.count) == ([1, 2], 3)
    assert looks.take(1) == [look, look]
    assert (list(looks), looks.count) == ([2], 1)


def test_equal_ids_are_read_once() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.reopen()
    first, second = lab.look(item_id), lab.look(item_id)
    ((shard, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, LookRead)] == [[item_id]]
    lab.arrive(shard, batch)
    for answers in (first, second):
        ((item, found, error),) = answers
        assert (item.id, found.body.payload, error) == (item_id, b"payload", None)
    assert not shard.queue.looks


def test_an_unknown_id_finds_nothing() -> None:
    lab = Laboratory(1)
    here, elsewhere = lab.look(make_id(1, 99)), lab.look(make_id(2, 1))
    lab.settle()
    assert here == [(None, None, None)]
    assert [type(error) for _, _, error in elsewhere] == [NotFound]


def test_a_look_shows_a_lease_that_is_not_written_yet() -> None:
    lab = Laboratory(1)
    lab.stored()
    (item_id,) = lab.taken()
    answers = lab.look(item_id)
    lab.settle()
    ((item, _, _),) = answers
    assert (item.phase, item.lease) == (Phase.LEASED, lab.lease_of(item_id))
    assert not lab.dbs[1].timer


def test_a_look_that_was_not_read_is_read_again() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    answers = lab.look(item_id)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(error="lock wait"))
    assert not answers
    lab.go_on(100)
    ((item, _, _),) = answers
    assert item.id == item_id


def test_looks_count_as_work_that_waits() -> None:
    lab = Laboratory(1, pending_rows=2)
    (item_id,) = lab.stored()
    for _ in range(2):
        assert not lab.look(item_id)
    ((item, body, error),) = lab.look(item_id)
    assert (item, body) == (None, None)
    assert isinstance(error, Overloaded)


def test_a_look_ends_with_its_shard() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    waiting = lab.look(item_id)
    lab.send()
    shard = lab.engine.state.shards[1]
    lab.engine.lose(shard, lab.now_ms)
    ((_, _, error),) = waiting
    assert isinstance(error, NotServed)
    ((_, _, error),) = lab.look(item_id)
    assert isinstance(error, NotServed)


def test_a_look_that_takes_too_long_is_answered_once() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    answers = lab.look(item_id)
    ((shard, batch),) = lab.send()
    lab.ring(5_001)
    ((_, _, error),) = answers
    assert isinstance(error, Unavailable)
    lab.arrive(shard, batch)
    assert len(answers) == 1
