"""Which entries of a namespace's settings make the policy of a topic, a throttle or a weight.

A policy: for each field on its own, the built-in value, then `topic.*`, then the longest `prefix*`, then the exact
name. A throttle or weight: the exact key, else the longest `prefix*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from foqs.fairness.keys import TopicKey
from foqs.policies.dead_topics import has_effect, namers_of, why_dead
from foqs.policies.entries import (
    SCHEDULE,
    SCRIPT,
    THROTTLE,
    TOPIC,
    WEIGHT,
    Patterns,
    Throttle,
    parse_throttle,
    parse_weight,
)
from foqs.policies.item_rules import applied
from foqs.policies.schedules import ScheduleEntry, parse_schedule
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import (
    BUILT_IN_ENTRY,
    DEAD_SUFFIX,
    DeadEntry,
    PolicyEntry,
    TopicPolicy,
    effective,
    parse,
)
from foqs.rules import ItemRules

BUILT_IN = ""
"""The settings key of the built-in layer."""
_MOST_KNOWN = 10_000
"""Policies, and throttles of keys, that a namespace remembers; it makes a forgotten one again when needed."""
NO_BOUND = 1 << 62
_NOTHING: frozenset[ItemRules | None] = frozenset()
_EXACT: frozenset[ItemRules | None] = frozenset({None})
_NO_TENANTS: frozenset[str] = frozenset()
LeaseLimits = tuple[tuple[object, ...], ...]
"""The throttles that limit leases, and the throttle keys that policies add. While these are equal, each item whose
leases are limited keeps its keys."""


class Bounds(NamedTuple):
    """The part of a topic's policy that each delivery needs. `attempts` is NO_BOUND where there is none, and the
    lowest limit of a topic with rules. `exact`: the rules of items, None for those without, whose attempts are exact.
    Equal bounds are one object; `changes` is the number of changes of the policies when it was made. `throttles`: keys
    that the policy adds to all items. `paused`: tenants whose items are not delivered."""

    changes: int
    attempts: int
    exact: frozenset[ItemRules | None]
    throttles: tuple[str, ...]
    paused: frozenset[str]


class NamespacePolicies:
    """The policies of a namespace's topics, of one version of its settings."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        """`entries` are valid settings. `throttled`: some throttle keys have a throttle. `limits`: None if no throttle
        limits leases. `per_worker`: some topic limits the items that a worker holds. `pauses`: some topic, or
        tenant of one (`pauses_tenants`), may be paused. `keeps`: some topic keeps items that have ended. `reports`:
        some topic has end events. `scripts`: their sources by name."""
        topics: dict[str, PolicyEntry] = {}
        throttles: dict[str, Throttle] = {}
        weights: dict[str, int] = {}
        for key, text in entries.items():
            if key.startswith(TOPIC):
                topics[key.removeprefix(TOPIC)] = parse(text)
            elif key.startswith(THROTTLE):
                throttles[key.removeprefix(THROTTLE)] = parse_throttle(text).throttle(key)
            elif key.startswith(WEIGHT):
                weights[key.removeprefix(WEIGHT)] = parse_weight(text)
        self._topics, self._throttles, self._weights = Patterns(topics), Patterns(throttles), Patterns(weights)
        self.throttled = bool(throttles)
        self.limits = _limits(topics, throttles)
        self.per_worker = any(entry.per_worker for entry in topics.values())
        self.pauses_tenants = any(entry.paused_tenants for entry in topics.values())
        self.pauses = self.pauses_tenants or any(entry.paused for entry in topics.values())
        self.reports = any(entry.on_end_topic is not None for entry in topics.values())
        self.keeps = any(entry.keep is not None for entry in topics.values())
        self.scripts = {key.removeprefix(SCRIPT): text for key, text in entries.items() if key.startswith(SCRIPT)}
        self._namers = namers_of(topics)
        self._known: dict[str, TopicPolicy] = {}
        self._ruled: dict[tuple[str, ItemRules], TopicPolicy] = {}
        self._known_throttles: dict[str, Throttle | None] = {}

    def of(self, topic: str) -> TopicPolicy:
        policy = self._known.get(topic)
        if policy is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            entries = {name: entry for name, (_, entry) in self._layers(topic).items()}
            policy = self._known[topic] = effective(topic, entries, dead=self.takes_dead(topic))
        return policy

    def takes_dead(self, topic: str) -> bool:
        return why_dead(topic, self._namers) is not None

    def with_rules(self, topic: str, rules: ItemRules) -> TopicPolicy:
        """Return the policy of the topic's items with these rules."""
        policy = self._ruled.get((topic, rules))
        if policy is None:
            if len(self._ruled) >= _MOST_KNOWN:
                self._ruled.clear()
            policy = self._ruled[topic, rules] = applied(self.of(topic), rules)
        return policy

    def layers(self, topic: str) -> dict[str, str]:
        """Return for each field the settings key that it comes from; `BUILT_IN` for a built-in value."""
        return {name: key for name, (key, _) in self._layers(topic).items()}

    def document(self, topic: str) -> str:
        """Return the effective policy as JSON, in the form of an entry that names every field."""
        policy = self.of(topic)
        found = {name: getattr(entry, name) for name, (_, entry) in self._layers(topic).items()}
        dead = None
        if policy.dead_topic is not None:
            dead = DeadEntry(topic=policy.dead_topic, ttl_ms=policy.dead_ttl_ms)
        found |= {name: getattr(policy, name) for name in ("hooks", "max_attempts", "max_total_ms", "on_end_topic")} | {
            "dead": dead
        }
        return PolicyEntry.model_construct(**found).model_dump_json()

    def overruled(self, topic: str) -> dict[str, str]:
        """Return the fields whose values the topic does not have, because it takes dead letters, with the reason."""
        why = why_dead(topic, self._namers)
        if why is None:
            return {}
        return {name: why for name, (_, entry) in self._layers(topic).items() if has_effect(name, entry)}

    def throttle(self, key: str) -> Throttle | None:
        """Return the limit on deliveries with a throttle key; None: there is none."""
        if not self._throttles:
            return None
        known = self._known_throttles
        if key not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = self._throttles.closest(key)
        return known[key]

    def freed_by_shadow(self, key: str) -> Throttle | None:
        """Return the limit that ends when a throttle of the key, or of a `prefix*`, is put in shadow; None: the key
        has no limit in force. A key has one throttle, so one in shadow also ends the limit of a shorter `prefix*`."""
        limit = None
        for setting, fitting in self._throttles.fitting(key.removesuffix("*")):
            if setting == key or setting.endswith("*"):
                limit = fitting
        return None if limit is None or limit.shadow else limit

    def concurrency(self, key: str) -> int | None:
        """Return the limit on the leases of items with a throttle key at a time, or None."""
        throttle = self.throttle(key)
        return None if throttle is None else throttle.concurrency

    def weight(self, topic: str, fairness_key: str, given: int = 0) -> int:
        """Return the weight of a tenant: of the topic's policy, of the settings, `given` with its items (0: none), or
        1."""
        return self.of(topic).fair.patterns.closest(fairness_key) or self._weights.closest(fairness_key) or given or 1

    def has_weights_of(self, topic: str, other: NamespacePolicies) -> bool:
        """Return True if `other` gives the tenants of the topic the same weights."""
        return self._weights == other._weights and self.of(topic).fair.weights == other.of(topic).fair.weights

    def _layers(self, topic: str) -> dict[str, tuple[str, PolicyEntry]]:
        found = dict.fromkeys(PolicyEntry.model_fields, (BUILT_IN, BUILT_IN_ENTRY))
        for key, entry in self._topics.fitting(topic):
            found |= dict.fromkeys(entry.model_fields_set, (f"{TOPIC}{key}", entry))
        return found


