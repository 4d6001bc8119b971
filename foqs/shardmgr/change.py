"""A change of a cluster's facts as a command decides it, and its signs in newer facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from foqs.shardmgr.facts import Facts, ShardFact

Missing = Callable[[Facts], list[str]]


@dataclass(frozen=True, slots=True)
class PutShard:
    """Write a shard's record. `before`: the record that it replaces, None for a new shard."""

    fact: ShardFact
    before: ShardFact | None


@dataclass(frozen=True, slots=True)
class RemoveShard:
    before: ShardFact


@dataclass(frozen=True, slots=True)
class Assign:
    hosts: Mapping[int, str]
    version: int


@dataclass(frozen=True, slots=True)
class MarkHost:
    host: str
    drained: bool


Action = PutShard | RemoveShard | Assign | MarkHost


def nothing(_facts: Facts) -> list[str]:
    """Return no unfinished part: the change has its effect at once."""
    return []


@dataclass(frozen=True, slots=True)
class Change:
    """A command's change. The command prints `says` before it and `then` at its end. `action` is None if the facts need
    no change. `missing` returns the unfinished parts, and raises Invalid if they can no longer finish. `what`, `before`
    and `after` are for the audit and contain no URL. `moves`: shard, source (None: no host), target."""

    what: str
    says: str
    then: str
    action: Action | None
    before: Mapping[str, object] = field(default_factory=dict)
    after: Mapping[str, object] = field(default_factory=dict)
    missing: Missing = nothing
    moves: tuple[tuple[int, str | None, str], ...] = ()


def shown(action: Action, facts: Facts) -> bool:
    """Return whether `facts` are newer than the facts that `action` was decided on, in the records that it changes."""
    match action:
        case PutShard(fact, before):
            return facts.shards.get(fact.id) != before
        case RemoveShard(before):
            return facts.shards.get(before.id) != before
        case Assign(_, version):
            return facts.assignment.version != version
        case MarkHost(host, drained):
            return (host in facts.drained) == drained


def made(action: Action, facts: Facts) -> bool:
    """Return whether `facts` show exactly the result of `action`: for a change whose answer was lost."""
    match action:
        case PutShard(fact, _):
            return facts.shards.get(fact.id) == fact
        case RemoveShard(before):
            return before.id not in facts.shards
        case Assign(hosts, version):
            return facts.assignment.version > version and facts.assignment.hosts == hosts
        case MarkHost(host, drained):
            return (host in facts.drained) == drained


def name(host: str) -> str:
    """Return a host's id in a form that a terminal can show: an id can be any text."""
    return host if host.isprintable() else repr(host)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
