# Written by script/twin.py from tests/client/_async/test_producer.py: change that file.
"""Batches, futures, the bounds of a producer, and the failures that no caller read."""

import logging
import threading

import pytest

from foqs.client import ClientClosed, Invalid, OutcomeUnknown, Producer, UnreadFailures
from foqs.idl import idl
from tests.client._sync.helpers import eventually, failure, result
from tests.client.peer import LATER, Act, failed, refused, script


def refuse(name, request):
    """Never stores anything, and is never asked again: Invalid."""
    return refused(1) if name == "Enqueue" else Act.SERVE


@pytest.fixture
def lines(caplog):
    """The lines that count failures."""
    return lambda: [record for record in caplog.records if "no caller read" in record.getMessage()]


@pytest.fixture
def held():
    """Holds the requests of a peer until it is set, at the end at the latest."""
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def held_peer(new_peer, held):
    return new_peer(lambda name, request: held.wait(LATER) and Act.SERVE)


@pytest.fixture
def stuck(held_peer, client_of):
    """`stuck(...)` is a producer whose first item is being sent until the test ends; three more wait."""

    def make(**options):
        producer = Producer(client_of(held_peer), max_items=1, in_flight=1, **options)
        futures = [producer.enqueue("t", b"x") for _ in range(4)]
        eventually(lambda: held_peer.calls)
        return producer, futures

    return make


def test_single_enqueues_go_together_and_each_gets_its_own_id(peer, client_of):
    with Producer(client_of(peer), max_items=50, linger_ms=3_600_000, in_flight=1) as producer:
        futures = [producer.enqueue("t", str(n).encode(), priority=n) for n in range(200)]
        ids = [result(future) for future in futures]
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
        assert result(producer.enqueue("t", b"x")) == 1


def test_flush_does_not_linger_and_waits_for_earlier_items(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        future = producer.enqueue("t", b"x")
        assert producer.flush(timeout_ms=LATER * 1000)
        assert future.done()
        assert producer.flush()


def test_flush_says_when_it_took_too_long(held_peer, client_of, held):
    with Producer(client_of(held_peer)) as producer:
        producer.enqueue("t", b"x")
        assert not producer.flush(timeout_ms=30)
        held.set()
        assert producer.flush(timeout_ms=LATER * 1000)


def test_a_lost_reply_is_unknown_for_exactly_its_own_items(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.SERVE, Act.CLOSE_AFTER))
    with Producer(client_of(peer), max_items=10, linger_ms=3_600_000, in_flight=1) as producer:
        futures = [producer.enqueue("t", str(n).encode()) for n in range(30)]
        unknown = [n for n, future in enumerate(futures) if isinstance(failure(future), OutcomeUnknown)]
    assert unknown == list(range(10, 20))
    sent = [spec.payload for request in peer.named("Enqueue") for spec in request.items]
    assert sorted(sent, key=int) == [str(n).encode() for n in range(30)], "none was sent twice"


def test_one_bad_item_fails_alone(new_peer, client_of):
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1)), idl.EnqueueOutcome(id=2)]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes)))
    with Producer(client_of(peer), max_items=3, linger_ms=3_600_000) as producer:
        first, bad, last = [producer.enqueue("t", b"x") for _ in range(3)]
        assert (result(first), result(last)) == (1, 2)
        assert isinstance(failure(bad), Invalid)


def test_a_blocked_enqueue_goes_on_when_there_is_room(held_peer, client_of, held):
    with Producer(client_of(held_peer), max_pending_items=2, in_flight=1) as producer:
        futures = [producer.enqueue("t", b"x") for _ in range(2)]
        opens = threading.Timer(0.02, held.set)
        opens.start()
        futures.append(producer.enqueue("t", b"y"))
        opens.join()
        assert [result(future) for future in futures] == [1, 2, 3]


def test_two_batches_are_under_way_at_a_time(held_peer, client_of, held):
    with Producer(client_of(held_peer), max_items=1, in_flight=2) as producer:
        futures = [producer.enqueue("t", b"x") for _ in range(5)]
        eventually(lambda: len(held_peer.calls) == 2)
        held.set()
        assert sorted([result(future) for future in futures]) == [1, 2, 3, 4, 5]


