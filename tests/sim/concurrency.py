"""Promise 13, checked by the rows: never more leases with a throttle key than its limit, whatever fails or moves.

A lease counts from its commit until the commit of its end. When limits change, leases that were given before may be
too many, and some of them are written later; none is added to them until the limit holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foqs.fairness.keys import tenancy_of, topic_key
from foqs.ids import shard_of
from foqs.item import Item, Phase
from foqs.rows import Batch
from tests.sim.records import broken, lane_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

Key = tuple[str, str]
"""(namespace, throttle key)"""
Lease = tuple[int, int]
"""(item, lease)"""


class Concurrent:
    """Of all shards. `before`: leases that were given before the limits changed last."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._live: dict[Key, set[Lease]] = {}
        self._before: set[Lease] = set()

    def changed(self) -> None:
        """Other settings are in force from now on, on all hosts."""
        self._live, self._before = {}, set()
        for db in self._sim.dbs.values():
            for row in db.timer.values():
                if row.lease:
                    self._before.add((row.id, row.lease))
                    for key in self._keys(row.id):
                        self._live.setdefault(key, set()).add((row.id, row.lease))
        for member in self._sim.members:
            for shard in member.engine.state.serving:
                leased = [item for item in shard.memory.known.values() if item.phase is Phase.LEASED]
                self._before.update((item.id, item.lease) for item in leased)

    def committing(self, batch: Batch) -> None:
        """A transaction is about to be applied."""
        gone = {*batch.timer_gone, *batch.item_gone}
        added = [(row.id, row.lease) for row in batch.timer_new if row.lease]
        if not (gone or added):
            return
        for leases in self._live.values():
            leases.difference_update([lease for lease in leases if lease[0] in gone])
        for lease in added:
            for key in self._keys(lease[0]):
                live = self._live.setdefault(key, set())
                live.add(lease)
                most = self._limit(key)
                if most is None or lease in self._before:
                    continue
                self._sim.ledger.checks["limited"] += 1
                self._sim.ledger.checks["at the limit"] += len(live) == most
                if len(live) > most:
                    broken(13, f"{len(live)} leases with {key} live, the limit is {most}; {lease} is new: {live}")

    def delivered(self, item: Item) -> None:
        """A consumer has an item of the shard's owner."""
        lease = (item.id, item.lease)
        if lease in self._before or lease in self._sim.ledger.written:
            return
        if any(self._limit(key) is not None for key in self._keys(item.id)):
            broken(13, f"{item} was delivered before its lease was committed")

    def drain_ms(self) -> int:
        """Return the time within which all that is stored is delivered."""
        need_ms = 0
        stored: dict[Key, int] = {}
        for db in self._sim.dbs.values():
            for item_id in db.items:
                for key in self._keys(item_id):
                    stored[key] = stored.get(key, 0) + 1
        for key, items in stored.items():
            most = self._limit(key)
            if most is not None:
                need_ms = max(need_ms, 4_000 + 150 * items // most)
        return need_ms

    def audit(self) -> None:
        """Each account of a shard is the number of leases of its lanes."""
        for member in self._sim.members:
            for shard in member.engine.state.serving:
                for book in shard.memory.limited.values():
                    if not book.counted:
                        continue
                    counted = dict.fromkeys(book.gates.values(), 0)
                    for lane in shard.memory.lanes.values():
                        slots = lane.slots
                        if lane.leased and lane.topic.key[0] == book.ns and (slots is None or slots.book is not book):
                            if any(self._limit(key) is not None for key in self._keys_of(lane.key)):
                                broken(13, f"the leases of {lane} do not count")
                        elif slots is not None and slots.book is book and not slots.stale:
                            for gate in slots.gates:
                                counted[gate] += lane.leased
                    for gate, leased in counted.items():
                        if (gate.leased, gate.counted) != (leased, True) or gate.has < gate.leased:
                            broken(13, f"{gate} and its lanes have {leased} leases")

    def _limit(self, key: Key) -> int | None:
        throttle = self._sim.ledger.attempts.policies.namespace(key[0]).throttle(key[1])
        return None if throttle is None or throttle.shadow else throttle.concurrency

    def _keys(self, item_id: int) -> list[Key]:
        db = self._sim.dbs[shard_of(item_id)]
        return self._keys_of(lane_of(db.lanes[db.items[item_id].lane]))

    def _keys_of(self, lane: tuple[str, ...]) -> list[Key]:
        topic = topic_key(lane)
        added = self._sim.ledger.attempts.policies.of(topic).throttles
        return [(topic[0], name) for name in {*tenancy_of(lane)[1], *added}]
