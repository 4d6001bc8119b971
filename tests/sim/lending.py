"""A simulated host's part in throttles: the production coordinator and lender, wired as in `foqs.server.node`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.api.peer_methods import PeerMethods
from foqs.errors import FoqsError
from foqs.peers.coordinator import HashSlotOwners
from foqs.peers.lending import Lending
from tests.support.timers import TestTimers

if TYPE_CHECKING:
    from tests.sim.member import Member


class Loans:
    """Its clock is true time, from a beginning of its own."""

    def __init__(self, member: Member) -> None:
        engine, neighbour = member.engine, member.neighbour
        self._begun_ms = member.sim.rng.randrange(1_000_000) - member.sim.time
        self._member = member
        forwarder: Any = SimpleNamespace(routing=neighbour.routing, ask=neighbour.ask, slots=lambda: None)
        timers = TestTimers(lambda: member.now_ms, self.monotonic_ms, later=neighbour.later)
        owners = HashSlotOwners(engine, timers, neighbour.moves.adopt)
        lending = Lending(engine, forwarder, owners, timers)
        self.throttles = lending.throttles
        methods = PeerMethods(None, lending, None)  # type: ignore[arg-type]
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
