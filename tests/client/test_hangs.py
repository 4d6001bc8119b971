"""Handlers that hang: the log, the count, the report to the hosts, and the end of the worker."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foqs.client import AckPolicy, Backoff, Delivery, Invalid, Item, ItemSpec, Job, Worker, WorkerHung
from foqs.client._sync.job import Held
from foqs.client._sync.leases import TimeLimits
from tests.client.peer import LATER, Act, eventually, refused

LIMIT_MS = 50


@pytest.fixture
def work(gate: threading.Event) -> Iterator[Any]:
    """`work(client, ...)` is a worker whose handlers hang in the first attempt of an item, until the gate opens."""
    workers: list[Worker] = []

    def start(client: Any, act: Callable[[Item, Job], object] | None = None, **options: Any) -> Worker:
        def hang(item: Item, job: Job) -> None:
            if act is not None:
                act(item, job)
            if item.attempt == 1:
                gate.wait(LATER)

        settings = {"concurrency": 1, "wait_ms": 50, "time_limit_ms": LIMIT_MS, "backoff": Backoff(7, 7), "name": "w"}
        workers.append(Worker(client, ["t", "u"], hang, **{**settings, **options}))
        workers[-1].start()
        return workers[-1]

    yield start
    gate.set()
    for worker in workers:
        worker.stop(grace_ms=100)
    for worker in workers:
        assert worker._ended.wait(LATER)


def warnings(caplog: Any) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "hangs" in record.getMessage()]


@pytest.mark.parametrize("policy", list(AckPolicy))
def test_a_handler_over_its_limit_is_logged_and_counted(
    peer: Any, client_of: Any, work: Any, gate: Any, caplog: Any, policy: AckPolicy
) -> None:
    """Once, in however many rounds the leases are looked at, also when another consumer has the item."""
    client = client_of(peer)
    ids = client.enqueue_many([ItemSpec("u", b"x")])
    worker = work(client, lease_ms=300, ack_policy=policy)
    eventually(lambda: worker.counts.hung == 1)
    if policy is not AckPolicy.ACK_FIRST:
        eventually(lambda: client.dequeue("u", lease_ms=600_000))
    eventually(lambda: len(reports(peer)) >= 1)
    gate.set()
    eventually(lambda: not worker._busy)
    (line,) = warnings(caplog)
    assert line.levelno == logging.WARNING
    text = line.getMessage()
    assert f"Item({ids[0]} topic='u' attempt=1)" in text
    took_s = line.args[1]
    assert isinstance(took_s, float) and took_s * 1000 >= LIMIT_MS and f"{took_s:.3f} s" in text
    assert worker.counts.hung == 1


@pytest.mark.parametrize(
    ("policy", "delivery", "said"),
    [
        (AckPolicy.NACK_ON_ERROR, Delivery.AT_LEAST_ONCE, "so the item is delivered again"),
        (AckPolicy.NACK_ON_ERROR, Delivery.AT_MOST_ONCE, "so the item is lost, as it is at-most-once"),
        (AckPolicy.ACK_FIRST, Delivery.AT_LEAST_ONCE, "; the outcome of the item was given before"),
        (AckPolicy.MANUAL, Delivery.AT_LEAST_ONCE, "; the outcome of the item was given before"),
    ],
)
def test_the_warning_says_what_happens_to_the_item(
    peer: Any, client_of: Any, work: Any, caplog: Any, policy: AckPolicy, delivery: Delivery, said: str
) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x", delivery=delivery)
    act = (lambda item, job: job.ack()) if policy is AckPolicy.MANUAL else None
    work(client, act, ack_policy=policy, time_limit_ms=1_000)
    eventually(lambda: warnings(caplog))
    assert warnings(caplog)[0].getMessage().endswith(said)


def test_work_within_its_limit_is_no_hang(peer: Any, client_of: Any, work: Any, gate: Any, caplog: Any) -> None:
    gate.set()
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")] * 20)
    worker = work(client, time_limit_ms=600_000, concurrency=3)
    eventually(lambda: worker.counts.done == 20)
    assert worker.counts.hung == 0 and not warnings(caplog)
    assert not len(worker._leases.limits), "nothing is watched after the work"


def test_an_outcome_that_waits_is_no_hang(new_peer: Any, client_of: Any, work: Any, gate: Any, caplog: Any) -> None:
    """The handler has ended in time, and its lease is extended until the server takes the ack."""
    gate.set()
    peer = new_peer(lambda name, request: refused(5) if name in ("Ack", "AckAndDequeue") else Act.SERVE)
    client = client_of(peer, timeout_ms=1)
    client_of(peer).enqueue("t", b"x")
    worker = work(client_of(peer), time_limit_ms=1_000, lease_ms=300)
    worker._settler._client = client
    eventually(lambda: len(peer.named("ExtendLease")) >= 12)  # longer than the limit
    assert worker.counts.hung == 0 and not warnings(caplog)
    peer.meddle = lambda name, request: Act.SERVE
    eventually(lambda: worker.counts.done == 1)


def reports(peer: Any) -> list[tuple[str, dict[str, int]]]:
    asked = [request for request in peer.named("Dequeue") if request.wants[0].hung is not None]
    assert all(want.count == 0 for request in asked for want in request.wants)
    return [(request.worker, {want.topic: want.hung for want in request.wants}) for request in asked]


def test_hung_handlers_are_reported_while_they_hang(
    peer: Any, client_of: Any, work: Any, gate: Any, monkeypatch: Any
) -> None:
    """Also when their leases are over, and the worker asks for nothing, as it has no handler left."""
    monkeypatch.setattr("foqs.client._sync.work.REPORT_S", 0.02)
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x"), ItemSpec("t", b"x"), ItemSpec("u", b"x")])
    worker = work(client, concurrency=3, lease_ms=200)
    eventually(lambda: ("w", {"t": 2, "u": 1}) in reports(peer))
    seen = len(reports(peer))
    eventually(lambda: all(held.gone for held in list(worker._leases._held.values())))
    eventually(lambda: len(reports(peer)) > seen + 3)
    gate.set()
    eventually(lambda: not any(thread.name == "foqs-hung" for thread in threading.enumerate()))
    eventually(lambda: worker.counts.failed + worker.counts.lost == 3)


def test_the_worker_exits_when_all_handlers_hang(peer: Any, client_of: Any, work: Any, gate: Any) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, concurrency=2, on_hang="exit", time_limit_ms=300, prefetch=2)
    eventually(lambda: worker.counts.hung == 1)
    assert not worker.join(100), "one handler is free"
    client.enqueue_many([ItemSpec("t", b"x")] * 3)
    with pytest.raises(WorkerHung, match="all 2 handlers of the worker hang"):
        worker.join(LATER * 1000)
    assert not gate.is_set(), "it did not wait for its grace"
    assert worker.counts.hung == 2
    eventually(lambda: worker.counts.released == 2)
    assert not len(worker._leases)


def test_an_item_acked_by_its_job_may_hang_too(peer: Any, client_of: Any, work: Any, caplog: Any) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")
    worker = work(client, lambda item, job: job.ack(), ack_policy=AckPolicy.MANUAL, on_hang="exit")
    with pytest.raises(WorkerHung):
        worker.join(LATER * 1000)
    assert len(warnings(caplog)) == 1


def test_a_stopping_worker_does_not_end_by_its_hang(peer: Any, client_of: Any, work: Any) -> None:
    client = client_of(peer)
    client.enqueue("t", b"x")
    begun = threading.Event()
    worker = work(client, lambda item, job: begun.set(), on_hang="exit", time_limit_ms=200)
    assert begun.wait(LATER)
    worker.stop(grace_ms=600)
    assert worker.join(LATER * 1000)
    assert worker.counts.hung == 1


def test_items_behind_hung_handlers_go_back(peer: Any, client_of: Any, work: Any, gate: Any) -> None:
    """No handler would take them, and their leases would be extended for ever. The worker then takes none."""
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")] * 9)
    worker = work(client, concurrency=2, prefetch=3, lease_ms=600_000, time_limit_ms=300)
    eventually(lambda: worker.counts.hung == 2 and worker.counts.released and len(worker._leases) == 2)
    asked = len(peer.named("Dequeue"))
    eventually(lambda: len(reports(peer)) >= 1)
    assert sum(item.lease != 0 for item in peer.items.values()) == 2, "only the hung ones"
    assert len(peer.named("Dequeue")) - asked <= len(reports(peer))
    gate.set()
    eventually(lambda: worker.counts.done == 9)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_hang": "stop", "time_limit_ms": 5}, "on_hang is 'stop': it must be one of warn, exit"),
        ({"on_hang": "exit"}, "needs time_limit_ms"),
    ],
)
def test_on_hang_is_checked(peer: Any, client_of: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Worker(client_of(peer), "t", lambda item: None, **options)


@pytest.mark.memory
def test_each_work_is_found_once() -> None:
    limits, found = TimeLimits(2, threading.Condition()), []
    limits.found = found.extend
    one, two = (Held(Item(id=n, topic=f"t{n}"), 100.0, 50.0) for n in (1, 2))
    limits.begin(one, 0.0, 10.0)
    limits.begin(two, 5.0, 15.0)
    assert limits.look(9.0) == 10.0 and found == []
    assert limits.look(10.5) == 15.0
    assert found == [(one, 10.5)] and one.late and one.time_is_up().is_set()
    assert limits.over() == {"t1": 1}
    limits.end(two)
    assert limits.look(99.0) == float("inf") and len(found) == 1 and not two.late
    limits.end(one)
    assert not limits.over() and not len(limits)
