"""Faults of a cluster at work. Each fault undoes itself; none waits for the cluster to recover."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from foqs_lab.chaos.arena import SESSION_MS, Arena

_SESSION_S = SESSION_MS / 1000
_LOST_MS = 60_000


def host_killed(arena: Arena, rng: random.Random) -> None:
    """Kill a host, and start it again at once, or after other hosts have taken its shards."""
    name = _one_of(arena, rng)
    host = arena.cluster.hosts[name]
    host.kill()
    if rng.random() < 0.5:
        _until_lost(arena, name)
    arena.cluster.start(name)


def host_frozen(arena: Arena, rng: random.Random) -> None:
    """Freeze a host beyond its session: it wakes up with the belief that it still owns its shards."""
    name = _one_of(arena, rng)
    arena.cluster.hosts[name].pause()
    _until_lost(arena, name)
    time.sleep(rng.uniform(0, 1))
    arena.cluster.hosts[name].resume()


def host_without_zookeeper(arena: Arena, rng: random.Random) -> None:
    """Cut a living host off from ZooKeeper until the other hosts take its shards."""
    name = _one_of(arena, rng)
    arena.to_zookeeper[name].hold()
    _until_lost(arena, name)
    time.sleep(rng.uniform(0, 1))
    arena.to_zookeeper[name].flow()


def zookeeper_away(arena: Arena, rng: random.Random) -> None:
    """For longer than the sessions last."""
    arena.cluster.zookeeper.kill()
    time.sleep(_SESSION_S + rng.uniform(0.5, 2))
    arena.cluster.zookeeper.start()


def zookeeper_cut(arena: Arena, rng: random.Random) -> None:
    for relay in arena.to_zookeeper.values():
        relay.cut()


def database_killed(arena: Arena, rng: random.Random) -> None:
    database = rng.choice(arena.databases)
    database.kill()
    time.sleep(rng.uniform(0, 1))
    database.restart()


def database_cut(arena: Arena, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        rng.choice(arena.to_database).cut()
        time.sleep(rng.uniform(0, 0.3))


def database_held(arena: Arena, rng: random.Random) -> None:
    """Make a connection half-open: no data arrives, and neither end gets an error."""
    relay = rng.choice(arena.to_database)
    relay.hold()
    time.sleep(rng.uniform(0.1, 3))
    relay.flow()


def peers_cut(arena: Arena, rng: random.Random) -> None:
    for relay in arena.to_host.values():
        relay.cut()


def peers_held(arena: Arena, rng: random.Random) -> None:
    relay = arena.to_host[_one_of(arena, rng)]
    relay.hold()
    time.sleep(rng.uniform(0.1, 3))
    relay.flow()


OWNER_IS_LOST = (host_killed, host_frozen, host_without_zookeeper)
"""In these an owner is replaced before it could write its leases: at-least-once items may come again early."""
FAULTS: tuple[Callable[[Arena, random.Random], None], ...] = (
    *OWNER_IS_LOST, zookeeper_away, zookeeper_cut, database_killed, database_cut, database_held, peers_cut, peers_held,
)  # fmt: skip


def _one_of(arena: Arena, rng: random.Random) -> str:
    return rng.choice(sorted(arena.cluster.hosts))


def _until_lost(arena: Arena, name: str) -> None:
    arena.cluster.registry.wait_for(lambda facts: name not in facts.hosts, timeout_ms=_LOST_MS)
