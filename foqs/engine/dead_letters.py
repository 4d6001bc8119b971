"""Dead letters on the shards of this host: the groups of a topic, and redrives page by page.

A page of a redrive returns the next dead letters of one shard to the topics that they came from, all of them in the
shard's next transactions. Dead letters of a topic that is closed or full stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from foqs.buffers.reads import DeadRead, GroupsRead
from foqs.engine import order_homes
from foqs.engine.calls import ItemsCall
from foqs.engine.item_ops import change_of
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.state import State
from foqs.engine.unique import Taking, free_again
from foqs.errors import FoqsError, NotServed, OutcomeUnknown, Overloaded, Unavailable
from foqs.fairness.keys import TopicKey, lane_key, unpack_throttles
from foqs.ids import Until, order_digest
from foqs.item import Cause, Change, Item, Move, Phase, Place, To, from_ready
from foqs.order import Order, Standing
from foqs.policies.failures import FailureFilter
from foqs.policies.remedy import closed
from foqs.prefetch.lane import Lane
from foqs.rows import DeadPage, DeadRow, FailureGroup, FailureGroups, FailurePosition
from foqs.rules import unpack_members, unpack_rules, unpack_until

ROWS = 2_000
"""Rows that a read looks at: the shard works on other requests between two reads."""
_CAUSES = 4
GroupKey = tuple[int, int]
"""(fingerprint, cause)"""


def dead_lane(memory: ShardMemory, key: TopicKey) -> int | None:
    """Return the number of the topic's lane in the shard; None if it has no dead letters."""
    lane = memory.lanes.get(lane_key(key))
    return lane.number if lane is not None and lane.dead else None


def queue(state: State, shard: Shard, read: DeadRead) -> None:
    shard.queue.dead_reads.append(read)
    state.touch(shard)


def merged(first: FailureGroup | None, second: FailureGroup) -> FailureGroup:
    """Return both as one; the sample is that of the first."""
    if first is None:
        return second
    return first._replace(
        items=first.items + second.items,
        first_died_at_ms=min(first.first_died_at_ms, second.first_died_at_ms),
        last_died_at_ms=max(first.last_died_at_ms, second.last_died_at_ms),
    )


class FailureListing:
    """The first `limit` groups behind `after`, over all shards that are served here.

    Calls `reply` with the groups, by (fingerprint, cause), and whether there are more; or `fail`; once."""

    def __init__(
        self,
        state: State,
        key: TopicKey,
        wanted: FailureFilter,
        limit: int,
        after: GroupKey | None,
        reply: Callable[[list[FailureGroup], bool], None],
        fail: Callable[[FoqsError], object],
    ) -> None:
        self._state = state
        self._key = key
        self._wanted = wanted
        self._limit = limit
        self._after = after
        self._reply = reply
        self._fail = fail
        self._left = [shard.number for shard in state.serving]
        self._groups: dict[GroupKey, FailureGroup] = {}
        self._of_shard: set[GroupKey] = set()
        self._more = False
        self.done = False

    def begin(self, deadline_ms: int) -> None:
        self._state.deadlines.push(deadline_ms, self)
        self._state.alarm(deadline_ms)
        self._next_shard()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.done = True
        for shard in shards.values():
            shard.queue.drop_reads(self._read)
        self._fail(Unavailable("a shard did not answer in time"))

    def _next_shard(self) -> None:
        while self._left:
            shard = self._state.shards.get(self._left[-1])
            if shard is not None and dead_lane(shard.memory, self._key) is not None:
                self._of_shard = set()
                self._ask(shard, None if self._after is None else (self._after[0], 0))
                return
            self._left.pop()
        self.done = True
        keys = sorted(self._groups)
        self._reply([self._groups[key] for key in keys[: self._limit]], self._more or len(keys) > self._limit)

    def _ask(self, shard: Shard, after: FailurePosition | None) -> None:
        lane = dead_lane(shard.memory, self._key)
        if lane is None:
            self._left.pop()
            self._next_shard()
            return
        queue(self._state, shard, GroupsRead(lane, after, self._wanted, self._limit + _CAUSES, ROWS, self._read))

    def _read(self, found: FailureGroups | None, error: FoqsError | None) -> None:
        if self.done:
            return
        if found is None:
            self.done = True
            self._fail(error or Unavailable("the shard was not read"))
            return
        for group in found.groups:
            key = (group.fingerprint, group.cause)
            if self._after is None or key > self._after:
                self._groups[key] = merged(self._groups.get(key), group)
                self._of_shard.add(key)
        shard = self._state.shards.get(self._left[-1])
        if found.next is not None and shard is not None:
            # Later rows may belong to the groups of the last fingerprint; the groups before it are whole.
            if sum(fingerprint < found.next[0] for fingerprint, _ in self._of_shard) < self._limit:
                self._ask(shard, found.next)
                return
            self._more = True
        self._left.pop()
        self._next_shard()


