"""What one host lends and borrows: the units, their coordinator here, and the clients that borrow them.

A new unit is a ledger in `foqs.limits`, an entry of `units`, and an account that borrows it.
"""

from __future__ import annotations

from foqs.engine.engine import Engine
from foqs.limits.bucket import QUOTA_TOKENS, THROTTLE_TOKENS
from foqs.limits.lease_slots import LEASE_SLOTS
from foqs.peers.borrower import ThrottleClient
from foqs.peers.coordinator import Coordinator, HashSlotOwners, Unit
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.peers.quota_client import QuotaClient
from foqs.peers.slot_units import SlotUnit
from foqs.peers.token_units import QuotaUnit, ThrottleUnit


class Lending:
    """`coordinator.watch` is called at the start of a host of a cluster."""

    def __init__(self, engine: Engine, forwarder: Forwarder, owners: HashSlotOwners, timers: Timers) -> None:
        holder = f"{engine.state.rng.getrandbits(128):032x}"
        self.quota_unit = QuotaUnit(engine, forwarder, owners, timers)
        self.slot_unit = SlotUnit(engine, forwarder, owners, timers)
        units: dict[str, Unit] = {
            QUOTA_TOKENS: self.quota_unit,
            THROTTLE_TOKENS: ThrottleUnit(engine, timers),
            LEASE_SLOTS: self.slot_unit,
        }
        self.coordinator = Coordinator(engine, forwarder, owners, timers, units)
        self.quotas = QuotaClient(engine, forwarder, self.coordinator, self.quota_unit, holder, timers)
        self.throttles = ThrottleClient(engine, forwarder, self.coordinator, holder, timers)
