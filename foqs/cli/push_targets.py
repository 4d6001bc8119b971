"""The push targets of a namespace, as its settings say: of which version, and what this version of foqs understands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foqs.client import Settings
from foqs.errors import Invalid
from foqs.policies.entries import PUSH
from foqs.policies.push import parse_push
from foqs.push.target import Target

BEHIND_S = 30.0
"""An older version counts if no host has had the newer one for this time: the settings were put back to a copy."""


def target_of(ns: str, name: str, text: str) -> Target:
    """Return the target that the value of a setting `push.<name>` describes. Raises Invalid."""
    entry = parse_push(text)
    return Target(name, ns, **dict(entry))


@dataclass
class Followed:
    """The targets by the newest answer about the settings of a namespace. `odd`: the entries that this version of foqs
    does not understand, with the reasons; hosts of a newer one may have accepted them."""

    ns: str
    version: int | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    odd: Mapping[str, str] = field(default_factory=dict)
    heard_s: float = 0.0
    """When a host last had this version, by the monotonic clock."""

    def hear(self, settings: Settings, now_s: float) -> bool:
        """Take an answer to the request for the entries `push.*`. Return True if it has other entries than the last one
        that was taken. Hosts act on a new version one after the other: one that is behind is not followed."""
        older = self.version is not None and settings.version < self.version
        if older and now_s - self.heard_s < BEHIND_S:
            return False
        self.version, self.heard_s = settings.version, now_s
        if settings.entries == self.entries:
            return False
        targets: dict[str, Target] = {}
        odd: dict[str, str] = {}
        for key, text in settings.entries.items():
            name = key.removeprefix(PUSH)
            try:
                targets[name] = target_of(self.ns, name, text)
            except Invalid as error:
                odd[name] = error.message
        self.entries, self.targets, self.odd = settings.entries, targets, odd
        return True
