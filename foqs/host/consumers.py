"""Consumers that wait for items: which of them is served when topics change, and how long each stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from foqs.host.requests import DequeueCall
from foqs.host.shard import Shard
from foqs.prefetch.lane import LaneKey

if TYPE_CHECKING:
    from foqs.host.host import Host

_SLICE = 1_000
"""Topics whose consumers are served in one turn of the event loop."""


def wake(host: Host, shard: Shard, now_ms: int) -> None:
    """Serves consumers of the topics whose items on `shard` became ready, or came into memory."""
    if shard.stalled and shard.hands_out(now_ms):
        stalled, shard.stalled = shard.stalled, {}
        shard.woken.update(stalled)
    woken, shard.woken = shard.woken, {}
    if host.waiting:
        serve(host, woken, now_ms)
        _let_go(host, now_ms)
    if host.became_ready is not None:
        for key in woken:
            host.became_ready(key)


def serve(host: Host, keys: Iterable[LaneKey], now_ms: int) -> None:
    """Serves the consumers that wait for these topics: for each topic, first come, first served.

    A waiting consumer found nothing when it was tried last, so only the topics that changed since are looked at: the
    cost grows with `keys`, not with the number of topics that the consumers name. What exceeds a slice is left to the
    next turn of the event loop: an owner whose loop stands still for too long is not confirmed, and hands out nothing.
    """
    due = host.due
    due.update((key, None) for key in keys if key in host.waiting)
    if len(due) <= _SLICE:
        slice_, host.due = list(due), {}
    else:
        slice_ = list(islice(due, _SLICE))
        for key in slice_:
            del due[key]
        host.wake()
    while slice_:
        slice_ = _serve(host, slice_, now_ms)


def _serve(host: Host, keys: Iterable[LaneKey], now_ms: int) -> list[LaneKey]:
    """Tries the first consumer of each topic. Returns the topics whose next consumer has to be tried."""
    first: dict[DequeueCall, list[LaneKey]] = {}
    for key in keys:
        waiting = host.waiting.get(key)
        if waiting is not None:
            first.setdefault(waiting[0], []).append(key)
    again: list[LaneKey] = []
    for call, its_keys in first.items():
        if call.done:  # the end of another call may have been its end, too
            continue
        if host.serve(call, call.part(its_keys), now_ms):
            host.stop_waiting(call)
            again += its_keys
        else:
            _left_waiting(host, its_keys)
    return again


def _left_waiting(host: Host, keys: Sequence[LaneKey]) -> None:
    """Reports each consumer that found nothing here, once."""
    last: DequeueCall | None = None
    for key in keys:
        waiting = host.waiting.get(key)
        if key not in host.held_up and waiting is not None and waiting[0] is not last:
            last = waiting[0]
            host.left_waiting(key)


def end_merge_waits(host: Host, now_ms: int) -> None:
    """Topics that waited long enough for a late shard go on without it."""
    due: list[LaneKey] = []
    for key, at_ms in host.held_up.items():
        if at_ms > now_ms:
            break  # they are in the order of time
        due.append(key)
    for key in due:
        del host.held_up[key]
        host.skipping[key] = None
    serve(host, due, now_ms)


def _let_go(host: Host, now_ms: int) -> None:
    """Calls stay longer than they asked to for what a late shard holds: no longer when it holds nothing any more."""
    for call, until_ms in list(host.staying.items()):
        if not any(host.ready(key) for key, _ in call.wants):
            del host.staying[call]
            host.patience.push(max(until_ms, now_ms), call)
            host.alarm(max(until_ms, now_ms))
