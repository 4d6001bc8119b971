"""The side of a host that borrows units: it sends the questions of accounts to the coordinators of their keys, whether
these are here, gone or another host by then.

An account (a gate of `foqs.limits.gate`, or a `QuotaAccount`) knows what the host holds of a key, and makes its
questions. One question of an account is open at a time. A coordinator on this host is asked by a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from foqs.buffers.checkpoint import NEVER_MS
from foqs.engine import consumers
from foqs.engine.concurrency import AnyGate
from foqs.engine.engine import Engine
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.limits.bucket import Ask, Grant
from foqs.limits.gate import AT_ONCE
from foqs.limits.lease_slots import SlotAsk, SlotGrant
from foqs.peers.coordinator import Coordinator, Question
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder

ANSWER_MS = 1_000
"""A coordinator that does not answer within this is asked again."""


A = TypeVar("A", bound=Any)
"""An account. It has a `unit`, a `bounded` (its key), the `hash_slot` of the key, and is `asking`."""
Asked = Sequence[tuple[A, Any]]
"""Accounts, and the question of each."""


class Borrower(Generic[A]):
    """The accounts of one method of the contract, `METHOD`."""

    METHOD: str

    def __init__(
        self, engine: Engine, forwarder: Forwarder, coordinator: Coordinator, holder: str, timers: Timers
    ) -> None:
        """`holder` names this host to coordinators."""
        self._state = engine.state
        self._forwarder = forwarder
        self._coordinator = coordinator
        self._holder = holder
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self.start = coordinator.start
        coordinator.beats.append(self.beat)

    def question(self, account: A) -> Any:
        """Return the question to send now, None if there is none."""
        raise NotImplementedError

    def answered(self, asked: Asked[A], grants: Sequence[Any]) -> None:
        """Take the answer to each question, None if there is none."""
        raise NotImplementedError

    def request(self, asked: Asked[A]) -> Any:
        """Return the request with these questions."""
        raise NotImplementedError

    def grants(self, asked: Asked[A], response: Any) -> Sequence[Any]:
        """Return the answer to each question, None where the other host does not coordinate the key."""
        raise NotImplementedError

    def beat(self) -> None:
        """Report what the host holds, which keeps it good. The coordinator here calls it twice a second."""
        raise NotImplementedError

    def elsewhere(self, account: A) -> str | None:
        """Return the address of the coordinator, None if it is this host."""
        if not self._state.shards_elsewhere:
            return None
        route = self._forwarder.routing().coordinator(account.hash_slot, self._state.config.server.id)
        return None if route is None else route.address

    def ask(self, accounts: Sequence[A]) -> None:
        """Ask the coordinators of the accounts."""
        here: list[A] = []
        by_address: dict[str, list[A]] = {}
        for account in accounts:
            address = self.elsewhere(account)
            (here if address is None else by_address.setdefault(address, [])).append(account)
        asked = self.questions(here)
        if asked:
            questions = [Question(account.unit, account.bounded, account.hash_slot, ask) for account, ask in asked]
            self._coordinator.lend(self._holder, questions, partial(self.answered, asked))
            if asked[0][0].asking:  # all are answered at once
                self._later(ANSWER_MS, partial(self.answered, asked, [None] * len(asked)))
        for address, there in by_address.items():
            self.send(address, there)

    def send(self, address: str, accounts: Sequence[A]) -> None:
        """Ask another host, which coordinates the accounts."""
        self.call(address, self.questions(accounts))

    def questions(self, accounts: Sequence[A]) -> list[tuple[A, Any]]:
        return [(account, ask) for account in accounts if (ask := self.question(account)) is not None]

    def call(self, address: str, asked: Asked[A], ended: Callable[[], None] = lambda: None) -> None:
        """Send the questions in one call. `ended` is called at its end."""

        def replied(response: Any, error: FoqsError | None) -> None:
            ended()
            self.answered(asked, [None] * len(asked) if error is not None else self.grants(asked, response))

        self._forwarder.ask(address, self.METHOD, self.request(asked), ANSWER_MS, replied)


class ThrottleClient(Borrower[AnyGate]):
    """The gates of throttle keys: their tokens and slots. One call is in flight to each other host, so the number of
    messages does not grow with the number of keys."""

    METHOD = "Lend"

    def __init__(
        self, engine: Engine, forwarder: Forwarder, coordinator: Coordinator, holder: str, timers: Timers
    ) -> None:
        super().__init__(engine, forwarder, coordinator, holder, timers)
        self._throttling = engine.state.throttling
        self._queues: dict[str, dict[AnyGate, None]] = {}  # by address: they wait for the open call
        self._open: set[str] = set()
        self._due = False
        self._timer_ms = NEVER_MS

    def wanted(self) -> None:
        """Ask in the next turn of the event loop."""
        self.start()
        if not self._due:
            self._due = True
            self._state.slices.soon(self._turn)

    def leave(self) -> None:
        """Give the tokens held here back, as this host delivers nothing from now on. Their coordinators would keep them
        in reserve for it. Of many keys some are given back, and no answer is waited for."""
        given: dict[str, list[tuple[AnyGate, Ask]]] = {}
        for key, ask in self._throttling.leave():
            address = self.elsewhere(key)
            if address is not None:
                given.setdefault(address, []).append((key, ask))
        for address, asked in given.items():
            request = self.request(asked[:AT_ONCE])
            self._forwarder.ask(address, self.METHOD, request, ANSWER_MS, lambda response, error: None)

    def question(self, account: AnyGate) -> Ask | SlotAsk | None:
        return None if self._state.draining else self._throttling.ask(account)

    def answered(self, asked: Asked[AnyGate], grants: Sequence[Grant | SlotGrant | None]) -> None:
        for (gate, ask), grant in zip(asked, grants, strict=True):
            self._throttling.answered(gate, ask, grant)
        consumers.let_go(self._state, self._state.now_ms)

    def beat(self) -> None:
        self._throttling.beat()

    def request(self, asked: Asked[AnyGate]) -> Any:
        tokens = [idl.TokenAsk(gate.bounded[0], gate.name, *ask) for gate, ask in asked if isinstance(ask, Ask)]
        slots = [idl.SlotAsk(gate.bounded[0], gate.name, *ask) for gate, ask in asked if isinstance(ask, SlotAsk)]
        return idl.LendRequest(self._holder, tokens, slots or None)

    def grants(self, asked: Asked[AnyGate], response: Any) -> list[Grant | SlotGrant | None]:
        tokens, slots = iter(response.tokens or ()), iter(response.slots or ())
        return [_grant(next(tokens if isinstance(ask, Ask) else slots, None)) for _, ask in asked]

    def send(self, address: str, accounts: Sequence[AnyGate]) -> None:
        self._queues.setdefault(address, {}).update(dict.fromkeys(accounts))
        self._send_next(address)

    def _send_next(self, address: str) -> None:
        """Send the first questions that wait, unless a call to the host is open."""
        queue = self._queues.get(address)
        if queue is None or address in self._open:
            return
        mine: list[AnyGate] = []
        moved: list[AnyGate] = []
        for gate in list(islice(queue, AT_ONCE)):
            del queue[gate]
            (mine if self.elsewhere(gate) == address else moved).append(gate)
        if not queue:
            del self._queues[address]
        if moved:
            self._state.slices.soon(partial(self.ask, moved))
        asked = self.questions(mine)
        if asked:
            self._open.add(address)
            self.call(address, asked, partial(self._ended, address))
        elif queue:
            self._state.slices.soon(partial(self._send_next, address))

    def _ended(self, address: str) -> None:
        self._open.discard(address)
        self._state.slices.soon(partial(self._send_next, address))

    def _turn(self) -> None:
        self._due = False
        if self._state.draining:
            return
        self.ask(self._throttling.turn())
        next_ms = self._throttling.agenda.next_ms()
        if next_ms is not None and next_ms < self._timer_ms:
            self._timer_ms = next_ms
            self._later(max(1, next_ms - self._monotonic_ms()), self._timer)

    def _timer(self) -> None:
        self._timer_ms = NEVER_MS
        self.wanted()


def _grant(grant: Any) -> Grant | SlotGrant | None:
    if grant is None or grant.granted is None or grant.retry_after_ms is None:
        return None
    if isinstance(grant, idl.SlotGrant):
        return SlotGrant(grant.granted, bool(grant.contended), grant.retry_after_ms)
    return None if grant.kept is None else Grant(grant.granted, grant.kept, grant.retry_after_ms)
