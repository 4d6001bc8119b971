"""GetActiveTopics, GetItem, ListItems, DeleteItems and GetServerInfo: what operators see and do."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from foqs import __version__
from foqs.bounds import Limits
from foqs.idl import idl
from tests.api.hosts import HostProcess, until
from tests.api.wire import Code, Delivery, Refused, State, Wire, now_ms, spec

BUCKET_MS = 1 << 16
HOUR_MS = 3_600_000


def active(wire: Wire, ns: str | None, limit: int | None = None) -> list[Any]:
    """All pages."""
    found: list[Any] = []
    cursor = None
    while True:
        page = wire.ask("GetActiveTopics", ns=ns, limit=limit, cursor=cursor)
        assert len(page.topics) <= (limit or 1000)
        found += page.topics
        cursor = page.cursor
        if cursor is None:
            return found


# ------------------------------------------------------------------------------------------ active topics


def test_topics_with_something_ready(wire: Wire, host: HostProcess, topic: str) -> None:
    """Only those; with counts, ages and the host's address, in the order of their names."""
    ns = f"ns-{topic}"
    wire.ns = ns
    before = now_ms()
    wire.put("b", *[b""] * 30)
    wire.put("a", b"")
    wire.put("c", b"", delay_ms=60_000)
    wire.put("d", b"")
    leased = wire.one("d")
    topics = active(wire, ns)
    assert [(each.ns, each.topic, each.ready) for each in topics] == [(ns, "a", 1), (ns, "b", 30)]
    for each in topics:
        assert each.hosts == ["{}:{}".format(*host.address)]
        assert before - 2 * BUCKET_MS <= each.oldest_ready_at_ms <= now_ms()
    assert wire.nack(leased) == 0
    wire.drain("b")
    assert [(each.topic, each.ready) for each in active(wire, ns)] == [("a", 1), ("d", 1)]


def test_pages_of_active_topics(wire: Wire, topic: str) -> None:
    """In the order of namespace and topic, none left out and none twice, with and without a namespace."""
    spaces = [f"{topic}-{letter}" for letter in "abc"]
    for ns in spaces:
        for number in range(7):
            wire.put(f"t{number}", b"", ns=ns)
    expected = [(ns, f"t{number}") for ns in spaces for number in range(7)]
    for limit in (1, 2, 7, 20, None):
        assert [(each.ns, each.topic) for each in active(wire, spaces[1], limit)] == expected[7:14]
    for limit in (3, 10_000):
        names = [(each.ns, each.topic) for each in active(wire, None, limit)]
        assert [name for name in names if name[0] in spaces] == expected
        assert names == sorted(names)
    assert wire.ask("GetActiveTopics", ns=spaces[0], limit=7).cursor is None
    assert wire.ask("GetActiveTopics", ns="nothing-in-here").topics == []


def test_counts_and_ages_after_a_restart(start_whole: Callable[..., HostProcess], topic: str) -> None:
    """Each question counts them again, over all shards."""
    first = start_whole()
    with Wire(first.address) as wire:
        for _ in range(20):
            wire.put(topic, b"", b"")
        wire.put(topic, b"", delay_ms=HOUR_MS)
        wire.nack(wire.one(topic))
        (before,) = active(wire, None)
    assert first.stop() == 0
    with Wire(start_whole().address) as wire:
        (after,) = active(wire, None)
        assert (before.ready, after.ready) == (40, 40)
        assert after.oldest_ready_at_ms == before.oldest_ready_at_ms


CURSORS = ["", "x", "ü", "=", "AAAA", base64.b64encode(b"[1,2]").decode(), base64.b64encode(b'["a"]').decode()]
CURSORS += [base64.b64encode(json.dumps(parts).encode()).decode() for parts in ([], {}, None, 5, [[], []], ["a"] * 3)]
CURSORS += [base64.b64encode(b"\xff\xff").decode(), base64.b64encode(b"[" * 5000).decode()]
CURSORS += [b"\xff\xfe"]


