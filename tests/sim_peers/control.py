"""The cluster's record in a simulated run: which hosts live, which owns each shard, and where the slots are. Each host
learns of a change after a while of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from foqs.ids import HASH_SLOTS
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Route, Routing, arrived
from tests.sim_peers.host import Host
from tests.sim_peers.profile import HOSTS

if TYPE_CHECKING:
    from tests.sim_peers.simulation import Simulation

_EXPIRY_MS = (300, 800)
_OLD = 3


class Control:
    def __init__(self, sim: Simulation) -> None:
        self.sim, self.rng = sim, sim.rng
        self.living: dict[str, Host] = {}  # as the record says: a host that died is in it until its session expires
        self.owners: dict[int, Route] = {}
        self.assigned = {number: self.rng.choice(HOSTS) for number in sim.dbs}
        self.slots = Slots(0, tuple(1 + slot % len(sim.dbs) for slot in range(HASH_SLOTS)), {}, 1)
        self.forced: set[int] = set()  # shards whose new owner does not wait for the old one
        self._old = [self.slots]  # records that a host may still believe in
        self._version = 0

    def publish(self) -> None:
        self._version += 1
        routing = Routing(
            self._version,
            dict(self.owners),
            {name: host.address for name, host in self.living.items()},
            frozenset(self.sim.dbs),
            self.slots,
        )
        assigned, slots = dict(self.assigned), self.slots
        self._known = routing, assigned
        for host in self.sim.hosts:
            self.sim.soon(self.rng.choice(self.sim.profile.news_ms), lambda host=host: host.learn(routing, assigned))
            if slots is not self._old[-1]:  # a record of its own, so its news takes another time
                self.sim.soon(
                    self.rng.choice(self.sim.profile.slots_news_ms), lambda host=host: host.learn_slots(slots)
                )
        self._old = [*self._old[-_OLD:], slots]

    # ------------------------------------------------------------------------------------- hosts and shards

    def join(self, host: Host) -> None:
        self.living[host.name] = host
        self._place_orphans()
        self.publish()
        host.learn_slots(self.rng.choice(self._old))
        self.sim.soon(self.rng.choice(self.sim.profile.slots_news_ms), lambda: host.learn_slots(self.slots))
        host.learn(*self._known)  # a host serves requests only after it has read the record

    def died(self, host: Host) -> None:
        self.sim.soon(self.rng.randint(*_EXPIRY_MS), lambda: self._expire(host))

    def _expire(self, host: Host) -> None:
        self.owners = {number: route for number, route in self.owners.items() if self._runs(number, route, host)}
        if self.living.get(host.name) is host:
            del self.living[host.name]
            self._place_orphans()
        self.publish()

    def _runs(self, number: int, route: Route, dead: Host) -> bool:
        return route.host != dead.name or self.sim.host(dead.name).serves(number, route.epoch)

    def _place_orphans(self) -> None:
        for number, name in self.assigned.items():
            if name not in self.living and self.living:
                self.assigned[number] = self.rng.choice(sorted(self.living))

    def announce(self, host: Host, number: int, epoch: int) -> None:
        known = self.owners.get(number)
        if known is None or known.epoch < epoch:
            self.owners[number] = Route(host.address, epoch, host.name)
            self.forced.discard(number)
            self.publish()

    def withdraw(self, host: Host, number: int, epoch: int) -> None:
        known = self.owners.get(number)
        if known is not None and (known.host, known.epoch) == (host.name, epoch):
            del self.owners[number]
            self.publish()

    def move(self) -> None:
        """Assign a shard to another host. By force, the new owner does not wait for the old one to release it."""
        number = self.rng.choice(sorted(self.assigned))
        to = self.rng.choice(sorted(self.living))
        if to == self.assigned[number]:
            return
        self.sim.note("shard", number, "moves to", to)
        self.assigned[number] = to
        if self.rng.random() < self.sim.profile.forced:
            self.forced.add(number)
        self.publish()

    def may_open(self, host: Host, number: int) -> bool:
        """Whether the last owner released the shard, or the host takes it by force."""
        owner = self.owners.get(number)
        return number in self.forced or owner is None or owner.host == host.name

    # ------------------------------------------------------------------------------------- slots

    def change_slots(self) -> None:
        slots, rng = self.slots, self.rng
        stamp = slots.stamp + 1
        if slots.moves and rng.random() < 0.3:  # some moves are called off
            moves = {slot: move for slot, move in slots.moves.items() if rng.random() < 0.5}
        else:
            moves = dict(slots.moves)
            for slot in rng.sample(self.sim.profile.moving_slots, 3):
                targets = [number for number in self.sim.dbs if number != slots.shards[slot]]
                if slot not in moves:
                    moves[slot] = SlotMove(rng.choice(targets), stamp)
        self._write(replace(slots, moves=moves, stamp=stamp))

    def arrived(self, believed: Slots, moved: Mapping[int, SlotMove]) -> None:
        """Compare and set: a host that believes in an older record changes nothing."""
        wanted = arrived(believed, moved, 0)
        if wanted is not believed and wanted.version == self.slots.version:
            self.sim.counts["moved slots"] += len(believed.moves) - len(wanted.moves)
            self._write(wanted)

    def _write(self, slots: Slots) -> None:
        self.slots = replace(slots, version=self.slots.version + 1)
        self.publish()
