"""Only a host as users run it shows this: the order over real shards, frames, wakes, and what outlives its process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from foqs.idl import idl
from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Delivery, State, Wire, now_ms, spec

HOUR_MS = 3_600_000
Start = Callable[..., HostProcess]


def test_priorities_over_several_shards_in_exact_order(wire: Wire, topic: str) -> None:
    """Items enqueued one by one land on all shards; one dequeue gets them by (priority, deliver_after, id)."""
    dice = random.Random(3)
    given = [wire.put(topic, b"", priority=dice.randint(-3, 3))[0] for _ in range(200)]
    wire.hold_nothing_back(topic)
    found = wire.dequeue(topic, 200, wait_ms=30_000)
    assert len({item.id >> 48 for item in found}) == 4
    keys = [(item.priority, item.deliver_after_ms, item.id) for item in found]
    assert keys == sorted(keys)
    assert sorted(item.id for item in found) == sorted(given)
    wire.ack(*found)


def test_names_are_compared_byte_by_byte(wire: Wire, topic: str) -> None:
    """Neither case, nor accents, nor spaces at the end are folded, as a collation of the database would do."""
    names = [topic + "a", topic + "A", topic + "ä", topic + "a\u0308", topic + "a "]
    for name in names:
        wire.put(name, name.encode())
    for name in names:
        assert [item.payload for item in wire.drain(name)] == [name.encode()]


def test_an_enqueue_wakes_a_waiting_consumer(connect: Callable[..., Wire], topic: str) -> None:
    """As soon as it is stored, not by polling."""
    consumer, producer = connect(), connect()

    def woken() -> bool:
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 10)], wait_ms=60_000)
        producer.server_has_seen(consumer)
        began = time.monotonic()
        (item_id,) = producer.put(topic, b"x")
        (item,) = consumer.receive("Dequeue").items
        took_s = time.monotonic() - began
        assert item.id == item_id
        consumer.ack(item)
        return took_s < 0.05

    until(woken, "an item that is not waited for longer than its commit takes")


# ------------------------------------------------------------------------------------------ frames


def test_an_answer_never_exceeds_a_frame(wire: Wire, topic: str) -> None:
    """Twenty items of 1 MiB do not fit one: the answer has those that fit, and the next answer the rest."""
    ids = [wire.put(topic, bytes([n]) * (1 << 20), priority=n)[0] for n in range(20)]
    assert sorted(item.id for item in wire.listed(topic, 1000)) == sorted(ids)
    answers = []
    while sum(answers) < 20:
        items = wire.dequeue(topic, 100, wait_ms=30_000)
        assert [item.payload[:1] for item in items] == [bytes([sum(answers) + n]) for n in range(len(items))]
        answers.append(len(items))
        assert wire.ack(*items) == [0] * len(items)
    assert answers[0] <= 15
    assert len(answers) <= 20
    assert wire.dequeue(topic) == []


def test_small_items_that_would_not_fit_a_frame_together(wire: Wire, topic: str) -> None:
    """Names and fields count too: ten thousand items with the longest names, and items that are nearly all headers."""
    name = topic + "t" * (255 - len(topic))
    wire.ns = "n" * 255
    wire.put(name, *[b"p" * 1300] * 10_000)
    assert len(take_all(wire, name, 10_000)) == 10_000
    wire.ns = "test"
    headers = {f"{n:x}": "" for n in range(1300)}
    for _ in range(15):
        wire.enqueue(*(spec(topic, headers=headers) for _ in range(100)))
    found = take_all(wire, topic, 1500)
    assert len(found) == 1500
    assert found[0].headers == headers


def test_metadata_that_a_nack_made_longer_counts(start_whole: Start, topic: str) -> None:
    """Ten thousand items of nothing, each nacked with 4 KiB of metadata, exceed a frame."""
    first = start_whole("--shards", "16")
    wire = Wire(first.address)
    dice = random.Random(5)
    for _ in range(100):
        wire.enqueue(*(spec(topic, priority=dice.randint(1, 1000)) for _ in range(100)))
    items = take_all(wire, topic, 10_000, ack=False)
    for at in range(0, 10_000, 1000):
        nacks = [idl.NackItem(item.id, item.lease, metadata=b"m" * 4096) for item in items[at : at + 1000]]
        assert set(wire.settle("Nack", nacks)) == {0}
    wire.close()
    assert first.stop() == 0
    wire = Wire(start_whole("--shards", "16").address)
    found: list[Any] = []
    while len(found) < 4500:  # little by little, so that much is in memory when all is asked for at once
        found += wire.dequeue(topic, 100, wait_ms=30_000, lease_ms=HOUR_MS)
    found += take_all(wire, topic, 10_000 - len(found))
    assert len(found) == 10_000
    assert {item.metadata for item in found} == {b"m" * 4096}


def take_all(wire: Wire, topic: str, count: int, ack: bool = True) -> list[Any]:
    """All items of a topic, asked for at once again and again; no answer may be longer than a frame."""
    found: list[Any] = []
    while len(found) < count:
        items = wire.dequeue(topic, 10_000, wait_ms=30_000, lease_ms=HOUR_MS)
        assert items
        if ack:
            assert set(wire.ack(*items)) == {0}
        found += items
    return found


# ------------------------------------------------------------------------------------------ the next process


def test_leases_and_times_go_on_after_a_stop(start_whole: Start, topic: str) -> None:
    """Written leases hold; one that ended in between can be acked until the next one; TTLs end while no host runs."""
    first = start_whole()
    with Wire(first.address) as wire:
        wire.put(topic, *[b""] * 4)
        living, short, over, nacked = wire.dequeue(topic, 4, lease_ms=HOUR_MS)
        assert wire.extend(short, 400) == 0
        assert wire.extend(over, 100) == 0
        until(lambda: wire.state(over.id) == State.READY, "the end of the lease")
        assert wire.nack(nacked) == 0
        expired, delayed = wire.enqueue(spec(topic, ttl_ms=200), spec(topic, ttl_ms=200, delay_ms=HOUR_MS))
        ends_ms = now_ms() + 200
    assert first.stop() == 0
    until(lambda: now_ms() > ends_ms, "the end of the TTL")
    with Wire(start_whole().address) as wire:
        assert wire.state(living.id) == State.LEASED
        until(lambda: wire.state(short.id) == State.READY, "the end of the lease")
        assert wire.ack(living, short, over, nacked) == [0, 0, 0, Code.STALE_LEASE]
        (left,) = wire.dequeue(topic, 10)
        assert (left.id, left.attempt) == (nacked.id, 2)
        assert wire.ack(left) == [0]
        until(lambda: wire.state(expired) is None and wire.state(delayed) is None, "the removal of the items")


def test_a_killed_host_forgets_nothing_that_it_answered(start_whole: Start, topic: str) -> None:
    """At-most-once leases, dead letters, and deduplication keys."""
    keys = [f"k{n}" for n in range(200)]
    first = start_whole()
    with Wire(first.address) as wire:
        wire.put(topic, b"a", b"b", delivery=Delivery.AT_MOST_ONCE)
        once = wire.dequeue(topic, 2, lease_ms=HOUR_MS)
        (dead_id,) = wire.put("t", b"x")
        assert wire.nack(wire.one("t"), reject=True, reason="é") == 0
        stored = keyed(wire, *keys)
    first.kill()
    with Wire(start_whole().address) as wire:
        assert wire.dequeue(topic) == []
        assert [wire.state(item.id) for item in once] == [State.LEASED] * 2
        assert wire.extend(once[0], 30_000) == 0
        assert wire.ack(*once) == [0, 0]
        (dead,) = wire.listed("t.dlq")
        assert (dead.id, dead.failure.topic, dead.failure.reason) == (dead_id, "t", "é")
        again = keyed(wire, *keys)
        assert [outcome.id for outcome in again] == [outcome.id for outcome in stored]
        assert all(outcome.duplicate for outcome in again)
        (new,) = keyed(wire, "new")
        assert (new.duplicate, len(wire.drain("keys"))) == (None, 201)


def keyed(wire: Wire, *keys: str) -> list[Any]:
    """Enqueue an item for each key. A host that has just begun may not have shared out the slots of keys yet."""
    made: list[Any] = []

    def served() -> bool:
        made[:] = wire.outcomes(*(spec("keys", b"x", dedup_key=key) for key in keys))
        return not any(outcome.error and outcome.error.code == Code.UNAVAILABLE for outcome in made)

    until(served, "a shard for each key")
    return made
