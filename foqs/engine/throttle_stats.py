"""What one host knows of a namespace's throttle keys, for GetThrottles."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from foqs.engine.throttling import Key, Throttling
from foqs.quota import THROTTLE

_FLOWS = 10_000
"""Flows of one host whose items are counted for an answer."""


class KeyStats(NamedTuple):
    """Flows of a key that are parked and their items, the longest time since when one is parked, and deliveries over a
    shadow throttle. `tokens`: in the bucket, None on a host that does not coordinate the key."""

    parked_flows: int = 0
    parked_items: int = 0
    longest_wait_ms: int = 0
    shadow_held: int = 0
    tokens: float | None = None


def of_namespace(
    throttling: Throttling, tokens: dict[str, float], ns: str, prefix: str, after: str, limit: int, now_ms: int
) -> dict[str, KeyStats]:
    """Return the first keys behind `after`, in order, that begin with `prefix`: those in use here, and those in
    `tokens`, which this host coordinates. `now_ms` is monotonic."""
    used = {bounded[1][len(THROTTLE) :]: key for bounded, key in throttling.keys.items() if bounded[0] == ns}
    names = {name for name in (*used, *tokens) if name > after and name.startswith(prefix)}
    found: dict[str, KeyStats] = {}
    flows = _FLOWS
    for name in nsmallest(limit, names):
        one = KeyStats(tokens=tokens.get(name))
        if name in used:
            one = _of_key(used[name], one.tokens, flows, now_ms)
            flows = max(0, flows - one.parked_flows)
        found[name] = one
    return found


def _of_key(key: Key, tokens: float | None, most_flows: int, now_ms: int) -> KeyStats:
    flows = items = wait_ms = 0
    for _, parking in key.parked():
        items += sum([flow.ready for flow in islice(parking, max(0, most_flows - flows))])
        flows += len(parking)
        since_ms = parking.since_ms()
        wait_ms = max(wait_ms, 0 if since_ms is None else now_ms - since_ms)
    return KeyStats(flows, items, wait_ms, key.shadow_held, tokens)
