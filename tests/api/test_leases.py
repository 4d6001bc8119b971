"""Ack, Nack and ExtendLease: the effect and the refusals of each, and leases that run out."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from foqs.idl import idl
from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Delivery, Refused, State, Wire, now_ms, spec

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def held(wire: Wire, topic: str, lease_ms: int | None = None, **fields: Any) -> Any:
    """A fresh item, leased."""
    (item_id,) = wire.put(topic, b"x", **fields)
    item = wire.one(topic, lease_ms=lease_ms)
    assert item.id == item_id
    return item


def written(wire: Wire, item: Any) -> Any:
    """The same, when its lease is in the database for sure: listing looks there."""
    assert [each.id for each in wire.listed(item.topic, state=State.LEASED)] == [item.id]
    return item


# ----------------------------------------------------------------------------------------------------- ack


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "with a written lease"])
def test_an_acked_item_is_gone(wire: Wire, topic: str, late: bool, delivery: int) -> None:
    item = held(wire, topic, delivery=delivery)
    if late:
        written(wire, item)
    assert wire.ack(item, ns="test") == [0]
    assert wire.state(item.id) is None
    assert wire.dequeue(topic) == []
    assert wire.ack(item) == [Code.NOT_FOUND]
    assert wire.nack(item) == Code.NOT_FOUND
    assert wire.extend(item) == Code.NOT_FOUND
    assert wire.delete(item.id) == [Code.NOT_FOUND]


def test_a_batch_of_acks_answers_item_by_item(wire: Wire, topic: str) -> None:
    """Good ones, a stale one, an unknown id, ids of shards that are not there: one outcome each, in order."""
    wire.put(topic, *[b""] * 4)
    items = wire.dequeue(topic, 4)
    asked = [
        idl.AckItem(items[0].id, items[0].lease),
        idl.AckItem(items[1].id, items[1].lease + 1),
        idl.AckItem(1 << 48 | 1 << 47, 5),
        idl.AckItem(items[2].id, items[2].lease),
        idl.AckItem(77 << 48 | 1, 5),
        idl.AckItem(-5, 5),
        idl.AckItem(0, 5),
        idl.AckItem(2**63 - 1, 2**63 - 1),
        idl.AckItem(items[3].id, 0),
    ]
    missing, stale = Code.NOT_FOUND, Code.STALE_LEASE
    assert wire.settle("Ack", asked) == [0, stale, missing, 0, missing, missing, missing, missing, stale]
    assert [wire.state(item.id) for item in items] == [None, State.LEASED, None, State.LEASED]
    assert wire.ack(items[1], items[3]) == [0, 0]


@pytest.mark.parametrize("method", ["Ack", "Nack", "ExtendLease", "DeleteItems"])
def test_requests_that_are_wrong_as_a_whole(wire: Wire, topic: str, method: str) -> None:
    """Nothing, too much, a bad namespace."""
    item = held(wire, topic)
    entry = {"Ack": idl.AckItem, "Nack": idl.NackItem, "ExtendLease": idl.ExtendItem}.get(method)
    field = "ids" if entry is None else "items"

    def entries(ids: list[int]) -> list[Any]:
        return ids if entry is None else [entry(item_id, item.lease) for item_id in ids]

    wrong: list[dict[str, Any]] = [{field: None}, {field: []}]
    wrong.append({field: entries(list(range(1, 10_002)))})
    if entry is not None:
        wrong += [{field: entries([item.id]), "ns": name} for name in ("", "a\n", b"\xff", "n" * 256)]
    for fields in wrong:
        with pytest.raises(Refused) as refused:
            wire.ask(method, **fields)
        assert refused.value.code == Code.INVALID
    assert len(wire.ask(method, **{field: entries(list(range(1, 10_001)))}).outcomes) == 10_000
    assert wire.ack(item) == [0]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "with a written lease"])
@pytest.mark.parametrize("method", ["Ack", "Nack", "ExtendLease", "DeleteItems"])
def test_entries_that_are_wrong_or_come_twice(wire: Wire, topic: str, method: str, late: bool) -> None:
    items = [held(wire, topic) for _ in range(2)]
    if late:
        assert len(wire.listed(topic, state=State.LEASED)) == 2
    first, second = [(item.id, item.lease) for item in items]
    if method == "DeleteItems":
        assert wire.delete(first[0], second[0], first[0], 5, 5) == [0, 0, 0, Code.NOT_FOUND, Code.NOT_FOUND]
        return
    entry = {"Ack": idl.AckItem, "Nack": idl.NackItem, "ExtendLease": idl.ExtendItem}[method]
    wrong = [entry(None, 5), entry(first[0], None)]
    stale = entry(second[0], second[1] + 1)
    asked = [entry(*first), *wrong, stale, entry(*second), entry(*first), stale]
    invalid, other = Code.INVALID, Code.STALE_LEASE
    assert wire.settle(method, asked) == [0, invalid, invalid, other, 0, 0, other]


def test_another_namespace_is_not_found(wire: Wire, topic: str) -> None:
    """When a namespace is given, whether the item is in memory or not."""
    item = held(wire, topic)
    for prepare in (lambda: None, lambda: written(wire, item)):
        prepare()
        assert wire.ack(item, ns="other") == [Code.NOT_FOUND]
        assert wire.nack(item, ns="other") == Code.NOT_FOUND
        assert wire.nack(item, ns="other", release=True) == Code.NOT_FOUND
        assert wire.extend(item, ns="other") == Code.NOT_FOUND
    assert wire.ack(item, ns="test") == [0]


def test_items_that_are_not_leased_cannot_be_acked(wire: Wire, topic: str) -> None:
    """Neither ready nor delayed ones; looking gives no right to ack."""
    for (item_id,) in (wire.put(topic, b""), wire.put(topic, b"", delay_ms=60_000)):
        assert wire.look(item_id).item.lease == 0
        for lease in (0, 1, -1):
            assert wire.settle("Ack", [idl.AckItem(item_id, lease)]) == [Code.STALE_LEASE]
            assert wire.settle("Nack", [idl.NackItem(item_id, lease)]) == [Code.STALE_LEASE]
            assert wire.settle("ExtendLease", [idl.ExtendItem(item_id, lease)]) == [Code.STALE_LEASE]
        assert wire.delete(item_id) == [0]


# ---------------------------------------------------------------------------------------------------- nack


def test_a_nacked_item_comes_again_at_once_at_its_old_place(wire: Wire, topic: str) -> None:
    wire.enqueue(spec(topic, b"a"), spec(topic, b"b"))
    item = wire.one(topic)
    assert wire.nack(item, reason="later, please") == 0
    again = wire.one(topic)
    assert (again.payload, again.attempt, again.deliver_after_ms) == (b"a", 2, item.deliver_after_ms)
    assert again.lease != item.lease
    for stale in (wire.ack(item)[0], wire.nack(item), wire.nack(item, release=True), wire.extend(item)):
        assert stale == Code.STALE_LEASE
    assert wire.ack(again, wire.one(topic)) == [0, 0]


def test_nack_with_a_delay(wire: Wire, topic: str) -> None:
    """Not before it is over; then its place in the order is the new one."""
    item = held(wire, topic)
    assert wire.nack(item, delay_ms=DAY_MS) == 0
    assert wire.state(item.id) == State.DELAYED
    assert wire.dequeue(topic) == []
    wire.delete(item.id)
    item = held(wire, topic)
    wire.put(topic, b"y")  # behind the item's old place, before its new one
    before = now_ms()
    assert wire.nack(item, delay_ms=300) == 0
    until(lambda: wire.state(item.id) == State.READY, "the end of the delay")
    assert now_ms() >= before + 295
    assert wire.one(topic).payload == b"y"
    again = wire.one(topic)
    assert before + 295 <= again.deliver_after_ms <= now_ms()
    assert (again.id, again.attempt, again.enqueued_at_ms) == (item.id, 2, item.enqueued_at_ms)


def test_nack_with_metadata_replaces_it(wire: Wire, topic: str) -> None:
    """Metadata in the nack replaces the item's, also by nothing; without it the item keeps its own."""
    item = held(wire, topic, metadata=b"old", headers={"k": "v"})
    for given, expected in ((b"new", b"new"), (None, b"new"), (b"m" * 4096, b"m" * 4096), (b"", b"")):
        assert wire.nack(item, metadata=given) == 0
        assert wire.look(item.id).item.metadata == expected
        item = wire.one(topic)
        assert (item.metadata, item.headers, item.payload) == (expected, {"k": "v"}, b"x")
    assert item.attempt == 5
    assert wire.nack(item, metadata=b"d", delay_ms=100) == 0
    assert wire.one(topic).metadata == b"d"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 366 * DAY_MS + 1}, "delay_ms"),
        ({"metadata": b"m" * 4097}, "metadata"),
        ({"reason": "r" * 1025}, "reason"),
        ({"reason": "ü" * 513}, "reason"),
        ({"reason": b"\xff"}, "reason"),
        ({"release": True, "delay_ms": 1}, "release"),
        ({"release": True, "metadata": b""}, "release"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_nacks_that_are_wrong_fail_alone(wire: Wire, topic: str, fields: dict[str, Any], word: str) -> None:
    """The neighbour is nacked, the item keeps its lease."""
    wire.put(topic, b"", b"")
    wrong, right = wire.dequeue(topic, 2)
    items = [idl.NackItem(wrong.id, wrong.lease, **fields), idl.NackItem(right.id, right.lease, delay_ms=60_000)]
    first, second = wire.ask("Nack", items=items).outcomes
    assert first.error.code == Code.INVALID
    assert word in first.error.message
    assert second.error is None
    assert wire.ack(wrong) == [0]
    wire.delete(right.id)


def test_nack_limits_at_their_edges(wire: Wire, topic: str) -> None:
    item = held(wire, topic)
    assert wire.nack(item, delay_ms=0, metadata=b"m" * 4096, reason="r" * 1024) == 0
    item = wire.one(topic)
    assert wire.nack(item, delay_ms=366 * DAY_MS, reason="ü" * 512) == 0
    assert wire.state(item.id) == State.DELAYED
    wire.delete(item.id)


# ------------------------------------------------------------------------------------------------- release


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "with a written lease"])
def test_a_released_item_was_not_begun(wire: Wire, topic: str, late: bool, delivery: int) -> None:
    """It comes again at its old place, and the attempt was not counted; also an at-most-once item."""
    item = held(wire, topic, delivery=delivery)
    for _ in range(3):
        if late:
            written(wire, item)
        assert wire.nack(item, release=True, reason="stopping") == 0
        assert wire.state(item.id) == State.READY
        again = wire.one(topic)
        assert (again.id, again.attempt, again.deliver_after_ms) == (item.id, 1, item.deliver_after_ms)
        assert wire.ack(item) == [Code.STALE_LEASE]
        item = again
    assert wire.ack(item) == [0]


