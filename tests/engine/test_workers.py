"""Limits of items for each worker (`per_worker`), and reports of handlers that hang."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.engine import workers
from foqs.engine.workers import FORGET_MS, Hung
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
    assert (empty.items, empty.reason, empty.retry_after_ms) == ([], "per_worker", None)
    assert empty.per_worker == {"t": 2}
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


def test_a_worker_that_holds_enough_waits_for_its_whole_time() -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    call = wanted(host, wait_ms=1_500)
    host.wait(1_490)
    assert not call.answers
    host.wait(20)
    assert (call.answer.items, call.answer.reason) == ([], "per_worker")
    assert not host.engine.state.holdings.parked


@pytest.mark.parametrize("end", ["ack", "nack", "failed", "reject", "release", "delete", "time", "operator"])
def test_the_end_of_a_lease_answers_a_worker_that_held_enough(end: str) -> None:
    host = Limited({"topic.t": '{"per_worker": 2, "retry": {"kind": "constant", "first_ms": 60000}}'})
    host.put(9)
    first, _ = wanted(host).answer.items
    call, other = (wanted(host, 1, worker, wait_ms=60_000) for worker in ("w", "other"))
    assert len(other.answer.items) == 1
    host.wait(1_000)
    assert not call.answers
    if end == "ack":
        host.ack(first)
    elif end == "delete":
        host.ask("DeleteItems", ids=[first.id])
    elif end == "operator":
        host.call("ReleaseLeases", ns="n", topic="t", worker="w")
    elif end == "time":
        host.wait(1_100)
    else:
        how = {} if end == "nack" else {end: True}
        delay_ms = 30_000 if end == "nack" else None
        host.ask("Nack", items=[idl.NackItem(first.id, first.lease, delay_ms=delay_ms, **how)])
    host.wait(1)
    host.wait(1)
    assert len(call.answer.items) == 1


def test_a_release_at_once_answers_a_worker_that_held_enough() -> None:
    host = Limited(EACH)
    host.put(3)
    first, _ = wanted(host).answer.items
    call = wanted(host, wait_ms=60_000)
    host.ask("Nack", items=[idl.NackItem(first.id, first.lease, release=True)])
    assert len(call.answer.items) == 1


def test_leases_of_another_worker_make_no_room() -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    others = wanted(host, worker="other").answer.items
    call = wanted(host, wait_ms=60_000)
    host.ack(*others)
    host.wait(1_000)
    assert not call.answers


def test_leases_of_a_shard_that_is_lost_make_room() -> None:
    host = Limited(EACH)
    for _ in range(40):  # each goes to one of the shards
        host.put(1)
    lost = wanted(host).answer.items[0].id >> 48
    call = wanted(host, wait_ms=60_000)
    host.engine.lose(host.engine.state.shards[lost], host.now_ms)
    host.wait(1_000)
    assert call.answer.items
    assert all(item.id >> 48 != lost for item in call.answer.items)


def test_many_workers_at_their_limit_hide_none_with_room() -> None:
    host = Limited({"topic.t": '{"per_worker": 1}'})
    host.put(300)
    for number in range(150):
        assert host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], worker=f"w{number}").items
    for _ in range(150):
        host.ack(*host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)]).items)
    calls = [
        host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], worker=f"w{number}", wait_ms=60_000)
        for number in [*range(150), 999]
    ]
    host.put(1)
    assert [number for number, call in enumerate(calls) if call.answers] == [150]


def test_workers_at_their_limit_wait_behind_no_one_with_room() -> None:
    host = Limited({"topic.t": '{"per_worker": 1}'})
    host.put(2)
    first = wanted(host, 1, "w").answer.items
    parked = wanted(host, 1, "w", wait_ms=60_000)
    wanted(host, 1, "v")
    late = wanted(host, 1, "x", wait_ms=60_000)
    host.ack(*first)
    host.put(2)
    host.wait(1)
    assert len(parked.answer.items) == len(late.answer.items) == 1


@pytest.mark.parametrize("holding", [None, 2])
@pytest.mark.parametrize("policy", ['{"per_worker": 3}', "{}"])
def test_a_limit_that_is_raised_answers_those_that_wait(holding: int | None, policy: str) -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    call = wanted(host, 1, holding=holding, wait_ms=60_000)
    host.wait(500)
    assert not call.answers
    host.apply({"topic.t": policy})
    assert len(call.answer.items) == 1


def test_a_limit_that_is_set_binds_those_that_wait() -> None:
    host = Limited({})
    calls = [wanted(host, 5, "w", holding, 60_000) for holding in (None, None, 0, 1, 5)]
    host.apply(EACH)
    host.put(50)
    host.wait(1)
    got = [len(call.answer.items) if call.answers else None for call in calls]
    assert got == [2, None, 2, 1, 0]
    assert (calls[-1].answer.reason, calls[-1].answer.per_worker) == ("per_worker", {"t": 2}), "it learns the limit"


def test_a_paused_topic_stays_paused_for_workers_with_room() -> None:
    host = Limited(EACH)
    host.put(9)
    first = wanted(host).answer.items
    call = wanted(host, wait_ms=60_000)
    host.apply({"topic.t": '{"per_worker": 2, "paused": true}'})
    host.ack(*first)
    host.wait(100)
    assert not call.answers
    host.apply(EACH)
    assert len(call.answer.items) == 2


def test_a_process_ends_a_wait() -> None:
    host = Limited(EACH)
    host.put(9)
    call = wanted(host, holding=2, wait_ms=60_000)
    assert call.on_oneway is not None
    call.on_oneway()
    assert (call.answer.items, call.answer.reason) == ([], "per_worker")
    assert not host.engine.state.holdings.parked
    assert not host.engine.state.waiting


def test_a_host_that_drains_answers_workers_at_their_limit() -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    call = wanted(host, wait_ms=60_000)
    host.engine.drain(host.now_ms)
    assert call.answer.items == []


def test_a_worker_that_disconnects_is_forgotten() -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    call = wanted(host, wait_ms=60_000)
    call.lost()
    assert not host.engine.state.holdings.parked


def test_the_topics_without_a_limit_go_on() -> None:
    host = Limited(EACH)
    host.put(9)
    wanted(host)
    wants = [idl.TopicCount("t", 1), idl.TopicCount("u", 1)]
    call = host.call("Dequeue", ns="n", wants=wants, worker="w", wait_ms=60_000)
    host.wait(200)
    assert not call.answers
    host.put(1, topic="u")
    assert [item.topic for item in call.answer.items] == ["u"]
    assert call.answer.per_worker == {"t": 2}


def test_an_ack_that_goes_along_frees_its_place() -> None:
    host = Limited(EACH)
    host.put(9)
    first = wanted(host).answer.items

    def both(item: Any, lease: int, holding: int | None) -> Any:
        acks = [idl.AckItem(item.id, lease)]
        wants = [idl.TopicCount("t", 5, holding)]
        call = host.call("AckAndDequeue", ns="n", acks=acks, wants=wants, worker="w")
        host.wait(1)
        return call.answer

    assert len(both(first[0], first[0].lease, None).items) == 1
    assert len(both(first[1], first[1].lease, 1).items) == 1


def test_an_ack_that_goes_along_and_fails_frees_no_place() -> None:
    host = Limited(EACH)
    host.put(9)
    first = wanted(host).answer.items
    shard = host.engine.state.shards[first[0].id >> 48]
    acks = [idl.AckItem(first[0].id, first[0].lease)]
    wants = [idl.TopicCount("t", 5, 1)]
    call = host.begin("AckAndDequeue", ns="n", acks=acks, wants=wants, worker="w")
    host.now_ms += 5_000  # the shard does not answer
    host.engine.tick(host.now_ms)
    host.engine.pump(host.now_ms)
    assert shard.queue.in_flight is not None or call.answers
    host.run()
    answer = call.answer
    assert answer.outcomes[0].error is not None
    assert (answer.items, answer.reason) == ([], "per_worker")


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


def test_workers_that_hold_nothing_are_forgotten() -> None:
    host = Limited(EACH)
    host.put(5)
    host.ack(*wanted(host).answer.items)
    assert host.engine.state.holdings._held
    for _ in range(3):
        host.wait(1_000)
    assert not host.engine.state.holdings._held


def test_a_worker_holds_no_negative_number() -> None:
    error = Limited(EACH).ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1, -1)])
    assert type(error) is Invalid
    assert error.message == "holding is negative"


T, U = ("n", "t"), ("n", "u")


def test_the_last_report_of_a_worker_counts() -> None:
    reports = Hung()
    reports.report(T, "a", 3, 0)
    reports.report(U, "a", 1, 0)
    reports.report(T, "b", 1, 5)
    reports.report(T, "a", 2, 10)
    assert reports.of(T, 10) == {"a": 2, "b": 1}
    reports.report(T, "a", 0, 11)
    assert reports.of(T, 11) == {"b": 1}
    assert reports.of(U, FORGET_MS - 1) == {"a": 1}
    assert reports.of(U, FORGET_MS) == {}
    assert reports.of(T, FORGET_MS + 5) == {}


def test_so_many_reports_are_kept_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_REPORTS", 3)
    reports = Hung()
    for at_ms, worker in enumerate("abcde"):
        reports.report(T, worker, 1, at_ms)
    assert reports.of(T, 5) == {"c": 1, "d": 1, "e": 1}
