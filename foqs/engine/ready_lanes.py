"""The lanes that a dequeue merges, the reads where they lack items, and the most urgent item of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from foqs.engine import item_ops
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import Flow
from foqs.fairness.topics import Topic
from foqs.item import Cause, Change, Item, To
from foqs.policies.layers import Bounds
from foqs.prefetch.lane import LOWEST, Lane, Window, known_until
from foqs.rows import Key
from foqs.shardmgr.lifecycle import BreakerState, ShardState

# Members of enums, bound once for the hot path.
_SERVING, _CLOSED = ShardState.SERVING, BreakerState.CLOSED
_BODIES_AHEAD = 200

Able = dict[Shard, bool | None]
"""By shard, True if it may lease items during one dequeue, the same for all topics; None if it is not healthy."""
Source = tuple[Shard, Lane[Item], Window[Item]]
AtHand = tuple[Sequence[Lane[Item]], Sequence[Window[Item]], Sequence[Source]]
"""Lanes, their windows, and the sources among them with more rows."""
Sources = tuple[list[Lane[Item]], list[Window[Item]], list[Source], list[Source], bool]
"""(lanes, windows, paged, lacking, down): lanes to merge with their windows; of these, `paged` have more rows. The
`lacking` cannot give their first item yet (no page, no body, not confirmed, leases not written in time). `down`: some
lanes are on shards that are not healthy."""


def bounds_of(state: State, topic: Topic[Lane[Item]]) -> Bounds:
    """Return what each delivery needs of the topic's policy. If that has changed, its tenants take their turns by the
    new one. A topic whose policy adds throttle keys to its items, or pauses tenants, has turns, as flows of it
    may wait."""
    bounds: Bounds | None = topic.bounds
    if bounds is None or bounds.changes != state.policies.changes:
        bounds = topic.bounds = state.policies.bounds(topic.key, topic.rules or ())
        if bounds.throttles or bounds.paused:
            state.topics.begin_turns(topic)
    turns = topic.turns
    if turns is not None and turns.changes != bounds.changes:
        turns.changes = bounds.changes
        fair = state.policies.of(topic.key).fair
        turns.follow(fair.unit, ranked=fair.scope == "topic")
        if turns.held != bounds.paused:
            turns.hold(bounds.paused, state.throttling.withdraw)
    return bounds


def leases(shard: Shard, now_ms: int) -> bool | None:
    """Return `Shard.may_lease`, None if the shard is not `Shard.healthy`. Each dequeue asks this of each shard, so both
    are written out for a shard that leases items."""
    owner = shard.owner
    batch = shard.queue.in_flight
    if (
        owner.state is not _SERVING
        or owner.breaker.state is not _CLOSED
        or owner.lost
        or (batch is not None and now_ms - batch.begun_ms > owner.hang_ms)
    ):
        return None
    config, unwritten = shard.config, shard.queue.unwritten
    if (
        owner.grace_from_ms is None
        and 0 <= now_ms - owner.confirmed_ms <= config.confirm_ms
        and (not unwritten or now_ms - unwritten[0][0] <= config.lease_write_delay_ms)
    ):
        return True
    return shard.may_lease(now_ms)


def sources(state: State, able: Able, key: TopicKey, lanes: Iterable[Lane[Item]], now_ms: int) -> Sources:
    """Return which of a topic's `lanes` can be merged."""
    merged: list[Lane[Item]] = []
    windows: list[Window[Item]] = []
    paged: list[Source] = []
    lacking: list[Source] = []
    down = False
    for lane in lanes:
        shard: Shard | None = lane.term.shard
        if shard is None or not lane.ready:
            continue
        if shard not in able:
            able[shard] = leases(shard, now_ms)
        may_lease = able[shard]
        if may_lease is None:
            down = True
            shard.memory.stalled[key] = None
            continue
        window = lane.window
        if window is None:
            window = shard.memory.open_window(lane)
        window.used_ms = now_ms
        if not may_lease:
            shard.memory.stalled[key] = None
            state.touch(shard)
            lacking.append((shard, lane, window))
        elif not window.entries:
            lacking.append((shard, lane, window))
        elif window.entries[0][3].body is None:
            want_bodies(state, shard, window)
            lacking.append((shard, lane, window))
        else:
            merged.append(lane)
            windows.append(window)
            if window.more:
                paged.append((shard, lane, window))
    return merged, windows, paged, lacking, down


