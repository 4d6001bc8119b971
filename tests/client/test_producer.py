"""Batches, futures, the bounds of a Producer, and the failures that no caller read."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait

import pytest

from foqs.client import ClientClosed, Invalid, Overloaded, Producer, Unavailable, UnreadFailures
from foqs.client._sync.futures import ItemFuture
from foqs.client.unread import Unread
from tests.client.peer import LATER, Act, eventually, refused
from tests.support.ports import held_port


@pytest.mark.parametrize("limit", [{"max_pending_items": 4}, {"max_pending_bytes": 4 * 1_200}])
def test_a_full_producer_raises_or_blocks(new_peer, client_of, gate, limit):
    def hold(name, request):
        gate.wait(LATER)
        return Act.SERVE

    client = client_of(new_peer(hold))
    with Producer(client, when_full="raise", **limit) as raising, Producer(client, block_ms=20, **limit) as blocking:
        for producer in (raising, blocking):
            for _ in range(4):
                producer.enqueue("t", b"x" * 1_000)
            with pytest.raises(Overloaded):
                producer.enqueue("t", b"x" * 1_000)
        waiting = threading.Thread(target=raising.flush)
        waiting.start()
        gate.set()
        waiting.join(LATER)
        assert raising.enqueue("t", b"x" * 1_000).result(LATER)


def test_a_forked_child_must_make_its_own(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        future = producer.enqueue("t", b"x")
        child = os.fork()
        if not child:
            try:
                producer.enqueue("t", b"child")
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) and not producer.close() else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.flush()
        assert future.result(LATER) == 1
    assert len(peer.items) == 1


def test_no_object_of_the_caller_ends_a_thread(peer, client_of, caplog):
    """A callback that exits, and a future that the caller has ended."""

    def exits(future):
        called.append(future)
        raise SystemExit(3)

    with Producer(client_of(peer), in_flight=1, linger_ms=3_600_000) as producer:
        first, second, ended = (producer.enqueue("t", payload) for payload in (b"a", b"b", b"c"))
        called = []
        first.add_done_callback(exits)
        first.add_done_callback(called.append)
        ended.set_result(77)
        assert producer.flush(LATER * 1000)
        assert (first.result(), second.result(), ended.result()) == (1, 2, 77)
        assert called == [first, first]
        later = producer.enqueue("t", b"d")
        assert producer.flush(LATER * 1000)
        assert later.result() == 4
    assert "a callback of an item's future failed" in caplog.text


def test_a_thread_that_ends_closes_the_producer(peer, client_of, monkeypatch, caplog):
    producer = Producer(client_of(peer), in_flight=1, linger_ms=3_600_000, max_items=2)
    future = producer.enqueue("t", b"x")

    def broken(*_):
        raise MemoryError("injected")

    monkeypatch.setattr(producer, "_send", broken)
    second = producer.enqueue("t", b"y")
    for one in (future, second):
        with pytest.raises(MemoryError):
            one.result(LATER)
    eventually(lambda: not any(thread.is_alive() for thread in producer._senders))
    with pytest.raises(ClientClosed):
        producer.enqueue("t", b"z")
    assert producer.flush() and producer.close()
    assert "the producer is closed, and 0 items are not sent, because of MemoryError in foqs-producer-0" in caplog.text


def test_a_closed_producer_has_no_thread(peer, client_of):
    """A thread that dropped the client during the end of the process made the interpreter print an error."""
    for _ in range(50):
        with Producer(client_of(peer), in_flight=3) as producer:
            producer.enqueue("t", b"x").result(LATER)
        assert not any(thread.is_alive() for thread in producer._senders)


def refuse(name, request):
    """Never stores anything, and is never asked again: Invalid."""
    return refused(1) if name == "Enqueue" else Act.SERVE


@pytest.fixture
def lines(caplog):
    """The lines that count failures."""
    return lambda: [record for record in caplog.records if "no caller read" in record.getMessage()]


def _result(future):
    with pytest.raises(Invalid):
        future.result(LATER)


READS = {
    "result": _result,
    "exception": lambda future: future.exception(LATER),
    "callback": lambda future: future.add_done_callback(lambda _: None),
    "asyncio": lambda future: asyncio.run(_awaited(future)),
}


async def _awaited(future):
    await asyncio.wait([asyncio.wrap_future(future)])


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("first_done", [True, False])
def test_a_future_that_was_read_does_not_count(new_peer, client_of, lines, read, first_done):
    with Producer(client_of(new_peer(refuse)), linger_ms=0 if first_done else 50) as producer:
        future = producer.enqueue("t", b"x")
        if first_done:
            wait([future], LATER)
        read(future)
    assert lines() == []


def test_waiting_for_a_future_is_not_reading_it(new_peer, client_of):
    producer = Producer(client_of(new_peer(refuse)))
    wait([producer.enqueue("t", b"x")], LATER)
    with pytest.raises(UnreadFailures):
        producer.close()


def test_a_read_that_timed_out_did_not_read(new_peer, client_of, gate):
    def hold(name, request):
        gate.wait(LATER)
        return refused(1)

    producer = Producer(client_of(new_peer(hold)))
    futures = [producer.enqueue("t", b"x") for _ in range(2)]
    for read in (futures[0].result, futures[1].exception):
        with pytest.raises(FutureTimeout):
            read(0.01)
    gate.set()
    with pytest.raises(UnreadFailures) as raised:
        producer.close()
    assert raised.value.count == 2


def test_a_failure_at_the_moment_of_a_timeout_counts():
    class FailsAtTheTimeout(ItemFuture):
        def done(self):
            done = super().done()
            unread.failed(self, ValueError())
            return done

    unread, future = Unread(), FailsAtTheTimeout()
    with pytest.raises(FutureTimeout):
        future.result(0)
    assert unread.take().kinds == {"ValueError": 1}


@pytest.fixture
def stuck(new_peer, client_of, gate):
    """`stuck(...)` is a producer whose first item is being sent until the test ends; three more wait behind it."""

    def make(**options):
        def hold(name, request):
            gate.wait(LATER)
            return Act.SERVE

        peer = new_peer(hold)
        producer = Producer(client_of(peer), max_items=1, in_flight=1, **options)
        futures = [producer.enqueue("t", b"x") for _ in range(4)]
        eventually(lambda: peer.calls)
        return producer, futures

    return make


def test_counts_hold_while_threads_read_and_items_fail():
    """The count is that of the unread failures, in every order of the two."""
    unread = Unread()
    futures = [ItemFuture() for _ in range(2_000)]

    def fail():
        for future in futures:
            unread.failed(future, Unavailable("no"))
            future.set_exception(Unavailable("no"))

    def read():
        for future in futures[::2]:
            assert future.exception(LATER)

    threads = [threading.Thread(target=work) for work in (fail, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATER)
    assert unread.take().count == 1_000
    assert unread.take() is None


PROGRAM = textwrap.dedent(
    """
    import sys
    from foqs.client import Client, Producer
    client = Client(sys.argv[1], timeout_ms=200)
    if sys.argv[2] == "with":
        with Producer(client) as producer:
            producer.enqueue("t", b"x")
    else:
        Producer(client).enqueue("t", b"x")
    """
)


@pytest.mark.process
@pytest.mark.parametrize("how", ["with", "no close"])
def test_a_program_with_a_dead_server_does_not_end_in_silence(how):
    with held_port(0) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address, how],
            capture_output=True, text=True, timeout=120, env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        )  # fmt: skip
    assert (done.returncode != 0) == (how == "with"), "the end of a process cannot change its exit status"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("the Producer did not get 1 item stored")]
    assert "1 UNAVAILABLE" in line
