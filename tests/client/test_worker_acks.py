"""A worker whose acks go with its next dequeue: fewer requests, and the same outcomes whatever happens to them."""

import threading
from queue import SimpleQueue

import pytest

from foqs.client import Client, ItemSpec, Worker
from foqs.client.job import Held
from foqs.client.leases import Leases
from foqs.client.settler import Ending, Room
from foqs.idl import idl
from foqs.ids import make_id
from tests.client.peer import LATER, Act, eventually, failed, refused, script

BOTH = "AckAndDequeue"


@pytest.fixture
def work():
    """`work(client, handler, ...)` is a started worker, stopped after the test. By default it has no room beside the
    item at work, and lingers for long enough that its own thread waits for room when an ack is due."""
    workers: list[Worker] = []

    def start(client, handler=lambda item: None, **options):
        settings = {"concurrency": 1, "prefetch": 0, "wait_ms": 100, "grace_ms": LATER * 1000, "ack_linger_ms": 30}
        settings |= options
        workers.append(Worker(client, "t", handler, **settings))
        workers[-1].start()
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop(grace_ms=100)
    for worker in workers:
        assert worker.join(LATER * 1000)


def enqueue(client, count):
    client.enqueue_many([ItemSpec("t", str(n).encode()) for n in range(count)])


def done(worker, count):
    eventually(lambda: worker.counts.done == count)
    assert (worker.counts.lost, worker.counts.unsettled, worker.counts.failed) == (0, 0, 0)


def test_a_busy_worker_makes_one_request_an_item(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 30)
    done(work(client, ack_linger_ms=LATER * 1000), 30)
    assert len(peer.named(BOTH)) == 30
    assert not peer.named("Ack")
    assert sorted(peer.acked) == list(range(1, 31))
    assert not any(request.wait_ms for request in peer.named(BOTH)), "outcomes wait for no first item"


def test_no_more_items_are_held_than_asked_for(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 60)
    most = 0

    def watch(name, request):
        nonlocal most
        most = max(most, sum(item.lease != 0 for item in list(peer.items.values())))
        return Act.SERVE

    peer.meddle = watch
    done(work(client, concurrency=3, prefetch=2), 60)
    assert most == 5


def test_a_worker_with_room_does_not_wait_for_acks(peer, client_of, work, gate):
    """One handler is at work. The outcome of the other one goes by itself, as the worker waits for items."""
    client = client_of(peer)
    enqueue(client, 2)
    work(client, lambda item: item.payload == b"1" or gate.wait(LATER), concurrency=2, prefetch=4)
    eventually(lambda: peer.acked == [2])
    assert len(peer.named("Ack")) == 1
    assert not peer.named(BOTH)
    gate.set()


@pytest.mark.parametrize(
    "act", [Act.CLOSE_BEFORE, Act.CLOSE_AFTER, Act.GOAWAY, Act.JUNK, Act.HALF, refused(1), refused(4), refused(8)]
)
def test_acks_of_a_failed_request_are_sent_again(new_peer, client_of, work, act):
    """The items of a lost answer are delivered again when their leases are over, and then acked."""
    peer = new_peer(script(BOTH, Act.SERVE, act))
    client = client_of(peer)
    enqueue(client, 5)
    done(work(client, lease_ms=300), 5)
    assert sorted(peer.acked) == [1, 2, 3, 4, 5]
    assert len(peer.named("Ack")) >= 1


@pytest.mark.parametrize("code", [4, 5, 6])
def test_an_ack_that_failed_alone_is_sent_again(new_peer, client_of, work, code):
    answer = idl.AckAndDequeueResponse([idl.ItemOutcome(failed(code))], [])
    peer = new_peer(script(BOTH, answer))
    client = client_of(peer)
    enqueue(client, 3)
    done(work(client), 3)
    assert [entry.id for entry in peer.named("Ack")[0].items] == [1]


def test_an_ack_in_doubt_that_finds_its_item_gone_is_done(new_peer, client_of, work):
    def meddle(name, request):
        if name == BOTH and not peer.acked:
            peer.Ack(idl.AckRequest(items=request.acks))
            return idl.AckAndDequeueResponse([idl.ItemOutcome(failed(6))], [])
        return Act.SERVE

    peer = new_peer(meddle)
    client = client_of(peer)
    enqueue(client, 1)
    done(work(client), 1)
    assert len(peer.named("Ack")) == 1


def test_a_lost_lease_is_counted(new_peer, client_of, work):
    peer = new_peer(script(BOTH, idl.AckAndDequeueResponse([idl.ItemOutcome(failed(3))], [])))
    client = client_of(peer)
    enqueue(client, 1)
    worker = work(client)
    eventually(lambda: worker.counts.lost == 1)
    assert not peer.named("Ack")


