"""A run of one seed: three hosts, their shards and clients on a fake clock; every promise is checked as it goes."""

from __future__ import annotations

import random
from typing import Any

from tests.kernel.run import Run
from tests.sim.memory_database import MemoryDatabase
from tests.sim_peers.checks import Checks
from tests.sim_peers.clients import Clients
from tests.sim_peers.control import Control
from tests.sim_peers.exchange import Exchange
from tests.sim_peers.host import Host
from tests.sim_peers.pauses import Pauses
from tests.sim_peers.profile import HOSTS, random_profile
from tests.sim_peers.settings import NAMESPACES, ClusterSettings
from tests.sim_peers.throttles import Throttles

START_MS = 1_700_000_000_000
_SETTLE_MS = 30_000
_DELIVER_MS = 12_000
"""Within this all items reach the only host with consumers: leases and delays end, and many items are forwarded."""
_PRODUCE_MS = 600


class Simulation(Run):
    def __init__(self, seed: int, trouble: str = "") -> None:
        super().__init__(seed, trouble, START_MS)
        self.profile = profile = random_profile(self.rng, trouble)
        self.dbs = {number: MemoryDatabase(lambda: self.now_ms) for number in range(1, profile.shards + 1)}
        self.checks = Checks(self, profile, self.dbs)
        self.exchange = Exchange(self, random.Random(self.rng.getrandbits(64)), profile.exchange)
        self.hosts: list[Host] = []
        self.control = Control(self)
        self.clients = Clients(self)
        self.pauses = Pauses(self)
        self.throttles = Throttles(self)
        self.settings = ClusterSettings(self)

    def host(self, name: str) -> Host:
        return self.hosts[HOSTS.index(name)]

    def play(self) -> None:
        self.hosts = [Host(self, name) for name in HOSTS]
        for host in self.hosts:
            self._join(host)
        self.until(500)
        if self.throttles.active:
            self.throttles.start()
        else:
            self.clients.start()
        if self.trouble == "settings":
            self.settings.start()
        self.repeat(self.profile.crash_every_ms, self._crash)
        self.repeat(self.profile.move_every_ms, self.control.move)
        self.repeat(self.profile.slots_every_ms, self.control.change_slots)
        self.repeat(self.profile.pause_every_ms, self.pauses.change)
        self.repeat(self.profile.freeze_every_ms, self._freeze)
        self.repeat(self.profile.throttles_every_ms, self.throttles.change)
        self.until(500 + self.profile.active_ms)
        self._heal()
        if self.throttles.active:
            self.throttles.measure()
        self.clients.drain(self.rng.choice(self.hosts))
        self.until(self.time + _PRODUCE_MS)
        self.clients.producing = False
        self.pauses.end()
        most_ms = _DELIVER_MS * (5 if self.profile.ordered else 1)  # the items of a key one after the other
        self.wait(most_ms, lambda: not self.checks.left() and not self._asking(), self._left)
        self._check_end()

    def _asking(self) -> bool:
        """Whether an enqueue may still store an item."""
        return any(host.engine.state.shards[n].queue.chunks for host in self.hosts for n in host.engine.state.shards)

    def _join(self, host: Host) -> None:
        self.pauses.join(host)
        self.throttles.join(host)
        self.exchange.hosts[host.address] = host
        self.control.join(host)
        self.settings.join(host)

    def _crash(self) -> None:
        living = [host for host in self.hosts if host.alive]
        if len(living) < len(HOSTS):
            return
        host = self.rng.choice(living)
        self.note("crash", host.name)
        host.die()
        self.clients.died(host)
        self.throttles.died(host)
        self.control.died(host)
        self.soon(self.rng.randint(10, 1_500), lambda: self._restart(host))

    def _freeze(self) -> None:
        self.rng.choice(self.hosts).freeze(self.time + self.rng.choice([100, 700, 2_000]))

    def _restart(self, dead: Host) -> None:
        self.note("start", dead.name)
        self.hosts[HOSTS.index(dead.name)] = host = Host(self, dead.name)
        self._join(host)

    def _heal(self) -> None:
        """No faults from here on."""
        self.healing = True
        self.exchange.heal(self.profile.quiet)
        self.settings.heal()
        self.throttles.heal()
        self.wait(_SETTLE_MS, self._settled, lambda: f"shards or slots do not settle: {self._left()}")

    def _settled(self) -> bool:
        serving = all(
            number in self.control.owners and self.host(name).serves(number, self.control.owners[number].epoch)
            for number, name in self.control.assigned.items()
        )
        living = all(host.alive and self.control.living.get(host.name) is host for host in self.hosts)
        return serving and living and self._informed() and not self.control.slots.moves

    def _informed(self) -> bool:
        return all(host.routing.slots == self.control.slots for host in self.hosts)

    def _left(self) -> str:
        dbs = self.dbs
        left = [(id_, dbs[id_ >> 48].ready.get(id_) or dbs[id_ >> 48].timer.get(id_)) for id_ in self.checks.left()]
        return f"items {left[:3]} are left, owners {self.control.owners}, moves {self.control.slots.moves}"

    def _check_end(self) -> None:
        left: dict[Any, None] = {}
        self.clients.recall([spec for spec in self.clients.keyed.values() if spec.ids], left)
        self.wait(_SETTLE_MS, lambda: not left, lambda: "keys are not answered")
        if self.trouble == "settings":
            confirmed: list[None] = []
            self.settings.check_end(lambda: confirmed.append(None))
            self.wait(
                _SETTLE_MS, lambda: len(confirmed) == len(NAMESPACES), lambda: "changes of settings are not answered"
            )
        self.checks.check_slots(self.control.slots)
        self.checks.check_quota()
        self.throttles.check_rates()


def simulate(seed: int, trouble: str = "") -> Simulation:
    return Simulation(seed, trouble).run()
