"""Requests from this host to other hosts: how they are routed, sent, held, repeated and settled.

A forwarded request takes one hop, never more. A shard without an owner is being moved: a request for it is held for
`handover_ms`, and sent when the routing names an owner. `Forwarded` is the state machine of such requests. An entry
is a position in the client's request. It is astray until it is sent to a host or done here; it is in flight until the
answer; the answer settles it or makes it astray again. What an answer means: `foqs.second_answer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Protocol

from foqs.engine import explain
from foqs.engine.calls import Timed
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import (
    FoqsError,
    Invalid,
    LostReply,
    NotFound,
    NotSent,
    NotServed,
    OutcomeUnknown,
    RequestTooLarge,
    Unavailable,
)
from foqs.idl import idl, is_forwarded, request_id_of
from foqs.ids import hash_slot_of, shard_of
from foqs.second_answer import Policy, Verdict, judge_forwarded, last_word, unknown
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Route, Routing

RETRY_MS = 100
"""The hint for a client whose request was held for too long."""
AGAIN_MS = 100
"""The pause before a host that did not answer is asked again."""
NO_OWNER = "the item's shard is being moved"
_KEY_NOT_SERVED = "no host serves the shard of the key: it is disabled, or no host can open its database"
_NOT_SERVED_RETRY_MS = 1_000

_MARGIN = 0.1
_MARGIN_MS = 500
"""The other host gets this much less time than is left, so that its answer comes before this host gives it up."""

Done = Callable[[Any, FoqsError | None], None]
"""(response, None) or (None, error), once."""
Ask = Callable[[str, str, Any, int, Done], Callable[[], None] | None]
"""(address, method, request, timeout_ms, done); see `foqs.rpc.peer_caller.PeerCaller.call`."""


class Timers(Protocol):
    """The clocks of a host, and calls at a later time."""

    def now_ms(self) -> int:
        """Return the time of the host's clock, which may be set."""

    def monotonic_ms(self) -> int:
        """Return the time of a clock that never goes back."""

    def soon(self, do: Callable[[], None], /) -> object:
        """Call `do` at the next turn of the event loop."""

    def later(self, after_ms: int, do: Callable[[], None], /) -> object: ...


class Incoming(Protocol):
    """A client's request, and how to answer it; see `foqs.rpc.call.Call`."""

    request: Any

    def reply(self, response: Any) -> bool: ...

    def fail(self, error: FoqsError) -> bool: ...


class LongIncoming(Incoming, Protocol):
    """One whose client may be gone before the answer: `on_lost` is called then."""

    on_lost: Callable[[], None] | None


class ForwardLog(Protocol):
    """The lines of the log about forwarded requests; see `foqs.rpc.call.RequestLog`."""

    def reply_lost(self, method: str, context: Any, address: str, error: FoqsError) -> None: ...

    def not_sent(self, method: str, context: Any, address: str, error: FoqsError) -> None: ...

    def unrouted(self, method: str, request: Any, items: int) -> None: ...


class Here:
    """The place of an entry whose shard this host serves."""


HERE: Final = Here()
Target = Route | Here | FoqsError | None
"""Where an entry goes. An error settles the entry; None: nowhere yet."""


