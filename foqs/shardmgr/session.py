"""The state of a host's session with ZooKeeper."""

from __future__ import annotations

from enum import Enum


class Session(Enum):
    """SUSPENDED: no server answers, but ephemeral records still exist. EXPIRED: ephemeral records are gone."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
