"""What one seed's run looks like: sizes small enough that every path is used, and which kinds of trouble come."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, product

from foqs.bounds import THROTTLE
from foqs.config.load import Config
from foqs.config.schema import BreakerSection, HostSection, LimitsSection, ServerSection, ShardSection, StoreSection
from foqs.fairness.keys import ORDERED, LaneKey, TopicKey, lane_key
from foqs.ids import Until, digest_of, hash_slot_of
from foqs.peers.scheduler import row_digest
from foqs.rules import ItemRules, RetryRule
from tests.sim.batch_profile import with_batches
from tests.sim.event_profile import with_events
from tests.sim.faults import NONE, FaultRates, random_rates
from tests.sim.order_profile import ORDER_KINDS, in_order
from tests.sim.slots import FEW_SLOTS

_DAY_MS = 86_400_000
_SKEW_MS = 7_200_000

ENDLESS = {"topic.*": '{"max_attempts": 0}'}
"""No item dies: consumers of these profiles do not look for dead letters."""

MANY_FAULTS = FaultRates(
    connect_fails=0.3,
    read_down=0.03,
    read_busy=0.1,
    commit_down=0.03,
    commit_busy=0.1,
    commit_full=0.02,
    commit_lost=0.06,
    slow=0.1,
    hang=0.0,
)


@dataclass(frozen=True)
class Profile:
    config: Config
    budget_bytes: int
    max_batch_bytes: int
    active_ms: int  # how long clients and failures go on
    rates: dict[int, FaultRates]  # by shard
    crash_every_ms: int  # 0: never
    rival: bool  # a second host that takes shards over
    clock_steps: bool
    skews_ms: tuple[int, ...]  # how far the machines' clocks of hosts are ahead of the databases'
    topics: list[tuple[str, str]]
    producers: int
    consumers: int
    payload_bytes: int
    priorities: int
    at_most_once: float
    with_ttl: float
    delayed: float
    poisoned: float
    prefilled: int  # items that are there before the first host opens its shards
    named: int = 3  # topics that a consumer names at most
    dead_topics: list[tuple[str, str]] = field(default_factory=list)
    policies: tuple[dict[str, str], ...] = (ENDLESS,)  # the settings of all namespaces, one version after the other
    prompt: bool = False  # nothing fails, so no dequeue may come back empty while an item of its topics stays ready
    loyal: bool = False  # consumers ack at once all that they get
    tenants: tuple[str, ...] = ()  # fairness keys of items; none: topics are plain
    throttle_sets: tuple[tuple[str, ...], ...] = ((),)
    throttled: bool = False  # some throttle keys have settings
    pauses_ms: tuple[int, ...] = (20,)  # of consumers that got items, at most
    released: float = 0.0  # leases that consumers release at once
    rules: tuple[ItemRules | None, ...] = (None,)  # of items
    untils: tuple[int, ...] = ()  # of keys that several items have, one after the other
    rooms: tuple[str, ...] = ()  # `RandomFaults.room_for`, one after the other
    steps: float = 0.0  # extensions with a checkpoint
    awaited: bool = False  # acks bring results, and callers ask for ends
    scheduled: bool = False  # there are schedules, and hosts fire them
    changes: bool = False  # operators change items that wait
    order_keys: tuple[str, ...] = ()
    order_sizes: dict[str, int] = field(default_factory=dict)  # constants of `foqs.engine.orders`
    batches: dict[str, int] = field(default_factory=dict)  # constants of `BATCHES`; none: no batches of items
    held: tuple[str, ...] = ()  # tenants all of whose items have throttle keys
    _lanes: dict[TopicKey, list[LaneKey]] = field(default_factory=dict, init=False, compare=False)

    def lanes(self, topic: TopicKey) -> list[LaneKey]:
        """Every lane that the topic can have on a shard."""
        found = self._lanes.get(topic)
        if found is None:
            names = [("", ()), *((tenant, keys) for tenant in self.tenants for keys in self.throttle_sets)]
            untils = (0, *self.untils, *((ORDERED,) if self.order_keys else ()))
            every = product(names, self.rules, untils, (False, bool(self.batches)))
            others = [lane_key(topic, *name, *more) for name, *more in every]
            found = self._lanes[topic] = list(dict.fromkeys([lane_key(topic), *others]))
        return found

    def sets_of(self, tenant: str) -> list[tuple[str, ...]]:
        """Return the throttle keys that an item of the tenant may have."""
        return [keys for keys in self.throttle_sets if keys or tenant not in self.held]


def random_profile(rng: random.Random, trouble: str) -> Profile:
    """Return the profile of a kind of run. "crash", "rival", "clock" and "calm" are plain, "" is any of these, and
    "skew" is rival with wrong clocks of machines. Each other kind has a function here."""
    kind = _KINDS.get(trouble)
    if kind is not None:
        return kind(rng)
    shards = rng.choice([1, 2, 2, 3])
    trouble = trouble or rng.choice(["crash", "rival", "clock", "calm", "crash"])
    skews_ms = (-_SKEW_MS, 0, _SKEW_MS) if trouble == "skew" else ()
    return Profile(
        config=_config(rng, shards, trouble),
        budget_bytes=rng.choice([40_000, 100_000, 1_000_000, 1_000_000]),
        max_batch_bytes=rng.choice([4_000, 20_000, 1 << 20]),
        active_ms=rng.randint(1_500, 4_000),
        rates={number: random_rates(rng) for number in range(1, shards + 1)},
        crash_every_ms=rng.randint(500, 2_000) if trouble == "crash" else 0,
        rival=trouble in ("rival", "skew"),
        clock_steps=trouble == "clock",
        skews_ms=skews_ms,
        topics=[("ns", f"topic-{n}") for n in range(rng.choice([1, 2, 3, 6]))] + [("other", "topic-0")],
        producers=rng.randint(1, 3),
        consumers=rng.randint(1, 5),
        payload_bytes=rng.choice([10, 200, 1_500]),
        priorities=rng.choice([1, 3, 1000]),
        at_most_once=rng.choice([0, 0.2, 0.6]),
        with_ttl=rng.choice([0, 0.3]),
        delayed=rng.choice([0, 0.3, 0.6]),
        poisoned=rng.choice([0, 0, 0.05]),
        prefilled=rng.choice([0, 0, 50, 300]) if rng.random() < 0.9 else 0,
    )


def _many_topics(rng: random.Random) -> Profile:
    """Many topics with few items each, in memory for the first items of a few of them. Often the consumers are many,
    name few topics, and shards stop leasing for them, because it has little time to write leases."""
    shards = rng.choice([1, 2, 3])
    config, stalls = _config(rng, shards, "calm"), rng.random() < 0.5
    host = config.host.model_copy(
        update={
            "confirm_ms": 1_000,
            "lease_write_delay_ms": 5 if stalls else 200,
            "merge_wait_ms": rng.choice([10, 50]),
            "lanes": 1_000,
            "page_rows": rng.choice([3, 10, 100]),
            "pending_rows": 100_000,
        }
    )
    return Profile(
        config=config.model_copy(update={"host": host}),
        budget_bytes=rng.choice([8_000, 20_000]),
        max_batch_bytes=20_000,
        active_ms=1_500,
        rates=dict.fromkeys(range(1, shards + 1), NONE),
        crash_every_ms=0,
        rival=False,
        clock_steps=False,
        topics=[("ns", f"topic-{n:02}") for n in range(60)],
        producers=2,
        consumers=12 if stalls else rng.randint(3, 6),
        payload_bytes=rng.choice([10, 200]),
        priorities=rng.choice([1, 3]),
        at_most_once=rng.choice([0, 0.2]),
        with_ttl=0,
        delayed=0,
        poisoned=0,
        prefilled=200,
        skews_ms=(),
        named=3 if stalls else 60,
        prompt=True,
    )


def _many_lanes(rng: random.Random) -> Profile:
    """Few items in each of many topics, which consumers name together, while everything fails. Often there are more
    topics than a shard may have."""
    profile = random_profile(rng, rng.choice(["crash", "rival", "clock"]))
    more = {"lanes": rng.choice([10, 30, 100]), "page_rows": rng.choice([3, 10, 100]), "window_rows": 200}
    host = profile.config.host.model_copy(update=more)
    topics = [("ns", f"topic-{n:02}") for n in range(80)]
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": host}),
        topics=topics,
        named=len(topics),
        prefilled=rng.choice([50, 150]),
    )


def _cut_windows(rng: random.Random) -> Profile:
    """A long backlog in few topics, of which memory holds a part: windows are cut while their next page is read."""
    profile = random_profile(rng, rng.choice(["calm", "clock"]))
    more = {"window_rows": rng.choice([5, 20]), "page_rows": rng.choice([3, 10, 20]), "pending_rows": 100_000}
    host = profile.config.host.model_copy(update=more)
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": host}),
        rates=dict.fromkeys(profile.rates, replace(NONE, slow=0.3)),
        topics=profile.topics[:2],
        priorities=rng.choice([3, 1_000]),
        producers=3,
        delayed=0.3,
        prefilled=300,
    )


def _full_databases(rng: random.Random) -> Profile:
    """Databases have no room for new items, and often for no row at all, again and again."""
    only_items = rng.random() < 0.5
    profile = random_profile(rng, "calm" if only_items else rng.choice(["crash", "rival", "calm", "kept"]))
    rooms = ("items", "rows") if only_items else ("items", "rows", "none", "none")
    # No database refuses removals, so no ack is refused.
    rates = {number: NONE if only_items else replace(one, commit_full=0) for number, one in profile.rates.items()}
    host = profile.config.host.model_copy(update={"tail_items": 10_000, "window_rows": rng.choice([5, 20, 4_096])})
    config = profile.config.model_copy(update={"host": host})
    consumers = rng.choice([1, 1, 4])
    return replace(profile, config=config, rooms=rooms, rates=rates, poisoned=0, producers=5, consumers=consumers)


def _refused_rows(rng: random.Random) -> Profile:
    """Transactions are stored in parts, and the outcome of a part is often unknown."""
    profile = random_profile(rng, rng.choice(["crash", "rival"]))
    more = {"batch_rows": 2_000, "tail_items": 10_000, "window_rows": rng.choice([20, 4_096])}
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": profile.config.host.model_copy(update=more)}),
        rates=dict.fromkeys(profile.rates, replace(NONE, commit_lost=0.2, slow=0.3)),
        budget_bytes=1_000_000,
        payload_bytes=10,
        poisoned=0.1,
        producers=4,
        delayed=0.1,
    )


def _dead_letters(rng: random.Random) -> Profile:
    """Consumers fail or reject often; limits are small, and change."""
    profile = random_profile(rng, rng.choice(["crash", "rival", "clock", "calm", "crash"]))
    topics = [("ns", f"topic-{n}") for n in range(3)] + [("other", "topic-0")]
    host = profile.config.host.model_copy(update={"lanes": 100})
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": host}),
        topics=topics,
        dead_topics=[(ns, f"{topic}.dlq") for ns, topic in topics],
        rates=dict.fromkeys(profile.rates, MANY_FAULTS) if rng.random() < 0.5 else profile.rates,
        policies=tuple(_policies(rng) for _ in range(rng.choice([1, 2, 3]))),
        consumers=rng.randint(3, 6),
        at_most_once=rng.choice([0, 0.2]),
        with_ttl=rng.choice([0, 0, 0.2]),
        delayed=rng.choice([0, 0.2]),
        poisoned=rng.choice([0, 0.05]),
        named=8,
    )


def _kept_items(rng: random.Random) -> Profile:
    """Topics keep some of their items after the end. Acks bring results, and callers wait for ends."""
    profile = random_profile(rng, rng.choice(["dead", "dead", "tenants"]))
    keeps = [None, {"completed_ms": 500}, {"completed_ms": 3_000, "failed_ms": 1_000}, {"failed_ms": 3_000}]
    policies = []
    for entries in profile.policies:
        kept = dict(entries)
        for key in ("topic.*", "topic.topic-1", "topic.topic-2"):
            if (keep := rng.choice(keeps)) is not None:
                more = {"most": rng.choice([1, 5, 100_000]), "results": rng.random() < 0.8}
                kept[key] = json.dumps(json.loads(kept.get(key, "{}")) | {"keep": keep | more})
        policies.append(kept)
    host = profile.config.host.model_copy(update={"lanes": 200, "lane_idle_ms": rng.choice([0, 300, 2_000])})
    config = profile.config.model_copy(update={"host": host})
    return replace(profile, config=config, policies=tuple(policies), awaited=True)


def _with_rules(rng: random.Random) -> Profile:
    """Items bring rules of their own: other limits and delays than their topic's, and times for which they are kept."""
    while not (profile := random_profile(rng, rng.choice(["dead", "tenants", "kept"]))).dead_topics:
        pass
    rules = (
        None,
        ItemRules(max_attempts=1),
        ItemRules(RetryRule("constant", 0), max_attempts=2),
        ItemRules(RetryRule("linear", 50, 100), max_attempts=3, exact_attempts=True),
        ItemRules(max_attempts=0, max_total_ms=400),
        ItemRules(keep_ms=800),
    )
    host = profile.config.host.model_copy(update={"lanes": 200, "lane_idle_ms": rng.choice([0, 300, 2_000])})
    config = profile.config.model_copy(update={"host": host})
    return replace(profile, config=config, rules=(None, *rng.sample(rules, rng.choice([2, 4, 6]))), awaited=True)


