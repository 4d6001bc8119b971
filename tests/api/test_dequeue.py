"""Dequeue: order over shards and topics, the size of an answer, and how long a consumer waits."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from foqs.idl import idl
from foqs.wire.protocol import end_wait
from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Refused, State, Wire, now_ms, spec
from tests.rpc.serving import framed, message

HOUR_MS = 3_600_000
FRAME_BYTES = 16_384_000


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


def test_the_order_holds_from_dequeue_to_dequeue(wire: Wire, topic: str) -> None:
    """Also when more urgent items arrive during the dequeues."""
    for priority in (5, 1, 9):
        for _ in range(8):
            wire.put(topic, b"", priority=priority)
    first = [wire.one(topic).priority for _ in range(10)]
    wire.put(topic, b"", priority=0)
    then = [wire.one(topic).priority for _ in range(15)]
    assert first == [1] * 8 + [5] * 2
    assert then == [0] + [5] * 6 + [9] * 8


def test_topics_in_the_order_of_wants(wire: Wire, topics: list[str]) -> None:
    """Each with its own count; priorities do not reach over topics; a topic that holds nothing is no hindrance."""
    for number, topic in enumerate(topics):
        wire.put(topic, *(b"%d" % n for n in range(4)), priority=-number)
    wire.hold_nothing_back(*topics)
    items = wire.take([(topics[2], 2), ("nothing-here", 5), (topics[0], 10), (topics[1], 1)])
    assert [item.topic for item in items] == [topics[2]] * 2 + [topics[0]] * 4 + [topics[1]]
    assert [item.payload for item in items] == [b"0", b"1", b"0", b"1", b"2", b"3", b"0"]
    wire.ack(*items)
    for topic in topics:
        wire.drain(topic)


def test_namespaces_are_apart(wire: Wire, topic: str) -> None:
    wire.put(topic, b"mine")
    assert wire.take([(topic, 1)], ns="other") == []
    assert wire.one(topic).payload == b"mine"


def test_a_dequeue_leases(wire: Wire, topic: str) -> None:
    """A leased item is not leased again, and every lease has its own token."""
    wire.put(topic, *[b""] * 5)
    first = wire.dequeue(topic, 3)
    second = wire.dequeue(topic, 3)
    assert (len(first), len(second)) == (3, 2)
    assert wire.dequeue(topic, 3) == []
    assert len({item.lease for item in first + second}) == 5
    assert {wire.state(item.id) for item in first + second} == {State.LEASED}
    wire.ack(*first, *second)


@pytest.mark.parametrize(("own", "asked", "expected"), [(None, None, 30_000), (50_000, None, 50_000), (50_000, 9, 900)])
def test_how_long_a_lease_is(wire: Wire, topic: str, own: Any, asked: Any, expected: int) -> None:
    """The consumer's wish comes before the item's own, and that before the server's default."""
    wire.put(topic, b"", lease_ms=own)
    before = now_ms()
    item = wire.one(topic, lease_ms=asked and expected)
    assert before + expected - 5 <= item.lease_expires_at_ms <= now_ms() + expected + 5
    wire.ack(item)


@pytest.mark.parametrize("lease_ms", [100, 12 * HOUR_MS])
def test_leases_at_their_edges(wire: Wire, topic: str, lease_ms: int) -> None:
    wire.put(topic, b"")
    before = now_ms()
    item = wire.one(topic, lease_ms=lease_ms)
    assert before + lease_ms - 5 <= item.lease_expires_at_ms <= now_ms() + lease_ms + 5
    wire.ack(item)


