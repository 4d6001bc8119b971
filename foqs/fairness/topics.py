"""The topics of a host, each with the lanes that hold its items.

A shard attaches its lanes while it is open. A closed shard's lanes count no more at once, because `Tenure` says so;
they are detached later, a bounded number at a time. Shards look their lanes up by `LaneKey`; all else, from waiting
consumers to metrics, names topics by `TopicKey`.
"""

from __future__ import annotations

import sys
from typing import Any, Generic, NewType, Protocol, TypeVar, cast

TopicKey = tuple[str, str]
"""(namespace, topic)."""

LaneKey = NewType("LaneKey", object)
"""Names a lane inside a shard. It is a type of its own, so that the type checker finds it in the place of a topic."""


def lane_key(key: TopicKey) -> LaneKey:
    """Return the key of a topic's plain lane. It is the same tuple: a second one would take 72 bytes a topic."""
    return LaneKey(key)


def topic_key(key: LaneKey) -> TopicKey:
    return cast(TopicKey, key)


class Tenure:
    """The time between the opening of a shard and its end. `shard` is None when it is over.

    Tenures are numbered in the order in which they began."""

    __slots__ = ("number", "shard")

    def __init__(self, number: int, shard: Any) -> None:
        self.number = number
        self.shard = shard


class Attached(Protocol):
    """A lane, as a topic knows it."""

    @property
    def ready(self) -> int: ...

    @property
    def tenure(self) -> Tenure: ...


L = TypeVar("L", bound=Attached)


class Topic(Generic[L]):
    """`lanes` are in the order in which their shards were opened; those of closed shards stay until they are
    detached."""

    __slots__ = ("key", "lanes")

    def __init__(self, key: TopicKey) -> None:
        self.key = key
        self.lanes: tuple[L, ...] = ()  # a list would take 40 bytes more

    @property
    def ready(self) -> int:
        """Number of items that are ready, in memory or not."""
        return sum([lane.ready for lane in self.lanes if lane.tenure.shard is not None])

    def attach(self, lane: L) -> None:
        at, number = len(self.lanes), lane.tenure.number
        while at and self.lanes[at - 1].tenure.number > number:
            at -= 1
        self.lanes = (*self.lanes[:at], lane, *self.lanes[at:])

    def __repr__(self) -> str:
        return f"Topic({'/'.join(self.key)} ready={self.ready} lanes={len(self.lanes)})"


class Topics(dict[TopicKey, Topic[L]]):
    """Every topic that has a lane here."""

    def __init__(self) -> None:
        super().__init__()
        self._tenures = 0

    def tenure(self, shard: Any) -> Tenure:
        self._tenures += 1
        return Tenure(self._tenures, shard)

    def of(self, key: LaneKey) -> Topic[L]:
        """Return the topic of a lane that is attached next."""
        names = topic_key(key)
        topic = self.get(names)
        if topic is None:
            ns, name = names
            names = (sys.intern(ns), name)  # each request and each row has a copy of the namespace
            topic = self[names] = Topic(names)
        return topic

    def detach(self, topic: Topic[L], lane: L) -> None:
        topic.lanes = tuple([other for other in topic.lanes if other is not lane])
        if not topic.lanes and self.get(topic.key) is topic:
            del self[topic.key]