@pytest.mark.parametrize("cursor", CURSORS, ids=lambda cursor: repr(cursor)[:20])
def test_cursors_of_other_requests(wire: Wire, topic: str, cursor: Any) -> None:
    """INVALID, for both methods that take one."""
    for method, fields in (("GetActiveTopics", {}), ("ListItems", {"ns": "test", "topic": topic})):
        with pytest.raises(Refused) as refused:
            wire.ask(method, cursor=cursor, **fields)
        assert refused.value.code == Code.INVALID
        assert "cursor" in refused.value.message


@pytest.mark.parametrize(
    "parts",
    [
        [1, "ready", [1, 2]],
        [1, "delayed", [1, 2, 3]],
        [1, "nonsense", []],
        [1, "ready", ["x", 2, 3]],
        [1, "ready", [True, 2, 3]],
        [1, "ready", [2**80, 2, 3]],
        [1, "leased", [-(2**64), 3]],
        [2**70, "ready", []],
        [1, "ready", [], [0, 0]],
        [1, "ready", [1, 2, 3], [0, 9]],
        [1, "ready", [99, 0, 2, 3], [5, 9]],
        [1, "leased", [2, 3], [9, 5]],
        [1, "leased", [2, 3], [-1, 5]],
        [1, "delayed", [], [2**80, 2**90]],
        [1, "delayed", [], ["x", None]],
        [1, "delayed", [], []],
        [True, "ready", []],
        [1, 2, 3],
    ],
    ids=str,
)
def test_forged_list_cursors(wire: Wire, topic: str, parts: list[Any]) -> None:
    """Well formed but wrong inside: INVALID, or an empty end; never a fault of the host or its shard."""
    wire.put(topic, *[b""] * 3)
    for _ in range(20):
        wire.put(topic, b"")
    forged = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
    try:
        page = wire.ask("ListItems", ns="test", topic=topic, cursor=forged)
        assert len(page.items) <= 23
    except Refused as refused:
        assert refused.code == Code.INVALID
    assert len(wire.drain(topic)) == 23


def test_a_cursor_of_another_state(wire: Wire, topic: str) -> None:
    """A cursor goes with the filter it was made for."""
    wire.put(topic, *[b""] * 5)
    cursor = wire.ask("ListItems", ns="test", topic=topic, limit=1).cursor
    with pytest.raises(Refused) as refused:
        wire.ask("ListItems", ns="test", topic=topic, state=State.LEASED, cursor=cursor)
    assert refused.value.code == Code.INVALID


