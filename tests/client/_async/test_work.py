# Written by hand.
"""What only asynchronous producers and workers do: cancelled handlers, signals, and the end of their event loop."""

import asyncio
import contextvars
import logging
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from time import monotonic

import pytest

from foqs.client import (
    AckPolicy,
    AsyncClient,
    AsyncProducer,
    AsyncWorker,
    Client,
    Delivery,
    Invalid,
    ItemSpec,
    Producer,
    UnreadFailures,
    Worker,
    WorkerHung,
    WrongLoop,
)
from foqs.stop_count import ONE_WISH_S
from tests.client._async.helpers import eventually, nothing
from tests.client.peer import LATER, Act, refused
from tests.client.real_server import ENVIRONMENT
from tests.client.test_tracing import context, parent

pytestmark = [pytest.mark.anyio, pytest.mark.threads]


# ------------------------------------------------------------------------------------------- handlers


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (lambda item: None, "no coroutine function .* give it to a Worker"),
        (print, "no coroutine function"),
        (type("Handler", (), {"handle": lambda self, item: None}), "no coroutine function"),
    ],
    ids=["function", "builtin", "class"],
)
def test_a_function_that_would_block_the_loop_is_refused(handler, why):
    with pytest.raises(Invalid, match=why):
        AsyncWorker(AsyncClient(), "t", handler)


def test_an_asynchronous_generator_is_refused():
    async def handle(item):
        yield item

    with pytest.raises(Invalid, match="generator function, which would never run; remove its `yield`"):
        AsyncWorker(AsyncClient(), "t", handle)


def test_each_needs_the_client_of_its_kind():
    with Client() as client:
        for make in (AsyncProducer, lambda one: AsyncWorker(one, "t", nothing)):
            with pytest.raises(Invalid, match="it must be an AsyncClient"):
                make(client)
    for make in (Producer, lambda one: Worker(one, "t", print)):
        with pytest.raises(Invalid, match="it must be a Client"):
            make(AsyncClient())


@pytest.mark.parametrize("kind", ["coroutine", "task", "done"])
async def test_work_that_is_not_awaited_fails_the_item(peer, client_of, start_worker, kind):
    async def handle(item):
        if kind == "coroutine":
            return nothing(item)
        task = asyncio.create_task(nothing(item))
        if kind == "done":
            await task
        return task

    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = await start_worker(client, handle, report_errors=True)
    await eventually(lambda: worker.counts.failed >= 1)
    assert "await it in the handler" in peer.nacked[0].reason


async def test_an_exit_in_a_handler_fails_the_item_alone(peer, client_of, start_worker):
    async def handle(item):
        if item.attempt == 1:
            raise SystemExit(3)

    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = await start_worker(client, handle)
    await eventually(lambda: worker.counts.done == 1)
    assert [entry.reason for entry in peer.nacked] == ["SystemExit"]


async def test_each_item_has_a_context_of_its_own(peer, client_of, start_worker):
    seen, variable = [], contextvars.ContextVar("variable", default="unset")

    async def handle(item):
        seen.append(variable.get())
        variable.set("set")

    client = await client_of(peer)
    await client.enqueue_many([ItemSpec("t", b"x")] * 3)
    worker = await start_worker(client, handle, concurrency=1)
    await eventually(lambda: worker.counts.done == 3)
    assert seen == ["unset"] * 3


async def test_the_span_of_the_work_is_the_current_one(peer, client_of, ended, tracer, start_worker):
    seen = []

    async def handle(item):
        await asyncio.sleep(0)
        with tracer.start_as_current_span("inner") as span:
            seen.append(span.get_span_context().trace_id)

    client = await client_of(peer, tracing=True)
    await client.enqueue("t", b"x")
    worker = await start_worker(client, handle)
    await eventually(lambda: worker.counts.done == 1)
    (work,) = ended("process t")
    (inner,) = ended("inner")
    assert parent(inner) == context(work)
    assert [event.name for event in work.events] == ["ack"]


# ------------------------------------------------------------------------------------------- time limits


async def test_the_time_limit_cancels_the_handler(peer, client_of, start_worker):
    ends = []

    async def handle(item, job):
        try:
            await asyncio.sleep(LATER)
        finally:
            ends.append(job.time_is_up.is_set())

    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = await start_worker(client, handle, time_limit_ms=50)
    await eventually(lambda: worker.counts.failed >= 1)
    assert ends[0] and peer.nacked[0].reason == "time limit" and peer.nacked[0].failed
    assert worker.counts.hung == 0


async def test_a_handler_that_ignores_its_cancellation_hangs(peer, client_of, start_worker, gate):
    async def handle(item):
        while not gate.is_set():
            try:
                await gate.wait(LATER)
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()

    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = await start_worker(client, handle, time_limit_ms=50)
    await eventually(lambda: worker.counts.hung == 1)
    await eventually(lambda: peer.named("Dequeue") and worker._hangs._reporter.running)
    gate.set()
    await eventually(lambda: worker.counts.failed == 1)


