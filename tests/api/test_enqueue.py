"""Enqueue: every field of ItemSpec, its default, its limit and its refusals."""

from typing import Any

import pytest

from foqs.idl import idl
from foqs.ids import shard_of
from tests.api.wire import Code, Delivery, Refused, State, Wire, now_ms, spec
from tests.rpc.serving import enqueue_of, framed, i32

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def test_every_field_comes_back(wire: Wire, topic: str) -> None:
    """What a producer gives is what a consumer gets; and the times are the server's."""
    before = now_ms()
    headers = {"a": "1", "ü": "😀", "": ""}
    (item_id,) = wire.enqueue(
        spec(topic, b"\0\xffpayload", metadata=b"meta\0", headers=headers, priority=-7, lease_ms=45_000, ttl_ms=99_000)
    )
    after = now_ms()
    item = wire.one(topic)
    assert (item.id, item.ns, item.topic) == (item_id, "test", topic)
    assert (item.payload, item.metadata, item.headers) == (b"\0\xffpayload", b"meta\0", headers)
    assert (item.priority, item.delivery, item.attempt) == (-7, Delivery.AT_LEAST_ONCE, 1)
    assert item.lease != 0
    assert before - 5 <= item.enqueued_at_ms <= after + 5
    assert item.deliver_after_ms == item.enqueued_at_ms
    assert item.expires_at_ms == item.enqueued_at_ms + 99_000
    assert before + 45_000 - 5 <= item.lease_expires_at_ms <= now_ms() + 45_000 + 5
    assert item.state is None
    assert wire.ack(item) == [0]


def test_defaults(wire: Wire, topic: str) -> None:
    before = now_ms()
    wire.put(topic, b"")
    item = wire.one(topic)
    assert (item.payload, item.metadata, item.headers, item.priority) == (b"", None, None, 0)
    assert (item.delivery, item.expires_at_ms) == (Delivery.AT_LEAST_ONCE, None)
    assert before + 30_000 - 5 <= item.lease_expires_at_ms <= now_ms() + 30_000 + 5
    wire.ack(item)


def test_empty_metadata_and_headers_are_not_none(wire: Wire, topic: str) -> None:
    wire.enqueue(spec(topic, metadata=b"", headers={}))
    item = wire.one(topic)
    assert (item.metadata, item.headers) == (b"", {})
    wire.ack(item)


def test_outcomes_are_in_order_and_a_bad_item_fails_alone(wire: Wire, topic: str) -> None:
    """Good and bad items in turn: every outcome is at its item's place, and just the good ones are stored."""
    items = [spec(topic, b"%d" % n, priority=n) if n % 3 else spec(topic, b"x", lease_ms=1) for n in range(30)]
    outcomes = wire.outcomes(*items)
    assert [outcome.error is None for outcome in outcomes] == [n % 3 != 0 for n in range(30)]
    assert {outcome.error.code for outcome in outcomes[::3]} == {Code.INVALID}
    good = [outcome.id for outcome in outcomes if outcome.error is None]
    assert len(set(good)) == 20
    drained = wire.drain(topic)
    assert [item.id for item in drained] == good
    assert [item.payload for item in drained] == [b"%d" % n for n in range(30) if n % 3]


def test_a_request_of_bad_items_only(wire: Wire, topic: str) -> None:
    outcomes = wire.outcomes(*(spec(topic, ttl_ms=0) for _ in range(3)))
    assert [outcome.error.code for outcome in outcomes] == [Code.INVALID] * 3


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("lease_ms", 100, 12 * HOUR_MS),
        ("ttl_ms", 1, 366 * DAY_MS),
        ("delay_ms", 0, 366 * DAY_MS),
        ("priority", -(2**31), 2**31 - 1),
    ],
)
def test_numbers_at_their_edges(wire: Wire, topic: str, field: str, low: int, high: int) -> None:
    """The edges are inside; one beyond each is INVALID and says which field it is."""
    ids = wire.enqueue(spec(topic, **{field: low}), spec(topic, **{field: high}))
    assert wire.state(ids[1]) == (State.DELAYED if field == "delay_ms" else State.READY)
    wire.delete(*ids)
    if field != "priority":
        for wrong in (low - 1, high + 1, -(2**63), 2**63 - 1):
            assert field in wire.refusal(spec(topic, **{field: wrong}))


