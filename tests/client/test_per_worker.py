"""A topic that gives each worker only so many items at a time, on a real host."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from foqs.client import Client, ItemSpec, Worker
from tests.client.peer import LATER, eventually


def test_workers_get_so_many_items_each(client: Client) -> None:
    client.put_settings({"topic.jobs": '{"per_worker": 2}'})
    client.enqueue_many([ItemSpec("jobs", str(n).encode()) for n in range(12)])
    lock, at_work, most, gate = threading.Lock(), Counter[str](), Counter[str](), threading.Semaphore(0)

    def handler(name: str) -> Any:
        def handle(item: object) -> None:
            with lock:
                at_work[name] += 1
                most[name] = max(most[name], at_work[name])
            gate.acquire(timeout=LATER)
            with lock:
                at_work[name] -= 1

        return handle

    workers = [Worker(client, "jobs", handler(name), concurrency=5, wait_ms=200, name=name) for name in "ab"]
    for worker in workers:
        worker.start()
    eventually(lambda: at_work == {"a": 2, "b": 2})
    taken = client.dequeue("jobs", 5, worker="c")
    assert len(taken) == 2
    client.ack_many(taken)
    for _ in range(10):
        gate.release()
    eventually(lambda: sum(worker.counts.done for worker in workers) == 10)
    assert most == {"a": 2, "b": 2}
    for worker in workers:
        worker.stop(grace_ms=1_000)
        assert worker.join(LATER * 1_000)
