"""An estimate of how much more a cluster can do, from what its hosts measured in the last half minute. Pure.

It is linear in the load: with more load, requests and transactions have more items, so each of these costs less. So the
truth is rather above the estimate than below. docs/run/capacity.md describes the method, and how well it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from foqs.counters import BatchSums
from foqs.figures import HostStatus

LEAST_BUSY = 0.02
"""An event loop that uses, and waits for, less of a processor measures mostly its own beat."""
LEAST_RATE = 5.0
"""Items a second. Of less, nothing follows."""
_LEAST_BATCHES = 10


class Capacity(NamedTuple):
    """About `more_per_s` items a second more at the present mix, limited by `limit`; `now_per_s` are done now."""

    now_per_s: float
    more_per_s: float
    limit: str


def estimate(hosts: Iterable[HostStatus]) -> Capacity | None:
    """Return the estimate; None if the hosts do too little to measure it.

    The load of all parts grows in the same proportion, up to the first part that is full.
    """
    now_per_s, limits, measured = 0.0, list[tuple[float, str]](), False
    for host in hosts:
        now_per_s += host.items_per_s
        if host.items_per_s < LEAST_RATE:
            continue
        waiting = host.loop_waiting or 0.0
        used = host.loop_busy + waiting
        part = "the processors of the machine" if waiting > host.loop_busy else "the event loop"
        measured = measured or used >= LEAST_BUSY
        limits.append((1 / max(used, LEAST_BUSY), f"{part} of {host.host}"))
        limits += [
            (shard.growth, f"the database of shard {shard.shard}") for shard in host.shards if shard.growth is not None
        ]
    if not measured:
        return None
    growth, limit = min(limits)
    return Capacity(now_per_s, now_per_s * max(0.0, growth - 1), limit)


def shard_growth(sums: BatchSums, window_s: float, batch_rows: int) -> float | None:
    """Return how many times the rate of rows of a window its database could write in transactions of `batch_rows`; None
    if it had too few transactions.

    The time of a transaction is a line over its rows, by least squares. Where the sizes differ too little for a line, a
    row costs its share of the time: that is the worst case.
    """
    count, rows, seconds, squares, products, _ = sums
    if count < _LEAST_BATCHES or rows <= 0 or seconds <= 0:
        return None
    spread = count * squares - rows * rows
    each_s = (count * products - rows * seconds) / spread if spread > 0 else seconds / rows
    each_s = min(max(each_s, 0.0), seconds / rows)
    fixed_s = (seconds - each_s * rows) / count
    full_s = fixed_s + each_s * batch_rows
    return max(1.0, batch_rows / full_s * window_s / rows)
