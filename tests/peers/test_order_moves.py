"""Hash slots move, and items with order keys stay: each key is in one shard at a time."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Code
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_of, shard_of
from foqs.peers import hash_slots
from foqs.shardmgr.routing import Slots
from tests.api.wire import Wire, spec
from tests.peers.nodes import Cluster, Member
from tests.peers.test_slot_moves import Record, holds
from tests.support.waiting import wait_until

KEYS = [f"k{n}" for n in range(30)]
THEIRS = sorted({hash_slot_of(digest_of("test", key)) for key in KEYS})


@pytest.fixture
def two(cluster: Cluster) -> tuple[Member, Member]:
    return cluster.add("a", 1), cluster.add("b", 2)


@pytest.fixture
def record(cluster: Cluster, two: tuple[Member, Member]) -> Record:
    """Shard 1, on the first, has all slots."""
    made = Record(cluster, *two)
    cluster.until(lambda: all(holds(cluster, 1, slot) for slot in range(HASH_SLOTS)), "the slots of shard 1")
    return made


def put(wire: Wire, *keys: str, **fields: Any) -> list[int]:
    """The shards of new items, in the order of `keys`."""
    return [shard_of(item_id) for item_id in wire.enqueue(*(spec("t", b"x", order_key=key, **fields) for key in keys))]


def moved(cluster: Cluster, record: Record, to: int) -> None:
    record.move(*THEIRS, to=to)
    cluster.until(lambda: not record.slots.moves, "the end of the moves")
    cluster.until(lambda: all(holds(cluster, to, slot) for slot in THEIRS), "the slots' shard")


def take(wire: Wire) -> Any:
    (item,) = wire.ask("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=10_000).items
    return item


def ack(wire: Wire, item: Any) -> None:
    wait_until(lambda: wire.settle("Ack", [idl.AckItem(item.id, item.lease)]) == [0], "an ack")


def end(wire: Wire, count: int) -> None:
    """Deliver and ack this number of items."""
    for _ in range(count):
        ack(wire, take(wire))


def test_keys_with_items_stay_until_these_have_ended(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    wires = [cluster.wire(member) for member in two]
    assert set(put(wires[0], *KEYS[:10])) == {1}
    moved(cluster, record, 2)
    for wire in wires:
        assert set(put(wire, *KEYS[:10])) == {1}, "the keys have items there"
        assert set(put(wire, *KEYS[10:20])) == {2}, "all other keys have the new shard"
    end(wires[0], 30 + 20)
    for wire in wires:
        assert set(put(wire, *KEYS)) == {2}
    elsewhere = two[1].engine.state.shards[2].memory.orders.elsewhere
    assert not elsewhere


@pytest.mark.parametrize("asked", [0, 1])
def test_items_of_one_request_keep_their_order(
    cluster: Cluster, two: tuple[Member, Member], record: Record, asked: int
) -> None:
    """Though the request is sent on, and has items of keys in both shards."""
    wire = cluster.wire(two[asked])
    put(wire, "k0")
    moved(cluster, record, 2)
    keys = ["k0", "k1", "k0", "k1", "k2", "k0"]
    ids = wire.enqueue(*(spec("t", str(n).encode(), order_key=key) for n, key in enumerate(keys)))
    assert [shard_of(item_id) for item_id in ids] == [1, 2, 1, 2, 2, 1]
    found: dict[str, list[bytes]] = {}
    for _ in range(7):
        item = take(wire)
        found.setdefault(item.order_key, []).append(item.payload)
        ack(wire, item)
    assert found == {"k0": [b"x", b"0", b"2", b"5"], "k1": [b"1", b"3"], "k2": [b"4"]}


@pytest.mark.parametrize("page_rows", [1, 2, 1_000])
def test_delayed_items_and_dead_letters_keep_their_key(
    cluster: Cluster, two: tuple[Member, Member], record: Record, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_slots, "_PAGE_ROWS", page_rows)
    wire = cluster.wire(two[1])
    put(wire, *KEYS[5:8])
    for _ in range(3):
        item = take(wire)
        assert wire.settle("Nack", [idl.NackItem(item.id, item.lease, reject=True, reason="bad")]) == [0]
    put(wire, *KEYS[:5], delay_ms=600_000)
    moved(cluster, record, 2)
    assert put(wire, *KEYS[:9]) == [1] * 8 + [2]
    end(wire, 9)
    assert put(wire, *KEYS[:9]) == [1] * 8 + [2], "the delayed items and the dead letters are still there"
    end(wire, 9)
    assert wire.ask("RedriveItems", ns="test", topic="t.dlq").at_least == 3
    assert put(wire, *KEYS[5:8]) == [1] * 3
    end(wire, 3 + 3)
    assert put(wire, *KEYS[:8]) == [1] * 5 + [2] * 3


def test_a_slot_that_moves_on(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    """The list of its keys moves with it; keys whose items are in the next shard are that shard's own again."""
    third = cluster.add("c", 3)
    record.follow(third)
    record.tell(record.slots)
    wire = cluster.wire(two[0])
    put(wire, "k0")
    moved(cluster, record, 2)
    assert put(wire, "k0", "k1") == [1, 2]
    moved(cluster, record, 3)
    assert put(wire, "k0", "k1", "k2") == [1, 2, 3]
    moved(cluster, record, 1)
    assert put(wire, "k0", "k1", "k2", "k3") == [1, 2, 3, 1]
    assert not any(home.shard == 1 for home in two[0].engine.state.shards[1].memory.orders.elsewhere.values())
    moved(cluster, record, 2)
    assert put(wire, "k0", "k1", "k2", "k3", "k4") == [1, 2, 3, 1, 2]
    end(wire, 5 + 4 + 3 + 2 + 1)
    assert put(wire, *KEYS[:5]) == [2] * 5


