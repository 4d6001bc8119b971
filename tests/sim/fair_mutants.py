"""Mutants of the turns of tenants: see test_mutants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.engine.fair_dequeue import TenantDequeue
from foqs.fairness.tenants import IDLE, Level, Tenant
from foqs.fairness.turns import Turns
from tests.sim.mutants import Patch, mutant


def _entered(patch: Patch, change: Callable[[Tenant[Any], float], None]) -> None:
    def enter(turns: Turns[Any], tenant: Tenant[Any], **how: Any) -> None:
        away, start = tenant.away, tenant.start
        original(turns, tenant, **how)
        if away == IDLE and tenant.seq:
            turns._withdraw(tenant)
            change(tenant, start)
            turns._queue(tenant)

    original = Turns.enter
    patch.setattr(Turns, "enter", enter)


@mutant
def an_idle_tenant_keeps_its_start(patch: Patch) -> None:
    """It catches up on all that it did not ask for."""

    def keep(tenant: Tenant[Any], start: float) -> None:
        tenant.start, tenant.newcomer = start, False

    _entered(patch, keep)


@mutant
def a_tenant_that_returns_is_no_newcomer(patch: Patch) -> None:
    """It waits for an item of each other tenant."""

    def queue(tenant: Tenant[Any], start: float) -> None:
        tenant.newcomer = False

    _entered(patch, queue)


@mutant
def newcomers_always_go_first(patch: Patch) -> None:
    """A flood of them starves older tenants."""

    def first(level: Level[Any]) -> Any:
        level.took_newcomer = False
        return original(level)

    original = Level.first
    patch.setattr(Level, "first", first)


@mutant
def every_tenant_has_the_same_weight(patch: Patch) -> None:
    def charge(turns: Turns[Any], tenant: Tenant[Any], cost: float) -> None:
        original(turns, tenant, cost * tenant.weight)

    original = Turns.charge
    patch.setattr(Turns, "charge", charge)


@mutant
def urgent_items_of_a_shard_that_returns_wait_for_others(patch: Patch) -> None:
    """Their tenant took turns without them, and is not looked at again."""

    def open_(round_: TenantDequeue, *about: Any) -> Any:
        taking = original(round_, *about)
        round_._turns.incomplete.clear()
        return taking

    original = TenantDequeue._open
    patch.setattr(TenantDequeue, "_open", open_)
