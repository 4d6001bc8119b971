"""The life of a worker: handlers, leases, acks, nacks, outages, signals and its end."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from foqs.client import Backoff, Delivery, Forbidden, Invalid, ItemSpec, Retry, Worker
from foqs.client.worker import stop_signals, topics_of_turn
from foqs.idl import idl
from tests.client.peer import LATER, Act, eventually, failed, refused, script


@pytest.fixture
def work(start_worker):
    return partial(start_worker, backoff=Backoff(first_ms=1, longest_ms=5))


def enqueue(client, count, **fields):
    return client.enqueue_many([ItemSpec("t", str(n).encode(), **fields) for n in range(count)])


def test_every_item_is_handled_once_and_acked_in_batches(peer, client_of, work):
    client = client_of(peer)
    ids = enqueue(client, 300)
    seen: list[bytes] = []
    worker = work(client, lambda item: seen.append(item.payload), concurrency=4, prefetch=100)
    eventually(lambda: worker.counts.done == 300)
    assert sorted(peer.acked) == ids
    assert sorted(seen, key=int) == [str(n).encode() for n in range(300)]
    assert len(peer.named("Ack")) < 300


def test_a_failed_item_comes_again_after_its_backoff(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 1)
    attempts: list[int] = []

    def fail_twice(item):
        attempts.append(item.attempt)
        if item.attempt < 3:
            raise ValueError("secret")

    worker = work(client, fail_twice, backoff=Backoff(first_ms=20, longest_ms=1_000, jitter=0))
    eventually(lambda: worker.counts.done == 1)
    assert attempts == [1, 2, 3]
    assert worker.counts.failed == 2
    assert [entry.delay_ms for entry in peer.nacked] == [20, 40]
    assert {entry.reason for entry in peer.nacked} == {"ValueError"}


def test_a_handler_may_say_when_and_leave_its_progress(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 1)
    states: list[bytes | None] = []

    class Steps:
        def handle(self, item, job):
            states.append(item.metadata)
            if item.attempt == 1:
                raise Retry(delay_ms=1, metadata=b"one")
            if item.attempt == 2:
                job.metadata = b"two"
                raise RuntimeError

    worker = work(client, Steps)
    eventually(lambda: worker.counts.done == 1)
    assert states == [None, b"one", b"two"]


def test_a_class_is_made_once_per_thread_an_object_is_shared(peer, client_of, work):
    made: list[object] = []

    class Handler:
        def __init__(self):
            made.append(self)

        def handle(self, item, job):
            pass

    work(client_of(peer), Handler, concurrency=3)
    assert len(made) == 3
    work(client_of(peer), Handler(), concurrency=3)
    assert len(made) == 4


def test_never_more_items_held_than_allowed(peer, client_of, work, gate):
    client = client_of(peer)
    enqueue(client, 50)
    worker = work(client, lambda item: gate.wait(LATER), concurrency=2, prefetch=3)

    def held() -> int:
        return sum(item.lease != 0 for item in peer.items.values())

    eventually(lambda: held() == 5)
    for request in peer.named("Dequeue"):
        assert sum(want.count for want in request.wants) <= 5
    gate.set()
    eventually(lambda: worker.counts.done == 50)


def test_leases_are_extended_for_running_and_waiting_items(peer, client_of, work, gate):
    client = client_of(peer)
    enqueue(client, 3)
    seen: list[int] = []

    def slow(item):
        seen.append(item.id)
        gate.wait(LATER)

    worker = work(client, slow, concurrency=1, prefetch=2, lease_ms=3_000)
    eventually(lambda: len(peer.named("ExtendLease")) >= 4)  # more than a whole lease
    gate.set()
    eventually(lambda: worker.counts.done == 3)
    assert sorted(seen) == [1, 2, 3], "none came a second time"


def test_one_extender_for_all_workers(peer, client_of, work, gate):
    client = client_of(peer)
    client.enqueue_many([ItemSpec(f"t{n}", b"x") for n in range(3)])
    for n in range(3):
        work(client, lambda item: gate.wait(LATER), topics=f"t{n}", lease_ms=200)
    eventually(lambda: {e.id for request in peer.named("ExtendLease") for e in request.items} == {1, 2, 3})
    eventually(lambda: sum(thread.name == "foqs-extender" for thread in threading.enumerate()) == 1)


def test_a_lost_lease_reaches_the_handler_and_is_not_acked(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 1)
    told = threading.Event()

    class Handler:
        def handle(self, item, job):
            peer.take_over(item.id)
            assert job.lease_lost.wait(LATER)
            told.set()

    worker = work(client, Handler(), lease_ms=2_000)
    assert told.wait(LATER)
    eventually(lambda: worker.counts.lost == 1)
    assert peer.named("Ack") == []


def test_a_lease_not_extended_in_time_is_still_acked(new_peer, client_of, work):
    peer = new_peer(lambda name, request: refused(5) if name == "ExtendLease" else Act.SERVE)
    client = client_of(peer)
    enqueue(client, 1)

    class Handler:
        def handle(self, item, job):
            assert job.lease_lost.wait(LATER)

    worker = work(client, Handler(), lease_ms=200, concurrency=1, prefetch=0)
    eventually(lambda: worker.counts.done == 1)


def test_an_item_whose_lease_ended_before_its_turn_is_not_begun(new_peer, client_of, work, gate):
    peer = new_peer(script("ExtendLease", *[refused(5)] * 1_000))
    client = client_of(peer)
    enqueue(client, 2, delivery=Delivery.AT_MOST_ONCE)
    begun: list[int] = []

    def slow(item):
        begun.append(item.id)
        gate.wait(LATER)

    worker = work(client, slow, concurrency=1, prefetch=1, lease_ms=2_000)
    eventually(lambda: begun == [1] and peer.items[2].attempt)
    for item in peer.items.values():
        item.topic = "elsewhere"  # neither is delivered again when its lease is over
    eventually(lambda: len(peer.named("ExtendLease")) >= 2)
    # The worker's reckoning ends later than the server's, by the time that the answer took.
    eventually(lambda: not worker._leases._held[2].usable(time.monotonic()))
    gate.set()
    eventually(lambda: (worker.counts.done, worker.counts.lost) == (1, 1))
    assert 2 not in begun


def test_a_job_may_ask_for_a_longer_lease(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 1)

    class Handler:
        def handle(self, item, job):
            job.extend(60_000)

    worker = work(client, Handler())
    eventually(lambda: worker.counts.done == 1)
    assert [entry.lease_ms for request in peer.named("ExtendLease") for entry in request.items] == [60_000]


def test_acks_are_sent_again_through_an_outage(new_peer, client_of, work):
    peer = new_peer(script("Ack", Act.CLOSE_AFTER, refused(5), refused(4, 10), Act.CLOSE_BEFORE))
    client = client_of(peer)
    enqueue(client, 5)
    worker = work(client, lambda item: None, concurrency=1)
    eventually(lambda: worker.counts.done == 5)
    assert sorted(peer.acked) == [1, 2, 3, 4, 5]


def test_a_doubtful_ack_that_finds_its_item_gone_is_done(new_peer, client_of, work):
    unknown = [idl.ItemOutcome(error=failed(6))]
    answers = {"Ack": idl.AckResponse(unknown), "AckAndDequeue": idl.AckAndDequeueResponse(unknown, [])}
    peer = new_peer(lambda name, request: Act.SERVE if peer.acked else answers.get(name, Act.SERVE))
    client = client_of(peer)
    enqueue(client, 1)
    worker = work(client, lambda item: None)
    worker._settler._client = client_of(peer, timeout_ms=1)
    eventually(lambda: len(peer.named("Ack")) >= 2)
    peer.items.clear()
    peer.acked.append(1)
    eventually(lambda: worker.counts.done == 1)


def test_a_worker_outlives_its_server(new_peer, client_of, work):
    peer = new_peer()
    client = client_of(peer)
    seen: list[bytes] = []
    worker = work(client, lambda item: seen.append(item.payload))
    enqueue(client, 1)
    eventually(lambda: len(seen) == 1)
    peer.close()
    eventually(lambda: client._caller.pool._failed_at)
    again = new_peer(port=peer.port)
    eventually(lambda: again.named("Dequeue"))
    client.enqueue("t", b"again")
    eventually(lambda: seen[-1] == b"again")
    eventually(lambda: worker.counts.done >= 1)


def test_what_cannot_get_better_ends_the_worker(new_peer, client_of):
    worker = Worker(client_of(new_peer(lambda name, request: refused(8))), "t", lambda item: None, wait_ms=10)
    with pytest.raises(Forbidden):
        worker.run()


def test_a_stop_gives_back_unstarted_items_and_waits(peer, client_of, work, gate):
    client = client_of(peer)
    enqueue(client, 10)
    begun = threading.Semaphore(0)

    class Handler:
        def handle(self, item, job):
            begun.release()
            assert job.stopping.wait(LATER)
            gate.wait(LATER)

    worker = work(client, Handler(), concurrency=2, prefetch=4)
    assert begun.acquire(timeout=LATER)
    assert begun.acquire(timeout=LATER)
    eventually(lambda: sum(item.lease != 0 for item in peer.items.values()) == 6)
    worker.stop()
    eventually(lambda: worker.counts.released == 4)
    assert not worker.join(10)
    gate.set()
    assert worker.join(LATER * 1000)
    assert worker.counts.done == 2
    assert all(entry.release for entry in peer.nacked)
    assert [(item.lease, item.attempt) for item in peer.items.values()] == [(0, 0)] * 8


def test_a_stop_waits_for_no_item_that_a_handler_took(peer, client_of, gate):
    client = client_of(peer)
    enqueue(client, 2)

    class Raced(SimpleQueue):
        """The handler comes first, whenever the worker's own thread goes to take something out."""

        def get(self, *args):
            self._let_the_handler()
            return super().get(*args)

        def get_nowait(self):
            self._let_the_handler()
            return super().get_nowait()

        def _let_the_handler(self):
            if threading.current_thread().name == "foqs-worker":
                gate.set()
                eventually(self.empty)

    worker = Worker(client, "t", lambda item: gate.wait(LATER), concurrency=1, prefetch=1, wait_ms=10)
    worker._queue = Raced()
    worker.start()
    eventually(lambda: len(worker._leases) == 2 and worker._queue.qsize() == 1)
    worker.stop()
    assert worker.join(LATER * 1000)
    assert (worker.counts.done, worker.counts.released) == (1, 1)


