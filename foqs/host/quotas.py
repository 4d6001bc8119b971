"""Quotas of namespaces: an enqueue is charged where it entered, a token an item, before anything is stored.

A host has a few tokens at hand, and asks the namespace's home for more (`foqs.quotas`). Who finds too few waits for the
home's answer, first come, first served; what that does not cover is refused. Where the home cannot be reached nothing
is admitted beyond what is at hand: to guess would break the quota just when hosts do not agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from foqs.clock import monotonic_ms
from foqs.dedup import Duplicate, OwnDuplicate
from foqs.errors import FoqsError, Invalid, OutcomeUnknown, Overloaded
from foqs.host import intake
from foqs.host.forward import Forwarder
from foqs.host.host import Host
from foqs.host.intake import Intake
from foqs.host.quota_homes import QuotaHomes, home_slot
from foqs.host.requests import EnqueueCall
from foqs.host.shard import Shard
from foqs.idl import idl
from foqs.limits import Limits
from foqs.quota import Quota
from foqs.quotas.allowance import Allowance
from foqs.quotas.bucket import Ask, Grant
from foqs.rpc.call import Call
from foqs.shardmgr.routing import Routing

ANSWER_MS = 1_000
"""A home that does not answer for so long is asked again."""
BEAT_MS = 500
RETRY_MS = 200
"""Told when the home did not answer, or there is none just now."""
_MOST_NAMESPACES = 100_000
_MOST_TOKENS = 1 << 40
_NAMES = Limits()  # another host may have been told other bounds
_BUDGET_SHARE = 0.3  # beyond the input's

Admitted = Callable[[int, Overloaded | None], None]
"""(how many of the items, in their order; the error of the others)."""


class _Waiting:
    """Items that wait for tokens. `asked`: the question under way is for them, too."""

    __slots__ = ("asked", "count", "done", "tell")

    def __init__(self, count: int, tell: Admitted) -> None:
        self.count = count
        self.tell = tell
        self.asked = False
        self.done = False

    def end(self, taken: int, error: Overloaded | None) -> None:
        if not self.done:
            self.done = True
            self.tell(taken, error)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.end(0, Overloaded("the home of the namespace's quota did not answer in time", RETRY_MS))


class _Purse:
    """One namespace's, on this host. Until `bad_until_ms` more time would not bring more tokens."""

    __slots__ = ("allowance", "bad_until_ms", "quota", "waiting")

    def __init__(self, quota: Quota, allowance: Allowance) -> None:
        self.quota = quota
        self.allowance = allowance
        self.bad_until_ms = 0
        self.waiting: deque[_Waiting] = deque()


