"""Runs whose items have order keys: few keys, in slots that move, and policies of both kinds."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from foqs.ids import digest_of, hash_slot_of
from tests.sim.slots import FEW_SLOTS

if TYPE_CHECKING:
    from tests.sim.profile import Profile

_ORDER_KEYS = [name for name in (f"order-{n}" for n in range(2_000)) if hash_slot_of(digest_of("ns", name)) < FEW_SLOTS]

ORDER_KINDS = (
    "dead", "dead", "dead", "cut", "kept", "rules", "tenants", "tenants", "slots", "refused", "refused", "full",
    "changed",
)  # fmt: skip
"""Of runs that get order keys."""


def in_order(rng: random.Random, profile: Profile) -> Profile:
    policies = []
    for entries in profile.policies:
        made = dict(entries)
        for key in ("topic.*", "topic.topic-1", "topic.topic-2"):
            entry = json.loads(made.get(key, "{}"))
            if rng.random() < 0.5:
                entry["retry"] = {"kind": "constant", "first_ms": rng.choice([50, 300])}
            made[key] = json.dumps({**entry, "order": {"on_failure": rng.choice(["block", "skip"])}})
        policies.append(made)
    more = {"lanes": 200, "order_keys": rng.choice([3, 100_000, 100_000])}
    if rng.random() < 0.3:
        more |= {
            "window_rows": rng.choice([1, 2, 5]),
            "page_rows": rng.choice([1, 3, 10]),
            "leases": rng.choice([1, 5]),
        }
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": profile.config.host.model_copy(update=more)}),
        policies=tuple(policies),
        topics=profile.topics[:4],
        order_sizes={
            "_READ_ROWS": rng.choice([1, 2, 5, 1_000]),
            "_READ_KEYS": rng.choice([1, 100]),
            "_KEPT": (kept := rng.choice([1, 2, 4])),
            "_MOST_KEPT": 2 * kept,
        },
        order_keys=tuple(rng.sample(_ORDER_KEYS, rng.choice([1, 2, 4]))),
        changes=rng.random() < 0.6,
        budget_bytes=rng.choice([20_000, 100_000, 1_000_000]),
    )
