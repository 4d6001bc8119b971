"""Deduplication keys in a cluster: whichever host is asked, the shard of the key decides."""

from dataclasses import replace
from typing import Any

import pytest

from foqs.buffers.pending_dedup import Give
from foqs.errors import Code
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_bounds, hash_slot_of, shard_of
from foqs.peers.forwarded import Alarm
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Routing, make_routing
from tests.api.wire import spec
from tests.peers.nodes import Cluster, Member

SLOTS_OF = tuple(1 + slot % 2 for slot in range(HASH_SLOTS))


@pytest.fixture
def two(cluster: Cluster) -> tuple[Member, Member]:
    """Shard 1 is on the first, shard 2 on the second; each has every other slot."""
    members = cluster.add("a", 1), cluster.add("b", 2)
    share_out(cluster, *members)
    return members


def share_out(cluster: Cluster, *members: Member) -> None:
    """Each has a shard, which has its slots then."""
    cluster.tell(with_slots(cluster.routing()))
    cluster.until(
        lambda: all(member.engine.state.shards[n].queue.keys.held.bits for n, member in enumerate(members, 1)), "slots"
    )


def with_slots(routing: Routing) -> Routing:
    return make_routing(routing.owners, routing.hosts, routing.shards, Slots(shards=SLOTS_OF, stamp=1))


def keyed(count: int, payload: bytes = b"x") -> list[Any]:
    return [spec("t", payload, dedup_key=f"k{n}") for n in range(count)]


def shard_of_key(number: int) -> int:
    return SLOTS_OF[hash_slot_of(digest_of("test", f"k{number}"))]


def test_any_host_stores_at_the_keys_shard(cluster: Cluster, two: tuple[Member, Member]) -> None:
    first = cluster.wire(two[0]).outcomes(*keyed(100))
    assert [shard_of(outcome.id) for outcome in first] == [shard_of_key(n) for n in range(100)]
    assert {outcome.duplicate for outcome in first} == {None}
    second = cluster.wire(two[1]).outcomes(*keyed(100))
    assert [outcome.id for outcome in second] == [outcome.id for outcome in first]
    assert {outcome.duplicate for outcome in second} == {True}
    other = cluster.wire(two[1]).outcomes(*keyed(100, b"y"))
    assert {outcome.error.code for outcome in other} == {Code.INVALID}


def test_no_other_shard_takes_them_while_theirs_is_down(cluster: Cluster) -> None:
    a, b = cluster.add("a", 1, handover_ms=200), cluster.add("b", 2)
    # The keys of a shard that has no slots yet are held no longer than those of one that is down.
    share_out(cluster, a, b)
    cluster.on_loop(b.die)
    cluster.tell(with_slots(cluster.routing(a)))
    made = cluster.wire(a).outcomes(*keyed(50))
    for n, outcome in enumerate(made):
        if shard_of_key(n) == 1:
            assert outcome.id
        else:
            assert outcome.error.code == Code.UNAVAILABLE


def test_they_wait_for_a_shard_that_is_being_moved(cluster: Cluster, two: tuple[Member, Member]) -> None:
    a, _ = two
    before = cluster.wire(a).outcomes(*keyed(50))
    cluster.tell(with_slots(cluster.routing(without=[2])))
    wire = cluster.wire(a)
    wire.send_call("Enqueue", ns="test", items=keyed(60))
    cluster.until(lambda: a.counters.held > 0, "a request that is held")
    cluster.move(2, a)
    cluster.tell(with_slots(cluster.routing(a)))
    made = wire.receive("Enqueue").outcomes
    assert [outcome.id for outcome in made[:50]] == [outcome.id for outcome in before]
    assert all(outcome.id for outcome in made[50:])
    assert {outcome.duplicate for outcome in made[50:]} == {None}


def codes(outcomes: list[Any], shard: int) -> set[tuple[int, int | None]]:
    """Code and `retry_after_ms` of the keys of a shard; those of the other one are stored."""
    assert all(outcome.id for n, outcome in enumerate(outcomes) if shard_of_key(n) != shard)
    errors = [outcome.error for n, outcome in enumerate(outcomes) if shard_of_key(n) == shard]
    return {(error.code, error.retry_after_ms) for error in errors}


