"""Which host serves a shard, for requests that visit all shards of the cluster, one after the other."""

from __future__ import annotations

from typing import Any, Protocol

from foqs.engine.state import State
from foqs.errors import NotFound, NotServed, Unavailable
from foqs.peers.exchange import NO_OWNER, RETRY_MS, Exchange
from foqs.peers.forwarded import HERE, Target
from foqs.peers.ready_subscriber import Done


class ShardOwners(Protocol):
    def shards(self) -> list[int]:
        """Return the numbers of all shards, in order."""

    def unowned(self) -> list[int]:
        """Return the shards that no host serves now, in order."""

    def find(self, shard: int) -> Target:
        """Return where a request for the shard goes; an error if no host serves it now."""

    def send(self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done) -> None:
        """Ask another host on behalf of the caller of `origin`."""


class ClusterOwners:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.send = exchange.send

    def shards(self) -> list[int]:
        return sorted(self._exchange.routing().shards)

    def unowned(self) -> list[int]:
        routing = self._exchange.routing()
        return sorted(routing.shards - routing.owners.keys())

    def find(self, shard: int) -> Target:
        if self._exchange.serves(shard):
            return HERE
        routing = self._exchange.routing()
        route = routing.owners.get(shard)
        if route is None and (shard in routing.disabled or shard not in routing.shards):
            return NotFound(f"shard {shard} is disabled or removed: no host will serve it")
        if route is None or route.host == self._exchange.host_id:
            return Unavailable(NO_OWNER, RETRY_MS)
        return route


class LoneOwners:
    """A lone host serves all shards, or no host does."""

    def __init__(self, state: State) -> None:
        self._state = state

    def shards(self) -> list[int]:
        return sorted(self._state.shards)

    def unowned(self) -> list[int]:
        return sorted(self._state.shards.keys() - {shard.number for shard in self._state.serving})

    def find(self, shard: int) -> Target:
        return HERE if shard not in self.unowned() else Unavailable("the shard is not open", RETRY_MS)

    def send(self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done) -> None:
        done(None, NotServed("this host has no way to other hosts"))
