"""Mutants of what a host does with a database that has no room; see `test_mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.engine import batch_apply, batch_build
from foqs.engine.shard import Shard
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.shard_queue import ShardQueue
from foqs.opened import Opened
from foqs.rows import Batch
from foqs.store.protocol import StoreFull
from tests.kernel.mutants import Mutants, constant
from tests.sim.memory_store import MemoryStore
from tests.sim.simulation import simulate

MANY = 60
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


put("acks_are_refused_with_the_rest", batch_apply, "needs_room", constant(True), "full", seed=19)


@around(ShardQueue, "put_aside", kind="full", seed=0)
def changes_that_are_put_aside_are_lost(original: Any, *args: Any) -> list[Any]:
    original(*args)
    return []


@around(MemoryStore, "commit", kind="full", seed=0)
def a_full_database_counts_as_committed(original: Any, store: MemoryStore, batch: Batch) -> None:
    try:
        original(store, batch)
    except StoreFull:
        return


@around(ShardOwner, "tried_room", kind="full", seed=17)
def a_full_database_is_not_asked_again(original: Any, owner: ShardOwner, now_ms: int, **more: Any) -> None:
    original(owner, now_ms, **more)
    if not more["fits"]:
        owner.full_until_ms = 1 << 60


@around(ShardQueue, "take_chunks", kind="full", seed=86)
def items_that_wait_for_a_full_database_are_forgotten(original: Any, *args: Any, **more: Any) -> list[Any]:
    original(*args, **more)
    return []


@around(Shard, "open", kind="full", seed=22)
def items_whose_rows_found_no_room_are_lost(original: Any, shard: Shard, memory: Any, opened: Opened, *a: Any) -> None:
    original(shard, memory, replace(opened, tail=()), *a)


put("rows_that_found_no_room_are_never_written", batch_build, "_take_index_rows", constant(None), "full", seed=22)
