"""An operator's command as a change of a cluster's facts, with the condition for its end. Facts in, a change or a
refusal out.

Every function raises Invalid, with one line for the operator, if it refuses the command. The command calls it again if
another operator changed the facts first, so every change is decided on current facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from foqs.checks import counted, masked_url, printable, same_account
from foqs.errors import Invalid
from foqs.ids import MAX_SHARD
from foqs.shardmgr.assignment import balance
from foqs.shardmgr.controller import situation_of, takers
from foqs.shardmgr.facts import Facts, ShardFact, ShardUse

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
    """A command's change of the facts. The command prints `says` before it and `then` at its end. `action` is None if
    the facts need no change. `missing` returns the unfinished parts, and raises Invalid if they can no longer finish.
    `what`, `before` and `after` are for the audit and contain no URL. `moves`: shard, source (None: no host),
    target."""

    what: str
    says: str
    then: str
    action: Action | None
    before: Mapping[str, object] = field(default_factory=dict)
    after: Mapping[str, object] = field(default_factory=dict)
    missing: Missing = nothing
    moves: tuple[tuple[int, str | None, str], ...] = ()


def shown(action: Action, facts: Facts) -> bool:
    """Return True if `facts` are newer than the facts that `action` was decided on, in the records that it changes."""
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
    """Return True if `facts` show exactly the result of `action`: for a change whose answer was lost."""
    match action:
        case PutShard(fact, _):
            return facts.shards.get(fact.id) == fact
        case RemoveShard(before):
            return before.id not in facts.shards
        case Assign(hosts, version):
            return facts.assignment.version > version and facts.assignment.hosts == hosts
        case MarkHost(host, drained):
            return (host in facts.drained) == drained


# ------------------------------------------------------------------------------------- shards


def add_shard(facts: Facts, fact: ShardFact) -> Change:
    """Add a shard. Done when a host serves it; at once if no host may take shards."""
    if not 1 <= fact.id <= MAX_SHARD:
        raise Invalid(f"shard number {fact.id} is not in 1..{MAX_SHARD}")
    if not 0 < fact.weight < 1e6:
        raise Invalid(f"the weight {fact.weight:g} is not above 0 and below 1,000,000")
    if fact.id in facts.shards:
        raise Invalid(f"shard {fact.id} exists already")
    _refuse_same(facts, fact.url)
    then, missing = serving(facts, fact.id, "added")
    return Change(
        "shard.add",
        f"adds shard {fact.id} with weight {fact.weight:g}",
        then,
        PutShard(fact, None),
        {"shard": fact.id, "use": None},
        {"shard": fact.id, "use": fact.use.value, "weight": fact.weight},
        missing,
    )


def ensure_shard(facts: Facts, fact: ShardFact) -> Change:
    """Add a shard like `add_shard`, or change nothing if the cluster has it. Raises Invalid also if the cluster has
    it with another URL."""
    if (there := facts.shards.get(fact.id)) is None:
        return add_shard(facts, fact)
    if there.url != fact.url:
        raise Invalid(f"the cluster has shard {fact.id} with another URL: `foqs shards set-url` changes it")
    kept = "" if there.weight == fact.weight else f", with weight {there.weight:g}, which stays"
    says = f"shard {fact.id} exists already{kept}"
    return Change("shard.add", says, says, None)


def set_url(facts: Facts, shard: int, url: str) -> Change:
    """Change the URL of a shard. Done when its host has opened the shard there; at once if the host keeps it open
    (`same_account`), or if no host may serve it."""
    before = _shard(facts, shard)
    if before.url == url:
        says = f"shard {shard} has that URL already"
        return Change("shard.set-url", says, says, None)
    _refuse_same(facts, url)
    says, then = f"changes the URL of shard {shard} to {masked_url(url)}", f"the record of shard {shard} is changed"
    missing: Missing = nothing
    if same_account(before.url, url):
        says, then = f"{says}: the same account, so its host keeps it open", f"{then}: new connections use it"
    elif before.use is not ShardUse.DISABLED and takers(facts):
        says, then = f"{says}: its host opens it there", f"shard {shard} is served at the new URL"
        missing = opened_again(facts, shard, url)
    return Change(
        "shard.set-url",
        says,
        then,
        PutShard(replace(before, url=url), before),
        {"shard": shard, "url": masked_url(before.url)},
        {"shard": shard, "url": masked_url(url)},
        missing,
    )


def use_shard(facts: Facts, shard: int, use: ShardUse) -> Change:
    """Set the use of a shard. Enabled: done when a host serves it. Disabled: done when none does. Draining is a mark
    that hosts obey: done when the shard has no slot of deduplication keys."""
    before = _shard(facts, shard)
    says = {
        ShardUse.ENABLED: f"enables shard {shard}: it is served and takes new items",
        ShardUse.DRAINING: f"drains shard {shard}: it takes no new items and is served until it is empty",
        ShardUse.DISABLED: f"disables shard {shard}: no host serves it, and its items wait in the database",
    }
    missing: Missing = nothing
    then = f"shard {shard} is draining. It still takes new items of order keys until their items have ended"
    if use is ShardUse.ENABLED:
        then, missing = serving(facts, shard, "enabled")
    elif use is ShardUse.DISABLED:
        then, missing = f"shard {shard} is disabled, and no host serves it", stopped(shard)
    elif use is ShardUse.DRAINING:
        missing = without_slots(shard)
    return Change(
        f"shard.{_VERBS[use]}",
        says[use] if before.use is not use else f"shard {shard} is {use.value} already",
        then,
        PutShard(replace(before, use=use), before) if before.use is not use else None,
        {"shard": shard, "use": before.use.value},
        {"shard": shard, "use": use.value},
        missing,
    )


_VERBS = {ShardUse.ENABLED: "enable", ShardUse.DRAINING: "drain", ShardUse.DISABLED: "disable"}


def remove_shard(facts: Facts, shard: int) -> Change:
    """Remove a disabled shard that no host serves."""
    before = _shard(facts, shard)
    if before.use is not ShardUse.DISABLED:
        raise Invalid(f"shard {shard} is {before.use.value}: disable it first")
    if left := unserved(facts, shard):
        raise Invalid(left[0])
    slots = facts.slots.shards.count(shard)
    keys = f"; its deduplication keys ({counted(slots, 'slot')}) are lost: drain it first to keep them"
    return Change(
        "shard.remove",
        f"removes shard {shard} from the cluster; items stay in its database, and no host serves them"
        + (keys if slots else ""),
        f"shard {shard} is removed; its database is untouched",
        RemoveShard(before),
        {"shard": shard, "use": before.use.value, "weight": before.weight},
        {"shard": shard, "use": None},
    )


def move_shard(facts: Facts, shard: int, host: str) -> Change:
    """Move a shard. Done when `host` announces itself as the owner. A later balancing may move it again."""
    if _shard(facts, shard).use is ShardUse.DISABLED:
        raise Invalid(f"shard {shard} is disabled: no host may serve it")
    _living(facts, host)
    if host in facts.drained:
        raise Invalid(f"host {printable(host)} is drained: it takes no shards")
    if facts.hosts[host].leaving:
        raise Invalid(f"host {printable(host)} is leaving: it takes no shards")
    assigned = facts.assignment.hosts.get(shard)
    owner = facts.owners.get(shard)
    source = owner.host if owner is not None else assigned
    come = f" from {printable(source)}" if source not in (None, host) else ""
    return Change(
        "shard.move",
        f"moves shard {shard}{come} to {printable(host)}"
        if assigned != host
        else f"shard {shard} is assigned to {printable(host)} already",
        f"shard {shard} is served by {printable(host)}",
        _assign(facts, {shard: host}) if assigned != host else None,
        {"shard": shard, "host": assigned},
        {"shard": shard, "host": host},
        arrived({shard: host}),
    )


def rebalance(facts: Facts, max_moves: int | None = None) -> Change:
    """Balance now as the controller would, by weight; moving shards stay. Done when all have arrived."""
    if not takers(facts):
        raise Invalid("no living host may take shards")
    hosts = balance(situation_of(facts), max_moves)
    before = facts.assignment.hosts
    changed = {shard: host for shard, host in sorted(hosts.items()) if before.get(shard) != host}
    moves = tuple((shard, before.get(shard), host) for shard, host in changed.items())
    return Change(
        "cluster.rebalance",
        f"moves {counted(len(moves), 'shard')}" if moves else "the shards are balanced: no shard moves",
        f"{counted(len(moves), 'shard')} moved" if moves else "nothing was moved",
        _assign(facts, changed) if moves else None,
        {"shards": {shard: before.get(shard) for shard in changed}},
        {"shards": changed},
        arrived(changed),
        moves,
    )


# ------------------------------------------------------------------------------------- hosts


def drain_host(facts: Facts, host: str) -> Change:
    """Drain a host. Done when it serves no shard and is assigned none."""
    _living(facts, host)
    if left_on(facts, host) and not takers(facts) - {host}:
        raise Invalid(f"no other living host may take the shards of {printable(host)}")
    return Change(
        "host.drain",
        f"drains host {printable(host)}: its shards move to other hosts, and it gets none until it is undrained"
        if host not in facts.drained
        else f"host {printable(host)} is drained already",
        f"host {printable(host)} serves nothing",
        MarkHost(host, drained=True) if host not in facts.drained else None,
        {"host": host, "drained": host in facts.drained},
        {"host": host, "drained": True},
        emptied(host),
    )


def moves_of_drain(facts: Facts, host: str) -> tuple[tuple[int, str | None, str], ...]:
    """Return the moves that balancing would make if the host were drained now, as `Change.moves` has them."""
    after = balance(situation_of(replace(facts, drained=facts.drained | {host})))
    left = [shard for shard, at in sorted(facts.assignment.hosts.items()) if at == host]
    return tuple((shard, host, after[shard]) for shard in left if after.get(shard, host) != host)


def undrain_host(facts: Facts, host: str) -> Change:
    """Undrain a host, also a dead one. Balancing gives it shards again."""
    if host not in facts.drained:
        _living(facts, host)
    return Change(
        "host.undrain",
        f"undrains host {printable(host)}: it gets shards at the next balancing, or by `foqs shards rebalance`"
        if host in facts.drained
        else f"host {printable(host)} is not drained",
        f"host {printable(host)} may get shards",
        MarkHost(host, drained=False) if host in facts.drained else None,
        {"host": host, "drained": host in facts.drained},
        {"host": host, "drained": False},
    )


# ------------------------------------------------------------------------------------- unfinished parts
#
# Each function returns the parts of a command that the facts do not show yet. It raises Invalid if another operator
# made the end impossible.


def serving(facts: Facts, shard: int, done: str) -> tuple[str, Missing]:
    if not takers(facts):
        return f"shard {shard} is {done}; no living host may serve it", nothing

    def missing(facts: Facts) -> list[str]:
        record = facts.shards.get(shard)
        if record is None or record.use is ShardUse.DISABLED:
            raise Invalid(f"another operator has {'removed' if record is None else 'disabled'} shard {shard}")
        return [] if shard in facts.owners else [f"shard {shard} is not served yet"]

    return f"shard {shard} is {done} and served", missing


def opened_again(facts: Facts, shard: int, url: str) -> Missing:
    """Each opening has a higher epoch, so the owner's shows that the shard was opened since."""
    owner = facts.owners.get(shard)
    above = -1 if owner is None else owner.epoch

    def missing(facts: Facts) -> list[str]:
        record, now = facts.shards.get(shard), facts.owners.get(shard)
        if record is None or record.url != url or record.use is ShardUse.DISABLED:
            raise Invalid(f"another operator has changed shard {shard}")
        return [] if now is not None and now.epoch > above else [f"shard {shard} is not served at the new URL yet"]

    return missing


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
        why = f"shard {shard} still has {counted(left, 'slot')} of deduplication and order keys"
        return [why] if left and others else []

    return missing


