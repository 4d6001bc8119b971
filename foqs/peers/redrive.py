"""RedriveItems of a cluster: the shards one after the other, page by page, each page on the shard's owner.

One page is in flight at a time, so no more than one page of items is unknown for each owner that fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from foqs.engine.dead_letters import (
    MOST_NAMED,
    PAGE_ITEMS,
    Admit,
    GroupKey,
    PageAsk,
    PageOutcome,
    RedrivePage,
    Refused,
)
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, OutcomeUnknown, Overloaded, Unavailable
from foqs.ids import shard_of
from foqs.peers.forwarded import Alarm, Exchange, Here
from foqs.rows import FailurePosition

MOST_GROUPS = 10_000
"""Groups that a call with `per_group` covers: the counts of all of them travel with each page."""
_AGAIN_MS = 100
_LONGEST_PAUSE_MS = 1_000
_MARGIN = 0.1
_MARGIN_MS = 500
"""No page begins so late, so that the reply comes before the caller gives it up."""
_PAGES_A_SECOND = 10

Ended = Callable[[PageOutcome | FoqsError], None]


@dataclass(slots=True)
class Redriven:
    """`more`: the call ended before all shards were searched to their ends. `missing`: shards that could not be.
    `duplicates`: dead letters that stay, because other items have their keys. `items`: the topics of redriven ones, of
    the first `MOST_NAMED`. `refused`: dead letters that stay, by the
    topic that is closed or full."""

    at_least: int = 0
    at_most: int = 0
    leased: int = 0
    duplicates: int = 0
    items: dict[int, str] = field(default_factory=dict)
    more: bool = False
    missing: set[int] = field(default_factory=set)
    refused: dict[str, Refused] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """`ask` is what all pages have in common; its shard, position and `most` are set for each. `count` 0: all items.
    `pace` is items a second, 0: no bound. A shard whose owner refuses is tried again for `patience_ms`."""

    ask: PageAsk
    count: int
    pace: int
    patience_ms: int


class Redrive:
    """`send(ask, address, deadline_ms, ended)` asks another host for a page. Calls `reply` once, by the deadline.

    A closed or full topic keeps its own dead letters out, and no other ones. Where all go to one topic, it ends the
    redrive."""

    def __init__(
        self,
        exchange: Exchange,
        plan: Plan,
        send: Callable[[PageAsk, str, int, Ended], None],
        reply: Callable[[Redriven], None],
        admit: Admit | None = None,
    ) -> None:
        self._exchange = exchange
        self._state = exchange.engine
        self._plan = plan
        self._now_ms = exchange.now_ms
        self._send = send
        self._reply = reply
        self._admit = admit
        self._result = Redriven()
        only = plan.ask.wanted.item_id
        self._left = deque(one for one in sorted(exchange.routing().shards) if only is None or one == shard_of(only))
        self._after: FailurePosition | None = None
        self._taken: dict[GroupKey, int] = {}
        self._refused_ms: int | None = None  # since when the present shard is refused
        self._in_flight = 0  # items of the page that was asked for
        self._begun_ms = self._deadline_ms = self._last_ms = 0
        self.done = False

    def begin(self, timeout_ms: int) -> None:
        now_ms = self._begun_ms = self._now_ms()
        self._deadline_ms = now_ms + timeout_ms
        self._last_ms = self._deadline_ms - min(_MARGIN_MS, int(timeout_ms * _MARGIN))
        self._exchange.ring(self._deadline_ms, self)
        self._continue()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """The owner of a page does not answer."""
        if self._in_flight:
            self._doubt()
            self._result.missing.add(self._left[0])
        self._end(more=True)

    # ------------------------------------------------------------------------------------- pages

    def _continue(self) -> None:
        if self.done:
            return
        now_ms, plan = self._now_ms(), self._plan
        if not self._left:
            self._end(more=False)
            return
        most = self._most()
        if not most or now_ms >= self._last_ms or len(self._taken) >= MOST_GROUPS:
            self._end(more=True)
            return
        due_ms = self._begun_ms + self._result.at_most * 1_000 // plan.pace if plan.pace else now_ms
        if due_ms > now_ms:
            self._later(min(due_ms, self._last_ms))
            return
        ask = replace(plan.ask, shard=self._left[0], after=self._after, most=most, taken=self._taken)
        target = self._exchange.find(ask.shard)
        self._in_flight = most
        if isinstance(target, Here):
            RedrivePage(self._state.state, ask, self._ended, self._admit).begin(now_ms, self._last_ms)
        elif isinstance(target, FoqsError) or target is None:
            self._ended(target or Unavailable("the shard has no host"))
        else:
            self._send(ask, target.address, self._last_ms, self._ended)

    def _most(self) -> int:
        """Return how many items the next page may redrive."""
        plan, most = self._plan, PAGE_ITEMS
        if plan.count:
            most = min(most, plan.count - self._result.at_most)
        if plan.pace:
            most = min(most, max(1, plan.pace // _PAGES_A_SECOND))
        return most

    def _ended(self, outcome: PageOutcome | FoqsError) -> None:
        if self.done:
            return
        if isinstance(outcome, PageOutcome):
            self._in_flight = 0
            self._add(outcome)
            if outcome.refused and self._plan.ask.to_topic is not None:
                self._end(more=bool(self._left))
            else:
                self._state.state.slices.soon(self._continue)
        elif outcome.outcome_known:
            self._again(outcome)
        else:
            self._doubt()
            if self._plan.ask.per_group:  # which groups the items are of is unknown, too
                self._result.missing.add(self._left[0])
                self._end(more=True)
            else:
                self._again(outcome)

    def _add(self, outcome: PageOutcome) -> None:
        result = self._result
        result.at_least += outcome.redriven
        result.at_most += outcome.redriven + outcome.unknown
        result.leased += outcome.leased
        result.duplicates += outcome.duplicates
        if len(result.items) < MOST_NAMED:
            result.items |= outcome.items
        if self._plan.ask.per_group:
            for group, count in outcome.taken.items():
                self._taken[group] = self._taken.get(group, 0) + count
        for topic, refused in outcome.refused.items():
            known = result.refused.get(topic, Refused(0, refused.error))
            result.refused[topic] = Refused(known.items + refused.items, refused.error)
        self._after, self._refused_ms = outcome.next, None
        if outcome.next is None:
            self._left.popleft()

    def _doubt(self) -> None:
        """A host may have carried out the page in flight."""
        if not self._plan.ask.dry_run:
            self._result.at_most += self._in_flight

    def _again(self, error: FoqsError) -> None:
        """Ask again after a pause, as the shard may be between two owners. What a lost page redrove is gone from the
        topic."""
        self._in_flight = 0
        now_ms = self._now_ms()
        if self._refused_ms is None:
            self._refused_ms = now_ms
        passing = isinstance(error, Unavailable | Overloaded | OutcomeUnknown)
        if passing and now_ms - self._refused_ms < self._plan.patience_ms:
            pause_ms = min(max(_AGAIN_MS, error.retry_after_ms or 0), _LONGEST_PAUSE_MS)
            self._later(min(now_ms + pause_ms, self._last_ms))
        else:  # continue with the next shard
            shard = self._left.popleft()
            if shard in self._exchange.routing().shards:  # else it was removed
                self._result.missing.add(shard)
            self._after, self._refused_ms = None, None
            self._state.state.slices.soon(self._continue)

    def _later(self, at_ms: int) -> None:
        self._exchange.ring(max(at_ms, self._now_ms() + 1), Alarm(self._continue, lambda: self.done))

    def _end(self, *, more: bool) -> None:
        self.done = True
        self._result.more = more
        self._reply(self._result)
