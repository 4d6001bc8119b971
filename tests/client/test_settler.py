"""Outcomes reach the server: refused nacks are sent again, and acks go with the next dequeue."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from foqs.bounds import REASON_BYTES
from foqs.client import AckPolicy, Backoff, Client, FailureCause, Item, ItemSpec, Job, Retry, Worker
from foqs.client._sync.job import Held
from foqs.client._sync.leases import Leases
from foqs.client._sync.settler import Ending, Room
from foqs.client.ending import SHORT_REASON_BYTES, without_refused
from foqs.client.items import Nack
from foqs.idl import idl
from foqs.ids import make_id
from tests.client.peer import LATER, Act, eventually, failed, refused, script
from tests.client.real_server import on_each_host

LONG = "metadata has 10240 bytes, more than 4096"
FAR = "delay_ms is 9007199254740993, not in 0..31622400000"


@pytest.mark.memory
@pytest.mark.parametrize(
    ("nack", "why", "left"),
    [
        (Nack(1, 2, 5, b"m", None, "E", True), LONG, Nack(1, 2, 5, None, None, f"E; sent without metadata, which was refused: {LONG}", True)),  # noqa: E501
        (Nack(1, 2, 5, b"m", None, "Retry"), FAR, Nack(1, 2, 77, b"m", None, f"Retry; sent without delay_ms, which was refused: {FAR}", True)),  # noqa: E501
        (Nack(1, 2, 5, b"m", None, "E", True), FAR, Nack(1, 2, None, b"m", None, f"E; sent without delay_ms, which was refused: {FAR}", True)),  # noqa: E501
        (Nack(1, 2, 5, b"m"), "no", Nack(1, 2, 5, None, None, "sent without metadata, which was refused: no")),
        (Nack(1, 2, 5), "no", Nack(1, 2, 77, None, None, "sent without delay_ms, which was refused: no", True)),
        (Nack(1, 2, None, None, None, "r" * 70, None, True), "reason is long", Nack(1, 2, None, None, None, "r" * 64, None, True)),  # noqa: E501
        (Nack(1, 2, None, None, None, "r" * 64, None, True), "reason is long", Nack(1, 2, reject=True)),
        (Nack(1, 2, reject=True), "reason is long", None),
        (Nack(1, 2, None, None, None, "E", True), LONG, None),
        (Nack(1, 2, None, None, None, "E", True), "no", None),
    ],
)  # fmt: skip
def test_only_the_refused_part_is_left_out(nack: Nack, why: str, left: Nack | None) -> None:
    assert without_refused(nack, why, 77) == left


@pytest.mark.memory
def test_repairs_end_and_their_reasons_fit() -> None:
    nack: Nack | None = Nack(1, 2, 5, b"m", None, "ü" * 512)
    for why in [FAR, LONG, FAR, "delay_ms", "reason", "reason", "metadata", "no"] * 2:
        if nack is None:
            break
        assert len((nack.reason or "").encode()) <= REASON_BYTES
        nack = without_refused(nack, why, 77)
    assert nack is None
    assert SHORT_REASON_BYTES < REASON_BYTES


def work_once(client: Any, act: Callable[[Item, Job], object], **options: Any) -> Worker:
    """Return a worker that calls `act` in the first attempt of an item."""

    def handle(item: Item, job: Job) -> object:
        return act(item, job) if item.attempt == 1 else None

    settings = {"concurrency": 4, "wait_ms": 50, "backoff": Backoff(7, 7, jitter=0), "grace_ms": LATER * 1000}
    return Worker(client, "t", handle, **{**settings, **options})


def far(item: Item, job: Job) -> None:
    job.metadata = b"kept"
    raise Retry(delay_ms=10**15)


def fault_of(entry: Any) -> Any:
    if len(entry.metadata or b"") > 4096:
        return failed(1, message=LONG)
    return failed(1, message=FAR) if (entry.delay_ms or 0) > 31_622_400_000 else None


def test_a_refused_nack_harms_no_other_one(new_peer: Any, client_of: Any, caplog: Any) -> None:
    """Those of one request: the server refuses long metadata and a long delay, and one nack fits no frame."""

    def limited(name: str, request: Any) -> Any:
        if name != "Nack":
            return Act.SERVE
        faults = list(map(fault_of, request.items))
        peer.Nack(idl.NackRequest([one for one, fault in zip(request.items, faults, strict=True) if fault is None]))
        return idl.NackResponse([idl.ItemOutcome(fault) for fault in faults])

    peer = new_peer(limited)
    client = client_of(peer, max_frame_bytes=100_000)
    client.enqueue_many([ItemSpec("t", payload) for payload in (b"long", b"far", b"frame", b"good")])

    def act(item: Item, job: Job) -> None:
        job.metadata = {b"long": b"m" * 10_240, b"frame": b"m" * 200_000}.get(item.payload, b"kept")
        if item.payload == b"far":
            raise Retry(delay_ms=10**15)
        raise ValueError(item.payload.decode())

    with work_once(client, act, report_errors=True, ack_linger_ms=200) as worker:
        eventually(lambda: worker.counts.done == 4)
    reasons = {nack.id: (nack.metadata, nack.reason.partition(":")[0]) for nack in peer.nacked}
    assert len(peer.nacked) == 4
    assert reasons[4] == (b"kept", "ValueError")
    assert reasons[2] == (b"kept", "Retry; sent without delay_ms, which was refused")
    assert [(nack.delay_ms, nack.failed) for nack in peer.nacked if nack.id == 2] == [(7, True)]
    assert [reasons[item_id][0] for item_id in (1, 3)] == [None, None]
    assert [nack.reason for nack in peer.nacked if nack.id == 1] == [
        f"ValueError: long; sent without metadata, which was refused: {LONG}"
    ]
    assert "the nack of Item(1 topic='t' attempt=1) was refused: metadata has 10240 bytes" in caplog.text
    assert (worker.counts.failed, worker.counts.unsettled) == (4, 0)


def test_a_nack_that_is_always_refused_is_given_up(new_peer: Any, client_of: Any) -> None:
    peer = new_peer(lambda name, request: Act.SERVE)
    peer.meddle = lambda name, request: (
        idl.NackResponse([idl.ItemOutcome(failed(1)) for _ in request.items]) if name == "Nack" else Act.SERVE
    )
    client = client_of(peer)
    client.enqueue("t", b"x")
    with work_once(client, far) as worker:
        eventually(lambda: worker.counts.unsettled == 1)
        peer.meddle = lambda name, request: Act.SERVE


@on_each_host
@pytest.mark.process
@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
def test_a_real_host_gets_the_reason(client: Any, policy: AckPolicy) -> None:
    """The last attempt fails with metadata that is too long: the dead letter has both reasons."""
    client.put_settings({"topic.t": '{"max_attempts": 1}'})
    ids = client.enqueue_many([ItemSpec("t", payload) for payload in (b"long", b"far", b"good")])

    def act(item: Item, job: Job) -> None:
        job.metadata = b"m" * 10_240 if item.payload == b"long" else b"kept"
        delay_ms = 10**15 if item.payload == b"far" else None
        if policy is AckPolicy.MANUAL:
            job.nack(delay_ms, "why")
        elif delay_ms is not None:
            raise Retry(delay_ms)
        else:
            raise ValueError("why")

    with work_once(client, act, report_errors=True, ack_policy=policy):
        eventually(lambda: all(client.get_item(item_id).topic == "t.dlq" for item_id in ids))
    long, far_away, good = (client.get_item(item_id) for item_id in ids)
    assert f"why; sent without metadata, which was refused: {LONG}" in long.failure.reason
    assert "sent without delay_ms, which was refused: delay_ms is 1000000000000000, not in" in far_away.failure.reason
    assert good.failure.reason.endswith("why")
    assert [one.metadata for one in (long, far_away, good)] == [None, b"kept", b"kept"]
    assert {one.failure.cause for one in (long, far_away, good)} == {FailureCause.FAILED}


BOTH = "AckAndDequeue"


@pytest.fixture
def work(start_worker):
    """`work(client, handler, ...)` is a worker that has no room beside the item at work, by default. It lingers for
    long enough that its own thread waits for room when an ack is due."""

    def start(client, handler=lambda item: None, **options):
        return start_worker(client, handler, **{"concurrency": 1, "prefetch": 0, "ack_linger_ms": 30, **options})

    return start


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
