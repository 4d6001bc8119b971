"""Fills a dequeue from the merged windows of the host's healthy shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from foqs.engine import ready_lanes
from foqs.engine.calls import DequeueCall
from foqs.engine.fair_dequeue import TenantDequeue
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey, rules_of
from foqs.item import Given, Item
from foqs.prefetch.lane import Entry, Lane, first_of, lease_until
from foqs.rows import Key
from foqs.rules import MOST_RULES_BYTES

ITEM_OVERHEAD_BYTES = 192
"""Bytes of an item in an answer, without its body and names."""


def fill(state: State, call: DequeueCall, wants: Iterable[tuple[TopicKey, int]], now_ms: int) -> None:
    """Lease items for `call` into `call.found`: topics in the order of `wants`, each in lane order."""
    room_bytes = call.max_bytes
    able: ready_lanes.Able = {}
    topics, changes = state.topics, state.policies.changes
    limited = (state.policies.per_worker or call.limits is not None) and state.holdings.limits(call) is not None
    for key, count in wants:
        if room_bytes <= 0:
            return
        if limited:
            count = min(count, state.holdings.room(key, call))  # noqa: PLW2901
            if not count:
                state.holdings.note(key, call.worker, now_ms)
                continue
        # Most of very many topics are empty, and cost no more than this.
        topic = topics.get(key)
        lane = topic.first if topic is not None else None
        while lane is not None and not (lane.ready and lane.term.shard is not None):
            lane = lane.next
        if lane is not None and topic is not None and (topic.bounds is None or topic.bounds.changes != changes):
            ready_lanes.bounds_of(state, topic)
            lane = topic.first  # None if its tenants take turns from now on
        if lane is None:
            if topic is not None and topic.turns is not None:
                room_bytes = _fill_by_turns(state, call, TenantDequeue(state, topic, able, now_ms), count, room_bytes)
            elif state.held_up or state.skipping:
                ready_lanes.go_on_without(state, key)
            continue
        lanes, paged, lacking, entries = _merge(state, able, key, count, now_ms)
        before = len(call.found)
        last, room_bytes = _lease(state, call, entries, room_bytes, now_ms) if entries else (None, room_bytes)
        if last is not None and len(lanes) == 1:
            lanes[0].lease_first(len(call.found) - before)
        elif last is not None:
            lease_until(lanes, last)
        if paged or lacking or state.held_up or state.skipping:
            call.lacks = call.lacks or bool(lacking)
            ready_lanes.ask_pages(state, (*paged, *lacking))
            ready_lanes.wait_for_lacking(state, key, bool(lacking), now_ms, found=last is not None, held=bool(lanes))


def _with_room(
    state: State, call: DequeueCall, wants: Iterable[tuple[TopicKey, int]]
) -> Iterator[tuple[TopicKey, int]]:
    """Yield the topics of which the consumer may have more items, with no larger counts than it may have."""
    for key, count in wants:
        if room := state.holdings.room(key, call):
            yield key, min(count, room)
        else:
            state.holdings.note(key, call.worker, state.now_ms)


def shared(
    state: State, call: DequeueCall, wants: Iterable[tuple[TopicKey, int]], most: int
) -> Iterator[tuple[TopicKey, int]]:
    """Yield the topics that may have items, with the number of items that `fill` leases of each: `most` together.

    Topics with more items get the rest of a share that a topic cannot fill. If there is too little for all of them,
    chance decides. Shares and chances are as the weights of the topics, where the call has some."""
    if (state.policies.per_worker or call.limits is not None) and state.holdings.limits(call) is not None:
        wants = _with_room(state, call, wants)
    topics, found, pausing = state.topics, call.found, state.policies.pausing
    weights, rng = call.weights, state.rng
    ready: list[tuple[TopicKey, int, int]] = []
    others: list[tuple[TopicKey, int]] = []
    for key, count in wants:
        topic = topics.get(key)
        items = 0 if topic is None else topic.ready if topic.turns is None else topic.turns.unparked
        if items and not (pausing and state.policies.paused(key)):
            ready.append((key, count, min(count, items)))
        elif (topic is not None and topic.turns is not None) or state.held_up or state.skipping:
            others.append((key, count))
    own = [1] * len(ready) if weights is None else [weights[key] for key, _, _ in ready]
    shares = shares_of([items for _, _, items in ready], own, most, rng.random())
    parts = list(zip(ready, shares, strict=True))
    if len(parts) > 1:  # the first ones get items, where the bytes of the call are too few for all
        first = int(rng.random() * len(parts)) if weights is None else rng.choices(range(len(parts)), own)[0]
        parts = parts[first:] + parts[:first]
    left, more = most, []
    for (key, count, items), share in parts:
        if share:
            before = len(found)
            yield key, share
            left -= len(found) - before
        if items > share and (not share or len(found) - before == share):
            more.append((key, count - share))
    if left and len(more) > 1:
        more.sort(key=lambda one: rng.expovariate(1 if weights is None else weights[one[0]]))
    for key, count in (*more, *others):
        if not left:
            return
        before = len(found)
        yield key, min(count, left)
        left -= len(found) - before


def shares_of(wanted: Sequence[int], weights: Sequence[int], most: int, chance: float) -> list[int]:
    """Return what each topic gets of `most`, by the weights, and no more than it wants. `chance`, from 0 to below 1,
    rounds a share that is no whole number up or down: over all chances each topic gets its exact share.

    >>> shares_of([9, 1, 9], [3, 1, 1], 9, 0.5)
    [6, 1, 2]
    """
    if sum(wanted) <= most:
        return list(wanted)
    left, total, shares = most, sum(weights), list(wanted)
    largest_first = sorted(range(len(wanted)), key=lambda at: wanted[at] / weights[at], reverse=True)
    while wanted[largest_first[-1]] * total <= left * weights[largest_first[-1]]:
        at = largest_first.pop()
        left -= wanted[at]
        total -= weights[at]
    passed = int(chance * total)
    for at in largest_first:
        before, passed = passed, passed + left * weights[at]
        shares[at] = passed // total - before // total
    return shares


def fill_waiting(state: State, calls: Sequence[DequeueCall], key: TopicKey, now_ms: int) -> int:
    """Lease items of one merge for `calls`, which name the topic `key` alone: first come, first served. Return the
    number of calls that got items. Later calls may get some in another merge."""
    topic = state.topics.get(key)
    if topic is not None and (topic.bounds is None or topic.bounds.changes != state.policies.changes):
        ready_lanes.bounds_of(state, topic)
    if topic is not None and topic.turns is not None:
        return _fill_waiting_by_turns(state, calls, TenantDequeue(state, topic, {}, now_ms))
    count = sum([call.wants[0][1] for call in calls])
    lanes, paged, lacking, entries = _merge(state, {}, key, count, now_ms)
    last: Entry[Item] | None = None
    served = at = 0
    for call in calls:
        part = entries[at : at + call.wants[0][1]]
        upto = _lease(state, call, part, call.max_bytes, now_ms)[0] if part else None
        if upto is None:
            break
        last = upto
        at += len(call.found)
        served += 1
    if last is not None:
        lease_until(lanes, last)
    if paged or lacking or state.held_up or state.skipping:
        ready_lanes.ask_pages(state, (*paged, *lacking))
        ready_lanes.wait_for_lacking(state, key, bool(lacking), now_ms, found=served > 0, held=bool(lanes))
    return served


def _fill_by_turns(state: State, call: DequeueCall, turns: TenantDequeue, count: int, room_bytes: int) -> int:
    """Lease up to `count` items of a topic for `call`, and return the bytes left."""
    picked = turns.pick(call, count, room_bytes)
    if picked:
        _lease(state, call, picked, room_bytes, turns.now_ms)
    turns.end(found=bool(picked))
    call.commits = call.commits or turns.commits
    call.lacks = call.lacks or turns.lacks or turns.asks
    return 0 if turns.full else turns.left_bytes


def _fill_waiting_by_turns(state: State, calls: Sequence[DequeueCall], turns: TenantDequeue) -> int:
    """Do the work of `fill_waiting` for a topic whose tenants take turns."""
    served = 0
    for call in calls:
        picked = turns.pick(call, call.wants[0][1], call.max_bytes)
        if not picked:
            break
        _lease(state, call, picked, call.max_bytes, turns.now_ms)
        call.commits = call.commits or turns.commits
        served += 1
    turns.end(found=served > 0)
    return served


_Merged = tuple[Sequence[Lane[Item]], Sequence[ready_lanes.Source], Sequence[ready_lanes.Source], Sequence[Entry[Item]]]
"""(lanes, paged, lacking, entries): `entries` are the first of `lanes`. Of these, `paged` have more rows behind their
window. Lanes that are `lacking` cannot give their first item yet."""
_NOTHING: _Merged = ((), (), (), ())


def _merge(state: State, able: ready_lanes.Able, key: TopicKey, count: int, now_ms: int) -> _Merged:
    """Return the first `count` items of a topic that may be leased. Its `bounds` follow the present policy."""
    topic = state.topics.get(key)
    if topic is None or (state.policies.pausing and state.policies.paused(key)):
        return _NOTHING
    attempts = topic.bounds.attempts
    own: list[Lane[Item]] = []
    lane = topic.first
    while lane is not None:
        if lane.ready and lane.term.shard is not None:
            own.append(lane)
        lane = lane.next
    if len(own) == 1 and (window := own[0].window) is not None and window.entries:  # nothing to merge
        shard, entries = own[0].term.shard, window.entries[:count]
        may_lease = able[shard] if shard in able else able.setdefault(shard, ready_lanes.leases(shard, now_ms))
        for _, _, _, item in entries:
            if not may_lease or item.body is None or 0 < item.expires_at_ms <= now_ms or item.attempt >= attempts:
                break
        else:
            window.used_ms = now_ms
            return own, [(shard, own[0], window)] if window.more else (), (), entries
    while True:
        lanes, windows, paged, lacking, _ = ready_lanes.sources(state, able, key, own, now_ms)
        if not windows:
            return (), (), lacking, ()
        bound: Key | None = None
        if paged or lacking:
            bound = ready_lanes.bound_of(paged, () if key in state.skipping else lacking)
        entries = first_of(windows, count, bound)
        over = [item for _, _, _, item in entries if 0 < item.expires_at_ms <= now_ms or item.attempt >= attempts]
        if not over or not ready_lanes.drop(state, over, now_ms):
            return lanes, paged, lacking, entries


def _lease(
    state: State, call: DequeueCall, entries: Sequence[Entry[Item]], room_bytes: int, now_ms: int
) -> tuple[Entry[Item] | None, int]:
    """Lease a prefix of `entries`. Return its last entry (None: nothing was taken) and the bytes left."""
    last, before = None, len(call.found)
    shards, found, getrandbits = state.shards, call.found, state.rng.getrandbits
    overhead_bytes, bodies_bytes = call.item_overhead_bytes, call.bodies_bytes
    if entries[0][3].lane.topic.rules is not None:
        overhead_bytes += MOST_RULES_BYTES
    wanted_ms, default_ms = call.lease_ms, state.config.limits.lease_default_ms
    given = Given(now_ms, call.worker, moment=state.throttling.moment)
    for entry in entries:
        item = entry[3]
        body = item.body
        if body is None:
            break
        size = item.bytes
        if found and (size + overhead_bytes > room_bytes or size > bodies_bytes):
            room_bytes = 0
            break
        shard, lease = shards[item.id >> 48], getrandbits(62) + 1
        item.give_lease(lease, wanted_ms or body.lease_ms or default_ms, given)
        shard.queue.unwritten.append((now_ms, item, lease))
        found.append((shard, item, lease))
        if item.at_most_once:
            call.commits = True
        room_bytes -= size + overhead_bytes
        bodies_bytes -= size
        last = entry
    if last is not None and (exact := last[3].lane.topic.bounds.exact):
        call.commits = call.commits or any(rules_of(item.lane.key) in exact for _, item, _ in found[before:])
    if last is not None and last[3].lane.topic.ordered:
        call.commits = call.commits or any(item.order is not None for _, item, _ in found[before:])
    if call.limits is not None and last is not None:
        key = last[3].lane.topic.key
        for _, item, _ in found[before:]:
            state.holdings.add(key, call, item)
    call.bodies_bytes = bodies_bytes
    return last, room_bytes
