"""The faults of a chaos run: what happens to hosts, ZooKeeper, databases, connections and secrets.

Each fault ends when the broken part works again. Hosts may still be busy with it then.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from time import monotonic_ns

from foqs.shardmgr.facts import Facts, ShardUse
from foqs.shardmgr.operate import PutShard
from foqs.zk.protocol import ZkError
from foqs_lab.arena import SESSION_MS, Arena, Place
from foqs_lab.crash.history import Loss
from foqs_lab.servers.replicas import Replica

Fault = Callable[[Arena, random.Random], None]
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
    """Kill the ZooKeeper for longer than the sessions last."""
    arena.cluster.zookeeper.kill()
    time.sleep(_SESSION_S + rng.uniform(0.5, 2))
    arena.cluster.zookeeper.start()


def zookeeper_cut(arena: Arena, rng: random.Random) -> None:
    for relay in arena.to_zookeeper.values():
        relay.cut()


def database_killed(arena: Arena, rng: random.Random) -> None:
    database = rng.choice(arena.places).server
    database.kill()
    time.sleep(rng.uniform(0, 1))
    database.restart()


def database_cut(arena: Arena, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        for relay in rng.choice(arena.places).ways:
            relay.cut()
        time.sleep(rng.uniform(0, 0.3))


def database_held(arena: Arena, rng: random.Random) -> None:
    """Make a connection half-open: no data arrives, and neither end gets an error."""
    ways = rng.choice(arena.places).ways
    for relay in ways:
        relay.hold()
    time.sleep(rng.uniform(0.1, 3))
    for relay in ways:
        relay.flow()


def peers_cut(arena: Arena, rng: random.Random) -> None:
    for relay in arena.to_host.values():
        relay.cut()


def peers_held(arena: Arena, rng: random.Random) -> None:
    relay = arena.to_host[_one_of(arena, rng)]
    relay.hold()
    time.sleep(rng.uniform(0.1, 3))
    relay.flow()


# ------------------------------------------------------------------------------------------------- ZooKeeper's data


def zookeeper_wiped(arena: Arena, rng: random.Random) -> None:
    """Remove ZooKeeper's data: it starts empty, and hosts write back what they know."""
    before = _durable(arena)
    arena.cluster.zookeeper.lose()
    time.sleep(rng.uniform(0, 1))
    arena.cluster.zookeeper.start()
    _wait_for_durable(arena, before)


def zookeeper_restored(arena: Arena, rng: random.Random) -> None:
    """Put an older copy in the place of ZooKeeper's data: of this moment, or of an earlier one of the run."""
    before = _durable(arena)
    if arena.zookeeper_copy is None or rng.random() < 0.5:
        arena.zookeeper_copy = arena.folder / f"zookeeper-{next(arena.numbers)}"
        arena.cluster.zookeeper.copy_data(arena.zookeeper_copy)
        time.sleep(rng.uniform(0.5, 2))
    arena.cluster.zookeeper.put_back(arena.zookeeper_copy)
    arena.cluster.zookeeper.start()
    _wait_for_durable(arena, before)


Durable = tuple[object, ...]


def _durable_of(facts: Facts) -> Durable:
    """Return the records that no host may lose. Only an operator's drained hosts change in a run."""
    return facts.shards, facts.slots.shards, facts.settings, facts.identity.id


def _durable(arena: Arena) -> Durable:
    facts = arena.cluster.registry.wait_for(
        lambda facts: facts.identity.id and not facts.identity.open and not facts.slots.moves
    )
    return _durable_of(facts)


def _wait_for_durable(arena: Arena, before: Durable) -> None:
    arena.cluster.registry.wait_for(
        lambda facts: _durable_of(facts) == before and not facts.identity.open, timeout_ms=_LOST_MS
    )


# --------------------------------------------------------------------------------------------- secrets and addresses


def secret_rotated(arena: Arena, rng: random.Random) -> None:
    """Replace the hosts' secret in two rolls, host after host, while they forward requests."""
    former, arena.secret = arena.secret, f"secret of the cluster, number {next(arena.numbers)}"
    for previous in (former, None):
        for name in rng.sample(sorted(arena.cluster.hosts), len(arena.cluster.hosts)):
            _write_secret(arena, name, previous)
            host = arena.cluster.hosts[name]
            before = host.said(_RELOADED)
            host.signal(signal.SIGHUP)
            host.wait_for(_RELOADED, times=before + 1)


_RELOADED = "config.reloaded"


def _write_secret(arena: Arena, name: str, previous: str | None) -> None:
    """Change the configuration of one host, as an operator does."""
    path = arena.cluster.hosts[name].config
    lines = [line for line in path.read_text().splitlines() if not line.startswith("cluster_secret")]
    at = lines.index("[auth]") + 1
    keys = [f'cluster_secret = "{arena.secret}"']
    keys += [] if previous is None else [f'cluster_secret_previous = "{previous}"']
    new = path.with_suffix(".new")
    new.write_text("\n".join([*lines[:at], *keys, *lines[at:]]) + "\n")
    os.replace(new, path)


def address_changed(arena: Arena, rng: random.Random) -> None:
    """Give a shard another account, another password of its account, or another address of the same server."""
    place = rng.choice(arena.places)
    number = rng.choice(arena.shards_of(place))
    user = rng.choice(list(place.passwords))
    if rng.random() < 0.5:
        place.passwords[user] = f"password {next(arena.numbers)}".replace(" ", "-")
        place.give_accounts()
    if rng.random() < 0.5 and len(place.ways) < _MOST_WAYS:
        place.ways.append(arena.relay(place.port))
    for shard in arena.shards_of(place):
        url = arena.cluster.registry.facts.shards[shard].url
        if shard == number or f"//{user}:" in url:  # they may have an old password
            _set_url(arena, place, shard, user, rng)