def _with_steps(rng: random.Random) -> Profile:
    """Consumers work in steps, and give a checkpoint after each."""
    kinds = ["dead", "kept", "crash", "rival", "clock", "cut"]
    return replace(random_profile(rng, rng.choice(kinds)), steps=rng.choice([0.3, 0.6]))


def _with_unique_work(rng: random.Random) -> Profile:
    """Few keys that many items ask for, dead letters that return, slots of keys that move, and all that fails."""
    profile = _dead_letters(rng)
    return replace(profile, untils=(Until.STARTED, Until.DONE), poisoned=0, rival=rng.random() < 0.7)


def _with_changes(rng: random.Random) -> Profile:
    """Operators change items that wait, and pause tenants, while everything fails."""
    kinds = ["crash", "rival", "clock", "cut", "refused", "dead", "kept", "tenants", "tenants", "tenants"]
    profile = random_profile(rng, rng.choice(kinds))
    policies = list(profile.policies)
    if profile.tenants:
        for paused in ([], rng.sample(profile.tenants, 1), rng.sample(profile.tenants, 2), []):
            entries = {**policies[-1]}
            for topic in {"*", *[topic for _, topic in profile.topics]}:
                own = json.loads(entries.get(f"topic.{topic}", "{}"))
                entries[f"topic.{topic}"] = json.dumps({**own, "paused_tenants": paused})
            policies.append(entries)
    return replace(profile, policies=tuple(policies), changes=True)