def test_release_false_is_a_plain_nack(wire: Wire, topic: str) -> None:
    item = held(wire, topic)
    assert wire.nack(item, release=False, delay_ms=0) == 0
    assert wire.one(topic).attempt == 2


# -------------------------------------------------------------------------------------------------- extend


@pytest.mark.parametrize("late", [False, True], ids=["at once", "with a written lease"])
def test_an_extended_lease_ends_later(wire: Wire, topic: str, late: bool) -> None:
    """From now on for the time asked for, else for the lease's first duration; the token stays."""
    item = held(wire, topic, lease_ms=20_000)
    if late:
        written(wire, item)
    for asked, expected in ((90_000, 90_000), (None, 20_000), (15_000, 15_000), (12 * HOUR_MS, 12 * HOUR_MS)):
        before = now_ms()
        assert wire.extend(item, asked) == 0
        looked = wire.look(item.id)
        assert looked.state == State.LEASED
        assert before + expected - 5 <= looked.item.lease_expires_at_ms <= now_ms() + expected + 5
    assert wire.ack(item) == [0]


def test_an_extended_lease_outlives_its_first_end(wire: Wire, topic: str) -> None:
    item = held(wire, topic, lease_ms=300)
    while (code := wire.extend(item, 60_000)) != 0:
        assert (code, now_ms() >= item.lease_expires_at_ms - 5) == (Code.STALE_LEASE, True)  # too late: once more
        item = wire.one(topic, lease_ms=300)
    assert wire.dequeue(topic, wait_ms=600) == []
    assert wire.ack(item) == [0]


