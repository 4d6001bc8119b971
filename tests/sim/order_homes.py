"""Producers that go where hosts send them: at once, late, again, or not at all. And what a host remembers of it."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

from foqs.engine.dead_orders import DEAD_BYTES
from foqs.engine.orders import HOME_BYTES
from foqs.engine.shard import Shard
from foqs.ids import hash_slot_of
from foqs.order import KeyHome, Order
from foqs.shardmgr.routing import has
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import MemoryWrong

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class SaidHomes:
    """What hosts have said of order keys, in order."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._rng: random.Random = sim.rng
        self._said: defaultdict[bytes, list[KeyHome]] = defaultdict(list)

    def note(self, digest: bytes, home: KeyHome) -> None:
        self._said[digest].append(home)
        self._sim.counts["order home empty" if home.empty else "order home"] += 1

    def choose(self, digest: bytes) -> KeyHome | None:
        """Return the last one, an old one, or none."""
        said, chance = self._said[digest], self._rng.random()
        if not said or chance > 0.85:
            return None
        return said[-1] if chance < 0.65 else self._rng.choice(said)

    def shard(self, digest: bytes, home: KeyHome | None) -> int:
        """Return where an item with this home goes."""
        return self._sim.record.slots.shards[hash_slot_of(digest)] if home is None or home.empty else home.shard


def audit_homes(shard: Shard, db: MemoryDatabase) -> None:
    orders = shard.memory.orders
    stored = {digest: KeyHome(home.shard, home.stamp) for digest, home in db.homes.items()}
    for digest in orders.elsewhere.keys() | stored.keys():  # those of other slots are not read
        if has(shard.queue.keys.held.bits, hash_slot_of(digest)) and orders.elsewhere.get(digest) != stored.get(digest):
            raise MemoryWrong(f"keys are elsewhere {orders.elsewhere}, the database has {stored}")
    dead = {
        item_id: Order.unpack(order_at, item_id).digest
        for item_id in db.failures
        if (order_at := db.items[item_id].order_at) is not None
    }
    if orders.dead.known and orders.dead.items != dead:
        raise MemoryWrong(f"dead letters have the keys {orders.dead.items}, not {dead}")
    for slot, keys in orders.dead.keys.items():
        mine = [digest for digest in orders.dead.items.values() if hash_slot_of(digest) == slot]
        if sorted(mine) != sorted(digest for digest, count in keys.items() for _ in range(count)):
            raise MemoryWrong(f"dead letters of slot {slot} have the keys {keys}, not {mine}")


def homes_bytes(shard: Shard) -> int:
    """Return the memory of keys in other shards, and of dead letters."""
    orders = shard.memory.orders
    return HOME_BYTES * len(orders.elsewhere) + DEAD_BYTES * len(orders.dead.items)
