# Written by hand.
"""What only an asynchronous client does: cancelled calls, event loops, forks, and its end."""

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import warnings

import pytest

import foqs.client
from foqs.client import AsyncClient, Client, Invalid, ItemSpec, Producer, Worker, WrongLoop
from foqs.client._async.waits import Event, until_done
from foqs.idl import idl
from tests.client._async.helpers import eventually
from tests.client.peer import LATER, Act, script
from tests.client.peer import failed as failed_item
from tests.client.real_server import ENVIRONMENT, PATIENT_MS
from tests.client.test_tracing import context, linked, parent

pytestmark = [pytest.mark.anyio, pytest.mark.threads]


async def test_a_cancelled_dequeue_gives_back_its_items(new_peer, client_of):
    """The caller is cancelled before the reply comes."""
    asked, gate = threading.Event(), threading.Event()

    def meddle(name, request):
        if name == "Dequeue" and not asked.is_set():
            asked.set()
            gate.wait(LATER)
        return Act.SERVE

    peer = new_peer(meddle)
    client = await client_of(peer, routing=False)
    await client.enqueue("t", b"x")
    task = asyncio.create_task(client.dequeue("t"))
    await eventually(asked.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await eventually(lambda: len(peer.nacked) == 1)
    assert peer.nacked[0].release
    (item,) = await client.dequeue("t")
    assert item.attempt == 1
    assert peer.connections == 1


async def test_a_cancel_in_the_moment_of_the_reply_loses_no_item(peer, client_of):
    """At each step of the loop in which a dequeue may be cancelled."""
    client = await client_of(peer, routing=False)
    for steps in range(25):
        item_id = await client.enqueue("t", b"x")
        task = asyncio.create_task(client.dequeue("t", wait_ms=PATIENT_MS // 2))
        for _ in range(steps):
            await asyncio.sleep(0.0002)
        task.cancel()
        try:
            (item,) = await task
        except asyncio.CancelledError:
            (item,) = await client.dequeue("t", wait_ms=PATIENT_MS // 2)
        assert (item.id, item.attempt) == (item_id, 1)
        await client.ack(item)


async def test_cancelled_long_polls_end_at_the_host(client):
    """Each lets its connection go at once."""
    tasks = [asyncio.create_task(client.dequeue("t", wait_ms=60_000)) for _ in range(10)]
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    async with asyncio.timeout(LATER):
        await client._caller.finished(LATER)
    item_id = await client.enqueue("t", b"x")
    (item,) = await client.dequeue("t", wait_ms=60_000)
    assert (item.id, item.attempt) == (item_id, 1)


async def test_a_cancelled_enqueue_leaves_its_connection_in_order(new_peer, client_of):
    gate = threading.Event()
    peer = new_peer(lambda name, request: gate.wait(LATER) and Act.SERVE)
    client = await client_of(peer, routing=False, pool_size=1)
    task = asyncio.create_task(client.enqueue("t", b"x"))
    await eventually(lambda: len(peer.calls) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await client.enqueue("t", b"y")
    assert (peer.connections, len(peer.items)) == (1, 2)


async def test_a_cancelled_wait_for_a_connection_passes_on_its_turn(new_peer, client_of):
    gate = threading.Event()
    peer = new_peer(lambda name, request: (name != "GetServerInfo" or gate.wait(LATER)) and Act.SERVE)
    client = await client_of(peer, routing=False, pool_size=1)
    first = asyncio.create_task(client.server_info())
    await eventually(lambda: len(peer.calls) == 1)
    waiting = [asyncio.create_task(client.enqueue("t", b"x")) for _ in range(3)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    gate.set()
    await first
    assert len({await task for task in waiting[1:]}) == 2
    assert len(peer.items) == 2


async def test_a_time_limit_of_the_caller_ends_a_call(new_peer, client_of):
    client = await client_of(new_peer(script("Enqueue", Act.SILENT)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.enqueue("t", b"x")


async def test_a_call_blocks_no_other_task(new_peer, client_of):
    gate = threading.Event()
    peer = new_peer(lambda name, request: (name != "Dequeue" or gate.wait(LATER)) and Act.SERVE)
    client = await client_of(peer)
    task = asyncio.create_task(client.dequeue("t"))
    for _ in range(20):
        await client.enqueue("t", b"x")
    assert not task.done()
    gate.set()
    assert len(await task) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.enqueue("t", b"x"),
        lambda client: client.enqueue_many([ItemSpec("t", b"x")]),
        lambda client: client.dequeue("t"),
        lambda client: client.server_info(),
    ],
)
async def test_a_second_loop_is_refused(peer, client_of, call):
    client = await client_of(peer)
    await client.enqueue("t", b"x")

    async def elsewhere():
        with pytest.raises(WrongLoop, match="this client belongs to another event loop: make one in each event loop"):
            await call(client)

    await asyncio.to_thread(asyncio.run, elsewhere())
    await client.enqueue("t", b"y")
    assert len(peer.named("Enqueue")) == 2


async def test_a_forked_child_needs_its_own_client(peer, client_of):
    client = await client_of(peer)
    await client.enqueue("t", b"x")

    def child():
        asyncio._set_running_loop(None)

        async def use():
            with pytest.raises(WrongLoop, match="the process that forked this one: make another one in the child"):
                await client.enqueue("t", b"x")

        asyncio.run(use())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await client.enqueue("t", b"y")


async def test_the_end_leaves_no_task_and_no_warning(peer):
    before = asyncio.all_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with AsyncClient(peer.address) as client:
            await client.enqueue("t", b"x")
            task = asyncio.create_task(client.dequeue("u", wait_ms=60_000))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait((task,))
        assert asyncio.all_tasks() == before
        del client, task
        gc.collect()


async def test_the_end_of_the_program_in_a_long_poll_is_quiet(server):
    """A task waits when the client closes; `asyncio.run` cancels it then."""
    program = f"""
import asyncio
from foqs.client import AsyncClient
async def main():
    async with AsyncClient({server.address!r}) as client:
        asyncio.create_task(client.dequeue("t", wait_ms=20_000))
        await asyncio.sleep(0.1)
asyncio.run(main())
"""
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, env=ENVIRONMENT, timeout=LATER
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


async def test_to_close_in_a_second_loop_is_refused(peer, client_of):
    client = await client_of(peer)
    await client.enqueue("t", b"x")

    async def elsewhere():
        with pytest.raises(WrongLoop):
            await client.close()

    await asyncio.to_thread(asyncio.run, elsewhere())
    await client.enqueue("t", b"y")


@pytest.mark.parametrize("kind", [Worker, Producer])
async def test_what_blocks_refuses_an_asynchronous_client(peer, client_of, kind):
    client = await client_of(peer)
    with pytest.raises(Invalid, match=r"^client is .*: it must be a Client"):
        kind(client, "t", print) if kind is Worker else kind(client)


def test_methods_that_wait_are_coroutine_functions():
    waiting = {name for name in dir(AsyncClient) if inspect.iscoroutinefunction(getattr(AsyncClient, name))}
    assert waiting >= {"enqueue", "enqueue_many", "dequeue", "ack", "ack_many", "nack", "get_item", "settings", "close"}
    blocking = {name for name in dir(Client) if inspect.iscoroutinefunction(getattr(Client, name))}
    assert blocking == set()


def test_the_module_lists_the_asynchronous_names():
    assert {"AsyncClient", "WrongLoop"} <= set(dir(foqs.client))


def test_the_methods_are_those_of_the_blocking_client():
    def public(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(AsyncClient) == public(Client)


async def test_the_spans_of_an_asynchronous_client(peer, client_of, ended, tracer):
    client = await client_of(peer, tracing=True)
    with tracer.start_as_current_span("order") as order:
        await client.enqueue("a", b"1")
        await client.enqueue_many([ItemSpec("a", b"2"), ItemSpec("", b"3")])
    items = await client.dequeue("a", 2)
    sent, failed = ended("enqueue a")[0], ended("enqueue")[0]
    assert parent(sent) == parent(failed) == context(order)
    assert failed.attributes["foqs.failed_items"] == 1
    (span,) = ended("dequeue a")
    assert linked(span) == [context(sent), context(failed)]
    taken = await client.ack_and_dequeue(items, "a")
    assert taken.outcomes == [None, None]


async def test_items_that_the_trace_makes_too_long_are_stored_without(new_peer, client_of, ended):
    def refuses(name, request):
        if name == "GetServerInfo":
            return idl.GetServerInfoResponse(version="test", limits={"headers_bytes": 0})
        if name == "Enqueue" and any(spec.headers for spec in request.items):
            return idl.EnqueueResponse([idl.EnqueueOutcome(error=failed_item(1)) for _ in request.items])
        return Act.SERVE

    client = await client_of(new_peer(refuses), tracing=True)
    assert [await client.enqueue("a", b"1"), await client.enqueue("a", b"2")] == [1, 2]


async def test_an_event_of_threads_is_set_with_that_of_the_loop():
    before, after = Event(), Event()
    waiting = before.for_threads()
    assert waiting is before.for_threads()
    assert not waiting.is_set()
    before.set()
    assert await asyncio.to_thread(waiting.wait, LATER)
    after.set()
    assert (await asyncio.to_thread(after.for_threads)).is_set()


@pytest.mark.parametrize("ends", [True, False])
async def test_the_wait_for_a_task_leaves_it_alone(ends):
    go = asyncio.Event()
    working = asyncio.create_task(go.wait())
    waiting = asyncio.create_task(until_done(working))
    await asyncio.sleep(0)
    if ends:
        go.set()
        await waiting
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not working.done()
        go.set()
    assert await working


async def test_an_error_that_comes_after_the_wait_is_not_logged():
    said = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    failing = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(until_done(failing))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    failing.set_exception(ValueError("what a payload holds"))
    await asyncio.sleep(0)
    del failing, waiting
    gc.collect()
    assert said == []
