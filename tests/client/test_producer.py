"""Batches, futures, the bounds of a Producer, and the failures that no caller read."""

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait

import pytest

from foqs.client import ClientClosed, Invalid, OutcomeUnknown, Overloaded, Producer, Unavailable, UnreadFailures
from foqs.client.producer import ItemFuture, Unread
from foqs.idl import idl
from tests.client.peer import LATER, Act, eventually, failed, refused, script
from tests.support.ports import held_port


def test_single_enqueues_go_together_and_each_gets_its_own_id(peer, client_of):
    with Producer(client_of(peer), max_items=50, linger_ms=3_600_000, in_flight=1) as producer:
        futures = [producer.enqueue("t", str(n).encode(), priority=n) for n in range(200)]
        ids = [future.result(LATER) for future in futures]
    assert [peer.items[i].payload for i in ids] == [str(n).encode() for n in range(200)]
    assert [len(request.items) for request in peer.named("Enqueue")] == [50] * 4


def test_batches_are_cut_by_bytes(peer, client_of):
    with Producer(client_of(peer), max_bytes=10_000, linger_ms=3_600_000, in_flight=1) as producer:
        for _ in range(9):
            producer.enqueue("t", b"x" * 3_000)
        assert producer.flush(timeout_ms=LATER * 1000)
    assert [len(request.items) for request in peer.named("Enqueue")] == [3, 3, 3]


def test_a_lone_item_leaves_after_its_linger(peer, client_of):
    with Producer(client_of(peer), linger_ms=5) as producer:
        assert producer.enqueue("t", b"x").result(LATER) == 1


def test_flush_does_not_linger_and_waits_for_earlier_items(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        future = producer.enqueue("t", b"x")
        assert producer.flush(timeout_ms=LATER * 1000)
        assert future.done()
        assert producer.flush()


def test_flush_says_when_it_took_too_long(new_peer, client_of, gate):
    def hold(name, request):
        gate.wait(LATER)
        return Act.SERVE

    with Producer(client_of(new_peer(hold))) as producer:
        producer.enqueue("t", b"x")
        assert not producer.flush(timeout_ms=30)
        gate.set()
        assert producer.flush(timeout_ms=LATER * 1000)


def test_a_lost_reply_is_unknown_for_exactly_its_own_items(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.SERVE, Act.CLOSE_AFTER))
    with Producer(client_of(peer), max_items=10, linger_ms=3_600_000, in_flight=1) as producer:
        futures = [producer.enqueue("t", str(n).encode()) for n in range(30)]
        wait(futures, LATER)
        unknown = [n for n, future in enumerate(futures) if isinstance(future.exception(), OutcomeUnknown)]
    assert unknown == list(range(10, 20))
    sent = [spec.payload for request in peer.named("Enqueue") for spec in request.items]
    assert sorted(sent, key=int) == [str(n).encode() for n in range(30)], "none was sent twice"


def test_one_bad_item_fails_alone(new_peer, client_of):
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1)), idl.EnqueueOutcome(id=2)]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes)))
    with Producer(client_of(peer), max_items=3, linger_ms=3_600_000) as producer:
        first, bad, last = (producer.enqueue("t", b"x") for _ in range(3))
        assert (first.result(LATER), last.result(LATER)) == (1, 2)
        assert isinstance(bad.exception(LATER), Invalid)


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


def test_a_blocked_enqueue_goes_on_when_there_is_room(new_peer, client_of, gate):
    def hold(name, request):
        gate.wait(LATER)
        return Act.SERVE

    with Producer(client_of(new_peer(hold)), max_pending_items=2, in_flight=1) as producer:
        futures = [producer.enqueue("t", b"x") for _ in range(2)]
        thread = threading.Thread(target=lambda: futures.append(producer.enqueue("t", b"y")))
        thread.start()
        gate.set()
        thread.join(LATER)
        assert [future.result(LATER) for future in futures] == [1, 2, 3]


