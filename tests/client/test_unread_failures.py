"""Failures of a Producer that no caller read: what close() raises, and what the log says."""

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait

import pytest

from foqs.client import Invalid, OutcomeUnknown, Producer, Unavailable, UnreadFailures
from foqs.client.producer import ItemFuture, Unread
from foqs.idl import idl
from tests.client.peer import LATER, Act, eventually, failed, refused, script
from tests.support.ports import held_port


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
    """`stuck(...)` is a producer whose first item is under way until the test ends; three more wait behind it."""

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
