"""The driver's part of a consuming stream: batches leased ahead, several connections, acks beside the next batch."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from foqs.client.items import Item
from foqs.errors import Forbidden, Unavailable
from foqs.spark.consume_state import read_batch
from tests.spark.test_consume_driver import Begin, Service, begin, ids, service
from tests.support.waiting import wait_until as until

__all__ = ["begin", "service"]


def test_a_batch_is_leased_ahead_behind_a_full_one(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(6)
    consumer = begin()
    assert consumer.latest(0, 3) == 1
    assert len(service.leased) == 3, "not before Spark runs the first"
    rows = consumer.batch(0, 1)
    until(lambda: len(service.leased) == 6)
    assert consumer.latest(0, 3) == 1
    assert consumer.batch(0, 1).equals(rows), "the batch ahead changes nothing for a repetition"
    assert service.acked == []
    assert consumer.latest(1, 3) == 2
    assert ids(rows) + ids(consumer.batch(1, 2)) == filled
    assert consumer.latest(2, 3) == 2
    assert service.acked == filled


def test_no_batch_is_leased_ahead_behind_a_smaller_one(service: Service, begin: Begin) -> None:
    service.fill(2)
    consumer = begin()
    consumer.latest(0, 3)
    service.fill(5)
    consumer.batch(0, 1)
    consumer.close()
    assert len(service.leased) == 2


def test_at_most_one_batch_is_leased_ahead(service: Service, begin: Begin) -> None:
    filled = service.fill(9)
    consumer = begin()
    consumer.latest(0, 2)
    for _ in range(3):
        consumer.batch(0, 1)
    assert consumer.latest(1, 2) == 2
    consumer.close()
    assert sorted(service.leased) + sorted(service.acked) == filled[2:4] + filled[:2]


def test_a_restart_finds_the_batch_leased_ahead(service: Service, begin: Begin) -> None:
    """Spark never heard of it: it comes after the batch that ran, with the same rows, and its leases are extended."""
    filled = service.fill(7)
    before = begin()
    before.latest(0, 3)
    rows = before.batch(0, 1)
    until((before._folder.path / "2.batch").exists)
    after = begin()
    service.extended.clear()
    assert after.batch(0, 1).equals(rows)
    until(lambda: set(filled[:6]) <= set(service.extended))
    assert service.acked == []
    assert after.latest(1, 3) == 2
    assert ids(after.batch(1, 2)) == filled[3:6]
    assert after.latest(2, 3) == 3
    assert ids(after.batch(2, 3)) == filled[6:]


def test_a_stop_keeps_the_batch_that_is_being_leased(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(4)
    consumer = begin()
    consumer.latest(0, 2)
    leased, closed = Event(), Event()
    dequeue = service.dequeue

    def slow(wants: dict[str, int], **options: Any) -> list[Item]:
        items = dequeue(wants, **options)
        leased.set()
        closed.wait(60)
        return items

    with monkeypatch.context() as patched:
        patched.setattr(service, "dequeue", slow)
        patched.setattr(service, "close", closed.set)
        consumer.batch(0, 1)
        assert leased.wait(60)
        consumer.close()
    assert closed.is_set()
    after = begin()
    assert ids(after.batch(0, 1)) == filled[:2]
    assert after.latest(1, 2) == 2
    assert ids(after.batch(1, 2)) == filled[2:]


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("no")])
def test_a_failure_ahead_is_left_to_the_next_trigger(service: Service, begin: Begin, error: Any) -> None:
    filled = service.fill(4)
    consumer = begin()
    consumer.latest(0, 2)
    service.down = error
    consumer.batch(0, 1)
    ahead = consumer._ahead
    assert ahead is not None
    ahead.exception()
    service.down = None
    assert consumer.latest(1, 2) == 2
    assert ids(consumer.batch(1, 2)) == filled[2:]


def test_a_full_disk_ahead_gives_the_items_back(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(4)
    consumer = begin()
    consumer.latest(0, 2)

    def full(*_: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(consumer._folder, "write", full)
        consumer.batch(0, 1)
        with pytest.raises(OSError, match="no space"):
            consumer.latest(1, 2)
    assert sorted(ids(service.ready)) == filled[2:]
    after = begin()
    assert after.latest(1, 2) == 2
    assert sorted(ids(after.batch(1, 2))) == filled[2:]


def test_available_now_gives_back_newer_items_leased_ahead(service: Service, begin: Begin) -> None:
    old = service.fill(2)
    consumer = begin()
    consumer.only_what_is_there()
    assert consumer.latest(0, 2) == 1
    service.now_ms += 10
    new = service.fill(2)
    consumer.batch(0, 1)
    assert consumer.latest(1, 2) == 1
    assert service.acked == old
    assert sorted(ids(service.ready)) == new
    assert begin().first() == 1
    assert not list((consumer._folder.path).glob("*.batch"))


def test_one_failing_connection_of_several_costs_its_share_only(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(8)
    dequeue, calls = service.dequeue, 0

    def third_fails(wants: dict[str, int], **options: Any) -> list[Item]:
        nonlocal calls
        with service._lock:
            calls += 1
            failing = calls == 3
        if failing:
            raise Unavailable("its connection broke")
        return dequeue(wants, **options)

    monkeypatch.setattr(service, "dequeue", third_fails)
    consumer = begin(connections="4", waitMs="0")
    assert consumer.latest(0, 8) == 1
    first = ids(consumer.batch(0, 1))
    assert len(first) == 6
    assert consumer.latest(1, 8) == 2
    assert sorted(first + ids(consumer.batch(1, 2))) == filled


def test_acks_beside_the_next_batch_are_repeated_when_they_fail(service: Service, begin: Begin) -> None:
    filled = service.fill(6)
    consumer = begin(leaseMs="100")
    consumer.latest(0, 2)
    consumer.batch(0, 1)
    service.acks_down = {filled[0]}
    assert consumer.latest(1, 2) == 2
    assert ids(consumer.batch(1, 2)) == filled[2:4]
    assert consumer.latest(2, 2) == 3
    kept = consumer._folder.path / "1.batch"
    assert kept.exists(), "one of its acks is missing"
    assert filled[0] not in service.acked
    service.acks_down = set()
    until(lambda: consumer.latest(2, 2) == 3 and not consumer._folder.ledger.unsettled)
    assert not kept.exists()
    assert sorted(service.acked) == filled[:4]


def test_a_refused_ack_beside_the_next_batch_ends_the_query(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(4)
    consumer = begin()
    consumer.latest(0, 2)
    consumer.batch(0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(service, "ack_many", lambda items: [Forbidden("no") for _ in items])
        assert consumer.latest(1, 2) == 2
        rows = consumer.batch(1, 2)
        with pytest.raises(Forbidden):
            consumer.latest(2, 2)
    after = begin()
    assert after.first() == 1, "batch 2 is not committed"
    assert after.batch(1, 2).equals(rows)
    assert after.latest(2, 2) == 2
    assert sorted(service.acked) == filled


def test_the_acks_of_a_batch_are_divided_over_the_connections(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(1_000)
    runs: list[int] = []
    ack_many = service.ack_many

    def counted(items: Any) -> Any:
        runs.append(len(items))
        return ack_many(items)

    monkeypatch.setattr(service, "ack_many", counted)
    consumer = begin(connections="3")
    consumer.latest(0, 1_000)
    assert consumer.latest(1, 1_000) == 1
    assert sorted(runs) == [333, 333, 334]
    assert sorted(service.acked) == filled


class Killed(BaseException):
    """The end of the driver's process."""