def test_a_cancelled_item_is_not_sent(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        futures = [producer.enqueue("t", str(n).encode()) for n in range(3)]
        assert futures[1].cancel()
        producer.flush()
    assert [item.payload for item in peer.items.values()] == [b"0", b"2"]


def test_a_batch_of_nothing_but_cancelled_items_asks_for_nothing(peer, client_of):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        assert (producer.enqueue("t", b"x")).cancel()
        assert producer.flush(timeout_ms=LATER * 1000)
    assert peer.calls == []


def test_close_sends_the_taken_items_and_takes_no_more(peer, client_of):
    producer = Producer(client_of(peer), linger_ms=3_600_000)
    future = producer.enqueue("t", b"x")
    assert producer.close()
    assert result(future) == 1
    with pytest.raises(ClientClosed):
        producer.enqueue("t", b"y")
    assert producer.close()


def test_close_gives_up_items_it_has_no_time_for(held_peer, client_of, held):
    producer = Producer(client_of(held_peer), max_items=1, in_flight=1, linger_ms=0)
    under_way, waiting = [producer.enqueue("t", b"x") for _ in range(2)]
    eventually(lambda: held_peer.calls)
    assert not producer.close(timeout_ms=50, raise_errors=False)
    assert waiting.cancelled()
    held.set()
    assert result(under_way) == 1


def test_a_future_of_an_unsent_item_is_cancelled(held_peer, client_of, held):
    producer = Producer(client_of(held_peer), max_items=1, in_flight=1)
    futures = [producer.enqueue("t", b"x") for _ in range(3)]
    eventually(futures[0].running)
    futures[1].cancel()
    assert not producer.close(timeout_ms=10, raise_errors=False)
    assert all(future.cancelled() for future in futures[1:])
    held.set()
    assert result(futures[0]) == 1


def test_an_error_that_would_end_a_thread_is_the_outcome(peer, client_of, monkeypatch):
    client = client_of(peer)

    def exits(specs):
        raise SystemExit(3)

    with Producer(client) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(client, "enqueue_many", exits)
            with pytest.raises(RuntimeError, match="SystemExit was raised while the item was sent"):
                result(producer.enqueue("t", b"x"))
        assert result(producer.enqueue("t", b"y")) == 1


def test_leaving_the_block_raises_if_no_future_was_read(new_peer, client_of, lines):
    with pytest.raises(UnreadFailures, match="did not get 3 items stored") as raised:
        with Producer(client_of(new_peer(refuse))) as producer:
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
        client_of(peer),
        max_items=2,
        linger_ms=3_600_000,
        in_flight=1,
        on_error=lambda *failure: got.append(failure),
    ) as producer:
        for n in range(3):
            producer.enqueue("t", str(n).encode())
    assert [(spec.payload, error.code.name) for spec, error in got] == [(b"1", "INVALID"), (b"2", "INVALID")]
    assert lines() == []


def test_items_whose_on_error_failed_are_counted(new_peer, client_of, caplog, lines):
    def broken(spec, error):
        raise KeyError("mine")

    with pytest.raises(UnreadFailures) as raised:
        with Producer(client_of(new_peer(refuse)), max_items=1, on_error=broken) as producer:
            for _ in range(3):
                producer.enqueue("t", b"x")
    assert raised.value.count == 3
    assert len([record for record in caplog.records if "on_error of the Producer failed" in record.getMessage()]) == 1


def test_an_error_of_the_block_is_not_masked(new_peer, client_of, lines):
    with pytest.raises(KeyError, match="mine") as raised:
        with Producer(client_of(new_peer(refuse))) as producer:
            producer.enqueue("t", b"x")
            raise KeyError("mine")
    assert raised.value.__cause__ is None
    assert len(lines()) == 1


def test_items_cancelled_by_the_caller_do_not_count(peer, client_of, lines):
    with Producer(client_of(peer), linger_ms=3_600_000) as producer:
        assert (producer.enqueue("t", b"x")).cancel()
    assert lines() == []


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
