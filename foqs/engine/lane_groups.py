"""Walks over the lanes of one topic, of which a shard may have 100,000: some in each turn of the event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey, lane_key
from foqs.item import Item
from foqs.prefetch.lane import Lane

GROUP = 1_000
"""Lanes that one read has: no more than `ShardStore.page_of_lanes` takes."""
_TURN = 5_000
"""Lanes that a walk looks at in one turn."""


class Spot(NamedTuple):
    """Where a look-up is among the rows of a topic on a shard: first come those of the plain lane (`group` None), then
    those of other lanes, by groups in the order of their numbers.

    A group has the lanes with numbers above the first and up to the second of `group`; in (0, 0) is none. `after` is
    the last row: (priority, deliver_after_ms, id) of a ready one, with its lane's number before them in a group;
    (due_ms, id) of another one."""

    after: tuple[int, ...] | None = None
    group: tuple[int, int] | None = None

    def behind(self) -> Spot:
        """Return where the rows begin that follow those of the lane or the group."""
        end = 0 if self.group is None else self.group[1]
        return Spot(None, (end, end))

    def after_in(self, numbers: list[int], state: str) -> tuple[int, ...] | None:
        """Return behind which row of the lanes with `numbers` to read."""
        if self.group is None or state != "ready" or self.after is None:
            return self.after
        return self.after[1:] if self.after[0] == numbers[0] else None


def lanes_at(
    shard: Shard, key: TopicKey, state: str, spot: Spot
) -> Generator[None, None, tuple[list[int], Spot]]:  # fmt: skip
    """Find the next lanes with items of a topic on a shard: return their numbers, none if there are no more, and the
    spot with the group that they make. Yields between the turns of a long walk."""
    if spot.group is None:
        lane = shard.lanes.get(lane_key(key))
        if lane is not None and lane.number is not None and _may_have(lane, state):
            return [lane.number], spot
        spot = spot.behind()
    assert spot.group is not None, "the plain lane has no group"
    above, end = spot.group
    if above < end:
        first = spot.after[0] - 1 if state == "ready" and spot.after is not None else above
        numbers = yield from _group(shard, key, state, first, end)
        if numbers:
            last = numbers[-1] if len(numbers) == GROUP else end
            return numbers, Spot(spot.after, (above, last))
    numbers = yield from _group(shard, key, state, end, None)
    return numbers, Spot(None, (end, numbers[-1] if numbers else end))


def _may_have(lane: Lane[Item], state: str) -> bool:
    """Whether the lane may have items in that state. (The read of timers looks at those of all lanes.)"""
    if state == "leased":
        return lane.leased > 0
    return lane.total > (0 if state == "ready" else lane.ready)


def _group(shard: Shard, key: TopicKey, state: str, above: int, end: int | None) -> Generator[None, None, list[int]]:
    found: list[int] = []
    while (tenants := shard.tenants.get(key)) is not None:
        part = tenants.behind(above, _TURN)
        for number in part:
            if end is not None and number > end:
                return found
            lane = shard.lane_numbers.get(number)
            if lane is not None and _may_have(lane, state):
                found.append(number)
                if len(found) == GROUP:
                    return found
        if len(part) < _TURN:
            return found
        above = part[-1]
        yield
    return found


def lanes_of(state: State, key: TopicKey) -> Iterator[list[Lane[Item]]]:
    """Yield the lanes of a topic on the open shards in parts, each for one turn of the event loop. A topic of plain
    lanes has one part."""
    if not any(key in shard.tenants for shard in state.serving):
        topic = state.topics.get(key)
        yield topic.lanes() if topic is not None else []
        return
    for shard in list(state.serving):
        plain, above = shard.lanes.get(lane_key(key)), 0
        if plain is not None:
            yield [plain]
        while (tenants := shard.tenants.get(key)) is not None and (part := tenants.behind(above, _TURN)):
            above, numbers = part[-1], shard.lane_numbers
            yield [numbers[number] for number in part if number in numbers]
