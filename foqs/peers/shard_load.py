"""How busy each shard is, for the host that was elected to balance them: every host is asked now and then how many rows
it has changed in each of its shards. Nothing of it goes through ZooKeeper.

A shard whose database does not work changes no rows, and its work goes to other shards. Its host leaves it out of the
answer, and it keeps its share of the work: its load before, as a part of the mean load of all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.peers.ready_subscriber import Ask

_TIMEOUT_MS = 2_000
_KEPT = 0.5
"""Of the rate before: a burst between two questions is no reason to move a shard."""
_FRESH_MS = 500
"""`ShardLoads.measured` is computed again after this time: a cluster with many shards has many facts."""


class _Count(NamedTuple):
    address: str
    rows: int
    at_ms: int


class ShardLoads:
    """`now_ms` need not be the time of day, but must not go back.

    A rate counts when it is `lag_ms()` old: a database is silent for some time before its host says so.
    """

    def __init__(self, ask: Ask, now_ms: Callable[[], int], lag_ms: Callable[[], int]) -> None:
        self._ask = ask
        self._now_ms = now_ms
        self._lag_ms = lag_ms
        self._known: tuple[int, Mapping[int, float]] | None = None  # when `measured` was computed, and its value
        self._counts: dict[int, _Count] = {}
        self._rates: dict[int, list[tuple[int, float]]] = {}  # at which times they were measured, ascending
        self._silent: dict[int, float] = {}  # shards without a count, and their load before, in mean loads

    @property
    def measured(self) -> Mapping[int, float]:
        """Rows a second, of the shards of which it is known; of a silent shard the rate that it would have now."""
        now_ms = self._now_ms()
        if self._known is None or not 0 <= now_ms - self._known[0] < _FRESH_MS:
            self._known = now_ms, self._loads(now_ms - self._lag_ms())
        return self._known[1]

    def _loads(self, until_ms: int) -> Mapping[int, float]:
        rates = {shard: _last(past, until_ms) for shard, past in self._rates.items()}
        if not self._silent:
            return rates
        working = [rate for shard, rate in rates.items() if shard not in self._silent]
        shares = {shard: self._silent[shard] for shard in rates if shard in self._silent}
        left = len(rates) - sum(shares.values())
        if left <= 0 or not (total := sum(working)):
            return rates
        return rates | {shard: share * total / left for shard, share in shares.items()}

    def ask(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._ask(
                address, "GetServerInfo", idl.GetServerInfoRequest(), _TIMEOUT_MS, partial(self._answered, address)
            )

    def forget(self) -> None:
        """Another host balances."""
        self._counts.clear()
        self._rates.clear()
        self._silent.clear()
        self._known = None

    def _answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            return
        now_ms, counted = self._now_ms(), response.shard_rows or {}
        self._known = None
        for shard in [n for n, count in self._counts.items() if count.address == address and n not in counted]:
            self._fall_silent(shard)
        for shard, rows in counted.items():
            before, self._counts[shard] = self._counts.get(shard), _Count(address, rows, now_ms)
            # A count that is lower, or another host's, began when the shard was opened again.
            if before is None or before.address != address or rows < before.rows or now_ms <= before.at_ms:
                continue
            self._silent.pop(shard, None)
            rate, past = (rows - before.rows) * 1_000 / (now_ms - before.at_ms), self._rates.setdefault(shard, [])
            past.append((now_ms, _KEPT * past[-1][1] + (1 - _KEPT) * rate if past else rate))
            while len(past) > 1 and past[1][0] <= now_ms - self._lag_ms():
                del past[0]

    def _fall_silent(self, shard: int) -> None:
        """Note that a shard has lost its count. The next count after that begins a new rate."""
        del self._counts[shard]
        if shard in self._silent or shard not in self._rates:
            return
        now_ms = self._now_ms()
        rates = self._loads(now_ms - self._lag_ms())
        mean = sum(rates.values()) / len(rates)
        self._rates[shard] = [(now_ms, rates[shard])]
        self._silent[shard] = rates[shard] / mean if mean else 1.0


def _last(past: Sequence[tuple[int, float]], until_ms: int) -> float:
    """Return the last rate that was measured by that time; the first one if all are later."""
    rate = past[0][1]
    for at_ms, later in past:
        if at_ms <= until_ms:
            rate = later
    return rate