class Exchange:
    """The state that all forwarded requests of one host share.

    `ask` sends a request. `changed` and then `route_held` are called whenever `routing` gives another value. `held` has
    the functions that route.
    """

    def __init__(
        self,
        engine: Engine,
        routing: Callable[[], Routing],
        ask: Ask,
        timers: Timers,
        log: ForwardLog,
        handover_ms: int,
    ) -> None:
        self.engine = engine
        self.host_id = engine.state.config.server.id
        self.routing = routing
        self.handover_ms = handover_ms
        self.now_ms = timers.now_ms
        self.soon = timers.soon
        self.log = log
        self.held: dict[Callable[[], None], None] = {}
        self._ask = ask
        self._unowned_ms: dict[int, int] = {}  # shards without an owner -> since when

    def changed(self) -> None:
        """Note since when shards have no owner."""
        now_ms = self.now_ms()
        self._unowned_ms = {number: self._unowned_ms.get(number, now_ms) for number in self.routing().unowned}

    def route_held(self) -> None:
        """Route the held requests by the new routing."""
        held, self.held = self.held, {}
        for route in held:
            route()

    def serves(self, number: int) -> bool:
        """Return True if this host serves the shard."""
        shard = self.engine.state.shards.get(number)
        return shard is not None and shard.owner.state is ShardState.SERVING

    def find(self, shard: int) -> Target:
        """Return where a request for all items of the shard goes; an error if no host serves the shard now."""
        if self.serves(shard):
            return HERE
        routing = self.routing()
        route = routing.owners.get(shard)
        if route is None and (shard in routing.disabled or shard not in routing.shards):
            return NotFound(f"shard {shard} is disabled or removed: no host will serve it")
        if route is None or route.host == self.host_id:
            return Unavailable(NO_OWNER, RETRY_MS)
        return route

    def find_item(self, item_id: int) -> Target:
        """Return where a request for the item goes."""
        number, state = shard_of(item_id), self.engine.state
        shard, routing = state.shards.get(number), self.routing()
        if shard is not None and state.settles(shard):
            return HERE
        if number not in routing.shards:
            return NotFound(explain.no_item(item_id, routing.shards))
        route = routing.owners.get(number)
        return None if route is None or route.host == self.host_id else route

    def find_key(self, digest: bytes) -> Target:
        """Return where a request for a key goes, by its digest."""
        slots = self.routing().slots.shards
        return self.find_key_shard(slots[hash_slot_of(digest)] if slots else 0)

    def find_key_shard(self, number: int) -> Target:
        """Return where a request for a key goes whose shard has that number."""
        routing = self.routing()
        if self.serves(number):
            return HERE
        owner = routing.owners.get(number)
        if owner is None and not self.expects_owner(number):
            return Unavailable(_KEY_NOT_SERVED, _NOT_SERVED_RETRY_MS)
        return None if owner is None or owner.host == self.host_id else owner

    def expects_owner(self, number: int) -> bool:
        """Return True if a shard without an owner may have one soon: it is not disabled, and lost its owner less than
        `handover_ms` ago. A planned move takes no longer."""
        now_ms = self.now_ms()
        left_ms = self._unowned_ms.get(number, now_ms) + self.handover_ms - now_ms
        return number not in self.routing().disabled and 0 <= left_ms <= self.handover_ms

    def other_hosts(self) -> set[str]:
        """Addresses of the other living hosts."""
        return {address for host, address in self.routing().hosts.items() if host != self.host_id}

    def send(
        self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done
    ) -> Callable[[], None] | None:  # fmt: skip
        """Ask another host on behalf of the caller of `origin`, the request that `request` is a part of. Return what
        ends a long call early."""
        request_id, given = request_id_of(origin), origin.context
        left_ms = max(1, deadline_ms - self.now_ms())
        timeout_ms = max(1, left_ms - min(_MARGIN_MS, int(left_ms * _MARGIN)))
        context = request.context = idl.RequestContext(timeout_ms=timeout_ms, hops=1)
        context.token = given.token
        context.principal = given.principal
        context.request_id = request_id
        context.traceparent = given.traceparent

        def answered(response: Any, error: FoqsError | None) -> None:
            if isinstance(error, LostReply):
                self.log.reply_lost(method, context, address, error)
            elif isinstance(error, NotSent):
                self.log.not_sent(method, context, address, error)
            done(response, error)

        self.engine.state.counters.forwarded += 1
        return self._ask(address, method, request, left_ms, answered)

    def ask_others(
        self, method: str, part: Callable[[], Any], origin: Any, deadline_ms: int,
        take: Callable[[str, Any], object], end: Callable[[list[str]], object],
        older: Callable[[str], object] | None = None,
    ) -> None:  # fmt: skip
        """Send a `part` of `origin` to each of the other hosts. Call `take(address, response)` for each answer, then
        `end` with the addresses of the hosts that did not answer. `older` is called in place of that with the address
        of a host that does not know the method. No host is asked for a forwarded request."""
        addresses = set[str]() if is_forwarded(origin) else self.other_hosts()
        left, missing = len(addresses), list[str]()
        if not left:
            end(missing)

        def answered(address: str, response: Any, error: FoqsError | None) -> None:
            nonlocal left
            if older is not None and isinstance(error, Invalid):
                older(address)
            elif error is not None:
                missing.append(address)
            else:
                take(address, response)
            left -= 1
            if not left:
                end(sorted(missing))

        for address in addresses:
            self.send(address, method, part(), origin, deadline_ms, partial(answered, address))

    def ring(self, at_ms: int, what: Timed) -> None:
        """Call `what.timed_out` at that time, unless it is done by then."""
        self.engine.state.deadlines.push(at_ms, what)
        self.engine.state.alarm(at_ms)


Ways = Mapping[int, Route]
Outcome = Any
"""A FoqsError, or what the subclass's `settle` takes for a success."""


