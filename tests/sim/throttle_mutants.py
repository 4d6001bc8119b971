"""Mutants of throttles: see test_mutants.py."""

from __future__ import annotations

from typing import Any

from foqs.bounds import NANO, Quota
from foqs.engine.concurrency import AnyGate, Parked
from foqs.engine.throttling import Throttling
from foqs.fairness.tenants import PARKED, Tenant
from foqs.fairness.turns import Turns
from foqs.item import Item
from foqs.limits.bucket import Bucket
from foqs.limits.throttle_key import ThrottleKey
from tests.sim.mutants import Patch, mutant


@mutant
def a_tenant_that_was_parked_keeps_its_start(patch: Patch) -> None:
    """It catches up on what its throttles held."""

    def enter(turns: Turns[Any], tenant: Tenant[Any], **how: Any) -> None:
        away, start = tenant.away, tenant.start
        original(turns, tenant, **how)
        if away == PARKED and tenant.seq:
            turns._withdraw(tenant)
            tenant.start, tenant.newcomer = start, False
            turns._queue(tenant)

    original = Turns.enter
    patch.setattr(Turns, "enter", enter)


@mutant
def parked_flows_are_never_woken(patch: Patch) -> None:
    patch.setattr(ThrottleKey, "wake", lambda *about: [])


@mutant
def a_flow_that_parks_on_another_key_keeps_its_wake(patch: Patch) -> None:
    patch.setattr(ThrottleKey, "holds_up", lambda *about: [])


@mutant
def tokens_are_taken_before_all_keys_were_looked_at(patch: Patch) -> None:
    """Those of the first keys are lost when a later key is dry."""

    def take(throttling: Throttling, flow: Parked, item: Item) -> AnyGate | None:
        dry = original(throttling, flow, item)
        at_ms = throttling.monotonic_ms()
        if isinstance(dry, ThrottleKey):
            for key in flow.rules.keys[: flow.rules.keys.index(dry)]:
                key.settled(flow)
                key.spend(at_ms)
                throttling.agenda.schedule(key, at_ms)
        return dry

    original = Throttling.take
    patch.setattr(Throttling, "take", take)


@mutant
def a_new_coordinator_begins_with_a_full_bucket(patch: Patch) -> None:
    def full(bucket: Bucket, quota: Quota, empty_at_ms: int) -> None:
        original(bucket, quota, empty_at_ms)
        bucket._level = quota.burst * NANO

    original = Bucket.__init__
    patch.setattr(Bucket, "__init__", full)


@mutant
def throttles_are_kept_over_a_version(patch: Patch) -> None:
    patch.setattr(Throttling, "changed", lambda throttling, ns: None)
