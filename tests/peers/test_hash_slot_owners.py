"""Which slots are here and since when: opened, moved and lost shards, grace periods, and the two clocks."""

from types import SimpleNamespace
from typing import Any

import pytest

from foqs.limits.bucket import TTL_MS
from foqs.peers.coordinator import HashSlotOwner, HashSlotOwners
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import bits_of
from tests.support.timers import TestTimers

pytestmark = pytest.mark.memory

CONFIRM_MS = 1_000


class Shard:
    def __init__(self, number: int, *slots: int, epoch: int = 1) -> None:
        self.number, self.epoch = number, epoch
        self.state = ShardState.SERVING
        self.grace_until_ms = 0
        self.confirming: list[object] = []
        self.owner = self.queue = self
        self.hold(*slots)

    def hold(self, *slots: int) -> None:
        self.keys = SimpleNamespace(held=SimpleNamespace(bits=bits_of(slots)), takes_slot=lambda slot: slot in slots)

    def in_takeover_grace(self, now_ms: int) -> bool:
        return now_ms < self.grace_until_ms

    def confirmed(self, now_ms: int) -> bool:
        return True


class Owners(HashSlotOwners):
    def of(self, slot: int) -> tuple[HashSlotOwner, int]:
        """The owner of a slot, and since when the slot is here. Raises KeyError if it is not."""
        found: list[tuple[HashSlotOwner | None, int]] = []
        self.find(slot, lambda *answer: found.append(answer))
        ((owner, empty_at_ms),) = found
        if owner is None:
            raise KeyError(slot)
        return owner, empty_at_ms - TTL_MS


class Rig:
    def __init__(self, *shards: Shard) -> None:
        self.now_ms, self.monotonic_ms = 1_000_000, 0
        self.shards = list(shards)
        host = SimpleNamespace(confirm_ms=CONFIRM_MS)
        self.engine: Any = SimpleNamespace(
            state=SimpleNamespace(serving=self.shards, config=SimpleNamespace(host=host))
        )
        self.owners = Owners(self.engine, TestTimers(lambda: self.now_ms, lambda: self.monotonic_ms), lambda: None)

    def at(self, monotonic_ms: int) -> Owners:
        """The owners as observed at that time."""
        self.now_ms += monotonic_ms - self.monotonic_ms
        self.monotonic_ms = monotonic_ms
        self.owners.observe()
        return self.owners


def test_a_slot_is_here_since_its_shard_was_first_seen() -> None:
    rig = Rig(Shard(1, 5, epoch=3))
    assert rig.at(10).of(5) == (HashSlotOwner(1, 3), 10)
    assert rig.at(500).of(5) == (HashSlotOwner(1, 3), 10)
    with pytest.raises(KeyError):
        rig.owners.of(6)


def test_a_slot_that_arrives_counts_after_a_confirmation() -> None:
    """The owner of the source may be replaced, and not know yet."""
    rig = Rig(Shard(1, 5))
    rig.at(10)
    rig.shards[0].hold(5, 6)
    owners = rig.at(100)
    assert owners.of(6) == (HashSlotOwner(1, 1), 100 + CONFIRM_MS)
    assert owners.of(5) == (HashSlotOwner(1, 1), 10)


def test_a_slot_that_left_and_returned_begins_again() -> None:
    rig = Rig(Shard(1, 5, 6))
    rig.at(10)
    rig.shards[0].hold(6)
    with pytest.raises(KeyError):
        rig.at(20).of(5)
    rig.shards[0].hold(5, 6)
    assert rig.at(30).of(5)[1] == 30 + CONFIRM_MS
    assert rig.owners.of(6)[1] == 10


def test_another_epoch_is_another_owner() -> None:
    rig = Rig(Shard(1, 5))
    rig.at(10)
    rig.shards[0].epoch = 2
    assert rig.at(20).of(5) == (HashSlotOwner(1, 2), 20)


def test_a_slot_that_moves_within_the_host_begins_again() -> None:
    rig = Rig(Shard(1, 5), Shard(2, 6))
    rig.at(10)
    rig.shards[0].hold()
    rig.shards[1].hold(5, 6)
    assert rig.at(20).of(5) == (HashSlotOwner(2, 1), 20 + CONFIRM_MS)


@pytest.mark.parametrize("state", [ShardState.DRAINING, ShardState.CLOSED])
def test_a_shard_that_is_not_served_has_no_slots(state: ShardState) -> None:
    rig = Rig(Shard(1, 5))
    rig.at(10)
    rig.shards[0].state = state
    with pytest.raises(KeyError):
        rig.at(20).of(5)


def test_a_shard_in_its_grace_period_has_no_slots_yet() -> None:
    rig = Rig(Shard(1, 5))
    rig.shards[0].grace_until_ms = rig.now_ms + 100
    with pytest.raises(KeyError):
        rig.at(99).of(5)
    assert rig.at(100).of(5)[1] == 100


def test_a_clock_that_is_set_back_changes_no_time() -> None:
    rig = Rig(Shard(1, 5))
    rig.at(10)
    rig.now_ms -= 50_000
    rig.shards[0].hold(5, 6)
    owners = rig.at(20)
    assert (owners.of(5)[1], owners.of(6)[1]) == (10, 20 + CONFIRM_MS)
