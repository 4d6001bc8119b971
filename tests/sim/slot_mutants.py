"""Mutants of limits on live leases: see test_mutants.py. Those of messages are in tests/limits/test_slots.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from foqs.engine.concurrency import LaneSlots
from foqs.limits.lease_slots import ShardSlots, Slots
from tests.sim.mutants import Patch, mutant


@mutant
def a_new_coordinator_lends_before_it_counted(patch: Patch) -> None:
    def begin(slots: Slots, limit: int, timeout_ms: int, shards: Iterable[int], now_ms: int) -> None:
        original(slots, limit, timeout_ms, shards, now_ms)
        slots.unknown.clear()

    original = Slots.__init__
    patch.setattr(Slots, "__init__", begin)


@mutant
def leases_with_slots_are_written_later(patch: Patch) -> None:
    patch.setattr(LaneSlots, "commits", False)


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
