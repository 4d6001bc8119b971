"""Quotas of namespaces, and bounds on the stored items of topics: the host that receives an enqueue charges it a token
of each for every item before anything is stored.

A host holds a few tokens, and asks the quota's coordinator for more (`foqs.limits`). An enqueue that finds too few
tokens waits for the coordinator's answer, first come, first served; the items that the answer does not cover are
refused. While the coordinator cannot be reached, a host admits no more than it holds tokens for: a guess would break
the quota just when hosts do not agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from foqs.bounds import Bounded, Quota
from foqs.engine.calls import EnqueueCall
from foqs.engine.dead_letters import Granted, Settle
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, OutcomeUnknown, Overloaded
from foqs.fairness.keys import TopicKey
from foqs.idl import idl
from foqs.limits.allowance import Allowance
from foqs.limits.bucket import QUOTA_TOKENS, Ask, Grant
from foqs.peers.borrower import Asked, Borrower
from foqs.peers.coordinator import Coordinator, coordinator_hash_slot
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.peers.token_units import QuotaUnit
from foqs.policies.remedy import topic_command
from foqs.second_answer import Duplicate, OwnDuplicate

RETRY_MS = 200
"""The hint in a refusal when the coordinator did not answer, or when the namespace has none now."""

Admitted = Callable[[int, Overloaded | None], None]
"""(how many items are admitted, counted from the first; the error of the rest)."""


@dataclass(slots=True, eq=False)
class Charge:
    """The items of one enqueue that wait for tokens. `asked`: the open question to the coordinator covers them."""

    count: int
    admit: Admitted
    asked: bool = False
    done: bool = False

    def end(self, taken: int, error: Overloaded | None) -> None:
        if not self.done:
            self.done = True
            self.admit(taken, error)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.end(0, Overloaded("the coordinator of the quota did not answer in time", RETRY_MS))


class QuotaAccount:
    """The account of a quota. Charges are served in the order in which they arrive. `spare`: the next question gives
    tokens back that no charge needs."""

    __slots__ = ("_no_more_until_ms", "allowance", "bounded", "hash_slot", "quota", "spare", "waiting")
    unit = QUOTA_TOKENS

    def __init__(self, key: Bounded, quota: Quota, allowance: Allowance) -> None:
        """`quota` may be replaced: a topic's bound changes."""
        self.bounded = key
        self.hash_slot = coordinator_hash_slot(*key)
        self.allowance = allowance
        self.spare = False
        self.waiting: deque[Charge] = deque()
        self.quota = quota
        self._no_more_until_ms = 0

    @property
    def asking(self) -> bool:
        return self.allowance.asked is not None

    @property
    def unused(self) -> bool:
        """Return True if the account can be forgotten."""
        return self.allowance.idle() and not self.waiting

    def can_serve(self, items: int, now_ms: int) -> bool:
        """Return True if a new charge is served or refused at once, without a question to the coordinator."""
        return not self.waiting and (self.allowance.good(now_ms) >= items or self.allowance.dry(now_ms))

    def serve(self, charge: Charge, now_ms: int) -> None:
        """Spend tokens on the charge; refuse the items that they do not cover."""
        taken = self.allowance.take(charge.count, now_ms)
        lacking = charge.count - taken
        error = None
        if lacking:
            retry_after_ms = max(1, self._no_more_until_ms - now_ms, self.quota.ms_for(lacking))
            error = Overloaded(_used_up(self.bounded, self.quota), retry_after_ms)
        charge.end(taken, error)

    def ask(self, now_ms: int, *, ahead: bool) -> Ask:
        """Return the question to send now, which covers all charges that wait."""
        need, spare = 0, self.spare
        self.spare = False
        for charge in self.waiting:
            charge.asked = True
            need += 0 if charge.done else charge.count
        return self.allowance.ask(need, now_ms, ahead=ahead, spare=spare)

    def answered(self, ask: Ask, grant: Grant | None, now_ms: int) -> bool:
        """Serve every charge that waited for this answer, with the tokens that are there. `grant` is None if the
        coordinator did not answer or refused. Return True if charges need another question."""
        allowance = self.allowance
        if not allowance.answered(ask.number, grant, now_ms):
            return False
        if grant is None:
            self._no_more_until_ms = now_ms + RETRY_MS
        elif grant.retry_after_ms > self.quota.ms_for(ask.wanted - grant.granted):
            self._no_more_until_ms = now_ms + grant.retry_after_ms
        else:
            self._no_more_until_ms = 0
        while self.waiting and (self.waiting[0].asked or self.waiting[0].done or allowance.dry(now_ms)):
            charge = self.waiting.popleft()
            if not charge.done:
                self.serve(charge, now_ms)
        return bool(self.waiting) and allowance.asked is None


_MOST_ACCOUNTS = 100_000
_BUDGET_SHARE = 0.3  # on top of the share of the input


