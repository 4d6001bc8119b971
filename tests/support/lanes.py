"""Lanes that belong to no shard."""

from foqs.counters import Namespace
from foqs.fairness.keys import lane_key
from foqs.fairness.tenants import ShardTerm
from foqs.fairness.topics import Topic
from foqs.item import Item
from foqs.prefetch.lane import Lane


def lone_lane(
    topic: str = "topic", number: int = 1, ns: str = "ns", tenancy: tuple[str, tuple[str, ...]] = ("", ())
) -> Lane[Item]:
    key = (ns, topic)
    lane: Lane[Item] = Lane(
        lane_key(key, *tenancy), Topic(key), ShardTerm(1, "a shard"), number, Namespace(), stored=number is not None
    )
    lane.topic.attach(lane)
    return lane
