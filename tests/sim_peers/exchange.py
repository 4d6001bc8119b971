"""Requests between simulated hosts: delayed, reordered, and lost before or after they are carried out. No request is
carried out twice: a connection does not repeat it."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from copy import copy
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.transport import TCyBufferedTransport, TMemoryBuffer

from foqs.errors import FoqsError, LostReply, NotSent, from_code
from foqs.idl import idl
from tests.kernel.run import Run
from tests.sim.records import broken
from tests.sim_peers.profile import Exchange as Rates

Done = Callable[[Any, FoqsError | None], None]


def response_of(method: str, content: bytes) -> Any:
    """Return the struct of a method's response from its bytes."""
    response = getattr(idl, f"{method}Response")()
    TCyBinaryProtocol(TCyBufferedTransport(TMemoryBuffer(content))).read_struct(response)
    return response


class Call:
    """In place of `foqs.rpc.call.Call`: `done(response, error)` gets the answer. See `test_call.py`."""

    def __init__(self, method: str, request: Any, done: Done) -> None:
        self.method = method
        self.request = request
        self.request_bytes = 0
        self.peer = "client:1"
        self.certified = None
        self.begun_s = 0.0
        self.on_lost: Callable[[], None] | None = None
        self.on_oneway: Callable[[], None] | None = None
        self.within: Container[str] | None = None
        self._done = done
        self._answered = self._lost = False

    def reply(self, response: Any) -> bool:
        return self._answer(response_of(self.method, response) if type(response) is bytes else response, None)

    def fail(self, error: FoqsError) -> bool:
        return self._answer(None, from_code(int(error.code), error.message, error.retry_after_ms))

    def _answer(self, response: Any, error: FoqsError | None) -> bool:
        if self._answered:
            raise RuntimeError(f"{self.method} was answered before")
        if self._lost:
            return False
        self._answered = True
        self.on_lost = self.on_oneway = None
        self._done(response, error)
        return True

    def trust(self) -> None:
        pass

    def doubt(self, items: int, reason: str) -> None:
        pass

    def settled(self) -> None:
        self._answered = True

    def lost(self) -> None:
        """The connection is gone."""
        if not self._answered and not self._lost:
            self._lost = True
            if self.on_lost is not None:
                self.on_lost()

    def raised(self, connection: Any, error: Exception) -> None:
        if not isinstance(error, FoqsError):
            raise error
        self.fail(error)


class Open:
    """A request that is not answered yet. `call` is None before it arrives."""

    def __init__(self, sender: Any, address: str, done: Done) -> None:
        self.sender = sender
        self.address = address
        self.done: Done | None = done
        self.receiver: Any = None
        self.call: Call | None = None


class Exchange:
    """`hosts` by address: objects with `alive`, `name` and `receive(call)`."""

    def __init__(self, sim: Run, rng: random.Random, rates: Rates) -> None:
        self.rates = rates
        self.hosts: dict[str, Any] = {}
        self.entered: dict[str, str] = {}  # by request id: the host that received it from a client
        self._sim = sim
        self._rng = rng
        self._open: dict[Open, None] = {}

    def ask(self, sender: Any, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        self._check_hops(sender, request)
        self._sim.counts["asked"] += 1
        rng, rates = self._rng, self.rates
        self._sim.note(sender.name, "asks", address, method)
        one = Open(sender, address, done)
        self._open[one] = None
        request = copy(request)
        request.context = None if request.context is None else copy(request.context)
        there_ms = rng.choice(rates.delays_ms)
        fate = rng.random()
        if fate < rates.unsent:
            self._after(there_ms, lambda: self._end(one, NotSent("the connection was refused")))
        elif fate < rates.unsent + rates.lost_before:
            self._after(there_ms, lambda: self._end(one, LostReply("lost before it was carried out")))
        else:
            fate -= rates.unsent + rates.lost_before
            lost = fate < rates.lost_after
            hangs = not lost and fate < rates.lost_after + rates.hangs
            self._after(there_ms, lambda: self._arrive(one, method, request, lost=lost, hangs=hangs))
        self._after(timeout_ms, lambda: self._end(one, LostReply("no reply in time")))

    def _check_hops(self, sender: Any, request: Any) -> None:
        context = request.context
        if context is None or not context.request_id:
            return
        self._sim.counts["forwarded"] += 1
        entered = self.entered.get(context.request_id)
        if entered is not None and entered != sender.name:
            broken(8, f"request {context.request_id} entered at {entered}, and {sender.name} forwards it: a second hop")

    def _arrive(self, one: Open, method: str, request: Any, *, lost: bool, hangs: bool) -> None:
        if one.done is None:
            return
        receiver = self.hosts.get(one.address)
        if receiver is None or not receiver.alive:
            self._end(one, NotSent("the connection was refused"))
            return

        def answered(response: Any, error: FoqsError | None) -> None:
            back_ms = self._rng.choice(self.rates.delays_ms)
            if lost:
                self._after(back_ms, lambda: self._end(one, LostReply("lost after it was carried out")))
            elif not hangs:
                self._after(back_ms, lambda: self._end(one, error, response))

        self._sim.note(receiver.name, "receives", method, "of", one.sender.name)
        one.receiver, one.call = receiver, Call(method, request, answered)
        receiver.receive(one.call)
        if method == "Lend" and self._rng.random() < self.rates.twice:
            again = Call(method, copy(request), lambda response, error: None)
            self._after(self._rng.choice(self.rates.delays_ms), lambda: receiver.alive and receiver.receive(again))

    def _end(self, one: Open, error: FoqsError | None, response: Any = None) -> None:
        done, one.done = one.done, None
        if done is None:
            return
        self._open.pop(one, None)
        if one.call is not None and one.receiver.alive:
            one.receiver.awake(one.call.lost)
        one.sender.awake(lambda: done(response, error))

    def heal(self, rates: Rates) -> None:
        """Lose no more requests. Those that hang already hang on, until the time-outs of their senders."""
        self.rates = rates

    def cut(self, sender: Any, address: str) -> None:
        """End the sender's requests to this address."""
        for one in [one for one in self._open if one.sender is sender and one.address == address]:
            self._end(one, LostReply("the host left the cluster"))

    def died(self, host: Any) -> None:
        for one in list(self._open):
            if one.sender is host:
                self._end(one, LostReply("the sender died"))
            elif one.receiver is host:
                self._after(1, lambda one=one: self._end(one, LostReply("the host died")))  # type: ignore[misc]

    def _after(self, delay_ms: int, do: Callable[[], None]) -> None:
        self._sim.soon(delay_ms, do)


def context(timeout_ms: int, request_id: str) -> Any:
    return idl.RequestContext(timeout_ms=timeout_ms, request_id=request_id)
