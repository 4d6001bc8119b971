"""Whether a host serves what it is to serve: a pure decision on its state and on the facts of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from foqs.shardmgr.facts import Facts
from foqs.shardmgr.lifecycle import ShardState

_MOST = 100


def assigned(host: str, facts: Facts) -> list[int]:
    """Shards that a host of a cluster is to serve, by number."""
    return sorted(shard for shard, assigned_to in facts.assignment.hosts.items() if assigned_to == host)


def unready(wanted: Collection[int], states: Mapping[int, ShardState], *, listens: bool, stopping: bool) -> list[str]:
    """What is missing, a line each; nothing: the host is ready. `wanted` are the shards it is to serve."""
    if stopping:
        return ["stopping"]
    missing = [] if listens else ["not listening yet"]
    for number in wanted:
        state = states.get(number, ShardState.ASSIGNED)
        if state is not ShardState.SERVING:
            missing.append(f"shard {number} is {state.value}")
    if len(missing) > _MOST:
        missing[_MOST:] = [f"and {len(missing) - _MOST} more"]
    return missing


def unjoined(facts: Facts, *, seen: bool) -> list[str]:
    """What is missing before a host of a cluster can know which shards are its own."""
    if not seen:
        return ["not among the hosts of the cluster"]
    if facts.shards and facts.assignment.version < 0:
        return ["no shard of the cluster is assigned yet"]
    return []