@pytest.mark.parametrize("lease_ms", [0, 99, 12 * HOUR_MS + 1, -(2**63)])
def test_extensions_that_are_wrong_fail_alone(wire: Wire, topic: str, lease_ms: int) -> None:
    wire.put(topic, b"", b"")
    wrong, right = wire.dequeue(topic, 2)
    items = [idl.ExtendItem(wrong.id, wrong.lease, lease_ms), idl.ExtendItem(right.id, right.lease, 60_000)]
    assert wire.settle("ExtendLease", items) == [Code.INVALID, 0]
    assert wire.ack(wrong, right) == [0, 0]


def test_a_lease_that_is_over_cannot_be_extended(wire: Wire, topic: str) -> None:
    item = held(wire, topic, lease_ms=100)
    until(lambda: wire.state(item.id) == State.READY, "the end of the lease")
    assert wire.extend(item) == Code.STALE_LEASE
    assert wire.one(topic).attempt == 2


# -------------------------------------------------------------------------------------------------- expiry


def test_an_expired_lease_delivers_again(wire: Wire, topic: str) -> None:
    """Not before its end; with the attempt counted; the old lease is stale then."""
    item = held(wire, topic, lease_ms=250)
    again = wire.one(topic)
    assert now_ms() >= item.lease_expires_at_ms - 5
    assert (again.id, again.attempt) == (item.id, 2)
    assert wire.ack(item) == [Code.STALE_LEASE]
    assert wire.ack(again) == [0]


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_an_expired_lease_can_be_acked_before_the_next_one(wire: Wire, topic: str, late: float) -> None:
    item = held(wire, topic, lease_ms=100)
    until(lambda: wire.state(item.id) == State.READY, "the end of the lease")
    deadline = time.monotonic() + late
    until(lambda: time.monotonic() >= deadline, "a little later")
    assert wire.ack(item) == [0]
    assert wire.dequeue(topic) == []
    assert wire.state(item.id) is None


