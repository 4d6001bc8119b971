"""The routing of one host: the owner of each shard, and the shard of each hash slot of deduplication keys (see
`foqs.ids`). A value, replaced at each change of the facts. The plan for moves of slots between shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b

from foqs.ids import HASH_SLOTS
from foqs.shardmgr.facts import Facts, ShardUse, SlotMove, Slots


@dataclass(frozen=True, slots=True)
class Route:
    """The owner of a shard. `address` is host:port, `host` the id of the host. A new owner has a higher epoch."""

    address: str
    epoch: int
    host: str


@dataclass(frozen=True, slots=True)
class Routing:
    """`owners` by shard number, living hosts only. `hosts`: the address of every living host, by id. `shards`: all
    shards, also moving shards without an owner. `disabled`: the shards that no host may serve. `slots`: the shard of
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

    def other_owners(self, host: str) -> list[str]:
        """Return the addresses of the other hosts that own shards."""
        return sorted({route.address for route in self.owners.values() if route.host != host})

    def coordinator(self, slot: int, host: str) -> Route | None:
        """Return the other host that coordinates the keys of a hash slot, None if it is `host`."""
        route = self.owners.get(self.slots.shards[slot]) if self.slots.shards else None
        return None if route is None or route.host == host else route


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


MOVES_AT_ONCE = 32
"""Slots that move at a time in a cluster: the keys of a moving slot wait."""
_UNEVEN = 0.1
"""A shard gives slots away if it has more than another by this fraction of the mean, and by more than one."""