WRONG: list[dict[str, Any]] = [
    {"wants": None},
    {"wants": []},
    {"wants": [("a", 0)]},
    {"wants": [("a", -1)]},
    {"wants": [("a", 10_001)]},
    {"wants": [("a", 5_000), ("b", 5_001)]},
    {"wants": [("a", 1), ("a", 1)]},
    {"wants": [("", 1)]},
    {"wants": [("a\n", 1)]},
    {"wants": [("a" * 256, 1)]},
    {"wants": [(b"\xff", 1)]},
    {"wants": [(None, 1)]},
    {"wants": [("a", None)]},
    {"wants": [(f"t{n}", 1) for n in range(1001)]},
    {"ns": ""},
    {"ns": None},
    {"ns": b"\xff"},
    {"ns": "n" * 256},
    {"lease_ms": 99},
    {"lease_ms": 0},
    {"lease_ms": 12 * HOUR_MS + 1},
    {"lease_ms": -(2**63)},
    {"wait_ms": -1},
    {"wait_ms": 600_001},
    {"max_bytes": 0},
    {"max_bytes": -1},
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: str(fields)[:60])
def test_requests_that_are_wrong(wire: Wire, fields: dict[str, Any]) -> None:
    """Refused whole as INVALID; the connection goes on."""
    made = {"ns": "test", "wants": [("a", 1)], **fields}
    made["wants"] = made["wants"] and [idl.TopicCount(*want) for want in made["wants"]]
    with pytest.raises(Refused) as refused:
        wire.ask("Dequeue", **made)
    assert refused.value.code == Code.INVALID
    assert wire.dequeue("a") == []


def test_a_thousand_topics_and_ten_thousand_items(wire: Wire, topic: str) -> None:
    """The most that may be asked for."""
    wire.put(f"{topic}-999", b"last")
    (item,) = wire.take([(f"{topic}-{n}", 10) for n in range(1000)])
    assert item.payload == b"last"
    wire.ack(item)


def test_max_bytes_bounds_the_bodies(wire: Wire, topic: str) -> None:
    """Payloads, metadata and headers together; what fits exactly is given, and the first item always is."""
    for _ in range(3):
        wire.put(topic, *[b"x" * 90] * 10, metadata=b"y" * 10)
    wire.hold_nothing_back(topic)

    def sizes(max_bytes: int) -> list[int]:
        items = wire.dequeue(topic, 100, max_bytes=max_bytes)
        wire.ack(*items)
        return [len(item.payload) + len(item.metadata) for item in items]

    assert sizes(1) == [100]
    assert sizes(99) == [100]
    assert sizes(100) == [100]
    assert sizes(199) == [100]
    assert sizes(200) == [100] * 2
    assert sizes(1000) == [100] * 10
    assert sizes(2**62) == [100] * 14


def test_an_answer_never_exceeds_a_frame(wire: Wire, topic: str) -> None:
    """Twenty items of 1 MiB do not fit one: the answer has those that fit, and the next answer the rest."""
    for n in range(20):
        wire.put(topic, bytes([n]) * (1 << 20), priority=n)
    answers = []
    while sum(answers) < 20:
        wire.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 100)], wait_ms=30_000)
        items = wire.receive("Dequeue").items
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
    found = take_all(wire, name, 10_000)
    assert len(found) == 10_000
    wire.ns = "test"
    headers = {f"{n:x}": "" for n in range(1300)}
    for _ in range(15):
        wire.enqueue(*(spec(topic, headers=headers) for _ in range(100)))
    found = take_all(wire, topic, 1500)
    assert len(found) == 1500
    assert found[0].headers == headers


def test_metadata_that_a_nack_made_longer_counts(start_whole: Callable[..., HostProcess], topic: str) -> None:
    """Ten thousand items of nothing, each nacked with 4 KiB of metadata, do not fit a frame any more."""
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
        wants = [idl.TopicCount(topic, 10_000)]
        wire.send_call("Dequeue", ns=wire.ns, wants=wants, wait_ms=30_000, lease_ms=HOUR_MS)
        items = wire.receive("Dequeue").items
        assert items
        if ack:
            assert set(wire.ack(*items)) == {0}
        found += items
    return found