def at_hand(able: Able, flow: Flow[Lane[Item]] | None, now_ms: int) -> AtHand | None:
    """Return the lanes with the items of a tenant's only flow, if all of them have their first item in memory and the
    flow is not parked; else None."""
    if flow is None or flow.parked is not None:
        return None
    lanes: list[Lane[Item]] = []
    windows: list[Window[Item]] = []
    paged: list[Source] = []
    for lane in flow.lanes:
        shard: Shard | None = lane.term.shard
        if shard is None or not lane.ready:
            continue
        window = lane.window
        if window is None or not window.entries or window.entries[0][3].body is None:
            return None
        if shard not in able:
            able[shard] = leases(shard, now_ms)
        if not able[shard]:
            return None
        window.used_ms = now_ms
        lanes.append(lane)
        windows.append(window)
        if window.more:
            paged.append((shard, lane, window))
    return (lanes, windows, paged) if lanes else None


def bound_of(paged: Sequence[Source], lacking: Sequence[Source]) -> Key | None:
    """Return the key behind which no item may be taken: the first item of a lacking shard may be there."""
    bound = known_until([window for _, _, window in paged])
    for _, _, window in lacking:
        first = window.entries[0][:3] if window.entries else window.end or LOWEST
        bound = first if bound is None else min(bound, first)
    return bound


def ask_pages(state: State, sources: Iterable[Source]) -> None:
    """Ask for the pages that windows need."""
    for shard, lane, window in sources:
        if window.more and window.wants_page(shard.config.window_rows):
            shard.queue.pages_wanted[lane] = None
            state.touch(shard)


def wait_for_lacking(state: State, key: TopicKey, lacking: bool, now_ms: int, *, found: bool, held: bool) -> None:
    """Wait for lacking lanes once, for a bounded time. Then the topic is merged without them: other lanes have `held`
    items back, or the consumer is sent to another host."""
    if not lacking:
        go_on_without(state, key)
    elif not (held or state.shards_elsewhere):
        pass  # nothing ends the wait but the lane itself
    elif key in state.skipping:
        state.counters.merge_skips += found
    elif key not in state.held_up:
        at_ms = now_ms + state.config.host.merge_wait_ms
        if not state.held_up:  # else an earlier alarm is set
            state.alarm(at_ms)
        state.held_up[key] = at_ms
        state.counters.merge_waits += 1


def go_on_without(state: State, key: TopicKey) -> None:
    """Wait for no lane of the topic."""
    state.held_up.pop(key, None)
    state.skipping.pop(key, None)


def want_bodies(state: State, shard: Shard, window: Window[Item]) -> None:
    for entry in window.entries[:_BODIES_AHEAD]:
        if entry[3].body is None:
            shard.queue.bodies_wanted[entry[2]] = entry[3]
    state.touch(shard)


def drop(state: State, over: list[Item], now_ms: int) -> bool:
    """Take items away that have expired, before a scan finds them, or have no attempt left. Return True if there were
    any."""
    dropped = False
    for item in over:
        shard = state.shards[item.id >> 48]
        change: Change | None
        if 0 < item.expires_at_ms <= now_ms - shard.owner.late_ms:
            change = Change(item, To.GONE, Cause.TTL)
        else:
            change = item_ops.change_at_limit(shard, item, now_ms)
        if change is None:
            continue
        shard.put(change, now_ms)
        state.touch(shard)
        dropped = True
    return dropped


_LANES = 100
"""Lanes of tenants that are looked at, in the order of their turns. A request may name 100 topics."""


def most_urgent(state: State, key: TopicKey, now_ms: int) -> int | None:
    """Return the lowest priority of the topic's ready items that are in memory and wait for no throttle, on healthy
    shards. None if there is no such item, or if priorities order the items of each tenant only."""
    topic = state.topics.get(key)
    if topic is None:
        return None
    if topic.turns is None:
        lanes = topic.lanes()
    elif state.policies.of(key).fair.scope == "topic":
        flows = (flow for tenant in topic.turns.next_up(_LANES) for flow in tenant.unparked)
        lanes = list(islice((lane for flow in flows for lane in flow.lanes), _LANES))
    else:
        return None
    windows = [(lane.window, lane.term.shard) for lane in lanes]
    return min(
        [
            window.entries[0][0]
            for window, shard in windows
            if window is not None and window.entries and shard is not None and shard.healthy(now_ms)
        ],
        default=None,
    )