def bits_of(slots: Iterable[int], also: bytes = b"") -> bytes:
    """Return a bit for each of `slots`, together with the bits of `also`."""
    made = bytearray(also.ljust(HASH_SLOTS // 8, b"\0"))
    for slot in slots:
        made[slot >> 3] |= 1 << (slot & 7)
    return bytes(made)


def without(slot: int, bits: bytes) -> bytes:
    made = bytearray(bits.ljust(HASH_SLOTS // 8, b"\0"))
    made[slot >> 3] &= ~(1 << (slot & 7))
    return bytes(made)


def has(bits: bytes, slot: int) -> bool:
    return slot >> 3 < len(bits) and bool(bits[slot >> 3] >> (slot & 7) & 1)


def slots_in(bits: bytes) -> Iterator[int]:
    """Yield the slots whose bits are set, in order. It takes no longer for bits that are not set."""
    left = _number(bits)
    while left:
        lowest = left & -left
        yield lowest.bit_length() - 1
        left ^= lowest


@lru_cache(maxsize=8)
def by_shard(slots: tuple[int, ...]) -> Mapping[int, bytes]:
    """Return the bits of each shard in the shards of a record: the reverse of `slots_of`."""
    found: dict[int, list[int]] = {}
    for slot, shard in enumerate(slots):
        found.setdefault(shard, []).append(slot)
    return {shard: bits_of(its) for shard, its in found.items()}


def lacking(bits: bytes, *also: bytes) -> bytes:
    """Return the bits of the slots that are in `bits` and in none of `also`; empty without such slots."""
    left = _number(bits)
    for each in also:
        left &= ~_number(each)
    return left.to_bytes(HASH_SLOTS // 8, "little") if left else b""


def together(bits: bytes, also: bytes) -> bytes:
    return (_number(bits) | _number(also)).to_bytes(HASH_SLOTS // 8, "little")


def _number(bits: bytes) -> int:
    return int.from_bytes(bits, "little")


def slots_of(shards: Mapping[int, bytes]) -> tuple[int, ...]:
    """Return the shard of each slot, 0 for none. If two shards have the same slot, the lower number counts."""
    found = [0] * HASH_SLOTS
    for shard, bits in sorted(shards.items(), reverse=True):
        if bits:
            for slot in range(HASH_SLOTS):
                if has(bits, slot):
                    found[slot] = shard
    return tuple(found)


def missing(shards: Mapping[int, bytes]) -> dict[int, list[int]]:
    """Return the slots that no shard has, by the shard that should get them."""
    before = slots_of(shards)
    after = shared_out(before, shards.keys())
    given: dict[int, list[int]] = {}
    for slot, shard in enumerate(after):
        if not before[slot] and shard:
            given.setdefault(shard, []).append(slot)
    return given


def shared_out(
    slots: Sequence[int], shards: Collection[int], may_take: Collection[int] | None = None
) -> tuple[int, ...]:
    """Return `slots` with every free slot given to the shard of `may_take` with the fewest. No other slot moves,
    because its keys would be forgotten. By default all of `shards` may take slots."""
    takers = sorted(shards if may_take is None else set(shards).intersection(may_take))
    made = [shard if shard in shards else 0 for shard in slots] or [0] * HASH_SLOTS
    if not takers:
        return tuple(made)
    counts = {shard: made.count(shard) for shard in takers}
    for slot, shard in enumerate(made):
        if not shard:
            least = min(takers, key=counts.__getitem__)
            made[slot] = least
            counts[least] += 1
    return tuple(made)


def planned(facts: Facts, now_ms: int) -> Slots:
    """Return the record as it should be; the current one if nothing should change. A free slot goes to a shard that
    takes items. Slots of draining shards move, and so do some of the fullest shard to the emptiest; their rows move
    with them. A move to a shard that no longer takes items is cancelled."""
    slots, there = facts.slots, facts.shards
    taking = {shard for shard, fact in there.items() if fact.use is ShardUse.ENABLED}
    moves = {slot: move for slot, move in slots.moves.items() if move.to in taking}
    shards = [
        moves.pop(slot).to if shard not in there and slot in moves else shard for slot, shard in enumerate(slots.shards)
    ]
    shared = shared_out(shards, there.keys(), taking)
    stamp = max(slots.stamp + 1, now_ms)
    emptying = {shard for shard, fact in there.items() if fact.use is ShardUse.DRAINING}
    for slot, to in _to_move(shared, moves, taking, emptying):
        moves[slot] = SlotMove(to, stamp)
    if (shared == slots.shards and moves == slots.moves) or not any(shared):
        return slots
    return replace(slots, shards=shared, moves=moves, stamp=stamp)


def _to_move(
    shards: Sequence[int], moves: Mapping[int, SlotMove], taking: Collection[int], emptying: Collection[int]
) -> Iterable[tuple[int, int]]:
    """Yield slots whose move should begin, with their target."""
    staying: dict[int, list[int]] = {shard: [] for shard in (*taking, *emptying)}
    for slot, shard in enumerate(shards):
        if slot not in moves and shard in staying:
            staying[shard].append(slot)
    counts = {shard: len(staying[shard]) for shard in sorted(taking)}
    for move in moves.values():
        counts[move.to] += 1
    if not counts:
        return
    uneven = max(1.0, sum(counts.values()) / len(counts) * _UNEVEN)
    for _ in range(len(moves), MOVES_AT_ONCE):
        to = min(counts, key=counts.__getitem__)
        source = next((shard for shard in sorted(emptying) if staying[shard]), None)
        if source is None:
            source = max(counts, key=counts.__getitem__)
            if counts[source] - counts[to] <= uneven or not staying[source]:
                return
            counts[source] -= 1
        counts[to] += 1
        yield staying[source].pop(), to


def claimed(facts: Facts, shard: int, stamp: int, bits: bytes, now_ms: int) -> Slots:
    """Return the record with the slots that a shard has had outside of the cluster, where no shard of the cluster has
    them: so the keys that it remembers still count. `stamp`, `bits`: as its database has them."""
    slots = facts.slots
    shards = slots.shards or (0,) * HASH_SLOTS
    free = {0} | (set(shards) - facts.shards.keys())
    made = tuple(shard if old in free and has(bits, slot) else old for slot, old in enumerate(shards))
    if made == shards:
        return slots
    return replace(slots, shards=made, stamp=max(slots.stamp + 1, stamp, now_ms))


def arrived(slots: Slots, moved: Mapping[int, SlotMove], now_ms: int) -> Slots:
    """Return the record after the rows of `moved` have arrived; a move that has been cancelled or replaced changes
    nothing."""
    done = {slot: move for slot, move in moved.items() if slots.moves.get(slot) == move}
    if not done:
        return slots
    shards = tuple(done[slot].to if slot in done else shard for slot, shard in enumerate(slots.shards))
    moves = {slot: move for slot, move in slots.moves.items() if slot not in done}
    return replace(slots, shards=shards, moves=moves, stamp=max(slots.stamp + 1, now_ms))
