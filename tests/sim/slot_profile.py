"""Runs with throttles that limit live leases, most of them to few."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from tests.sim.profile import Profile
from tests.sim.throttle_profile import with_throttles


def with_slots(rng: random.Random) -> Profile:
    """A third of the runs have no failures. No shard is given up: it has an owner again soon."""
    profile = with_throttles(rng, ("calm", "", ""))
    share = rng.choice([0.5, 1.0])
    return replace(profile, policies=tuple(_limited(rng, entries, share) for entries in profile.policies))


def _limited(rng: random.Random, entries: dict[str, str], share: float) -> dict[str, str]:
    made: dict[str, str] = {}
    for key, text in entries.items():
        entry = json.loads(text)
        if key.startswith("throttle.") and rng.random() < share:
            if rng.random() < 0.7:
                del entry["per_second"], entry["burst"]
            entry |= {"concurrency": rng.choice([1, 1, 2, 4]), "timeout_ms": rng.choice([0, 500, 60_000])}
        made[key] = json.dumps(entry)
    return made
