"""Batches, futures, the bounds of a producer, and the failures that no caller read."""

import logging
import threading

import pytest

from foqs.client import AsyncProducer, ClientClosed, Invalid, OutcomeUnknown, UnreadFailures
from foqs.idl import idl
from tests.client._async.helpers import eventually, failure, result
from tests.client.peer import LATER, Act, failed, refused, script

pytestmark = [pytest.mark.anyio, pytest.mark.threads]  # async only


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
    """`await stuck(...)` is a producer whose first item is being sent until the test ends; three more wait."""

    async def make(**options):
        producer = AsyncProducer(await client_of(held_peer), max_items=1, in_flight=1, **options)
        futures = [await producer.enqueue("t", b"x") for _ in range(4)]
        await eventually(lambda: held_peer.calls)
        return producer, futures

    return make


async def test_single_enqueues_go_together_and_each_gets_its_own_id(peer, client_of):
    async with AsyncProducer(await client_of(peer), max_items=50, linger_ms=3_600_000, in_flight=1) as producer:
        futures = [await producer.enqueue("t", str(n).encode(), priority=n) for n in range(200)]
        ids = [await result(future) for future in futures]
    assert [peer.items[i].payload for i in ids] == [str(n).encode() for n in range(200)]
    assert [len(request.items) for request in peer.named("Enqueue")] == [50] * 4


async def test_batches_are_cut_by_bytes(peer, client_of):
    async with AsyncProducer(await client_of(peer), max_bytes=10_000, linger_ms=3_600_000, in_flight=1) as producer:
        for _ in range(9):
            await producer.enqueue("t", b"x" * 3_000)
        assert await producer.flush(timeout_ms=LATER * 1000)
    assert [len(request.items) for request in peer.named("Enqueue")] == [3, 3, 3]


async def test_a_lone_item_leaves_after_its_linger(peer, client_of):
    async with AsyncProducer(await client_of(peer), linger_ms=5) as producer:
        assert await result(await producer.enqueue("t", b"x")) == 1


async def test_flush_does_not_linger_and_waits_for_earlier_items(peer, client_of):
    async with AsyncProducer(await client_of(peer), linger_ms=3_600_000) as producer:
        future = await producer.enqueue("t", b"x")
        assert await producer.flush(timeout_ms=LATER * 1000)
        assert future.done()
        assert await producer.flush()


async def test_flush_says_when_it_took_too_long(held_peer, client_of, held):
    async with AsyncProducer(await client_of(held_peer)) as producer:
        await producer.enqueue("t", b"x")
        assert not await producer.flush(timeout_ms=30)
        held.set()
        assert await producer.flush(timeout_ms=LATER * 1000)


async def test_a_lost_reply_is_unknown_for_exactly_its_own_items(new_peer, client_of):
    peer = new_peer(script("Enqueue", Act.SERVE, Act.CLOSE_AFTER))
    async with AsyncProducer(await client_of(peer), max_items=10, linger_ms=3_600_000, in_flight=1) as producer:
        futures = [await producer.enqueue("t", str(n).encode()) for n in range(30)]
        unknown = [n for n, future in enumerate(futures) if isinstance(await failure(future), OutcomeUnknown)]
    assert unknown == list(range(10, 20))
    sent = [spec.payload for request in peer.named("Enqueue") for spec in request.items]
    assert sorted(sent, key=int) == [str(n).encode() for n in range(30)], "none was sent twice"


async def test_one_bad_item_fails_alone(new_peer, client_of):
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1)), idl.EnqueueOutcome(id=2)]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes)))
    async with AsyncProducer(await client_of(peer), max_items=3, linger_ms=3_600_000) as producer:
        first, bad, last = [await producer.enqueue("t", b"x") for _ in range(3)]
        assert (await result(first), await result(last)) == (1, 2)
        assert isinstance(await failure(bad), Invalid)


