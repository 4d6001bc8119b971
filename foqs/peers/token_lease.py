"""The tokens that this host holds for a namespace or a topic, and the enqueues that wait for more of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from foqs.bounds import Quota
from foqs.engine.shard import Shard
from foqs.errors import Overloaded
from foqs.limits.allowance import Allowance
from foqs.limits.bucket import Ask, Grant

RETRY_MS = 200
"""The hint in a refusal when the coordinator did not answer, or when the namespace has none now."""

Admitted = Callable[[int, Overloaded | None], None]
"""(how many items are admitted, counted from the first; the error of the rest)."""


class Charge:
    """The items of one enqueue that wait for tokens. `asked`: the open question to the coordinator covers them."""

    __slots__ = ("admit", "asked", "count", "done")

    def __init__(self, count: int, admit: Admitted) -> None:
        self.count = count
        self.admit = admit
        self.asked = False
        self.done = False

    def end(self, taken: int, error: Overloaded | None) -> None:
        if not self.done:
            self.done = True
            self.admit(taken, error)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.end(0, Overloaded("the coordinator of the quota did not answer in time", RETRY_MS))


class TokenLease:
    """Charges are served in the order in which they arrive."""

    __slots__ = ("_no_more_until_ms", "_used_up", "allowance", "quota", "waiting")

    def __init__(self, quota: Quota, allowance: Allowance, used_up: Callable[[Quota], str]) -> None:
        """`used_up` returns the message to items that are refused. `quota` may be replaced: a topic's bound changes."""
        self._used_up = used_up
        self.allowance = allowance
        self.waiting: deque[Charge] = deque()
        self.quota = quota
        self._no_more_until_ms = 0

    @property
    def unused(self) -> bool:
        """Whether the lease can be forgotten."""
        return self.allowance.idle() and not self.waiting

    def can_serve(self, items: int, now_ms: int) -> bool:
        """Whether a new charge is served or refused at once, without a question to the coordinator."""
        return not self.waiting and (self.allowance.covers(items, now_ms) or self.allowance.dry(now_ms))

    def serve(self, charge: Charge, now_ms: int) -> None:
        """Spend tokens on the charge; refuse the items that they do not cover."""
        taken = self.allowance.take(charge.count, now_ms)
        lacking = charge.count - taken
        error = None
        if lacking:
            retry_after_ms = max(1, self._no_more_until_ms - now_ms, self.quota.ms_for(lacking))
            error = Overloaded(self._used_up(self.quota), retry_after_ms)
        charge.end(taken, error)

    def ask(self, now_ms: int, *, ahead: bool, spare: bool) -> Ask:
        """Return the question to send now, which covers all charges that wait."""
        need = 0
        for charge in self.waiting:
            charge.asked = True
            need += 0 if charge.done else charge.count
        return self.allowance.ask(need, now_ms, ahead=ahead, spare=spare)

    def answered(self, ask: Ask, grant: Grant | None, now_ms: int) -> bool:
        """Serve every charge that waited for this answer, with the tokens that are there. `grant` is None if the
        coordinator did not answer or refused. Return whether charges need another question."""
        allowance = self.allowance
        if not allowance.waits_for(ask):
            return False
        allowance.answered(ask.number, grant, now_ms)
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