def test_a_handler_that_does_not_end_is_left_after_the_grace(peer, client_of, gate):
    client = client_of(peer)
    enqueue(client, 1)
    begun = threading.Event()

    def stuck(item):
        begun.set()
        gate.wait(60)

    worker = Worker(client, "t", stuck, wait_ms=10)
    worker.start()
    assert begun.wait(LATER)
    worker.stop(grace_ms=50)
    assert worker.join(LATER * 1000)
    assert peer.items[1].lease != 0, "it may still be at work: its lease runs out by itself"
    assert peer.named("Nack") == []


def test_a_stopping_worker_tells_its_last_acks(peer, client_of):
    client = client_of(peer)
    enqueue(client, 20)
    with Worker(client, "t", lambda item: None, prefetch=16, wait_ms=10, ack_linger_ms=60_000) as worker:
        eventually(lambda: len(peer.named("Dequeue")) > 1)
    assert worker.counts.done + worker.counts.released >= 16
    assert all(item.lease == 0 for item in peer.items.values())


@pytest.mark.parametrize(
    "send", [lambda number: os.kill(os.getpid(), number), signal.raise_signal], ids=["kill", "raise"]
)
def test_run_ends_at_a_signal_and_puts_the_handlers_back(peer, client_of, send):
    """`raise_signal` gives the signal to its own thread."""
    client = client_of(peer)
    enqueue(client, 1)
    before = signal.getsignal(signal.SIGTERM)
    worker = Worker(client, "t", lambda item: send(signal.SIGTERM), wait_ms=20)
    worker.run()
    assert worker.counts.done == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_run_in_another_thread_leaves_signals_alone(peer, client_of):
    before = signal.getsignal(signal.SIGTERM)
    worker = Worker(client_of(peer), "t", lambda item: None, wait_ms=20)
    thread = threading.Thread(target=worker.run)
    thread.start()
    eventually(lambda: peer.named("Dequeue"))
    assert signal.getsignal(signal.SIGTERM) is before
    worker.stop()
    thread.join(LATER)
    assert not thread.is_alive()


