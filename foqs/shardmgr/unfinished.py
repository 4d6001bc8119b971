"""What a command still waits for: functions of the facts that return the unfinished parts, empty at the end.

They raise Invalid if another operator made the end impossible.
"""

from __future__ import annotations

from collections.abc import Mapping

from foqs.errors import Invalid
from foqs.shardmgr.change import Missing, count, name, nothing
from foqs.shardmgr.controller import takers
from foqs.shardmgr.facts import Facts, ShardUse


def serving(facts: Facts, shard: int, done: str) -> tuple[str, Missing]:
    if not takers(facts):
        return f"shard {shard} is {done}; no living host may serve it", nothing

    def missing(facts: Facts) -> list[str]:
        record = facts.shards.get(shard)
        if record is None or record.use is ShardUse.DISABLED:
            raise Invalid(f"another operator has {'removed' if record is None else 'disabled'} shard {shard}")
        return [] if shard in facts.owners else [f"shard {shard} is not served yet"]

    return f"shard {shard} is {done} and served", missing


def stopped(shard: int) -> Missing:
    def missing(facts: Facts) -> list[str]:
        record = facts.shards.get(shard)
        if record is not None and record.use is not ShardUse.DISABLED:
            raise Invalid(f"another operator has made shard {shard} {record.use.value}")
        return unserved(facts, shard)

    return missing


def without_slots(shard: int) -> Missing:
    def missing(facts: Facts) -> list[str]:
        record = facts.shards.get(shard)
        if record is None or record.use is not ShardUse.DRAINING:
            now = "removed" if record is None else f"made {record.use.value}"
            raise Invalid(f"another operator has {now} shard {shard}")
        left = facts.slots.shards.count(shard)
        others = any(fact.use is ShardUse.ENABLED for fact in facts.shards.values())
        return [f"shard {shard} still has {count(left, 'slot')} of deduplication keys"] if left and others else []

    return missing


def unserved(facts: Facts, shard: int) -> list[str]:
    """Return the reason if a host still serves the shard. A living host to which it is assigned may be about to serve
    it."""
    if (owner := facts.owners.get(shard)) is not None:
        return [f"shard {shard} is still served by {name(owner.host)}"]
    assigned = facts.assignment.hosts.get(shard)
    if assigned is not None and assigned in facts.hosts:
        return [f"shard {shard} is still assigned to {name(assigned)}"]
    return []


def emptied(host: str) -> Missing:
    def missing(facts: Facts) -> list[str]:
        if host not in facts.drained:
            raise Invalid(f"another operator has undrained host {name(host)}")
        return left_on(facts, host)

    return missing


def left_on(facts: Facts, host: str) -> list[str]:
    if served := sum(owner.host == host for owner in facts.owners.values()):
        return [f"host {name(host)} still serves {count(served, 'shard')}"]
    assigned = sum(at == host for at in facts.assignment.hosts.values()) if host in facts.hosts else 0
    return [f"host {name(host)} is still assigned {count(assigned, 'shard')}"] if assigned else []


def arrived(targets: Mapping[int, str]) -> Missing:
    def missing(facts: Facts) -> list[str]:
        left = []
        for shard, host in targets.items():
            assigned, owner = facts.assignment.hosts.get(shard), facts.owners.get(shard)
            if assigned != host:
                now = f"assigned to {name(assigned)}" if assigned is not None else "taken out of the assignment"
                raise Invalid(f"shard {shard} was {now} during the move")
            if owner is None:
                left.append(f"no host serves shard {shard} yet")
            elif owner.host != host:
                left.append(f"shard {shard} is still served by {name(owner.host)}")
        return left

    return missing
