"""Fills a dequeue from the merged windows of the host's healthy shards."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.engine import batch_build
from foqs.engine.pending import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey
from foqs.fairness.topics import Topic
from foqs.item import Cause, Change, Item
from foqs.item_states import To
from foqs.prefetch import merge
from foqs.prefetch.lane import Lane
from foqs.prefetch.window import Entry, Window
from foqs.rows import Key

ITEM_OVERHEAD_BYTES = 192
"""What an item costs in an answer beside its body and names."""

_WINDOW_IDLE_MS = 60_000
_IDLE_SHARE = 0.5
_IDLE_STEPS = 10_000
_BODIES_AHEAD = 200
_ORDER_UNUSED_MS = 60_000
_CLOCK_EVERY_MS = 10_000
_CONFIRM_IDLE_MS = 5_000
"""An owner that writes nothing confirms its ownership this often: nothing else shows that it lost the shard."""


def fill(state: State, call: DequeueCall, wants: Sequence[tuple[TopicKey, int]], now_ms: int) -> None:
    """Leases items for `call` into `call.found`: topics in the order of `wants`, each in lane order."""
    room_bytes = call.max_bytes
    able: _Able = {}
    for key, count in wants:
        if room_bytes <= 0:
            return
        topic = state.topics.get(key)
        if topic is None:
            _wait_for(state, call, key, [], now_ms, found=False)
        else:
            room_bytes = _fill_topic(state, call, able, topic, count, room_bytes, now_ms)


_Able = dict[Shard, bool | None]
"""Whether each shard may lease items during one dequeue, the same for all topics; None for one that is not healthy."""


def _fill_topic(
    state: State,
    call: DequeueCall,
    able: _Able,
    topic: Topic[Lane[Item]],
    count: int,
    room_bytes: int,
    now_ms: int,
) -> int:
    key = topic.key
    while True:
        sources, lacking = _sources(state, able, topic, now_ms)
        if not sources:
            entries, windows = [], []
            break
        windows = [window for _, _, window in sources]
        bound = _bound(windows, [] if key in state.skipping else lacking)
        entries = merge.first(windows, count, bound)
        if not _drop_expired(state, entries, now_ms):
            break
    last = None
    if entries:
        last, room_bytes = _lease(state, call, entries, room_bytes, now_ms)
        if last is not None:
            merge.take(windows, last)
    for shard, lane, window in (*sources, *lacking):
        if window.more and window.wants_page(shard.config.window_rows):
            shard.pages_wanted[lane] = None
            state.touch(shard)
    _wait_for(state, call, key, lacking, now_ms, found=last is not None)
    return room_bytes


_Source = tuple[Shard, Lane[Item], Window[Item]]


def _sources(state: State, able: _Able, topic: Topic[Lane[Item]], now_ms: int) -> tuple[list[_Source], list[_Source]]:
    """Return the lane on each healthy shard with ready items: lanes to merge, and lanes that cannot give their first
    item yet (no page, no body, not confirmed, leases not written in time)."""
    sources: list[_Source] = []
    lacking: list[_Source] = []
    after = topic.first
    while after is not None:
        lane, after = after, after.next
        if not lane.ready:
            continue
        shard: Shard | None = lane.tenure.shard
        if shard is None:
            continue
        if shard not in able:
            able[shard] = shard.may_lease(now_ms) if shard.healthy(now_ms) else None
        may_lease = able[shard]
        if may_lease is None:
            continue
        window = lane.window
        if window is None:
            window = shard.open_window(lane)
        window.used_ms = now_ms
        source = (shard, lane, window)
        if not may_lease:
            state.touch(shard)
            shard.stalled[topic.key] = None
            lacking.append(source)
        elif not window.entries:
            lacking.append(source)
        elif window.entries[0][3].body is None:
            _want_bodies(state, shard, window)
            lacking.append(source)
        else:
            sources.append(source)
    return sources, lacking


def _bound(windows: list[Window[Item]], lacking: list[_Source]) -> Key | None:
    """Return the key behind which no item may be taken: the first item of a lacking shard may stand there."""
    bound = merge.bound_of(windows)
    for _, _, window in lacking:
        first = window.entries[0][:3] if window.entries else window.end or merge.LOWEST
        bound = first if bound is None else min(bound, first)
    return bound


def _wait_for(
    state: State, call: DequeueCall, key: TopicKey, lacking: list[_Source], now_ms: int, *, found: bool
) -> None:
    """Wait for a lacking lane once, for a bounded time; then the merge goes on without it."""
    if not lacking:
        state.held_up.pop(key, None)
        state.skipping.pop(key, None)
        return
    call.lacks = True
    if key in state.skipping:
        state.counters.merge_skips += found
        return
    if key in state.held_up:
        return
    at_ms = now_ms + state.config.host.merge_wait_ms
    if not state.held_up:  # else an earlier alarm is set
        state.alarm(at_ms)
    state.held_up[key] = at_ms
    state.counters.merge_waits += 1


def _want_bodies(state: State, shard: Shard, window: Window[Item]) -> None:
    for entry in window.entries[:_BODIES_AHEAD]:
        if entry[3].body is None:
            shard.bodies_wanted[entry[2]] = entry[3]
    state.touch(shard)


def _drop_expired(state: State, entries: list[Entry[Item]], now_ms: int) -> bool:
    """Remove expired entries now, before a scan finds them; return whether there were any to remove."""
    expired = [entry[3] for entry in entries if 0 < entry[3].expires_at_ms <= now_ms]
    dropped = False
    for item in expired:
        shard = state.shards[item.id >> 48]
        if item.expires_at_ms > now_ms - shard.late_ms:
            continue
        shard.put(Change(item, To.GONE, Cause.TTL), now_ms)
        state.touch(shard)
        dropped = True
    return dropped


def _lease(
    state: State, call: DequeueCall, entries: list[Entry[Item]], room_bytes: int, now_ms: int
) -> tuple[Entry[Item] | None, int]:
    """Leases a prefix of `entries`; returns its last entry (None: nothing was taken) and the bytes left."""
    last = None
    found, rng = call.found, state.rng
    default_ms = state.config.limits.lease_default_ms
    for entry in entries:
        item = entry[3]
        body = item.body
        if body is None:
            break
        size = item.bytes + call.item_overhead_bytes
        if found and (size > room_bytes or item.bytes > call.bodies_bytes):
            room_bytes = 0
            break
        shard = state.shards[item.id >> 48]
        lane = item.lane
        lane.remove_ready(item.deliver_after_ms)
        lane.leased += 1
        lease = rng.getrandbits(62) + 1
        item.give_lease(lease, call.lease_ms or body.lease_ms or default_ms, now_ms)
        shard.unwritten.append((now_ms, item, lease))
        found.append((shard, item, lease))
        room_bytes -= size
        call.bodies_bytes -= item.bytes
        last = entry
    return last, room_bytes


def keep_house(state: State, now_ms: int) -> None:
    """Do each second's work: confirm idle shards, remove lanes that stay empty, and drop unused windows when memory is
    short."""
    for shard in state.serving:
        if not 0 <= now_ms - shard.confirmed_ms < _CONFIRM_IDLE_MS:
            shard.confirm_wanted = True
            state.touch(shard)
        if not 0 <= now_ms - shard.clock_read_ms < _CLOCK_EVERY_MS:
            shard.clock_wanted = True
            state.touch(shard)
        idle = next(iter(shard.idle_lanes.values()), None)
        if idle is not None and batch_build.is_over(shard, idle, now_ms):
            state.touch(shard)
    state.skipping = {key: None for key in state.skipping if key in state.waiting}
    state.topics.forget_order(_ORDER_UNUSED_MS, now_ms)
    state.residents.drop_idle(_IDLE_SHARE, _WINDOW_IDLE_MS, _IDLE_STEPS)
