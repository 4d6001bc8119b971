"""The life of a worker: handlers, leases, acks, nacks, outages and its end."""

import asyncio  # async only
import time
from functools import partial
from time import monotonic

import pytest

from foqs.client import AckPolicy, AsyncWorker, Backoff, Delivery, Forbidden, ItemSpec, Retry
from foqs.client._async.waits import Event
from foqs.errors import Unavailable  # async only
from foqs.idl import idl
from tests.client._async.helpers import eventually, nothing, noting, waiting
from tests.client.peer import LATER, Act, failed, refused, script

pytestmark = [pytest.mark.anyio, pytest.mark.threads]  # async only


@pytest.fixture
def work(start_worker):
    return partial(start_worker, backoff=Backoff(first_ms=1, longest_ms=5))


async def enqueue(client, count, **fields):
    return await client.enqueue_many([ItemSpec("t", str(n).encode(), **fields) for n in range(count)])


async def test_every_item_is_handled_once_and_acked_in_batches(peer, client_of, work):
    client = await client_of(peer)
    ids = await enqueue(client, 300)
    seen: list[bytes] = []
    worker = await work(client, noting(seen), concurrency=4, prefetch=100)
    await eventually(lambda: worker.counts.done == 300)
    assert sorted(peer.acked) == ids
    assert sorted(seen, key=int) == [str(n).encode() for n in range(300)]
    assert len(peer.named("Ack")) < 300


async def test_a_failed_item_comes_again_after_its_backoff(peer, client_of, work):
    client = await client_of(peer)
    await enqueue(client, 1)
    attempts: list[int] = []

    async def fail_twice(item):
        attempts.append(item.attempt)
        if item.attempt < 3:
            raise ValueError("secret")

    worker = await work(client, fail_twice, backoff=Backoff(first_ms=20, longest_ms=1_000, jitter=0))
    await eventually(lambda: worker.counts.done == 1)
    assert attempts == [1, 2, 3]
    assert worker.counts.failed == 2
    assert [entry.delay_ms for entry in peer.nacked] == [20, 40]
    assert {entry.reason for entry in peer.nacked} == {"ValueError"}


async def test_a_handler_may_say_when_and_leave_its_progress(peer, client_of, work):
    client = await client_of(peer)
    await enqueue(client, 1)
    states: list[bytes | None] = []

    class Steps:
        async def handle(self, item, job):
            states.append(item.metadata)
            if item.attempt == 1:
                raise Retry(delay_ms=1, metadata=b"one")
            if item.attempt == 2:
                job.metadata = b"two"
                raise RuntimeError

    worker = await work(client, Steps)
    await eventually(lambda: worker.counts.done == 1)
    assert states == [None, b"one", b"two"]


async def test_a_class_is_made_for_each_handler_an_object_is_shared(peer, client_of, work):
    made: list[object] = []

    class Handler:
        def __init__(self):
            made.append(self)

        async def handle(self, item, job):
            pass

    await work(await client_of(peer), Handler, concurrency=3)
    assert len(made) == 3
    await work(await client_of(peer), Handler(), concurrency=3)
    assert len(made) == 4


async def test_never_more_items_held_than_allowed(peer, client_of, work, gate):
    client = await client_of(peer)
    await enqueue(client, 50)
    worker = await work(client, waiting(gate), concurrency=2, prefetch=3)

    def held() -> int:
        return sum(item.lease != 0 for item in peer.items.values())

    await eventually(lambda: held() == 5)
    for request in peer.named("Dequeue"):
        assert sum(want.count for want in request.wants) <= 5
    gate.set()
    await eventually(lambda: worker.counts.done == 50)


async def test_leases_are_extended_for_running_and_waiting_items(peer, client_of, work, gate):
    client = await client_of(peer)
    await enqueue(client, 3)
    seen: list[int] = []

    async def slow(item):
        seen.append(item.id)
        await gate.wait(LATER)

    worker = await work(client, slow, concurrency=1, prefetch=2, lease_ms=3_000)
    await eventually(lambda: len(peer.named("ExtendLease")) >= 4)  # more than a whole lease
    gate.set()
    await eventually(lambda: worker.counts.done == 3)
    assert sorted(seen) == [1, 2, 3], "none came a second time"


