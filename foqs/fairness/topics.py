"""The topics of a host, each with the lanes that hold its items.

A shard attaches its lanes while it is open. The end of its `ShardTerm` takes all its lanes out of the counts at once;
they are detached later, a bounded number at a time. Shards look their lanes up by `LaneKey`; all else, from waiting
consumers to metrics, names topics by `TopicKey`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from foqs.counters import TopicCounters, TopicEvents
from foqs.fairness.failing import Failed, Failing
from foqs.fairness.keys import LaneKey, TopicKey, is_of_tenant, rules_of, tenancy_of
from foqs.fairness.ledger import Ledgers
from foqs.fairness.rates import Rates, Traffic
from foqs.fairness.tenants import InFlow, ShardTerm
from foqs.fairness.turns import Turns
from foqs.rules import ItemRules


class Attached(InFlow, Protocol):
    """A lane, as a topic knows it. `next` is the topic's next lane. `flow` is None where tenants take no turns."""

    key: LaneKey
    next: Any


L = TypeVar("L", bound=Attached)


class Topic(Generic[L]):
    """Its lanes form a list from `first` on, in the order in which their shards were opened. Lanes of closed shards
    stay until they are detached. (A topic has a lane or two; a tuple of them would take 40 bytes more.) `rules` counts
    the lanes by their rules, None if no lane has some. `bounds` is the engine's: the part of the topic's policy, and of
    these rules, that each delivery needs. From the first lane with a fairness key or throttle keys on, `turns` has the
    lanes instead. `failing` counts its failed attempts, None if it has none lately. `traffic` has the counts of its
    namespace. `totals` are its counters, and `counters` the same ones while something was counted in the present step
    of the rates. `ordered`: it has, or had, items with order keys."""

    __slots__ = ("bounds", "counters", "failing", "first", "key", "ordered", "rules", "totals", "traffic", "turns")

    def __init__(self, key: TopicKey, traffic: Traffic) -> None:
        self.key = key
        self.traffic = traffic
        self.rules: Counter[ItemRules] | None = None
        self.first: L | None = None
        self.ordered = False
        self.bounds: Any = None
        self.turns: Turns[L] | None = None
        self.failing: Failed | None = None
        self.counters: TopicCounters | None = None
        self.totals: TopicCounters | None = None

    def counted(self) -> TopicCounters:
        """Return the counters, to count something. (Callers look for `counters` first.)"""
        if self.counters is None:
            if self.totals is None:
                self.totals = TopicCounters()
            self.counters = self.totals
            self.traffic.topic_rates.begin(self, self.totals.events())
        return self.counters

    @property
    def ready(self) -> int:
        """Number of items that are ready, in memory or not."""
        if self.turns is not None:
            return self.turns.ready
        ready, lane = 0, self.first
        while lane is not None:
            if lane.term.shard is not None:
                ready += lane.ready
            lane = lane.next
        return ready

    def lanes(self) -> list[L]:
        """Return the lanes of open shards."""
        if self.turns is not None:
            return [lane for lane in self.turns.lanes() if lane.term.shard is not None]
        lanes: list[L] = []
        lane = self.first
        while lane is not None:
            if lane.term.shard is not None:
                lanes.append(lane)
            lane = lane.next
        return lanes

    def begin_turns(self) -> Turns[L]:
        """Let the tenants of the topic take turns from now on. The items of its plain lanes belong to tenant ''."""
        if self.turns is None:
            self.turns = Turns()
            lane, self.first = self.first, None
            while lane is not None:
                after, lane.next = lane.next, None
                self.turns.attach(lane, "", ())
                lane = after
        return self.turns

    @property
    def empty(self) -> bool:
        """Return True if the topic has no lane."""
        return self.first is None and (self.turns is None or not self.turns.tenants)

    def attach(self, lane: L) -> None:
        if self.turns is not None or is_of_tenant(lane.key):
            self.begin_turns().attach(lane, *tenancy_of(lane.key))
            return
        before, after = None, self.first
        while after is not None and after.term.number < lane.term.number:
            before, after = after, after.next
        lane.next = after
        if before is None:
            self.first = lane
        else:
            before.next = lane

    def detach(self, lane: L) -> None:
        if self.turns is not None:
            self.turns.detach(lane)
            return
        before, found = None, self.first
        while found is not lane:
            assert found is not None, "the lane is not attached"
            before, found = found, found.next
        if before is None:
            self.first = lane.next
        else:
            before.next = lane.next
        lane.next = None

    def __repr__(self) -> str:
        return f"Topic({'/'.join(self.key)} ready={self.ready})"