def _with_tenants(rng: random.Random) -> Profile:
    """Few topics, each with several tenants of different weights, whose items have different throttle keys."""
    profile = random_profile(rng, rng.choice(["crash", "rival", "clock", "calm", "dead", "dead"]))
    more = {"lanes": 200, "lane_idle_ms": rng.choice([0, 300, 2_000]), "pending_rows": 100_000}
    topics = profile.topics[: rng.choice([1, 2])]
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": profile.config.host.model_copy(update=more)}),
        topics=topics,
        dead_topics=[(ns, f"{topic}.dlq") for ns, topic in topics] if profile.dead_topics else [],
        policies=tuple({**policy, **_weights(rng)} for policy in profile.policies),
        tenants=tuple(f"tenant-{n}" for n in range(rng.choice([2, 4, 8]))) + rng.choice([(), ("",)]),
        throttle_sets=rng.choice([((),), ((), ("a",), ("b",), ("a", "b"), ("b", "c:1"), ("c:1", "c:2"))]),
        prefilled=rng.choice([0, 0, 50, 300]),
    )


def _fair(rng: random.Random) -> Profile:
    """Nothing fails, and memory has room for all: tenants share exactly. Some of them come rarely."""
    profile = random_profile(rng, "calm")
    more = {
        "lease_write_delay_ms": 200,
        "confirm_ms": 1_000,
        "window_rows": 4_096,
        "page_rows": 1_000,
        "batch_rows": 2_000,
        "pending_rows": 100_000,
        "leases": 50_000,
        "lanes": 1_000,
    }
    often = [f"tenant-{n}" for n in range(rng.choice([2, 4, 6]))]
    rare = [f"rare-{n}" for n in range(rng.choice([0, 10, 40]))]
    scope = {"topic.topic-1": json.dumps({"max_attempts": 0, "fair": {"scope": "topic"}})}
    return replace(
        profile,
        config=profile.config.model_copy(update={"host": profile.config.host.model_copy(update=more)}),
        topics=[("ns", "topic-0"), ("ns", "topic-1")],
        rates=dict.fromkeys(profile.rates, NONE),
        policies=tuple({**ENDLESS, **scope, **_weights(rng)} for _ in range(rng.choice([1, 1, 3]))),
        budget_bytes=10_000_000,
        max_batch_bytes=1 << 20,
        active_ms=2_000,
        producers=8,
        loyal=rng.random() < 0.7,
        consumers=rng.choice([1, 2, 4]),
        priorities=rng.choice([1, 3]),
        payload_bytes=10,
        with_ttl=0,
        poisoned=0,
        tenants=(*(name for name in often for _ in range(rng.choice([2, 5, 20]))), *rare),
        prompt=True,
    )