async def test_a_lost_lease_reaches_the_handler_and_is_not_acked(peer, client_of, work):
    client = await client_of(peer)
    await enqueue(client, 1)
    noticed = Event()

    class Handler:
        async def handle(self, item, job):
            peer.take_over(item.id)
            assert await job.lease_lost.wait(LATER)
            noticed.set()

    worker = await work(client, Handler(), lease_ms=2_000)
    assert await noticed.wait(LATER)
    await eventually(lambda: worker.counts.lost == 1)
    assert peer.named("Ack") == []


async def test_a_lease_not_extended_in_time_is_still_acked(new_peer, client_of, work):
    peer = new_peer(lambda name, request: refused(5) if name == "ExtendLease" else Act.SERVE)
    client = await client_of(peer)
    await enqueue(client, 1)

    class Handler:
        async def handle(self, item, job):
            assert not job.lease_lost.is_set()
            await eventually(lambda: monotonic() > job.held.expires + 0.1)

    worker = await work(client, Handler(), lease_ms=200, concurrency=1, prefetch=0)
    await eventually(lambda: worker.counts.done == 1)


@pytest.mark.parametrize(
    ("policy", "acked"), [(AckPolicy.NACK_ON_ERROR, False), (AckPolicy.REJECT_ON_ERROR, False), (AckPolicy.ACK, True)]
)
async def test_a_handler_that_gave_up_acks_nothing(new_peer, client_of, work, policy, acked):
    """Its lease seemed lost, and holds: an extension was carried out without an answer."""
    peer = new_peer(lambda name, request: refused(5) if name == "ExtendLease" else Act.SERVE)
    client = await client_of(peer)
    await enqueue(client, 1)
    attempts = []

    async def handle(item, job):
        attempts.append(item.attempt)
        if len(attempts) == 1:
            assert await job.lease_lost.wait(LATER)

    worker = await work(client, handle, lease_ms=200, concurrency=1, prefetch=0, ack_policy=policy)
    await eventually(lambda: worker.counts.done == 1)
    assert len(attempts) == (1 if acked else 2)


async def test_an_item_whose_lease_ended_before_its_turn_is_not_begun(new_peer, client_of, work, gate):
    peer = new_peer(script("ExtendLease", *[refused(5)] * 1_000))
    client = await client_of(peer)
    await enqueue(client, 2, delivery=Delivery.AT_MOST_ONCE)
    begun: list[int] = []

    async def slow(item):
        begun.append(item.id)
        await gate.wait(LATER)

    worker = await work(client, slow, concurrency=1, prefetch=1, lease_ms=2_000)
    await eventually(lambda: begun == [1] and peer.items[2].attempt)
    for item in peer.items.values():
        item.topic = "elsewhere"  # neither is delivered again when its lease is over
    await eventually(lambda: len(peer.named("ExtendLease")) >= 2)
    # The worker's reckoning ends later than the server's, by the time that the answer took.
    await eventually(lambda: not worker._leases._held[2].usable(time.monotonic()))
    gate.set()
    await eventually(lambda: (worker.counts.done, worker.counts.lost) == (1, 1))
    assert 2 not in begun


async def test_a_job_may_ask_for_a_longer_lease(peer, client_of, work):
    client = await client_of(peer)
    await enqueue(client, 1)

    class Handler:
        async def handle(self, item, job):
            await job.extend(60_000)

    worker = await work(client, Handler())
    await eventually(lambda: worker.counts.done == 1)
    assert [entry.lease_ms for request in peer.named("ExtendLease") for entry in request.items] == [60_000]