async def test_a_blocked_enqueue_goes_on_when_there_is_room(held_peer, client_of, held):
    async with AsyncProducer(await client_of(held_peer), max_pending_items=2, in_flight=1) as producer:
        futures = [await producer.enqueue("t", b"x") for _ in range(2)]
        opens = threading.Timer(0.02, held.set)
        opens.start()
        futures.append(await producer.enqueue("t", b"y"))
        opens.join()
        assert [await result(future) for future in futures] == [1, 2, 3]


async def test_two_batches_are_under_way_at_a_time(held_peer, client_of, held):
    async with AsyncProducer(await client_of(held_peer), max_items=1, in_flight=2) as producer:
        futures = [await producer.enqueue("t", b"x") for _ in range(5)]
        await eventually(lambda: len(held_peer.calls) == 2)
        held.set()
        assert sorted([await result(future) for future in futures]) == [1, 2, 3, 4, 5]


async def test_a_cancelled_item_is_not_sent(peer, client_of):
    async with AsyncProducer(await client_of(peer), linger_ms=3_600_000) as producer:
        futures = [await producer.enqueue("t", str(n).encode()) for n in range(3)]
        assert futures[1].cancel()
        await producer.flush()
    assert [item.payload for item in peer.items.values()] == [b"0", b"2"]


async def test_a_batch_of_nothing_but_cancelled_items_asks_for_nothing(peer, client_of):
    async with AsyncProducer(await client_of(peer), linger_ms=3_600_000) as producer:
        assert (await producer.enqueue("t", b"x")).cancel()
        assert await producer.flush(timeout_ms=LATER * 1000)
    assert peer.calls == []


async def test_close_sends_the_taken_items_and_takes_no_more(peer, client_of):
    producer = AsyncProducer(await client_of(peer), linger_ms=3_600_000)
    future = await producer.enqueue("t", b"x")
    assert await producer.close()
    assert await result(future) == 1
    with pytest.raises(ClientClosed):
        await producer.enqueue("t", b"y")
    assert await producer.close()


async def test_close_gives_up_items_it_has_no_time_for(held_peer, client_of, held):
    producer = AsyncProducer(await client_of(held_peer), max_items=1, in_flight=1, linger_ms=0)
    under_way, waiting = [await producer.enqueue("t", b"x") for _ in range(2)]
    await eventually(lambda: held_peer.calls)
    assert not await producer.close(timeout_ms=50, raise_errors=False)
    assert waiting.cancelled()
    held.set()
    assert await result(under_way) == 1


async def test_a_future_of_an_unsent_item_is_cancelled(held_peer, client_of, held):
    producer = AsyncProducer(await client_of(held_peer), max_items=1, in_flight=1)
    futures = [await producer.enqueue("t", b"x") for _ in range(3)]
    await eventually(futures[0].running)
    futures[1].cancel()
    assert not await producer.close(timeout_ms=10, raise_errors=False)
    assert all(future.cancelled() for future in futures[1:])
    held.set()
    assert await result(futures[0]) == 1


async def test_an_error_that_would_end_a_thread_is_the_outcome(peer, client_of, monkeypatch):
    client = await client_of(peer)

    def exits(specs):
        raise SystemExit(3)

    async with AsyncProducer(client) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(client, "enqueue_many", exits)
            with pytest.raises(RuntimeError, match="SystemExit was raised while the item was sent"):
                await result(await producer.enqueue("t", b"x"))
        assert await result(await producer.enqueue("t", b"y")) == 1


async def test_leaving_the_block_raises_if_no_future_was_read(new_peer, client_of, lines):
    with pytest.raises(UnreadFailures, match="did not get 3 items stored") as raised:
        async with AsyncProducer(await client_of(new_peer(refuse))) as producer:
            for _ in range(3):
                await producer.enqueue("t", b"x")
    assert (raised.value.count, raised.value.unknown, raised.value.kinds) == (3, 0, {"INVALID": 3})
    assert "on_error" in str(raised.value) and "may be stored" not in str(raised.value)
    (line,) = lines()
    assert line.levelno == logging.ERROR
    assert await producer.close(), "a failure reported once is not reported again"


