"""Look-ups of items by id: read once for equal ids, answered once each, also when the shard does not answer."""

from __future__ import annotations

from foqs.buffers.shard_batch import BatchResult
from foqs.engine.batch_reads import LookRead
from foqs.engine.shard import Looks
from foqs.errors import NotFound, NotServed, Overloaded, Unavailable
from foqs.ids import make_id
from foqs.item import Item, Phase
from foqs.rows import Found
from tests.engine.laboratory import Laboratory, reads_of


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
    assert not shard.looks


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
    shard = lab.engine.shards[1]
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
