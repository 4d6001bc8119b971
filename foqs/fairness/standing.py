"""How many turns of other tenants come before a tenant's next one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import ceil, floor
from typing import Any, NamedTuple

from foqs.fairness.flow import Tenant
from foqs.fairness.turns import ITEMS, Turns

_MOST = 10_000
"""Tenants and newcomers that are looked at; the rest is taken to be like them."""


class Standing(NamedTuple):
    """About so many `turns` of other tenants come first, or at least one of each where items do not cost the same.
    `share` of all turns are the tenant's. `urgent`: tenants with more urgent items go first, whose turns are not
    counted."""

    turns: int
    share: float
    urgent: bool


def standing_of(tenant: Tenant[Any], turns: Turns[Any]) -> Standing | None:
    """Return where a tenant of `turns` stands if no other tenant arrives or ends; None if it is not queued."""
    if not tenant.seq:
        return None
    level = tenant.level
    heap = [(start, seq, other) for start, seq, other in level.heap[:_MOST] if other.seq == seq]
    scale = max(1.0, len(level.heap) / _MOST)
    newcomers = [(seq, other) for seq, other in islice(level.newcomers, _MOST) if other.seq == seq]
    more = max(1.0, len(level.newcomers) / _MOST)
    if tenant.newcomer:  # every second turn is a newcomer's
        places = (at for at, (seq, _) in enumerate(newcomers) if seq == tenant.seq)
        place = next(places, len(level.newcomers))  # behind those that are looked at: the most that it may be
        count = 2 * place + (level.took_newcomer and bool(heap))
    else:
        most = 1 << 62 if turns.unit == ITEMS else 1
        count = int(scale * sum(min(most, _before(tenant, start, seq, other)) for start, seq, other in heap))
        new = int(more * sum(min(most, max(1, _before(tenant, level.now, seq, other))) for seq, other in newcomers))
        count += min(new, count + (not level.took_newcomer))
    weights = scale * _weights(other for _, _, other in heap) + more * _weights(other for _, other in newcomers)
    first = next(iter(turns.next_up(1)), tenant)
    return Standing(count, tenant.weight / max(weights, tenant.weight), first.level.rank < level.rank)


def _before(tenant: Tenant[Any], start: float, seq: int, other: Tenant[Any]) -> int:
    """Return how many turns the other tenant has from `start` on before the next one of `tenant`."""
    turns = (tenant.start - start) * other.weight
    if other is tenant or turns < 0:
        return 0
    return floor(turns) + 1 if seq < tenant.seq else ceil(turns)


def _weights(tenants: Iterable[Tenant[Any]]) -> float:
    return sum(tenant.weight for tenant in tenants)