async def test_close_counts_only_the_items_that_failed(new_peer, client_of):
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1)), idl.EnqueueOutcome(error=failed(8))]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes)))
    producer = AsyncProducer(await client_of(peer), max_items=3, linger_ms=3_600_000)
    for _ in range(3):
        await producer.enqueue("t", b"x")
    with pytest.raises(UnreadFailures) as raised:
        await producer.close()
    assert raised.value.kinds == {"INVALID": 1, "FORBIDDEN": 1}


async def test_the_error_says_how_many_items_may_be_stored(new_peer, client_of):
    producer = AsyncProducer(await client_of(new_peer(script("Enqueue", Act.CLOSE_AFTER))))
    await producer.enqueue("t", b"x")
    with pytest.raises(UnreadFailures, match=r"1 may be stored.*dedup_key") as raised:
        await producer.close()
    assert raised.value.unknown == 1 and not raised.value.outcome_known
    assert isinstance(raised.value.__cause__, OutcomeUnknown)


async def test_raise_errors_false_only_logs(new_peer, client_of, lines):
    producer = AsyncProducer(await client_of(new_peer(refuse)))
    await producer.enqueue("t", b"x")
    assert await producer.close(raise_errors=False)
    assert len(lines()) == 1


async def test_on_error_gets_each_failed_item_instead(new_peer, client_of, lines):
    got = []
    outcomes = [idl.EnqueueOutcome(id=1), idl.EnqueueOutcome(error=failed(1))]
    peer = new_peer(script("Enqueue", idl.EnqueueResponse(outcomes=outcomes), refused(1)))
    async with AsyncProducer(
        await client_of(peer),
        max_items=2,
        linger_ms=3_600_000,
        in_flight=1,
        on_error=lambda *failure: got.append(failure),
    ) as producer:
        for n in range(3):
            await producer.enqueue("t", str(n).encode())
    assert [(spec.payload, error.code.name) for spec, error in got] == [(b"1", "INVALID"), (b"2", "INVALID")]
    assert lines() == []


async def test_items_whose_on_error_failed_are_counted(new_peer, client_of, caplog, lines):
    def broken(spec, error):
        raise KeyError("mine")

    with pytest.raises(UnreadFailures) as raised:
        async with AsyncProducer(await client_of(new_peer(refuse)), max_items=1, on_error=broken) as producer:
            for _ in range(3):
                await producer.enqueue("t", b"x")
    assert raised.value.count == 3
    assert len([record for record in caplog.records if "on_error of the Producer failed" in record.getMessage()]) == 1


async def test_an_error_of_the_block_is_not_masked(new_peer, client_of, lines):
    with pytest.raises(KeyError, match="mine") as raised:
        async with AsyncProducer(await client_of(new_peer(refuse))) as producer:
            await producer.enqueue("t", b"x")
            raise KeyError("mine")
    assert raised.value.__cause__ is None
    assert len(lines()) == 1


async def test_items_cancelled_by_the_caller_do_not_count(peer, client_of, lines):
    async with AsyncProducer(await client_of(peer), linger_ms=3_600_000) as producer:
        assert (await producer.enqueue("t", b"x")).cancel()
    assert lines() == []


async def test_items_that_close_had_no_time_for_count(stuck):
    producer, futures = await stuck()
    futures[1].cancel()
    with pytest.raises(UnreadFailures) as raised:
        await producer.close(timeout_ms=10)
    assert raised.value.kinds == {"UNAVAILABLE": 2, "OUTCOME_UNKNOWN": 1}


async def test_on_error_gets_items_that_close_had_no_time_for(stuck, lines):
    got = []
    producer, _ = await stuck(on_error=lambda spec, error: got.append(error))
    assert not await producer.close(timeout_ms=10)
    assert [type(error).__name__ for error in got] == ["ClientClosed"] * 3
    assert lines() == []
