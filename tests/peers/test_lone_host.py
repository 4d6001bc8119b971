"""The static facts of a host that has no other hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import item_ops
from foqs.engine.calls import DequeueCall, EnqueueCall
from foqs.engine.state import Callbacks
from foqs.errors import FoqsError, NotSent
from foqs.fairness.keys import ORDERED, lane_key
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, Dedup, order_digest, shard_of
from foqs.order import OrderHome
from foqs.peers.coordinator import HashSlotOwner, LoneHashSlotOwners
from foqs.peers.forwarded_requests import ACK
from foqs.peers.forwarder import LoneForwarder
from foqs.rows import NewOrdered
from foqs.shardmgr.routing import has
from tests.engine.laboratory import Laboratory
from tests.peers.exchanges import Incoming, Log
from tests.support.timers import TestTimers

pytestmark = pytest.mark.memory
ADDRESS = "here:1"


class Rig(Laboratory):
    def __init__(self, *numbers: int) -> None:
        self.forwarder: LoneForwarder | None = None
        super().__init__(*numbers, callbacks=Callbacks(slots_written=self._slots_written))
        self.lone = self.forwarder = LoneForwarder(self.engine, lambda: ADDRESS, TestTimers(lambda: self.now_ms), Log())

    def _slots_written(self) -> None:
        if self.forwarder is not None:
            self.forwarder.share_slots()

    def holders(self, slot: int) -> list[int]:
        """The shards that have the slot, or will have it after their next change."""
        return [number for number, shard in self.engine.state.shards.items() if has(shard.queue.keys.last.bits, slot)]


def test_the_host_owns_each_shard_that_it_serves() -> None:
    rig = Rig(1, 2)
    routing = rig.lone.routing()
    assert {number: route.address for number, route in routing.owners.items()} == {1: ADDRESS, 2: ADDRESS}
    assert rig.lone.routing() is routing
    rig.engine.lose(rig.engine.state.shards[2], rig.now_ms)
    rig.lone.changed()
    assert set(rig.lone.routing().owners) == {1}


def test_each_slot_gets_one_shard() -> None:
    rig = Rig(1, 2, 3)
    rig.lone.share_slots()
    rig.settle()
    slots = rig.lone.slots()
    assert len(slots) == HASH_SLOTS
    assert set(slots) == {1, 2, 3}
    assert all(rig.holders(slot) == [slots[slot]] for slot in range(HASH_SLOTS))


def test_no_slot_is_given_twice_while_slots_are_written() -> None:
    """The transactions that give slots to the shards end one after the other."""
    rig = Rig(1, 2, 3)
    rig.lone.share_slots()
    wanted = {number: shard.queue.keys.wanted for number, shard in rig.engine.state.shards.items()}
    first, *others = rig.send()
    rig.arrive(*first)
    assert [shard.queue.keys.wanted for shard, _ in others] == [None, None]
    for shard, batch in others:
        rig.arrive(shard, batch)
    assert {number: shard.queue.keys.held for number, shard in rig.engine.state.shards.items()} == wanted


def test_slots_wait_until_all_shards_are_open() -> None:
    rig = Rig(1, 2)
    rig.engine.lose(rig.engine.state.shards[2], rig.now_ms)
    assert set(rig.lone.slots()) == {0}
    assert rig.engine.state.shards[1].queue.keys.wanted is None


def test_no_request_leaves_the_host() -> None:
    rig, errors = Rig(1), []

    def done(response: object, error: FoqsError | None) -> None:
        errors.append(type(error))

    rig.lone.ask("there:1", "Dequeue", None, 1_000, done)
    assert errors == [NotSent]
    lone, call = rig.lone, Incoming(idl.GetItemRequest(1))
    nothing: Any = None
    assert not lone.enqueue(nothing, [0], call.request, rig.now_ms, 1_000)
    assert not lone.get_item(call, lambda: None, 1_000)
    assert not lone.explain_item(call, lambda: None, 1_000)
    assert not lone.list_items(call, 1_000, None)
    assert not lone.was_charged(call.request)
    asked = Incoming(idl.DequeueRequest("n", [idl.TopicCount("t", 1)], 1_000))
    assert not lone.dequeue(asked, 1_000, 2_000, DequeueCall([(("n", "t"), 1)], 1_000, 1 << 20, 0, nothing))
    assert lone.items(ACK, call.request, [1], nothing, 1_000, nothing) is None
    assert not (call.answers or asked.answers)


def test_a_lone_host_has_all_slots_since_its_start() -> None:
    found: list[tuple[HashSlotOwner | None, int]] = []
    LoneHashSlotOwners(Rig(1).engine, TestTimers(lambda: 500)).find(7, lambda *owner: found.append(owner))
    assert found == [(HashSlotOwner(0, 0), 500)]


def test_a_lone_host_has_no_other_hosts_to_ask() -> None:
    ends: list[list[str]] = []
    Rig(1).lone.ask_others(
        "ReleaseLeases", dict, idl.GetItemRequest(1), 1_000, lambda *_: ends.append(["an answer"]), ends.append
    )
    assert ends == [[]]


def test_order_keys_whose_slots_moved_before() -> None:
    """The host has left its cluster. Items are in one of its shards, and the slot of their key is in the other."""
    rig, soon = Rig(1, 2), list[Callable[[], None]]()
    lone = LoneForwarder(rig.engine, lambda: ADDRESS, TestTimers(lambda: rig.now_ms, soon=soon.append), Log())
    lone.share_slots()
    rig.settle()
    topic, digest = ("test", "t"), order_digest("test", "t", "k")
    number = next(n for n in (1, 2) if rig.engine.state.shards[n].queue.keys.takes(digest))
    lane = lane_key(topic, until=ORDERED)
    (old,) = rig.ordered("k", shard=3 - number, lane=lane)
    orders = rig.engine.state.shards[number].memory.orders
    orders.goes_elsewhere([OrderHome(digest, 3 - number, 7)])

    def put() -> int:
        outcomes: list[Any] = []
        item = NewOrdered.of(rig.item(), b"k", digest)
        keyed = Keyed(0, Dedup(digest, 0), item, lane, 7)
        call, request = EnqueueCall(1, outcomes.extend), idl.EnqueueRequest("test", [])
        lone.enqueue_keyed(call, [keyed], request, rig.now_ms, rig.now_ms + 5_000)
        rig.settle()
        while soon:
            soon.pop(0)()
            rig.settle()
        return int(outcomes[0])

    stored = put()
    assert shard_of(stored) == 3 - number
    for item_id in (old, stored):
        rig.operate(item_id, item_ops.delete)
        rig.settle()
    assert shard_of(put()) == number
    assert not orders.elsewhere
