"""Runs with batches of items."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from foqs.buffers import item_batches, members
from foqs.engine import batch_homes, batch_members, home_reads
from tests.sim.order_profile import in_order

if TYPE_CHECKING:
    from tests.sim.profile import Profile

BATCH_KINDS = ("crash", "crash", "rival", "rival", "clock", "calm", "dead", "dead", "dead", "kept", "refused", "full")
"""Of runs that get batches."""
BATCHES = {
    "BEAT_MS": (batch_members,),
    "AGAIN_MS": (batch_members,),
    "JOIN_MS": (batch_members, members),
    "ASK_MS": (batch_homes, item_batches),
    "LONGEST_ASK_MS": (batch_homes,),
    "LOOK_MS": (batch_homes, home_reads),
    "_READ_ROWS": (batch_members,),
    "_LOAD_ROWS": (home_reads,),
    "_REMOVE_ROWS": (home_reads,),
    "_QUESTIONS": (batch_homes,),
    "_MOST_RECENT": (item_batches,),
}
"""Constants of a run, and the modules that have them."""


def with_batches(rng: random.Random, make: Callable[[random.Random, str], Profile]) -> Profile:
    """Return a run of several shards."""
    while len((profile := make(rng, rng.choice(BATCH_KINDS))).config.shards) < 2:
        pass
    host = profile.config.host.model_copy(update={"lanes": 300, "batches": rng.choice([5, 100_000, 100_000])})
    limits = profile.config.limits.model_copy(update={"batch_keep_ms": rng.choice([0, 500, 3_000])})
    topics = list(dict.fromkeys([*profile.topics[:3], ("other", "topic-0")]))
    profile = replace(
        profile,
        config=profile.config.model_copy(update={"host": host, "limits": limits}),
        topics=topics,
        dead_topics=[(ns, f"{topic}.dlq") for ns, topic in topics] if profile.dead_topics else [],
        batches={
            "BEAT_MS": rng.choice([20, 250]),
            "AGAIN_MS": rng.choice([50, 300]),
            "JOIN_MS": rng.choice([500, 3_000]),
            "ASK_MS": rng.choice([100, 1_000]),
            "LONGEST_ASK_MS": 2_000,
            "LOOK_MS": rng.choice([200, 2_000]),
            "_READ_ROWS": rng.choice([1, 2, 1_000]),
            "_LOAD_ROWS": rng.choice([1, 3, 500]),
            "_REMOVE_ROWS": rng.choice([1, 100]),
            "_QUESTIONS": rng.choice([1, 1_000]),
            "_MOST_RECENT": rng.choice([1, 10_000]),
        },
        budget_bytes=1_000_000,
        prefilled=0,
        producers=rng.choice([1, 2]),
        consumers=rng.choice([2, 4]),
    )
    return in_order(rng, profile) if rng.random() < 0.25 else profile