def given_weight(tenant: str) -> int:
    """The weight that items of a tenant bring, 0 for none."""
    return {"tenant-1": 2, "tenant-2": 3, "tenant-3": 4, "tenant-5": 2}.get(tenant, 0)


def _weights(rng: random.Random) -> dict[str, str]:
    entries = {"weight.tenant-2": "1", "weight.tenant-4": "4", "weight.tenant-5*": "3"}
    return {key: weight for key, weight in entries.items() if rng.random() < 0.5}


def _policies(rng: random.Random) -> dict[str, str]:
    rule = {"kind": "exponential", "first_ms": rng.choice([0, 10, 100]), "longest_ms": 200}
    entry = {
        "max_attempts": rng.choice([1, 1, 2, 3]),
        "retry": rng.choice([None, rule, rule]),
        "dead": {"ttl_ms": 3_000} if rng.random() < 0.2 else {},
    }
    return {
        "topic.*": json.dumps(entry),
        "topic.topic-1": json.dumps({"exact_attempts": rng.random() < 0.8, "max_attempts": rng.choice([1, 2, 3])}),
        "topic.topic-2": json.dumps(
            {"dead": rng.choice([None, {}]), "max_total_ms": rng.choice([0, 500]), "max_attempts": rng.choice([0, 2])}
        ),
    }


