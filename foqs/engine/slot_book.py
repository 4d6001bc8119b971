"""Which leases of a shard count at which gates, by lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from foqs.engine.demand import Parked
from foqs.fairness.keys import TopicKey
from foqs.limits.gate import Agenda
from foqs.limits.lease_slots import ShardSlots
from foqs.policies.layers import LeaseLimits

if TYPE_CHECKING:
    from foqs.engine.shard import Shard

Gate = ShardSlots[TopicKey, Parked]


class Book:
    """The gates of one namespace in one shard, by throttle key, while `limits` are in force. `counted`: all leases that
    the shard had when the book was opened count. `before`: the gates of the book that it replaces."""

    __slots__ = ("before", "closed", "counted", "gates", "limits", "ns", "shard")

    def __init__(self, ns: str, shard: Shard, limits: LeaseLimits | None, before: Mapping[str, Gate]) -> None:
        self.before = before
        self.ns = ns
        self.shard = shard
        self.limits = limits
        self.gates: dict[str, Gate] = {}
        self.counted = self.closed = False


class LaneSlots:
    """Where the leases of one lane count. A lane has at most one of an open book."""

    __slots__ = ("_agenda", "book", "gates")

    def __init__(self, book: Book, gates: tuple[Gate, ...], agenda: Agenda[TopicKey, Parked]) -> None:
        self.book = book
        self.gates = gates
        self._agenda = agenda

    @property
    def stale(self) -> bool:
        """Whether the gates may be those of other limits, or forgotten."""
        return self.book.closed or any(gate.closed for gate in self.gates)

    @property
    def commits(self) -> bool:
        """Whether a lease is committed before it is delivered."""
        return not self.book.closed and any(not gate.throttle.shadow for gate in self.gates)

    def ended(self, item_id: int, *, by_time: bool = False) -> None:
        """The end of a lease of the lane is committed."""
        for gate in self.gates:
            gate.ended(item_id, by_time=by_time)
            if not gate.closed:
                self._agenda.settle_soon(gate)