class Topics(dict[TopicKey, Topic[L]]):
    """Every topic that has a lane here. `in_turns` has the topics whose tenants take turns. `failing` counts the failed
    attempts of topics, and `rates` the traffic of namespaces, whether they have a lane or not."""

    def __init__(self) -> None:
        super().__init__()
        self.in_turns: dict[TopicKey, Topic[L]] = {}
        self.ledgers = Ledgers()
        self.failing = Failing()
        self.rates = Rates()
        self.forgotten = TopicEvents()
        """Events of forgotten topics that no scrape has seen."""
        self._terms = 0
        self._order: TopicOrder | None = None

    def term(self, shard: Any) -> ShardTerm:
        self._terms += 1
        return ShardTerm(self._terms, shard)

    def of(self, key: TopicKey) -> Topic[L]:
        """Return the topic for a lane that is attached next."""
        topic = self.get(key)
        if topic is None:
            ns, name = key
            ns = sys.intern(ns)
            key = (ns, name)  # each request and each row has a copy of the namespace
            topic = self[key] = Topic(key, self.rates.of(ns))
            if self.failing and (failed := self.failing.get(key)) is not None:
                failed.topic, topic.failing = topic, failed
            if self._order is not None:
                self._order.add(key)
        return topic

    def attach(self, topic: Topic[L], lane: L) -> None:
        rules = rules_of(lane.key)
        if rules is not None:
            topic.rules = topic.rules or Counter()
            topic.rules[rules] += 1
            topic.bounds = None
        turns = topic.turns
        if turns is not None:  # `Topic.attach`, for the lanes of many tenants
            turns.attach(lane, *tenancy_of(lane.key))
            return
        topic.attach(lane)
        if topic.turns is not None:
            self.in_turns[topic.key] = topic

    def begin_turns(self, topic: Topic[L]) -> None:
        """Let the tenants of the topic take turns from now on."""
        topic.begin_turns()
        self.in_turns[topic.key] = topic

    def detach(self, topic: Topic[L], lane: L) -> None:
        """Detach the lane. A topic without a lane is forgotten."""
        topic.detach(lane)
        rules = rules_of(lane.key)
        if rules is not None and topic.rules is not None:
            topic.rules[rules] -= 1
            if not topic.rules[rules]:
                del topic.rules[rules]
        if topic.empty:
            if topic.totals is not None:
                self.forgotten = self.forgotten.plus(topic.totals.take())
            del self[topic.key]
            topic.traffic.topics -= 1
            self.in_turns.pop(topic.key, None)
            if self._order is not None:
                self._order.discard(topic.key)

    def take_forgotten(self) -> TopicEvents:
        taken, self.forgotten = self.forgotten, TopicEvents()
        return taken

    def order(self, now_ms: int) -> TopicOrder:
        """Return the order of the topics, which is kept from now on."""
        if self._order is None:
            self._order = TopicOrder(self)
        self._order.used_ms = now_ms
        return self._order

    def forget_order(self, unused_ms: int, now_ms: int) -> None:
        """Keep the order no longer if no page was read for `unused_ms`."""
        if self._order is not None and not 0 <= now_ms - self._order.used_ms < unused_ms:
            self._order = None


