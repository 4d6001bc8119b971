"""The cluster of one seed: its size, the delays of ZooKeeper and the databases, and how often trouble comes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from foqs.shardmgr.controller import ControllerSettings

_BIG = 100  # one seed of so many


@dataclass(frozen=True)
class Profile:
    hosts: int
    most_hosts: int
    shards: int
    databases: int  # shards go down together with theirs
    weighted: bool
    active_ms: int  # how long trouble goes on
    trouble_every_ms: int
    delay_ms: int  # at most, of each request to ZooKeeper and of each notification
    open_ms: int  # a shard is opened within this time, when its database answers
    drain_ms: int
    work_every_ms: int  # how often an owner's epoch is compared with the stored one
    handover_ms: int
    grace_ms: int
    settings: ControllerSettings

    @property
    def slack_ms(self) -> int:
        """Time after a change of facts within which work that began on the old facts has ended."""
        return 2 * self.delay_ms + self.open_ms + 50


def random_profile(rng: random.Random, seed: int) -> Profile:
    big = seed % _BIG == _BIG - 1
    hosts = rng.choice([20, 50]) if big else rng.randint(3, 8)
    shards = hosts * 20 if big else rng.choice([4, 12, 30, 60])
    return Profile(
        hosts=hosts,
        most_hosts=hosts if big else hosts + 2,
        shards=shards,
        databases=rng.randint(1, 4),
        weighted=rng.random() < 0.3,
        active_ms=rng.randint(8_000, 15_000) if big else rng.randint(10_000, 30_000),
        trouble_every_ms=1_000 if big else rng.choice([200, 500, 1_500]),
        delay_ms=200 if big else rng.choice([5, 20, 100]),
        open_ms=rng.choice([20, 200, 800]),
        drain_ms=rng.choice([10, 300]),
        work_every_ms=1_000 if big else rng.choice([100, 500]),
        handover_ms=rng.choice([500, 2_000, 5_000]),
        grace_ms=rng.choice([1_000, 5_000, 15_000]),
        settings=ControllerSettings(
            session_timeout_ms=rng.choice([2_000, 4_000, 10_000]),
            settle_ms=rng.choice([0, 500, 1_000]),
            balance_every_ms=rng.choice([3_000, 6_000]),
            max_moves=hosts * 2 if big else rng.choice([2, 10]),
        ),
    )