def test_requests_of_a_worker_of_very_many_topics_reach_each():
    for count in range(1, 12):
        topics = [str(n) for n in range(count)]
        turns = [topics_of_turn(topics, turn, most=3) for turn in range(count)]
        assert all(len(set(turn)) == len(turn) == min(count, 3) for turn in turns)
        assert {topic for turn in turns for topic in turn} == set(topics)


def test_one_request_names_all_topics_and_bounds_their_sum(peer, client_of, work):
    client, topics, go = client_of(peer), [f"t{n}" for n in range(40)], threading.Event()
    client.enqueue_many([ItemSpec(topic, b"x") for topic in topics])
    worker = work(client, lambda item: go.wait(LATER), topics=topics, concurrency=3)
    eventually(lambda: len(worker._busy) == 3)
    (request,) = peer.named("Dequeue")
    assert ([want.topic for want in request.wants], request.most, request.wait_ms > 0) == (topics, 3, True)
    go.set()
    eventually(lambda: worker.counts.done == 40)


def test_items_of_several_topics(peer, client_of, work):
    client = client_of(peer)
    client.enqueue_many([ItemSpec(f"t{n % 3}", b"x") for n in range(30)])
    worker = work(client, lambda item: None, topics=["t0", "t1", "t2"], concurrency=1, prefetch=0)
    eventually(lambda: worker.counts.done == 30)


