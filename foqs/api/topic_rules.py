"""What the policy of a topic means for an item that is enqueued."""

from __future__ import annotations

from copy import copy
from typing import Any

from foqs.bounds import Limits
from foqs.policies.remedy import closed
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import AT_LEAST_ONCE


def refuse_when_closed(ns: str, topic: str, policy: TopicPolicy) -> None:
    """Raises Unavailable: the topic takes no items."""
    if policy.closed:
        raise closed(ns, topic)


def filled(spec: Any, policy: TopicPolicy, limits: Limits) -> Any:
    """Return the ItemSpec with the values of the policy where the producer set none, cut to the limits of the host.

    A priority of 0 and AT_LEAST_ONCE count as not set: clients send them with every item."""
    made = copy(spec)
    made.priority = spec.priority or policy.priority
    if spec.delivery == AT_LEAST_ONCE:
        made.delivery = policy.delivery
    if spec.lease_ms is None and policy.lease_ms is not None:
        made.lease_ms = min(max(policy.lease_ms, limits.lease_min_ms), limits.lease_max_ms)
    if spec.ttl_ms is None and spec.expires_at_ms is None and policy.ttl_ms is not None:
        made.ttl_ms = min(policy.ttl_ms, limits.ttl_max_ms)
    if spec.delay_ms is None and spec.deliver_after_ms is None:
        made.delay_ms = min(policy.delay_ms, limits.delay_max_ms)
    return made
