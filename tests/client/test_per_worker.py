"""A topic with a bound on the items of each worker process, on a real host, and how a process counts its items."""

from __future__ import annotations

import os
import random
import select
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from foqs.client import Client, ItemSpec, Job, Worker, WorkerHung
from foqs.client._sync.requests import with_places
from foqs.client.items import Item
from foqs.client.methods import DEQUEUE
from foqs.client.per_worker import Ask, Places, Share, Waker, _process
from foqs.idl import idl
from tests.client.peer import LATER, eventually
from tests.client.real_server import Server, on_each_host


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Clients of other tests are in other namespaces, or gone."""
    yield
    assert not [places for places in _process.all if places._asks]


def places_of(*addresses: str, namespace: str = "places", whole: bool = True) -> Places:
    return Places(namespace, lambda: addresses or ("a:1",) if whole else None)


def items(first: int, number: int, topic: str = "t") -> list[Any]:
    return [Item(id=first + at, lease=1, topic=topic) for at in range(number)]


def answer(*got: Any, limit: int | None = 2, topic: str = "t") -> Any:
    return idl.DequeueResponse(list(got), per_worker=None if limit is None else {topic: limit})


def learned(limit: int = 2, **how: Any) -> tuple[Places, Share]:
    """A worker that knows the limit of the topic."""
    places = places_of(**how)
    share = places.share()
    places.ask({"t": 1}, share, wait=False).end(answer(limit=limit))
    return places, share


def woken(ask: Ask) -> bool:
    return bool(select.select([ask], [], [], 0)[0]) and ask.cuts()


def test_a_request_reports_what_all_workers_hold() -> None:
    places = places_of()
    one, two = places.share(), places.share()
    places.ask({"t": 5}, one, wait=False).end(answer(*items(1, 2), limit=None))
    places.ask({"t": 5}, two, wait=False).end(answer(*items(3, 1), limit=None))
    third = places.ask({"t": 5, "u": 1}, one, wait=True)
    assert (third.counts, third.holding) == ({"t": 5, "u": 1}, {"t": 3, "u": 0})
    third.end()
    one.remove([1, 3, 77])
    fourth = places.ask({"t": 5}, two, wait=True)
    assert fourth.holding == {"t": 2}
    fourth.end()
    one.clear()
    two.clear()
    assert not places._held


def test_a_request_reports_what_other_requests_may_bring() -> None:
    """The limit is not known yet: a host grants two to the first, and none to the second."""
    places = places_of()
    one, two = (places.ask({"t": 5}, places.share(), wait=True) for _ in range(2))
    assert (one.holding["t"], two.holding["t"]) == (0, 5)
    one.end(answer(*items(1, 2)))
    assert not woken(two)
    one.share.remove([1])  # type: ignore[union-attr]
    assert woken(two)
    two.end(answer())
    third = places.ask({"t": 5}, places.share(), wait=True)
    assert (third.counts["t"], third.holding["t"]) == (1, 1)
    third.end()


def test_requests_share_the_places_of_a_known_limit() -> None:
    places, share = learned(4)
    one = places.ask({"t": 3}, share, wait=True)
    two = places.ask({"t": 3}, places.share(), wait=True)
    three = places.ask({"t": 3}, places.share(), wait=True)
    assert [(ask.counts["t"], ask.holding["t"]) for ask in (one, two, three)] == [(3, 0), (1, 3), (3, 4)]
    two.end(answer(limit=4))
    assert woken(three), "its place is free"
    for ask in (one, three):
        ask.end()


def test_only_so_many_requests_are_woken_as_there_are_places() -> None:
    places, share = learned(1)
    first = places.ask({"t": 1}, share, wait=True)
    first.end(answer(*items(1, 1), limit=1))
    waiting = [places.ask({"t": 1}, places.share(), wait=True) for _ in range(3)]
    assert [ask.holding["t"] for ask in waiting] == [1, 2, 3], "a raised limit serves them one by one"
    share.remove([1])
    assert [woken(ask) for ask in waiting] == [True, False, False]
    for ask in waiting:
        ask.end()


def test_a_place_that_is_taken_again_wakes_no_request() -> None:
    places, share = learned(1)
    places.ask({"t": 1}, share, wait=True).end(answer(*items(1, 1), limit=1))
    waiting = places.ask({"t": 1}, places.share(), wait=True)
    share.remove([1])
    again = places.ask({"t": 1}, share, wait=True)
    assert not woken(waiting)
    again.end()
    assert woken(waiting)
    waiting.end()


def test_acks_that_go_along_leave_their_places_to_the_request() -> None:
    places, share = learned(2)
    held = items(1, 2)
    places.ask({"t": 2}, share, wait=False).end(answer(*held))
    ask = places.ask({"t": 2}, share, wait=False, acked=held[:1])
    assert (ask.counts["t"], ask.holding["t"]) == (1, 1)
    other = places.ask({"t": 2}, places.share(), wait=True)
    assert other.holding["t"] >= 2
    ask.end(answer(*items(3, 1)))
    share.remove([1])
    assert not woken(other)
    other.end()
    share.clear()


def test_a_lost_reply_brings_nothing() -> None:
    places, share = learned(2)
    places.ask({"t": 2}, share, wait=True).end()
    ask = places.ask({"t": 2}, share, wait=True)
    assert (ask.counts["t"], ask.holding["t"]) == (2, 0)
    ask.end()


def test_an_item_that_comes_again_counts_once() -> None:
    places, share = learned(9)
    for _ in range(2):
        places.ask({"t": 2}, share, wait=True).end(answer(*items(1, 1), limit=9))
    assert places._held["t"] == 1
    share.clear()


def test_a_limit_that_goes_is_forgotten() -> None:
    places, share = learned(1)
    ask = places.ask({"t": 7}, share, wait=True)
    assert ask.counts["t"] == 1
    ask.end(answer(limit=None))
    assert ask.learned
    ask = places.ask({"t": 7}, share, wait=True)
    assert ask.counts["t"] == 7
    ask.end()


@pytest.mark.parametrize(
    ("mine", "other", "same"),
    [
        ((("a:1",), True), (("a:1", "b:1"), True), True),
        ((("a:1",), True), (("b:1",), True), False),
        ((("a:1",), True), (("b:1",), False), True),
        ((("a:1",), False), (("b:1",), True), True),
    ],
)
def test_clients_of_one_service_share_their_places(mine: Any, other: Any, same: bool) -> None:
    one, two = (places_of(*addresses, whole=whole) for addresses, whole in (mine, other))
    elsewhere = places_of(*mine[0], namespace="other")
    one.ask({"t": 2}, one.share(), wait=True).end(answer(*items(1, 2)))
    asks = [places.ask({"t": 2}, places.share(), wait=True) for places in (two, elsewhere)]
    assert [ask.holding["t"] for ask in asks] == [2 * same, 0]
    for ask in asks:
        ask.end()


def test_a_caller_that_reports_its_items() -> None:
    places, _ = learned(2)
    first = places.ask({"t": 2}, {"t": 0}, wait=True)
    first.end(answer(*items(1, 2)))
    second = places.ask({"t": 2}, {"t": 2}, wait=True)
    assert second.holding["t"] == 2
    places.left([1, 99])
    assert woken(second)
    second.end(answer())
    assert second.given == {"t": 1}


def test_items_of_a_caller_leave_no_place_of_a_worker() -> None:
    places, share = learned(3)
    places.ask({"t": 1}, share, wait=True).end(answer(*items(1, 1), limit=3))
    places.ask({"t": 2}, {"t": 1}, wait=True).end(answer(*items(2, 2), limit=3))
    places.left([2, 3])
    ask = places.ask({"t": 3}, share, wait=True)
    assert (ask.counts["t"], ask.holding["t"]) == (2, 1)
    ask.end()
    share.clear()
    assert not places._held


def test_a_wait_is_repeated_until_its_end() -> None:
    places, share = learned(1)
    places.ask({"t": 1}, share, wait=True).end(answer(*items(1, 1), limit=1))
    seen: list[tuple[int, int]] = []

    def request(ask: Ask) -> Any:
        seen.append((ask.counts["t"], ask.holding["t"]))
        if len(seen) == 1:
            share.remove([1])
            assert woken(ask)
            return answer(limit=1)
        return answer(*items(2, 1), limit=1)

    found = with_places(places, {"t": 3}, places.share(), monotonic() + 60, request)
    assert [item.id for item in found.items] == [2]
    assert seen == [(3, 1), (1, 0)]


def test_a_request_that_fails_leaves_its_places() -> None:
    places, share = learned(1)

    def request(ask: Ask) -> Any:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        with_places(places, {"t": 3}, share, monotonic() + 60, request)
    assert not places._asks


def test_a_forked_child_holds_nothing() -> None:
    places, share = learned(2)
    places.ask({"t": 2}, share, wait=True).end(answer(*items(1, 2)))
    child = os.fork()
    if not child:
        ask = places.ask({"t": 2}, places.share(), wait=True)
        os._exit(ask.holding["t"])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    share.clear()


def test_a_process_without_file_descriptors_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> Any:
        raise OSError(24, "Too many open files")

    places, share = learned(1)
    monkeypatch.setattr(os, "pipe", full)
    ask = places.ask({"t": 1}, share, wait=True)
    assert ask.waker is None
    places.ask({"t": 1}, {"t": 3}, wait=True).end()
    ask.end()


def test_a_waker_takes_any_number_of_calls() -> None:
    waker = Waker()
    for _ in range(100_000):
        waker.wake()
    waker.rest()
    while select.select([waker], [], [], 0)[0]:
        waker.rest()


@pytest.mark.parametrize("seed", range(20))
def test_requests_never_bring_more_than_the_limit(seed: int) -> None:
    """Against a host that serves each request by its report and the present limit, which changes."""
    rng = random.Random(seed)
    limit, ids = rng.randint(1, 5), iter(range(1, 100_000))
    clients = [places_of("a:1", namespace=f"model{seed}") for _ in range(2)]
    shares = [rng.choice(clients).share() for _ in range(4)]
    open_: list[Ask] = []

    def held() -> int:
        return sum(len(share.topics) for share in shares)

    for _ in range(2_000):
        step = rng.random()
        if step < 0.4:
            idle = [share for share in shares if all(ask.share is not share for ask in open_)]
            if idle:
                share = rng.choice(idle)
                open_.append(share._places.ask({"t": rng.randint(1, 5)}, share, wait=True))
        elif step < 0.75 and open_:
            ask = open_.pop(rng.randrange(len(open_)))
            room = max(0, min(ask.counts["t"], limit - ask.holding["t"]))
            got = rng.randint(0, room) if rng.random() < 0.8 else None
            before = held()
            if got is None:
                ask.end()
            else:
                ask.end(answer(*(Item(id=next(ids), lease=1, topic="t") for _ in range(got)), limit=limit))
            assert held() <= max(limit, before), (limit, before, held())
        elif step < 0.98:
            share = rng.choice(shares)
            share.remove(rng.sample(sorted(share.topics), min(len(share.topics), rng.randint(0, 2))))
        else:
            limit = rng.randint(1, 5)
            for ask in [ask for ask in open_ if ask.holding["t"] >= limit]:  # a host answers these at once
                open_.remove(ask)
                ask.end(answer(limit=limit))
    for share in shares:
        share.clear()
    served = [ask for ask in open_ if ask.holding["t"] < limit]
    assert served or not open_ or any(woken(ask) for ask in open_), "requests wait for each other"
    for ask in open_:
        ask.end()


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


@on_each_host
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


@on_each_host
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


@on_each_host
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


@on_each_host
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


@on_each_host
def test_a_worker_at_its_limit_sends_one_request_for_each_wait(
    client: Client, handlers: Handlers, work: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(client, 2)
    fill(client, 10)
    sent: list[int] = []
    send = client._caller.send

    def counting(method: Any, *how: Any, **options: Any) -> Any:
        sent.append(method is DEQUEUE)
        return send(method, *how, **options)

    monkeypatch.setattr(client._caller, "send", counting)
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


@on_each_host
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
    assert monotonic() - begun >= 0.1  # it did wait: on a busy machine the host's clock may be 50 ms old
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