async def test_a_worker_whose_handlers_all_hang_may_end(peer, client_of, gate, monkeypatch):
    monkeypatch.setattr("foqs.client._async.worker.end_process_after_main", lambda grace_s: None)

    async def handle(item):
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait(LATER)

    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = AsyncWorker(client, "t", handle, concurrency=1, wait_ms=20, time_limit_ms=50, on_hang="exit")
    with pytest.raises(WorkerHung):
        await worker.run()
    gate.set()


# ------------------------------------------------------------------------------------------- the end


async def sleep_long(item, job):
    job.metadata = b"half"
    await asyncio.sleep(LATER * 10)


@pytest.mark.parametrize("policy", [policy for policy in AckPolicy if policy is not AckPolicy.ACK_FIRST])
async def test_a_handler_that_is_cut_off_used_no_attempt(peer, client_of, policy):
    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = AsyncWorker(client, "t", sleep_long, wait_ms=20, ack_policy=policy)
    await worker.start()
    await eventually(lambda: len(worker._busy) == 1)
    await asyncio.sleep(0.02)
    worker.stop(grace_ms=20)
    assert await worker.join(LATER * 1000)
    (nack,) = peer.nacked
    assert (nack.uncounted, nack.metadata, nack.reason) == (True, b"half", "the worker stopped")
    assert (worker.counts.released, worker.counts.failed) == (1, 0)


async def test_an_at_most_once_item_that_is_cut_off_is_lost(peer, client_of, caplog):
    client = await client_of(peer)
    await client.enqueue("t", b"x", delivery=Delivery.AT_MOST_ONCE)
    worker = AsyncWorker(client, "t", sleep_long, wait_ms=20)
    await worker.start()
    await eventually(lambda: len(worker._busy) == 1)
    await asyncio.sleep(0.02)
    worker.stop(grace_ms=0)
    assert await worker.join(LATER * 1000)
    assert worker.counts.failed == 1 and peer.nacked[0].failed
    assert "the worker stopped while the handler worked on" in caplog.text and "Traceback" not in caplog.text


async def test_a_cancelled_run_ends_the_worker_first(peer, client_of):
    client = await client_of(peer)
    await client.enqueue_many([ItemSpec("t", b"x")] * 3)
    before = signal.getsignal(signal.SIGTERM)
    worker = AsyncWorker(client, "t", sleep_long, concurrency=2, prefetch=1, wait_ms=20)
    task = asyncio.create_task(worker.run())
    await eventually(lambda: len(worker._busy) == 2 and len(worker._leases) == 3)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.counts.released == 3
    await eventually(lambda: all(item.lease == 0 for item in peer.items.values()))
    assert signal.getsignal(signal.SIGTERM) is before


async def test_a_cancelled_exit_ends_the_worker_first(peer, client_of):
    """Else the client would be closed before the outcomes are sent."""
    client = await client_of(peer)
    await client.enqueue("t", b"x")
    worker = AsyncWorker(client, "t", sleep_long, wait_ms=20)

    async def work():
        async with worker:
            await eventually(lambda: len(worker._busy) == 1)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(work())
    await eventually(worker._stopping.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.counts.released == 1
    await eventually(lambda: peer.items[1].lease == 0)  # a request that the stop cancelled may have got it


async def test_a_handler_that_hung_leaves_no_task(peer, client_of, gate):
    async def handle(item):
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait(LATER)

    client = await client_of(peer, routing=False)
    await client.enqueue("t", b"x")
    worker = AsyncWorker(client, "t", handle, wait_ms=20, time_limit_ms=20)
    await worker.start()
    await eventually(lambda: worker.counts.hung == 1)
    worker.stop(grace_ms=0)
    assert await worker.join(LATER * 1000)
    gate.set()
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("foqs-")])


async def test_a_stop_waits_for_no_long_poll(peer, client_of, client):
    """A handler is at work, and the worker asks for more items."""
    for one in (await client_of(peer), client):
        await one.enqueue("t", b"x")
        worker = AsyncWorker(one, "t", sleep_long, wait_ms=int(LATER * 10_000))
        await worker.start()
        await eventually(worker._busy.__len__)
        await asyncio.sleep(0.1)
        worker.stop(grace_ms=0)
        assert await worker.join(LATER * 1000)
        assert worker.counts.released == 1
    await client.enqueue("t", b"y")
    found = []
    while len(found) < 2:
        found += await client.dequeue("t", 5, wait_ms=30_000)
    assert [item.attempt for item in found] == [1, 1]


async def test_a_worker_lives_once_and_in_one_loop(peer, client_of):
    client = await client_of(peer)
    worker = AsyncWorker(client, "t", nothing, wait_ms=20)
    with pytest.raises(RuntimeError, match="the worker was not started"):
        await worker.join()
    await worker.start()
    with pytest.raises(RuntimeError, match="a worker starts once"):
        await worker.start()
    with pytest.raises(RuntimeError, match="no running event loop"):
        await asyncio.to_thread(worker.stop)
    worker.stop()
    await worker.join()
    with pytest.raises(RuntimeError, match="a worker starts once"):
        await worker.run()


