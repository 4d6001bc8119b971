"""A cluster's facts as an operator reads them: a row a host, a row a shard. URLs stay out of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from foqs.shardmgr.assignment import imbalance
from foqs.shardmgr.controller import moving, situation_of, takers
from foqs.shardmgr.facts import Facts, ShardUse


@dataclass(frozen=True, slots=True)
class HostRow:
    """`address` is None for a host that does not live and is still assigned, announced or drained."""

    id: str
    address: str | None
    leaving: bool
    drained: bool
    controller: bool
    assigned: int
    served: int

    @property
    def state(self) -> str:
        if self.address is None:
            return "not alive, drained" if self.drained else "not alive"
        marks = [mark for mark, holds in (("leaving", self.leaving), ("drained", self.drained)) if holds]
        return ", ".join(marks) or "alive"


@dataclass(frozen=True, slots=True)
class ShardRow:
    """`use` and `weight` are None for a shard that is assigned or served without a record. `state`: served, moving
    (another host than the assigned one serves it), opening (no host does yet), unassigned, stopping (served although
    disabled or removed), disabled."""

    id: int
    use: str | None
    weight: float | None
    assigned: str | None
    owner: str | None
    epoch: int | None
    under_way: bool
    state: str


@dataclass(frozen=True, slots=True)
class Status:
    """`imbalance`: how far the heaviest and the lightest host are apart, by weight, in mean loads of a host; None when
    no host may take shards. `under_way`: how many shards their assigned host does not serve, or not yet."""

    assignment_version: int
    controller: str | None
    under_way: int
    imbalance: float | None
    hosts: tuple[HostRow, ...]
    shards: tuple[ShardRow, ...]


def status_of(facts: Facts) -> Status:
    under_way, may_take, assigned = moving(facts), takers(facts), facts.assignment.hosts
    apart = imbalance(assigned, situation_of(facts).loads, may_take) if may_take else None
    return Status(
        facts.assignment.version,
        facts.controller,
        len(under_way),
        None if apart is None else round(apart, 3),
        _hosts(facts),
        tuple(_shard(facts, shard, under_way) for shard in sorted({*facts.shards, *facts.owners, *assigned})),
    )


def _hosts(facts: Facts) -> tuple[HostRow, ...]:
    assigned = Counter(facts.assignment.hosts.values())
    served = Counter(owner.host for owner in facts.owners.values())
    rows = []
    for host in sorted({*facts.hosts, *assigned, *served, *facts.drained}):
        fact = facts.hosts.get(host)
        rows.append(
            HostRow(
                host,
                fact.address if fact is not None else None,
                fact is not None and fact.leaving,
                host in facts.drained,
                host == facts.controller,
                assigned[host],
                served[host],
            )
        )
    return tuple(rows)


def _shard(facts: Facts, shard: int, under_way: frozenset[int]) -> ShardRow:
    record, owner, assigned = facts.shards.get(shard), facts.owners.get(shard), facts.assignment.hosts.get(shard)
    if record is None or record.use is ShardUse.DISABLED:
        state = "stopping" if owner is not None or assigned in facts.hosts else "disabled"
    elif owner is not None:
        state = "served" if owner.host == assigned else "moving"
    else:
        state = "opening" if assigned in facts.hosts else "unassigned"
    return ShardRow(
        shard,
        record.use.value if record is not None else None,
        record.weight if record is not None else None,
        assigned,
        owner.host if owner is not None else None,
        owner.epoch if owner is not None else None,
        shard in under_way,
        state,
    )
