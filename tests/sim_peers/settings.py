"""The settings of a simulated cluster: where they are stored, how hosts learn of them, and clients that change them.

9 a version is one client's change, and its log says so; a host that was named as acting on a version never acts on an
older one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.errors import Code, FoqsError, OutcomeUnknown, Unavailable
from foqs.idl import idl
from foqs.policies.settings import Change, Changed, Settings
from tests.policies.log_checks import disagreements
from tests.sim.ledger import broken

if TYPE_CHECKING:
    from tests.sim_peers.host import Host
    from tests.sim_peers.simulation import Simulation

NAMESPACES = ("shop", "mail")
"""No items are in them: other parts of a run change the settings of those that have some."""
_EVERY_MS = 150
_NEWS_MS = (0, 1, 20, 400, 3_000)
_QUIET_MS = (0, 1, 20)
_CUT_MS = (100, 5_000)
_SURE = (Code.CONFLICT, Code.INVALID, Code.UNAVAILABLE)


class HostStore:
    """A host's `SettingsStore`. A request may fail before it is carried out, or lose its answer after it."""

    def __init__(self, cluster: ClusterSettings, host: Host) -> None:
        self._cluster, self._host = cluster, host

    def change_settings(self, ns: str, change: Change, done: Changed) -> None:
        cluster, later = self._cluster, self._host.later
        rng = cluster.rng

        def arrive() -> None:
            fate = rng.random() if cluster.faults else 1.0
            outcome: Settings | FoqsError
            if fate < 0.05 or self._host in cluster.cut:
                outcome = Unavailable("no connection")
            else:
                outcome = cluster.change(ns, change)
                if fate < 0.15 and isinstance(outcome, Settings):
                    outcome = OutcomeUnknown("the connection was lost")
            later(rng.choice([0, 5, 50]), partial(done, outcome))

        cluster.sim.soon(rng.choice([0, 5, 50]), arrive)


class ClusterSettings:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.rng = random.Random(sim.seed)
        self.stored: dict[str, Settings] = {}
        self.cut: set[Host] = set()  # hosts that learn of nothing
        self.faults = True
        self._floor: dict[tuple[str, str], int] = {}  # (address, namespace) -> the highest version it was named for
        self._versions: dict[tuple[str, int], str] = {}  # the change that made each version
        self._changes = 0

    # ------------------------------------------------------------------------------------- the stored settings

    def change(self, ns: str, change: Change) -> Settings | FoqsError:
        try:
            made = change(self.stored.get(ns) or Settings(ns))
        except FoqsError as error:
            return error
        self.stored[ns] = made
        for found in disagreements(made):
            broken(9, f"{ns}: {found}")
        self._versions[ns, made.version] = made.entries["by"]
        for host in self.sim.hosts:
            self.sim.soon(self.rng.choice(_NEWS_MS if self.faults else _QUIET_MS), partial(self._tell, host))
        return made

    def _tell(self, host: Host) -> None:
        if host.alive and host not in self.cut:
            host.settings.follow(dict(self.stored))
            self.check(host)

    def join(self, host: Host) -> None:
        """A host reads the settings before it serves."""
        self._tell(host)
        self.check(host)

    # ------------------------------------------------------------------------------------- what happens

    def start(self) -> None:
        self._again(_EVERY_MS, self._put)
        self._again(1_000, self._cut)

    def _again(self, most_ms: int, do: Callable[[], None]) -> None:
        def run() -> None:
            if not self.sim.healing:
                do()
                self._again(most_ms, do)

        self.sim.soon(self.rng.randint(1, most_ms), run)

    def _cut(self) -> None:
        host = self.rng.choice(self.sim.hosts)
        self.cut.add(host)
        self.sim.soon(self.rng.randint(*_CUT_MS), lambda: self._mend(host))

    def _mend(self, host: Host) -> None:
        self.cut.discard(host)
        self._tell(host)

    def heal(self) -> None:
        """No faults from here on."""
        self.faults = False
        for host in list(self.cut):
            self._mend(host)

    # ------------------------------------------------------------------------------------- clients

    def _put(self) -> None:
        living = [host for host in self.sim.hosts if host.alive]
        self.put(self.rng.choice(living), self.rng.choice(NAMESPACES), self.rng.choice([200, 3_000]))

    def put(self, host: Host, ns: str, timeout_ms: int, then: Callable[[Any], None] = lambda response: None) -> None:
        """Change the settings through a host; `then` gets the response, None for an error."""
        self._changes += 1
        by, known = str(self._changes), host.settings.of(ns).version
        expected = known if self.rng.random() < 0.5 else None
        request = idl.PutSettingsRequest(ns, {"by": by}, None, expected)

        def done(response: Any, error: FoqsError | None) -> None:
            counts = self.sim.checks.counts
            if error is not None:
                counts[f"put {error.code.name}"] += 1
                if error.code in _SURE and by in self._versions.values():
                    broken(9, f"change {by} was refused ({error}), and is a version")
            else:
                counts["put"] += 1
                self._answered(ns, by, expected, response)
            then(response)

        self.sim.clients.send("PutSettings", request, timeout_ms, done, host=host)

    def _answered(self, ns: str, by: str, expected: int | None, response: Any) -> None:
        version, applied, missing = response.version, response.applied, response.missing
        if self._versions.get((ns, version)) != by or (expected is not None and version != expected + 1):
            broken(9, f"change {by} of version {expected} was answered with {version}")
        if set(applied) & set(missing) or len({*applied, *missing}) < len([*applied, *missing]):
            broken(9, f"{applied} applied it, and {missing} did not")
        self.sim.checks.counts["applied"] += len(applied)
        self.sim.checks.counts["missing"] += len(missing)
        for address in applied:
            self._floor[address, ns] = max(version, self._floor.get((address, ns), 0))
            self.check(self.sim.exchange.hosts[address])

    # ------------------------------------------------------------------------------------- checks

    def check(self, host: Host) -> None:
        for ns in NAMESPACES:
            version, floor = host.settings.of(ns).version, self._floor.get((host.address, ns), 0)
            if host.alive and version < floor:
                broken(9, f"{host.name} acts on version {version} of {ns}, and was named for {floor}")

    def check_end(self, confirmed: Callable[[], None]) -> None:
        """All hosts confirm a last change of each namespace; `confirmed` is called once for each. A change fails while
        the host does not know of the one before."""

        def put(ns: str) -> None:
            def then(response: Any) -> None:
                if response is None:
                    self.sim.soon(_EVERY_MS, lambda: put(ns))
                    return
                if response.missing or len(response.applied) != len(self.sim.hosts):
                    broken(9, f"a change without faults was answered with {response}")
                confirmed()

            self.put(self.sim.hosts[0], ns, 60_000, then)

        for ns in NAMESPACES:
            put(ns)
