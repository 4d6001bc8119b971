"""One page of a redrive: the next dead letters of one shard return to the topics that they came from, all of them in
the shard's next transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from foqs.buffers.shard_batch import DeadRead
from foqs.dead_rows import DeadPage, DeadRow, FailurePosition
from foqs.engine.dead_letters import ROWS, GroupKey, dead_lane, queue, withdraw
from foqs.engine.pending import ItemsCall, change_of
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, NotServed, OutcomeUnknown, Overloaded, Unavailable
from foqs.fairness.keys import TopicKey, lane_key, unpack_throttles
from foqs.item import Cause, Change, Item, Move, from_ready
from foqs.item_states import Phase, Place, To
from foqs.policies.filter import FailureFilter
from foqs.prefetch.lane import Lane

PAGE_ITEMS = 500
START: FailurePosition = (-(1 << 63), 0)
"""Before all dead letters."""
_RETRY_MS = 100


@dataclass(frozen=True, slots=True)
class PageAsk:
    """`key` is the dead-letter topic. At most `most` items are redriven, and of each group no more than `per_group` (0:
    no bound) together with those in `taken`. `to_topic` None: each item goes where it came from."""

    key: TopicKey
    shard: int
    after: FailurePosition | None
    wanted: FailureFilter
    most: int
    per_group: int = 0
    taken: Mapping[GroupKey, int] = field(default_factory=dict)
    to_topic: str | None = None
    dry_run: bool = False


@dataclass(slots=True)
class PageOutcome:
    """`redriven` items, and `unknown` ones that may have been; `leased` ones stay. `taken` counts both by group.
    An item that a delete or a late ack removes at the same time counts as redriven before.
    `next` is where the next page begins; None: the shard has no more."""

    redriven: int = 0
    unknown: int = 0
    leased: int = 0
    next: FailurePosition | None = None
    taken: dict[GroupKey, int] = field(default_factory=dict)


class RedrivePage:
    """Calls `reply` with the outcome, or with an error: nothing was changed; once."""

    def __init__(self, state: State, ask: PageAsk, reply: Callable[[PageOutcome | FoqsError], None]) -> None:
        self._state = state
        self._ask = ask
        self._reply = reply
        self._moves: ItemsCall | None = None
        self._outcome = PageOutcome()
        self.done = False

    def begin(self, now_ms: int, deadline_ms: int) -> None:
        state, ask = self._state, self._ask
        shard = state.shards.get(ask.shard)
        if shard is None or not state.settles(shard):
            self._end(NotServed("the shard is not served here now"))
        elif shard.full:
            self._end(Overloaded("too much waits for the shard", _RETRY_MS))
        elif shard.in_takeover_grace(now_ms):
            # The previous owner may still have items in memory, and could lease them after they returned.
            self._end(Unavailable("the shard was just taken from another host", shard.config.confirm_ms))
        elif (lane := dead_lane(shard, ask.key)) is None:
            self._end(self._outcome)
        else:
            state.deadlines.push(deadline_ms, self)
            state.alarm(deadline_ms)
            one_by_one = ask.per_group or ask.wanted.headers
            limit = PAGE_ITEMS if one_by_one else ask.most
            queue(state, shard, DeadRead(lane, ask.after, self._wanted(), limit, ROWS, self._read))

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        if self._moves is not None:
            self._moves.timed_out(shards)
            return
        withdraw(shards.values(), self._read)
        self._end(Unavailable("the shard did not answer in time; nothing was changed"))

    def _end(self, outcome: PageOutcome | FoqsError) -> None:
        self.done = True
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
        chosen = self._choose(shard, page)
        if self._ask.dry_run or not chosen:
            self._count([group for _, _, group in chosen])
            self._end(self._outcome)
        else:
            self._redrive(shard, chosen)

    def _choose(self, shard: Shard, page: DeadPage) -> list[tuple[Item, DeadRow, GroupKey]]:
        ask, outcome = self._ask, self._outcome
        outcome.next = page.next
        taken = dict(ask.taken)
        chosen: list[tuple[Item, DeadRow, GroupKey]] = []
        for row in page.rows:
            failure = row.failure
            group = (failure.fingerprint, failure.cause)
            if ask.per_group and taken.get(group, 0) >= ask.per_group:
                continue
            lane = shard.lane_numbers.get(failure.lane)
            if lane is None or not ask.wanted.matches_headers(row.headers):
                continue
            item = shard.known.get(failure.id) or _item_of(row, lane)
            if item.phase is Phase.LEASED:
                outcome.leased += 1
            elif item.lane is lane and _stays(shard, item, self._state.now_ms):
                taken[group] = taken.get(group, 0) + 1
                chosen.append((item, row, group))
                if len(chosen) == ask.most:
                    outcome.next = (failure.fingerprint, failure.id)
                    break
        return chosen

    def _redrive(self, shard: Shard, chosen: list[tuple[Item, DeadRow, GroupKey]]) -> None:
        state, now_ms = self._state, self._state.now_ms
        call = self._moves = ItemsCall(len(chosen), partial(self._moved, [group for _, _, group in chosen]))
        for at, (item, row, _) in enumerate(chosen):
            call.items[at] = item
            change = Change(item, To.MOVED, Cause.REDRIVE, (call, at), attempt=0, lease=item.lease)
            change.move = self._move(row, now_ms)
            shard.put(change, now_ms)
        state.touch(shard)

    def _move(self, row: DeadRow, now_ms: int) -> Move:
        ns, failure = self._ask.key[0], row.failure
        origin, tenant, throttles = failure.topic.decode(), failure.fairness.decode(), failure.throttles
        ttl_ms = self._state.policies.of((ns, origin)).ttl_ms
        expires_at_ms = 0 if ttl_ms is None else now_ms + ttl_ms
        lane = lane_key((ns, self._ask.to_topic or origin), tenant, unpack_throttles(throttles))
        return Move(lane, now_ms, expires_at_ms, None)

    def _moved(self, groups: list[GroupKey], outcomes: list[FoqsError | None]) -> None:
        outcome = self._outcome
        done = [group for group, error in zip(groups, outcomes, strict=True) if error is None]
        doubtful = [g for g, error in zip(groups, outcomes, strict=True) if isinstance(error, OutcomeUnknown)]
        self._count(done + doubtful)
        outcome.redriven, outcome.unknown = len(done), len(doubtful)
        refused = next((error for error in outcomes if error is not None and error.outcome_known), None)
        if refused is not None:
            if not done and not doubtful:
                self._end(refused)
                return
            outcome.next, outcome.leased = self._ask.after or START, 0  # the next page finds the refused ones again
        self._end(outcome)

    def _count(self, groups: list[GroupKey]) -> None:
        taken = self._outcome.taken
        for group in groups:
            taken[group] = taken.get(group, 0) + 1
        self._outcome.redriven = len(groups)


def _stays(shard: Shard, item: Item, now_ms: int) -> bool:
    """Whether nothing else takes the item out of its topic: a delete, its TTL, another redrive."""
    change = change_of(item)
    return (change is None or change.cause is Cause.DUE) and not 0 < item.expires_at_ms <= now_ms - shard.late_ms


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