def test_each_request_has_the_number_of_items_held(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 3)
    go = threading.Event()
    worker = work(client, lambda item: go.wait(LATER), concurrency=5)

    def held():
        return [want.holding for request in peer.named("Dequeue") for want in request.wants]

    eventually(lambda: held()[-1:] == [3])
    assert held()[0] == 0
    go.set()
    eventually(lambda: worker.counts.done == 3 and held()[-1] == 0)


NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.memory
def test_the_handlers_before_return() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with stop_signals() as caught:
        for number in NUMBERS:
            signal.raise_signal(number)
        assert [caught.get_nowait() for _ in NUMBERS] == list(NUMBERS)
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.memory
def test_the_default_replaces_a_handler_of_c_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with an embedded Python may have one. An error after a fork would leave all else as in the parent."""
    set_handler = signal.signal

    def of_c_code(number: Any, handler: Any) -> None:
        set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", of_c_code)
    with stop_signals():
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == [signal.SIG_DFL] * 2


def test_a_failure_while_it_stops_does_not_prolong_the_grace(new_peer, client_of, gate):
    busy, held, answer = threading.Event(), threading.Event(), threading.Event()

    def meddle(name, request):
        if name == "Dequeue" and busy.is_set():
            held.set()
            answer.wait(LATER)
            return refused(8)
        return Act.SERVE

    peer = new_peer(meddle)
    client = client_of(peer)
    client.enqueue("t", b"x")

    def stuck(item):
        busy.set()
        gate.wait(LATER)

    worker = Worker(client, "t", stuck, concurrency=1, prefetch=1, wait_ms=10)
    worker.start()
    assert held.wait(LATER)
    began = monotonic()
    worker.stop(grace_ms=0)
    answer.set()
    with pytest.raises(Forbidden):
        worker.join(LATER * 1000)
    assert monotonic() - began < worker.grace_ms / 1000 / 2


@pytest.mark.parametrize(("items", "shown"), [(0, []), (2, [2])], ids=["idle", "busy"])
def test_the_end_of_the_grace_warns_of_work_that_is_cut_off(peer, client_of, gate, caplog, items, shown):
    client = client_of(peer)
    client.enqueue_many([ItemSpec("t", b"x")] * items)
    begun = []

    def stuck(item):
        begun.append(item)
        gate.wait(LATER)

    worker = Worker(client, "t", stuck, concurrency=32, wait_ms=10)
    worker.start()
    eventually(lambda: len(begun) == items and len(peer.named("Dequeue")) >= 2)
    worker.stop()
    worker.stop(grace_ms=0)  # as the second SIGTERM does
    assert worker.join(LATER * 1000)
    assert [record.args[0] for record in caplog.records if "within the grace" in str(record.msg)] == shown


def test_a_worker_that_cannot_begin_leaves_no_thread(peer, client_of):
    before = set(threading.enumerate())
    with pytest.raises(Invalid, match="handler"):
        Worker(client_of(peer), "t", 5).start()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"foqs-router"}
