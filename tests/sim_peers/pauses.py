"""An operator of a simulated run pauses and resumes topics. Hosts learn of that at different times.

Checked by what the operator knows: which hosts applied which version of the settings. A host that applied a version
leases and delivers no item of a topic that is paused in it.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.policies.settings import Settings
from tests.sim.ledger import broken
from tests.sim_peers.profile import BOUNDED, FREE, RATED

if TYPE_CHECKING:
    from tests.sim_peers.host import Host
    from tests.sim_peers.simulation import Simulation


class Version(NamedTuple):
    """`paused`: the topics."""

    settings: Settings
    paused: frozenset[str]


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
        self._publish(ns, frozenset(topic for topic in topics if rng.random() < 0.5), by_prefix=rng.random() < 0.3)

    def end(self) -> None:
        """Resume all topics."""
        for ns in self._latest:
            self._publish(ns, frozenset(), by_prefix=False)

    def check(self, host: str, ns: str, topic: str, what: str) -> None:
        """`what` the host does with an item of the topic."""
        version = self._applied.get((host, ns))  # other namespaces have no paused topics
        if version is not None and topic in version.paused:
            broken(15, f"{host} {what} an item of {ns} {topic}, paused in version {version.settings.version}")

    def _publish(self, ns: str, paused: frozenset[str], *, by_prefix: bool) -> None:
        entries: dict[str, dict[str, Any]] = {
            f"topic.{topic}": {"paused": topic in paused} for topic in self.sim.profile.topics
        }
        if by_prefix:  # the topics that are not named
            entries = {key: value for key, value in entries.items() if not value["paused"]}
            entries["topic.*"] = {"paused": True}
        old = self._latest[ns].settings
        texts = self._entries(ns, entries)
        self._latest[ns] = version = Version(old.changed(texts, old.entries.keys() - texts.keys()), paused)
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
