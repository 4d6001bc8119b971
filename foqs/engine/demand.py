"""Which topics with parked flows consumers want: where the flows of a topic are parked, and how many items of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from foqs.engine.pending import DequeueCall
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import Flow
from foqs.limits.gate import Gate
from foqs.limits.lease_slots import ShardSlots
from foqs.limits.throttle_key import ThrottleKey
from foqs.policies.layers import Policies

Parked = Flow[Any]
AnyGate = Gate[TopicKey, Parked]

RECENT_MS = 2_000
"""A topic is wanted for so long after a dequeue of it found a flow that waits."""
_CALLS = 100
"""Consumers of a topic that are looked at for how many items they want."""
_SILENT = 3
"""This many lost questions in a row mean that the coordinator is away, and no chance."""
_GATES = 100
"""Gates of a topic that are looked at for an empty reply."""


class Demand:
    """`waiting`: the consumers that wait. `topics`: the gates at which flows of a topic are parked, or were."""

    def __init__(
        self,
        policies: Policies,
        waiting: Mapping[TopicKey, Sequence[DequeueCall]],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.topics: dict[TopicKey, dict[AnyGate, None]] = {}
        self.lacked: dict[TopicKey, tuple[int, int]] = {}  # when a dequeue parked a flow, and the items it wanted
        self._policies = policies
        self._waiting = waiting
        self._monotonic_ms = monotonic_ms

    def parked(self, topic: TopicKey, gate: AnyGate, wanted: int, at_ms: int) -> None:
        """A consumer that wants so many more items finds a flow of the topic that is parked now."""
        self.lacked.pop(topic, None)  # the oldest stands first
        self.lacked[topic] = (at_ms, wanted)
        self.topics.setdefault(topic, {})[gate] = None

    def forget(self, at_ms: int) -> None:
        """Forget dequeues of long ago."""
        while self.lacked:
            topic, (lacked_ms, _) = next(iter(self.lacked.items()))
            if at_ms - lacked_ms < RECENT_MS:
                break
            del self.lacked[topic]

    def of(self, topic: TopicKey) -> bool:
        """Whether consumers want items of the topic."""
        if self._policies.pausing and self._policies.paused(topic):
            return False
        if topic in self._waiting:
            return True
        lacked = self.lacked.get(topic)
        return lacked is not None and self._monotonic_ms() - lacked[0] < RECENT_MS

    def waits(self, gate: AnyGate, topic: TopicKey, flow: Parked, kept_ms: int) -> bool:
        """Return True if the flow, a keeper of this gate since `kept_ms`, waits at another gate, and consumers want it.

        A lease may live for hours, and a coordinator be away: a token is kept for a slot for one interval, and nothing
        for a gate without answers."""
        at = flow.parked
        if at is None or at is gate or at.unanswered >= _SILENT or not flow.ready:
            return False
        kept_long = isinstance(gate, ThrottleKey) and self._monotonic_ms() - kept_ms >= gate.interval_ms
        if kept_long and isinstance(at, ShardSlots):
            return False
        return self.of(topic) and gate in gates_of(flow)

    def wanted(self, topic: TopicKey) -> int:
        """Return how many items of the topic consumers want."""
        if not self.of(topic):
            return 0
        waiting = self._waiting.get(topic)
        if waiting is not None:
            return sum([call.most or max(items for _, items in call.wants) for call in islice(waiting, _CALLS)])
        return self.lacked[topic][1]

    def gates(self, topic: TopicKey) -> Sequence[AnyGate]:
        """Return some of the gates at which flows of the topic are parked now."""
        found = islice(self.topics.get(topic, ()), _GATES)
        return [gate for gate in found if topic in gate.active or topic in gate.asleep]

    def first_due(self, topics: Sequence[TopicKey]) -> AnyGate | None:
        """Return the gate at which flows of the topics are parked and that may have units first."""
        gates = [gate for topic in topics for gate in self.gates(topic)]
        return min(gates, key=lambda gate: gate.due_ms, default=None)


def gates_of(flow: Parked) -> Iterator[AnyGate]:
    """Yield the gates of the flow's keys, as it knew them last."""
    if flow.rules is not None:
        yield from flow.rules.keys
        if flow.rules.limited:
            for lane in flow.lanes:
                yield from lane.slots.gates if lane.slots is not None else ()


def lives(flow: Parked) -> bool:
    """Whether the flow has items to deliver. If not, it is parked no more."""
    if flow.lanes and flow.ready:
        return True
    flow.parked = None
    return False