def test_a_refused_dequeue_is_asked_again(new_peer, client_of, work):
    def meddle(name, request):
        if name == BOTH and not peer.acked:
            outcomes = peer.Ack(idl.AckRequest(items=request.acks)).outcomes
            return idl.AckAndDequeueResponse(outcomes, [], error=failed(5))
        return Act.SERVE

    peer = new_peer(meddle)
    client = client_of(peer)
    enqueue(client, 2)
    done(work(client), 2)
    assert len(peer.named("Dequeue")) >= 2


def test_a_fault_of_the_worker_loses_no_outcome(peer, client_of):
    client = client_of(peer)
    enqueue(client, 2)

    def fault(*args, **options):
        raise RuntimeError("a fault")

    client.combined.ask = fault
    worker = Worker(client, "t", lambda item: None, concurrency=1, prefetch=0, wait_ms=100, ack_linger_ms=30)
    with pytest.raises(RuntimeError, match="a fault"):
        worker.run()
    assert (peer.acked, worker.counts.done) == ([1], 1)


def test_a_silent_request_holds_up_few_outcomes(new_peer, client_of, work, gate):
    answers = threading.Event()

    def meddle(name, request):
        if name == BOTH:
            answers.wait(LATER)
        return Act.SERVE

    peer = new_peer(meddle)
    client = client_of(peer)
    enqueue(client, 2)
    worker = work(client, lambda item: item.payload == b"0" or gate.wait(LATER), concurrency=2)
    eventually(lambda: peer.named(BOTH))
    gate.set()
    eventually(lambda: peer.acked == [2])
    assert [entry.id for entry in peer.named(BOTH)[0].acks] == [1]
    answers.set()
    done(worker, 2)


def test_nacks_go_by_themselves(peer, client_of, work):
    client = client_of(peer)
    enqueue(client, 6)
    bad = {b"1", b"4"}

    def handle(item):
        if item.payload in bad and item.attempt == 1:
            raise ValueError

    worker = work(client, handle, concurrency=6)
    eventually(lambda: worker.counts.failed == 2)
    assert len(peer.nacked) == 2
    eventually(lambda: len(peer.acked) == 4)


def test_of_several_hosts_each_gets_its_own_acks(new_peer, client_of, work):
    peers = [new_peer(), new_peer()]
    for number, peer in enumerate(peers, 1):
        peer.first_id(make_id(number, 1))
        peer.tell(peers, dict(enumerate(peers, 1)))
        with Client(peer.address, routing=False) as producer:
            enqueue(producer, 40)
    client = client_of(peers[0])
    client.server_info()
    eventually(lambda: len(client._router.routes.owners) == 2)
    done(work(client, concurrency=4, prefetch=4), 80)
    for number, peer in enumerate(peers, 1):
        requests = [request.acks for request in peer.named(BOTH)] + [request.items for request in peer.named("Ack")]
        assert {entry.id >> 48 for entries in requests for entry in entries} == {number}


# ------------------------------------------------------------------------------------------ the room


def room(client, held, *, queued=0, capacity=2):
    leases = Leases(client, 30_000, capacity)
    leases._held = {n: Held(idl.Item(id=n), 0.0, 0.0) for n in range(held)}
    stopping, queue = threading.Event(), SimpleQueue()
    for _ in range(queued):
        queue.put(None)
    return Room(leases, stopping, queue, 1), leases, stopping


def taken(room):
    """A thread in `wait`, and what that returns."""
    found = []
    thread = threading.Thread(target=lambda: found.append(room.wait()), daemon=True)
    thread.start()
    eventually(lambda: room._waits)
    return thread, found


def test_acks_are_taken_by_a_thread_that_waits_for_room(peer, client_of):
    one, leases, _ = room(client_of(peer), held=2)
    acks = [Ending(held, None) for held in leases._held.values()]
    assert not one.offer(acks), "no thread waits"
    thread, found = taken(one)
    assert one.offer(acks)
    thread.join(LATER)
    assert found == [(0, acks)]
    assert not one.offer(acks)


def test_acks_that_make_no_room_are_not_taken(peer, client_of):
    one, leases, stopping = room(client_of(peer), held=4)
    thread, found = taken(one)
    acks = [Ending(leases._held[0], None)]
    assert not one.offer(acks * 2)
    assert one.offer(acks * 3)
    thread.join(LATER)
    assert found == [(-2, acks * 3)]
    stopping.set()
    assert one.wait() == (-2, [])
    assert not one.offer(acks * 3)


def test_acks_are_not_taken_while_handlers_have_work(peer, client_of):
    one, leases, stopping = room(client_of(peer), held=2, queued=2)
    thread, found = taken(one)
    assert not one.offer([Ending(leases._held[0], None)])
    stopping.set()
    with leases.change:
        leases.change.notify_all()
    thread.join(LATER)
    assert found == [(0, [])]
