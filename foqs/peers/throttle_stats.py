"""GetThrottles of a cluster: hosts report the keys whose flows they have, and those that they coordinate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from foqs.engine.throttle_stats import KeyStats
from foqs.errors import FoqsError

Reported = dict[str, KeyStats]
Done = Callable[[Reported, dict[str, str], list[str]], None]
"""(stats of all hosts by key, the address of each key's coordinator, addresses of hosts that did not answer)."""


class ThrottleReports:
    """Adds the answers of the hosts at `addresses` to those of this one, and calls `done` when it has them."""

    def __init__(self, here: Reported, address: str, addresses: Collection[str], done: Done) -> None:
        self._stats = here
        self._coordinators = {key: address for key, one in here.items() if one.tokens is not None}
        self._left = len(addresses)
        self._missing: list[str] = []
        self._done = done
        if not addresses:
            self._end()

    def answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        """Take the answer of a host."""
        if error is not None:
            self._missing.append(address)
        else:
            for one in response.throttles or ():
                self._add(one)
        self._left -= 1
        if not self._left:
            self._end()

    def _add(self, one: Any) -> None:
        known = self._stats.get(one.key) or KeyStats()
        if one.tokens is not None:
            self._coordinators[one.key] = one.coordinator or ""
        self._stats[one.key] = KeyStats(
            known.parked_flows + (one.parked_flows or 0),
            known.parked_items + (one.parked_items or 0),
            max(known.longest_wait_ms, one.longest_wait_ms or 0),
            known.shadow_held + (one.shadow_held or 0),
            known.tokens if one.tokens is None else one.tokens,
        )

    def _end(self) -> None:
        self._done(self._stats, self._coordinators, sorted(self._missing))
