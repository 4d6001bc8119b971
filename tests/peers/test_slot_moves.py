"""Slots of deduplication keys move from shard to shard, and the rows of their keys move with them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from foqs.buffers.pending_dedup import Give
from foqs.engine.dedup import GiveRead
from foqs.engine.shard import Shard
from foqs.errors import Code
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_bounds, hash_slot_of, shard_of
from foqs.peers import hash_slots
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import arrived, has, make_routing
from tests.api.wire import Refused, Wire, spec
from tests.peers.nodes import Cluster, Member
from tests.support.waiting import wait_until

Locked = Callable[[int], AbstractContextManager[None]]
COUNT = 60
KEYS = [f"k{n}" for n in range(COUNT)]
THEIRS = sorted({hash_slot_of(digest_of("test", key)) for key in KEYS})


class Record:
    """Stands in for ZooKeeper: it sends each change to all members. While `obeys` is False, it ignores members that
    report arrived slots."""

    def __init__(self, cluster: Cluster, *members: Member) -> None:
        self.cluster = cluster
        self.slots = Slots(shards=(1,) * HASH_SLOTS, stamp=1)
        self.obeys = True
        for member in members:
            self.follow(member)
        self.tell(self.slots)

    def follow(self, member: Member) -> None:
        member.slots_arrived = self.arrived

    def tell(self, slots: Slots, *, without: Iterable[int] = ()) -> None:
        self.cluster.on_loop(lambda: self._told(slots, tuple(without)))

    def obey(self) -> None:
        """Accept reports of arrived slots again, and send the current record once more.

        Both happen in one turn of the event loop, because a report in between would make a newer record.
        """

        def again() -> None:
            self.obeys = True
            self._told(self.slots, ())

        self.cluster.on_loop(again)

    def move(self, *slots: int, to: int = 2) -> None:
        stamp = self.slots.stamp + 1
        moves = {**self.slots.moves, **{slot: SlotMove(to, stamp) for slot in slots}}
        self.tell(Slots(0, self.slots.shards, moves, stamp))

    def arrived(self, moved: Mapping[int, SlotMove]) -> None:
        if self.obeys:
            self._told(arrived(self.slots, moved, 0), ())

    def has_moved(self, to: int = 2) -> None:
        self.cluster.until(lambda: not self.slots.moves, "the end of the moves")
        self.cluster.until(lambda: all(holds(self.cluster, to, slot) for slot in THEIRS), "the slots' shard")

    def _told(self, slots: Slots, without: tuple[int, ...]) -> None:
        self.slots = slots
        routing = self.cluster.routing(without=without)
        told = make_routing(routing.owners, routing.hosts, routing.shards, slots)
        for member in self.cluster.members:
            if self.slots is slots:  # else a report of a member has made a newer record, and all have that
                member.told(told)


def holds(cluster: Cluster, number: int, slot: int) -> bool:
    found = (member.engine.state.shards.get(number) for member in cluster.members if member.serves(number))
    return any(shard is not None and has(shard.queue.keys.held.bits, slot) for shard in found)


@pytest.fixture
def two(cluster: Cluster) -> tuple[Member, Member]:
    return cluster.add("a", 1), cluster.add("b", 2)


@pytest.fixture
def record(cluster: Cluster, two: tuple[Member, Member]) -> Record:
    """Shard 1, on the first, has all slots."""
    made = Record(cluster, *two)
    cluster.until(lambda: all(holds(cluster, 1, slot) for slot in range(HASH_SLOTS)), "the slots of shard 1")
    return made


def put(wire: Wire, payload: bytes = b"x", keys: Iterable[str] = KEYS) -> list[Any]:
    return wire.outcomes(*(spec("t", payload, dedup_key=key) for key in keys))


@pytest.mark.parametrize("page_rows", [1, 1_000])
def test_keys_are_known_where_their_slot_went(
    cluster: Cluster, two: tuple[Member, Member], record: Record, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_slots, "_PAGE_ROWS", page_rows)
    wire = cluster.wire(two[0])
    first = put(wire)
    assert {shard_of(outcome.id) for outcome in first} == {1}
    record.move(*THEIRS)
    record.has_moved()
    again = put(wire)
    assert [outcome.id for outcome in again] == [outcome.id for outcome in first]
    assert {outcome.duplicate for outcome in again} == {True}
    assert {outcome.error.code for outcome in put(cluster.wire(two[1]), b"y")} == {Code.INVALID}
    new = put(wire, keys=[f"new-{n}" for n in range(200)])
    assert {shard_of(outcome.id) for outcome in new} == {1, 2}


def test_there_and_back_again(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    wire = cluster.wire(two[1])
    first = put(wire, keys=KEYS[:20])
    record.move(*THEIRS)
    record.has_moved()
    second = put(wire, keys=KEYS[:40])
    record.move(*THEIRS, to=1)
    record.has_moved(1)
    third = put(wire)
    assert [outcome.id for outcome in third[:40]] == [outcome.id for outcome in second]
    assert [outcome.id for outcome in second[:20]] == [outcome.id for outcome in first]
    assert [outcome.duplicate for outcome in third] == [True] * 40 + [None] * 20


def test_requests_during_a_move_wait_for_the_other_shard(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    put(cluster.wire(two[0]), keys=KEYS[:30])
    record.obeys = False
    record.move(*THEIRS[:4])
    moved = [key for key in KEYS if hash_slot_of(digest_of("test", key)) in THEIRS[:4]]
    cluster.until(lambda: not any(holds(cluster, 1, slot) for slot in THEIRS[:4]), "the slots given away")
    wires = [cluster.wire(member) for member in two]
    for wire in wires:
        wire.send_call("Enqueue", ns="test", items=[spec("t", b"x", dedup_key=key) for key in moved])
    cluster.until(lambda: sum(member.counters.held for member in two) >= 2, "requests that are held")
    record.obeys = True
    made = [wire.receive("Enqueue").outcomes for wire in wires]
    assert [outcome.id for outcome in made[0]] == [outcome.id for outcome in made[1]]
    for key, outcome in zip(moved, made[0], strict=True):
        assert shard_of(outcome.id) == (1 if key in KEYS[:30] else 2)


def test_a_move_that_is_called_off(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    wire = cluster.wire(two[1])
    first = put(wire, keys=KEYS[:30])
    record.obeys = False
    record.move(*THEIRS)
    cluster.until(lambda: not any(holds(cluster, 1, slot) for slot in THEIRS[:4]), "slots given away")
    record.tell(Slots(0, record.slots.shards, {}, record.slots.stamp + 1))
    cluster.until(lambda: all(holds(cluster, 1, slot) for slot in THEIRS), "the slots back on shard 1")
    second = put(wire)
    assert [outcome.id for outcome in second[:30]] == [outcome.id for outcome in first]
    assert {shard_of(outcome.id) for outcome in second} == {1}
    record.obeys = True
    record.move(*THEIRS)
    record.has_moved()
    assert [outcome.id for outcome in put(wire)] == [outcome.id for outcome in second], "also those stored in between"


def test_a_slot_that_was_given_for_a_cancelled_move_comes_back(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    """The host takes the slot back by itself: the record does not change any more."""
    shard = two[0].engine.state.shards[1]

    def give() -> None:
        low, _ = hash_slot_bounds(THEIRS[0])
        shard.queue.keys.gives.append(Give(THEIRS[0], 1, low, 1_000, lambda rows: None))
        two[0].engine.state.touch(shard)

    cluster.on_loop(give)
    cluster.until(lambda: not holds(cluster, 1, THEIRS[0]), "the slot given away")
    for member in two:
        assert all(outcome.id for outcome in put(cluster.wire(member)))
    assert cluster.on_loop(lambda: holds(cluster, 1, THEIRS[0]))


def gives(shard: Shard) -> bool:
    return shard.queue.in_flight is not None and any(isinstance(read, GiveRead) for read in shard.queue.in_flight.reads)


def test_a_slot_being_given_away_does_not_return_with_another(
    cluster: Cluster, two: tuple[Member, Member], record: Record, locked: Locked
) -> None:
    """While the shard gives one slot away, the record assigns it another one."""
    shard, (other, given) = two[0].engine.state.shards[1], THEIRS[:2]
    record.move(other)
    cluster.until(lambda: not record.slots.moves, "the end of a move")
    record.obeys = False
    with locked(1):
        record.move(given)
        cluster.until(lambda: gives(shard), "a slot to be given away")
        back = tuple(1 if slot == other else number for slot, number in enumerate(record.slots.shards))
        record.tell(Slots(0, back, record.slots.moves, record.slots.stamp + 1))
    cluster.until(lambda: holds(cluster, 1, other), "the other slot")
    assert not cluster.on_loop(lambda: holds(cluster, 1, given))


@pytest.mark.parametrize("which", [1, 2])
def test_another_owner_goes_on(cluster: Cluster, two: tuple[Member, Member], record: Record, which: int) -> None:
    """In the middle of the move, the giving or the taking shard gets another owner."""
    wire = cluster.wire(two[0])
    first = put(wire)
    record.obeys = False
    record.move(*THEIRS)
    cluster.until(lambda: not any(holds(cluster, 1, slot) for slot in THEIRS[:4]), "slots given away")
    cluster.move(which, two[which % 2])
    record.obey()
    record.has_moved()
    again = put(wire)
    assert [outcome.id for outcome in again] == [outcome.id for outcome in first]


def test_an_owner_with_an_old_record_takes_no_given_slot_back(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    old = record.slots
    record.move(*THEIRS[:1])
    cluster.until(lambda: not record.slots.moves, "the end of the move")
    now = record.slots
    record.tell(old)
    cluster.move(1, two[1])
    record.tell(old)
    (refused,) = cluster.wire(two[1]).outcomes(
        spec("t", b"x", dedup_key=next(key for key in KEYS if hash_slot_of(digest_of("test", key)) == THEIRS[0])),
        context=idl.RequestContext(hops=1),
    )
    assert refused.error.code == Code.UNAVAILABLE
    assert not cluster.on_loop(lambda: holds(cluster, 1, THEIRS[0]))
    record.tell(now)
    assert put(cluster.wire(two[1]))[0].id


def test_keys_that_are_being_stored_are_given_with_their_slot(
    cluster: Cluster, two: tuple[Member, Member], record: Record, locked: Locked
) -> None:
    """The client enqueues more keys than one trip stores, before the shard gives the slot away."""
    shard = two[0].engine.state.shards[1]
    shard.configure(shard.config.model_copy(update={"batch_rows": 2}))
    keys = [key for key in (f"k{n}" for n in range(20_000)) if hash_slot_of(digest_of("test", key)) == THEIRS[0]][:15]
    given: list[Any] = []
    wire = cluster.wire(two[0])

    def ask() -> None:
        low, _ = hash_slot_bounds(THEIRS[0])
        shard.queue.keys.gives.append(Give(THEIRS[0], 2, low, 1_000, given.append))
        two[0].engine.state.touch(shard)

    with locked(1):
        wire.send_call("Enqueue", ns="test", items=[spec("t", b"x", dedup_key=key) for key in keys])
        cluster.until(lambda: bool(shard.queue.keys.pending), "pending keys")
        cluster.on_loop(ask)
    cluster.until(lambda: bool(given), "the rows")
    made = {outcome.id for outcome in wire.receive("Enqueue").outcomes}
    assert len(made) == 15
    assert {row.id for row in given[0].rows} == made


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"slot": 4}, Code.UNAVAILABLE),
        ({"shard": 2}, Code.UNAVAILABLE),
        ({"shard": 3}, Code.UNAVAILABLE),
        ({"stamp": 1 << 60}, Code.UNAVAILABLE),
        ({"slot": HASH_SLOTS}, Code.INVALID),
        ({"stamp": None}, Code.INVALID),
        ({"low": b"x"}, Code.INVALID),
        ({"limit": 0}, Code.INVALID),
    ],
)
def test_no_slot_is_given_away_without_the_record(
    cluster: Cluster, two: tuple[Member, Member], record: Record, change: dict[str, Any], code: int
) -> None:
    record.obeys = False
    record.tell(Slots(0, record.slots.shards, {3: SlotMove(3, 1)}, 2))
    wire = cluster.wire(two[0])
    asked = {"shard": 1, "slot": 3, "stamp": 2, **change}
    with pytest.raises(Refused) as refused:
        wire.ask("GiveSlot", **asked)
    assert refused.value.code == code
    assert cluster.on_loop(lambda: holds(cluster, 1, 3))


# ------------------------------------------------------------------------------------------ keys that items hold


def unique(wire: Wire, key: str = "k0") -> Any:
    """The outcome of an enqueue whose key is free when its item is done."""
    (outcome,) = wire.outcomes(spec("t", b"x", dedup_key=key, dedup_until=idl.DedupUntil.DONE))
    assert outcome.error is None
    return outcome


def lease(wire: Wire) -> Any:
    (item,) = wire.ask("Dequeue", ns="test", wants=[idl.TopicCount("t", 1)], wait_ms=10_000).items
    return item


def test_an_item_frees_its_key_in_another_shard(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    wire = cluster.wire(two[0])
    first = unique(wire)
    record.move(*THEIRS)
    record.has_moved()
    assert unique(wire).id == first.id
    item = lease(wire)
    wire.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    wait_until(lambda: not unique(wire).duplicate, "a key that is free")
    assert shard_of(unique(wire).id) == 2


def test_a_redrive_takes_a_key_in_another_shard(cluster: Cluster, two: tuple[Member, Member], record: Record) -> None:
    wire = cluster.wire(two[0])
    dead = [unique(wire, key).id for key in KEYS[:2]]
    record.move(*THEIRS)
    record.has_moved()
    for _ in dead:
        item = lease(wire)
        wire.ask("Nack", items=[idl.NackItem(item.id, item.lease, reject=True, reason="bad")])
    wait_until(lambda: not unique(wire, KEYS[1]).duplicate, "a key that is free")
    other = unique(wire, KEYS[1]).id
    answer = wire.ask("RedriveItems", ns="test", topic="t.dlq")
    assert (answer.at_least, answer.at_most, answer.skipped_duplicate) == (1, 1, 1)
    assert (unique(wire).id, unique(wire, KEYS[1]).id) == (dead[0], other)
    record.move(*THEIRS, to=1)
    record.has_moved(1)
    assert (unique(wire).id, unique(wire, KEYS[1]).id) == (dead[0], other)


def test_an_item_is_cancelled_by_a_key_in_another_shard(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    wire = cluster.wire(two[0])
    first, second = (unique(wire, key).id for key in KEYS[:2])
    record.move(*THEIRS)
    record.has_moved()
    asking = ((wire, KEYS[0], first), (cluster.wire(two[1]), KEYS[1], second))
    for asked, key, item_id in asking:
        assert asked.ask("CancelItem", ns="test", dedup_key=key) == idl.CancelItemResponse(item_id, True)
        wait_until(lambda key=key: not unique(wire, key).duplicate, "a key that is free")
    leased = {lease(wire).id for _ in asking}
    for asked, key, _ in asking:
        stays = asked.ask("CancelItem", ns="test", dedup_key=key)
        assert (stays.id in leased, stays.removed) == (True, False)
        assert asked.ask("CancelItem", ns="test", dedup_key=key, leased=True) == idl.CancelItemResponse(stays.id, True)


def test_an_item_of_another_host_gets_a_new_payload(
    cluster: Cluster, two: tuple[Member, Member], record: Record
) -> None:
    wires = [cluster.wire(member) for member in two]
    first = unique(wires[0]).id
    record.move(*THEIRS)
    record.has_moved()
    for asked, payload in zip(wires, (b"a", b"b"), strict=True):
        given = {"dedup_key": KEYS[0], "on_duplicate": idl.OnDuplicate.REPLACE}
        (outcome,) = asked.outcomes(spec("t", payload, **given), spec("t", b"x"))[:1]
        assert (outcome.error, outcome.id, outcome.duplicate, outcome.replaced) == (None, first, True, True)
    items = {item.id: item.payload for item in (lease(wires[0]) for _ in range(3))}
    assert items[first] == b"b"
    (outcome,) = wires[1].outcomes(spec("t", b"c", **given))
    assert (outcome.error, outcome.id, outcome.replaced) == (None, first, None)