def _limits(topics: Mapping[str, PolicyEntry], throttles: Mapping[str, Throttle]) -> LeaseLimits | None:
    if all(throttle.concurrency is None for throttle in throttles.values()):
        return None
    adding = [(key, entry.throttles) for key, entry in topics.items() if "throttles" in entry.model_fields_set]
    return tuple(sorted((key, one.concurrency is None) for key, one in throttles.items())), tuple(sorted(adding))


BUILT_IN_POLICIES = NamespacePolicies({})
"""The policies of a namespace without settings."""


class Policies:
    """The policies of all topics, as one host knows them. A namespace without settings has the built-in ones.

    `namespaces` has the namespaces with policies, throttles, weights or scripts. Of these, a topic or a tenant may be
    paused in `pausing`, throttles limit leases in `limiting`, a topic limits the items of a worker in `per_worker`,
    a topic keeps ended items in `keeping`, and a topic has end events in `reporting`. Requests of all other namespaces
    look at nothing else. `schedules`: by namespace and name."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.settings: dict[str, Settings] = {}
        self.namespaces: dict[str, NamespacePolicies] = {}
        self.pausing: dict[str, NamespacePolicies] = {}
        self.limiting: dict[str, NamespacePolicies] = {}
        self.per_worker: dict[str, NamespacePolicies] = {}
        self.keeping: dict[str, NamespacePolicies] = {}
        self.reporting: dict[str, NamespacePolicies] = {}
        self.schedules: dict[str, dict[str, ScheduleEntry]] = {}
        self.changes = 0
        self._bounds: dict[tuple[int, frozenset[ItemRules | None], tuple[str, ...], frozenset[str]], Bounds] = {}

    def apply(self, settings: Settings) -> None:
        """Use the policies of this version from now on."""
        ns = settings.ns
        self.versions[ns] = settings.version
        self.settings[ns] = settings
        for known in (self.namespaces, self.pausing, self.limiting, self.per_worker, self.keeping, self.reporting):
            known.pop(ns, None)
        self.schedules.pop(ns, None)
        self.changes += 1
        self._bounds.clear()
        schedules = {key: text for key, text in settings.entries.items() if key.startswith(SCHEDULE)}
        if schedules:
            self.schedules[ns] = {key.removeprefix(SCHEDULE): parse_schedule(text) for key, text in schedules.items()}
        if any(key.startswith((TOPIC, THROTTLE, WEIGHT, SCRIPT)) for key in settings.entries):
            policies = self.namespaces[ns] = NamespacePolicies(settings.entries)
            if policies.pauses:
                self.pausing[ns] = policies
            if policies.limits is not None:
                self.limiting[ns] = policies
            if policies.per_worker:
                self.per_worker[ns] = policies
            if policies.keeps:
                self.keeping[ns] = policies
            if policies.reports:
                self.reporting[ns] = policies

    def of(self, key: TopicKey) -> TopicPolicy:
        """Return the effective policy of a topic."""
        return self.namespace(key[0]).of(key[1])

    def with_rules(self, key: TopicKey, rules: ItemRules | None) -> TopicPolicy:
        """Return the effective policy of the topic's items with these rules, or without."""
        namespace = self.namespace(key[0])
        return namespace.of(key[1]) if rules is None else namespace.with_rules(key[1], rules)

    def paused(self, key: TopicKey) -> bool:
        """Return True if no item of the topic may be delivered."""
        policies = self.pausing.get(key[0])
        return policies is not None and policies.of(key[1]).paused

    def takes_dead(self, key: TopicKey) -> bool:
        """Return True if the topic takes dead letters, by its name or because an entry names it."""
        return self.namespace(key[0]).takes_dead(key[1])

    def holds(self, key: TopicKey, tenant: str) -> bool:
        """Return True if no item of this tenant of the topic may be delivered."""
        policies = self.pausing.get(key[0])
        if policies is None:
            return False
        policy = policies.of(key[1])
        return policy.paused or tenant in policy.paused_tenants

    def namespace(self, ns: str) -> NamespacePolicies:
        """Return the policies of a namespace, the built-in ones if it has none of its own."""
        return self.namespaces.get(ns, BUILT_IN_POLICIES)

    def bounds(self, key: TopicKey, rules: Iterable[ItemRules] = ()) -> Bounds:
        """Return what `of` says about each delivery of a topic that has items with these rules. Until these or
        `changes` change it stays the same."""
        namespace, throttles = self.namespaces.get(key[0]), tuple[str, ...]()
        exact: frozenset[ItemRules | None] = _NOTHING
        paused = _NO_TENANTS
        if namespace is None:  # most of very many topics: none needs a policy of its own
            attempts = 0 if key[1].endswith(DEAD_SUFFIX) else BUILT_IN_ENTRY.max_attempts
        else:
            policy = namespace.of(key[1])
            attempts, throttles, paused = policy.max_attempts, policy.throttles, policy.paused_tenants
            exact = _EXACT if policy.exact_attempts else _NOTHING
        for one in rules:
            ruled = self.with_rules(key, one)
            attempts = min(attempts or NO_BOUND, ruled.max_attempts or NO_BOUND)
            exact = exact | {one} if ruled.exact_attempts else exact
        made = attempts or NO_BOUND, exact, throttles, paused
        bounds = self._bounds.get(made)
        if bounds is None:
            bounds = self._bounds[made] = Bounds(self.changes, *made)
        return bounds
