"""A simulated host's part in throttles: the production coordinator and lender, wired as in `foqs.server.node`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.api.peer_methods import PeerMethods
from foqs.errors import FoqsError
from foqs.peers.hash_slots import SlotOwners
from foqs.peers.lease_coordinator import LeaseCoordinator
from foqs.peers.quota_client import QuotaClient
from foqs.peers.throttle_client import ThrottleClient
from tests.support.timers import TestTimers

if TYPE_CHECKING:
    from tests.sim.member import Member


class Lending:
    """Its clock is true time, from a beginning of its own."""

    def __init__(self, member: Member) -> None:
        engine, neighbour = member.engine, member.neighbour
        self._begun_ms = member.sim.rng.randrange(1_000_000) - member.sim.time
        self._member = member
        forwarder: Any = SimpleNamespace(routing=neighbour.routing, ask=neighbour.ask, slots=lambda: None)
        timers = TestTimers(lambda: member.now_ms, self.monotonic_ms, later=neighbour.later)
        owners = SlotOwners(engine, timers, neighbour.moves.adopt)
        quotas = QuotaClient(engine, forwarder, owners, timers)
        slots = LeaseCoordinator(engine, forwarder, owners, quotas.begin, timers)
        self.lender = ThrottleClient(engine, forwarder, quotas.coordinator, slots, quotas.begin, timers)
        methods = PeerMethods(None, quotas.coordinator, slots, None)  # type: ignore[arg-type]
        self._methods = methods.handlers()

    def monotonic_ms(self) -> int:
        return self._member.sim.time + self._begun_ms

    def answer(self, method: str, request: Any, reply: Any) -> None:
        """Answer another host, by `reply(response or error)`."""
        call: Any = SimpleNamespace(request=request, reply=reply, fail=reply)
        try:
            self._methods[method](call)
        except FoqsError as error:
            reply(error)
