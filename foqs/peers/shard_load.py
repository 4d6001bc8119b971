"""How busy each shard is, for the host that was elected to balance them: every host is asked now and then how many rows
it has changed in each of its shards. Nothing of it goes through ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.peers.ready_subscriber import Ask

_TIMEOUT_MS = 2_000
_KEPT = 0.5
"""Of the rate before: a burst between two questions is no reason to move a shard."""


class _Count(NamedTuple):
    address: str
    rows: int
    at_ms: int


class ShardLoads:
    """`now_ms` need not be the time of day, but must not go back."""

    def __init__(self, ask: Ask, now_ms: Callable[[], int]) -> None:
        self._ask = ask
        self._now_ms = now_ms
        self._counts: dict[int, _Count] = {}
        self._rates: dict[int, float] = {}

    @property
    def measured(self) -> Mapping[int, float]:
        """Rows a second, of the shards of which it is known."""
        return self._rates

    def ask(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._ask(
                address, "GetServerInfo", idl.GetServerInfoRequest(), _TIMEOUT_MS, partial(self._answered, address)
            )

    def forget(self) -> None:
        """Another host balances."""
        self._counts.clear()
        self._rates.clear()

    def _answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            return
        now_ms = self._now_ms()
        for shard, rows in (response.shard_rows or {}).items():
            before, self._counts[shard] = self._counts.get(shard), _Count(address, rows, now_ms)
            # A count that is lower, or another host's, began when the shard was opened again.
            if before is None or before.address != address or rows < before.rows or now_ms <= before.at_ms:
                continue
            rate = (rows - before.rows) * 1_000 / (now_ms - before.at_ms)
            self._rates[shard] = _KEPT * self._rates.get(shard, rate) + (1 - _KEPT) * rate