def _config(rng: random.Random, shards: int, trouble: str) -> Config:
    host = HostSection.model_construct(
        **{
            **HostSection().model_dump(),
            "lease_write_delay_ms": rng.choice([0, 20, 200, 200]),
            "confirm_ms": rng.choice([100, 1_000]),
            "merge_wait_ms": rng.choice([0, 10, 50]),
            "window_rows": rng.choice([2, 5, 20, 200]),
            "page_rows": rng.choice([1, 3, 10, 100]),
            "batch_rows": rng.choice([1, 4, 50, 2_000]),
            "scan_rows": rng.choice([1, 3, 20, 1_000]),
            "pending_rows": rng.choice([20, 200, 100_000]),
            "leases": rng.choice([1, 5, 50_000]),
            "tail_items": rng.choice([0, 2, 10, 10_000, 10_000]),
            "lanes": rng.choice([3, 100]),
            "lane_idle_ms": rng.choice([0, 300, 2_000]),
        }
    )
    window_ms = rng.choice([1_000, _DAY_MS])
    # Values below what a configuration file may say make small runs meet what large ones do.
    return Config.model_construct(
        server=ServerSection(),
        # A clock that is set back brings back keys that had expired.
        limits=LimitsSection(lease_default_ms=1_500, dedup_window_ms=_DAY_MS if trouble == "clock" else window_ms),
        host=host,
        breaker=BreakerSection(hang_ms=rng.choice([200, 1_000]), pause_ms=rng.choice([20, 200]), max_pause_ms=1_000),
        store=StoreSection(),
        shards=tuple(ShardSection(id=number, url=f"sqlite:///memory-{number}.db") for number in range(1, shards + 1)),
    )


# --------------------------------------------------------------------------------------------- throttles


def _in_few_slots(prefix: str) -> Iterator[str]:
    """Yield throttle keys whose coordinators are in the slots that move."""
    for number in count():
        if hash_slot_of(digest_of("ns", f"{THROTTLE}{prefix}{number}")) < FEW_SLOTS:
            yield f"{prefix}{number}"


A, B, C, TOPIC = sorted(islice(_in_few_slots("key-"), 4))
D, E = sorted(islice(_in_few_slots("many:"), 2))
_SETS = ((A,), (B,), (A, B), (A, B, C), (B, D), (D,), (D, E), (A, E))


