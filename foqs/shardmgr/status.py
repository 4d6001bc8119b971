"""A cluster's facts for an operator: one row for each host and each shard, without URLs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from foqs.shardmgr.assignment import balance, imbalance
from foqs.shardmgr.controller import moving, situation_of, takers
from foqs.shardmgr.facts import Facts, ShardUse
from foqs.shardmgr.membership import away, read_only


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """A host's answer: its version of foqs, and for each shard that it serves the rows changed a second, the items in
    any state, and the order keys of items that are in their order."""

    version: str
    rows_per_s: Mapping[int, float] = field(default_factory=dict)
    items: Mapping[int, int] = field(default_factory=dict)
    order_keys: Mapping[int, int] = field(default_factory=dict)


Answers = Mapping[str, HostAnswer]
"""By host; a host that does not answer is absent."""
_NOT_ASKED: Answers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostRow:
    """`address` is None for a host that does not live and is still assigned, announced or drained. `version`, `load`
    (rows changed a second in its shards) and `items` are None for a host that did not answer."""

    id: str
    address: str | None
    leaving: bool
    drained: bool
    controller: bool
    assigned: int
    served: int
    version: str | None = None
    load: float | None = None
    items: int | None = None

    @property
    def state(self) -> str:
        if self.address is None:
            return "not alive, drained" if self.drained else "not alive"
        marks = [mark for mark, holds in (("leaving", self.leaving), ("drained", self.drained)) if holds]
        return ", ".join(marks) or "alive"


@dataclass(frozen=True, slots=True)
class ShardRow:
    """`use` and `weight` are None for a shard that is assigned or served without a record. `state`: served, moving
    (another host than the assigned one serves it), opening (no host does yet), unreachable (its database does not
    answer the assigned host), read-only (its database takes no writes), unassigned, stopping (served although disabled
    or removed), disabled. `load` (rows changed a second), `items` (in any state) and `order_keys` are None when the
    host that serves the shard did not answer; `load` also when the shard's database does not work."""

    id: int
    use: str | None
    weight: float | None
    assigned: str | None
    owner: str | None
    epoch: int | None
    under_way: bool
    state: str
    load: float | None = None
    items: int | None = None
    order_keys: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """`imbalance`: how far the heaviest and the lightest host are apart, by weight, in mean loads of a host; None when
    no host may take shards. `best_imbalance`: the same after a balance without bounds; shards cannot be divided, so it
    is seldom 0. `under_way`: how many shards their assigned host does not serve, or not yet. `writing_back`: ZooKeeper
    lost data, and the hosts write it back."""

    assignment_version: int
    controller: str | None
    under_way: int
    imbalance: float | None
    best_imbalance: float | None
    hosts: tuple[HostRow, ...]
    shards: tuple[ShardRow, ...]
    writing_back: bool = False


def status_of(facts: Facts, answers: Answers = _NOT_ASKED) -> Status:
    under_way, may_take, assigned = moving(facts), takers(facts), facts.assignment.hosts
    stuck = {**dict.fromkeys(away(facts), "unreachable"), **dict.fromkeys(read_only(facts), "read-only")}
    apart, best = _imbalances(facts) if may_take else (None, None)
    return Status(
        facts.assignment.version,
        facts.controller,
        len(under_way),
        apart,
        best,
        _hosts(facts, answers),
        tuple(
            _shard(facts, shard, under_way, stuck, answers)
            for shard in sorted({*facts.shards, *facts.owners, *assigned})
        ),
        facts.identity.open,
    )


def _imbalances(facts: Facts) -> tuple[float, float]:
    situation = replace(situation_of(facts), under_way=frozenset(), closed=frozenset())
    after = balance(situation)
    now, best = (imbalance(hosts, situation.loads, takers(facts)) for hosts in (facts.assignment.hosts, after))
    return round(now, 3), round(min(now, best), 3)


def _hosts(facts: Facts, answers: Answers) -> tuple[HostRow, ...]:
    assigned = Counter(facts.assignment.hosts.values())
    served = Counter(owner.host for owner in facts.owners.values())
    rows = []
    for host in sorted({*facts.hosts, *assigned, *served, *facts.drained}):
        fact, answer = facts.hosts.get(host), answers.get(host)
        rows.append(
            HostRow(
                host,
                fact.address if fact is not None else None,
                fact is not None and fact.leaving,
                host in facts.drained,
                host == facts.controller,
                assigned[host],
                served[host],
                answer.version if answer is not None else None,
                round(sum(answer.rows_per_s.values()), 1) if answer is not None else None,
                sum(answer.items.values()) if answer is not None else None,
            )
        )
    return tuple(rows)


def _shard(facts: Facts, shard: int, under_way: frozenset[int], stuck: Mapping[int, str], answers: Answers) -> ShardRow:
    record, owner, assigned = facts.shards.get(shard), facts.owners.get(shard), facts.assignment.hosts.get(shard)
    answer = answers.get(owner.host) if owner is not None else None
    if record is None or record.use is ShardUse.DISABLED:
        state = "stopping" if owner is not None or assigned in facts.hosts else "disabled"
    elif shard in stuck:
        state = stuck[shard]
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
        answer.rows_per_s.get(shard) if answer is not None else None,
        answer.items.get(shard) if answer is not None else None,
        answer.order_keys.get(shard) if answer is not None else None,
    )