class Quotas:
    """Of one host. `forwarder` is None on a host that is alone. `now_ms` is the host's
    clock, `later` calls back after so many milliseconds. `share_slots` is called while slots have no shard."""

    def __init__(
        self,
        host: Host,
        forwarder: Forwarder | None,
        now_ms: Callable[[], int],
        later: Callable[[int, Callable[[], None]], Any],
    ) -> None:
        section = host.config.quotas
        self.share_slots: Callable[[], None] = lambda: None
        self._host = host
        self._routing = Routing if forwarder is None else forwarder.routing
        self._ask = None if forwarder is None else forwarder.ask
        self._later = later
        self._general = section.quota()
        self._own = {ns: keys.quota() for ns, keys in section.namespaces.items()}
        self._purses: dict[str, _Purse] = {}
        self._numbers = count(1)
        self._holder = f"{host.rng.getrandbits(128):032x}"
        self.homes = QuotaHomes(host, self.of, self._routing, self._ask, now_ms, later)
        if forwarder is not None:
            self.homes.missing = forwarder.slot_moves.adopt
        if self._general is not None or any(self._own.values()):
            later(BEAT_MS, self._beat)

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"TakeTokens": self.take_tokens, "CountItems": self.count_items}

    def of(self, ns: str) -> Quota | None:
        return self._own.get(ns, self._general)

    # ------------------------------------------------------------------------------------- enqueues

    def charge(
        self, ns: str, quota: Quota, taken: Intake, call: EnqueueCall, deadline_ms: int, store: Callable[[], None]
    ) -> None:
        """Calls `store`, now or until `deadline_ms` (of the host's clock), when at least the first of what is `taken`
        was admitted; `taken` then has only what was, and the others are refused."""

        items, counters = len(taken.items) + len(taken.keyed), self._host.counters

        def admitted(got: int, error: Overloaded | None) -> None:
            counters.quota_admitted += got
            counters.quota_refused += items - got
            if got:
                allowance, reply = self._purses[ns].allowance, call.reply
                term = allowance.term  # tokens come back only as long as those at hand now are good

                def settled(outcomes: list[int | FoqsError]) -> None:
                    # All but those that were admitted are refused.
                    unused = sum(map(_stored_nothing, outcomes)) - (len(outcomes) - got)
                    allowance.settle(got, unused, term, monotonic_ms())
                    reply(outcomes)

                call.reply = settled
            if error is not None:
                call.refused(taken.keep(got), error)
            if got:
                store()

        self._admit(ns, quota, items, deadline_ms, admitted)

    def _admit(self, ns: str, quota: Quota, items: int, deadline_ms: int, tell: Admitted) -> None:
        host, now_ms = self._host, monotonic_ms()
        purse = self._purses.get(ns)
        if purse is None:
            if len(self._purses) >= _MOST_NAMESPACES:
                tell(0, Overloaded("too many namespaces with a quota are in use", RETRY_MS))
                return
            purse = self._purses[ns] = _Purse(quota, Allowance(now_ms, self._numbers))
        waiting, allowance = _Waiting(items, tell), purse.allowance
        enough = not purse.waiting and allowance.balance >= items
        if enough or (not purse.waiting and allowance.dry(now_ms)):
            self._serve(purse, waiting, now_ms)
            if allowance.runs_low(now_ms) and not self._here(ns):
                self._question(ns, purse, spare=False)
        elif not host.budget.fits(0, host.config.host.input_share + _BUDGET_SHARE):
            tell(0, Overloaded("the host's buffers are full", RETRY_MS))
        else:
            purse.waiting.append(waiting)
            if allowance.asked is None:
                self._question(ns, purse, spare=False)
            if not waiting.done:
                host.deadlines.push(deadline_ms, waiting)
                host.alarm(deadline_ms)

    def _serve(self, purse: _Purse, waiting: _Waiting, now_ms: int) -> None:
        taken = purse.allowance.take(waiting.count, now_ms)
        lacking = waiting.count - taken
        error = None
        if lacking:
            retry_after_ms = max(1, purse.bad_until_ms - now_ms, purse.quota.ms_for(lacking))
            error = Overloaded("the namespace's quota is used up", retry_after_ms)
        waiting.end(taken, error)

    # ------------------------------------------------------------------------------------- the home

    def _here(self, ns: str) -> bool:
        """Whether the home is this host: there is nothing to be gained by asking ahead."""
        if self._ask is None:
            return True
        route = self._routing().owners.get(self._shard_of(ns))
        return route is None or route.host == self._host.config.server.id

    def _shard_of(self, ns: str) -> int:
        """0: none has its slot."""
        slots = self._routing().slots.shards
        return slots[home_slot(ns)] if slots else 0

    def _question(self, ns: str, purse: _Purse, *, spare: bool) -> None:
        """Asks the home, for all who wait by now."""
        need = 0
        for waiting in purse.waiting:
            waiting.asked = True
            need += 0 if waiting.done else waiting.count
        here = self._here(ns)
        ask = purse.allowance.ask(need, monotonic_ms(), ahead=not here, spare=spare)

        def answered(grant: Grant | FoqsError | None) -> None:
            self._answered(ns, purse, ask, grant if isinstance(grant, Grant) else None)

        if here:
            self.homes.take(ns, self._holder, ask, answered)
            if purse.allowance.waits_for(ask):
                self._later(ANSWER_MS, lambda: answered(None))
            return

        def replied(response: Any, error: FoqsError | None) -> None:
            if error is not None:
                answered(None)
            else:
                answered(Grant(response.granted or 0, bool(response.kept), response.retry_after_ms or 0))

        assert self._ask is not None
        address = self._routing().owners[self._shard_of(ns)].address
        self._ask(address, "TakeTokens", idl.TakeTokensRequest(ns, self._holder, *ask), ANSWER_MS, replied)

    def _answered(self, ns: str, purse: _Purse, ask: Ask, grant: Grant | None) -> None:
        """Each who waited for this answer has what is there, in the order in which they came."""
        allowance, now_ms = purse.allowance, monotonic_ms()
        if not allowance.waits_for(ask):
            return
        allowance.answered(ask.number, grant, now_ms)
        if grant is None:
            purse.bad_until_ms = now_ms + RETRY_MS
        elif grant.retry_after_ms > purse.quota.ms_for(ask.wanted - grant.granted):
            purse.bad_until_ms = now_ms + grant.retry_after_ms
        else:
            purse.bad_until_ms = 0
        while purse.waiting and (purse.waiting[0].asked or purse.waiting[0].done or allowance.dry(now_ms)):
            waiting = purse.waiting.popleft()
            if not waiting.done:
                self._serve(purse, waiting, now_ms)
        if purse.waiting and allowance.asked is None:
            self._question(ns, purse, spare=False)

    def _beat(self) -> None:
        """Tells homes what is held here, which keeps it good, and gives back what is not needed."""
        if self._host.draining:
            return
        now_ms = monotonic_ms()
        for ns, purse in list(self._purses.items()):
            allowance = purse.allowance
            allowance.beat(now_ms)
            if allowance.asked is None and (allowance.balance or allowance.pending):
                self._question(ns, purse, spare=True)
            elif allowance.idle() and not purse.waiting:
                del self._purses[ns]
        if self._ask is not None:
            slots = self._routing().slots.shards
            if not slots or 0 in slots:
                self.share_slots()
        self.homes.tend()
        self._later(BEAT_MS, self._beat)

    # ------------------------------------------------------------------------------------- questions of other hosts

    def take_tokens(self, call: Call) -> None:
        request = call.request
        ns = intake.name(request.ns, "ns", _NAMES)
        holder = intake.name(request.holder, "holder", _NAMES)
        numbers = (request.number, request.wanted, request.held, request.back)
        if any(number is None or not 0 <= number < _MOST_TOKENS for number in numbers):
            raise Invalid("number, wanted, held or back is missing, or not in its bounds")

        def answer(grant: Grant | FoqsError) -> None:
            if isinstance(grant, FoqsError):
                call.fail(grant)
            else:
                call.reply(idl.TakeTokensResponse(*grant))

        self.homes.take(ns, holder, Ask(*numbers), answer)

    def count_items(self, call: Call) -> None:
        ns = intake.name(call.request.ns, "ns", _NAMES)

        def answer(shards: dict[int, int]) -> None:
            call.reply(idl.CountItemsResponse(shards))

        self.homes.count_here(ns, answer)


def _stored_nothing(outcome: int | FoqsError) -> bool:
    return isinstance(outcome, FoqsError | Duplicate) and not isinstance(outcome, OutcomeUnknown | OwnDuplicate)