def test_two_batches_are_under_way_at_a_time(new_peer, client_of, gate):
    def hold(name, request):
        gate.wait(LATER)
        return Act.SERVE

    peer = new_peer(hold)
    with Producer(client_of(peer), max_items=1, in_flight=2) as producer:
        futures = [producer.enqueue("t", b"x") for _ in range(5)]
        eventually(lambda: len(peer.calls) == 2)
        gate.set()
        assert sorted(future.result(LATER) for future in futures) == [1, 2, 3, 4, 5]


def test_a_cancelled_item_is_not_sent(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        futures = [producer.enqueue("t", str(n).encode()) for n in range(3)]
        assert futures[1].cancel()
        producer.flush()
    assert [item.payload for item in peer.items.values()] == [b"0", b"2"]


def test_a_batch_of_nothing_but_cancelled_items_asks_for_nothing(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        assert producer.enqueue("t", b"x").cancel()
        assert producer.flush(timeout_ms=LATER * 1000)
    assert peer.calls == []


def test_close_sends_the_taken_items_and_takes_no_more(peer, client_of):
    producer = Producer(client_of(peer), linger_ms=3_600_000)
    future = producer.enqueue("t", b"x")
    assert producer.close()
    assert future.result(0) == 1
    with pytest.raises(ClientClosed):
        producer.enqueue("t", b"y")
    assert producer.close()


def test_close_gives_up_items_it_has_no_time_for(new_peer, client_of, gate):
    def hold(name, request):
        gate.wait(LATER)
        return Act.SERVE

    peer = new_peer(hold)
    producer = Producer(client_of(peer), max_items=1, in_flight=1, linger_ms=0)
    under_way, waiting = (producer.enqueue("t", b"x") for _ in range(2))
    eventually(lambda: peer.calls)
    assert not producer.close(timeout_ms=50, raise_errors=False)
    assert waiting.cancelled()
    gate.set()
    assert under_way.result(LATER) == 1


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


def test_a_future_of_an_unsent_item_is_cancelled(new_peer, client_of, gate):
    def hold(name, request):
        gate.wait(LATER)
        return Act.SERVE

    producer = Producer(client_of(new_peer(hold)), max_items=1, in_flight=1)
    futures = [producer.enqueue("t", b"x") for _ in range(3)]
    eventually(futures[0].running)
    futures[1].cancel()
    assert not producer.close(timeout_ms=10, raise_errors=False)
    assert wait(futures[1:], LATER / 10).done == set(futures[1:])
    gate.set()
    assert futures[0].result(LATER) == 1


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


def test_an_error_that_would_end_a_thread_is_the_outcome(peer, client_of, monkeypatch):
    client = client_of(peer)

    def exits(specs):
        raise SystemExit(3)

    with Producer(client) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(client, "enqueue_many", exits)
            with pytest.raises(RuntimeError, match="SystemExit was raised while the item was sent"):
                producer.enqueue("t", b"x").result(LATER)
        assert producer.enqueue("t", b"y").result(LATER) == 1


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
    eventually(lambda: not any(thread.is_alive() for thread in producer._threads))
    with pytest.raises(ClientClosed):
        producer.enqueue("t", b"z")
    assert producer.flush() and producer.close()
    assert "the producer is closed, because of an error in its thread" in caplog.text


def test_a_closed_producer_has_no_thread(peer, client_of):
    """A thread that dropped the client during the end of the process made the interpreter print an error."""
    for _ in range(50):
        with Producer(client_of(peer), in_flight=3) as producer:
            producer.enqueue("t", b"x").result(LATER)
        assert not any(thread.is_alive() for thread in producer._threads)


def refuse(name, request):
    """Never stores anything, and is never asked again: Invalid."""
    return refused(1) if name == "Enqueue" else Act.SERVE


@pytest.fixture
def lines(caplog):
    """The lines that count failures."""
    return lambda: [record for record in caplog.records if "no caller read" in record.getMessage()]


def test_leaving_the_block_raises_if_no_future_was_read(new_peer, client_of, lines):
    with (
        pytest.raises(UnreadFailures, match="did not get 3 items stored") as raised,
        Producer(client_of(new_peer(refuse))) as producer,
    ):
        for _ in range(3):
            producer.enqueue("t", b"x")
    assert (raised.value.count, raised.value.unknown, raised.value.kinds) == (3, 0, {"INVALID": 3})
    assert "on_error" in str(raised.value) and "may be stored" not in str(raised.value)
    (line,) = lines()
    assert line.levelno == logging.ERROR
    assert producer.close(), "a failure reported once is not reported again"


def test_close_counts_only_the_items_that_failed(new_peer, client_of):
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1)), idl.EnqueueOutcome(error=failed(8))]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes)))
    producer = Producer(client_of(peer), max_items=3, linger_ms=3_600_000)
    for _ in range(3):
        producer.enqueue("t", b"x")
    with pytest.raises(UnreadFailures) as raised:
        producer.close()
    assert raised.value.kinds == {"INVALID": 1, "FORBIDDEN": 1}


