"""A topic that gives each worker process only so many items at a time, on a real host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from foqs.client import Client, Item, ItemSpec, Job, Worker, WorkerHung
from foqs.client.methods import DEQUEUE
from tests.client.peer import LATER, eventually
from tests.client.real_server import Server


class Handlers:
    """The handlers of all workers of a process, each of which waits for the gate."""

    def __init__(self) -> None:
        self.at_work = self.most = self.done = 0
        self.gate = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __call__(self, item: object) -> None:
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        self.gate.acquire(timeout=LATER)
        with self._lock:
            self.at_work -= 1
            self.done += 1


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    made = Handlers()
    yield made
    made.gate.release(1_000)


@pytest.fixture
def work(client: Client, handlers: Handlers) -> Iterator[Callable[..., Worker]]:
    """`work(client, topics, ...)` starts a worker that is stopped after the test."""
    workers: list[Worker] = []

    def start(client: Client, topics: Any = "jobs", **options: Any) -> Worker:
        workers.append(Worker(client, topics, handlers, **{"concurrency": 5, **options}))
        workers[-1].start()
        return workers[-1]

    yield start
    handlers.gate.release(1_000)
    for worker in workers:
        worker.stop(1_000)
    fill(client, 20)  # a worker that stops waits for the end of its long poll
    for worker in workers:
        assert worker.join(LATER * 1_000)


def limit(client: Client, most: int | None) -> None:
    client.put_settings({"topic.jobs": "{}" if most is None else f'{{"per_worker": {most}}}'})


def fill(client: Client, number: int, topic: str = "jobs") -> None:
    client.enqueue_many([ItemSpec(topic, str(at).encode()) for at in range(number)])


def test_all_workers_of_a_process_share_its_items(
    server: Server, client: Client, handlers: Handlers, work: Callable[..., Worker]
) -> None:
    """They have names, topics and clients of their own, and one client knows the host by another name."""
    limit(client, 2)
    fill(client, 60)
    with Client(server.address.replace("127.0.0.1", "localhost"), "shop") as other:
        workers = [work(client, name="a"), work(client, name="b"), work(other), work(other, ["jobs", "more"])]
        for done in range(60):
            eventually(lambda done=done: handlers.at_work == min(2, 60 - done))  # type: ignore[misc]
            handlers.gate.release()
            eventually(lambda done=done: handlers.done == done + 1)  # type: ignore[misc]
        eventually(lambda: sum(worker.counts.done for worker in workers) == 60)
        assert handlers.most == 2
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join(LATER * 1_000)


def test_a_worker_exits_when_all_items_that_it_may_have_hang(client: Client, handlers: Handlers) -> None:
    """Its other handlers are free, but would never get an item. One item that hangs of two does not end it."""
    limit(client, 2)
    fill(client, 1)
    worker = Worker(client, "jobs", handlers, concurrency=5, time_limit_ms=200, lease_ms=500, on_hang="exit")
    worker.start()
    eventually(lambda: worker.counts.hung == 1)
    assert not worker.join(300)
    fill(client, 5)
    with pytest.raises(WorkerHung, match="all 2 handlers that per_worker allows hang: each is over time_limit_ms"):
        worker.join(LATER * 1_000)
    assert handlers.most == 2


def test_hung_handlers_of_acked_items_leave_their_places(client: Client, handlers: Handlers) -> None:
    """The worker has handlers and places left, and goes on."""
    limit(client, 1)
    fill(client, 4)

    def ack_and_hang(item: Item, job: Job) -> None:
        job.ack()
        handlers(item)

    options: dict[str, Any] = {"ack_policy": "manual", "time_limit_ms": 100, "on_hang": "exit"}
    worker = Worker(client, "jobs", ack_and_hang, concurrency=5, **options)
    worker.start()
    eventually(lambda: worker.counts.hung == 4)
    handlers.gate.release(4)
    eventually(lambda: handlers.done == 4)
    worker.stop()
    assert worker.join(LATER * 1_000)


def test_each_process_has_its_own_items(
    client: Client, handlers: Handlers, work: Callable[..., Worker], worker_process: Callable[[str], Any]
) -> None:
    """A child process that was forked from one with a worker, too."""
    limit(client, 2)
    fill(client, 12)
    work(client)
    eventually(lambda: handlers.at_work == 2)
    process = worker_process(
        """
        def handle(item):
            os.write(1, b"begun\\n")
            time.sleep(60)
        def run(client):
            for name in "ab":
                Worker(client, "jobs", handle, concurrency=3, name=name).start()
        run(client)
        if not os.fork():
            run(client)
        time.sleep(60)
        """
    )
    assert [process.stdout.readline() for _ in range(4)] == ["begun\n"] * 4
    assert len(client.dequeue("jobs", 10, worker="raw")) == 2
    assert handlers.most == 2


def test_a_worker_at_its_limit_sends_one_request_for_each_wait(
    client: Client, handlers: Handlers, work: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(client, 2)
    fill(client, 10)
    sent: list[int] = []
    ask = client._caller.ask

    def counting(method: Any, *how: Any, **options: Any) -> Any:
        sent.append(method is DEQUEUE)
        return ask(method, *how, **options)

    monkeypatch.setattr(client._caller, "ask", counting)
    work(client, ["jobs", "more"], wait_ms=60_000)
    work(client, wait_ms=60_000)
    eventually(lambda: handlers.at_work == 2)
    before, until = sum(sent), monotonic() + 2
    while monotonic() < until:
        assert not handlers.gate.acquire(timeout=0.1)
    assert sum(sent) - before <= 4
    for done in range(10):
        handlers.gate.release()
        eventually(lambda done=done: handlers.done == done + 1)  # type: ignore[misc]
        eventually(lambda done=done: handlers.at_work == min(2, 9 - done))  # type: ignore[misc]
    assert handlers.most == 2


def test_a_limit_that_is_raised_counts_at_once(client: Client, handlers: Handlers, work: Callable[..., Worker]) -> None:
    limit(client, 1)
    fill(client, 20)
    for _ in range(3):
        work(client, wait_ms=60_000, concurrency=2)
    eventually(lambda: handlers.at_work == 1)
    limit(client, 3)
    eventually(lambda: handlers.at_work == 3)
    assert handlers.most == 3
    limit(client, None)
    eventually(lambda: handlers.at_work == 6)


def test_a_limit_that_is_set_counts_at_once(client: Client, handlers: Handlers, work: Callable[..., Worker]) -> None:
    workers = [work(client, wait_ms=60_000) for _ in range(2)]
    fill(client, 3)
    eventually(lambda: handlers.at_work == 3)
    limit(client, 2)
    fill(client, 10)
    handlers.gate.release(1)
    eventually(lambda: handlers.done == 1)
    handlers.gate.release(1)
    eventually(lambda: handlers.done >= 2 and handlers.at_work == 2)
    handlers.gate.release(100)
    eventually(lambda: sum(worker.counts.done for worker in workers) == 13)


@pytest.mark.parametrize("end", ["ack", "nack", "release", "delete", "raise"])
@pytest.mark.parametrize("reports", [False, True])
def test_a_dequeue_at_the_limit_waits_until_it_may_have_an_item(client: Client, end: str, reports: bool) -> None:
    limit(client, 1)
    fill(client, 3)
    how: dict[str, Any] = {"holding": {"jobs": 0}} if reports else {"worker": "w"}
    (first,) = client.dequeue("jobs", 3, **how)
    if reports:
        how = {"holding": {"jobs": 1}}
    begun = monotonic()
    empty = client.dequeue("jobs", 3, wait_ms=300, **how)
    assert (list(empty), empty.reason) == ([], "per_worker")
    assert monotonic() - begun >= 0.29
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(client.dequeue("jobs", 3, wait_ms=60_000, **how)))
    thread.start()
    eventually(lambda: client._places._asks if reports else True)
    assert not got
    if end == "ack":
        client.ack(first)
    elif end == "nack":
        client.nack(first, delay_ms=60_000)
    elif end == "release":
        client.release(first)
    elif end == "delete":
        assert client.delete_items([first.id]) == [None]
    else:
        limit(client, 2)
    thread.join(LATER)
    assert len(got[0]) == 1
