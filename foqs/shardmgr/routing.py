"""The routing of one host: the owner of each shard. A value, replaced at each change of the facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from foqs.ids import shard_of
from foqs.shardmgr.facts import Facts, ShardUse, Slots


@dataclass(frozen=True, slots=True)
class Route:
    """The owner of a shard. `address` is host:port, `host` the id of the host. A new owner has a higher epoch."""

    address: str
    epoch: int
    host: str


@dataclass(frozen=True, slots=True)
class Routing:
    """`owners` by shard number, living hosts only. `hosts`: the address of every living host, by id. `shards`: all
    shards, also those that move and have no owner. `disabled`: the shards that no host may serve. `slots`: the shard of
    each slot of deduplication keys. `version` identifies the content that clients see (see `fingerprint`)."""

    version: int = 0
    owners: Mapping[int, Route] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    shards: frozenset[int] = frozenset()
    slots: Slots = field(default_factory=Slots)
    disabled: frozenset[int] = frozenset()

    @property
    def unowned(self) -> frozenset[int]:
        """The shards that no host serves."""
        return self.shards - self.owners.keys()

    def owner(self, item_id: int) -> Route | None:
        return self.owners.get(shard_of(item_id))

    def other_owners(self, host: str) -> list[str]:
        """Return the addresses of the hosts besides `host` that own shards."""
        return sorted({route.address for route in self.owners.values() if route.host != host})

    def exists(self, item_id: int) -> bool:
        """Return whether a shard exists that may hold the item."""
        return shard_of(item_id) in self.shards


def make_routing(
    owners: Mapping[int, Route], hosts: Mapping[str, str], shards: Iterable[int] = (), slots: Slots | None = None
) -> Routing:
    """Return a Routing with its version. `shards`: shards that may have no owner."""
    slots = slots or Slots()
    return Routing(fingerprint(owners, hosts, slots), owners, hosts, frozenset(owners).union(shards), slots)


def routing_of(facts: Facts) -> Routing:
    """Return the routing of `facts`. An owner whose host is absent (its session ended, and not all of that is visible
    yet) does not count."""
    hosts = {fact.id: fact.address for fact in facts.hosts.values()}
    owners = {
        shard: Route(owner.address, owner.epoch, owner.host)
        for shard, owner in facts.owners.items()
        if owner.host in hosts
    }
    disabled = frozenset(number for number, shard in facts.shards.items() if shard.use is ShardUse.DISABLED)
    return replace(make_routing(owners, hosts, facts.shards, facts.slots), disabled=disabled)


def fingerprint(owners: Mapping[int, Route], hosts: Mapping[str, str], slots: Slots) -> int:
    """Return 63 bits of the content that clients see: equal on all hosts with the same facts, different after any
    change."""
    digest = blake2b(digest_size=8)
    for shard, route in sorted(owners.items()):
        digest.update(f"{shard} {route.epoch} {route.address}\n".encode())
    for address in sorted(hosts.values()):
        digest.update(f"{address}\n".encode())
    digest.update(repr(slots.shards).encode())
    return int.from_bytes(digest.digest(), "big") >> 1