@pytest.mark.parametrize("ends_at", range(1, 45))
def test_a_killed_driver_loses_nothing(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends_at: int
) -> None:
    """The process ends before any of its writes, leases and acks, or right after one."""
    filled = service.fill(12)
    steps, dead = 0, False
    planned: list[int] = []
    sink: dict[int, list[int]] = {}
    state = tmp_path / "state"

    def killable(call: Any) -> Any:
        def step(*given: Any, **named: Any) -> Any:
            nonlocal steps, dead
            for after in (False, True):
                with service._lock:
                    steps += 1
                    dead = dead or steps == ends_at
                if dead:
                    raise Killed
                if not after:
                    made = call(*given, **named)
            return made

        return step

    def acks_only_what_the_sink_has(items: Any) -> Any:
        delivered = {one for rows in sink.values() for one in rows}
        assert {item.id for item in items} <= delivered
        return ack_many(items)

    def run(start: int) -> None:
        """What Spark does: it repeats the batch that it had planned, then takes the next ones."""
        consumer = begin(connections="2", leaseMs="3600000")
        while True:
            if not planned or planned[-1] == start:
                end = consumer.latest(start, 3)
                if end == start:
                    return
                planned.append(end)
            rows = ids(consumer.batch(start, planned[-1]))
            assert sink.setdefault(planned[-1], rows) == rows, "a repeated batch has the same rows"
            start = planned[-1]
            finished.append(start)

    finished = [0]
    ack_many = service.ack_many
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killable(os.replace))
        patched.setattr(Path, "unlink", killable(Path.unlink))
        patched.setattr(service, "dequeue", killable(service.dequeue))
        patched.setattr(service, "ack_many", killable(acks_only_what_the_sink_has))
        patched.setattr(service, "release_many", killable(service.release_many))
        with pytest.raises(Killed):
            run(0)
        begin()  # closes the reader: its threads end
    in_files = [one for file in state.glob("*.batch") for one in ids(read_batch(file.read_bytes(), int(file.stem)))]
    unseen = [item for item in service.leased.values() if item.id not in in_files]
    for item in unseen:  # their leases end
        service.ready.append(service.leased.pop(item.id))
    monkeypatch.setattr(service, "ack_many", acks_only_what_the_sink_has)
    run(finished[-1])
    assert sorted(one for rows in sink.values() for one in rows) == filled
    assert sorted(service.acked) == filled
