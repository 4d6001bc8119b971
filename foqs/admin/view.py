"""A host as its admin port sees it. Nothing here changes it."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.admin.readiness import assigned, notes, unjoined, unready
from foqs.host.node import Node
from foqs.host.seat import Seat


@dataclass(frozen=True, slots=True)
class View:
    """`seat` is None on a host that is alone. `root`: the cluster's node in ZooKeeper. Used on the event loop only."""

    id: str
    node: Node
    seat: Seat | None
    root: str = ""

    def wanted(self) -> list[int]:
        """Shards that this host is to serve."""
        if self.seat is None:
            return sorted(self.node.host.shards)
        if self.seat.twin(self.node.address) is not None:
            return []  # they are assigned to the other process
        return assigned(self.id, self.seat.facts)

    def unreachable(self) -> set[int]:
        """Of those, the ones whose database does not answer this host."""
        lost = {number for number, shard in self.node.host.shards.items() if shard.lost}
        return (self.node.unreachable | lost).intersection(self.wanted())

    def notes(self) -> list[str]:
        return notes(self.unreachable())

    def missing(self) -> list[str]:
        """Why the host is not ready; nothing: it is."""
        node, seat = self.node, self.seat
        leaving = seat is not None and seat.fact is not None and seat.fact.leaving
        stopping = node.stopping or leaving
        states = {number: shard.state for number, shard in node.host.shards.items()}
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
