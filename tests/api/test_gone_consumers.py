"""Consumers that disconnect while they wait, or as their item arrives: another consumer gets it, never two at once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from foqs.idl import idl
from tests.api.hosts import until
from tests.api.wire import Delivery, Wire


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_a_consumer_that_died_in_a_long_poll_gets_nothing(
    connect: Callable[..., Wire], topic: str, delivery: int
) -> None:
    """A later item goes to the next consumer, at its first attempt."""
    for end in ("reset", "close"):
        gone, wire = connect(), connect()
        gone.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 10)], wait_ms=60_000)
        wire.server_has_seen(gone)
        getattr(gone, end)()
        (item_id,) = wire.put(topic, b"x", delivery=delivery)
        item = wire.one(topic, wait_ms=10_000)
        assert (item.id, item.attempt) == (item_id, 1)
        wire.ack(item)


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_a_consumer_that_dies_as_its_item_comes(connect: Callable[..., Wire], topic: str, delivery: int) -> None:
    """However the two meet: if the item was written to the dying connection its lease has to run out (or, at most
    once, it is gone); else it is there for the next consumer at once. It never comes twice at one time."""
    producer, wire = connect(), connect()
    for n in range(30):
        gone = connect()
        gone.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 1)], wait_ms=60_000, lease_ms=300)
        wire.server_has_seen(gone)
        closer = threading.Timer(n % 5 / 2000, gone.reset)
        closer.start()
        (item_id,) = producer.put(topic, b"x", delivery=delivery)
        closer.join()
        items: list[Any] = []

        def ended(item_id: int = item_id, items: list[Any] = items) -> bool:
            # A commit gives back the lease that reached no consumer; that may take a while.
            found = wire.dequeue(topic, wait_ms=100)
            items.extend(found)
            assert not found or wire.ack(*found) == [0]
            return wire.state(item_id) is None

        until(ended, "the end of the item")
        if delivery == Delivery.AT_MOST_ONCE:
            assert [(item.id, item.attempt) for item in items] in ([], [(item_id, 1)])
        else:
            assert [item.id for item in items] == [item_id]
            assert items[0].attempt <= 2


def test_a_connection_that_closes_its_sending_side_is_gone(connect: Callable[..., Wire], topic: str) -> None:
    """Its waiting call is lost: the item goes to another consumer at once, without a lease to run out."""
    gone, wire = connect(), connect()
    gone.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 1)], wait_ms=60_000)
    wire.server_has_seen(gone)
    gone.socket.shutdown(1)
    assert gone.is_closed()
    wire.put(topic, b"x")
    item = wire.one(topic)
    assert item.attempt == 1
    wire.ack(item)