def _throttled(rng: random.Random, kinds: Sequence[str] = ("shares", "calm", "", "")) -> Profile:
    """Keys that many flows share, several of them on an item, and settings that change.

    Half of the runs have no failures, and are exact. In half of these, the shares of tenants are compared while
    throttles hold one of them. Everything fails in the other half."""
    if kind := rng.choice(kinds):
        profile = random_profile(rng, "fair")
        profile = replace(profile, tenants=tuple(dict.fromkeys(profile.tenants))[: rng.choice([3, 5])])
    else:
        profile = random_profile(rng, "tenants")
        # A new coordinator grants nothing at first.
        profile = replace(profile, crash_every_ms=profile.crash_every_ms and 3_000)
    throttles = [_any_throttles(rng, (0.7, 5, 20, 50))]
    for _ in range(rng.choice([0, 0, 1, 2])):
        throttles.append(throttles[-1] | _any_throttles(rng, (0.7, 5, 20, 50), share=0.4))
        if rng.random() < 0.5:
            throttles[-1].popitem()
    throttles.append(_any_throttles(rng, (20, 50.5, 200)))  # so that a run ends
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


def _any_throttles(rng: random.Random, rates: Sequence[float], *, share: float = 0.8) -> dict[str, str]:
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


def _limited_leases(rng: random.Random) -> Profile:
    """Throttles that limit live leases, most of them to few.

    A third of the runs have no failures. No shard is given up: it has an owner again soon."""
    profile = _throttled(rng, ("calm", "", ""))
    share = rng.choice([0.5, 1.0])
    return replace(profile, policies=tuple(_limits(rng, entries, share) for entries in profile.policies))


def _limits(rng: random.Random, entries: dict[str, str], share: float) -> dict[str, str]:
    made: dict[str, str] = {}
    for key, text in entries.items():
        entry = json.loads(text)
        if key.startswith("throttle.") and rng.random() < share:
            if rng.random() < 0.7:
                del entry["per_second"], entry["burst"]
            entry |= {"concurrency": rng.choice([1, 1, 2, 4]), "timeout_ms": rng.choice([0, 500, 60_000])}
        made[key] = json.dumps(entry)
    return made


# --------------------------------------------------------------------------------------------- schedules


def _with_schedules(rng: random.Random) -> Profile:
    """Schedules that fire each second or so, whose rows are in the slots that move, and all that fails. Their items
    fit in: schedules have no room of their own."""
    profile = random_profile(rng, rng.choice(["crash", "crash", "rival", "rival", "clock", "skew"]))
    config = profile.config
    return replace(
        profile,
        config=config.model_copy(
            update={
                "host": config.host.model_copy(update={"lanes": 100}),
                "limits": config.limits.model_copy(update={"dedup_window_ms": _DAY_MS}),
            }
        ),
        policies=(_SCHEDULES, _SCHEDULES | _PAUSED, _SCHEDULES)[: rng.choice([1, 3])],
        active_ms=rng.randint(4_000, 8_000),
        producers=1,
        prefilled=rng.choice([0, 0, 50]),
        poisoned=0,
        scheduled=True,
    )


def _schedule(kind: str, **more: str | bool) -> tuple[str, str]:
    """Return a setting whose row in namespace ns is in a slot that moves."""
    name = next(one for n in count() if hash_slot_of(row_digest("ns", one := f"{kind}-{n}")) < FEW_SLOTS)
    return f"schedule.{name}", json.dumps({"cron": "@every 1s", "topic": "topic-0", **more})


_SCHEDULES = ENDLESS | dict(
    (
        _schedule("all", catch_up="all"),
        _schedule("cron", catch_up="all", cron="*/2 * * * * *"),
        _schedule("last", catch_up="last"),
        _schedule("skip", catch_up="all", overlap="skip"),
    )
)
_PAUSED = dict((_schedule("last", catch_up="last", paused=True),))


_KINDS: dict[str, Callable[[random.Random], Profile]] = {
    "topics": _many_topics,
    "lanes": _many_lanes,
    "cut": _cut_windows,
    "refused": _refused_rows,
    "full": _full_databases,
    "dead": _dead_letters,
    "kept": _kept_items,
    "rules": _with_rules,
    "progress": _with_steps,
    "unique": _with_unique_work,
    "tenants": _with_tenants,
    "fair": _fair,
    "throttles": _throttled,
    "slots": _limited_leases,
    "schedules": _with_schedules,
    "changed": _with_changes,
    "batches": lambda rng: with_batches(rng, random_profile),
    "events": lambda rng: with_events(rng, random_profile),
    "orders": lambda rng: in_order(rng, random_profile(rng, rng.choice(ORDER_KINDS))),
}
