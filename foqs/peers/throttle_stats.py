"""GetThrottles of a cluster: hosts report the keys whose flows they have, and those that they coordinate."""

from __future__ import annotations

from typing import Any

from foqs.engine.stats import KeyStats

Reported = dict[str, KeyStats]


class ThrottleReports:
    """The stats of this host by key, to which `add` adds the answer of another one. `coordinators` has the address of
    each key's coordinator; this host is at `address`."""

    def __init__(self, here: Reported, address: str) -> None:
        self.stats = here
        self.coordinators = {key: address for key, one in here.items() if (one.tokens, one.taken) != (None, None)}

    def add(self, _address: str, response: Any) -> None:
        for one in response.throttles or ():
            self._add(one)

    def _add(self, one: Any) -> None:
        known = self.stats.get(one.key) or KeyStats()
        if (one.tokens, one.taken) != (None, None):
            self.coordinators[one.key] = one.coordinator or ""
        self.stats[one.key] = KeyStats(
            known.parked_flows + (one.parked_flows or 0),
            known.parked_items + (one.parked_items or 0),
            max(known.longest_wait_ms, one.longest_wait_ms or 0),
            known.shadow_held + (one.shadow_held or 0),
            known.tokens if one.tokens is None else one.tokens,
            known.taken if one.taken is None else one.taken,
            known.free if one.free is None else one.free,
            known.overage + (one.overage or 0),
            known.reclaimed + (one.reclaimed or 0),
        )
