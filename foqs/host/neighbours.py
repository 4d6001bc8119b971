"""What a node has to know of the cluster that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foqs.shardmgr.routing import Routing


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Of a host in a cluster. `changed()` is called when a shard came, went, or changed its state."""

    routing: Callable[[], Routing]
    handover_ms: int
    changed: Callable[[], None]
