"""Mutants of limits on live leases: see test_mutants.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from foqs.engine.slot_book import LaneSlots
from foqs.peers.slot_coordinator import SlotCoordinator
from foqs.throttles.shard_slots import ShardSlots
from foqs.throttles.slots import SlotAsk, SlotGrant, Slots
from tests.sim.mutants import Patch, mutant


@mutant
def leases_are_counted_from_memory(patch: Patch) -> None:
    """A replaced owner, whose leases the next one has ended and given again, answers as well."""

    def count_here(coordinator: Any, keys: Any, shards: Collection[int], answer: Any) -> None:
        check = coordinator._owners.check
        coordinator._owners.check = lambda shard, then: then(True)
        original(coordinator, keys, shards, answer)
        coordinator._owners.check = check

    original = SlotCoordinator.count_here
    patch.setattr(SlotCoordinator, "count_here", count_here)


@mutant
def a_new_coordinator_lends_before_it_counted(patch: Patch) -> None:
    def begin(slots: Slots, limit: int, timeout_ms: int, shards: Iterable[int], now_ms: int) -> None:
        original(slots, limit, timeout_ms, (), now_ms)

    original = Slots.__init__
    patch.setattr(Slots, "__init__", begin)


@mutant
def an_account_is_kept_over_an_epoch(patch: Patch) -> None:
    """What the owner before had counts until the new owner's reports have higher numbers."""

    def take(slots: Slots, shard: int, epoch: int, number: int, *about: int) -> bool:
        loan = slots._loans.get(shard)
        if loan is not None and loan.number >= number:
            return False
        return original(slots, shard, epoch, number, *about)

    original = Slots._take
    patch.setattr(Slots, "_take", take)


@mutant
def leases_with_slots_are_written_later(patch: Patch) -> None:
    patch.setattr(LaneSlots, "commits", False)


@mutant
def the_late_grant_of_an_earlier_coordinator_is_taken(patch: Patch) -> None:
    def answered(gate: Any, ask: SlotAsk, grant: SlotGrant | None, now_ms: int) -> None:
        if grant is not None and gate._open is not ask:
            gate.has += grant.granted
        original(gate, ask, grant, now_ms)

    original: Callable[..., None] = ShardSlots.answered
    patch.setattr(ShardSlots, "answered", answered)


@mutant
def leases_over_a_new_limit_leave_their_slots(patch: Patch) -> None:
    def counts(gate: Any) -> None:
        original(gate)
        gate._tied = 0

    original: Callable[..., None] = ShardSlots.counts
    patch.setattr(ShardSlots, "counts", counts)


@mutant
def flows_without_a_slot_are_never_woken(patch: Patch) -> None:
    patch.setattr(ShardSlots, "wake", lambda *about: [])


@mutant
def freed_slots_stay_where_others_wait(patch: Patch) -> None:
    patch.setattr(ShardSlots, "hear", lambda *about: None)
    patch.setattr(Slots, "_warn", lambda *about: False)


@mutant
def shards_are_heard_in_any_order(patch: Patch) -> None:
    """A late report replaces a later one."""

    def take(slots: Slots, shard: int, epoch: int, number: int, *about: int) -> bool:
        slots._loans.pop(shard, None)
        return original(slots, shard, epoch, number, *about)

    original = Slots._take
    patch.setattr(Slots, "_take", take)