class QuotaClient(Borrower[QuotaAccount]):
    """The accounts of quotas: charges one host's enqueues. A call has one question, because its answer may wait for a
    count of the stored items."""

    METHOD = "TakeTokens"

    def __init__(
        self, engine: Engine, forwarder: Forwarder, coordinator: Coordinator, unit: QuotaUnit, holder: str,
        timers: Timers,
    ) -> None:  # fmt: skip
        super().__init__(engine, forwarder, coordinator, holder, timers)
        self.of = unit.of
        self._rule = unit.rule
        self._accounts: dict[Bounded, QuotaAccount] = {}
        self._numbers = count(1)
        if unit.configured:
            self.start()

    # ------------------------------------------------------------------------------------- enqueues

    def charge(
        self,
        key: Bounded,
        quota: Quota,
        indices: Sequence[int],
        keep: Callable[[int], object],
        call: EnqueueCall,
        deadline_ms: int,
        store: Callable[[], None],
    ) -> None:
        """Call `store`, now or until `deadline_ms` (of the host's clock), if `call` has items left to store.

        `indices`: the items that are charged, in order. `keep(n)` drops all of them but the first n; they are
        refused."""

        counters = self._state.counters

        def admitted(got: int, error: Overloaded | None) -> None:
            if not key[1]:
                counters.quota_admitted += got
                counters.quota_refused += len(indices) - got
            if got:
                settle, reply = self._settle(key, got), call.reply

                def settled(outcomes: list[int | FoqsError]) -> None:
                    settle(sum([_stored_nothing(outcomes[at]) for at in indices[:got]]))
                    reply(outcomes)

                call.reply = settled
            if error is not None:
                keep(got)
                call.refused(indices[got:], error)
            if not call.done:
                store()

        self._admit(key, quota, len(indices), deadline_ms, admitted)

    def admit(self, key: TopicKey, items: int, deadline_ms: int, granted: Granted) -> None:
        """Ask for room for `items` more in a topic, which a redrive brings back to it."""
        quota = self._rule(key)

        def admitted(got: int, error: Overloaded | None) -> None:
            granted(got, error, self._settle(key, got) if got else lambda _: None)

        if quota is None:
            granted(items, None, lambda _: None)
        else:
            self._admit(key, quota, items, deadline_ms, admitted)

    def _settle(self, key: Bounded, got: int) -> Settle:
        """Return the call that takes the number of the `got` items, just admitted, that were not stored."""
        allowance = self._accounts[key].allowance
        term = allowance.term  # tokens return only while the tokens held now are good
        return lambda unused: allowance.settle(got, unused, term, self._monotonic_ms())

    def _admit(self, key: Bounded, quota: Quota, items: int, deadline_ms: int, admit: Admitted) -> None:
        state, now_ms = self._state, self._monotonic_ms()
        account = self._accounts.get(key)
        if account is None:
            if len(self._accounts) >= _MOST_ACCOUNTS:
                admit(0, Overloaded("too many namespaces and topics with a quota are in use", RETRY_MS))
                return
            self.start()
            allowance = Allowance(now_ms, self._numbers)
            account = self._accounts[key] = QuotaAccount(key, quota, allowance)
        account.quota = quota
        charge, allowance = Charge(items, admit), account.allowance
        if account.can_serve(items, now_ms):
            account.serve(charge, now_ms)
            if allowance.runs_low(now_ms) and self.elsewhere(account) is not None:
                self.ask([account])
        elif not state.budget.fits(0, state.config.host.input_share + _BUDGET_SHARE):
            admit(0, Overloaded("the host's buffers are full", RETRY_MS))
        else:
            account.waiting.append(charge)
            if allowance.asked is None:
                self.ask([account])
            if not charge.done:
                state.deadlines.push(deadline_ms, charge)
                state.alarm(deadline_ms)

    # ------------------------------------------------------------------------------------- the coordinator

    def question(self, account: QuotaAccount) -> Ask:
        # If this host is the coordinator, tokens ahead of the need gain nothing.
        return account.ask(self._monotonic_ms(), ahead=self.elsewhere(account) is not None)

    def answered(self, asked: Asked[QuotaAccount], grants: Sequence[Grant | None]) -> None:
        for (account, ask), grant in zip(asked, grants, strict=True):
            if account.answered(ask, grant, self._monotonic_ms()):
                self.ask([account])

    def request(self, asked: Asked[QuotaAccount]) -> Any:
        ((account, ask),) = asked
        ns, topic = account.bounded
        return idl.TakeTokensRequest(ns, self._holder, ask.number, ask.wanted, ask.held, ask.back, topic or None)

    def grants(self, asked: Asked[QuotaAccount], response: Any) -> list[Grant | None]:
        return [Grant(response.granted or 0, bool(response.kept), response.retry_after_ms or 0)]

    def beat(self) -> None:
        """Report the tokens held here, and give back tokens that no enqueue needs."""
        now_ms = self._monotonic_ms()
        for key, account in list(self._accounts.items()):
            allowance = account.allowance
            allowance.beat(now_ms)
            if allowance.asked is None and (allowance.balance or allowance.pending):
                account.spare = True
                self.ask([account])
            elif account.unused:
                del self._accounts[key]


def _used_up(key: Bounded, quota: Quota) -> str:
    ns, topic = key
    if not topic:
        return "the namespace's quota is used up"
    way_out = topic_command("policy", ns, topic, "max_stored=N")
    return f"the topic {topic} is full (max_stored {quota.stored_items}): ack items, or raise the bound, `{way_out}`"


def _stored_nothing(outcome: int | FoqsError) -> bool:
    return isinstance(outcome, FoqsError | Duplicate) and not isinstance(outcome, OutcomeUnknown | OwnDuplicate)