async def test_acks_are_sent_again_through_an_outage(new_peer, client_of, work):
    peer = new_peer(script("Ack", Act.CLOSE_AFTER, refused(5), refused(4, 10), Act.CLOSE_BEFORE))
    client = await client_of(peer)
    await enqueue(client, 5)
    worker = await work(client, nothing, concurrency=1)
    await eventually(lambda: worker.counts.done == 5)
    assert sorted(peer.acked) == [1, 2, 3, 4, 5]


async def test_a_doubtful_ack_that_finds_its_item_gone_is_done(new_peer, client_of, work):
    unknown = [idl.ItemOutcome(error=failed(6))]
    answers = {"Ack": idl.AckResponse(unknown), "AckAndDequeue": idl.AckAndDequeueResponse(unknown, [])}
    peer = new_peer(lambda name, request: Act.SERVE if peer.acked else answers.get(name, Act.SERVE))
    client = await client_of(peer)
    await enqueue(client, 1)
    worker = await work(client, nothing)
    worker._settler._client = await client_of(peer, timeout_ms=1)
    await eventually(lambda: len(peer.named("Ack")) >= 2)
    peer.items.clear()
    peer.acked.append(1)
    await eventually(lambda: worker.counts.done == 1)


async def test_a_worker_outlives_its_server(new_peer, client_of, work):
    peer = new_peer()
    client = await client_of(peer)
    seen: list[bytes] = []
    worker = await work(client, noting(seen))
    await enqueue(client, 1)
    await eventually(lambda: len(seen) == 1)
    peer.close()
    await eventually(lambda: client._caller.pool._failed_at)
    again = new_peer(port=peer.port)
    await eventually(lambda: again.named("Dequeue"))
    await client.enqueue("t", b"again")
    await eventually(lambda: seen[-1] == b"again")
    await eventually(lambda: worker.counts.done >= 1)


async def test_what_cannot_get_better_ends_the_worker(new_peer, client_of, caplog):
    client = await client_of(new_peer(lambda name, request: refused(8)))
    with pytest.raises(Forbidden):
        await AsyncWorker(client, "t", nothing, wait_ms=10).run()
    assert "the worker ends" not in caplog.text
    worker = AsyncWorker(client, "t", nothing, wait_ms=10)
    await worker.start()  # without `join`, only the log tells
    await eventually(lambda: "the worker ends: no" in caplog.text)
    assert "Traceback" not in caplog.text
    with pytest.raises(Forbidden):
        await worker.join()


async def test_a_stop_does_not_end_an_outage(peer, client_of, work, caplog, monkeypatch):  # async only
    client = await client_of(peer)
    asked: list[int] = []

    async def dequeue(*_, **__):
        asked.append(1)
        if len(asked) == 1:
            raise Unavailable("away")
        await Event().wait(LATER)

    monkeypatch.setattr(client, "dequeue", dequeue)
    caplog.set_level("INFO")
    worker = await work(client, nothing)
    await eventually(lambda: len(asked) == 2)
    worker.stop()
    await worker.join()
    assert "cannot take items" in caplog.text
    assert "taking items again" not in caplog.text


async def test_a_stop_gives_back_unstarted_items_and_waits(peer, client_of, work, gate):
    client = await client_of(peer)
    await enqueue(client, 10)
    begun = []

    class Handler:
        async def handle(self, item, job):
            begun.append(item)
            assert await job.stopping.wait(LATER)
            await gate.wait(LATER)

    worker = await work(client, Handler(), concurrency=2, prefetch=4)
    await eventually(lambda: len(begun) == 2)
    await eventually(lambda: sum(item.lease != 0 for item in peer.items.values()) == 6)
    worker.stop()
    await eventually(lambda: worker.counts.released == 4)
    assert not await worker.join(10)
    gate.set()
    assert await worker.join(LATER * 1000)
    assert worker.counts.done == 2
    assert all(entry.release for entry in peer.nacked)
    await eventually(lambda: [(item.lease, item.attempt) for item in peer.items.values()] == [(0, 0)] * 8)


