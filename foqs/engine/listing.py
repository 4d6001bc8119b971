"""Items of a topic page by page, for operators: lists, and the release of leases.

A shard may have 100,000 lanes of a topic. A walk looks at some of them in each slice of the event loop.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from foqs.buffers.reads import ListedRows, ListRead, SearchRead, position_in_order, spot_in_order
from foqs.engine.batch_reads import when_due
from foqs.engine.dequeue import ITEM_OVERHEAD_BYTES
from foqs.engine.item_ops import given_of, stands
from foqs.engine.kept_items import failure_of
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.state import State
from foqs.errors import FoqsError, Invalid, NotServed, Overloaded, Unavailable
from foqs.fairness.keys import ORDERED, LaneKey, TopicKey, fairness_of, lane_key, rules_of, tenancy_bytes, tenancy_of
from foqs.idl import idl
from foqs.ids import order_digest
from foqs.item import Item, Settles, body_bytes, from_found
from foqs.item_filter import ItemFilter
from foqs.order import InOrder, Order
from foqs.prefetch.lane import Lane
from foqs.rows import Body, EndedRow, FailureRow, Found, LastFailure, ProgressRow, ReadyRow, TimerRow
from foqs.rules import MOST_RULES_BYTES

GROUP = 1_000
"""Lanes that a read has: no more than `ShardStore.page_of_lanes` takes."""
_TURN = 5_000
"""Lanes that a walk looks at in one slice of the event loop."""


class Spot(NamedTuple):
    """Where a look-up is among the rows of a topic on a shard: first come the rows of the plain lane (`group` None),
    then the rows of other lanes, by groups in the order of their numbers.

    A group has the lanes with numbers above the first and up to the second of `group`; in (0, 0) is none. `after` is
    the last row: (priority, deliver_after_ms, id) of a ready one, with its lane's number before them in a group;
    (due_ms, id) of another one, (until_ms, id) of an ended one, or the position in its order of one that is behind."""

    after: tuple[int, ...] | None = None
    group: tuple[int, int] | None = None

    def behind(self) -> Spot:
        """Return where the rows behind the lane or the group begin."""
        end = 0 if self.group is None else self.group[1]
        return Spot(None, (end, end))

    def after_in(self, numbers: list[int], state: str) -> tuple[int, ...] | None:
        """Return behind which row of the lanes with `numbers` to read."""
        if self.group is None or state != "ready" or self.after is None:
            return self.after
        return self.after[1:] if self.after[0] == numbers[0] else None


def lanes_at(
    memory: ShardMemory, key: TopicKey, state: str, spot: Spot, tenant: str | None = None
) -> Generator[None, None, tuple[list[int], Spot]]:  # fmt: skip
    """Find the next lanes with items of a topic, or of one `tenant` of it, on a shard: return their numbers, none if
    there are no more, and the spot with the group that they make. Yields between the slices of a long walk."""
    if spot.group is None:
        lane = memory.lanes.get(lane_key(key))
        if lane is not None and lane.number is not None and _may_have(memory, lane, state, tenant):
            return [lane.number], spot
        spot = spot.behind()
    assert spot.group is not None, "the plain lane has no group"
    above, end = spot.group
    if above < end:
        first = spot.after[0] - 1 if state == "ready" and spot.after is not None else above
        numbers = yield from _group(memory, key, state, first, end, tenant)
        if numbers:
            last = numbers[-1] if len(numbers) == GROUP else end
            return numbers, Spot(spot.after, (above, last))
    numbers = yield from _group(memory, key, state, end, None, tenant)
    return numbers, Spot(None, (end, numbers[-1] if numbers else end))


def _may_have(memory: ShardMemory, lane: Lane[Item], state: str, tenant: str | None) -> bool:
    """Return True if the lane may have items in that state, and is of the tenant, if one is given."""
    if tenant is not None and fairness_of(lane.key) != tenant:
        return False
    if state == "leased":
        return lane.leased > 0
    if state == "behind":
        return lane.behind > 0
    if state in _ENDED:
        return memory.queue.kept.of_lane(lane.number)[state == "failed"] > 0
    return lane.total > (0 if state == "ready" else lane.ready)


def _group(
    memory: ShardMemory, key: TopicKey, state: str, above: int, end: int | None, tenant: str | None
) -> Generator[None, None, list[int]]:
    found: list[int] = []
    while (tenants := memory.tenants.get(key)) is not None:
        part = tenants.behind(above, _TURN)
        for number in part:
            if end is not None and number > end:
                return found
            lane = memory.lane_numbers.get(number)
            if lane is not None and _may_have(memory, lane, state, tenant):
                found.append(number)
                if len(found) == GROUP:
                    return found
        if len(part) < _TURN:
            return found
        above = part[-1]
        yield
    return found


_ENDED = ("completed", "failed")
_TURNS = ("ready", "behind")
"""States of items that wait in their orders, or are the next ones there."""
_STATES = ("ready", "delayed", "leased", *_ENDED, "behind")
_STATE_NUMBER = {name: getattr(idl.ItemState, name.upper()) for name in _STATES}


_LENGTHS = {"ready": 3, "behind": 4}
"""Of the positions in lists; 2 in other ones."""
OVERLOADED_RETRY_MS = 100
ANSWERS_SHARE = 0.8
"""Beyond this share of the byte budget, requests with long answers are refused: acks, which free memory, need room."""
_READ_BYTES = 4 << 20
MOST_LOOKED_AT = 10_000
"""The most items that a request with a filter looks at."""
SEARCH_MS = 1_000
"""The time after which a request with a filter is answered with the items found so far."""
_SEARCH_ROWS = 200
"""Items that a search looks at in one batch. Commits wait behind these reads, which take about a millisecond."""
_RELEASE_ROWS = 200
_RELEASE_BYTES = 1 << 20
_FAILURE_OVERHEAD_BYTES = 128


def cursor_of(*parts: Any) -> str:
    """Return the text of a position in a list."""
    return base64.urlsafe_b64encode(json.dumps(parts, ensure_ascii=False).encode()).decode()


def parts_of(cursor: str | None, *forms: tuple[type, ...]) -> list[Any] | None:
    """Return the parts of a cursor, whose types are one of `forms`; None without a cursor. Raises Invalid."""
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, RecursionError):
        raise Invalid("the cursor is not one of this server's") from None
    if not isinstance(parts, list) or tuple(map(type, parts)) not in forms:
        raise Invalid("the cursor is not one of this server's")
    return parts


def _wanted(state: int) -> tuple[str, ...]:
    wanted = _STATES if state == 0 else tuple(s for s in _STATES if _STATE_NUMBER[s] == state)
    if not wanted:
        raise Invalid(f"state is none of {', '.join(_STATES).upper()}")
    return wanted


def first_cursor(shard: int, state: int) -> str:
    """Return the cursor of the first page of a shard. Raises Invalid."""
    return cursor_of(shard, _wanted(state)[0], [])


def cursor_shard(cursor: str) -> int:
    """Return the shard with which a cursor of items continues. Raises Invalid."""
    return _place(cursor)[0]


def _place(cursor: str) -> tuple[int, str, Spot]:
    """Return the shard, the state and the spot of a cursor of items. Raises Invalid.

    A cursor in a plain lane has no group."""
    parts = parts_of(cursor, (int, str, list), (int, str, list, list))
    assert parts is not None
    shard, state, after, *rest = parts
    group = rest[0] if rest else None
    length = _LENGTHS.get(state, 2) + (state == "ready" and group is not None)
    numbers = [*after, *(group or ())]
    right = all(type(one) is int and abs(one) < 1 << 63 for one in numbers) and len(after) in (0, length)
    if right and after and state == "behind":
        try:
            spot_in_order(tuple(after))
        except ValueError:
            right = False
    if not right or (group is not None and (len(group) != 2 or not 0 <= group[0] <= group[1])):
        raise Invalid("the cursor is not one of this server's")
    return shard, state, Spot(tuple(after) or None, None if group is None else (group[0], group[1]))


class Listed(NamedTuple):
    """One item of a page; `state` is a member of ItemState."""

    lane: LaneKey
    body: Body
    attempt: int
    state: int
    lease_expires_at_ms: int
    failure: FailureRow | None
    ended_at_ms: int = 0
    progress: ProgressRow | None = None
    last_failure: LastFailure | None = None


@dataclass(slots=True)
class Search:
    """How far a ListItems with a filter goes: it looks at `most_rows` items, or until `until_ms`."""

    wanted: ItemFilter
    most_rows: int
    until_ms: int
    looked_at: int = 0

    @property
    def left_rows(self) -> int:
        return max(0, self.most_rows - self.looked_at)

    def is_over(self, now_ms: int) -> bool:
        return not self.left_rows or now_ms >= self.until_ms


class Listing:
    """ListItems: one page, gathered shard by shard and state by state.

    Calls `reply` with the items and the cursor of the next page, or `fail`, once. A page ends with its `search`, but
    only after that has looked at an item, so that each page advances.
    """

    def __init__(
        self,
        host: State,
        key: TopicKey,
        state: int,
        limit: int,
        room_bytes: int,
        cursor: str | None,
        reply: Callable[[list[Listed], str | None], None],
        fail: Callable[[FoqsError], object],
        only: int | None = None,
        tenant: str | None = None,
        search: Search | None = None,
    ) -> None:
        """`only`: of this shard. `tenant`: with this fairness key. Raises Invalid, and NotServed where that shard is
        not here."""
        self._host = host
        self._key = key
        self._tenant = tenant
        self._search = search
        self._states = _wanted(state)
        self._left = limit
        self._room_bytes = room_bytes
        self._facts_bytes = min(room_bytes, _READ_BYTES)
        self._reply = reply
        self._fail = fail
        self._item_overhead_bytes = ITEM_OVERHEAD_BYTES + sum(len(name.encode()) for name in key)
        self.done = False
        self._items: list[Listed] = []
        self._held_bytes = 0
        self._asked_bytes = 0
        self._shards = sorted(shard.number for shard in host.serving if only in (None, shard.number))
        if only is not None and not self._shards:
            raise NotServed("the shard is not served here now")
        self._at: tuple[int, str, Spot] | None = None
        if cursor is not None:
            self._at = _place(cursor)
            if self._at[1] not in self._states:
                raise Invalid("the cursor is not one of this server's")
        elif self._shards:
            self._at = (self._shards[0], self._states[0], Spot())

    def go_on(self) -> None:
        """Ask the next shard, state and lanes that may have items, or reply."""
        self._host.slices.begin(self._ask())

    def _ask(self) -> Iterator[None]:
        search = self._search
        while self._at is not None and self._left and self._room_bytes > 0:
            if search is not None and search.looked_at and search.is_over(self._host.now_ms):
                break
            number, state, spot = self._at
            shard, lanes = self._host.shards.get(number), list[int]()
            if shard is not None:
                lanes, spot = yield from lanes_at(shard.memory, self._key, state, spot, self._tenant)
                if self.done:
                    return
            if shard is not None and lanes:
                self._at = (number, state, spot)
                room_bytes = min(self._room_bytes, _READ_BYTES)
                reserved_bytes = room_bytes if search is None else self._facts_bytes
                if not self._host.budget.fits(reserved_bytes, ANSWERS_SHARE):
                    if self._items or (search is not None and search.looked_at):
                        break
                    self._end()
                    self._fail(Overloaded("the host's buffers are full", OVERLOADED_RETRY_MS))
                    return
                self._hold(reserved_bytes)
                after = spot.after_in(lanes, state)
                shard.queue.lists.append(self._next_read(lanes, state, after, room_bytes))
                self._host.touch(shard)
                return
            self._next_place()
        self._answer()

    def _next_read(self, lanes: list[int], state: str, after: tuple[int, ...] | None, room_bytes: int) -> ListRead:
        if self._search is None:
            return ListRead(lanes, state, after, self._left, room_bytes, self._listed)
        wanted, most_rows = self._search.wanted, min(_SEARCH_ROWS, self._search.left_rows)
        return SearchRead(
            lanes, state, after, self._left, room_bytes, self._listed, wanted=wanted,
            most_rows=most_rows, facts_bytes=self._facts_bytes,
            digest=None if wanted.order_key is None else order_digest(*self._key, wanted.order_key),
        )  # fmt: skip

    def _next_place(self) -> None:
        assert self._at is not None
        number, state, _ = self._at
        states = self._states
        if state in states and states.index(state) + 1 < len(states):
            self._at = (number, states[states.index(state) + 1], Spot())
            return
        later = [other for other in self._shards if other > number]
        self._at = (later[0], states[0], Spot()) if later else None

    def _listed(self, listed: ListedRows, error: FoqsError | None) -> None:
        if self.done:
            return
        if error is not None:
            self._end()
            self._fail(error)
            return
        assert self._at is not None
        number, state, spot = self._at
        shard, after, read_bytes = self._host.shards.get(number), spot.after, 0
        if self._search is not None:
            self._search.looked_at += listed.looked_at
        for row in listed.rows:
            body = listed.bodies.get(row.id)
            lane = shard.memory.lane_numbers.get(row.lane) if shard is not None else None
            key = lane_key(self._key) if lane is None else lane.key
            size = 0
            if body is not None:
                rules_bytes = 0 if rules_of(key) is None else MOST_RULES_BYTES
                names_bytes = tenancy_bytes(*tenancy_of(key)) + rules_bytes
                size = body_bytes(body) + self._item_overhead_bytes + names_bytes
            if self._items and size > self._room_bytes:
                self._room_bytes = 0
                break
            after = _position(row, spot)
            if body is None or (isinstance(row, EndedRow) and row.until_ms <= self._host.now_ms):
                continue
            if shard is not None and body.order_at is not None and state in _TURNS:
                turn, _ = shard.memory.orders.before(Order.unpack(body.order_at, row.id))
                if (turn == row.id) is not (state == "ready") and lane is not None and lane.until == ORDERED:
                    continue
            until_ms = row.due_ms if isinstance(row, TimerRow) and state == "leased" else 0
            failure = listed.failures.get(row.id)
            if lane is not None and isinstance(row, EndedRow) and row.id in listed.stored:
                failure = failure_of(row, listed.stored[row.id], lane)
            given = listed.progress.get(row.id)
            last = listed.last_failures.get(row.id)
            size += _failure_bytes(failure) + (0 if given is None else len(given.log) + len(given.text or b""))
            size += 0 if last is None else _FAILURE_OVERHEAD_BYTES + len(last.worker) + len(last.reason)
            ended_at_ms = row.ended_at_ms if isinstance(row, EndedRow) else 0
            self._items.append(
                Listed(key, body, row.attempt, _STATE_NUMBER[state], until_ms, failure, ended_at_ms, given, last)
            )
            self._room_bytes -= size
            self._left -= 1
            read_bytes += size
        else:
            after = spot.after if listed.last is None else _position(listed.last, spot)
        self._hold(read_bytes - self._asked_bytes)
        self._at = (number, state, spot.behind() if listed.last is None else spot._replace(after=after))
        self.go_on()

    def _hold(self, more_bytes: int) -> None:
        """Change the reserved bytes. They are reserved before a shard is read, and corrected to the bytes read."""
        self._asked_bytes = more_bytes
        self._held_bytes += more_bytes
        if more_bytes >= 0:
            self._host.budget.take(more_bytes)
        else:
            self._host.budget.give(-more_bytes)

    def _end(self) -> None:
        self.done = True
        self._host.budget.give(self._held_bytes)

    def _answer(self) -> None:
        self._end()
        cursor = None
        if self._at is not None:
            number, state, (after, group) = self._at
            cursor = cursor_of(number, state, list(after or ()), *([] if group is None else [list(group)]))
        items, self._items = self._items, []
        self._reply(items, cursor)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self._end()
        for shard in shards.values():
            shard.queue.drop_reads(self._listed)
        self._fail(Unavailable("a shard did not answer in time"))


def last_failure_struct(last: LastFailure) -> Any:
    return idl.LastFailure(
        last.attempt, last.cause, last.reason.decode(), last.fingerprint, last.at_ms, last.worker.decode() or None
    )


def _failure_bytes(failure: FailureRow | None) -> int:
    if failure is None:
        return 0
    names = len(failure.topic) + len(failure.fairness) + len(failure.throttles)
    names += MOST_RULES_BYTES if failure.rules else 0
    return _FAILURE_OVERHEAD_BYTES + names + len(failure.reason)


def _position(row: ReadyRow | TimerRow | EndedRow | InOrder, spot: Spot) -> tuple[int, ...]:
    """Return `Spot.after` for the row."""
    if isinstance(row, InOrder):
        return position_in_order(row)
    if not isinstance(row, ReadyRow):
        return row[:2]
    after = (row.priority, row.deliver_after_ms, row.id)
    return after if spot.group is None else (row.lane, *after)


class Releasing(Settles):
    """End the leases of a topic that `worker` (None: any) was given at `given_until_ms` or before, as if by time: page
    by page, shard after shard. The items' last failures have the `reason`.

    `reply` gets the number of ended leases, and the error that stopped the walk, if any, once."""

    __slots__ = ("_at", "_error", "_given_until_ms", "_key", "_open", "_reason", "_released", "_reply", "_shards",
                 "_state", "_worker", "done")  # fmt: skip

    def __init__(
        self, state: State, key: TopicKey, worker: str | None, given_until_ms: int,
        reply: Callable[[int, FoqsError | None], None], reason: str = "",
    ) -> None:  # fmt: skip
        self._state = state
        self._key = key
        self._worker = worker
        self._reason = reason
        self._given_until_ms = given_until_ms
        self._reply = reply
        self._shards = list(state.serving)
        self._at = Spot()
        self._open = 0  # ends that are not committed yet
        self._released = 0
        self._error: FoqsError | None = None
        self.done = False

    def go_on(self) -> None:
        """Read the next page, or reply when every end is committed."""
        self._state.slices.begin(self._ask())

    def _ask(self) -> Iterator[None]:
        while self._shards and self._error is None:
            shard = self._shards[0]
            lanes, self._at = yield from lanes_at(shard.memory, self._key, "leased", self._at)
            if self.done:
                return
            if lanes:
                after = self._at.after_in(lanes, "leased")
                shard.queue.lists.append(ListRead(lanes, "leased", after, _RELEASE_ROWS, _RELEASE_BYTES, self._read))
                self._state.touch(shard)
                return
            self._next_shard()
        if not self._open and not self.done:
            self.done = True
            self._reply(self._released, self._error)

    def settled(self, at: int, error: FoqsError | None) -> None:
        self._released += error is None
        self._ended(error)

    def _ended(self, error: FoqsError | None) -> None:
        self._open -= 1
        if self.done:
            return
        self._error = self._error or error
        if not self._shards or self._error is not None:
            self.go_on()

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.done = True
        for shard in shards.values():
            shard.queue.drop_reads(self._read)
        self._reply(self._released, Unavailable("a shard did not answer in time"))

    def _next_shard(self) -> None:
        del self._shards[0]
        self._at = Spot()

    def _read(self, listed: ListedRows, error: FoqsError | None) -> None:
        if self.done:
            return
        if error is not None:
            self._error = error
            self.go_on()
            return
        shard, now_ms = self._shards[0], self._state.now_ms
        for row in listed.rows:
            assert isinstance(row, TimerRow), "leased items have timer rows"
            self._at = self._at._replace(after=(row.due_ms, row.id))
            item = shard.memory.known.get(row.id)
            lane = shard.memory.lane_numbers.get(row.lane)
            if item is None and row.id in listed.bodies and lane is not None:
                item = from_found(Found(listed.bodies[row.id], None, row), lane)
            if item is None or not stands(item, row.lease):
                continue
            given = given_of(shard.owner, item)
            if self._worker not in (None, given.worker) or given.at_ms > self._given_until_ms:
                continue
            self._open += 1
            if shard.policies.of(self._key).max_total_ms:
                shard.queue.looks.add(item.id, partial(self._looked, shard, row.lease))
            else:
                self._release(shard, item, now_ms)
        if not listed.rows:
            self._at = self._at.behind()
        self._state.slices.soon(self.go_on)

    def _release(self, shard: Shard, item: Item, since_ms: int) -> None:
        now_ms = self._state.now_ms
        change = when_due(shard, item, since_ms, now_ms - shard.owner.late_ms, reason=self._reason)
        change.by_operator = True
        change.waits.append((self, 0))
        shard.put(change, now_ms)
        self._state.touch(shard)

    def _looked(
        self, shard: Shard, lease: int, item: Item | None, found: Found | None, error: FoqsError | None
    ) -> None:
        """End a lease for which the policy asks since when the item could be delivered. It may be over by now."""
        if item is not None and found is not None and stands(item, lease):
            self._release(shard, item, found.since_ms)
        else:
            self._ended(error)