def unserved(facts: Facts, shard: int) -> list[str]:
    """Return the reason if a host still serves the shard. A living host to which it is assigned may be about to serve
    it."""
    if (owner := facts.owners.get(shard)) is not None:
        return [f"shard {shard} is still served by {printable(owner.host)}"]
    assigned = facts.assignment.hosts.get(shard)
    if assigned is not None and assigned in facts.hosts:
        return [f"shard {shard} is still assigned to {printable(assigned)}"]
    return []


def emptied(host: str) -> Missing:
    def missing(facts: Facts) -> list[str]:
        if host not in facts.drained:
            raise Invalid(f"another operator has undrained host {printable(host)}")
        return left_on(facts, host)

    return missing


def left_on(facts: Facts, host: str) -> list[str]:
    if served := sum(owner.host == host for owner in facts.owners.values()):
        return [f"host {printable(host)} still serves {counted(served, 'shard')}"]
    assigned = sum(at == host for at in facts.assignment.hosts.values()) if host in facts.hosts else 0
    return [f"host {printable(host)} is still assigned {counted(assigned, 'shard')}"] if assigned else []


def arrived(targets: Mapping[int, str]) -> Missing:
    def missing(facts: Facts) -> list[str]:
        left = []
        for shard, host in targets.items():
            assigned, owner = facts.assignment.hosts.get(shard), facts.owners.get(shard)
            if assigned != host:
                now = f"assigned to {printable(assigned)}" if assigned is not None else "taken out of the assignment"
                raise Invalid(f"shard {shard} was {now} during the move")
            if owner is None:
                left.append(f"no host serves shard {shard} yet")
            elif owner.host != host:
                left.append(f"shard {shard} is still served by {printable(owner.host)}")
        return left

    return missing


# ------------------------------------------------------------------------------------- checks


def _assign(facts: Facts, changed: Mapping[int, str]) -> Assign:
    return Assign({**facts.assignment.hosts, **changed}, facts.assignment.version)


def _refuse_same(facts: Facts, url: str) -> None:
    if (same := next((shard.id for shard in facts.shards.values() if shard.url == url), None)) is not None:
        raise Invalid(f"shard {same} has that URL already")


def _shard(facts: Facts, shard: int) -> ShardFact:
    if (found := facts.shards.get(shard)) is None:
        raise Invalid(f"the cluster has no shard {shard}")
    return found


def _living(facts: Facts, host: str) -> None:
    if host not in facts.hosts:
        known = host in facts.drained or host in facts.assignment.hosts.values()
        raise Invalid(f"host {printable(host)} is not alive" if known else f"the cluster has no host {printable(host)}")