class Forwarded(ABC):
    """A kind of request says in a subclass where an entry goes, how the request for some entries looks, and how
    an answer reaches the client.

    holds      True: entries wait for an owner, and for a host that did not answer
    rerouted   True: a host that refused an entry as not its own is asked again only by another route
    """

    __slots__ = (
        "_again_ms", "_astray", "_doubtful", "_exchange", "_hold_until_ms", "_routing_due", "_tried", "deadline_ms",
        "method", "origin", "policy",
    )  # fmt: skip
    holds: ClassVar[bool] = True
    rerouted: ClassVar[bool] = True

    def __init__(self, exchange: Exchange, method: str, policy: Policy, origin: Any, deadline_ms: int) -> None:
        """`origin` is the client's request."""
        self._exchange = exchange
        self.method = method
        self.policy = policy
        self.origin = origin
        self.deadline_ms = deadline_ms
        self._astray: list[int] = []
        self._doubtful: set[int] = set()  # entries that a host may have carried out
        self._tried: dict[int, Route | None] = {}  # by entry: the route whose host refused it
        self._routing_due = False
        self._hold_until_ms = 0  # set when an entry is held for the first time
        self._again_ms = 0  # when the entries are routed again; 0: no time is set

    # ------------------------------------------------------------------------------------- what a subclass says

    @property
    @abstractmethod
    def done(self) -> bool:
        """Return True if the client's request is answered."""

    @abstractmethod
    def target(self, at: int) -> Target:
        """Return where the entry goes."""

    @abstractmethod
    def part(self, group: Sequence[int]) -> Any:
        """Return the request for these entries."""

    @abstractmethod
    def outcomes(self, response: Any) -> Sequence[Outcome] | None:
        """Return the outcome of each entry of an answer."""

    @abstractmethod
    def settle(self, at: int, outcome: Outcome) -> None:
        """Pass the outcome of an entry to the client's request; `outcome` is final."""

    def here(self, group: list[int]) -> Sequence[int]:
        """Carry out entries whose shards this host serves. Return the entries that it does not take yet."""
        raise NotImplementedError

    def place(self, at: int) -> int:
        """Return what the target of the entry depends on: entries with one place have one target."""
        return at

    def mark(self, group: Iterable[int], *, carried_out: bool) -> None:  # noqa: B027 - only items by id need it
        """Note for the request's time-out that a host may have carried out the entries, or that none has."""

    def cut(self, group: Sequence[int]) -> Iterable[Sequence[int]]:
        """Return the groups to send in place of one that is too large for a request."""
        half = len(group) // 2
        return group[:half], group[half:]

    def hold_ms(self, now_ms: int) -> int:
        """Return how long astray entries wait for an owner."""
        return self._exchange.handover_ms

    def answered(self, group: Sequence[int], response: Any) -> None:  # noqa: B027 - only nacks need it
        """Take what an answer says of the entries in addition to their outcomes."""

    def sent(self, give_up: Callable[[], None]) -> None:  # noqa: B027 - only long calls need it
        """Note what ends the call that was sent, which may take long."""

    def judge(self, error: FoqsError, doubtful: bool) -> Verdict:
        """Return what `error` means for an entry."""
        return judge_forwarded(self.policy, error, doubtful)

    # ------------------------------------------------------------------------------------- the machine

    def add(self, at: int) -> None:
        """Route the entry at the next turn of the event loop, with the entries that are added until then."""
        self.mark((at,), carried_out=at in self._doubtful)
        self._astray.append(at)
        if not self._routing_due:
            self._routing_due = True
            self._exchange.soon(self.route)

    def route(self) -> None:
        """Send the astray entries that have an owner, carry out this host's own, and hold the rest."""
        self._routing_due = False
        astray, self._astray = self._astray, []
        self._exchange.held.pop(self.route, None)
        if self.done:
            return
        here: list[int] = []
        groups: dict[str, dict[int, Route]] = {}
        targets: dict[int, Target] = {}
        for at in astray:
            place = self.place(at)
            if place not in targets:
                targets[place] = self.target(at)
            to = targets[place]
            if isinstance(to, Here):
                here.append(at)
            elif isinstance(to, FoqsError):
                self.settle(at, last_word(self.policy, to, at in self._doubtful))
            elif to is None or (at in self._tried and self._tried[at] == to):
                self._astray.append(at)
            else:
                groups.setdefault(to.address, {})[at] = to
        if here:
            self._carry_out(here)
        self._hold()
        for address, ways in groups.items():
            self._send(address, list(ways), ways)

    def end(self) -> None:
        """Forget the request: it may be large, and this waits until its deadlines are forgotten."""
        self.origin = None
        self._astray = []
        self._exchange.held.pop(self.route, None)

    def withdraw(self) -> Sequence[int]:
        """Drop the astray entries. Return the entries that no host can have carried out."""
        astray, self._astray = self._astray, []
        self._exchange.held.pop(self.route, None)
        return [at for at in astray if at not in self._doubtful]

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Refuse the entries that were held for too long."""
        astray, self._astray = self._astray, []
        self._exchange.held.pop(self.route, None)
        if astray:
            self._exchange.log.unrouted(self.method, self.origin, len(astray))
        for at in astray:
            self.settle(at, last_word(self.policy, Unavailable(NO_OWNER, RETRY_MS), at in self._doubtful))

    def merge(self, group: Sequence[int], ways: Ways, outcomes: Sequence[Outcome]) -> None:
        """Settle the entries of an answer, or make them astray again. `ways` has the routes they took, none for what
        this host did itself."""
        if not any(isinstance(outcome, FoqsError) for outcome in outcomes):
            for at, outcome in zip(group, outcomes, strict=True):
                self.settle(at, outcome)
            return
        pause_ms, stray = AGAIN_MS, False
        for at, outcome in zip(group, outcomes, strict=True):
            verdict = self.judge(outcome, at in self._doubtful) if isinstance(outcome, FoqsError) else Verdict.DONE
            if verdict in (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL):
                self._stray_again(at, verdict, outcome, ways.get(at))
                pause_ms = max(pause_ms, outcome.retry_after_ms or 0)
                stray = True
            elif verdict is Verdict.UNKNOWN:
                self.settle(at, unknown(outcome))
            elif verdict is Verdict.DONE and isinstance(outcome, FoqsError):
                self.settle(at, None)
            else:
                self.settle(at, outcome)
        if stray and not self.done:
            self._hold()
            if self._astray:
                # Entries that were tried on this host took no route: they wait for the pause.
                moved = bool(ways) and any(self.target(at) != ways.get(at) for at in group)
                self._again(0 if moved else pause_ms)

    # ------------------------------------------------------------------------------------- inside

    def _carry_out(self, group: list[int]) -> None:
        self.mark(group, carried_out=True)
        left = self.here(group)
        for at in left:
            self.mark((at,), carried_out=at in self._doubtful)
        self._astray += left
        if left:
            self._again(AGAIN_MS)

    def _send(self, address: str, group: Sequence[int], ways: Ways) -> None:
        self.mark(group, carried_out=True)

        def done(response: Any, error: FoqsError | None) -> None:
            if self.done:
                return
            if isinstance(error, RequestTooLarge) and len(group) > 1:
                for part in self.cut(group):
                    self._send(address, part, ways)
                return
            outcomes = None if error is not None else self.outcomes(response)
            if outcomes is None or len(outcomes) != len(group):
                missing = LostReply(f"{address}: the answer does not have one outcome for each item")
                outcomes = [missing if error is None else error] * len(group)
            else:
                self.answered(group, response)
            self.merge(group, ways, outcomes)

        give_up = self._exchange.send(address, self.method, self.part(group), self.origin, self.deadline_ms, done)
        if give_up is not None:
            self.sent(give_up)

    def _stray_again(self, at: int, verdict: Verdict, error: FoqsError, way: Route | None) -> None:
        if verdict is Verdict.AGAIN_DOUBTFUL:
            self._doubtful.add(at)
        answered = isinstance(error, NotServed | OutcomeUnknown) and not isinstance(error, LostReply)
        if self.rerouted and answered:
            self._tried[at] = way
        self.mark((at,), carried_out=at in self._doubtful)
        self._astray.append(at)

    def _hold(self) -> None:
        """Route the astray entries when the routing changes, or refuse them when they were held long enough."""
        if not self._astray or not self.holds:
            return
        exchange, now_ms = self._exchange, self._exchange.now_ms()
        if not self._hold_until_ms:
            self._hold_until_ms = now_ms + self.hold_ms(now_ms)
            exchange.engine.state.counters.held += 1
            exchange.ring(self._hold_until_ms, self)
        if self._hold_until_ms <= now_ms:
            self.timed_out(exchange.engine.state.shards)
        else:
            exchange.held[self.route] = None

    def _again(self, pause_ms: int) -> None:
        """Route the astray entries after a pause; 0: at the next turn of the event loop.

        The shortest pause counts: with one timer for each part, the parts would be sent more and more often."""
        if not pause_ms:
            self._exchange.soon(self.route)
            return
        at_ms = self._exchange.now_ms() + pause_ms
        if not self._again_ms or at_ms < self._again_ms:
            self._again_ms = at_ms
            self._exchange.ring(at_ms, Alarm(self._retry, lambda: self.done or self._again_ms != at_ms))

    def _retry(self) -> None:
        self._again_ms = 0
        self.route()


class Alarm:
    """Calls `ring` at its time, unless it is `stale` by then."""

    __slots__ = ("_ring", "_stale")

    def __init__(self, ring: Callable[[], None], stale: Callable[[], bool]) -> None:
        self._ring = ring
        self._stale = stale

    @property
    def done(self) -> bool:
        return self._stale()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self._ring()
