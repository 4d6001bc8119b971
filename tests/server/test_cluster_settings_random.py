"""Hosts of a cluster whose shards move, whose databases are away, and whose ZooKeeper is put back or lost.

A host that acted on a version never acts on an older one, and no shard is served on older settings than it keeps.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from foqs.errors import FoqsError, Unavailable
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Head, Settings, adopt
from foqs.server import settings as cluster_settings
from foqs.server import settings_copies
from foqs.server.settings import ClusterSettings
from foqs.settings_log import Log
from foqs.store.protocol import StoreDown
from tests.policies.log_checks import disagreements
from tests.policies.memory import MemorySettings
from tests.server.test_shard_settings import Thread
from tests.server.test_shard_settings_random import Engine

SEEDS = range(200)


class Host:
    def __init__(self, world: World) -> None:
        self.world = world
        self.threads: dict[int, Thread] = {}
        self.timers: list[Any] = []
        self.settings = HostSettings(Engine())  # type: ignore[arg-type]
        self.kept = ClusterSettings(
            world.store, self.settings, lambda: self.threads, lambda _, do: self.timers.append(do)
        )
        self.floor = Settings("ns")
        """The newest settings on which it acted."""
        self.follow()

    def follow(self) -> None:
        self.kept.follow(dict(self.world.store.stored))

    def check(self) -> None:
        known = self.settings.of("ns")
        assert self.floor.history.leads_to(known.history), (self.floor, known)
        assert disagreements(known, behind=True) == []
        self.floor = known


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.soon: list[Any] = []
        self.store = MemorySettings(self.soon.append)
        self.databases: dict[int, dict[str, Settings]] = {n: {} for n in range(1, 5)}
        self.away: set[int] = set()
        self.owners: dict[int, Host] = {}
        self.opening: set[int] = set()
        self.puts = 0
        self.counts: Counter[str] = Counter()
        self.hosts = [Host(self) for _ in range(3)]

    def step(self) -> None:
        kinds = [self.answer, self.work, self.open, self.put, self.news, self.fire, self.close, self.kill, self.lose]
        kinds += [self.break_one, self.mend, self.cut, self.put_back]
        self.rng.choices(kinds, [10, 10, 5, 3, 6, 3, 1, 1, 0.3, 1, 2, 1, 0.5])[0]()
        for host in self.hosts:
            host.check()
        assert disagreements(self.store.stored.get("ns", Settings("ns"))) == []
        for kept in self.databases.values():
            assert disagreements(kept.get("ns", Settings("ns")), behind=True) == []

    def answer(self) -> None:
        """ZooKeeper answers one request."""
        if self.soon:
            self.soon.pop(self.rng.randrange(len(self.soon)))()

    def news(self) -> None:
        """A host learns of the stored settings, sometimes of the document before its log."""
        torn = {
            ns: replace(one, log=Log(one.log.lines[: -self.rng.randint(1, 2)])) for ns, one in self.store.stored.items()
        }
        host = self.rng.choice(self.hosts)
        host.kept.follow(torn if self.rng.random() < 0.3 else dict(self.store.stored))

    def cut(self) -> None:
        """ZooKeeper answers nothing, or answers again."""
        self.store.error = None if self.store.error else Unavailable("ZooKeeper: no connection")

    def open(self) -> None:
        closed = self.databases.keys() - self.owners.keys() - self.opening - self.away
        if closed:
            number, host, thread = self.rng.choice(sorted(closed)), self.rng.choice(self.hosts), Thread()
            thread.stored = self.databases[number]
            self.opening.add(number)
            host.kept.settle(number, thread.rows(), partial(self._settled, number, host, thread))

    def _settled(self, number: int, host: Host, thread: Thread, reason: str) -> None:
        self.opening.discard(number)
        if host not in self.hosts:
            return
        if reason:
            self.counts["refused"] += 1
            assert "made apart" not in reason, reason
            return
        copy = thread.stored.get("ns", Settings("ns"))
        assert copy.history.leads_to(host.settings.of("ns").history), "the shard keeps newer settings"
        self.owners[number] = host
        host.threads[number] = thread
        host.kept.copies.opened(number, thread.rows())
        self.counts["served"] += 1

    def work(self) -> None:
        busy = [(n, host) for n, host in sorted(self.owners.items()) if host.threads[n].calls]
        if busy:
            number, host = self.rng.choice(busy)
            host.threads[number].run(StoreDown("gone") if number in self.away else None)

    def put(self) -> None:
        self.puts += 1
        change = partial(Settings.changed, entries={"by": str(self.puts)}, remove=(), nonce=str(self.puts))

        def done(outcome: Settings | FoqsError) -> None:
            self.counts[type(outcome).__name__] += 1

        self.rng.choice(self.hosts).kept.change_settings("ns", change, done)

    def fire(self) -> None:
        host = self.rng.choice(self.hosts)
        if host.timers:
            host.timers.pop(self.rng.randrange(len(host.timers)))()

    def close(self) -> None:
        """A shard is handed over: its thread ends its work first."""
        if self.owners:
            number = self.rng.choice(sorted(self.owners))
            host = self.owners.pop(number)
            host.kept.copies.closing(number, host.threads[number])
            thread = host.threads.pop(number)
            while thread.calls:
                thread.run(StoreDown("gone") if number in self.away else None)

    def kill(self) -> None:
        host = self.rng.choice(self.hosts)
        for number in [number for number, owner in self.owners.items() if owner is host]:
            del self.owners[number]
        self.hosts[self.hosts.index(host)] = Host(self)

    def break_one(self) -> None:
        self.away.add(self.rng.choice(sorted(self.databases)))

    def mend(self) -> None:
        self.away.clear()

    def put_back(self) -> None:
        """ZooKeeper is an older copy for a moment: a host that knows better repairs it."""
        self.settle()
        newest = self.store.stored.get("ns", Settings("ns"))
        if len(newest.past) > 1 and any(host.settings.of("ns") == newest for host in self.hosts):
            self.counts["put back"] += 1
            older = Settings("ns", newest.version - 1, {"by": "an older copy"}, newest.born, newest.past[1:])
            self.store.stored["ns"] = older
            self.settle()
            assert self.store.stored["ns"] == newest

    def settle(self) -> None:
        """ZooKeeper answers all, and all hosts learn of it."""
        self.store.error = None
        for _ in range(2):
            while self.soon:
                self.answer()
            for host in self.hosts:
                host.follow()
                while host.timers:
                    host.timers.pop()()
        while self.soon:
            self.answer()

    def lose(self) -> None:
        """All hosts stop in order, ZooKeeper loses its data, and hosts start."""
        self.counts["lost"] += 1
        self.away.clear()
        self.settle()
        newest = self.store.stored.get("ns", Settings("ns"))
        served = set(self.owners)
        while self.owners:
            self.close()
        for number in served:
            if newest.version:
                copy = self.databases[number].get("ns")
                assert copy == newest, "its copy was written before it was closed"
                assert copy.log == newest.log, "with its log"
        self.store.stored.clear()
        self.hosts = [Host(self) for _ in self.hosts]
        if served:  # foqs shards add, for each of them
            for number in self.databases:
                if "ns" in (kept := self.databases[number]):
                    self.store.change_settings("ns", adopt(kept["ns"], f"shard {number}"), lambda _: None)
            while self.soon:
                self.answer()
            found = self.store.stored.get("ns", newest)
            assert (found, found.log) == (newest, newest.log)
            self.hosts = [Host(self) for _ in self.hosts]
        else:
            for kept in self.databases.values():
                kept.clear()


def play(seed: int, counts: Counter[str]) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    counts.update(world.counts)


def test_no_host_falls_back_and_no_shard_is_served_early() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        play(seed, counts)
    assert min(counts[kind] for kind in ("served", "refused", "Settings", "Unavailable", "lost")) > 20, counts


@pytest.mark.parametrize("mutant", ["served before adoption", "follows back", "no copies", "no log", "no later log"])
def test_the_simulation_finds_a_mistake(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "served before adoption":
        monkeypatch.setattr(cluster_settings, "settle", lambda *_: "")
    elif mutant == "follows back":
        monkeypatch.setattr(HostSettings, "follow", _follow_blindly)
    elif mutant == "no log":
        monkeypatch.setattr(Settings, "encoded", Settings.document)
        monkeypatch.setattr(Settings, "united", lambda settings, other: settings)
    elif mutant == "no later log":
        monkeypatch.setattr(settings_copies, "_lacks", _lacks_a_version)
    else:
        monkeypatch.setattr(settings_copies.SettingsCopies, "_write", lambda *_: None)
        monkeypatch.setattr(settings_copies.SettingsCopies, "closing", lambda *_: None)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            play(seed, Counter())


def _lacks_a_version(has: Head, known: Settings) -> bool:
    return not known.history.leads_to(has.history)


def _follow_blindly(settings: HostSettings, found: dict[str, Settings]) -> list[Settings]:
    for one in found.values():
        settings.apply(one)
    return []
