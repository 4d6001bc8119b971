"""How a worker ends when something else happens at the same time."""

import threading
from time import monotonic

import pytest

from foqs.client import Forbidden, Invalid, ItemSpec, Worker
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
