"""A shard begins to be served, and ends: what the host knows of it comes from the database, and is dropped whole."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foqs.buffers.changes import Change
from foqs.buffers.inserts import Chunk
from foqs.buffers.keys import Copy, Give, Keys
from foqs.buffers.round import ListRead, Round
from foqs.host import placing
from foqs.host.looks import Look
from foqs.host.shard import Shard
from foqs.item import Phase, Place
from foqs.leases.checkpoint import Checkpoint
from foqs.prefetch.lane import Lane
from foqs.rows import BACKLOG_SHIFT, Opened
from foqs.shardmgr.breaker import BreakerState
from foqs.shardmgr.lifecycle import ShardState

if TYPE_CHECKING:
    from foqs.host.host import Host


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What waited for a shard that was closed. Nobody knows what became of the `unsettled` transaction."""

    chunks: list[Chunk]
    changes: list[Change]
    looks: list[Look]
    lists: list[ListRead]
    gives: list[Give]
    copies: list[Copy]
    unsettled: Round | None


def open_shard(shard: Shard, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
    """The store took ownership, at `begun_ms` or later: begin to serve."""
    shard.forget_all()
    shard.epoch = opened.epoch
    shard.max_batch_bytes = max_batch_bytes
    shard.next_number = opened.next_number
    shard.timers = Checkpoint(min(opened.due_from_ms, now_ms))
    shard.ttls = Checkpoint(min(opened.expiry_from_ms, now_ms))
    shard.keys = Keys(min(opened.dedup_from_ms, now_ms), opened.slots)
    shard.confirmed_ms = begun_ms  # counting a long backlog takes its time: another owner may have come meanwhile
    shard.quiet_from_ms = now_ms if opened.replaced else None
    for row in opened.lanes:
        ns = row.ns.decode()
        lane = Lane((ns, row.topic.decode()), row.lane, shard.counters.namespaces.of(ns))
        shard.lanes[lane.key] = shard.lane_numbers[row.lane] = lane
        shard.next_lane = max(shard.next_lane, row.lane + 1)
        lane.total, lane.leased = opened.timers.get(row.lane, (0, 0))
    for backlog in opened.backlog:
        lane = shard.lane_numbers[backlog.lane]
        lane.add_ready(backlog.bucket << BACKLOG_SHIFT, backlog.items)
        lane.total += backlog.items
    for lane in shard.lanes.values():
        shard.woken[lane.key] = None
        if not lane.total:
            shard.idle_lane(lane, now_ms)
    shard.counters.shards_opened += 1
    shard.to(ShardState.SERVING)


def check_quiet(host: Host, shard: Shard, now_ms: int) -> None:
    """The owner that was replaced hands out no more: this one does."""
    if shard.quiet_from_ms is not None and not shard.quiet(now_ms):
        shard.quiet_from_ms = None
        shard.woken.update(dict.fromkeys(host.waiting))


def clock_set(host: Host, by_ms: int) -> None:
    """Shifts what waits for a time with the host's clock, so that remaining waits and ages do not change.

    Times that are stored stay as they are. So does the end of a lease that is written: its row says the same.
    """
    for waiting in (host.deadlines, host.patience, host.committing):
        waiting.moved(by_ms)
    host.held_up = {key: at_ms + by_ms for key, at_ms in host.held_up.items()}
    host.staying = {call: at_ms + by_ms for call, at_ms in host.staying.items()}
    host.housekeeping_ms = 0
    for shard in host.serving:
        shard.confirmed_ms += by_ms
        shard.clock_ahead_ms -= by_ms
        shard.clock_read_ms += by_ms
        if shard.quiet_from_ms is not None:
            shard.quiet_from_ms += by_ms
        if shard.flight is not None:
            shard.flight.begun_ms += by_ms
        for _, item, lease in shard.unwritten:
            if item.lease == lease and item.phase is Phase.LEASED and item.place is Place.READY and not item.busy:
                item.lease_expires_at_ms += by_ms
        shard.unwritten = deque((given_ms + by_ms, item, lease) for given_ms, item, lease in shard.unwritten)


def check_hang(host: Host, shard: Shard, now_ms: int) -> None:
    """Opens the breaker for a trip that hangs. What was not sent yet goes to other shards, or is refused."""
    flight = shard.flight
    if flight is None or now_ms - flight.begun_ms <= shard.hang_ms:
        return
    if shard.breaker.state is not BreakerState.OPEN:
        shard.breaker.trip(now_ms)
    chunks, shard.chunks, shard.chunk_rows = shard.chunks, deque(), 0
    for chunk in chunks:
        placing.place_elsewhere(host, shard, chunk, now_ms)


def place_again(host: Host, shard: Shard, now_ms: int) -> None:
    """Places what a trip brought back unstored.

    When the database cannot be used now, the same goes for what waits behind it: items with keys, and all others if
    another shard takes them. Those that only this shard could take wait for it.
    """
    chunks, shard.returned = shard.returned, []
    if shard.chunks and (shard.lost or not shard.breaker.closed):
        elsewhere = host.stores(now_ms)
        chunks += [chunk for chunk in shard.chunks if elsewhere or chunk.dedup is not None]
        shard.chunks = deque(chunk for chunk in shard.chunks if not elsewhere and chunk.dedup is None)
        shard.chunk_rows = sum(len(chunk.items) for chunk in shard.chunks)
    for chunk in chunks:
        placing.place_elsewhere(host, shard, chunk, now_ms)


def close_shard(shard: Shard) -> Abandoned:
    """Drops everything; what was waiting is the caller's to answer."""
    shard.to(ShardState.CLOSED)
    rounds = [r for r in (shard.flight, shard.unsettled) if r is not None]
    left = Abandoned(
        chunks=[*shard.chunks, *shard.returned, *(c for r in rounds for c in r.chunks)],
        changes=[c for c in shard.changes if c.item.change is c] + [c for r in rounds for c in r.changes],
        looks=[look for waiting in shard.looks.values() for look in waiting],
        lists=[*shard.lists, *(listing for r in rounds for listing in r.lists)],
        gives=shard.keys.gives,
        copies=[*shard.keys.copies, *(copy for r in rounds for copy in r.copies)],
        unsettled=shard.unsettled,
    )
    for item in shard.known.values():
        item.lease = 0
        shard.give(item)
    for lane in shard.lanes.values():
        if lane.window is not None:
            shard.residents.discard(lane)
    confirming = shard.confirming
    shard.forget_all()
    for told in confirming:
        told()
    return left
