"""How a simulated run is set up: which faults occur, and sizes small enough that every path is used."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from foqs.bounds import THROTTLE
from foqs.config.load import Config
from foqs.config.schema import (
    BreakerSection,
    HostSection,
    LimitsSection,
    QuotaKeys,
    QuotasSection,
    ServerSection,
    StoreSection,
)
from foqs.ids import digest_of, hash_slot_of
from foqs.peers.coordinator import coordinator_hash_slot

HOSTS = ("a", "b", "c")
FREE, RATED, LIMITED = "free", "rated", "limited"
KEYS = tuple(f"key-{n}" for n in range(12))
THROTTLES = ("a", "b", "c")
"""The throttle keys of the items of namespace `limited`, if there are any."""
BOUNDED = "topic-0"
"""The topic of namespace `free` that has a bound on its stored items, if there is one."""
USED_SLOTS = tuple(sorted({coordinator_hash_slot(RATED), *(hash_slot_of(digest_of(FREE, key)) for key in KEYS)}))
"""Only these slots move: a move of any other slot moves no row and no coordinator."""


@dataclass(frozen=True)
class Exchange:
    """Probabilities per request between hosts. `delays_ms`: one of them each way."""

    delays_ms: tuple[int, ...]
    unsent: float = 0.0
    lost_before: float = 0.0  # not carried out, which the sender cannot know
    lost_after: float = 0.0  # carried out, and the reply is lost
    hangs: float = 0.0  # no reply until the sender's timeout
    twice: float = 0.0  # share of the questions for tokens that arrive twice


@dataclass(frozen=True)
class Profile:
    config: Config
    exchange: Exchange
    quiet: Exchange  # after the faults
    shards: int
    topics: tuple[str, ...]
    per_second: int
    burst: int
    handover_ms: int
    news_ms: tuple[int, ...]  # one of them passes before a host learns a new routing
    slots_news_ms: tuple[int, ...]
    active_ms: int
    crash_every_ms: int  # 0: never
    move_every_ms: int  # 0: never
    slots_every_ms: int  # 0: never
    forced: float  # share of moves in which the new owner does not wait for the old one
    at_most_once: float
    moving_slots: tuple[int, ...] = USED_SLOTS
    pause_every_ms: int = 0  # 0: never
    throttles_every_ms: int = 0  # 0: never
    freeze_every_ms: int = 0  # 0: never
    settings_news_ms: tuple[int, ...] = (0,)
    max_stored: int = 0  # 0: no topic has a bound
    ordered: bool = False  # many items have order keys
    tenants: tuple[str, ...] = ()  # of items that are changed; empty: no item is


def random_profile(rng: random.Random, trouble: str = "") -> Profile:
    """`trouble` "slots": shards and slots move all the time, and hosts learn late where the slots are. "pauses": topics
    are paused and resumed. "changed": so are tenants, and items that wait are changed. "settings": settings change, and
    hosts learn late of them. "bounds": a topic has a bound on its stored items. "silence": many connections between
    hosts fall silent. "orders": items have order keys. "throttles": items have throttle keys; hosts freeze, and
    coordinators move."""
    profile = _any_profile(rng)
    if trouble == "pauses":
        return replace(profile, pause_every_ms=rng.choice([60, 300]), settings_news_ms=(0, 5, 50, 700))
    if trouble == "changed":
        return replace(
            profile,
            pause_every_ms=rng.choice([60, 300]),
            settings_news_ms=(0, 5, 50, 700),
            tenants=("x", "y", "z")[: rng.choice([1, 3])],
        )
    if trouble == "orders":
        return replace(profile, ordered=True, active_ms=2_000)
    if trouble == "bounds":
        return replace(
            profile,
            max_stored=rng.choice([1, 3, 10]),
            topics=(BOUNDED,),
            active_ms=4_000,
            moving_slots=(*USED_SLOTS, coordinator_hash_slot(FREE, BOUNDED)),
        )
    if trouble == "silence":
        return replace(profile, exchange=replace(profile.quiet, hangs=0.2))
    if trouble == "throttles":
        return replace(
            profile,
            exchange=replace(profile.exchange, twice=rng.choice([0, 0.2])),
            quiet=Exchange((0, 1)),  # each token of a burst of 1 costs a trip
            handover_ms=200,
            active_ms=rng.randint(3_000, 5_000),
            crash_every_ms=rng.choice([0, 1_500]),
            move_every_ms=rng.choice([0, 600, 2_000]),
            slots_every_ms=rng.choice([0, 1_000]),
            freeze_every_ms=rng.choice([0, 500, 2_000]),
            throttles_every_ms=500,
            settings_news_ms=(0, 5, 50, 700),
            moving_slots=tuple(sorted({coordinator_hash_slot(LIMITED, THROTTLE + key) for key in THROTTLES})),
        )
    if trouble != "slots":
        return profile
    return replace(
        profile,
        exchange=profile.quiet,
        shards=4,
        handover_ms=2_000,
        news_ms=(0, 5),
        slots_news_ms=(0, 20, 300, 1_500),
        active_ms=2_000,
        crash_every_ms=0,
        move_every_ms=60,
        slots_every_ms=50,
        forced=0.0,
    )


def _any_profile(rng: random.Random) -> Profile:
    host = {
        "confirm_ms": rng.choice([100, 1_000]),
        "lease_write_delay_ms": rng.choice([0, 20, 200]),
        "merge_wait_ms": rng.choice([0, 20]),
        "window_rows": rng.choice([2, 20, 200]),
        "page_rows": rng.choice([3, 100]),
    }
    per_second, burst = rng.choice([10, 100]), rng.choice([1, 5, 20])
    quotas = QuotasSection(namespaces={RATED: QuotaKeys(enqueues_per_second=per_second, burst=burst)})
    delays_ms = rng.choice([(0, 1, 2), (0, 5, 40), (0, 0, 1, 300)])
    worst = rng.choice([0.0, 0.05, 0.2])
    config = Config.model_construct(
        server=ServerSection(),
        limits=LimitsSection(),
        host=HostSection.model_construct(**{**HostSection().model_dump(), **host}),
        breaker=BreakerSection(hang_ms=1_000, pause_ms=20, max_pause_ms=1_000),
        store=StoreSection(),
        quotas=quotas,
        shards=(),
    )
    return Profile(
        config=config,
        exchange=Exchange(delays_ms, *(rng.uniform(0, worst) for _ in range(3)), hangs=rng.choice([0, worst / 4])),
        quiet=Exchange(rng.choice([(0, 1), (0, 5, 40), (0, 0, 1, 80)])),
        shards=rng.choice([2, 3, 4]),
        topics=tuple(f"topic-{n}" for n in range(rng.choice([1, 2, 4]))),
        per_second=per_second,
        burst=burst,
        handover_ms=rng.choice([200, 2_000]),
        news_ms=rng.choice([(0, 5), (0, 50, 400)]),
        slots_news_ms=rng.choice([(0, 5), (0, 20, 300, 1_500)]),
        active_ms=rng.randint(700, 1_800),
        crash_every_ms=rng.choice([0, 500, 1_200]),
        move_every_ms=rng.choice([0, 300, 1_000]),
        slots_every_ms=rng.choice([0, 100, 400]),
        forced=rng.choice([0.0, 0.3]),
        at_most_once=rng.choice([0.0, 0.3]),
    )
