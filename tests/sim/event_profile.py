"""Runs whose topics have end events."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.profile import Profile

EVENT_KINDS = (
    "crash", "rival", "clock", "calm", "dead", "dead", "dead", "kept", "kept", "refused", "refused", "full", "full",
    "full", "batches", "orders", "unique", "tenants", "changed", "rules",
)  # fmt: skip
"""Of runs that get end events."""


def with_events(rng: random.Random, make: Callable[[random.Random, str], Profile]) -> Profile:
    """Items end in topics with events, and events in one of them, too."""
    profile = make(rng, rng.choice(EVENT_KINDS))
    names = ("ends", "more")
    topics = [*profile.topics[:3], ("other", "topic-0")]
    topics = list(dict.fromkeys([*topics, *((ns, name) for ns in ("ns", "other") for name in names)]))
    chain = rng.choice([None, None, "more"])
    ends = {
        "on_end_topic": chain,
        "priority": rng.choice([0, -1]),
        "delay_ms": rng.choice([0, 0, 100]),
        "ttl_ms": rng.choice([None, None, 1_000]),
        "lease_ms": rng.choice([None, 1_000]),
        "delivery": rng.choice(["at_least_once", "at_least_once", "at_most_once"]),
    }
    named = [{"on_end_topic": "ends"}, {"on_end_topic": rng.choice(["ends", "more", None])}]
    policies = []
    for entries in profile.policies:
        if rng.random() < 0.1:  # an end near this change may be either
            named = [{"on_end_topic": rng.choice([None, "more"])}, named[1]]
        made = {
            "topic.*": named[0],
            "topic.topic-1": named[1],
            "topic.ends": ends,
            "topic.more": {"on_end_topic": None},
        }
        policies.append(entries | {key: json.dumps(json.loads(entries.get(key, "{}")) | made[key]) for key in made})
    host = profile.config.host.model_copy(update={"lanes": 300})
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": host}),
        topics=topics,
        dead_topics=[(ns, f"{topic}.dlq") for ns, topic in topics] if profile.dead_topics else [],
        policies=tuple(policies),
        awaited=True,
    )
