"""An operator of a simulated run pauses and resumes topics and tenants. Hosts learn of that at different times.

Checked by what the operator knows: which hosts applied which version of the settings. A host that applied a version
leases and delivers no item of a topic or tenant that is paused in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.policies.settings import Settings
from tests.sim.ledger import broken
from tests.sim_peers.profile import BOUNDED, FREE, RATED

if TYPE_CHECKING:
    from tests.sim_peers.host import Host
    from tests.sim_peers.simulation import Simulation


_NO_TENANTS: Mapping[str, Sequence[str]] = MappingProxyType({})


class Version(NamedTuple):
    """`paused`: the topics. `tenants`: of the other topics, the tenants that are paused."""

    settings: Settings
    paused: frozenset[str]
    tenants: Mapping[str, Sequence[str]] = _NO_TENANTS


class Pauses:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._latest = {ns: Version(Settings(ns, 1, self._entries(ns, {})), frozenset()) for ns in (FREE, RATED)}
        self._applied: dict[tuple[str, str], Version] = {}  # by host and namespace

    def join(self, host: Host) -> None:
        """A host has all settings before it serves."""
        for ns, version in self._latest.items():
            self._applied.pop((host.name, ns), None)
            self._apply(host, version)

    def change(self) -> None:
        """Pause some topics of a namespace, and resume the rest."""
        rng, topics = self.sim.rng, self.sim.profile.topics
        ns = rng.choice(list(self._latest))
        if self.sim.profile.tenants and rng.random() < 0.7:
            every = ["", *self.sim.profile.tenants]
            tenants = {topic: [one for one in every if rng.random() < 0.4] for topic in topics}
            self._publish(ns, frozenset(), by_prefix=False, tenants=tenants)
            return
        self._publish(ns, frozenset(topic for topic in topics if rng.random() < 0.5), by_prefix=rng.random() < 0.3)

    def end(self) -> None:
        """Resume all topics."""
        for ns in self._latest:
            self._publish(ns, frozenset(), by_prefix=False)

    def check(self, host: str, ns: str, topic: str, tenant: str, what: str) -> None:
        """`what` the host does with an item of the topic and tenant."""
        version = self._applied.get((host, ns))  # other namespaces have no paused topics
        if version is not None and topic in version.paused:
            broken(15, f"{host} {what} an item of {ns} {topic}, paused in version {version.settings.version}")
        paused = () if version is None else version.tenants.get(topic, ())
        if version is not None and tenant in paused:
            broken(15, f"{host} {what} an item of {ns} {topic} {tenant!r}; {version.settings} pauses {paused}")
        self.sim.checks.counts[f"{what} during a pause of tenants"] += bool(paused)

    def _publish(
        self, ns: str, paused: frozenset[str], *, by_prefix: bool, tenants: Mapping[str, Sequence[str]] = _NO_TENANTS
    ) -> None:
        entries: dict[str, dict[str, Any]] = {
            f"topic.{topic}": {"paused": topic in paused} for topic in self.sim.profile.topics
        }
        if by_prefix:  # the topics that are not named
            entries = {key: value for key, value in entries.items() if not value["paused"]}
            entries["topic.*"] = {"paused": True}
        for topic, some in tenants.items():
            entries[f"topic.{topic}"]["paused_tenants"] = some
        old = self._latest[ns].settings
        texts = self._entries(ns, entries)
        self._latest[ns] = version = Version(old.changed(texts, old.entries.keys() - texts.keys()), paused, tenants)
        self.sim.checks.counts["pauses"] += bool(paused)
        for host in self.sim.hosts:
            host.later(self.sim.rng.choice(self.sim.profile.settings_news_ms), partial(self._apply, host, version))

    def _entries(self, ns: str, entries: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Return the entries as text, with the bound on stored items that one topic has for the whole run."""
        if ns == FREE and self.sim.profile.max_stored:
            bounded = entries.setdefault(f"topic.{BOUNDED}", {})
            bounded["max_stored"] = self.sim.profile.max_stored
        return {key: json.dumps(value) for key, value in entries.items()}

    def _apply(self, host: Host, version: Version) -> None:
        key = (host.name, version.settings.ns)
        known = self._applied.get(key)
        if known is None or known.settings.version < version.settings.version:
            self._applied[key] = version
            host.settings.apply(version.settings)
