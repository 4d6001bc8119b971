"""Readiness of a host: the read-only view of the admin port, and the decisions about what the host lacks.

A host is ready if it listens, is registered in its cluster, and can route. The decisions are pure: they get the state
of the host and the facts of its cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from foqs.counters import Histogram
from foqs.peers.fact_keeper import FactKeeper
from foqs.peers.membership_agent import MembershipAgent
from foqs.server.node import Node
from foqs.shardmgr.continuity import Finding
from foqs.shardmgr.facts import Facts, HostFact, Session, ShardUse
from foqs.shardmgr.lifecycle import ShardState

_MOST = 100
HELD = {
    Finding.LOST: "ZooKeeper lost its data, and the hosts write back what they know",
    Finding.RESTORED: "ZooKeeper has an older copy of its data, and the hosts write back what they know",
    Finding.MERGE: "ZooKeeper lost data, and the hosts write back what they know",
    Finding.FOREIGN: "ZooKeeper has the data of another cluster (`zookeeper.other_cluster` in the log)",
}


def assigned(host: str, facts: Facts) -> list[int]:
    """Return the numbers of the shards that the assignment gives a host, without disabled and removed shards: the
    controller removes these from the assignment later."""
    mine = [shard for shard, assigned_to in facts.assignment.hosts.items() if assigned_to == host]
    return sorted(shard for shard in mine if shard in facts.shards and facts.shards[shard].use is not ShardUse.DISABLED)


def unready(*, listens: bool, stopping: bool) -> list[str]:
    """Return a line for each part that a host without a cluster lacks; the host is ready if there is none.

    Shards do not count: while they open, or while their database is away, the host answers requests for its other
    shards. During a rollout all hosts open shards in each step, and a balancer would find no host at all.
    """
    if stopping:
        return ["stopping"]
    return [] if listens else ["not listening yet"]


def notes(
    wanted: Collection[int],
    states: Mapping[int, ShardState],
    *,
    unreachable: Collection[int] = (),
    read_only: Collection[int] = (),
    cut_off: Collection[int] = (),
    session: Session | None = None,
    held: Finding | None = None,
) -> list[str]:
    """Return a line for each part that a ready host lacks.

    `wanted` are the host's shards. The database of an `unreachable` shard does not answer, or takes no writes
    (`read_only`); the database of a `cut_off` shard answers another host. `session`: the state of ZooKeeper's session.
    `held`: why the host does not act on ZooKeeper's records.
    """
    found = []
    if held is not None:
        found.append(f"{HELD[held]}: the host keeps the shards that it has")
    if session is not None and session is not Session.CONNECTED:
        found.append(f"the session with ZooKeeper is {session.value}: the host keeps the shards that it has")
    for number in sorted({*wanted, *unreachable, *cut_off}):
        state = states.get(number, ShardState.ASSIGNED)
        if number in cut_off:
            found.append(f"shard {number}: this host cannot reach its database, another host can")
        elif number in read_only:
            found.append(f"shard {number}: its database is read-only: is it a replica, or no longer the primary?")
        elif number in unreachable:
            found.append(f"shard {number}: its database does not answer")
        elif state is not ShardState.SERVING:
            found.append(f"shard {number} is {state.value}")
    return _shortened(found)


def unserved(
    wanted: Collection[int], states: Mapping[int, ShardState], unreachable: Collection[int], cut_off: Collection[int]
) -> int:
    """Return how many shards this host does not serve although their database answers a host."""
    open_ = {number for number in wanted if states.get(number) is ShardState.SERVING or number in unreachable}
    return len((set(wanted) - open_).union(cut_off))


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more"]


def unjoined(facts: Facts, root: str, *, seen: bool, twin: HostFact | None = None) -> list[str]:
    """Return the parts that are missing before a host of a cluster can route requests.

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
            f"the cluster at {root} in ZooKeeper has no shard: check zookeeper.root, or add one with `foqs shards add`;"
            " if ZooKeeper lost its data: `foqs cluster import`"
        ]
    if facts.assignment.version < 0:
        return ["no shard of the cluster is assigned yet"]
    return []


@dataclass(frozen=True, slots=True)
class View:
    """A host. `seat` is None without a cluster; `root` is the cluster's node in ZooKeeper, and `round_trips` has the
    seconds of its requests to ZooKeeper. For the event loop only."""

    id: str
    node: Node
    seat: MembershipAgent | None
    root: str = ""
    round_trips: Histogram | None = None
    keeper: FactKeeper | None = None

    def cluster(self) -> dict[str, Any] | None:
        """Return what this host knows of its cluster, for `foqs doctor`."""
        if self.seat is None or self.keeper is None:
            return None
        return {
            "root": self.root,
            "session": self.seat.state.value if self.seat.state is not None else None,
            "held": self.keeper.hold.value if self.keeper.hold is not None else None,
            "shards": len(self.keeper.known.shards),
        }

    def wanted(self) -> list[int]:
        """Return the shards of this host."""
        if self.seat is None:
            return sorted(self.node.engine.state.shards)
        if self.seat.twin(self.node.address) is not None:
            return []  # the other process with this id has them
        return assigned(self.id, self.seat.facts)

    def unreachable(self) -> set[int]:
        """Return the shards of this host whose database does not answer it, or takes no writes."""
        return self.node.away().intersection(self.wanted())

    def notes(self) -> list[str]:
        """Return what a ready host lacks: shards that are not served, the session, and a usable new certificate."""
        node, seat, clock = self.node, self.seat, self.node.runner.clock_note
        found = notes(
            self.wanted(),
            self._states(),
            unreachable=self.unreachable(),
            read_only=node.read_only,
            cut_off=self._cut_off(),
            session=seat.state if seat is not None else None,
            held=self.keeper.hold if self.keeper is not None else None,
        )
        said = {"clock": clock, "tls": node.certificates.note}
        return [*(f"{about}: {note}" for about, note in said.items() if note), *found]

    def unserved(self) -> int:
        """Return how many shards this host does not serve although their database answers a host."""
        return unserved(self.wanted(), self._states(), self.unreachable(), self._cut_off())

    def _states(self) -> dict[int, ShardState]:
        return {number: shard.owner.state for number, shard in self.node.engine.state.shards.items()}

    def _cut_off(self) -> frozenset[int]:
        return self.seat.cut_off if self.seat is not None else frozenset()

    def missing(self) -> list[str]:
        """Return the reasons why the host is not ready; none if it is."""
        node, seat = self.node, self.seat
        leaving = seat is not None and seat.fact is not None and seat.fact.leaving
        stopping = node.stopping or leaving
        missing = unready(listens=node.server.serves, stopping=stopping)
        if seat is not None and not stopping:
            missing += unjoined(seat.facts, self.root, seen=seat.seen, twin=seat.twin(node.address))
        return missing
