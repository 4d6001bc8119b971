"""GetThrottles of a cluster: hosts report the keys whose flows they have, and those that they coordinate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.engine.throttle_stats import KeyStats

Reported = dict[str, KeyStats]
Done = Callable[[Reported, dict[str, str], list[str]], None]
"""(stats of all hosts by key, the address of each key's coordinator, addresses of hosts that did not answer)."""


class ThrottleReports:
    """The stats of this host, which is at `address`, to which `add` adds the answer of another one."""

    def __init__(self, here: Reported, address: str) -> None:
        self._stats = here
        self._coordinators = {key: address for key, one in here.items() if one.tokens is not None}

    def add(self, _address: str, response: Any) -> None:
        for one in response.throttles or ():
            self._add(one)

    def end(self, done: Done, missing: list[str]) -> None:
        """Call `done` with the sums."""
        done(self._stats, self._coordinators, missing)

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