def test_an_expired_lease_can_be_nacked(wire: Wire, topic: str) -> None:
    """With its delay and metadata, until another consumer leases the item."""
    item = held(wire, topic, lease_ms=100)
    until(lambda: wire.state(item.id) == State.READY, "the end of the lease")
    assert wire.nack(item, delay_ms=60_000, metadata=b"m") == 0
    looked = wire.look(item.id)
    assert (looked.state, looked.item.metadata) == (State.DELAYED, b"m")
    wire.delete(item.id)


def test_leases_survive_a_restart(start_whole: Callable[..., HostProcess], topic: str) -> None:
    """Written ones hold and can be acked; one that expired during the stop, or before, can be acked too."""
    first = start_whole()
    with Wire(first.address) as wire:
        wire.put(topic, *[b""] * 4)
        living, short, over, nacked = wire.dequeue(topic, 4, lease_ms=HOUR_MS)
        assert wire.extend(short, 400) == 0
        assert wire.extend(over, 100) == 0
        until(lambda: wire.state(over.id) == State.READY, "the end of the lease")
        assert wire.nack(nacked) == 0
    assert first.stop() == 0
    with Wire(start_whole().address) as wire:
        assert wire.state(living.id) == State.LEASED
        until(lambda: wire.state(short.id) == State.READY, "the end of the lease")
        assert wire.ack(living, short, over, nacked) == [0, 0, 0, Code.STALE_LEASE]
        (left,) = wire.dequeue(topic, 10)
        assert (left.id, left.attempt) == (nacked.id, 2)
        assert wire.ack(left) == [0]