@pytest.mark.parametrize("which", [1, 2])
def test_another_owner_knows_where_keys_are(
    cluster: Cluster, two: tuple[Member, Member], record: Record, which: int
) -> None:
    wire = cluster.wire(two[0])
    put(wire, *KEYS[:10])
    moved(cluster, record, 2)
    cluster.move(which, two[which % 2])
    record.tell(record.slots)
    wire.outcomes(spec("other", b"x", order_key="k0"))
    cluster.until(lambda: sum(member.serves(which) for member in two) == 1, "one owner")
    assert put(wire, *KEYS[:12]) == [1] * 10 + [2] * 2
    end(wire, 10 + 12)
    assert set(put(wire, *KEYS[:12])) == {2}


def test_a_shard_that_is_removed_has_no_keys(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    wire = cluster.wire(two[1])
    put(wire, "k0")
    moved(cluster, record, 2)
    orders = two[1].engine.state.shards[2].memory.orders
    assert orders.elsewhere
    cluster.shards.discard(1)
    record.tell(record.slots, without=[1])
    cluster.until(lambda: not orders.elsewhere, "the keys of the removed shard")
    assert put(wire, "k0", "k1") == [2, 2]


def test_a_home_from_a_client_is_ignored(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    wire = cluster.wire(two[0])
    put(wire, "k0")
    moved(cluster, record, 2)
    made = wire.ask(
        "Enqueue", ns="test", items=[spec("t", b"x", order_key="k0")], homes=[idl.KeyHome(1, record.slots.stamp, True)]
    )
    assert shard_of(made.outcomes[0].id) == 1


def test_another_host_learns_the_home_and_a_client_does_not(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    put(cluster.wire(two[0]), "k0")
    moved(cluster, record, 2)

    def ask(member: Member, *homes: Any) -> Any:
        items = [spec("t", b"x", order_key="k0")]
        context = idl.RequestContext(hops=1)
        (outcome,) = cluster.wire(member).ask("Enqueue", ns="test", items=items, homes=homes, context=context).outcomes
        return outcome

    error = ask(two[1]).error
    assert error.code == Code.UNAVAILABLE and (error.home.shard, error.home.empty) == (1, False)
    assert ask(two[1], idl.KeyHome(1, error.home.stamp - 1, True)).error.home == error.home, "of an earlier move"
    assert shard_of(ask(two[0], error.home).id) == 1
    end(cluster.wire(two[0]), 2)
    empty = ask(two[0], error.home).error.home
    assert (empty.shard, empty.stamp, empty.empty) == (1, error.home.stamp, True)
    assert ask(two[0], error.home).error.home == empty, "the answer is final"
    assert shard_of(ask(two[1], empty).id) == 2
    assert shard_of(ask(two[1]).id) == 2
    assert ask(two[0], error.home).error.home == empty
    assert shard_of(ask(two[1], empty).id) == 2, "a late answer"


def test_a_move_that_is_called_off_leaves_keys_where_they_are(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    wire = cluster.wire(two[1])
    put(wire, *KEYS[:10])
    record.obeys = False
    record.move(*THEIRS)
    cluster.until(lambda: not any(holds(cluster, 1, slot) for slot in THEIRS[:4]), "slots given away")
    record.tell(Slots(0, record.slots.shards, {}, record.slots.stamp + 1))
    cluster.until(lambda: all(holds(cluster, 1, slot) for slot in THEIRS), "the slots back on shard 1")
    assert set(put(wire, *KEYS[:20])) == {1}
    record.obeys = True
    moved(cluster, record, 2)
    assert put(wire, *KEYS) == [1] * 20 + [2] * 10


def test_requests_during_a_move_wait_and_keep_their_order(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    put(cluster.wire(two[0]), *KEYS[:5])
    record.obeys = False
    record.move(*THEIRS[:4])
    cluster.until(lambda: not any(holds(cluster, 1, slot) for slot in THEIRS[:4]), "slots given away")
    during = [key for key in KEYS if hash_slot_of(digest_of("test", key)) in THEIRS[:4]]
    wire = cluster.wire(two[1])
    wire.send_call("Enqueue", ns="test", items=[spec("t", b"x", order_key=key) for key in during * 2])
    cluster.until(lambda: two[1].counters.held >= 1, "a request that is held")
    record.obeys = True
    found = [shard_of(outcome.id) for outcome in wire.receive("Enqueue").outcomes]
    assert found == [1 if key in KEYS[:5] else 2 for key in during * 2]