Settle = Callable[[int], None]
"""Called when the outcome of admitted items is known, with the number of items that were not stored."""
Granted = Callable[[int, FoqsError | None, Settle], None]
"""How many items are admitted, the error of the rest, and a call for later on."""
Admit = Callable[[TopicKey, int, int, Granted], None]
"""(topic, items, deadline_ms, granted): asks for room in a topic with `max_stored`."""

PAGE_ITEMS = 500
MOST_NAMED = 100
"""Redriven items that an answer names."""
START: FailurePosition = (-(1 << 63), 0)
"""Before all dead letters."""
_RETRY_MS = 100


@dataclass(frozen=True, slots=True)
class PageAsk:
    """`key` is the dead-letter topic. At most `most` items are redriven, and of each group no more than `per_group` (0:
    no bound) together with the items in `taken`. `to_topic` None: each item goes where it came from."""

    key: TopicKey
    shard: int
    after: FailurePosition | None
    wanted: FailureFilter
    most: int
    per_group: int = 0
    taken: Mapping[GroupKey, int] = field(default_factory=dict)
    to_topic: str | None = None
    dry_run: bool = False


class Refused(NamedTuple):
    """Dead letters that stay because their topic is closed (Unavailable) or full (Overloaded)."""

    items: int
    error: FoqsError


@dataclass(slots=True)
class PageOutcome:
    """`redriven` items, and `unknown` ones that may have been; `leased` ones stay, and `duplicates`, whose keys other
    items have. `taken` counts both by group. `items` has the topics of redriven ones, the first `MOST_NAMED` by id.
    `refused` ones stay, by the topic that they would go to. An item that a delete or a late ack removes at the same
    time counts as redriven before. `next` is where the next page begins; None: the shard has no more."""

    redriven: int = 0
    unknown: int = 0
    leased: int = 0
    next: FailurePosition | None = None
    taken: dict[GroupKey, int] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    duplicates: int = 0
    items: dict[int, str] = field(default_factory=dict)

    def refuse(self, topic: str, error: FoqsError, items: int = 1) -> None:
        known = self.refused.get(topic)
        self.refused[topic] = Refused(items if known is None else known.items + items, error)


@dataclass(slots=True)
class _Room:
    """How many items a topic with `max_stored` takes of the page, and the error of the rest. `used`: by chosen ones."""

    items: int
    error: FoqsError | None
    settle: Settle
    used: int = 0


class _Chosen(NamedTuple):
    item: Item
    row: DeadRow
    group: GroupKey
    topic: str


