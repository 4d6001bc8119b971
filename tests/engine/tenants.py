"""Items of tenants in a laboratory."""

from __future__ import annotations

import json

from foqs.fairness.keys import LaneKey, lane_key
from foqs.fairness.tenants import Tenant
from foqs.ids import shard_of
from foqs.policies.settings import Settings
from tests.engine.laboratory import KEY, Laboratory


def of(tenant: str, *throttles: str) -> LaneKey:
    return lane_key(KEY, tenant, throttles)


def tenant_of(lab: Laboratory, item_id: int) -> str:
    lane = lab.engine.state.shards[shard_of(item_id)].memory.known[item_id].lane
    assert lane.flow is not None
    return lane.flow.tenant.name


def tenant(lab: Laboratory, name: str) -> Tenant:
    turns = lab.engine.state.topics[KEY].turns
    assert turns is not None
    return turns.tenants[name]


def taken(lab: Laboratory, count: int, **how: object) -> list[str]:
    """Return the tenants of the items that a dequeue gets."""
    return [tenant_of(lab, item_id) for item_id in lab.taken(count=count, **how)]


def set_policy(lab: Laboratory, policy: dict[str, object], **entries: str) -> None:
    """Give the topic this policy, and the namespace these settings beside it."""
    version = lab.engine.state.policies.versions.get(KEY[0], 0) + 1
    named = {key.replace("_", "."): text for key, text in entries.items()}
    lab.engine.apply_settings(Settings(KEY[0], version, {f"topic.{KEY[1]}": json.dumps(policy), **named}))
    lab.settle()


def store(lab: Laboratory, items: dict[str, int]) -> None:
    for name, count in items.items():
        lab.stored(*[lab.item() for _ in range(count)], key=of(name))