@pytest.mark.parametrize(
    "fields", [{"ns": ""}, {"ns": b"\xff"}, {"limit": 0}, {"limit": -1}, {"limit": 10_001}], ids=str
)
def test_active_topics_refuses(wire: Wire, fields: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        wire.ask("GetActiveTopics", **fields)
    assert refused.value.code == Code.INVALID


# -------------------------------------------------------------------------------------------- single items


def test_get_item_in_every_state(wire: Wire, topic: str) -> None:
    """All its fields; no lease to ack with; looking changes nothing."""
    fields: dict[str, Any] = {"metadata": b"m", "headers": {"k": "v"}, "priority": 4, "ttl_ms": HOUR_MS, "delivery": 2}
    (later,) = wire.put(topic, b"p", delay_ms=HOUR_MS, **fields)
    (item_id,) = wire.put(topic, b"p", delay_ms=200, **fields)
    seen = [wire.look(later)]
    leased = wire.one(topic, lease_ms=60_000)
    seen.append(wire.look(item_id))
    wire.listed(topic)
    seen.append(wire.look(item_id))
    assert wire.nack(leased, release=True) == 0
    seen.append(wire.look(item_id))
    states = [State.DELAYED, State.LEASED, State.LEASED, State.READY]
    assert [each.state for each in seen] == states
    for state, each in zip(states, seen, strict=True):
        item = each.item
        delayed = state == State.DELAYED
        assert (item.id, item.ns, item.topic) == (later if delayed else item_id, "test", topic)
        assert (item.priority, item.lease, item.attempt) == (4, 0, int(state == State.LEASED))
        assert (item.payload, item.metadata, item.headers, item.delivery) == (b"p", b"m", {"k": "v"}, 2)
        assert item.deliver_after_ms == item.enqueued_at_ms + (HOUR_MS if delayed else 200)
        assert item.expires_at_ms == item.enqueued_at_ms + HOUR_MS
        assert item.lease_expires_at_ms == (leased.lease_expires_at_ms if state == State.LEASED else 0)
    wire.delete(item_id, later)


@pytest.mark.parametrize("item_id", [0, 1, -1, 2**63 - 1, -(2**63), 1 << 48 | 1 << 46, 99 << 48 | 1])
def test_ids_that_are_nobodys(wire: Wire, item_id: int) -> None:
    """NOT_FOUND, whatever shard they name."""
    with pytest.raises(Refused) as refused:
        wire.look(item_id)
    assert refused.value.code == Code.NOT_FOUND
    assert wire.delete(item_id) == [Code.NOT_FOUND]


def test_get_item_without_an_id(wire: Wire) -> None:
    with pytest.raises(Refused) as refused:
        wire.ask("GetItem")
    assert refused.value.code == Code.INVALID


# ------------------------------------------------------------------------------------------------- listing


def test_list_items_in_all_states(wire: Wire, topic: str) -> None:
    """By state, or all; ready ones of a shard in lane order; with attempts and states; nothing is leased."""
    wire.put(topic, *[b"ready"] * 40, priority=3)
    for priority in (2, 1):
        wire.enqueue(*(spec(topic, b"ready", priority=priority) for _ in range(5)))
    wire.put(topic, *[b"delayed"] * 7, delay_ms=HOUR_MS, priority=0)
    wire.hold_nothing_back(topic)
    held = wire.dequeue(topic, 12, wait_ms=30_000, lease_ms=HOUR_MS)
    for limit in (1, 3, 50, 1000, None):
        by_state = {state: wire.listed(topic, limit, state) for state in (State.READY, State.DELAYED, State.LEASED)}
        assert [len(items) for items in by_state.values()] == [38, 7, 12]
        for state, items in by_state.items():
            assert {item.state for item in items} == {state}
            assert {item.lease for item in items} == {0}
        assert {item.attempt for item in by_state[State.LEASED]} == {1}
        assert {(item.id, item.lease_expires_at_ms) for item in by_state[State.LEASED]} == {
            (item.id, item.lease_expires_at_ms) for item in held
        }
        everything = wire.listed(topic, limit)
        assert sorted(item.id for item in everything) == sorted(
            item.id for items in by_state.values() for item in items
        )
        for shard in range(1, 5):
            keys = [(i.priority, i.deliver_after_ms, i.id) for i in by_state[State.READY] if i.id >> 48 == shard]
            assert keys == sorted(keys)
    assert wire.listed(topic, state=State.UNSPECIFIED) != []
    assert wire.ack(*held) == [0] * 12


def test_list_items_that_do_not_fit_a_frame(wire: Wire, topic: str) -> None:
    """Twenty of 1 MiB: several pages, each within a frame."""
    ids = [wire.put(topic, bytes([n]) * (1 << 20))[0] for n in range(20)]
    items = wire.listed(topic, 1000)
    assert sorted(item.id for item in items) == sorted(ids)
    wire.delete(*ids)


def test_list_items_of_an_empty_topic(wire: Wire, topic: str) -> None:
    page = wire.ask("ListItems", ns="test", topic=topic)
    assert (page.items, page.cursor) == ([], None)


@pytest.mark.parametrize(
    "fields",
    [
        *({"limit": limit} for limit in (0, -5, 1001)),
        *({"state": state} for state in (4, -1)),
        *({"ns": ns} for ns in (None, b"\xff")),
        *({"topic": topic} for topic in (None, "", "a\n")),
    ],
    ids=str,
)
def test_list_items_refuses(wire: Wire, fields: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        wire.ask("ListItems", **{"ns": "test", "topic": "t", **fields})
    assert refused.value.code == Code.INVALID


# ------------------------------------------------------------------------------------------------ deleting


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_delete_in_every_state(wire: Wire, topic: str, delivery: int) -> None:
    """A live lease included, whose holder then learns that the item is gone."""
    wire.put(topic, b"", b"", delivery=delivery)
    first, second = wire.dequeue(topic, 2)
    assert wire.listed(topic, state=State.LEASED) != []  # the first two leases are written
    wire.put(topic, b"", delivery=delivery)
    third = wire.one(topic)
    (ready,) = wire.put(topic, b"", delivery=delivery)
    (delayed,) = wire.put(topic, b"", delivery=delivery, delay_ms=60_000)
    ids = [first.id, ready, 1 << 48 | 1 << 40, delayed, third.id]
    assert wire.delete(*ids) == [0, 0, Code.NOT_FOUND, 0, 0]
    assert [wire.state(item_id) for item_id in ids] == [None] * 5
    assert wire.ack(first, third, second) == [Code.NOT_FOUND, Code.NOT_FOUND, 0]
    assert wire.dequeue(topic) == []
    assert wire.listed(topic) == []


def test_delete_many(wire: Wire, topic: str) -> None:
    ids = wire.put(topic, *[b""] * 3000)
    assert wire.delete(*ids) == [0] * 3000
    assert wire.delete(*ids[:5]) == [Code.NOT_FOUND] * 5
    until(lambda: active(wire, "test") == [] or topic not in {t.topic for t in active(wire, "test")}, "an empty topic")


# ---------------------------------------------------------------------------------------------- the server


def test_server_info(wire: Wire) -> None:
    """The version, and every limit the IDL names, at its default."""
    info = wire.ask("GetServerInfo")
    assert info.version == __version__
    assert (
        info.limits.items()
        >= {
            "payload_bytes": 1 << 20,
            "metadata_bytes": 4096,
            "headers_bytes": 4096,
            "name_bytes": 255,
            "request_items": 10_000,
            "frame_bytes": 16_384_000,
            "lease_min_ms": 100,
            "lease_max_ms": 12 * 3_600_000,
            "lease_default_ms": 30_000,
            "delay_max_ms": 366 * 86_400_000,
            "ttl_max_ms": 366 * 86_400_000,
            "wait_max_ms": 600_000,
            "timeout_max_ms": 600_000,
        }.items()
    )
    fixed = {"settings_bytes": 900_000, "settings_value_bytes": 4_096, "script_bytes": 65_536}
    assert info.limits == Limits().as_map() | fixed


def test_limits_are_configurable(start_whole: Callable[..., HostProcess]) -> None:
    """The configured limits are in the answer, and hold."""
    limits = {"PAYLOAD_BYTES": "10", "REQUEST_ITEMS": "3", "LEASE_MIN_MS": "5000"}
    host = start_whole(**{f"FOQS_LIMITS__{name}": value for name, value in limits.items()})
    with Wire(host.address) as wire:
        told = wire.ask("GetServerInfo").limits
        assert (told["payload_bytes"], told["request_items"], told["lease_min_ms"]) == (10, 3, 5000)
        good, long, short = wire.outcomes(spec("t", b"x" * 10), spec("t", b"x" * 11), spec("t", lease_ms=4999))
        assert (good.error, long.error.code, short.error.code) == (None, Code.INVALID, Code.INVALID)
        with pytest.raises(Refused) as refused:
            wire.outcomes(*[spec("t")] * 4)
        assert refused.value.code == Code.INVALID


def test_every_method_can_be_called_without_a_context(wire: Wire) -> None:
    """And an empty request never is a fault of the server."""
    for method in idl.Foqs.thrift_services:
        try:
            wire.ask(method)
        except Refused as refused:
            assert refused.code == Code.INVALID
