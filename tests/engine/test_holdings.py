"""Topics that give each worker only so many items at a time (`per_worker`)."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.idl import idl
from tests.engine.test_concurrency import Limited

pytestmark = pytest.mark.memory

EACH = {"topic.t": '{"per_worker": 2}'}


def wanted(
    host: Limited, count: int = 5, worker: str | None = "w", holding: int | None = None, wait_ms: int = 0
) -> Any:
    wants = [idl.TopicCount("t", count, holding)]
    call = host.call("Dequeue", ns="n", wants=wants, worker=worker, wait_ms=wait_ms, lease_ms=2_000)
    host.wait(1)
    return call


def test_a_worker_gets_so_many_items_at_a_time() -> None:
    host = Limited(EACH)
    host.put(9)
    first = wanted(host).answer.items
    assert len(first) == 2
    empty = wanted(host).answer
    assert (empty.items, empty.reason, empty.retry_after_ms) == ([], "per_worker", 100)
    assert len(wanted(host, worker="other").answer.items) == 2
    host.ack(first[0])
    assert len(wanted(host).answer.items) == 1


def test_a_worker_at_its_limit_holds_up_no_other_one() -> None:
    host = Limited({"topic.t": '{"per_worker": 1}'})
    calls = [wanted(host, 1, worker, wait_ms=5_000) for worker in ("w", "w", "other")]
    host.put(2)
    host.wait(1)
    assert [len(call.answer.items) if call.answers else 0 for call in calls] == [1, 0, 1]


def test_a_worker_with_room_waits_for_its_whole_time() -> None:
    host = Limited(EACH)
    host.put(1)
    assert len(wanted(host).answer.items) == 1
    call = wanted(host, wait_ms=5_000)
    host.wait(1_500)
    assert not call.answers
    host.put(3)
    host.wait(1)
    assert len(call.answer.items) == 1


def test_a_worker_that_holds_enough_waits_for_a_moment() -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    call = wanted(host, wait_ms=30_000)
    host.wait(90)
    assert not call.answers
    host.wait(20)
    assert (call.answer.items, call.answer.reason) == ([], "per_worker")


def test_a_worker_reports_its_items() -> None:
    host = Limited(EACH)
    host.put(9)
    assert len(wanted(host, holding=1).answer.items) == 1
    assert wanted(host, holding=2).answer.items == []
    assert len(wanted(host, worker=None, holding=0).answer.items) == 2


def test_consumers_without_a_name_get_so_many_in_an_answer() -> None:
    host = Limited(EACH)
    host.put(9)
    assert [len(wanted(host, worker=None).answer.items) for _ in range(2)] == [2, 2]


def test_leases_that_end_make_room() -> None:
    host = Limited({"topic.t": '{"per_worker": 2, "retry": {"kind": "constant", "first_ms": 60000}}'})
    host.put(9)
    first = wanted(host).answer.items
    host.ask("Nack", items=[idl.NackItem(first[0].id, first[0].lease, failed=True)])
    assert len(wanted(host).answer.items) == 1
    for _ in range(5):
        host.wait(500)
    assert len(wanted(host).answer.items) == 2  # the leases are over


def test_workers_that_hold_nothing_are_forgotten() -> None:
    host = Limited(EACH)
    host.put(5)
    host.ack(*wanted(host).answer.items)
    assert host.engine.holdings._held
    for _ in range(3):
        host.wait(1_000)
    assert not host.engine.holdings._held


def test_a_worker_holds_no_negative_number() -> None:
    error = Limited(EACH).ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1, -1)])
    assert type(error) is Invalid
    assert error.message == "holding is negative"
