"""The driver's part of a consuming stream when leases end before their acks: an item has one batch of its query."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.spark import consume_driver
from foqs.spark.consume_driver import Consumer
from foqs.spark.consume_state import Again, again_text, read_again
from tests.spark.test_consume_driver import Begin, Service, begin, ids, service
from tests.support.waiting import wait_until as until

__all__ = ["begin", "service"]
LONG = {"leaseMs": "3600000"}


def acks_last(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ack waits until a dequeue has leased all ready items, as an ack to a slow shard does."""
    ack_many, dequeue = service.ack_many, service.dequeue
    leased = Event()

    def later(items: Any) -> Any:
        leased.wait(0.2)
        return ack_many(items)

    def dequeued(*given: Any, **named: Any) -> Any:
        items = dequeue(*given, **named)
        leased.set()
        return items

    monkeypatch.setattr(service, "ack_many", later)
    monkeypatch.setattr(service, "dequeue", dequeued)


def drained(consumer: Consumer, start: int, most: int = 100) -> dict[int, list[int]]:
    """Run as Spark until no items are left. Return the ids of each batch."""
    batches = {}
    while (end := consumer.latest(start, most)) > start:
        batches[end] = ids(consumer.batch(start, end))
        start = end
    return batches


def test_a_batch_whose_leases_ended_has_its_items_alone(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink has the batch, and the driver starts again when the leases are over: the ack and the next lease race."""
    filled = service.fill(5)
    begin(**LONG).latest(0, 10)
    service.end_leases()
    more = service.fill(2)
    acks_last(service, monkeypatch)
    after = begin(**LONG)
    assert ids(after.batch(0, 1)) == filled
    assert drained(after, 1) == {2: more}
    assert sorted(service.acked) == filled + more
    assert service.ready == []


def test_an_ack_in_time_saves_a_delivery(service: Service, begin: Begin) -> None:
    """The driver acks what reached the sink before it leases: such an item has no second attempt."""
    filled = service.fill(3)
    begin(**LONG).latest(0, 10)
    service.end_leases()
    attempts = {item.id: item.attempt for item in service.ready}
    after = begin(**LONG)
    assert after.latest(1, 10) == 1
    assert (sorted(service.acked), after.counts.again) == (filled, 0)
    assert set(attempts.values()) == {1}


def test_a_planned_batch_keeps_items_that_come_again(service: Service, begin: Begin) -> None:
    """Two batches were leased, the second ahead, and no lease lives when the driver starts again."""
    filled = service.fill(6)
    before = begin(**LONG)
    before.latest(0, 3)
    rows = before.batch(0, 1)
    until((before._folder.path / "2.batch").exists)
    before.close()
    service.end_leases()
    service.fill(3)
    after = begin(**LONG)
    assert after.batch(0, 1).equals(rows)
    after._full = 1  # as if more had been leased ahead
    assert after.latest(1, 3) == 2
    assert ids(after.batch(1, 2)) == filled[3:]
    assert drained(after, 2, 3) == {3: [7, 8, 9]}
    assert sorted(service.acked) == list(range(1, 10))


def test_the_newest_lease_is_extended_and_survives_a_restart(service: Service, begin: Begin) -> None:
    """A host died before it wrote the leases, so the running batch came again: with other items, in one answer."""
    filled = service.fill(2)
    consumer = begin(**LONG)
    assert consumer.latest(0, 10) == 1
    rows = consumer.batch(0, 1)
    service.end_leases()
    more = service.fill(1)
    assert consumer._lease(2).held[0].id == more[0]  # type: ignore[union-attr]
    assert consumer.counts.again == 2
    service.extended.clear()
    after = begin(**LONG)
    assert after.batch(0, 1).equals(rows)
    until(lambda: set(filled) <= set(service.extended))
    assert drained(after, 1) == {2: more}
    assert (after.counts.stale, sorted(service.acked)) == (0, filled + more)


def test_a_delivered_item_that_comes_again_is_acked(service: Service, begin: Begin) -> None:
    """The driver died between the lease and its record: the batch's acks are stale, and the items come later."""
    filled = service.fill(3)
    begin(**LONG).latest(0, 10)
    service.end_leases()
    service.dequeue({"t": 10}, lease_ms=1)  # a driver that died before it wrote them down
    after = begin(**LONG)
    assert drained(after, 1) == {}
    assert (after.counts.stale, service.acked) == (3, [])
    assert drained(after, 1) == {}
    assert drained(begin(**LONG), 1) == {}
    service.end_leases()
    more = service.fill(1)
    again = begin(**LONG)
    assert drained(again, 1) == {2: more}
    assert (again.counts.again, sorted(service.acked)) == (3, filled + more)
    assert begin(**LONG)._folder.again.leases == {}
    assert service.leased == {}


def test_items_that_all_came_again_do_not_end_a_run(service: Service, begin: Begin) -> None:
    filled = service.fill(4)
    begin(**LONG).latest(0, 10)
    service.end_leases()
    service.dequeue({"t": 10}, lease_ms=1)
    consumer = begin(**LONG)
    drained(consumer, 1)
    service.end_leases()
    more = service.fill(2)
    run = begin(**LONG, connections="1")
    run.only_what_is_there()
    assert drained(run, 1, 4) == {2: more}
    assert sorted(service.acked) == filled + more


def test_items_given_back_are_not_taken_for_delivered(service: Service, begin: Begin) -> None:
    """An item of a batch came again, and the batch was given back before its delivery: the next run delivers it."""
    old = service.fill(1)
    run = begin(**LONG)
    run.only_what_is_there()
    assert run.latest(0, 1) == 1
    run.batch(0, 1)
    service.now_ms += 10
    (new,) = service.fill(1)
    leased = run._leased_ahead()
    assert leased is not None
    run._folder.again.note(new, 5)
    run._held[2] = {one.id: one for one in leased.held}
    run._folder.add(2)
    run._give_back(leased)
    assert drained(begin(**LONG), 1) == {2: [new]}
    assert sorted(service.acked) == [*old, new]


def test_a_delivered_item_is_forgotten_when_it_is_gone(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_driver, "_ASK_AGAIN_S", 0.0)
    filled = service.fill(2)
    begin(**LONG).latest(0, 10)
    service.lose()
    consumer = begin(**LONG)
    drained(consumer, 1)
    assert sorted(consumer._folder.again.leases) == filled
    del service.leased[filled[0]]

    def forgotten() -> bool:
        drained(consumer, 1)
        return sorted(consumer._folder.again.leases) == filled[1:]

    until(forgotten)
    reader = begin(**LONG)
    reader.first()
    assert sorted(reader._folder.again.leases) == filled[1:]


def test_more_delivered_items_than_a_query_remembers_are_logged(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(consume_driver, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(consume_driver, "MOST_DELIVERED", 1)
    filled = service.fill(3)
    begin(**LONG).latest(0, 10)
    service.lose()
    consumer = begin(**LONG)
    with caplog.at_level(logging.WARNING, "foqs.spark"):
        drained(consumer, 1)
        drained(consumer, 1)
    assert sorted(consumer._folder.again.leases) == filled[2:]
    assert "2 delivered items were not acked" in caplog.text


def test_a_refused_ack_is_repeated_with_a_newer_lease(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item comes again while its ack is in flight."""
    filled = service.fill(2)
    consumer = begin(**LONG)
    consumer.latest(0, 10)
    consumer.batch(0, 1)
    ack_many = service.ack_many
    came: list[bool] = []

    def late(items: Any) -> Any:
        if not came:
            came.append(True)
            service.end_leases()
            more = consumer._leaser.take(10, 0)
            consumer._new_ones(more.items)
        return ack_many(items)

    monkeypatch.setattr(service, "ack_many", late)
    assert drained(consumer, 1) == {}
    assert sorted(service.acked) == filled
    assert consumer._folder.again.leases == {}


def test_an_item_that_comes_twice_in_one_answer_is_one_row(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host died between two answers to the requests for a batch."""
    filled = service.fill(2)
    dequeue = service.dequeue

    def twice(wants: dict[str, int], **options: Any) -> Any:
        first = dequeue(wants, **options)
        service.end_leases()
        return first + dequeue(wants, **options)

    with monkeypatch.context() as patched:
        patched.setattr(service, "dequeue", twice)
        consumer = begin(**LONG, connections="1")
        assert consumer.latest(0, 2) == 1
    assert ids(consumer.batch(0, 1)) == filled
    assert drained(consumer, 1) == {}
    assert (sorted(service.acked), consumer.counts.stale) == (filled, 0)


def test_the_file_of_items_that_came_again(tmp_path: Path) -> None:
    again = Again()
    assert read_again(again_text(again)).leases == {}
    again.note(1, -(1 << 63))
    again.note(2, (1 << 63) - 1)
    again.note(1, 7)
    assert list(read_again(again_text(again)).leases.items()) == [(2, (1 << 63) - 1), (1, 7)]
    assert 2 in again and 3 not in again
    assert again.drop_beyond(1, {2}) == 1
    assert list(again.leases) == [2]
    for wrong, says in ((b"x", "damaged"), (again_text(again)[:-1], "damaged")):
        with pytest.raises(Invalid, match=says):
            read_again(wrong)


class Killed(BaseException):
    """The end of the driver's process."""


@pytest.mark.parametrize("seed", range(60))
def test_kills_and_ended_leases_deliver_each_item_once(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """A simulation: the driver is killed at any of its steps, and restarts take longer than the leases. Leases end
    while it lives, too. The sink identifies batches by their numbers, and no other consumer is there."""
    chance = random.Random(seed)
    filled = service.fill(30)
    sink: dict[int, list[int]] = {}
    planned, finished = [0], [0]
    steps_left = 0
    killing = True

    def killable(call: Any) -> Any:
        def step(*given: Any, **named: Any) -> Any:
            nonlocal steps_left
            for after in (False, True):
                with service._lock:
                    steps_left -= 1
                    dead = killing and steps_left < 0
                if dead:
                    raise Killed
                if not after:
                    made = call(*given, **named)
            return made

        return step

    def run() -> None:
        """What Spark does: it repeats the batch that it had planned, then takes the next ones."""
        consumer = begin(connections="2", **LONG)
        start = finished[-1]
        while True:
            if planned[-1] == start:
                end = consumer.latest(start, 4)
                if end == start:
                    return
                planned.append(end)
            rows = ids(consumer.batch(start, planned[-1]))
            assert sink.setdefault(planned[-1], rows) == rows, "a repeated batch has the same rows"
            start = planned[-1]
            if killing and chance.random() < 0.2:
                raise Killed  # before Spark commits the batch
            finished.append(start)
            if killing and chance.random() < 0.3:
                with service._lock:
                    some = chance.sample(sorted(service.leased), len(service.leased) // 2)
                service.end_leases([one for one in some if one in service.leased])

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killable(os.replace))
        patched.setattr(Path, "unlink", killable(Path.unlink))
        patched.setattr(service, "dequeue", killable(service.dequeue))
        patched.setattr(service, "ack_many", killable(service.ack_many))
        patched.setattr(service, "release_many", killable(service.release_many))
        for _ in range(8):
            steps_left = chance.randrange(5, 60)
            with suppress(Killed):
                run()
            steps_left = 0
            begin()  # the dead process's threads end
            service.end_leases()
        killing = False
        for _ in range(4):  # leases of dead drivers end between the runs
            run()
            begin()
            service.end_leases()
    counts = Counter(one for rows in sink.values() for one in rows)
    assert counts == Counter(filled)
    assert sorted(service.acked) == filled
    assert service.ready == []
