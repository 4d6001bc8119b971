"""A host as its admin port sees it. Nothing here changes it."""

from __future__ import annotations

from dataclasses import dataclass

from foqs.admin.readiness import assigned, unjoined, unready
from foqs.host.node import Node
from foqs.host.seat import Seat


@dataclass(frozen=True, slots=True)
class View:
    """`seat` is None on a host that is alone. Used on the event loop only."""

    id: str
    node: Node
    seat: Seat | None

    def wanted(self) -> list[int]:
        """Shards that this host is to serve."""
        return sorted(self.node.host.shards) if self.seat is None else assigned(self.id, self.seat.facts)

    def missing(self) -> list[str]:
        """Why the host is not ready; nothing: it is."""
        node, seat = self.node, self.seat
        leaving = seat is not None and seat.fact is not None and seat.fact.leaving
        stopping = node.stopping or leaving
        states = {number: shard.state for number, shard in node.host.shards.items()}
        missing = unready(self.wanted(), states, listens=node.server.serves, stopping=stopping)
        if seat is not None and not stopping:
            missing += unjoined(seat.facts, seen=seat.seen)
        return missing
