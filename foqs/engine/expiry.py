"""Applies the rows that the time-ordered scans found: delays, leases and TTLs that are over."""

from __future__ import annotations

from foqs.buffers.checkpoint import Checkpoint
from foqs.engine import failure_hooks, item_end
from foqs.engine.shard import Shard
from foqs.hooks.protocol import FailureResult
from foqs.item import Cause, Change, Item, Phase, Place, To, from_due, from_found
from foqs.rows import DueRow, ExpiringRow, FailureCause, Scan


def apply_due(shard: Shard, scan: Scan[DueRow] | None, now_ms: int) -> None:
    timers = shard.timers
    if scan is None:
        timers.failed(now_ms)
        return
    # The host's clock may be ahead of the database's: nothing ends before it ends there.
    until_ms = min(now_ms, scan.db_now_ms + shard.config.clock_jump_ms)
    shard.asked.drop_old(now_ms)
    timers.outstanding = 1  # held by this loop: the scan must not finish before all its changes are queued
    for row in scan.rows:
        timer = row.timer
        item = shard.known.get(timer.id)
        if (item is not None and item.busy) or timer.due_ms > until_ms:
            timers.left(timer.due_ms)
            continue
        if item is None:
            lane = shard.lane_numbers.get(timer.lane)
            if lane is None:
                shard.confirm_wanted = (
                    True  # another owner added the lane: confirm whether this host still owns the shard
                )
                timers.left(timer.due_ms)
                continue
            item = from_due(row, lane)
        answer = None
        if shard.ask_script is not None and item.phase is Phase.LEASED and not _ttl_over(item, until_ms):
            answer = failure_hooks.answer_at_expiry(shard, item, now_ms)
            if answer is None:
                timers.left(timer.due_ms)
                continue
        decision = answer.result if answer is not None else None
        _scanned(shard, timers, when_due(shard, item, row.since_ms, until_ms, decision), timer.due_ms, now_ms)
    last = scan.rows[-1].timer if scan.rows else None
    timers.read(0 if last is None else last.due_ms, scan.complete, scan.next_ms, 0 if last is None else last.id)
    timers.outstanding -= 1
    if not timers.outstanding:
        timers.finish(now_ms)


def _scanned(shard: Shard, scan: Checkpoint, change: Change, at_ms: int, now_ms: int) -> None:
    change.scan, change.scan_ms = scan, at_ms
    scan.outstanding += 1
    shard.put(change, now_ms)


def _ttl_over(item: Item, until_ms: int) -> bool:
    return 0 != item.expires_at_ms <= until_ms


def when_due(shard: Shard, item: Item, since_ms: int, until_ms: int, decision: FailureResult | None = None) -> Change:
    """Return the change of an item whose delay or lease is over. `decision`: of the topic's script, about a lease."""
    if _ttl_over(item, until_ms):
        return Change(item, To.GONE, Cause.TTL)
    if item.phase is not Phase.LEASED:
        over = item_end.change_at_limit(shard, item, until_ms) if item.attempt else None
        return over or Change(item, To.READY, Cause.DUE)
    if item.at_most_once:
        return Change(item, To.GONE, Cause.DROPPED)
    ended = item_end.Ended(FailureCause.EXPIRED, age_ms=until_ms - since_ms, decision=decision)
    return item_end.change_at_end(shard, item, ended, until_ms)


def apply_expiring(shard: Shard, scan: Scan[ExpiringRow] | None, now_ms: int) -> None:
    ttls = shard.ttls
    if scan is None:
        ttls.failed(now_ms)
        return
    until_ms = min(now_ms, scan.db_now_ms + shard.config.clock_jump_ms)
    ttls.outstanding = 1
    for row in scan.rows:
        item = shard.known.get(row.found.body.id)
        if (item is not None and item.busy) or row.at_ms > until_ms:
            ttls.left(row.at_ms)
            continue
        if item is None:
            lane = shard.lane_numbers.get(row.found.body.lane)
            if lane is None:
                shard.confirm_wanted = True
                ttls.left(row.at_ms)
                continue
            item = from_found(row.found, lane)
        if item.place is Place.READY and shard.in_takeover_grace(now_ms):
            # The previous owner may still have the item in memory, and could lease it after it was removed here.
            ttls.left(row.at_ms)
            continue
        if item.phase is Phase.LEASED and item.lease_expires_at_ms > until_ms:
            # Never under a live lease: look again when it ends.
            change = Change(item, To.KEPT, Cause.TTL, due_ms=item.lease_expires_at_ms)
        else:
            change = Change(item, To.GONE, Cause.TTL)
        _scanned(shard, ttls, change, row.at_ms, now_ms)
    ttls.read(scan.rows[-1].at_ms if scan.rows else 0, scan.complete, scan.next_ms)
    ttls.outstanding -= 1
    if not ttls.outstanding:
        ttls.finish(now_ms)