def test_keys_of_a_disabled_shard_are_refused_at_once(cluster: Cluster, two: tuple[Member, Member]) -> None:
    a, _ = two
    cluster.tell(replace(with_slots(cluster.routing(without=[2])), disabled=frozenset({2})))
    assert codes(cluster.wire(a).outcomes(*keyed(50)), 2) == {(Code.UNAVAILABLE, 1_000)}
    assert a.counters.held == 0


def test_keys_are_not_held_for_a_shard_without_an_owner_for_long(cluster: Cluster) -> None:
    """Its database is down, so no host opens it."""
    a, b = cluster.add("a", 1, handover_ms=200), cluster.add("b", 2)
    share_out(cluster, a, b)
    cluster.tell(with_slots(cluster.routing(without=[2])))
    assert a.forwarder is not None
    cluster.until(lambda: not a.forwarder.exchange.expects_owner(2), "the end of the longest hand-over")
    cluster.tell(with_slots(cluster.routing(without=[2])))
    assert codes(cluster.wire(a).outcomes(*keyed(50)), 2) == {(Code.UNAVAILABLE, 1_000)}
    assert a.counters.held == 0
    cluster.tell(with_slots(cluster.routing()))
    assert all(outcome.id for outcome in cluster.wire(a).outcomes(*keyed(50)))


def test_they_wait_until_the_slots_are_shared_out(cluster: Cluster) -> None:
    a = cluster.add("a", 1)
    cluster.tell()
    asked: list[bool] = []
    a.share_slots = lambda: asked.append(True)
    wire = cluster.wire(a)
    wire.send_call("Enqueue", ns="test", items=keyed(5))
    cluster.until(lambda: a.counters.held > 0, "a request that is held")
    assert asked == [True]
    slots = Slots(shards=(1,) * HASH_SLOTS, stamp=1)
    routing = cluster.on_loop(lambda: make_routing(a.routing.owners, a.routing.hosts, a.routing.shards, slots))
    cluster.tell(routing)
    assert all(outcome.id for outcome in wire.receive("Enqueue").outcomes)


def test_held_parts_are_tried_again_by_one_timer(cluster: Cluster, nowhere: str) -> None:
    """Parts that wait for different things do not multiply the tries: here one for a slot that is being moved, and one
    for a host that cannot be reached."""
    a, slot, given = cluster.add("a", 1), SLOTS_OF.index(1), []
    routing = cluster.routing(p=(nowhere, 2))

    def told(slots: Slots) -> Routing:
        return cluster.tell(make_routing(routing.owners, routing.hosts, routing.shards, slots))

    def give() -> None:
        shard = a.engine.state.shards[1]
        shard.queue.keys.gives.append(Give(slot, 2, hash_slot_bounds(slot)[0], 1, given.append))
        a.engine.state.touch(shard)

    told(Slots(shards=SLOTS_OF, stamp=1))
    cluster.until(lambda: bool(a.engine.state.shards[1].queue.keys.held.bits), "slots")
    told(Slots(0, SLOTS_OF, {slot: SlotMove(2, 2)}, 2))
    cluster.on_loop(give)
    cluster.until(lambda: bool(given), "the slot to be given away")
    moved = next(f"k{n}" for n in range(100_000) if hash_slot_of(digest_of("test", f"k{n}")) == slot)
    away = next(f"k{n}" for n in range(100) if shard_of_key(n) == 2)
    wire = cluster.wire(a)
    wire.send_call("Enqueue", ns="test", items=[spec("t", dedup_key=moved), spec("t", dedup_key=away)])
    cluster.until(lambda: a.counters.forwarded > 10, "some tries")
    assert cluster.on_loop(lambda: sum(type(what) is Alarm and not what.done for what in pending(a))) <= 1


def pending(member: Member) -> list[Any]:
    return [what for _, _, what in member.engine.state.deadlines.sift()]
