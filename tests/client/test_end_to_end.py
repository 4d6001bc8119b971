"""The client against real servers and real processes: `foqs dev`, killed and started again on the same data."""

import json
import signal
import threading
import time

import pytest

from foqs.client import (
    Backoff,
    Client,
    Delivery,
    FoqsError,
    Invalid,
    Item,
    ItemSpec,
    ItemState,
    NotFound,
    OutcomeUnknown,
    Producer,
    StaleLease,
    Unavailable,
    Worker,
)
from tests.client.peer import LATER, eventually
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host


def leased(client: Client, topic: str, count: int, lease_ms: int) -> list[Item]:
    """At least so many, in the order in which they came: a dequeue waits for the first alone, and of a shard that was
    idle its owner must be confirmed again before it gives any."""
    items: list[Item] = []
    while len(items) < count and (found := client.dequeue(topic, 10, lease_ms=lease_ms, wait_ms=PATIENT_MS)):
        items += found
    return items


@on_each_host
def test_the_whole_life_of_items(client: Client) -> None:
    urgent = client.enqueue("mail", b"urgent", priority=-1, headers={"a": "b"}, metadata=b"m", ttl_ms=3_600_000)
    plain, bad = client.enqueue_many([ItemSpec("mail", b"plain"), ItemSpec("", b"no topic")])
    assert isinstance(plain, int)
    assert isinstance(bad, Invalid)

    first, second = leased(client, "mail", 2, lease_ms=600_000)
    assert (first.id, first.payload, first.headers, first.metadata) == (urgent, b"urgent", {"a": "b"}, b"m")
    assert (second.id, second.attempt, second.ns) == (plain, 1, "shop")
    assert client.get_item(hex(urgent)).state == ItemState.LEASED
    assert client.dequeue("mail") == []

    client.extend(first, 1_200_000)
    client.ack(first)
    with pytest.raises(NotFound):
        client.ack(first)
    with pytest.raises(NotFound):
        client.get_item(urgent)

    client.nack(second, metadata=b"half done")
    (again,) = client.dequeue("mail", wait_ms=PATIENT_MS)
    assert (again.attempt, again.metadata) == (2, b"half done")
    with pytest.raises(StaleLease):
        client.ack(second)
    client.release(again)
    (again,) = client.dequeue("mail", wait_ms=PATIENT_MS)
    assert again.attempt == 2
    client.nack(again, delay_ms=3_600_000)
    assert [item.state for item in client.list_items("mail")] == [ItemState.DELAYED]
    assert client.delete_items([hex(plain)])[0] is None
    assert isinstance(client.delete_items([plain])[0], NotFound)


@on_each_host
def test_looking_around(client: Client) -> None:
    client.enqueue_many([ItemSpec(f"t{n}", b"x") for n in range(25)])
    assert {topic.topic for topic in client.active_topics(page_topics=10)} == {f"t{n}" for n in range(25)}
    client.enqueue_many([ItemSpec("many", b"x") for _ in range(120)])
    assert len({item.id for item in client.list_items("many", page_items=50)}) == 120
    assert client.server_info().limits["request_items"] == 10_000
    with Client(client.address, "elsewhere") as other:
        assert list(other.active_topics()) == []
        assert other.dequeue("many") == []


@on_each_host
def test_a_waiting_consumer_is_woken_by_the_enqueue(client: Client) -> None:
    found: list[float] = []

    def consume() -> None:
        assert client.dequeue("t", wait_ms=120_000)
        found.append(time.monotonic())

    thread = threading.Thread(target=consume)
    thread.start()
    client.enqueue("t", b"x")
    enqueued = time.monotonic()
    thread.join(150)
    assert found[0] - enqueued < 30


@on_each_host
def test_large_batches_and_large_items(client: Client) -> None:
    large = [ItemSpec("large", bytes([n]) * 1_000_000) for n in range(40)]
    ids = client.enqueue_many([*large, ItemSpec("large", b"x" * 2_000_000)])
    assert isinstance(ids[-1], Invalid)
    seen: list[int] = []
    while len(seen) < 40 and (items := client.dequeue("large", 100, wait_ms=PATIENT_MS)):
        seen += [item.id for item in items]
        assert client.ack_many(items) == [None] * len(items)
    assert sorted(seen) == sorted(ids[:-1])
    assert client.dequeue("large", 100) == []
    assert all(type(item_id) is int for item_id in client.enqueue_many([ItemSpec("s", b"")] * 12_000))