# -------------------------------------------------------------------------------------------- at most once


def test_at_most_once_never_comes_twice(wire: Wire, topic: str) -> None:
    """The end of its lease removes it: by time, or by a nack, with or without a delay."""
    ids = [held(wire, topic, delivery=Delivery.AT_MOST_ONCE, lease_ms=100).id]
    for fields in ({}, {"delay_ms": 50}, {"metadata": b"m"}):
        item = held(wire, topic, delivery=Delivery.AT_MOST_ONCE)
        ids.append(item.id)
        assert wire.nack(item, **fields) == 0
        assert wire.state(item.id) is None
        assert wire.ack(item) == [Code.NOT_FOUND]
    until(lambda: wire.state(ids[0]) is None, "the end of the lease")
    assert wire.dequeue(topic, wait_ms=100) == []


def test_an_at_most_once_lease_is_committed_before_the_reply(
    start_whole: Callable[..., HostProcess], topic: str
) -> None:
    """A host that is killed right after it does not deliver the item again; the lease can still be acked."""
    first = start_whole()
    with Wire(first.address) as wire:
        wire.put(topic, b"a", b"b", delivery=Delivery.AT_MOST_ONCE)
        items = wire.dequeue(topic, 2, lease_ms=HOUR_MS)
        first.kill()
    with Wire(start_whole().address) as wire:
        assert wire.dequeue(topic) == []
        assert [wire.state(item.id) for item in items] == [State.LEASED] * 2
        assert wire.extend(items[0], 30_000) == 0
        assert wire.ack(*items) == [0, 0]


def test_mixed_deliveries_in_one_answer(wire: Wire, topic: str) -> None:
    kinds = [1 + n % 2 for n in range(20)]
    wire.enqueue(*(spec(topic, delivery=kind) for kind in kinds))
    items = wire.dequeue(topic, 20)
    assert [item.delivery for item in items] == kinds
    assert wire.ack(*items) == [0] * 20


# ----------------------------------------------------------------------------------------------------- begun work


def test_an_item_that_was_not_begun_has_no_attempt(wire: Wire, topic: str) -> None:
    """The one of the two that was begun has one."""
    wire.put(topic, b"a", b"b")
    first, second = wire.dequeue(topic, 2, lease_ms=100, begins=0, worker="w")
    begun = idl.ExtendItem(second.id, second.lease, begun=True)
    assert wire.ask("ExtendLease", items=[begun]).outcomes[0].error is None
    attempts: dict[int, int] = {}

    def again() -> bool:
        attempts.update({item.id: item.attempt for item in wire.dequeue(topic, 2, wait_ms=1_000)})
        return len(attempts) == 2

    until(again, "both leases to end")
    assert attempts == {first.id: 1, second.id: 2}


@pytest.mark.parametrize("method", ["Dequeue", "AckAndDequeue"])
@pytest.mark.parametrize(
    "fields", [{"worker": ""}, {"worker": "w" * 129}, {"worker": "ü" * 65}, {"worker": "a\0"}, {"begins": -1}], ids=str
)
def test_wrong_options_of_a_worker(wire: Wire, topic: str, method: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        wire.ask(method, ns="test", wants=[idl.TopicCount(topic, 1)], **fields)
    assert refused.value.code == Code.INVALID
    assert next(iter(fields)) in refused.value.message
