"""Whether a host serves what it is to serve: a pure decision on its state and on the facts of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from foqs.shardmgr.facts import Facts, HostFact
from foqs.shardmgr.lifecycle import ShardState

_MOST = 100


def assigned(host: str, facts: Facts) -> list[int]:
    """Shards that a host of a cluster is to serve, by number."""
    return sorted(shard for shard, assigned_to in facts.assignment.hosts.items() if assigned_to == host)


def unready(
    wanted: Collection[int],
    states: Mapping[int, ShardState],
    *,
    listens: bool,
    stopping: bool,
    unreachable: Collection[int] = (),
    cut_off: Collection[int] = (),
) -> list[str]:
    """What is missing, a line each; nothing: the host is ready. `wanted` are the shards it is to serve. Those whose
    database is `unreachable` are not missing, as no other host could serve them; unless another host reaches that
    database (`cut_off`)."""
    if stopping:
        return ["stopping"]
    missing = [] if listens else ["not listening yet"]
    for number in wanted:
        state = states.get(number, ShardState.ASSIGNED)
        if state is not ShardState.SERVING and number not in unreachable:
            missing.append(f"shard {number} is {state.value}")
    missing += [f"shard {number}: this host cannot reach its database, another host can" for number in sorted(cut_off)]
    return _shortened(missing)


def notes(unreachable: Collection[int]) -> list[str]:
    """What a ready host lacks through no fault of its own, a line each."""
    return _shortened([f"shard {number}: its database cannot be reached" for number in sorted(unreachable)])


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more"]


def unjoined(facts: Facts, root: str, *, seen: bool, twin: HostFact | None = None) -> list[str]:
    """What is missing before a host of a cluster can know which shards are its own. `root` is the
    cluster's node in ZooKeeper, `twin` another process that has the host's id."""
    if twin is not None:
        return [f"waiting for another host {twin.id}, at {twin.address}, to end: give each host its own server.id"]
    if not seen:
        return ["not among the hosts of the cluster"]
    if not facts.shards:
        return [f"no shard at {root} in ZooKeeper: is zookeeper.root right? `foqs shards add` adds a shard"]
    if facts.assignment.version < 0:
        return ["no shard of the cluster is assigned yet"]
    return []
