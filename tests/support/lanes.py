"""Lanes that belong to no shard."""

from foqs.counters import Namespace
from foqs.fairness.keys import is_plain, lane_key
from foqs.fairness.rates import Traffic
from foqs.fairness.tenants import ShardTerm
from foqs.fairness.topic_rates import TopicRates
from foqs.fairness.topics import TenantLanes, Topic
from foqs.item import Item
from foqs.prefetch.lane import Lane
from foqs.rules import ItemRules


def lone_lane(
    topic: str = "topic", number: int = 1, ns: str = "ns", tenancy: tuple[str, tuple[str, ...]] = ("", ()),
    rules: ItemRules | None = None,
) -> Lane[Item]:  # fmt: skip
    key = (ns, topic)
    lane: Lane[Item] = Lane(
        lane_key(key, *tenancy, rules),
        Topic(key, Traffic(TopicRates())),
        ShardTerm(1, "a shard"),
        number,
        Namespace(),
        stored=number is not None,
    )
    if not is_plain(lane.key):
        lane.tenants = TenantLanes()
    lane.topic.attach(lane)
    return lane