async def test_an_ended_worker_leaves_no_task(peer, client_of):
    client = await client_of(peer, routing=False)
    async with AsyncWorker(client, "t", nothing, concurrency=8, wait_ms=20) as worker:
        await client.enqueue_many([ItemSpec("t", b"x")] * 30)
        await eventually(lambda: worker.counts.done == 30)
    async with AsyncProducer(client, in_flight=3) as producer:
        await (await producer.enqueue("t", b"x"))
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("foqs-")])


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_signal_ends_run_and_a_second_one_the_grace(peer, client_of, signals):
    begun, ended, asked_s = asyncio.Event(), [], []

    async def handle(item, job):
        begun.set()
        try:
            await job.stopping.wait(LATER)
            if signals == 2:
                await eventually(
                    lambda: monotonic() - asked_s[0] > ONE_WISH_S
                )  # before that it is an echo of the first
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(LATER * 10)
        finally:
            ended.append(item.id)

    client = await client_of(peer)
    await client.enqueue("t", b"x")
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    worker = AsyncWorker(client, "t", handle, wait_ms=20)

    async def status() -> object:
        try:
            return await worker.run()
        except SystemExit as end:
            return end.code

    running = asyncio.create_task(status())
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    asked_s.append(monotonic())
    assert await running == (None if signals == 1 else 1), "the handler was cut off"
    assert ended == [1]
    assert (worker.counts.done, worker.counts.released) == ((1, 0) if signals == 1 else (0, 1))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from foqs.client import AsyncClient, AsyncProducer, AsyncWorker

    async def handle(item):
        await asyncio.sleep(1_000)

    async def main(what):
        client = AsyncClient(sys.argv[1], timeout_ms=200)
        if what == "producer":
            producer = AsyncProducer(client, linger_ms=60_000)
            [await producer.enqueue("t", b"x") for _ in range(3)]
        else:
            await client.enqueue("t", b"x")
            await AsyncWorker(client, "t", handle, wait_ms=50).start()
        await asyncio.sleep(0.2)

    asyncio.run(main(sys.argv[2]))
    """
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("producer", "the producer is closed, and 3 items are not sent, because of CancelledError in foqs-producer"),
        ("worker", "the event loop ends, and the worker with it"),
    ],
)
def test_what_the_loop_left_behind_is_said_once(peer, what, says):
    run = [sys.executable, "-X", "dev", "-c", PROGRAM, peer.address, what]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LATER * 4, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(says) == 1, done.stderr
    assert "never" not in done.stderr


# ------------------------------------------------------------------------------------------- producers


async def test_a_producer_belongs_to_one_loop(peer, client_of):
    producer = AsyncProducer(await client_of(peer))
    await (await producer.enqueue("t", b"x"))

    def elsewhere():
        with pytest.raises(WrongLoop, match="this producer belongs to another event loop"):
            asyncio.run(producer.enqueue("t", b"y"))
        with pytest.raises(WrongLoop):
            asyncio.run(producer.close())

    await asyncio.to_thread(elsewhere)
    await (await producer.enqueue("t", b"z"))
    await producer.close()


async def test_an_item_whose_wait_is_cancelled_is_not_sent(peer, client_of):
    async with AsyncProducer(await client_of(peer), linger_ms=3_600_000) as producer:
        future = await producer.enqueue("t", b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await future
        assert future.cancelled()
    assert not peer.named("Enqueue")


async def read(future):
    with pytest.raises(Invalid):
        await future


READS = {
    "await": read,
    "gather": lambda future: asyncio.gather(future, return_exceptions=True),
    "wait": lambda future: asyncio.wait((future,)),
    "shield": lambda future: read(asyncio.shield(future)),
}


def refuse(name, request):
    return refused(1) if name == "Enqueue" else Act.SERVE


@pytest.mark.parametrize("how", READS.values(), ids=READS)
@pytest.mark.parametrize("first_done", [True, False])
async def test_a_future_that_is_awaited_does_not_count(new_peer, client_of, how, first_done, caplog):
    async with AsyncProducer(await client_of(new_peer(refuse)), linger_ms=0 if first_done else 50) as producer:
        future = await producer.enqueue("t", b"x")
        if first_done:
            await eventually(future.done)
        await how(future)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_wait_that_timed_out_did_not_read(new_peer, client_of):
    producer = AsyncProducer(await client_of(new_peer(refuse)), linger_ms=50)
    future = await producer.enqueue("t", b"x")
    await asyncio.wait((future,), timeout=0.001)
    with pytest.raises(UnreadFailures):
        await producer.close()


async def test_close_alone_reports_unread_failures(new_peer, client_of, caplog):
    """Python would also log a Future whose exception was never retrieved."""
    producer = AsyncProducer(await client_of(new_peer(refuse)))
    await producer.enqueue("t", b"x")
    with pytest.raises(UnreadFailures):
        await producer.close()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
