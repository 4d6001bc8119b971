"""A simulated host's part in throttles: the production coordinator and lender, wired as in `foqs.server.node`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.api.peer_methods import PeerMethods
from foqs.errors import FoqsError
from foqs.peers.hash_slots import SlotOwners
from foqs.peers.lease_coordinator import SlotCoordinator
from foqs.peers.quota_client import QuotaClient
from foqs.peers.throttle_client import TokenLender

if TYPE_CHECKING:
    from tests.sim.member import Member


class Lending:
    """Its clock is true time, from a beginning of its own."""

    def __init__(self, member: Member) -> None:
        engine, neighbour = member.engine, member.neighbour
        self._begun_ms = member.sim.rng.randrange(1_000_000) - member.sim.time
        self._member = member
        forwarder: Any = SimpleNamespace(routing=neighbour.routing, ask=neighbour.ask, slots=lambda: None)
        owners = SlotOwners(engine, lambda: member.now_ms, self.monotonic_ms, neighbour.moves.adopt)
        quotas = QuotaClient(engine, forwarder, owners, lambda: member.now_ms, self.monotonic_ms, neighbour.later)
        slots = SlotCoordinator(engine, forwarder, owners, quotas.begin, self.monotonic_ms, neighbour.later)
        self.lender = TokenLender(
            engine, forwarder, quotas.coordinator, slots, quotas.begin, self.monotonic_ms, neighbour.later
        )
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