class RedrivePage:
    """Calls `reply` with the outcome, or with an error: nothing was changed; once. `admit` None: no topic is full."""

    def __init__(
        self, state: State, ask: PageAsk, reply: Callable[[PageOutcome | FoqsError], None], admit: Admit | None = None
    ) -> None:
        self._state = state
        self._ask = ask
        self._reply = reply
        self._admit = admit
        self._rooms: dict[str, _Room] = {}
        self._deadline_ms = 0
        self._moves: ItemsCall | None = None
        self._asked: set[int] = set()  # items whose keys were asked for
        self._have: set[int] = set()  # that have their keys again
        self._others: set[int] = set()  # whose keys other items have
        self._unasked: FoqsError | None = None  # why other items of the page stay for now
        self._outcome = PageOutcome()
        self.done = False

    def begin(self, now_ms: int, deadline_ms: int) -> None:
        state, ask = self._state, self._ask
        shard = state.shards.get(ask.shard)
        if shard is None or not state.settles(shard):
            self._end(NotServed("the shard is not served here now"))
        elif shard.queue.full:
            self._end(Overloaded("too much waits for the shard", _RETRY_MS))
        elif shard.owner.in_takeover_grace(now_ms):
            # The previous owner may still have items in memory, and could lease them after they returned.
            self._end(Unavailable("the shard was just taken from another host", shard.config.confirm_ms))
        elif (lane := dead_lane(shard.memory, ask.key)) is None:
            self._end(self._outcome)
        else:
            state.deadlines.push(deadline_ms, self)
            state.alarm(deadline_ms)
            self._deadline_ms = deadline_ms
            self._queue(shard, lane)

    def _queue(self, shard: Shard, lane: int) -> None:
        ask = self._ask
        # Rows of a page may be passed over: a filter, or a topic that is closed or full.
        one_by_one = ask.per_group or ask.wanted.headers or ask.key[0] in self._state.policies.namespaces
        limit = PAGE_ITEMS if one_by_one else ask.most
        queue(self._state, shard, DeadRead(lane, ask.after, self._wanted(), limit, ROWS, self._read))

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        if self._moves is not None:
            self._moves.timed_out(shards)
            return
        for shard in shards.values():
            shard.queue.drop_reads(self._read)
        self._end(Unavailable("the shard did not answer in time; nothing was changed"))

    def _end(self, outcome: PageOutcome | FoqsError) -> None:
        self.done = True
        rooms, self._rooms = self._rooms, {}
        for room in rooms.values():
            room.settle(room.items - room.used)
        shard = self._state.shards.get(self._ask.shard)
        if shard is not None and self._have:
            free_again(self._state, shard, self._have)
        self._reply(outcome)

    def _wanted(self) -> FailureFilter:
        """Return the filter without groups that are full: millions of items may follow there."""
        ask = self._ask
        if not ask.per_group or ask.after is None:
            return ask.wanted
        at = ask.after[0]
        full = [group[1] for group, count in ask.taken.items() if group[0] == at and count >= ask.per_group]
        return replace(ask.wanted, without=(at, tuple(full))) if full else ask.wanted

    def _read(self, page: DeadPage | None, error: FoqsError | None) -> None:
        if self.done or self._moves is not None:
            return
        shard = self._state.shards.get(self._ask.shard)
        if page is None or shard is None:
            self._end(error or NotServed("the shard is not served here now"))
            return
        chosen, wanted = self._choose(shard, page)
        keys = {one.item.id: one.topic for one in chosen if _holds(one.row) and one.item.id not in self._have}
        if self._ask.dry_run or not (chosen or wanted):
            self._count(chosen, [])
            self._end(self._outcome if chosen or self._unasked is None else self._unasked)
        elif wanted:
            self._ask_for_room(wanted)
        elif keys:
            self._take_keys(shard, keys)
        else:
            self._redrive(shard, chosen)

    def _ask_for_room(self, wanted: dict[str, int]) -> None:
        """Ask for room in the topics that have a bound, and read the page again, as its rows are old by then."""
        left, ns = set(wanted), self._ask.key[0]
        assert self._admit is not None, "rooms are wanted where they are asked for"

        def granted(topic: str, items: int, error: FoqsError | None, settle: Settle) -> None:
            if self.done:
                settle(items)
                return
            self._rooms[topic] = _Room(items, error, settle)
            left.discard(topic)
            if not left:
                self._read_again()

        for topic, items in wanted.items():
            self._admit((ns, topic), items, self._deadline_ms, partial(granted, topic))

    def _refusal(self, topic: str, wanted: dict[str, int]) -> FoqsError | None:
        """Return why an item cannot go to `topic`; None if it can. The first time that a topic with a bound is met, its
        room is not known yet: `wanted` counts its items."""
        key = (self._ask.key[0], topic)
        policy = self._state.policies.of(key)
        if policy.closed:
            return closed(*key)
        if policy.max_stored is None or self._admit is None or self._ask.dry_run:
            return None
        room = self._rooms.get(topic)
        if room is None:
            wanted[topic] = wanted.get(topic, 0) + 1
        elif room.used == room.items:
            return room.error or Overloaded(f"the topic {topic} has more dead letters now: repeat", _RETRY_MS)
        else:
            room.used += 1
        return None

    def _away(self, shard: Shard, row: DeadRow, topic: str) -> FoqsError | None:
        """Return why an item with an order key cannot go to another topic than before; None if it can."""
        if row.order_key is None or row.order_at is None:
            return None
        digest = order_digest(self._ask.key[0], topic, row.order_key.decode())
        if digest == Order.unpack(row.order_at, row.failure.id).digest:
            return None  # the key stays here while it has dead letters
        if order_homes.takes(shard, digest, alone=not self._state.shards_elsewhere):
            return None
        return Unavailable(f"the order_key of the item has another shard in topic {topic}", _RETRY_MS)

    def _choose(self, shard: Shard, page: DeadPage) -> tuple[list[_Chosen], dict[str, int]]:
        """Return the items to move, and how many of them go to each topic whose room is not known yet."""
        ask = self._ask
        outcome, self._unasked = PageOutcome(next=page.next), None
        self._outcome = outcome
        taken = dict(ask.taken)
        chosen: list[_Chosen] = []
        wanted: dict[str, int] = {}
        for room in self._rooms.values():
            room.used = 0
        for row in page.rows:
            failure = row.failure
            group = (failure.fingerprint, failure.cause)
            if ask.per_group and taken.get(group, 0) >= ask.per_group:
                continue
            lane = shard.memory.lane_numbers.get(failure.lane)
            if lane is None or not ask.wanted.matches_headers(row.headers):
                continue
            item = shard.memory.known.get(failure.id) or _item_of(row, lane)
            if item.phase is Phase.LEASED:
                outcome.leased += 1
            elif _holds(row) and not ask.dry_run and not self._has_key(shard, item.id):
                outcome.duplicates += item.id in self._others
            elif item.lane is lane and _stays(shard.owner, item, self._state.now_ms):
                topic = ask.to_topic or failure.topic.decode()
                error = self._refusal(topic, wanted) or self._away(shard, row, topic)
                if error is not None:
                    outcome.refuse(topic, error)
                    continue
                taken[group] = taken.get(group, 0) + 1
                chosen.append(_Chosen(item, row, group, topic))
                if len(chosen) == ask.most:
                    outcome.next = (failure.fingerprint, failure.id)
                    break
        return chosen, wanted

    def _has_key(self, shard: Shard, item_id: int) -> bool:
        """Return True if the item has its key again, or if that was not asked for yet."""
        if item_id in self._asked - self._have - self._others or item_id in shard.queue.held.freeing:
            self._unasked = Unavailable("the shards of some keys do not answer", _RETRY_MS)
            return False
        return item_id not in self._others

    def _take_keys(self, shard: Shard, topics: dict[int, str]) -> None:
        """Take the keys of items, by the topics that they go to, and read the page again, as its rows are old then."""

        def taken(have: set[int], others: set[int]) -> None:
            self._asked.update(topics)
            self._have |= have
            self._others |= others
            if not self.done:  # else the claims free the keys that were taken
                self._read_again()

        Taking(self._state, shard, topics, taken)

    def _read_again(self) -> None:
        shard = self._state.shards.get(self._ask.shard)
        lane = None if shard is None else dead_lane(shard.memory, self._ask.key)
        if shard is None or lane is None:
            self._end(self._outcome if shard is not None else NotServed("the shard is not served here now"))
        else:
            self._queue(shard, lane)

    def _redrive(self, shard: Shard, chosen: list[_Chosen]) -> None:
        state, now_ms = self._state, self._state.now_ms
        call = self._moves = ItemsCall(len(chosen), partial(self._moved, chosen))
        for at, (item, row, _, topic) in enumerate(chosen):
            call.items[at] = item
            change = Change(item, To.MOVED, Cause.REDRIVE, (call, at), attempt=0, lease=item.lease)
            change.move = self._move(row, topic, now_ms)
            if row.order_key is not None and row.order_at is not None:
                digest = order_digest(self._ask.key[0], topic, row.order_key.decode())
                change.order = Order.unpack(row.order_at, item.id)._replace(digest=digest, standing=Standing.IN_ORDER)
            shard.put(change, now_ms)
        state.touch(shard)

    def _move(self, row: DeadRow, topic: str, now_ms: int) -> Move:
        ns, failure = self._ask.key[0], row.failure
        origin, tenant, throttles = failure.topic.decode(), failure.fairness.decode(), failure.throttles
        ttl_ms = self._state.policies.of((ns, origin)).ttl_ms
        expires_at_ms = 0 if ttl_ms is None else now_ms + ttl_ms
        rules, until = unpack_rules(failure.rules), unpack_until(failure.rules)
        members = unpack_members(failure.rules)
        lane = lane_key((ns, topic), tenant, unpack_throttles(throttles), rules, until, members)
        return Move(lane, now_ms, expires_at_ms, None)

    def _moved(self, chosen: list[_Chosen], outcomes: list[FoqsError | None]) -> None:
        outcome, refused = self._outcome, self._unasked
        done, doubtful = list[_Chosen](), list[_Chosen]()
        for one, error in zip(chosen, outcomes, strict=True):
            if error is None:
                self._have.discard(one.item.id)
                done.append(one)
            elif isinstance(error, OutcomeUnknown):
                doubtful.append(one)
            else:
                refused = refused or error
                if one.topic in self._rooms:
                    self._rooms[one.topic].used -= 1
        self._count(done, doubtful)
        if refused is not None:
            if not done and not doubtful:
                self._end(refused)
                return
            # The next page finds the items again that stayed.
            outcome.next, outcome.leased, outcome.duplicates, outcome.refused = self._ask.after or START, 0, 0, {}
        self._end(outcome)

    def _count(self, done: list[_Chosen], doubtful: list[_Chosen]) -> None:
        outcome, taken = self._outcome, self._outcome.taken
        for one in (*done, *doubtful):
            taken[one.group] = taken.get(one.group, 0) + 1
        outcome.redriven, outcome.unknown = len(done), len(doubtful)
        outcome.items = {one.item.id: one.topic for one in done[:MOST_NAMED]}


def _holds(row: DeadRow) -> bool:
    """Return True if the item held its key until it was dead."""
    return unpack_until(row.failure.rules) == Until.DONE


def _stays(owner: ShardOwner, item: Item, now_ms: int) -> bool:
    """Return True if nothing else takes the item out of its topic: a delete, its TTL, another redrive."""
    change = change_of(item)
    return (change is None or change.cause is Cause.DUE) and not 0 < item.expires_at_ms <= now_ms - owner.late_ms


def _item_of(row: DeadRow, lane: Lane[Item]) -> Item:
    """Return the item of a row that no host has in memory."""
    if row.ready is not None:
        item = from_ready(row.ready, lane, None)
    else:
        timer, phase = row.timer, Phase.IDLE
        assert timer is not None, "an item has its row"
        if timer.lease:
            phase = Phase.LEASED
        item = Item(
            timer.id, lane, row.priority, row.deliver_after_ms, timer.attempt, timer.lease, timer.bytes, None,
            Place.TIMER, phase,
        )  # fmt: skip
    item.expires_at_ms = row.expires_at_ms
    return item
