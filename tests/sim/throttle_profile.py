"""Runs with throttles: keys that many flows share, several of them on an item, and settings that change."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from foqs.bounds import THROTTLE
from foqs.ids import digest_of, hash_slot_of
from tests.sim.profile import Profile, random_profile
from tests.sim.slots import FEW_SLOTS


def _in_few_slots(prefix: str) -> Iterator[str]:
    """Yield throttle keys whose coordinators are in the slots that move."""
    for number in count():
        if hash_slot_of(digest_of("ns", f"{THROTTLE}{prefix}{number}")) < FEW_SLOTS:
            yield f"{prefix}{number}"


A, B, C, TOPIC = sorted(islice(_in_few_slots("key-"), 4))
D, E = sorted(islice(_in_few_slots("many:"), 2))
_SETS = ((A,), (B,), (A, B), (A, B, C), (B, D), (D,), (D, E), (A, E))


def with_throttles(rng: random.Random, kinds: Sequence[str] = ("shares", "calm", "", "")) -> Profile:
    """Half of the runs have no failures, and are exact. In half of these, the shares of tenants are compared while
    throttles hold one of them. Everything fails in the other half."""
    kind = rng.choice(kinds)
    if kind:
        profile = random_profile(rng, "fair")
        profile = replace(profile, tenants=tuple(dict.fromkeys(profile.tenants))[: rng.choice([3, 5])])
    else:
        profile = random_profile(rng, "tenants")
        # A new coordinator grants nothing at first.
        profile = replace(profile, crash_every_ms=profile.crash_every_ms and 3_000)
    throttles = [_throttles(rng, (0.7, 5, 20, 50))]
    for _ in range(rng.choice([0, 0, 1, 2])):
        throttles.append(throttles[-1] | _throttles(rng, (0.7, 5, 20, 50), share=0.4))
        if rng.random() < 0.5:
            throttles[-1].popitem()
    throttles.append(_throttles(rng, (20, 50.5, 200)))  # so that a run ends
    policies = [{**profile.policies[at % len(profile.policies)], **entries} for at, entries in enumerate(throttles)]
    topics = [("ns", "topic-0"), ("ns", "topic-1")]
    profile = replace(
        profile,
        topics=topics,
        dead_topics=[(ns, f"{topic}.dlq") for ns, topic in topics] if profile.dead_topics else [],
        active_ms=7_000 if profile.crash_every_ms else rng.choice([3_000, 5_000]),
        producers=rng.choice([1, 2]),
        consumers=rng.choice([1, 2]),
        pauses_ms=rng.choice([(20,), (200,), (20, 20, 20, 1_500)]),
        released=rng.choice([0, 0.5]),
        prefilled=0 if profile.prompt else rng.choice([0, 50]),
        policies=tuple(_on_topic(rng, entries) for entries in policies),
        throttle_sets=(*rng.choice([((),), ((), (), ())]), *rng.sample(_SETS, rng.choice([1, 1, 3]))),
        throttled=True,
    )
    if kind != "shares":
        return profile
    return replace(
        profile,
        policies=(
            profile.policies[0],
            {key: value for key, value in profile.policies[0].items() if not key.startswith("throttle.")},
            profile.policies[-1],
        ),
        producers=3,
        consumers=1,
        delayed=0,
        loyal=True,
        released=0,
        pauses_ms=(200,),
        held=profile.tenants[:1],
        throttle_sets=((), rng.choice([(A,), (D,), (A, B)])),
    )


def _throttles(rng: random.Random, rates: Sequence[float], *, share: float = 0.8) -> dict[str, str]:
    entries: dict[str, str] = {}
    for key in (A, B, C, "many:*", E, TOPIC):
        if rng.random() < share:
            bursts = [1, 3, 20] if min(rates) < 1 else [3, 20]
            entry = {"per_second": rng.choice(rates), "burst": rng.choice(bursts), "shadow": rng.random() < 0.15}
            entries[f"throttle.{key}"] = json.dumps(entry)
    return entries


def _on_topic(rng: random.Random, entries: dict[str, str]) -> dict[str, str]:
    """Often all items of a topic have one key more."""
    entry = json.loads(entries.get("topic.topic-1", "{}"))
    if rng.random() < 0.5:
        entry["throttles"] = [TOPIC]
    return {**entries, "topic.topic-1": json.dumps(entry)}
