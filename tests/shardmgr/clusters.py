"""Facts of clusters as a controller sees them, and what they become when its writes are carried out."""

from __future__ import annotations

from dataclasses import replace

from foqs.shardmgr.controller import ControllerSettings, Step, Write
from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, ShardFact

SETTINGS = ControllerSettings(
    session_timeout_ms=10_000, settle_ms=1_000, balance_every_ms=30_000, max_moves=2, again_ms=500
)
ME = "a"
EVEN = {1: "a", 2: "b", 3: "a", 4: "b"}
LOPSIDED = dict.fromkeys(range(1, 9), "a")


def host(name: str, *, leaving: bool = False) -> HostFact:
    return HostFact(name, f"{name}:1", "run", leaving)


def cluster(shards: int, *hosts: str, assigned: dict[int, str] | None = None, version: int = 7) -> Facts:
    """A cluster whose shards are served by their assigned hosts, as far as those are alive."""
    served = {shard: at for shard, at in (assigned or {}).items() if at in hosts}
    return Facts(
        shards={n: ShardFact(n, "sqlite://") for n in range(1, shards + 1)},
        hosts={name: host(name) for name in hosts},
        owners={shard: OwnerFact(shard, at, f"{at}:1", 1) for shard, at in served.items()},
        assignment=Assignment(version, assigned) if assigned is not None else Assignment(),
        controller=ME,
    )


def without(facts: Facts, *gone: str) -> Facts:
    """These hosts' sessions ended."""
    return replace(
        facts,
        hosts={name: fact for name, fact in facts.hosts.items() if name not in gone},
        owners={shard: owner for shard, owner in facts.owners.items() if owner.host not in gone},
    )


def written(facts: Facts, write: Write) -> Facts:
    return replace(facts, assignment=Assignment(write.version + 1, write.hosts))


def served(facts: Facts) -> Facts:
    """Every shard has arrived on its assigned host."""
    hosts = facts.assignment.hosts.items()
    owners = {shard: OwnerFact(shard, at, f"{at}:1", 2) for shard, at in hosts if at in facts.hosts}
    return replace(facts, owners=owners)


def done(facts: Facts, step: Step) -> Facts:
    assert step.write is not None
    return served(written(facts, step.write))