def test_payload_metadata_and_headers_at_their_edges(wire: Wire, topic: str) -> None:
    wire.enqueue(
        spec(topic, b"p" * (1 << 20), priority=1),
        spec(topic, metadata=b"m" * 4096, priority=2),
        spec(topic, headers={"k" * 2096: "v" * 2000}, priority=3),
        spec(topic, headers={chr(256 + n): "é" * 30 for n in range(66)}, priority=4),
    )
    sizes = [(len(item.payload), len(item.metadata or b""), len(item.headers or ())) for item in wire.drain(topic)]
    assert sizes == [(1 << 20, 0, 0), (0, 4096, 0), (0, 0, 1), (0, 0, 66)]
    assert "payload" in wire.refusal(spec(topic, b"p" * ((1 << 20) + 1)))
    assert "metadata" in wire.refusal(spec(topic, metadata=b"m" * 4097))
    assert "headers" in wire.refusal(spec(topic, headers={"k" * 2097: "v" * 2000}))
    assert "headers" in wire.refusal(spec(topic, headers={chr(256 + n): "é" * 31 for n in range(66)}))


@pytest.mark.parametrize("name", ["a", "a" * 255, "ü" * 127 + "a", "😀" * 63 + "abc", " ", "a b", "\u200b", "a/b:c"])
def test_names_that_are_good(wire: Wire, topic: str, name: str) -> None:
    """As a topic and as a namespace, given back exactly, byte by byte."""
    wire.ns = name
    wire.put(name, b"x")
    item = wire.one(name)
    assert (item.ns, item.topic) == (name, name)
    wire.ack(item)


BAD_NAMES = ["", "a" * 256, "ü" * 128, "a\0b", "a\nb", "\x1f", "\x7f", "\x80", "\x9f", b"\xff\xfe", b"a\xc3", None]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_topics_that_are_bad(wire: Wire, name: Any) -> None:
    assert "topic" in wire.refusal(spec(name))


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_namespaces_that_are_bad(wire: Wire, topic: str, name: Any) -> None:
    """The request is wrong as a whole; the connection goes on."""
    with pytest.raises(Refused) as refused:
        wire.ask("Enqueue", ns=name, items=[spec(topic)])
    assert (refused.value.code, refused.value.retry_after_ms) == (Code.INVALID, None)
    assert "ns" in refused.value.message
    wire.delete(*wire.put(topic, b""))


def test_names_are_compared_byte_by_byte(wire: Wire, topic: str) -> None:
    """Not as a collation of the database would: neither case, nor accents, nor spaces at the end."""
    names = [topic + "a", topic + "A", topic + "ä", topic + "a\u0308", topic + "a "]
    for name in names:
        wire.put(name, name.encode())
    for name in names:
        assert [item.payload for item in wire.drain(name)] == [name.encode()]


def test_headers_that_are_not_text_fail_their_item(wire: Wire, topic: str) -> None:
    assert "headers" in wire.refusal(spec(topic, headers={b"\xff": "v"}))
    assert "headers" in wire.refusal(spec(topic, headers={"k": b"\xff"}))


def test_items_that_lack_a_payload_or_have_a_wrong_type(wire: Wire, topic: str) -> None:
    """A field of another type than the contract's counts as left out."""
    assert "payload" in wire.refusal(spec(topic, None))
    names = b"\x0b\0\1" + i32(4) + b"test" + b"\x0f\0\2\x0c" + i32(1)
    item = b"\x0b\0\1" + i32(1) + b"t" + b"\x08\0\2" + i32(7) + b"\0"  # the payload is an i32
    wire._sequence = 7
    wire.send(framed(enqueue_of(names + item)))
    (outcome,) = wire.receive("Enqueue").outcomes
    assert (outcome.error.code, "payload" in outcome.error.message) == (Code.INVALID, True)


def test_delivery_values(wire: Wire, topic: str) -> None:
    ids = wire.enqueue(*(spec(topic, delivery=value, priority=value) for value in (1, 2)))
    assert [item.delivery for item in wire.drain(topic)] == [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE]
    assert [wire.state(item_id) for item_id in ids] == [None, None]
    for value in (0, 3, -1, 2**31 - 1):
        assert "delivery" in wire.refusal(spec(topic, delivery=value))


def test_deliver_after(wire: Wire, topic: str) -> None:
    """In the past means now, and the item carries the time of its enqueue; at most 366 days ahead; not with a delay."""
    past = [
        wire.put(topic, b"", deliver_after_ms=at, priority=n) for n, at in enumerate((0, 1, now_ms() - 1, -(2**63)))
    ]
    for item in wire.drain(topic):
        assert item.deliver_after_ms == item.enqueued_at_ms
    assert [wire.state(item_id) for (item_id,) in past] == [None] * 4
    soon = now_ms() + HOUR_MS
    ids = wire.enqueue(spec(topic, deliver_after_ms=soon), spec(topic, deliver_after_ms=now_ms() + 366 * DAY_MS - 1000))
    looked = wire.look(ids[0])
    assert (looked.state, looked.item.deliver_after_ms) == (State.DELAYED, soon)
    assert wire.state(ids[1]) == State.DELAYED
    wire.delete(*ids)
    assert "deliver_after_ms" in wire.refusal(spec(topic, deliver_after_ms=now_ms() + 366 * DAY_MS + 60_000))
    assert "deliver_after_ms" in wire.refusal(spec(topic, deliver_after_ms=2**63 - 1))
    for delay_ms in (0, 1000):
        both = wire.refusal(spec(topic, deliver_after_ms=soon, delay_ms=delay_ms))
        assert "deliver_after_ms" in both
        assert "delay_ms" in both


