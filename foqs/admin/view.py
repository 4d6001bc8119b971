"""The admin port's read-only view of a host."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.admin.readiness import assigned, notes, unjoined, unready, unserved
from foqs.peers.membership_agent import MembershipAgent
from foqs.server.node import Node
from foqs.shardmgr.lifecycle import ShardState


@dataclass(frozen=True, slots=True)
class View:
    """A host. `seat` is None without a cluster; `root` is the cluster's node in ZooKeeper. For the event loop only."""

    id: str
    node: Node
    seat: MembershipAgent | None
    root: str = ""

    def wanted(self) -> list[int]:
        """Return the shards of this host."""
        if self.seat is None:
            return sorted(self.node.engine.shards)
        if self.seat.twin(self.node.address) is not None:
            return []  # the other process with this id has them
        return assigned(self.id, self.seat.facts)

    def unreachable(self) -> set[int]:
        """Return the shards of this host whose database does not answer it, or takes no writes."""
        return self.node.away().intersection(self.wanted())

    def notes(self) -> list[str]:
        """Return what a ready host lacks: shards that are not served, and the session."""
        node, seat, clock = self.node, self.seat, self.node.runner.clock_note
        found = notes(
            self.wanted(),
            self._states(),
            unreachable=self.unreachable(),
            read_only=node.read_only,
            cut_off=self._cut_off(),
            session=seat.state if seat is not None else None,
        )
        return [*([f"clock: {clock}"] if clock else []), *found]

    def unserved(self) -> int:
        """Return how many shards this host does not serve although their database answers a host."""
        return unserved(self.wanted(), self._states(), self.unreachable(), self._cut_off())

    def _states(self) -> dict[int, ShardState]:
        return {number: shard.state for number, shard in self.node.engine.shards.items()}

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
