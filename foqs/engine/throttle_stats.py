"""What one host knows of a namespace's throttle keys, for GetThrottles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from foqs.engine import turns
from foqs.engine.state import State
from foqs.engine.throttling import Key
from foqs.quota import THROTTLE, Bounded

_FLOWS = 10_000
"""Flows of one host whose items are counted for an answer."""
_KEYS = 2_000
"""Keys that are looked at in one turn of the event loop."""


class KeyStats(NamedTuple):
    """Flows of a key that are parked and their items, the longest time since when one is parked, and deliveries over a
    shadow throttle. `tokens`: in the bucket, None on a host that does not coordinate the key."""

    parked_flows: int = 0
    parked_items: int = 0
    longest_wait_ms: int = 0
    shadow_held: int = 0
    tokens: float | None = None


class Coordinated(NamedTuple):
    """The quotas and throttle keys that this host coordinates, and the tokens in the bucket of each, None if it is
    forgotten by now."""

    keys: Sequence[Bounded]
    tokens_of: Callable[[Bounded], float | None]


def of_namespace(
    state: State,
    coordinated: Coordinated,
    ns: str,
    prefix: str,
    after: str,
    limit: int,
    done: Callable[[dict[str, KeyStats]], None],
) -> None:
    """Report the first keys behind `after`, in order, that begin with `prefix`: those in use here, and those that this
    host coordinates."""
    turns.begin(state, _search(state, coordinated, ns, prefix, after, limit, done))


def _search(
    state: State,
    coordinated: Coordinated,
    ns: str,
    prefix: str,
    after: str,
    limit: int,
    done: Callable[[dict[str, KeyStats]], None],
) -> Iterator[None]:
    used, begin = state.throttling.keys, THROTTLE + prefix
    first: list[str] = []
    for keys in (list(used), coordinated.keys):
        for at in range(0, len(keys), _KEYS):
            if at:
                yield
            part = [key[1] for key in keys[at : at + _KEYS] if key[0] == ns and key[1].startswith(begin)]
            names = {name for name in part if name > THROTTLE + after}
            first = sorted({*first, *names})[:limit] if names else first
    found: dict[str, KeyStats] = {}
    flows, now_ms = _FLOWS, state.throttling.monotonic_ms()
    for name in first:
        tokens, key = coordinated.tokens_of((ns, name)), used.get((ns, name))
        one = KeyStats(tokens=tokens) if key is None else _of_key(key, tokens, flows, now_ms)
        flows = max(0, flows - one.parked_flows)
        found[name[len(THROTTLE) :]] = one
    done(found)


def _of_key(key: Key, tokens: float | None, most_flows: int, now_ms: int) -> KeyStats:
    flows = items = wait_ms = 0
    for _, parking in key.parked():
        if flows < most_flows:
            items += sum([flow.ready for flow in islice(parking, most_flows - flows)])
        flows += len(parking)
        since_ms = parking.since_ms()
        wait_ms = max(wait_ms, 0 if since_ms is None else now_ms - since_ms)
    return KeyStats(flows, items, wait_ms, key.shadow_held, tokens)