def test_the_error_says_how_many_items_may_be_stored(new_peer, client_of):
    producer = Producer(client_of(new_peer(script("Enqueue", Act.CLOSE_AFTER))))
    producer.enqueue("t", b"x")
    with pytest.raises(UnreadFailures, match=r"1 may be stored.*dedup_key") as raised:
        producer.close()
    assert raised.value.unknown == 1 and not raised.value.outcome_known
    assert isinstance(raised.value.__cause__, OutcomeUnknown)


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


def test_raise_errors_false_only_logs(new_peer, client_of, lines):
    producer = Producer(client_of(new_peer(refuse)))
    producer.enqueue("t", b"x")
    assert producer.close(raise_errors=False)
    assert len(lines()) == 1


def test_on_error_gets_each_failed_item_instead(new_peer, client_of, lines):
    got = []
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1))]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes), refused(1)))
    with Producer(
        client_of(peer), max_items=2, linger_ms=3_600_000, in_flight=1, on_error=lambda *failure: got.append(failure)
    ) as producer:
        for n in range(3):
            producer.enqueue("t", str(n).encode())
    assert [(spec.payload, error.code.name) for spec, error in got] == [(b"1", "INVALID"), (b"2", "INVALID")]
    assert lines() == []


def test_items_whose_on_error_failed_are_counted(new_peer, client_of, caplog, lines):
    def broken(spec, error):
        raise KeyError("mine")

    with (
        pytest.raises(UnreadFailures) as raised,
        Producer(client_of(new_peer(refuse)), max_items=1, on_error=broken) as producer,
    ):
        for _ in range(3):
            producer.enqueue("t", b"x")
    assert raised.value.count == 3
    assert len([record for record in caplog.records if "on_error of the Producer failed" in record.getMessage()]) == 1


def test_an_error_of_the_block_is_not_masked(new_peer, client_of, lines):
    with pytest.raises(KeyError, match="mine") as raised, Producer(client_of(new_peer(refuse))) as producer:
        producer.enqueue("t", b"x")
        raise KeyError("mine")
    assert raised.value.__cause__ is None
    assert len(lines()) == 1


def test_items_cancelled_by_the_caller_do_not_count(peer, client_of, lines):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        assert producer.enqueue("t", b"x").cancel()
    assert lines() == []


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


def test_items_that_close_had_no_time_for_count(stuck):
    producer, futures = stuck()
    futures[1].cancel()
    with pytest.raises(UnreadFailures) as raised:
        producer.close(timeout_ms=10)
    assert raised.value.kinds == {"UNAVAILABLE": 2, "OUTCOME_UNKNOWN": 1}


def test_on_error_gets_items_that_close_had_no_time_for(stuck, lines):
    got = []
    producer, _ = stuck(on_error=lambda spec, error: got.append(error))
    assert not producer.close(timeout_ms=10)
    assert [type(error).__name__ for error in got] == ["ClientClosed"] * 3
    assert lines() == []


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
