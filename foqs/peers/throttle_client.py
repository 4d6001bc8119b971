"""Asks the coordinators of throttle keys for the tokens and slots that `foqs.engine.throttling` needs.

One call is in flight to each other host that coordinates keys, and has the questions of all of them: the number of
messages does not grow with the number of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from foqs.buffers.checkpoint import NEVER_MS
from foqs.engine import consumers
from foqs.engine.concurrency import AnyGate
from foqs.engine.engine import Engine
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.limits.bucket import Ask, Grant
from foqs.limits.gate import AT_ONCE
from foqs.limits.lease_slots import SlotAsk, SlotGrant
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.peers.lease_coordinator import LeaseCoordinator
from foqs.peers.token_coordinator import TokenCoordinator

ANSWER_MS = 1_000
"""A coordinator that does not answer within this is asked again."""
BEAT_MS = 500
Asked = Sequence[tuple[AnyGate, Ask | SlotAsk]]


class ThrottleClient:
    """The borrower for one host's throttle keys. `begin` has this host coordinate throttle keys from now on: a
    coordinator grants nothing at first. Nothing runs while no throttle key is in use."""

    def __init__(
        self,
        engine: Engine,
        forwarder: Forwarder,
        coordinator: TokenCoordinator,
        slots: LeaseCoordinator,
        begin: Callable[[], None],
        timers: Timers,
    ) -> None:
        self._engine = engine
        self._throttling = engine.state.throttling
        self._forwarder = forwarder
        self._coordinator = coordinator
        self._slots = slots
        self._begin = begin
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self._holder = f"{engine.state.rng.getrandbits(128):032x}"
        self._due = False
        self._timer_ms = NEVER_MS
        self._beating = False
        self._queues: dict[str, dict[AnyGate, None]] = {}  # by address; its questions wait for the open call
        self._open: set[str] = set()

    def wanted(self) -> None:
        """Ask in the next turn of the event loop."""
        self._begin()
        if not self._due:
            self._due = True
            self._engine.state.slices.soon(self._turn)
        if not self._beating:
            self._beating = True
            self._later(BEAT_MS, self._beat)

    def _turn(self) -> None:
        self._due = False
        if self._engine.state.draining:
            return
        here: list[AnyGate] = []
        for key in self._throttling.turn():
            address = self._elsewhere(key)
            if address is None:
                here.append(key)
            else:
                self._queues.setdefault(address, {})[key] = None
        self._ask_here(here)
        for address in list(self._queues):
            if address not in self._open:
                self._ask(address)
        next_ms = self._throttling.agenda.next_ms()
        if next_ms is not None and next_ms < self._timer_ms:
            self._timer_ms = next_ms
            self._later(max(1, next_ms - self._monotonic_ms()), self._timer)

    def _timer(self) -> None:
        self._timer_ms = NEVER_MS
        self.wanted()

    def _elsewhere(self, key: AnyGate) -> str | None:
        """Return the address of the coordinator, None if it is this host."""
        route = self._forwarder.routing().coordinator(key.slot, self._engine.state.config.server.id)
        return None if route is None else route.address

    def _questions(self, keys: Sequence[AnyGate]) -> Asked:
        return [(key, ask) for key in keys if (ask := self._throttling.ask(key)) is not None]

    def _ask_here(self, gates: Sequence[AnyGate]) -> None:
        asked = self._questions(gates)
        tokens = [(gate, ask) for gate, ask in asked if isinstance(ask, Ask)]
        slots = [(gate, ask) for gate, ask in asked if isinstance(ask, SlotAsk)]
        if tokens:
            answered = partial(self._answered, tokens)
            self._coordinator.lend(self._holder, [(gate.bounded, ask) for gate, ask in tokens], answered)
        if slots:
            self._slots.lend([(gate.bounded, ask) for gate, ask in slots], partial(self._answered, slots))
        for part in (tokens, slots):
            if part and (part[0][0].asking or part[-1][0].asking):
                self._later(ANSWER_MS, partial(self._answered, part, [None] * len(part)))

    def _ask(self, address: str) -> None:
        """Send the first questions that wait for this host."""
        queue, mine = self._queues[address], list[AnyGate]()
        for key in list(islice(queue, AT_ONCE)):
            del queue[key]
            if self._elsewhere(key) == address:
                mine.append(key)
            else:
                self._throttling.agenda.ask_again(key)
        if not queue:
            del self._queues[address]
        asked = self._questions(mine)
        if not asked:
            if queue:
                self.wanted()
            return
        self._open.add(address)

        def replied(response: Any, error: FoqsError | None) -> None:
            self._open.discard(address)
            tokens = iter([] if error is not None else response.tokens or ())
            slots = iter([] if error is not None else response.slots or ())
            self._answered(asked, [_grant(next(tokens if isinstance(ask, Ask) else slots, None)) for _, ask in asked])
            if address in self._queues:
                self.wanted()

        tokens = [_question(gate, ask) for gate, ask in asked if isinstance(ask, Ask)]
        slots = [_slot_question(gate, ask) for gate, ask in asked if isinstance(ask, SlotAsk)]
        request = idl.LendRequest(self._holder, tokens, slots or None)
        self._forwarder.ask(address, "Lend", request, ANSWER_MS, replied)

    def leave(self) -> None:
        """Give the tokens held here back, as this host delivers nothing from now on. Their coordinators would keep them
        in reserve for it. Of many keys some are given back, and no answer is waited for."""
        given: dict[str, list[Any]] = {}
        for key, ask in self._throttling.leave():
            address = self._elsewhere(key)
            if address is not None:
                given.setdefault(address, []).append(_question(key, ask))
        for address, asks in given.items():
            request = idl.LendRequest(self._holder, asks[:AT_ONCE])
            self._forwarder.ask(address, "Lend", request, ANSWER_MS, lambda response, error: None)

    def _answered(self, asked: Asked, grants: Sequence[Grant | SlotGrant | None]) -> None:
        for (gate, ask), grant in zip(asked, grants, strict=True):
            self._throttling.answered(gate, ask, grant)
        consumers.let_go(self._engine.state, self._engine.state.now_ms)

    def _beat(self) -> None:
        self._beating = False
        if self._engine.state.draining:
            return
        if self._throttling.beat():
            self._beating = True
            self._later(BEAT_MS, self._beat)


def _question(gate: AnyGate, ask: Ask) -> Any:
    return idl.TokenAsk(gate.bounded[0], gate.name, *ask)


def _slot_question(gate: AnyGate, ask: SlotAsk) -> Any:
    return idl.SlotAsk(gate.bounded[0], gate.name, **ask._asdict())


def _grant(grant: Any) -> Grant | SlotGrant | None:
    if grant is None or grant.granted is None or grant.retry_after_ms is None:
        return None
    if isinstance(grant, idl.SlotGrant):
        return SlotGrant(grant.granted, bool(grant.contended), grant.retry_after_ms)
    return None if grant.kept is None else Grant(grant.granted, grant.kept, grant.retry_after_ms)
