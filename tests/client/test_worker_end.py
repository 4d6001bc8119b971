"""How a worker ends when something else happens at the same time."""

import threading
from time import monotonic

import pytest

from foqs.client import Forbidden, Invalid, Worker
from tests.client.peer import LATER, Act, eventually, refused


def test_a_failure_while_it_stops_does_not_prolong_the_grace(new_peer, client_of, gate):
    asked, answer = threading.Event(), threading.Event()

    def meddle(name, request):
        if name == "Dequeue" and asked.is_set():
            answer.wait(LATER)
            return refused(8)
        return Act.SERVE

    peer = new_peer(meddle)
    client = client_of(peer)
    client.enqueue("t", b"x")

    def stuck(item):
        asked.set()
        gate.wait(LATER)

    worker = Worker(client, "t", stuck, concurrency=1, prefetch=1, wait_ms=10)
    worker.start()
    eventually(lambda: asked.is_set() and len(peer.named("Dequeue")) >= 2)
    began = monotonic()
    worker.stop(grace_ms=0)
    answer.set()
    with pytest.raises(Forbidden):
        worker.join(LATER * 1000)
    assert monotonic() - began < worker.grace_ms / 1000 / 2


def test_a_worker_that_cannot_begin_leaves_no_thread(peer, client_of):
    before = set(threading.enumerate())
    with pytest.raises(Invalid, match="handler"):
        Worker(client_of(peer), "t", 5).start()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"foqs-router"}