def test_a_delay_counts_from_the_enqueue_and_then_delivers(wire: Wire, topic: str) -> None:
    """It comes neither before its time nor much later, to a consumer that waits."""
    (later,) = wire.put(topic, b"y", delay_ms=DAY_MS)
    assert wire.state(later) == State.DELAYED
    assert wire.dequeue(topic) == []
    (item_id,) = wire.put(topic, b"x", delay_ms=400)
    item = wire.one(topic)
    assert item.id == item_id
    assert item.deliver_after_ms == item.enqueued_at_ms + 400
    assert item.deliver_after_ms <= now_ms() + 5
    wire.ack(item)
    wire.delete(later)


def test_delayed_items_come_in_lane_order(wire: Wire, topic: str) -> None:
    """At equal priority an item's place is its deliver_after_ms, not when it was enqueued."""
    wire.enqueue(spec(topic, b"late", delay_ms=300), spec(topic, b"early", delay_ms=150), spec(topic, b"now"))
    found: list[Any] = []
    while len(found) < 3:
        found += wire.dequeue(topic, 3, wait_ms=30_000)
        assert now_ms() >= max(item.deliver_after_ms for item in found) - 5
    assert [item.payload for item in found] == [b"now", b"early", b"late"]
    assert [item.deliver_after_ms - item.enqueued_at_ms for item in found] == [0, 150, 300]
    wire.ack(*found)


def test_ten_thousand_items_a_request(wire: Wire, topic: str) -> None:
    """The most a request may hold is stored whole and in order; one more is refused whole."""
    ids = wire.enqueue(*(spec(topic, b"%d" % n, priority=n) for n in range(10_000)))
    assert len(set(ids)) == 10_000
    with pytest.raises(Refused) as refused:
        wire.outcomes(*(spec(topic) for _ in range(10_001)))
    assert refused.value.code == Code.INVALID
    found: list[Any] = []
    while len(found) < 10_000:
        found += wire.dequeue(topic, 10_000, wait_ms=30_000)
    assert {item.id: item.priority for item in found} == {item_id: n for n, item_id in enumerate(ids)}
    for number in {shard_of(item_id) for item_id in ids}:
        # Among shards a page that is late on a busy machine is waited for no longer than `merge_wait_ms`.
        priorities = [item.priority for item in found if shard_of(item.id) == number]
        assert priorities == sorted(priorities)
    assert wire.ack(*found) == [0] * 10_000


def test_requests_that_are_wrong_as_a_whole(wire: Wire, topic: str) -> None:
    for items in (None, []):
        with pytest.raises(Refused) as refused:
            wire.ask("Enqueue", ns="test", items=items)
        assert refused.value.code == Code.INVALID
    wire._sequence += 1
    wire.send(framed(b"\x80\x01\0\1" + i32(7) + b"Enqueue" + i32(wire._sequence) + b"\0"))  # no request in it
    with pytest.raises(Refused) as refused:
        wire.receive("Enqueue")
    assert refused.value.code == Code.INVALID


def test_ids_are_spread_over_shards(wire: Wire, topic: str) -> None:
    """Single items go to more than one shard; an id tells its shard, and all are found again."""
    ids = [wire.put(topic, b"")[0] for _ in range(64)]
    assert len({item_id >> 48 for item_id in ids}) == 4
    assert sorted(item.id for item in wire.drain(topic)) == sorted(ids)


@pytest.mark.parametrize("timeout_ms", [1, 600_000])
def test_context_timeouts_at_their_edges(wire: Wire, topic: str, timeout_ms: int) -> None:
    """Time-outs within the limits are taken; an answer that misses its time is typed."""
    context = idl.RequestContext("token", "request", "trace", timeout_ms)
    (outcome,) = wire.outcomes(spec(topic), context=context)
    assert outcome.id or outcome.error.code in (Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN)


@pytest.mark.parametrize(
    "context",
    [
        {"timeout_ms": 0},
        {"timeout_ms": -1},
        {"timeout_ms": 600_001},
        {"token": "t" * 4097},
        {"token": b"\xff"},
        {"request_id": "r" * 129},
        {"request_id": "ü" * 65},
        {"traceparent": "t" * 129},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", sorted(idl.Foqs.thrift_services))
def test_contexts_that_are_bad(wire: Wire, method: str, context: dict[str, Any]) -> None:
    """Every method refuses them and names the field, but not its content."""
    with pytest.raises(Refused) as refused:
        wire.ask(method, context=idl.RequestContext(**context))
    assert refused.value.code == Code.INVALID
    assert next(iter(context)) in refused.value.message
    assert "ttt" not in refused.value.message
