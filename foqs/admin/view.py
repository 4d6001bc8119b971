"""The admin port's read-only view of a host."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.admin.readiness import assigned, notes, unjoined, unready
from foqs.peers.membership_agent import MembershipAgent
from foqs.server.node import Node


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
        """Return the shards of this host whose database does not answer it."""
        lost = {number for number, shard in self.node.engine.shards.items() if shard.lost}
        return (self.node.unreachable | lost).intersection(self.wanted())

    def notes(self) -> list[str]:
        clock = self.node.runner.clock_note
        return [*([f"clock: {clock}"] if clock else []), *notes(self.unreachable(), self.node.read_only)]

    def missing(self) -> list[str]:
        """Return the reasons why the host is not ready; none if it is."""
        node, seat = self.node, self.seat
        leaving = seat is not None and seat.fact is not None and seat.fact.leaving
        stopping = node.stopping or leaving
        states = {number: shard.state for number, shard in node.engine.shards.items()}
        missing = unready(
            self.wanted(),
            states,
            listens=node.server.serves,
            stopping=stopping,
            unreachable=self.unreachable(),
            cut_off=seat.cut_off if seat is not None else (),
        )
        if seat is not None and not stopping:
            missing += unjoined(seat.facts, self.root, seen=seat.seen, twin=seat.twin(node.address))
        return missing
