"""One throttle key with a rate on one host: the tokens here, and the flows that wait for more of them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from foqs.limits.allowance import Allowance
from foqs.limits.bucket import THROTTLE_TOKENS, Ask, Grant
from foqs.limits.gate import UNANSWERED_MS, F, Gate, T
from foqs.limits.shadow_hour import HourCounts
from foqs.policies.entries import Throttle

LONGEST_PAUSE_MS = 50
"""The longest pause after a question that found too few tokens. The tokens that accrue in it are lent in one
portion."""
_LONGEST_JITTER_MS = 10
_USED_MS = 50
_REPORT_SHARE = 50  # of the time in which the bucket fills
_AHEAD_SHARE = 100  # of the burst
_SHORT_MS = 1_000
"""A host asks a key ahead that had enough tokens for this time, for a small share of its burst. So a host that uses a
fast key waits for a few of its tokens, and takes none from another host that waits."""


class ThrottleKey(Gate[T, F]):
    """A gate whose units are tokens. `mark`: the host's moment of the last question, or of the throttle if it is
    later.

    A throttle in shadow delivers without a token, and asks for the token then. A delivery that gets it would have
    waited for some milliseconds, and counts as passed; `shadow_held` counts any other one, and `hour` counts both.
    `hour` is None where the throttle is not in shadow."""

    __slots__ = (
        "_owed", "allowance", "hour", "lacked", "mark", "returned_ms", "returning", "shadow_held", "short_ms", "used_ms"
    )  # fmt: skip
    unit = THROTTLE_TOKENS

    def __init__(self, ns: str, key: str, throttle: Throttle, hash_slot: int, allowance: Allowance, mark: int) -> None:
        """`hash_slot`: names its coordinator. `mark`: no token of this key was taken before this moment."""
        super().__init__(ns, key, throttle, hash_slot)
        self.allowance = allowance
        self.used_ms = 0
        self.mark = mark
        self.returning = False
        self.returned_ms = -1  # when tokens went back to the coordinator
        self.short_ms = 0  # when the coordinator had too few tokens
        self.lacked = 0  # tokens that deliveries under a shadow throttle would have needed
        self._owed = 0  # of these, in the open question
        self.shadow_held = 0
        self.hour: HourCounts | None = None

    @property
    def why(self) -> str:
        """The reason of the wait, for consumers."""
        return f"throttled: {self.name}"

    @property
    def asking(self) -> bool:
        return self.allowance.asked is not None

    @property
    def holds(self) -> bool:
        """Return True if there are units to report."""
        return self.allowance.balance > 0

    def here(self, now_ms: int) -> int:
        return self.allowance.good(now_ms)

    # ------------------------------------------------------------------------------------- tokens

    def update(self, throttle: Throttle, now_ms: int, mark: int) -> None:
        """Follow another throttle. Tokens that were taken before are not given back: there may have been none."""
        self.throttle = throttle
        self.due_ms = now_ms
        self.mark = mark
        self.lacked = self._owed = 0
        self.hour = None

    def spend(self, now_ms: int, count: int = 1) -> bool:
        """Take `count` tokens, or note that a shadow throttle has too few. Return False in that case."""
        self.used_ms = now_ms
        if self.allowance.spend(now_ms, count):
            if self.hour is not None:
                self.hour.add(now_ms, count, 0)
            return True
        self.lacked += 1
        return False

    def give_back(self, moment: int, now_ms: int) -> bool:
        """Take back the token of an item that was leased at that moment and not delivered, if the coordinator still
        counts it as held here. Under a shadow throttle the item may have had none."""
        return moment >= self.mark and not self.throttle.shadow and self.allowance.give_back(now_ms)

    def need(self, wanted: Callable[[T], int]) -> int:
        """Return how many tokens the consumers of its parked flows could use, and its keeper, at most the burst."""
        need = self.wanted_of(wanted, self.throttle.burst, self.lacked)
        return min(need + self.kept, self.throttle.burst) if need else 0

    def ask(self, need: int, now_ms: int, mark: int, *, beat: bool = False) -> Ask | None:
        """Return the question to send now, None if there is nothing to ask, report or return. On a `beat` the tokens
        that recent use will need stay here. `mark` is a new moment: leases before it return no token."""
        allowance, returning = self.allowance, self.returning and not need
        self.returning = False
        good = allowance.good(now_ms)
        if need <= good and not (good and (beat or returning)) and not allowance.used_up():
            return None
        self.mark = mark
        self._owed, self.lacked = self._owed + self.lacked, 0
        if need and now_ms - self.short_ms >= _SHORT_MS:
            need += min(allowance.aim, self.throttle.burst // _AHEAD_SHARE)
        spare = returning or (beat and not self._awake)
        asked = allowance.ask(need, now_ms, ahead=beat, spare=spare, keep=self.kept)
        if asked.back:  # the coordinator has these again: a flow that wants one now asks at once
            self.due_ms = self.returned_ms = now_ms
        return asked

    def tend(self, now_ms: int) -> bool:
        """Look after the tokens, twice a second. Return False if there are none to report."""
        self.allowance.beat(now_ms)
        return self.allowance.balance > 0

    def answered(self, ask: Ask, grant: Grant | None, now_ms: int, jitter: float) -> bool:
        """Take the answer to a question, None if there is none. Return False if the question is not open. `jitter`,
        from 0 to 1, keeps the hosts that wait for the same token from asking in the same order each time."""
        if not self.allowance.answered(ask.number, grant, now_ms):
            return False
        self.unanswered = self.unanswered + 1 if grant is None else 0
        if self._owed:
            self._pay(now_ms)
        if grant is None:
            self.due_ms = now_ms + UNANSWERED_MS
        elif grant.granted < ask.wanted:
            pause_ms = max(1, grant.retry_after_ms, min(LONGEST_PAUSE_MS, self._fill_ms // 2))
            self.short_ms = now_ms
            self.due_ms = now_ms + pause_ms + int(jitter * min(_LONGEST_JITTER_MS, pause_ms // 20))
        return True

    def _pay(self, now_ms: int) -> None:
        """Spend tokens that arrived on deliveries that had none. Deliveries in the answered question come first; the
        rest of these would have been held."""
        paid = min(self._owed + self.lacked, self.allowance.good(now_ms))
        if paid:
            self.allowance.spend(now_ms, paid)
        held = max(0, self._owed - paid)
        self.lacked -= max(0, paid - self._owed)
        self._owed = 0
        self.shadow_held += held
        if self.hour is not None:
            self.hour.add(now_ms, paid, held)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the time of the next question to the coordinator, or None.

        The last token is reported as spent before the time in which the coordinator could have made another one."""
        at_ms = max(now_ms, self.due_ms) if self.active or self.lacked else None
        if self.allowance.used_up():
            report_ms = self.used_ms + min(LONGEST_PAUSE_MS, self._fill_ms // _REPORT_SHARE)
            at_ms = report_ms if at_ms is None else min(at_ms, report_ms)
        return at_ms

    @property
    def interval_ms(self) -> float:
        """The time between two tokens."""
        return 1_000 / self._per_second

    @property
    def _fill_ms(self) -> int:
        return int(1_000 * self.throttle.burst / self._per_second)

    @property
    def _per_second(self) -> float:
        assert self.throttle.per_second is not None, "the key has a rate"
        return self.throttle.per_second

    def unneeded(self, now_ms: int) -> bool:
        """Return True if its tokens wait only for a token of another key. Tokens go back once a millisecond: two flows
        on the coordinator's own host could return each other's, and ask for them at once, without end."""
        idle = self.allowance.balance > self.kept and not self.active and now_ms - self.used_ms >= _USED_MS
        return idle and now_ms > self.returned_ms

    @property
    def unused(self) -> bool:
        """Return True if it can be forgotten."""
        allowance = self.allowance
        idle = allowance.asked is None and not allowance.balance
        return idle and not (self.active or self.asleep or self.timer_ms or self.lacked)

    def __repr__(self) -> str:
        return f"ThrottleKey({self.name} {self.allowance}, {self.awake} awake)"