@on_each_host
def test_a_producer_and_a_worker(client: Client) -> None:
    seen: list[bytes] = []
    failed = 0

    def handle(item):
        nonlocal failed
        if item.payload == b"7" and item.attempt < 3:
            failed += 1
            raise ValueError
        seen.append(item.payload)

    with (
        Worker(client, "t", handle, concurrency=4, prefetch=200, backoff=Backoff(first_ms=1)) as worker,
        Producer(client) as producer,
    ):
        futures = [producer.enqueue("t", str(n).encode(), priority=n % 5) for n in range(3_000)]
        assert len({future.result(60) for future in futures}) == 3_000
        eventually(lambda: worker.counts.done == 3_000, timeout_s=90)
    assert sorted(seen, key=int) == [str(n).encode() for n in range(3_000)]
    assert failed == 2
    assert list(client.list_items("t")) == []


LEASE_MS = 5_000
"""Only leases of killed consumers end, and those soon."""


class History:
    """The replies to producers and consumers, while a server is killed under them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stored: dict[int, bytes] = {}
        self.unknown: set[bytes] = set()
        self.delivered: dict[int, bytes] = {}
        self.deliveries = 0
        self.acked: set[int] = set()
        self.errors: list[object] = []
        self.ending = threading.Event()

    def produce(self) -> None:
        number = 0
        while not self.ending.is_set():
            number += 1
            payload = str(number).encode()
            try:
                self.stored[self.client.enqueue("t", payload)] = payload
            except OutcomeUnknown:
                self.unknown.add(payload)
            except FoqsError as error:
                self.errors.append(error)

    def consume(self) -> None:
        while not self.ending.is_set():
            items = self.client.dequeue("t", 10, wait_ms=200, lease_ms=LEASE_MS)
            self.errors += [item for item in items if item.id in self.acked]
            for item in items:
                self.handle(item)
            for item, error in zip(items, self.client.ack_many(items), strict=True):
                if error is None:
                    self.acked.add(item.id)

    def handle(self, item) -> None:
        self.deliveries += 1
        self.delivered[item.id] = item.payload


def test_a_kill_of_the_server_undoes_no_acknowledged_change(server: Server) -> None:
    """Producer, consumer and worker go on over kill -9 and a restart on the same data and port, several times."""
    with Client(server.address, "shop", timeout_ms=PATIENT_MS) as client:
        history = History(client)
        threads = [threading.Thread(target=history.produce), threading.Thread(target=history.consume)]
        with Worker(client, "t", history.handle, concurrency=2, prefetch=20, lease_ms=LEASE_MS, wait_ms=200):
            for thread in threads:
                thread.start()
            try:
                for _ in range(3):
                    before = len(history.stored)
                    eventually(lambda before=before: len(history.stored) > before + 100, timeout_s=120)
                    server.kill()
                    server.start()
                before = len(history.stored)
                eventually(lambda: len(history.stored) > before + 50, timeout_s=120)
            finally:
                history.ending.set()  # or the threads of a failed test would fill the memory
            for thread in threads:
                thread.join(PATIENT_MS / 1000)
            eventually(lambda: not list(client.list_items("t")), timeout_s=60)
    assert history.errors == [], "every enqueue had time to be tried again, and nothing that was acked came back"
    assert history.acked
    stored, delivered = history.stored, history.delivered
    assert {item_id: delivered[item_id] for item_id in stored} == stored
    others = [delivered[item_id] for item_id in delivered.keys() - stored.keys()]
    assert len(others) == len(set(others)), "an item of unknown outcome was stored once at most"
    assert set(others) <= history.unknown
    assert history.deliveries - len(delivered) <= 3 * (22 + 10), "only items in progress at a kill came again"


def test_a_worker_goes_on_after_the_server_was_away(server: Server, client: Client) -> None:
    seen: list[bytes] = []
    with Worker(client, "t", lambda item: seen.append(item.payload), wait_ms=200) as worker:
        client.enqueue("t", b"before")
        eventually(lambda: worker.counts.done == 1)
        server.kill()
        server.start()
        client.enqueue("t", b"after")
        eventually(lambda: seen[-1] == b"after", timeout_s=60)


@on_each_host
def test_sigterm_gives_back_items_not_started(client: Client, worker_process) -> None:
    client.enqueue_many([ItemSpec("t", str(n).encode()) for n in range(10)])
    process = worker_process(
        """
        class Handler:
            def handle(self, item, job):
                os.write(1, b"%d\\n" % item.id)
                job.stopping.wait(30)

        Worker(client, "t", Handler(), concurrency=2, prefetch=4, wait_ms=200, lease_ms=600_000).run()
        print("ended", flush=True)
        """
    )
    begun = {int(process.stdout.readline()) for _ in range(2)}
    eventually(lambda: len(list(client.list_items("t", state=ItemState.LEASED))) == 6)
    process.terminate()
    assert process.wait(LATER) == 0
    assert process.stdout.read() == "ended\n"
    left = list(client.list_items("t"))
    assert {item.state for item in left} == {ItemState.READY}
    assert len(left) == 8
    assert begun.isdisjoint(item.id for item in left)
    assert {item.attempt for item in client.dequeue("t", 10, wait_ms=PATIENT_MS)} == {1}


@on_each_host
def test_a_killed_worker_loses_at_most_once_items_only(client: Client, worker_process) -> None:
    again = client.enqueue("t", b"again")
    client.enqueue("t", b"once", delivery=Delivery.AT_MOST_ONCE)
    process = worker_process(
        """
        def handle(item):
            os.write(1, b"%d\\n" % item.id)
            time.sleep(60)

        Worker(client, "t", handle, concurrency=2, prefetch=0, lease_ms=5_000).run()
        """
    )
    for _ in range(2):
        assert process.stdout.readline()
    first_end_ms = client.get_item(again).lease_expires_at_ms
    eventually(lambda: time.time() * 1000 > first_end_ms + 500)
    assert client.dequeue("t") == [], "they are extended while the handlers run"
    process.kill()
    process.wait(LATER)
    (item,) = client.dequeue("t", 10, wait_ms=PATIENT_MS)
    assert (item.id, item.attempt) == (again, 2)
    client.ack(item)
    eventually(lambda: not list(client.list_items("t")))


def test_a_frozen_server_differs_from_a_busy_one(server: Server, client: Client) -> None:
    client.enqueue("t", b"x")
    server.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        client.enqueue("t", b"y", timeout_ms=1_000)
    with pytest.raises(Unavailable):
        client.server_info(timeout_ms=1_000)
    assert time.monotonic() - started < 20
    server.process.send_signal(signal.SIGCONT)
    assert client.server_info().version


@on_each_host
def test_pipes(server: Server) -> None:
    lines = b"".join(json.dumps({"payload": f"line {n}", "priority": n}).encode() + b"\n" for n in range(1_200))
    enqueued = foqs(server, "enqueue", "t", stdin=lines)
    assert (enqueued.returncode, enqueued.stderr) == (0, b"")
    assert len({json.loads(line)["id"] for line in enqueued.stdout.splitlines()}) == 1_200
    assert json.loads(foqs(server, "topics").stdout)["topic"] == "t"
    dequeued = foqs(server, "dequeue", "t", "--count", "1200", "--wait-ms", str(PATIENT_MS))
    assert [json.loads(line)["payload"] for line in dequeued.stdout.splitlines()] == [f"line {n}" for n in range(1_200)]
    first, *others = dequeued.stdout.splitlines(keepends=True)
    assert foqs(server, "ack", stdin=b"".join(others)).returncode == 0
    item = json.loads(first)
    assert foqs(server, "nack", item["id"], item["lease"], "--release").returncode == 0
    assert json.loads(foqs(server, "item", item["id"]).stdout)["state"] == "READY"
    assert foqs(server, "dequeue", "t", "--ack", "--wait-ms", str(PATIENT_MS)).returncode == 0
    gone = foqs(server, "item", item["id"])
    assert gone.returncode == 1
    assert gone.stderr.startswith(b"foqs: ")