async def test_a_stop_ends_a_request_for_items(peer, client_of, work):
    client = await client_of(peer)
    seen: list[bytes] = []
    late = idl.EnqueueRequest(items=[idl.ItemSpec(topic="t", payload=b"late")])
    peer.as_a_wait_ends = lambda: peer.Enqueue(late)
    worker = await work(client, noting(seen), wait_ms=10 * int(LATER * 1000))
    await eventually(lambda: len(peer.named("Dequeue")) == 1)
    worker.stop()
    assert await worker.join(LATER * 1000)
    await eventually(lambda: [(item.lease, item.attempt) for item in peer.items.values()] == [(0, 0)])
    assert (seen, len(peer.named("Dequeue"))) == ([], 1)


async def test_a_stop_before_a_request_keeps_the_acks_that_go_with_it(peer, client_of):  # async only
    client = await client_of(peer)
    ids = await enqueue(client, 1)

    class Taking(AsyncWorker):
        def _take(self, room, acks, begins):
            if acks:  # the stop comes before the first step of the task that is made next
                asyncio.get_running_loop().call_soon(self.stop)
            return super()._take(room, acks, begins)

    worker = Taking(client, "t", nothing, concurrency=1)
    await worker.start()
    assert await worker.join(10_000)
    assert peer.acked == ids
    assert worker.counts.done == 1


async def test_outcomes_not_taken_end_with_the_worker(new_peer, client_of, work, caplog):
    """Not with their leases, some of which are long."""
    peer = new_peer(lambda name, request: refused(5) if name == "Ack" else Act.SERVE)
    client = await client_of(peer)
    await enqueue(client, 2)
    worker = await work(client, nothing, lease_ms=3_600_000)
    await eventually(lambda: len(peer.named("Ack")) > 1)
    worker.stop(grace_ms=100)
    assert await worker.join(LATER * 1000)
    await eventually(lambda: not worker._settler._sender.is_alive())
    assert caplog.text.count("the worker has ended, and its lease runs out") == 2
    assert len(worker._leases) == 0


async def test_a_stopping_worker_tells_its_last_acks(peer, client_of):
    client = await client_of(peer)
    await enqueue(client, 20)
    async with AsyncWorker(client, "t", nothing, prefetch=16, wait_ms=10, ack_linger_ms=60_000) as worker:
        await eventually(lambda: len(peer.named("Dequeue")) > 1)
    assert worker.counts.done + worker.counts.released >= 16
    await eventually(lambda: all(item.lease == 0 for item in peer.items.values()))


async def test_one_request_names_all_topics_and_bounds_their_sum(peer, client_of, work):
    client, topics, go = await client_of(peer), [f"t{n}" for n in range(40)], Event()
    await client.enqueue_many([ItemSpec(topic, b"x") for topic in topics])
    worker = await work(client, waiting(go), topics=topics, concurrency=3)
    await eventually(lambda: len(worker._busy) == 3)
    (request,) = peer.named("Dequeue")
    assert ([want.topic for want in request.wants], request.most, request.wait_ms > 0) == (topics, 3, True)
    go.set()
    await eventually(lambda: worker.counts.done == 40)


async def test_items_of_several_topics(peer, client_of, work):
    client = await client_of(peer)
    await client.enqueue_many([ItemSpec(f"t{n % 3}", b"x") for n in range(30)])
    worker = await work(client, nothing, topics=["t0", "t1", "t2"], concurrency=1, prefetch=0)
    await eventually(lambda: worker.counts.done == 30)


async def test_each_request_has_the_number_of_items_held(peer, client_of, work):
    client = await client_of(peer)
    await enqueue(client, 3)
    go = Event()
    worker = await work(client, waiting(go), concurrency=5)

    def held():
        return [want.holding for request in peer.named("Dequeue") for want in request.wants]

    await eventually(lambda: held()[-1:] == [3])
    assert held()[0] == 0
    go.set()
    await eventually(lambda: worker.counts.done == 3 and held()[-1] == 0)
