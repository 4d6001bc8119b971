"""Mutants of tenants and throttle keys: see test_mutants.py."""

from __future__ import annotations

from typing import Any

from foqs.engine import batch_apply, dead_letters, item_ops
from foqs.engine.dead_letters import RedrivePage
from foqs.fairness.keys import lane_key, topic_key
from foqs.item import Move
from tests.sim.mutants import Patch, mutant


@mutant
def a_redriven_item_forgets_its_tenant(patch: Patch) -> None:
    def move(page: RedrivePage, *about: Any) -> Move:
        made = original(page, *about)
        return made._replace(lane=lane_key(topic_key(made.lane)))

    original = RedrivePage._move
    patch.setattr(dead_letters.RedrivePage, "_move", move)


@mutant
def a_dead_letter_forgets_its_throttle_keys(patch: Patch) -> None:
    patch.setattr(item_ops, "pack_throttles", lambda throttles: b"")


@mutant
def weights_in_memory_are_those_of_the_first_items(patch: Patch) -> None:
    def apply(shard: Any, batch: Any, *rest: Any) -> None:
        weights, batch.weights = batch.weights, {}
        original(shard, batch, *rest)
        batch.weights = weights

    original: Any = batch_apply._apply_transaction
    patch.setattr(batch_apply, "_apply_transaction", apply)
