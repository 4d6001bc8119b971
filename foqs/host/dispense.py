"""Fills a dequeue from the merged windows of the host's healthy shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.buffers.changes import Cause, Change, To
from foqs.host import rounds
from foqs.host.requests import DequeueCall
from foqs.host.shard import Shard
from foqs.prefetch import merge
from foqs.prefetch.lane import Lane, LaneKey
from foqs.prefetch.window import Entry, Window
from foqs.rows import Key

if TYPE_CHECKING:
    from foqs.host.host import Host

ITEM_OVERHEAD_BYTES = 192
"""What an item costs in an answer beside its body and names."""

_WINDOW_IDLE_MS = 60_000
_IDLE_SHARE = 0.5
_IDLE_STEPS = 10_000
_BODIES_AHEAD = 200
_CLOCK_EVERY_MS = 10_000
_CONFIRM_IDLE_MS = 5_000
"""An owner that writes nothing asks this often: nothing else would tell it that it lost the shard."""


def fill(host: Host, call: DequeueCall, wants: Sequence[tuple[LaneKey, int]], now_ms: int) -> None:
    """Leases items for `call` into `call.found`: topics in the order of `wants`, each in lane order."""
    room_bytes = call.max_bytes
    able: _Able = {}
    for key, count in wants:
        if room_bytes <= 0:
            return
        room_bytes = _fill_topic(host, call, able, key, count, room_bytes, now_ms)


_Able = dict[Shard, bool | None]
"""Whether each shard hands out during one dequeue, None for one that is not healthy: the same for all topics."""


def _fill_topic(
    host: Host, call: DequeueCall, able: _Able, key: LaneKey, count: int, room_bytes: int, now_ms: int
) -> int:
    while True:
        sources, lacking = _sources(host, able, key, now_ms)
        if not sources:
            entries = []
            break
        bound = _bound(sources, [] if key in host.skipping else lacking)
        entries = merge.first([source[2] for source in sources], count, bound)
        if not _drop_expired(host, entries, now_ms):
            break
    last = None
    if entries:
        last, room_bytes = _lease(host, call, entries, room_bytes, now_ms)
        if last is not None:
            merge.take([source[2] for source in sources], last)
    for shard, lane, window in (*sources, *lacking):
        if window.wants_page(shard.config.window_rows):
            shard.pages_wanted[lane] = None
            host.touch(shard)
    _wait_for(host, call, key, lacking, now_ms, found=last is not None)
    return room_bytes


_Source = tuple[Shard, Lane, Window]


def _sources(host: Host, able: _Able, key: LaneKey, now_ms: int) -> tuple[list[_Source], list[_Source]]:
    """The lane on each healthy shard that has ready items: those to merge, and those that cannot give their first
    item yet (no page, no body, not confirmed, leases not written in time)."""
    sources: list[_Source] = []
    lacking: list[_Source] = []
    for shard in host.serving:
        lane = shard.lanes.get(key)
        if lane is None or not lane.ready:
            continue
        if shard not in able:
            able[shard] = shard.hands_out(now_ms) if shard.healthy(now_ms) else None
        hands_out = able[shard]
        if hands_out is None:
            continue
        window = shard.open_window(lane)
        window.used_ms = now_ms
        source = (shard, lane, window)
        if not hands_out:
            host.touch(shard)
            shard.stalled[key] = None
            lacking.append(source)
        elif not window.entries:
            lacking.append(source)
        elif window.entries[0][3].body is None:
            _want_bodies(host, shard, window)
            lacking.append(source)
        else:
            sources.append(source)
    return sources, lacking


def _bound(sources: list[_Source], lacking: list[_Source]) -> Key | None:
    """The key behind which nothing may be taken: a shard that lacks its first item has not said what it holds."""
    bound = merge.bound_of([window for _, _, window in sources])
    for _, _, window in lacking:
        first = window.entries[0][:3] if window.entries else window.end or merge.LOWEST
        bound = first if bound is None else min(bound, first)
    return bound


def _wait_for(host: Host, call: DequeueCall, key: LaneKey, lacking: list[_Source], now_ms: int, *, found: bool) -> None:
    """A lane that lacks something is waited for once, for a bounded time; then the others go on without it."""
    if not lacking:
        host.held_up.pop(key, None)
        host.skipping.pop(key, None)
        return
    call.lacks = True
    if key in host.skipping:
        host.counters.merge_skips += found
        return
    if key in host.held_up:
        return
    at_ms = now_ms + host.config.host.merge_wait_ms
    if not host.held_up:  # else the timer rings for the first of them
        host.alarm(at_ms)
    host.held_up[key] = at_ms
    host.counters.merge_waits += 1


def _want_bodies(host: Host, shard: Shard, window: Window) -> None:
    for entry in window.entries[:_BODIES_AHEAD]:
        if entry[3].body is None:
            shard.bodies_wanted[entry[2]] = entry[3]
    host.touch(shard)


def _drop_expired(host: Host, entries: list[Entry], now_ms: int) -> bool:
    """Takes those whose TTL is over, before a scan finds them, out of the way of what is behind them."""
    expired = [entry[3] for entry in entries if 0 < entry[3].expires_at_ms <= now_ms]
    dropped = False
    for item in expired:
        shard = host.shards[item.id >> 48]
        if item.expires_at_ms > now_ms - shard.late_ms:
            continue
        shard.put(Change(item, To.GONE, Cause.TTL), now_ms)
        host.touch(shard)
        dropped = True
    return dropped


def _lease(
    host: Host, call: DequeueCall, entries: list[Entry], room_bytes: int, now_ms: int
) -> tuple[Entry | None, int]:
    """Leases a prefix of `entries`; returns its last entry (None: nothing was taken) and the bytes left."""
    last = None
    found = call.found
    default_ms = host.config.limits.lease_default_ms
    for entry in entries:
        item = entry[3]
        body = item.body
        if body is None:
            break
        size = item.bytes + call.item_overhead_bytes
        if found and (size > room_bytes or item.bytes > call.bodies_bytes):
            room_bytes = 0
            break
        shard = host.shards[item.id >> 48]
        shard.lease(item, call.lease_ms or body.lease_ms or default_ms, now_ms)
        found.append((shard, item, item.lease))
        room_bytes -= size
        call.bodies_bytes -= item.bytes
        last = entry
    return last, room_bytes


def keep_house(host: Host, now_ms: int) -> None:
    """Every second: whether an idle shard still is this host's, lanes that were empty for long, and windows that
    nobody asks for when memory is short."""
    for shard in host.serving:
        if not 0 <= now_ms - shard.confirmed_ms < _CONFIRM_IDLE_MS:
            shard.confirm_wanted = True
            host.touch(shard)
        if not 0 <= now_ms - shard.clock_read_ms < _CLOCK_EVERY_MS:
            shard.clock_wanted = True
            host.touch(shard)
        idle = next(iter(shard.idle_lanes.values()), None)
        if idle is not None and rounds.is_over(shard, idle, now_ms):
            host.touch(shard)
    host.skipping = {key: None for key in host.skipping if key in host.waiting}
    host.residents.drop_idle(_IDLE_SHARE, _WINDOW_IDLE_MS, _IDLE_STEPS)
