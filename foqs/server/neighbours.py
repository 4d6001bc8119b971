"""What a host knows of its cluster, and its connections to the other hosts.

A lone host is a cluster that never changes: it runs the same node with `LONE` and `NoPeers`, and opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foqs.api.auth import Guard
from foqs.bounds import Budget, Limits
from foqs.clock import monotonic_ms
from foqs.config.load import Config
from foqs.engine.engine import Engine
from foqs.peers.forwarder import Forwarder, LoneForwarder, LoneSlotOwner
from foqs.peers.hash_slots import SlotOwners
from foqs.policies.settings import SettingsStore
from foqs.rpc.call import RequestLog
from foqs.rpc.peer_caller import PeerCaller
from foqs.rpc.tls import peer_context
from foqs.shardmgr.facts import SlotMove
from foqs.shardmgr.routing import Routing


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Neighbours:
    """`changed()` is called when a shard came, went, or changed its state; `share_slots()` when a slot of deduplication
    keys has no shard; `slots_arrived(moves)` when the rows of slots are where these moves put them.

    `static`: the host keeps the shards of its configuration. Any other host has those that its membership assigns.
    `settings`: where the cluster keeps the settings of namespaces.
    """

    routing: Callable[[], Routing]
    handover_ms: int
    changed: Callable[[], None]
    share_slots: Callable[[], None] = _nothing
    slots_arrived: Callable[[Mapping[int, SlotMove]], None] = _nothing
    static: bool = False
    settings: SettingsStore | None = None


LONE = Neighbours(routing=Routing, handover_ms=0, changed=_nothing, static=True)


class NoPeers:
    """In place of `Peers` on a lone host."""

    def __init__(self, engine: Engine, address: Callable[[], str]) -> None:
        self.forwarder = LoneForwarder(engine, address)
        self.slot_owners = LoneSlotOwner(monotonic_ms())
        self.slots_written = self.forwarder.share_slots

    def limit(self, limits: Limits) -> None:
        """Requests to other hosts have these limits: there are none."""

    def close(self) -> None:
        """There is no connection to close."""


class Peers:
    """Connections to other hosts, and the forwarding of requests over them."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        budget: Budget,
        engine: Engine,
        guard: Guard,
        neighbours: Neighbours,
        *,
        now_ms: Callable[[], int],
        soon: Callable[[Callable[[], None]], Any],
        later: Callable[[int, Callable[[], None]], Any],
        requests: RequestLog,
    ) -> None:
        self.caller = PeerCaller(limits, budget, tls=peer_context(config.tls), introduction=guard.introduction())
        self.forwarder = Forwarder(
            engine,
            config.server.id,
            neighbours.routing,
            guard.proven(self.caller.call),
            self.caller.cut,
            handover_ms=neighbours.handover_ms,
            now_ms=now_ms,
            soon=soon,
            later=later,
            requests=requests,
            slots_arrived=neighbours.slots_arrived,
            share_slots=neighbours.share_slots,
        )
        self.slot_owners = SlotOwners(engine, now_ms, monotonic_ms, self.forwarder.slot_moves.adopt)
        self.slots_written = _nothing

    def limit(self, limits: Limits) -> None:
        self.caller.limits = limits

    def close(self) -> None:
        self.caller.close()
