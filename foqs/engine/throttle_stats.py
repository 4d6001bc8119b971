"""What one host knows of a namespace's throttle keys, for GetThrottles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from foqs.bounds import THROTTLE, Bounded
from foqs.engine import turns
from foqs.engine.demand import AnyGate
from foqs.engine.state import State
from foqs.limits.lease_slots import Slots

_FLOWS = 10_000
"""Flows of one host whose items are counted for an answer."""
_KEYS = 2_000
"""Keys that are looked at in one turn of the event loop."""


class KeyStats(NamedTuple):
    """Flows of a key that are parked and their items, the longest time since when one is parked, and deliveries over a
    shadow throttle. `tokens`: in the bucket; `taken`: live leases, and `free`: how many more there may be. These three
    are None on a host that does not coordinate the key. `overage` and `reclaimed`: see ThrottleStats of the IDL."""

    parked_flows: int = 0
    parked_items: int = 0
    longest_wait_ms: int = 0
    shadow_held: int = 0
    tokens: float | None = None
    taken: int | None = None
    free: int | None = None
    overage: int = 0
    reclaimed: int = 0


class Coordinated(NamedTuple):
    """The quotas and throttle keys that this host coordinates, and the tokens in the bucket of each and its slots, None
    if it is forgotten by now."""

    keys: Sequence[Bounded]
    tokens_of: Callable[[Bounded], float | None]
    slots_of: Callable[[Bounded], Slots | None]


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
    used, begin, concurrency = state.throttling.keys, THROTTLE + prefix, state.throttling.concurrency
    first: list[str] = []
    for keys in (list(used), concurrency.keys(ns), coordinated.keys):
        for at in range(0, len(keys), _KEYS):
            if at:
                yield
            part = [key[1] for key in keys[at : at + _KEYS] if key[0] == ns and key[1].startswith(begin)]
            names = {name for name in part if name > THROTTLE + after}
            first = sorted({*first, *names})[:limit] if names else first
    found: dict[str, KeyStats] = {}
    flows, now_ms = _FLOWS, state.throttling.monotonic_ms()
    for name in first:
        bounded = (ns, name)
        key, gates, past = used.get(bounded), concurrency.gates(bounded), concurrency.past(bounded)
        slots = coordinated.slots_of(bounded)
        one = _of_gates([*gates, *([] if key is None else [key])], flows, now_ms)
        flows = max(0, flows - one.parked_flows)
        found[name[len(THROTTLE) :]] = one._replace(
            tokens=coordinated.tokens_of(bounded),
            taken=None if slots is None else slots.taken,
            free=None if slots is None else max(0, slots.limit - slots.taken),
            shadow_held=(key.shadow_held if key else 0) + (slots.shadow_held if slots else 0),
            overage=sum([gate.overage for gate in gates], past.overage),
            reclaimed=sum([gate.reclaimed for gate in gates], past.reclaimed + (slots.reclaimed if slots else 0)),
        )
    done(found)


def _of_gates(gates: Sequence[AnyGate], most_flows: int, now_ms: int) -> KeyStats:
    flows = items = wait_ms = 0
    for parking in [parking for gate in gates for _, parking in gate.parked()]:
        if flows < most_flows:
            items += sum([flow.ready for flow in islice(parking, most_flows - flows)])
        flows += len(parking)
        since_ms = parking.since_ms()
        wait_ms = max(wait_ms, 0 if since_ms is None else now_ms - since_ms)
    return KeyStats(flows, items, wait_ms)
