"""Decides if a host is ready: if it serves all its shards. Pure: from its state and the facts of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from foqs.shardmgr.facts import Facts, HostFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState

_MOST = 100


def assigned(host: str, facts: Facts) -> list[int]:
    """Return the numbers of the shards that the assignment gives a host. The controller has yet to write those out of
    it that were disabled or removed."""
    mine = [shard for shard, assigned_to in facts.assignment.hosts.items() if assigned_to == host]
    return sorted(shard for shard in mine if shard in facts.shards and facts.shards[shard].use is not ShardUse.DISABLED)


def unready(
    wanted: Collection[int],
    states: Mapping[int, ShardState],
    *,
    listens: bool,
    stopping: bool,
    unreachable: Collection[int] = (),
    cut_off: Collection[int] = (),
) -> list[str]:
    """Return a line for each missing part; the host is ready if there is none.

    `wanted` are the host's shards. A shard whose database is `unreachable` is not missing, because no other host could
    serve it, unless another host reaches that database (`cut_off`).
    """
    if stopping:
        return ["stopping"]
    missing = [] if listens else ["not listening yet"]
    for number in wanted:
        state = states.get(number, ShardState.ASSIGNED)
        if state is not ShardState.SERVING and number not in unreachable:
            missing.append(f"shard {number} is {state.value}")
    missing += [f"shard {number}: this host cannot reach its database, another host can" for number in sorted(cut_off)]
    return _shortened(missing)


def notes(unreachable: Collection[int], read_only: Collection[int] = ()) -> list[str]:
    """Return a line for each part that a ready host lacks because of a database. `read_only` are those of the
    `unreachable` shards whose database answers and takes no writes."""
    why = "its database does not answer", "its database is read-only: is it a replica, or no longer the primary?"
    return _shortened([f"shard {number}: {why[number in read_only]}" for number in sorted(unreachable)])


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more"]


def unjoined(facts: Facts, root: str, *, seen: bool, twin: HostFact | None = None) -> list[str]:
    """Return the parts that are missing before a host of a cluster knows its shards.

    `root` is the cluster's node in ZooKeeper; `twin` is another process with the same host id.
    """
    if twin is not None:
        return [
            f"another host at {twin.address} has the same id {twin.id}: stop it, or give each host its own server.id"
        ]
    if not seen:
        return ["not registered as a host of the cluster yet"]
    if not facts.shards:
        return [
            f"the cluster at {root} in ZooKeeper has no shard: check zookeeper.root, or add one with `foqs shards add`"
        ]
    if facts.assignment.version < 0:
        return ["no shard of the cluster is assigned yet"]
    return []
