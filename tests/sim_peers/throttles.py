"""Items with throttle keys in a simulated run, and settings that change their throttles. Hosts learn of these at
different times.

Promise 11 is checked by the time of each lease, with what the operator knows: which hosts applied which version of the
settings, when. An item that did not reach its consumer, or was released, gave its tokens back. At the end, without
faults, each key's rate is reached, and no set of keys starves.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.sim.ledger import broken
from tests.sim_peers.profile import LIMITED, THROTTLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foqs.item import Item
    from tests.sim_peers.host import Host
    from tests.sim_peers.simulation import Simulation

HELD_MS = 3_000
"""Within this, a host spends the tokens that it held when a smaller burst came into force."""
_STORED = 30
"""Items of each set of keys that there are, and more are added, while producers produce."""
_TOP_UP_MS = 200
_BACK_MS = 3_000
"""The rates are reached so long after the last fault, when all hosts know that hosts have died."""
_MEASURED_MS = 5_000
_LONG_MS = 20_000
"""For a token a second."""
_REACHED = 0.9
_PAIRED = 0.8
"""Of two sets with the same two keys: one host needs tokens of both at a time."""
_CROSSED = 0.4
"""Of three sets that have two of three keys each: a token of one is of no use on a host that waits for the other."""
_KEPT, _ONLY_KEPT = 0.8, 0.4
"""Of `reached`, for a key that is in a pair: each host may keep a token for an item that waits for the other key. The
smaller share is that of a key with a burst of 1."""


class Rule(NamedTuple):
    per_second: float
    burst: int
    shadow: bool = False


@dataclass(frozen=True)
class Version:
    """`rules` by key. `added`: the keys that the policy of the first topic adds to its items."""

    settings: Settings
    rules: dict[str, Rule]
    added: tuple[str, ...] = ()


@dataclass(eq=False)
class _InForce:
    """A version on a host, from `since_ms` until before `until_ms`."""

    host: Host
    version: Version
    since_ms: int
    until_ms: int | None = None


class Throttles:
    """`sets`: the throttle keys of the items. `reached`: the share of each key's rate that hosts use at least."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.rng = rng = random.Random(sim.seed)
        self.active = sim.trouble == "throttles"
        pairs = [("a", "b"), ("b", "c"), ("a", "c")]
        self.sets, self._reached = rng.choice(
            [
                ([("a",), ("b",), ("c",), rng.choice(pairs)], _REACHED),
                ([("a", "b"), ("b", "a"), ("c",)], _PAIRED),
                (pairs, _CROSSED),
            ]
        )
        one = self._any_rule()
        if one[:2] == (20, 1):  # each item costs two trips to a coordinator, and both keys lie idle in them
            one = Rule(20, 3)
        self._rules = dict.fromkeys(THROTTLES, one)
        if all((key,) in self.sets for key in THROTTLES):
            self._rules = {key: self._any_rule() for key in THROTTLES}
        self._changing = rng.random() < 0.5
        self._in_force: list[_InForce] = []
        self._latest = self._version(1, self._rules)
        self._leased: dict[str, dict[tuple[int, int], int]] = {key: {} for key in THROTTLES}  # when, by id and lease
        self._given: Counter[tuple[str, ...]] = Counter()
        self._consuming = True
        self._rests_until = 0
        self.producing = True

    def _any_rule(self) -> Rule:
        return Rule(self.rng.choice([1, 5, 20]), self.rng.choice([1, 3, 10]))

    # ------------------------------------------------------------------------------------- settings

    def _version(self, number: int, rules: dict[str, Rule], added: tuple[str, ...] = ()) -> Version:
        entries: dict[str, Any] = {f"throttle.{key}": rule._asdict() for key, rule in rules.items()}
        if added:
            entries["topic.topic-0"] = {"throttles": added}
        texts = {key: json.dumps(value) for key, value in entries.items()}
        return Version(Settings(LIMITED, number, texts), rules, added)

    def join(self, host: Host) -> None:
        """A host has all settings before it serves."""
        if self.active:
            self._apply(host, self._latest)

    def died(self, host: Host) -> None:
        self._ends(host)

    def change(self) -> None:
        """Change, shadow or remove some throttles."""
        if not self._changing:
            return
        rng, rules = self.rng, dict(self._rules)
        for key in THROTTLES:
            fate = rng.random()
            if fate < 0.1:
                del rules[key]
            elif fate < 0.2:
                rules[key] = rules[key]._replace(shadow=True)
            elif fate < 0.6:
                rules[key] = self._any_rule()
        self._publish(rules, tuple(rng.sample(THROTTLES, rng.choice([0, 0, 1]))))

    def _publish(self, rules: dict[str, Rule], added: tuple[str, ...] = ()) -> None:
        self._latest = version = self._version(self._latest.settings.version + 1, rules, added)
        self.sim.checks.counts["throttles changed"] += 1
        for host in self.sim.hosts:
            host.later(self.rng.choice(self.sim.profile.settings_news_ms), partial(self._apply, host, version))

    def _apply(self, host: Host, version: Version) -> None:
        before = self._of(host)
        if before is None or before.version.settings.version < version.settings.version:
            self._ends(host)
            self._in_force.append(_InForce(host, version, self.sim.time))
            host.settings.apply(version.settings)

    def _of(self, host: Host) -> _InForce | None:
        return next((one for one in self._in_force if one.host is host and one.until_ms is None), None)

    def _ends(self, host: Host) -> None:
        one = self._of(host)
        if one is not None:
            one.until_ms = self.sim.time

    # ------------------------------------------------------------------------------------- leases

    def leased(self, host: Host, item: Item, token: int) -> None:
        """The host leased the item, now."""
        ns, topic = item.lane.topic.key
        if ns != LIMITED:
            return
        applied = self._of(host)
        assert applied is not None
        version, own = applied.version, self.sim.checks.spec_of(item.id).throttles
        added = version.added if topic == "topic-0" else ()
        for key in {*own, *added}:
            rule = version.rules.get(key)
            if rule is not None and not rule.shadow:
                self._leased[key].setdefault((item.id, token), self.sim.time)
        self._given[tuple(sorted(own))] += 1
        self.sim.checks.counts["throttled"] += 1

    def given_back(self, item: Item) -> None:
        for leased in self._leased.values():
            if leased.pop((item.id, item.lease), None) is not None:
                self.sim.checks.counts["given back"] += 1

    # ------------------------------------------------------------------------------------- clients

    def start(self) -> None:
        self.top_up()
        for _ in range(3):
            self._consume()
        self._rest()

    def top_up(self) -> None:
        """Keep some items of each set of keys stored, on all hosts."""
        if not self.producing:
            return
        specs = map(self.sim.checks.spec_of, self.sim.checks.left())
        stored = Counter(spec.throttles for spec in specs if spec.ns == LIMITED)
        for keys in self.sets:
            for host in [host for host in self.sim.hosts if host.alive]:
                count = (_STORED - stored[keys]) // 3
                if count > 0:
                    topic = self.rng.choice(self.sim.profile.topics)
                    specs = [self.sim.checks.new_spec(LIMITED, topic, throttles=keys) for _ in range(count)]
                    self.sim.clients.enqueue(specs, host=host)
        self.sim.soon(_TOP_UP_MS, self.top_up)

    def _wants(self) -> list[Any]:
        return [idl.TopicCount(topic, self.rng.choice([1, 3, 10])) for topic in self.sim.profile.topics]

    def _rest(self) -> None:
        """Now and then no consumer asks for items, and a host may be frozen: hosts hold tokens, and buckets fill."""
        self._rests_until = self.sim.time + self.rng.choice([0, 300, 1_000, 2_000])
        if self.sim.profile.freeze_every_ms and self.rng.random() < 0.5:
            self.rng.choice(self.sim.hosts).freeze(self._rests_until)
        if self._consuming:
            self.sim.soon(self.rng.randint(500, 2_000), self._rest)

    def _consume(self) -> None:
        if not self._consuming:
            return
        rng, clients = self.rng, self.sim.clients
        rest_ms = self._rests_until - self.sim.time
        if rest_ms > 0:
            self.sim.soon(rest_ms, self._consume)
            return

        def received(items: Sequence[Any]) -> None:
            for item in items:
                handle = partial(clients.handle, LIMITED, item.id, item.lease)
                if rng.random() < 0.3:
                    handle = partial(clients.settle, "release", item.id, item.lease)
                self.sim.soon(rng.choice([1, 5, 600]), handle)
            self.sim.soon(rng.choice([1, 20]), self._consume)

        wait_ms, timeout_ms = rng.choice([0, 50, 300]), rng.choice([200, 2_000])
        clients.take(LIMITED, self._wants(), (), received, 1_500, timeout_ms=timeout_ms, wait_ms=wait_ms)

    def _drain(self, host: Host) -> None:
        """A consumer at this host that acks all that it receives."""
        if not self.producing:
            return
        clients = self.sim.clients

        def received(items: Sequence[Any]) -> None:
            for item in items:
                clients.settle("ack", item.id, item.lease)
            self.sim.soon(2, lambda: self._drain(host))

        clients.take(LIMITED, self._wants(), (), received, 1_000, timeout_ms=1_000, wait_ms=1_000, host=host)

    # ------------------------------------------------------------------------------------- at the end

    def heal(self) -> None:
        """No faults from here on."""
        if self._changing:
            self._publish(self._rules)
        self._consuming = False

    def measure(self) -> None:
        """Check that each key's rate is reached; then remove all throttles."""
        for host in self.sim.hosts:
            self._drain(host)
        clock = self.sim
        clock.until(clock.time + _BACK_MS)
        begun_ms = clock.time
        self._given.clear()
        clock.until(begun_ms + self._measured_ms())
        shares = {key: self._share(key, begun_ms) for key in THROTTLES}
        self.sim.checks.counts["measured"] += 1
        paired = {key for keys in self.sets if len(keys) > 1 for key in keys}
        kept = {key: _ONLY_KEPT if self._rules[key].burst == 1 else _KEPT for key in paired}
        if any(share < self._reached * kept.get(key, 1) for key, share in shares.items()):
            broken(11, f"of the rates, {shares} are reached: {self._rules}, {self.sets}, {self._given}")
        if not all(self._given[tuple(sorted(keys))] for keys in self.sets):
            broken(11, f"of {self.sets}, {self._given} are delivered")
        self.producing = False
        self._publish({})

    def _measured_ms(self) -> int:
        return _LONG_MS if any(rule.per_second == 1 for rule in self._rules.values()) else _MEASURED_MS

    def _share(self, key: str, since_ms: int) -> float:
        """Return how much of the key's rate was used since then, with a token more for what rounds down."""
        used = sum(at_ms >= since_ms for at_ms in self._leased[key].values())
        return (used + 1) / (self._rules[key].per_second * (self.sim.time - since_ms) / 1_000)

    def check_rates(self) -> None:
        """In any stretch of time, no key is in more leases than the rates in force allow, on top of a burst in force
        at its begin or shortly before."""
        edges = sorted({edge for one in self._in_force for edge in (one.since_ms, one.until_ms or 0)})
        for key, leased in self._leased.items():
            allowed, rate, last_ms, to_come = 0.0, 0.0, 0, list(edges)
            room: float | None = None  # at the lease where a stretch would begin that has least room
            leases = sorted(leased.values())
            for before, at_ms in enumerate(leases):
                while to_come and to_come[0] <= at_ms:
                    edge_ms = to_come.pop(0)
                    allowed += rate * (edge_ms - last_ms) / 1_000
                    rates = [rule.per_second for rule in self._rules_in(key, edge_ms)]
                    last_ms, rate = edge_ms, max(rates, default=rate)  # a bucket fills while there is no throttle
                allowed += rate * (at_ms - last_ms) / 1_000
                last_ms = at_ms
                begins = before - allowed + max(rule.burst for rule in self._rules_in(key, at_ms, HELD_MS))
                room = begins if room is None else min(room, begins)
                over = before + 1 - allowed - room
                if over > 1e-6:
                    broken(11, f"{over:.3f} leases with {key} too many: {leases[max(0, before - 30) : before + 1]}")

    def _rules_in(self, key: str, at_ms: int, since_ms: int = 0) -> list[Rule]:
        """Return the rules of the key in force on some host, then or up to `since_ms` before."""
        return [
            one.version.rules[key]
            for one in self._in_force
            if key in one.version.rules
            and one.since_ms <= at_ms
            and (one.until_ms is None or one.until_ms > at_ms - since_ms)
        ]
