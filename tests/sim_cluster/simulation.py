"""Whole clusters on a fake clock and a fake ZooKeeper: the real membership, controller and routing of every host.

A run makes trouble for a while, then mends everything: the cluster must then settle in time, with every shard served.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import structlog

from foqs.shardmgr.facts import Facts, ShardFact
from foqs.shardmgr.routing import planned
from tests.kernel.run import Run, Stuck
from tests.sim_cluster.checks import Checks, Row, broken
from tests.sim_cluster.member import Member
from tests.sim_cluster.profile import random_profile
from tests.sim_cluster.trouble import LOSS, Trouble
from tests.zk.ensemble import KINDS, Ensemble

_LOOK_MS = 250


class _Watched(Ensemble):
    """Notify the checks of each change before any host sees it."""

    checks: Checks

    def changed(self, *kinds: str) -> None:
        super().changed(*kinds)
        for kind in kinds:
            self.checks.truth_changed(kind)


class Simulation(Run):
    last_lines = 2_000

    def __init__(self, seed: int, trouble: str = "") -> None:
        super().__init__(seed, trouble)
        self.profile = profile = random_profile(self.rng, seed)
        self.ensemble = _Watched(
            self.rng,
            self.soon,
            delay_ms=profile.delay_ms,
            session_ms=profile.settings.session_timeout_ms,
            clock_ms=lambda: self.now_ms + 1,  # a time of 0 is none
        )
        self.checks = self.ensemble.checks = Checks(self)
        self.rows: dict[str, Row] = {}
        self.down: dict[int, float] = {}  # databases that do not answer, and since when
        self.apart: set[tuple[str, int]] = set()  # hosts and databases that do not reach each other
        self.members: list[Member] = []
        self._made = 0
        self._runs = 0
        for number in range(1, profile.shards + 1):
            self.ensemble.shards[number] = self.new_shard(number)
            self.ensemble.wrote(number)
        if trouble == LOSS:
            self.ensemble.slots = replace(planned(self.truth(), 1), version=0)
            self.ensemble.wrote("slots")
        self.faults = Trouble(self)

    # ------------------------------------------------------------------------------------- the world

    def truth(self) -> Facts:
        return Facts(**{kind: self.ensemble.value(kind) for kind in KINDS})

    def up(self, url: str, host: str) -> bool:
        if not (self.down or self.apart):
            return True
        database = self.database(url)
        return database not in self.down and (host, database) not in self.apart

    @staticmethod
    @cache
    def database(url: str) -> int:
        return int(url.split("/")[2])

    def new_shard(self, number: int) -> ShardFact:
        url = f"db://{number % self.profile.databases}/{number}"
        self.rows.setdefault(url, Row(url))
        return ShardFact(number, url, self.rng.choice([1.0, 2.0, 5.0]) if self.profile.weighted else 1.0)

    def copied(self, fact: ShardFact) -> str:
        """Return another URL, whose database holds a copy of the shard's row."""
        url = f"{fact.url}+"
        self.rows.setdefault(url, Row(url)).epoch = self.rows[fact.url].epoch
        return url

    def new_name(self) -> str:
        self._made += 1
        return f"h{self._made}"

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def any_name(self) -> str:
        """Return the name of a host that lives, or lived."""
        return f"h{self.rng.randint(1, self._made)}"

    def start(self, host: str) -> None:
        """Start a process of the host, unless one still runs."""
        if all(member.id != host for member in self.members):
            self._runs += 1
            self.members.append(Member(self, host, self._runs))
            self.note(self.members[-1], "starts")

    def gone(self, member: Member) -> None:
        self.members.remove(member)
        self.note(member, "is gone")

    # ------------------------------------------------------------------------------------- the run

    def play(self) -> None:
        self.note(self.profile)
        with structlog.testing.capture_logs():
            self._play()

    def _play(self) -> None:
        profile, settings = self.profile, self.profile.settings
        for _ in range(profile.hosts):
            self.soon(self.rng.random() * 2 * settings.settle_ms, lambda: self.start(self.new_name()))
        self.until(2 * settings.settle_ms + 1)
        self.faults.begin()
        self.until(self.now_ms + profile.active_ms)
        self.healing = True
        self.until(self.now_ms + 3 * profile.delay_ms)  # earlier requests to ZooKeeper are done
        self.until(self.now_ms + 10 * settings.session_timeout_ms, self.faults.over)
        self.note("all is mended")
        self.faults.mend()
        self.settle()
        self._rest()

    def settle(self) -> None:
        profile, settings = self.profile, self.profile.settings
        rounds = len(self.ensemble.shards) / settings.max_moves + 4
        bound_ms = 4 * settings.session_timeout_ms + profile.grace_ms + rounds * settings.balance_every_ms + 20_000
        end_ms = self.now_ms + bound_ms
        self.until(self.now_ms + 3 * profile.delay_ms)  # all hosts have seen the effects of earlier requests
        while why := self.checks.unsettled():
            if self.now_ms >= end_ms:
                raise Stuck(f"after {bound_ms:.0f} ms: {why}")
            self.until(self.now_ms + _LOOK_MS)

    def _rest(self) -> None:
        """Check that nothing moves any more."""
        before = self.truth()
        self.note("at rest")
        self.until(self.now_ms + 2.5 * self.profile.settings.balance_every_ms)
        after = self.truth()
        if (before.assignment, before.owners) != (after.assignment, after.owners):
            broken("shards are moved when all is as it should be")
        if why := self.checks.unsettled():
            raise Stuck(f"later: {why}")


def simulate(seed: int, trouble: str = "") -> Simulation:
    return Simulation(seed, trouble).run()
