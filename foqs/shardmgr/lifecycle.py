"""The life of a shard on a host, as a table.

    assigned -> opening -> serving -> draining -> closed
                   |           |          |
                   +-----------+----------+--> closed (fenced, refused, or given up)

`closed -> assigned` begins again: a standby waits for the shard's lock to become free.
"""

from __future__ import annotations

from enum import Enum


class ShardState(Enum):
    ASSIGNED = "assigned"
    OPENING = "opening"
    SERVING = "serving"
    DRAINING = "draining"
    CLOSED = "closed"


_NEXT: dict[ShardState, frozenset[ShardState]] = {
    ShardState.ASSIGNED: frozenset({ShardState.OPENING, ShardState.CLOSED}),
    ShardState.OPENING: frozenset({ShardState.SERVING, ShardState.ASSIGNED, ShardState.CLOSED}),
    ShardState.SERVING: frozenset({ShardState.DRAINING, ShardState.CLOSED}),
    ShardState.DRAINING: frozenset({ShardState.CLOSED}),
    ShardState.CLOSED: frozenset({ShardState.ASSIGNED}),
}


def moved(state: ShardState, to: ShardState) -> ShardState:
    """Return `to` if the table allows the step from `state`; ValueError otherwise."""
    if to not in _NEXT[state]:
        raise ValueError(f"a shard that is {state.value} cannot become {to.value}")
    return to
