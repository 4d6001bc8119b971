"""The life of a worker: handlers, leases, acks, nacks, outages, signals and its end."""

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from foqs.client import Backoff, Forbidden, Invalid, ItemSpec, Worker
from foqs.client._sync.worker import topics_of_turn
from foqs.client.signals import stop_signals
from tests.client.peer import LATER, Act, eventually, refused


@pytest.fixture
def work(start_worker):
    return partial(start_worker, backoff=Backoff(first_ms=1, longest_ms=5))


def enqueue(client, count, **fields):
    return client.enqueue_many([ItemSpec("t", str(n).encode(), **fields) for n in range(count)])


def test_one_extender_for_all_workers(peer, client_of, work, gate):
    client = client_of(peer)
    client.enqueue_many([ItemSpec(f"t{n}", b"x") for n in range(3)])
    for n in range(3):
        work(client, lambda item: gate.wait(LATER), topics=f"t{n}", lease_ms=200)
    eventually(lambda: {e.id for request in peer.named("ExtendLease") for e in request.items} == {1, 2, 3})
    eventually(lambda: sum(thread.name == "foqs-extender" for thread in threading.enumerate()) == 1)


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


@pytest.mark.parametrize("count", [2, 1_001])
def test_each_request_of_a_worker_has_the_weights_of_its_topics(peer, client_of, work, count):
    weights = {"t": 7, **{f"t{n}": n % 3 + 1 for n in range(1, count)}}
    enqueue(client_of(peer), 30)
    worker = work(client_of(peer), lambda item: None, topics=weights)
    eventually(lambda: worker.counts.done == 30 and len(peer.named("Dequeue")) > 1)
    requests = [*peer.named("Dequeue"), *peer.named("AckAndDequeue")]
    assert peer.named("AckAndDequeue")
    for request in requests:
        assert {want.topic: want.weight for want in request.wants}.items() <= weights.items()
        assert request.most and len(request.wants) == min(count, 1_000)


def test_a_worker_of_one_topic_sends_no_weight(peer, client_of, work):
    work(client_of(peer), lambda item: None, topics={"t": 5})
    eventually(lambda: peer.named("Dequeue"))
    assert [(want.topic, want.weight) for want in peer.named("Dequeue")[0].wants] == [("t", None)]


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
    caught: list[int] = []
    with stop_signals(caught.append):
        for number in NUMBERS:
            signal.raise_signal(number)
        assert caught == [NUMBERS[0]], "the second one comes with the first"
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.memory
def test_the_default_replaces_a_handler_of_c_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with an embedded Python may have one. An error after a fork would leave all else as in the parent."""
    set_handler = signal.signal

    def of_c_code(number: Any, handler: Any) -> None:
        set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", of_c_code)
    with stop_signals(lambda _: None):
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