# ------------------------------------------------------------------------------------------------- waiting


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds, the outcome)."""
    began = time.monotonic()
    result = do()
    return time.monotonic() - began, result


def test_without_wait_ms_an_empty_topic_is_answered_at_once(wire: Wire, topic: str) -> None:
    until(lambda: timed(lambda: wire.dequeue(topic))[0] < 0.05, "an answer at once")


@pytest.mark.parametrize("wait_ms", [1, 100, 400])
def test_after_wait_ms_the_answer_is_empty(wire: Wire, topic: str, wait_ms: int) -> None:
    """Not before, and not much later, when the machine has nothing else to do."""

    def in_time() -> bool:
        took_s, items = timed(lambda: wire.dequeue(topic, wait_ms=wait_ms))
        assert items == []
        assert took_s * 1000 >= wait_ms - 5
        return took_s * 1000 <= wait_ms + 200

    until(in_time, "an answer when its wait is over")


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


def test_each_waiting_consumer_gets_one(connect: Callable[..., Wire], topic: str) -> None:
    """First come, first served; no two consumers get the same item."""
    consumers = [connect() for _ in range(5)]
    producer = connect()
    for consumer in consumers:
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 1)], wait_ms=60_000)
        producer.server_has_seen(consumer)
    for consumer in consumers:
        (item_id,) = producer.put(topic, b"x")
        (item,) = consumer.receive("Dequeue").items
        assert item.id == item_id
        consumer.ack(item)


def test_a_consumer_that_waits_for_several_topics(connect: Callable[..., Wire], topics: list[str]) -> None:
    consumer, producer = connect(), connect()
    for topic in topics:
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount(each, 1) for each in topics], wait_ms=60_000)
        producer.server_has_seen(consumer)
        producer.put(topic, b"x")
        (item,) = consumer.receive("Dequeue").items
        assert item.topic == topic
        consumer.ack(item)


def test_each_way_that_an_item_becomes_ready_wakes_a_consumer(connect: Callable[..., Wire], topic: str) -> None:
    """Whatever makes an item ready."""
    consumer, other = connect(), connect()

    def wakes(do: Callable[[Any], Any], lease_ms: int = 30_000) -> None:
        (item_id,) = other.put(topic, b"x")
        held = other.one(topic, lease_ms=lease_ms)
        consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 1)], wait_ms=60_000)
        other.server_has_seen(consumer)
        do(held)
        (item,) = consumer.receive("Dequeue").items
        assert item.id == item_id
        consumer.ack(item)

    wakes(other.nack)
    wakes(lambda held: other.nack(held, release=True))
    wakes(lambda held: other.nack(held, delay_ms=150))
    wakes(lambda held: None, lease_ms=150)


def test_the_longest_wait(connect: Callable[..., Wire], topic: str) -> None:
    """600 s may be asked for; the item that comes ends the wait."""
    consumer, producer = connect(), connect()
    consumer.send_call("Dequeue", ns="test", wants=[idl.TopicCount(topic, 1)], wait_ms=600_000)
    producer.server_has_seen(consumer)
    producer.put(topic, b"x")
    (item,) = consumer.receive("Dequeue").items
    consumer.ack(item)


def test_requests_behind_a_long_poll_are_answered_in_order(connect: Callable[..., Wire], topic: str) -> None:
    """A connection's calls are answered one after the other, also when the client does not wait."""
    consumer, producer = connect(), connect()
    consumer.send(
        framed(message("Dequeue", idl.DequeueRequest("test", [idl.TopicCount(topic, 1)], wait_ms=60_000), 1))
        + framed(message("GetServerInfo", idl.GetServerInfoRequest(), 2))
    )
    producer.put(topic, b"x")
    consumer._sequence = 1
    (item,) = consumer.receive("Dequeue").items
    consumer._sequence = 2
    assert consumer.receive("GetServerInfo").version
    producer.ack(item)


def test_a_client_ends_its_wait(connect: Callable[..., Wire], topic: str) -> None:
    consumer = connect()
    consumer.send(
        framed(message("Dequeue", idl.DequeueRequest("test", [idl.TopicCount(topic, 1)], wait_ms=60_000), 1))
        + end_wait()
    )
    consumer._sequence = 1
    assert consumer.receive("Dequeue").items == []
    (item_id,) = consumer.put(topic, b"x")
    (item,) = consumer.dequeue(topic)
    assert item.id == item_id
    consumer.ack(item)
