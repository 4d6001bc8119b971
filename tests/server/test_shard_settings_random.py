"""A lone host whose databases come and go, and that is killed at any moment: a confirmed change is never lost."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from foqs.errors import FoqsError
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Settings, Standing, standing
from foqs.server import settings as shard_settings
from foqs.server.settings import ShardSettings
from foqs.store.protocol import StoreDown
from tests.policies.log_checks import disagreements
from tests.server.test_shard_settings import Thread

SEEDS = range(300)


class Engine:
    """`HostSettings` of a host that has no other part."""

    def apply_settings(self, settings: Settings) -> None: ...


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.databases: dict[int, dict[str, Settings]] = {n: {} for n in range(10, 10 + self.rng.randint(1, 4))}
        self.down: set[int] = set()
        self.confirmed = Settings("ns")
        self.puts = 0
        self.counts: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """A host that is killed leaves the changes that its threads were about to make, or made without an answer."""
        self.threads: dict[int, Thread] = {}
        self.timers: list[Any] = []
        self.settings = HostSettings(Engine())  # type: ignore[arg-type]
        self.kept = ShardSettings(
            self.databases, self.settings, lambda: self.threads, lambda _, do: self.timers.append(do)
        )
        self.opening: set[int] = set()

    def step(self) -> None:
        kinds = [self.open, self.run, self.put, self.fire, self.fail, self.mend, self.kill]
        self.rng.choices(kinds, [6, 12, 3, 3, 1, 2, 1])[0]()

    def open(self) -> None:
        closed = self.databases.keys() - self.threads.keys() - self.opening - self.down
        if closed:
            number = self.rng.choice(sorted(closed))
            thread = Thread()
            thread.stored = self.databases[number]
            self.opening.add(number)
            self.kept.settle(number, thread.rows(), partial(self._settled, number, thread))
            self.check()

    def _settled(self, number: int, thread: Thread, reason: str) -> None:
        self.opening.discard(number)
        if not reason:
            self.threads[number] = thread
            self.kept.copies.opened(number, thread.rows())
        elif "made apart" in reason:
            self.counts["made apart"] += 1
            self.repair()

    def repair(self) -> None:
        """An operator keeps a copy that has the confirmed changes, and removes those that were made apart from it."""
        stored = {number: found["ns"] for number, found in self.databases.items() if "ns" in found}
        good = [one for one in stored.values() if self.confirmed.history.leads_to(one.history)]
        kept = self.settings.of("ns") if self.kept.known else max(good, key=lambda one: one.version)
        for number, copy in stored.items():
            if standing(copy, kept) is Standing.FOREIGN:
                for ns in ("ns", ""):
                    self.databases[number].pop(ns, None)

    def run(self) -> None:
        busy = [number for number, thread in self.threads.items() if thread.calls]
        if busy:
            number = self.rng.choice(busy)
            self.threads[number].run(StoreDown("gone") if number in self.down else None)
            self.check()

    def put(self) -> None:
        if self.kept.known:
            self.puts += 1
            change = partial(Settings.changed, entries={"by": str(self.puts)}, remove=(), nonce=str(self.puts))
            self.kept.change_settings("ns", change, self.answered)

    def answered(self, outcome: Settings | FoqsError) -> None:
        self.counts[type(outcome).__name__] += 1
        if isinstance(outcome, Settings):
            assert outcome.version > self.confirmed.version or outcome.history.leads_to(self.confirmed.history)
            if outcome.version > self.confirmed.version:
                assert self.confirmed.history.leads_to(outcome.history)
                self.confirmed = outcome
            self.check()

    def fire(self) -> None:
        if self.timers:
            self.timers.pop(self.rng.randrange(len(self.timers)))()

    def fail(self) -> None:
        self.down.add(self.rng.choice(sorted(self.databases)))

    def mend(self) -> None:
        if self.down:
            self.down.discard(self.rng.choice(sorted(self.down)))

    def kill(self) -> None:
        self.counts["killed"] += 1
        for number, thread in self.threads.items():
            if thread.calls and number not in self.down and self.rng.random() < 0.5:
                work, _ = thread.calls[0]
                try:
                    work(thread)  # type: ignore[arg-type]
                except FoqsError:
                    self.counts["refused"] += 1
        if self.rng.random() < 0.3 and len(self.databases) < 6:  # foqs.toml gets a new shard
            self.databases[self.rng.choice(sorted(set(range(7, 20)) - self.databases.keys()))] = {}
        self.start()

    def check(self) -> None:
        """A host that serves acts on each confirmed change."""
        for stored in self.databases.values():
            assert disagreements(stored.get("ns", Settings("ns"))) == []
        if self.kept.known:
            known = self.settings.of("ns")
            assert disagreements(known) == []
            assert self.confirmed.history.leads_to(known.history), (self.confirmed, known)


def play(seed: int, counts: Counter[str]) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    counts.update(world.counts)


def test_a_confirmed_change_outlives_kills_and_lost_databases() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        play(seed, counts)
    assert min(counts[kind] for kind in ("Settings", "killed", "Unavailable", "OutcomeUnknown")) > 50, counts


@pytest.mark.parametrize("mutant", ["half", "any shard", "new shards vote"])
def test_the_simulation_finds_a_rule_that_is_too_weak(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "half":
        weak = lambda shards, held: 2 * len(set(shards) & set(held)) >= len(shards)  # noqa: E731
        monkeypatch.setattr(shard_settings, "enough", weak)
    elif mutant == "any shard":
        monkeypatch.setattr(shard_settings, "enough", lambda shards, held: bool(set(shards) & set(held)))
    else:
        monkeypatch.setattr(shard_settings, "is_complete", lambda _: True)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            play(seed, Counter())
