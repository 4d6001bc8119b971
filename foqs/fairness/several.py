"""The next turns of few tenants, found together: those that `Turns.first` and `Turns.charge` give one by one. Pure.

A tenant's turns are at its start, at its start + 1 / weight, and so on. So the next turns of all are the first of these
numbers in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from foqs.fairness.flow import Tenant

E = TypeVar("E")
Queue = Sequence[tuple[float, int, Tenant[Any]]]
"""(start, number of the entry, tenant)."""

_number = itemgetter(1)


class Given(NamedTuple):
    """The tenant is given so many items, the last of them at `last`. Then it starts at `start`."""

    tenant: Tenant[Any]
    items: int
    last: float
    start: float


def shares(queue: Queue, count: int) -> list[int]:
    """Return how many of the next `count` items each tenant gets at most. By rounding it may be one too few."""
    weights = sum([tenant.weight for _, _, tenant in queue])
    last = (count + sum([start * tenant.weight for start, _, tenant in queue])) / weights
    return [min(count, int((last - start) * tenant.weight) + 1) if start <= last else 0 for start, _, tenant in queue]


def next_turns(queue: Queue, items: Sequence[Sequence[E]], count: int) -> tuple[list[E], list[Given]]:
    """Return the items of the next turns, `count` at most, and what each tenant is given by them. `items` are the next
    ones of each tenant: nothing is known from the first turn on for which one of them has none."""
    turns: list[tuple[float, int, E]] = []
    starts_of: list[list[float]] = []
    known: list[tuple[float, int]] = []
    for (start, number, tenant), own in zip(queue, items, strict=True):
        starts = list(accumulate(repeat(1 / tenant.weight, len(own)), initial=start))
        starts_of.append(starts)
        known.append((starts[-1], number))
        turns += zip(starts, repeat(number), own)  # without the last start
    turns.sort()
    del turns[min(count, bisect_left(turns, min(known))) :]
    counts = Counter(map(_number, turns))
    given = [
        Given(tenant, counts[number], starts[counts[number] - 1], starts[counts[number]])
        for (_, number, tenant), starts in zip(queue, starts_of, strict=True)
    ]
    return [item for _, _, item in turns], given
