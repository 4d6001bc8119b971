"""The most urgent item of a topic that this host could deliver."""

from __future__ import annotations

from itertools import islice

from foqs.engine.state import State
from foqs.fairness.keys import TopicKey

_LANES = 100
"""Lanes of tenants that are looked at: those whose turns come first. A request may name 100 topics."""


def most_urgent(state: State, key: TopicKey, now_ms: int) -> int | None:
    """Return the lowest priority of the topic's ready items that are in memory and wait for no throttle, on healthy
    shards. None if there is no such item, or if priorities order the items of each tenant only."""
    topic = state.topics.get(key)
    if topic is None:
        return None
    if topic.turns is None:
        lanes = topic.lanes()
    elif state.policies.of(key).fair.scope == "topic":
        flows = (flow for tenant in topic.turns.next_up(_LANES) for flow in tenant.unparked)
        lanes = list(islice((lane for flow in flows for lane in flow.lanes), _LANES))
    else:
        return None
    windows = [(lane.window, lane.tenure.shard) for lane in lanes]
    return min(
        [
            window.entries[0][0]
            for window, shard in windows
            if window is not None and window.entries and shard is not None and shard.healthy(now_ms)
        ],
        default=None,
    )
