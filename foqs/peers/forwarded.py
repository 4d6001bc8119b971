"""The one state machine of forwarded requests: entries are routed, sent, held, repeated and settled.

An entry is a position in the client's request. It is astray until it is sent to a host or done here; it is in flight
until the answer; the answer settles it or makes it astray again. What an answer means: `foqs.second_answer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from foqs.engine.shard import Shard
from foqs.errors import FoqsError, LostReply, NotServed, OutcomeUnknown, RequestTooLarge, Unavailable
from foqs.peers.exchange import AGAIN_MS, NO_OWNER, RETRY_MS, Exchange
from foqs.second_answer import Policy, Verdict, judge_forwarded, last_word, unknown
from foqs.shardmgr.routing import Route


class Here:
    """The place of an entry whose shard this host serves."""


HERE: Final = Here()
Target = Route | Here | FoqsError | None
Ways = Mapping[int, Route]
Outcome = Any
"""A FoqsError, or what the subclass's `settle` takes for a success."""


class Forwarded(ABC):
    """A kind of request says in a subclass where an entry goes, how the request for some entries looks, and how
    an answer reaches the client.

    holds      whether entries wait for an owner, and for a host that did not answer
    rerouted   whether a host that refused an entry as not its own is asked again only by another route
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
        """Whether the client's request is answered."""

    @abstractmethod
    def target(self, at: int) -> Target:
        """Return where the entry goes; None: nowhere yet. An error settles it."""

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
        """Carry out entries whose shards this host serves. Return those that it does not take yet."""
        raise NotImplementedError

    def mark(self, at: int, *, carried_out: bool) -> None:  # noqa: B027 - only items by id need it
        """Note for the request's time-out whether a host may have carried out the entry."""

    def judge(self, error: FoqsError, doubtful: bool) -> Verdict:
        """Return what `error` means for an entry."""
        return judge_forwarded(self.policy, error, doubtful)

    # ------------------------------------------------------------------------------------- the machine

    def add(self, at: int) -> None:
        """Route the entry at the next turn of the event loop, with those that are added until then."""
        self.mark(at, carried_out=at in self._doubtful)
        self._astray.append(at)
        if not self._routing_due:
            self._routing_due = True
            self._exchange.soon(self.route)

    def route(self) -> None:
        """Send the astray entries that have an owner, carry out those of this host, and hold the rest."""
        self._routing_due = False
        astray, self._astray = self._astray, []
        self._exchange.held.pop(self.route, None)
        if self.done:
            return
        here: list[int] = []
        groups: dict[str, dict[int, Route]] = {}
        for at in astray:
            to = self.target(at)
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
        """Drop the astray entries. Return those that no host can have carried out."""
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
        for at in group:
            self.mark(at, carried_out=True)
        left = self.here(group)
        for at in left:
            self.mark(at, carried_out=at in self._doubtful)
        self._astray += left
        if left:
            self._again(AGAIN_MS)

    def _send(self, address: str, group: Sequence[int], ways: Ways) -> None:
        for at in group:
            self.mark(at, carried_out=True)

        def done(response: Any, error: FoqsError | None) -> None:
            if self.done:
                return
            if isinstance(error, RequestTooLarge) and len(group) > 1:
                half = len(group) // 2
                self._send(address, group[:half], ways)
                self._send(address, group[half:], ways)
                return
            outcomes = None if error is not None else self.outcomes(response)
            if outcomes is None or len(outcomes) != len(group):
                missing = LostReply(f"{address}: the answer does not have one outcome for each item")
                outcomes = [missing if error is None else error] * len(group)
            self.merge(group, ways, outcomes)

        self._exchange.send(address, self.method, self.part(group), self.origin, self.deadline_ms, done)

    def _stray_again(self, at: int, verdict: Verdict, error: FoqsError, way: Route | None) -> None:
        if verdict is Verdict.AGAIN_DOUBTFUL:
            self._doubtful.add(at)
        answered = isinstance(error, NotServed | OutcomeUnknown) and not isinstance(error, LostReply)
        if self.rerouted and answered:
            self._tried[at] = way
        self.mark(at, carried_out=at in self._doubtful)
        self._astray.append(at)

    def _hold(self) -> None:
        """Route the astray entries when the routing changes, or refuse them when they were held long enough."""
        if not self._astray or not self.holds:
            return
        exchange, now_ms = self._exchange, self._exchange.now_ms()
        if not self._hold_until_ms:
            self._hold_until_ms = now_ms + exchange.handover_ms
            exchange.engine.counters.held += 1
            exchange.ring(self._hold_until_ms, self)
        if self._hold_until_ms <= now_ms:
            self.timed_out(exchange.engine.shards)
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
            self._exchange.ring(at_ms, RetryTimer(self, at_ms))


class RetryTimer:
    """Routes a request's entries at a time, unless an earlier time was set since."""

    __slots__ = ("_at_ms", "_forwarded")

    def __init__(self, forwarded: Forwarded, at_ms: int) -> None:
        self._forwarded = forwarded
        self._at_ms = at_ms

    @property
    def done(self) -> bool:
        return self._forwarded.done or self._forwarded._again_ms != self._at_ms

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self._forwarded._again_ms = 0
        self._forwarded.route()
