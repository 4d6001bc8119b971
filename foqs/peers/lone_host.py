"""The static facts of a lone host, in place of a cluster's: every shard is here, or does not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup
from foqs.engine.calls import EnqueueCall
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import NotSent
from foqs.fairness.keys import TopicKey
from foqs.peers.by_id import ForwardedItems
from foqs.peers.ready_subscriber import Done
from foqs.peers.shard_owners import LoneOwners
from foqs.peers.slot_owners import Found, SlotOwner
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import Route, Routing, bits_of, make_routing, missing, slots_of


class LoneForwarder:
    """In place of `Forwarder`: no request leaves this host. `address` is this host's, as clients know it."""

    handover_ms = 2_000
    """How long a shard that is opened again is waited for."""

    def __init__(self, engine: Engine, address: Callable[[], str]) -> None:
        self.owners = LoneOwners(engine)
        self._engine = engine
        self._address = address
        self._slots: tuple[int, ...] = ()
        self._routing: Routing | None = None

    def routing(self) -> Routing:
        """Return the routing: this host owns the shards that it serves."""
        if self._routing is None:
            engine, host, address = self._engine, self._engine.config.server.id, self._address()
            owners = {shard.number: Route(address, shard.epoch, host) for shard in engine.serving}
            self._routing = make_routing(owners, {host: address}, engine.shards, Slots(shards=self._slots))
        return self._routing

    def changed(self) -> None:
        """Follow the shards that are served here."""
        self._routing = None

    def slots(self) -> Sequence[int]:
        """Return the shard of each slot of deduplication keys, and share out those that no shard has."""
        if not self._slots or 0 in self._slots:
            self.share_slots()
        return self._slots

    def share_slots(self) -> None:
        """Give slots that no shard has to the shards with the fewest.

        Wait until all shards are open and no slots are being written: a shard may have the missing slots soon."""
        engine = self._engine
        serving = {shard.number: shard.keys.held.bits for shard in engine.serving}
        self._slots, self._routing = slots_of(serving), None
        if len(serving) < len(engine.shards) or any(shard.keys.last is not shard.keys.held for shard in engine.serving):
            return
        for number, slots in missing(serving).items():
            shard = engine.shards[number]
            shard.keys.wanted = shard.keys.held._replace(bits=bits_of(slots, shard.keys.held.bits))
            engine.touch(shard)

    shard_served = share_slots

    def enqueue_keyed(
        self, waiting: EnqueueCall, items: list[Keyed], request: Any, now_ms: int, deadline_ms: int
    ) -> None:
        for number, part in dedup.by_shard(self.slots(), items).items():
            dedup.place(self._engine, waiting, number, part, now_ms)

    def ask_others(
        self, method: str, part: Callable[[], Any], origin: Any, deadline_ms: int,
        take: Callable[[str, Any], object], end: Callable[[list[str]], object],
    ) -> None:  # fmt: skip
        end([])

    def ask(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        done(None, NotSent("this host has no way to other hosts"))

    def enqueue(self, *_: object) -> bool:
        """Return False, like the methods below that say whether another host has to do with a request."""
        return False

    dequeue = get_item = explain_item = list_items = was_charged = enqueue

    def items(self, *_: object) -> ForwardedItems | None:
        return None

    def other_hosts(self) -> set[str]:
        return set()

    def fetch(self, key: TopicKey) -> None:
        """No other host has items."""


class LoneSlotOwner:
    """In place of `SlotOwners`: this host has all slots since its start."""

    def __init__(self, begun_ms: int) -> None:
        self._begun_ms = begun_ms

    def find(self, slot: int, found: Found) -> None:
        found(SlotOwner(0, 0), self._begun_ms)

    def observe(self) -> None:
        """Nothing changes."""

    def check(self, shard: Shard, then: Callable[[bool], None]) -> None:
        then(True)