def _set_url(arena: Arena, place: Place, shard: int, user: str, rng: random.Random) -> None:
    database = next(one.database for one in arena.cluster.shards if one.number == shard)
    url = f"mysql+pymysql://{user}:{place.passwords[user]}@127.0.0.1:{rng.choice(place.ways).port}/{database}"
    argv = ["shards", "set-url", str(shard), url, "--yes", "--config", str(arena.cluster.config)]
    ran = subprocess.run(
        [sys.executable, "-m", "foqs", *argv], capture_output=True, text=True, check=False, timeout=_COMMAND_S
    )
    if ran.returncode != 0:
        raise RuntimeError(f"foqs shards set-url failed: {ran.stdout}{ran.stderr}")


_COMMAND_S = 120
_MOST_WAYS = 4


# --------------------------------------------------------------------------------------- fail-overs and older copies


def database_failed_over(arena: Arena, rng: random.Random) -> None:
    """Kill a primary whose replica has confirmed every commit, and promote the replica. Nothing may be lost."""
    place = rng.choice(arena.places)
    replica = _replica(arena, place)
    time.sleep(rng.uniform(0, 1))
    place.private.kill()
    _promote(place, replica)


def database_failed_over_late(arena: Arena, rng: random.Random) -> None:
    """The same with a replica that got no commit of the last moments: these are lost."""
    place = rng.choice(arena.places)
    replica = _replica(arena, place)
    began = monotonic_ns()
    replica.fall_behind()
    copied = monotonic_ns()
    time.sleep(rng.uniform(0.2, 2))
    place.private.kill()
    _note_loss(arena, place, began, copied, database_failed_over_late)
    _promote(place, replica)


def database_restored(arena: Arena, rng: random.Random) -> None:
    """Put a copy of a database in its place, which is some seconds old. Its shards are disabled before, or not."""
    place = rng.choice(arena.places)
    copy = arena.folder / f"database-{next(arena.numbers)}"
    began = monotonic_ns()
    place.private.copy_data(copy)
    copied = monotonic_ns()
    time.sleep(rng.uniform(0, 3))
    disabled = rng.random() < 0.5
    if disabled:
        _use(arena, place, ShardUse.DISABLED)
        numbers = set(arena.shards_of(place))
        arena.cluster.registry.wait_for(lambda facts: not numbers & facts.owners.keys(), timeout_ms=_LOST_MS)
    place.private.kill()
    _note_loss(arena, place, began, copied, database_restored)
    place.private.put_back(copy)
    place.private.restart()
    place.give_accounts()
    if disabled:
        _use(arena, place, ShardUse.ENABLED)


def _replica(arena: Arena, place: Place) -> Replica:
    """Start a replica that confirms every commit from now on."""
    replica = Replica(place.private, next(arena.numbers))
    arena.close_later(replica.close)
    replica.start()
    replica.follow()
    return replica


def _promote(place: Place, replica: Replica) -> None:
    replica.promote()
    former = place.private
    place.lead_to(replica)
    former.close()


def _note_loss(arena: Arena, place: Place, began: int, copied: int, fault: Fault) -> None:
    """The original is gone. The chaos run adds when its shards are served again."""
    shards = tuple(arena.shards_of(place))
    arena.losses.append(Loss(began, monotonic_ns(), copied, 0, shards, fault.__name__))


def _use(arena: Arena, place: Place, use: ShardUse) -> None:
    """Enable or disable the shards of a database. Raises TimeoutError."""
    registry = arena.cluster.registry
    for number in arena.shards_of(place):

        def is_so(facts: Facts, number: int = number) -> bool:
            return facts.shards[number].use is use

        while not is_so(facts := registry.wait_for(lambda _: True)):
            fact = facts.shards[number]
            try:
                registry.carry_out(PutShard(replace(fact, use=use), fact))
                registry.wait_for(is_so)
            except ZkError:  # the next look says whether it was done
                time.sleep(0.1)


OWNER_IS_LOST: tuple[Fault, ...] = (host_killed, host_frozen, host_without_zookeeper)
"""In these an owner is replaced before it could write its leases: at-least-once items may come again early."""
FAULTS: tuple[Fault, ...] = (
    *OWNER_IS_LOST, zookeeper_away, zookeeper_cut, database_killed, database_cut, database_held, peers_cut, peers_held,
    zookeeper_wiped, zookeeper_restored, secret_rotated, address_changed, database_failed_over,
)  # fmt: skip
"""In these every promise holds."""
LOSSES: tuple[Fault, ...] = (database_failed_over_late, database_restored)
"""These lose the commits of the last moments, and nothing else."""
OF_PROCESSES: tuple[Fault, ...] = (address_changed, database_failed_over, *LOSSES)
"""These need database servers that are processes: a container has other accounts, and its data cannot be copied."""


def _one_of(arena: Arena, rng: random.Random) -> str:
    return rng.choice(sorted(arena.cluster.hosts))


def _until_lost(arena: Arena, name: str) -> None:
    arena.cluster.registry.wait_for(lambda facts: name not in facts.hosts, timeout_ms=_LOST_MS)