_PIECE = 500
"""Keys are kept in pieces of up to twice this many: an insertion moves the keys of one piece."""


class TopicOrder:
    """The keys of topics in order, for pages of topics. `used_ms` is when the last page was read.

    New keys wait unsorted until a reader needs them, and the reader sorts a bounded number at a time. So a host that
    opens 100,000 topics sorts none of them for its own work."""

    __slots__ = ("_ends", "_pieces", "_unsorted", "used_ms")

    def __init__(self, keys: Iterable[TopicKey]) -> None:
        self.used_ms = 0
        self._unsorted = list(keys)
        self._pieces: list[list[TopicKey]] = []
        self._ends: list[TopicKey] = []  # the last key of each piece

    def add(self, key: TopicKey) -> None:
        self._unsorted.append(key)

    def discard(self, key: TopicKey) -> None:
        at = bisect_left(self._ends, key)
        if at == len(self._ends):
            return
        piece = self._pieces[at]
        inside = bisect_left(piece, key)
        if piece[inside] != key:
            return  # not sorted yet: `sort` drops it
        del piece[inside]
        if piece:
            self._ends[at] = piece[-1]
        else:
            del self._pieces[at], self._ends[at]

    def sort(self, most: int, known: Container[TopicKey]) -> bool:
        """Sort `most` of the new keys that are still in `known`. Return whether unsorted keys are left."""
        unsorted = self._unsorted
        for _ in range(min(most, len(unsorted))):
            key = unsorted.pop()
            if key in known:
                self._insert(key)
        return bool(unsorted)

    def _insert(self, key: TopicKey) -> None:
        if not self._pieces:
            self._pieces.append([key])
            self._ends.append(key)
            return
        at = min(bisect_left(self._ends, key), len(self._ends) - 1)
        piece = self._pieces[at]
        inside = bisect_left(piece, key)
        if inside < len(piece) and piece[inside] == key:
            return  # the topic ended and began again
        piece.insert(inside, key)
        if len(piece) > 2 * _PIECE:
            self._pieces.insert(at, piece[:_PIECE])
            self._ends.insert(at, piece[_PIECE - 1])
            del piece[:_PIECE]
            at += 1
        self._ends[at] = piece[-1]

    def after(self, key: TopicKey, most: int) -> list[TopicKey]:
        """Return the first sorted keys behind `key`, at most `most`."""
        keys: list[TopicKey] = []
        for at in range(bisect_right(self._ends, key), len(self._ends)):
            piece = self._pieces[at]
            start = bisect_right(piece, key)
            keys += piece[start : start + most - len(keys)]
            if len(keys) == most:
                break
        return keys

    def __repr__(self) -> str:
        return f"TopicOrder({sum(map(len, self._pieces))} sorted, {len(self._unsorted)} not)"


_MOST_GONE = 64


class TenantLanes:
    """The numbers of the lanes with a fairness key or throttle keys that a topic has on one shard, in order. `total`
    counts the items of these lanes in any state.

    The numbers of removed lanes stay in `numbers` until they are more than half of it: to take one out of 100,000 at
    once would cost 40 us."""

    __slots__ = ("_gone", "numbers", "total")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.total = 0
        self._gone = 0

    def __len__(self) -> int:
        return len(self.numbers) - self._gone

    def add(self, number: int) -> None:
        """Add a lane, whose number is higher than all before."""
        self.numbers.append(number)

    def remove(self, left: Container[int]) -> None:
        """One of the lanes was removed; `left` has the rest."""
        self._gone += 1
        if self._gone > max(_MOST_GONE, len(self.numbers) // 2):
            self.numbers = [number for number in self.numbers if number in left]
            self._gone = 0

    def behind(self, number: int, most: int) -> Sequence[int]:
        """Return the first numbers behind `number`, at most `most`, numbers of removed lanes among them."""
        first = bisect_right(self.numbers, number)
        return self.numbers[first : first + most]
