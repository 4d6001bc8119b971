"""TTL: removes items that no consumer leased in time, never under a live lease."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Delivery, State, Wire, now_ms, spec

HOUR_MS = 3_600_000


def held(wire: Wire, topic: str, *, ttl_ms: int, lease_ms: int = 30_000, **fields: Any) -> Any:
    """An item that was leased before its TTL ended: after a pause of the machine, the next one."""
    found: list[Any] = []

    def leased() -> bool:
        wire.put(topic, b"", ttl_ms=ttl_ms, **fields)
        found[:] = wire.dequeue(topic, lease_ms=lease_ms)
        return bool(found)

    until(leased, "an item")
    return found[0]


def test_a_ready_item_is_removed(wire: Wire, topic: str) -> None:
    """At its time; other items stay. It counts from the enqueue."""
    short, long, none = wire.enqueue(spec(topic, ttl_ms=200), spec(topic, ttl_ms=60_000), spec(topic))
    other = wire.look(long).item  # of the same request, so of the same time
    assert other.expires_at_ms == other.enqueued_at_ms + 60_000
    until(lambda: wire.state(short) is None, "the end of the TTL")
    assert now_ms() >= other.enqueued_at_ms + 200 - 5
    assert [item.id for item in wire.drain(topic)] == [long, none]


def test_a_ttl_may_be_given_by_its_end(wire: Wire, topic: str) -> None:
    """A time that has passed is the shortest TTL."""
    end_ms = now_ms() + HOUR_MS
    (later,) = wire.enqueue(spec(topic, expires_at_ms=end_ms))
    assert wire.look(later).item.expires_at_ms == end_ms
    (over,) = wire.put(topic, b"", expires_at_ms=end_ms - 2 * HOUR_MS)
    until(lambda: wire.state(over) is None, "the end of the TTL")
    assert [item.id for item in wire.drain(topic)] == [later]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"expires_at_ms": HOUR_MS, "ttl_ms": 5}, "both expires_at_ms and ttl_ms"),
        ({"expires_at_ms": 1_795_000_000}, "expires_at_ms is 1795000000, which is in January 1970: give Unix epoch"),
        ({"expires_at_ms": -1}, "expires_at_ms is -1: it must be Unix epoch milliseconds"),
        ({"expires_at_ms": 0}, "expires_at_ms is 0: it must be Unix epoch milliseconds"),
        ({"expires_at_ms": 1_795_000_000_000_000}, "after the year 5000: give Unix epoch milliseconds (not micro"),
        ({"expires_at_ms": 10**14}, "expires_at_ms is 100000000000000, more than"),
    ],
)
def test_an_end_of_a_ttl_that_is_none(wire: Wire, topic: str, fields: dict[str, int], problem: str) -> None:
    assert problem in wire.refusal(spec(topic, **fields))


def test_a_delayed_item_is_removed(wire: Wire, topic: str) -> None:
    """Also when its TTL ends before its delay does; such an item is never delivered."""
    short, long = wire.enqueue(*(spec(topic, delay_ms=HOUR_MS, ttl_ms=ttl_ms) for ttl_ms in (150, HOUR_MS)))
    assert wire.state(long) == State.DELAYED
    until(lambda: wire.state(short) is None, "the end of the TTL")
    assert wire.state(long) == State.DELAYED
    (item_id,) = wire.put(topic, b"", delay_ms=250, ttl_ms=200)
    assert wire.dequeue(topic, wait_ms=500) == []
    until(lambda: wire.state(item_id) is None, "the end of the TTL")
    wire.delete(long)


def test_a_leased_item_is_not_removed_before_its_lease_ends(wire: Wire, topic: str) -> None:
    """Its consumer may ack it, and extend the lease, beyond the TTL."""
    code = None
    while code != 0:
        item = held(wire, topic, ttl_ms=200, lease_ms=700)
        until(lambda item=item: now_ms() > item.expires_at_ms + 150, "a time behind the TTL")  # type: ignore[misc]
        state, code = wire.state(item.id), wire.extend(item, HOUR_MS)
        # Under its lease it is there; a machine that stood still until that is over has it done once more.
        assert (state, code) == (State.LEASED, 0) or now_ms() >= item.lease_expires_at_ms - 5
    until(lambda: now_ms() > item.lease_expires_at_ms + 150, "a time behind the first lease")
    assert wire.state(item.id) == State.LEASED
    assert wire.ack(item) == [0]


def test_a_lease_that_ends_after_the_ttl_removes_the_item(wire: Wire, topic: str) -> None:
    """By time, by a nack (with and without delay), by a release."""
    item = held(wire, topic, ttl_ms=100, lease_ms=300)
    assert wire.dequeue(topic, wait_ms=600) == []
    until(lambda: wire.state(item.id) is None, "the end of the lease")
    assert wire.ack(item) == [Code.NOT_FOUND]
    for fields in ({}, {"delay_ms": 100}, {"metadata": b"m"}, {"release": True}):
        item = held(wire, topic, ttl_ms=100, lease_ms=HOUR_MS)
        until(lambda item=item: now_ms() > item.expires_at_ms + 5, "the end of the TTL")  # type: ignore[misc]
        assert wire.nack(item, **fields) == 0
        assert wire.state(item.id) is None
        assert wire.dequeue(topic) == []


def test_after_a_nack_the_ttl_still_counts_from_the_enqueue(wire: Wire, topic: str) -> None:
    wire.put(topic, b"", ttl_ms=HOUR_MS)
    item = wire.one(topic)
    assert wire.nack(item) == 0
    again = wire.one(topic)
    assert again.expires_at_ms == item.expires_at_ms
    assert wire.ack(again) == [0]
    item = held(wire, topic, ttl_ms=400)
    assert wire.nack(item, delay_ms=HOUR_MS) == 0
    until(lambda: wire.state(item.id) is None, "the end of the TTL")
    assert now_ms() >= item.expires_at_ms - 5


def test_at_most_once_with_a_ttl(wire: Wire, topic: str) -> None:
    """Not removed under its lease; can be acked after the TTL."""
    item = held(wire, topic, ttl_ms=100, lease_ms=HOUR_MS, delivery=Delivery.AT_MOST_ONCE)
    until(lambda: now_ms() > item.expires_at_ms + 100, "a time behind the TTL")
    assert wire.state(item.id) == State.LEASED
    assert wire.ack(item) == [0]


def test_expired_items_do_not_hide_those_behind_them(connect: Callable[..., Wire], topic: str) -> None:
    """A dequeue just as the more urgent items expire gets the rest at once, and never an expired item."""
    wire = connect()
    for _ in range(5):
        wire.enqueue(*(spec(topic, ttl_ms=150, priority=-1) for _ in range(400)))
        kept = wire.put(topic, *[b"kept"] * 8)
        expires_at_ms = wire.look(kept[0]).item.enqueued_at_ms + 150
        found: list[Any] = []

        def consume(consumer: Wire, found: list[Any] = found) -> None:
            found.append(consumer.one(topic))

        until(lambda at=expires_at_ms: now_ms() >= at, "the end of the TTL")  # type: ignore[misc]
        consumers = [threading.Thread(target=consume, args=(connect(),)) for _ in range(8)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
        assert sorted(item.id for item in found if item.payload == b"kept") == sorted(kept)
        wire.ack(*found)


def test_many_expire_at_once(wire: Wire, topic: str) -> None:
    """More than one scan finds."""
    ids = wire.enqueue(*(spec(topic, ttl_ms=100) for _ in range(5000)))
    until(lambda: wire.listed(topic, limit=1) == [], "the end of all")
    assert {wire.state(item_id) for item_id in ids[::500]} == {None}


def test_ttl_ends_while_the_host_is_down(start_whole: Callable[..., HostProcess], topic: str) -> None:
    """The next owner removes items that expired before it opened the shard, and does not deliver them."""
    first = start_whole()
    with Wire(first.address) as wire:
        short, delayed, long = wire.enqueue(
            spec(topic, ttl_ms=200), spec(topic, ttl_ms=200, delay_ms=HOUR_MS), spec(topic, ttl_ms=HOUR_MS)
        )
        ends_ms = now_ms() + 200
    assert first.stop() == 0
    until(lambda: now_ms() > ends_ms, "the end of the TTL")
    with Wire(start_whole().address) as wire:
        assert wire.one(topic).id == long
        until(lambda: wire.state(short) is None and wire.state(delayed) is None, "the removal of the items")
