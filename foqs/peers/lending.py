"""What one host lends and borrows: the units, their coordinator here, and the clients that borrow them.

A new unit is a ledger in `foqs.limits`, an entry of `units`, and an account that borrows it.
"""

from __future__ import annotations

from foqs.engine.engine import Engine
from foqs.limits.lease_slots import LEASE_SLOTS
from foqs.peers.borrower import ThrottleClient
from foqs.peers.coordinator import TOKENS, Coordinator, SlotOwners, ThrottleUnit, Unit
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.peers.quota_client import QuotaClient
from foqs.peers.quota_units import QUOTA, QuotaUnit
from foqs.peers.slot_units import SlotUnit


class Lending:
    """`coordinator.watch` is called at the start of a host of a cluster."""

    def __init__(self, engine: Engine, forwarder: Forwarder, owners: SlotOwners, timers: Timers) -> None:
        holder = f"{engine.state.rng.getrandbits(128):032x}"
        self.items = QuotaUnit(engine, forwarder, owners, timers)
        self.slots = SlotUnit(engine, forwarder, owners, timers)
        units: dict[str, Unit] = {QUOTA: self.items, TOKENS: ThrottleUnit(engine, timers), LEASE_SLOTS: self.slots}
        self.coordinator = Coordinator(engine, forwarder, owners, timers, units)
        self.quotas = QuotaClient(engine, forwarder, self.coordinator, self.items, holder, timers)
        self.throttles = ThrottleClient(engine, forwarder, self.coordinator, holder, timers)
