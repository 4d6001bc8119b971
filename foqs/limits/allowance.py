"""One host's tokens of a namespace, a topic or a throttle key: lent by its coordinator, spent on items, given back
when not needed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from foqs.limits.bucket import TTL_MS, Ask, Grant

AHEAD_MS = 200
"""A host asks ahead for the tokens that it needs in this time, if the coordinator is another host."""
_PAUSE_MS = 20
"""The pause after an answer with less than the host wanted. The tokens that accrue in it are lent in one
portion."""
_UNANSWERED_PAUSE_MS = 100
_NO_PACE = 1e-4
"""Tokens a millisecond. An allowance with a lower pace is out of use."""


class Lost:
    """Counts the tokens of several allowances that became void before they were spent."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0


class Allowance:
    """One question is open at a time (`asked`). Tokens spent on items that may yet be refused are `pending`: the host
    reports them as held, so that it can take them back. A `term` ends when the held tokens become void. `lost` counts
    these."""

    __slots__ = (
        "_dry_until_ms", "_expires_ms", "_lost", "_numbers", "_pace", "_since_ms", "_spent", "_spent_ms", "_used",
        "asked", "balance", "pending", "term",
    )  # fmt: skip

    def __init__(self, now_ms: int, numbers: Iterator[int], lost: Lost | None = None) -> None:
        """`numbers` of questions continue when another instance replaces this: the coordinator knows the last."""
        self.balance = 0
        self.pending = 0
        self.term = 0
        self.asked: tuple[Ask, int, int] | None = None  # the question, its term, when it was sent
        self._numbers = numbers
        self._lost = lost or Lost()
        self._expires_ms = 0
        self._dry_until_ms = 0
        self._used = 0
        self._spent = 0  # in this term since the last question: the coordinator still counts them as held here
        self._spent_ms = 0  # when the last of them was
        self._pace = 0.0  # tokens a millisecond, of late
        self._since_ms = now_ms

    def take(self, count: int, now_ms: int) -> int:
        """Spend up to `count` tokens, which are pending then. Return how many."""
        self._end_term(now_ms)
        taken = min(count, self.balance)
        self.balance -= taken
        self.pending += taken
        self._used += taken
        return taken

    def spend(self, now_ms: int, count: int = 1) -> bool:
        """Spend `count` tokens for good, unless they are given back; return False if fewer are held."""
        self._end_term(now_ms)
        if self.balance < count:
            return False
        self.balance -= count
        self._spent += count
        self._spent_ms = now_ms
        self._used += count
        return True

    def give_back(self, now_ms: int) -> bool:
        """Take back a token that was spent after the last question, for an item that was not delivered. The caller must
        be sure of both: then the coordinator counts the token as held here until the next question. Return False if
        the term ended: the token is lost."""
        self._end_term(now_ms)
        if not self._spent:
            return False
        self.balance += 1
        self._spent -= 1
        self._used -= 1
        return True

    def settle(self, taken: int, unused: int, term: int, now_ms: int) -> None:
        """The items of `taken` pending tokens of that term are decided: `unused` tokens stored nothing, and are held
        again."""
        self._end_term(now_ms)
        if term == self.term:
            self.pending -= taken
            self.balance += unused

    def ask(self, need: int, now_ms: int, *, ahead: bool, spare: bool = False, keep: int = 0) -> Ask:
        """Return the question to send now, for `need` tokens, and with `ahead` for the need of the next `AHEAD_MS`.
        With `spare` it gives back the tokens beyond that, apart from `keep` of them."""
        self._end_term(now_ms)
        aim = self.aim if ahead else 0
        back = max(0, self.balance - max(aim, keep)) if spare and not need else 0
        self.balance -= back
        wanted = max(0, need + aim - self.balance)
        ago_ms = max(0, now_ms - self._spent_ms - 1) if self._spent else 0  # both times are rounded down
        asked = Ask(next(self._numbers), wanted, self.balance + self.pending, back, ago_ms)
        self.asked = (asked, self.term, now_ms)
        self._spent = 0
        return asked

    def answered(self, number: int, grant: Grant | None, now_ms: int) -> bool:
        """Take an answer: None if none came, or if the host that was asked is not the coordinator. Return False if it
        is late: it changes nothing."""
        if self.asked is None or self.asked[0].number != number:
            return False
        ask, term, sent_ms = self.asked
        self.asked = None
        if grant is None:
            self._dry_until_ms = now_ms + _UNANSWERED_PAUSE_MS
            return True
        if not grant.kept and term == self.term:
            self._void()
        self.balance += grant.granted
        self._expires_ms = sent_ms + TTL_MS
        self._end_term(now_ms)
        if grant.granted < ask.wanted:
            self._dry_until_ms = now_ms + max(1, min(grant.retry_after_ms // 4, _PAUSE_MS))
        return True

    def good(self, now_ms: int) -> int:
        """Return the number of tokens that are held and good, without the pending ones."""
        self._end_term(now_ms)
        return self.balance

    def used_up(self) -> bool:
        """Return True if tokens were spent and none is left. The coordinator does not know it, and makes no new
        ones."""
        return self._spent > 0 and not self.balance

    def dry(self, now_ms: int) -> bool:
        """Return True if the coordinator said a moment ago that there are no more tokens."""
        return now_ms < self._dry_until_ms

    def runs_low(self, now_ms: int) -> bool:
        """Return True if it is time to ask ahead."""
        return self.asked is None and not self.dry(now_ms) and self.balance < self.aim // 2

    def beat(self, now_ms: int) -> None:
        """Learn the pace of use. Call this now and then."""
        over_ms = now_ms - self._since_ms
        if over_ms > 0:
            self._pace = (self._pace + self._used / over_ms) / 2
            self._used, self._since_ms = 0, now_ms
        self._end_term(now_ms)

    def idle(self) -> bool:
        return self.asked is None and not self.balance and not self.pending and self._pace < _NO_PACE

    @property
    def aim(self) -> int:
        """The tokens that the next `AHEAD_MS` will need."""
        return int(self._pace * AHEAD_MS)

    def _end_term(self, now_ms: int) -> None:
        if now_ms >= self._expires_ms and self.balance + self.pending + self._spent:
            self._void()

    def _void(self) -> None:
        self._lost.tokens += self.balance
        self.balance = self.pending = self._spent = 0
        self.term += 1

    def __repr__(self) -> str:
        return f"Allowance({self.balance}, {self.pending} pending)"
