"""From leased items to a consumer's reply. Leases of at-most-once items, of topics whose attempts are exact, and of
items with a throttle key that limits leases are committed before the reply is sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from foqs.engine import dequeue, item_ops
from foqs.engine.pending import Committing, DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey, fairness_of
from foqs.item import KNOWN_BYTES, Item, Place


def serve(state: State, call: DequeueCall, wants: Sequence[tuple[TopicKey, int]], now_ms: int) -> bool:
    """Lease ready items of `wants`, topics that `call` names; return False when there are none."""
    if state.draining:
        return False
    most = call.most
    dequeue.fill(state, call, wants if most is None else dequeue.shared(state, call, wants, most), now_ms)
    if not call.found:
        return False
    send(state, call, now_ms)
    return True


def send(state: State, call: DequeueCall, now_ms: int) -> None:
    """Reply to `call` with the items that were leased for it, as soon as they may be delivered."""
    call.done = True
    if call.begins is not None:
        for _, item, _ in call.found[call.begins :]:
            item_ops.mark(item, begun=False)
    write_ms = now_ms + state.config.host.lease_write_delay_ms // 2
    if write_ms < state.timer_ms:
        state.alarm(write_ms)
    if not (call.commits and any(_commits_first(item) for _, item, _ in call.found)):
        _deliver(state, call, call.found)
        return
    committing = Committing(call, partial(_committed, state), partial(_give_back, state))
    for index, (shard, item, _) in enumerate(call.found):
        item.awaited = True
        if _commits_first(item):
            committing.open.add(index)
            item_ops.lease_first(shard, item, (committing, index), now_ms)
            state.touch(shard)
    state.committing.push(now_ms + state.config.host.confirm_ms, committing)
    state.alarm(now_ms + state.config.host.confirm_ms)


def _commits_first(item: Item) -> bool:
    """Whether the lease of the item is committed before its delivery."""
    slots = item.lane.slots
    return item.at_most_once or item.lane.topic.bounds.exact or (slots is not None and slots.commits)


def _committed(state: State, call: DequeueCall, lost: set[int]) -> None:
    """Deliver the leases that still stand: since they were made some may have been lost, or have ended, or their topic
    was paused."""
    found = []
    for at, (shard, item, lease) in enumerate(call.found):
        if item.lease == lease:
            item.awaited = False
        if at in lost:
            continue
        if not item_ops.stands(item, lease):
            if item.at_most_once:
                call.doubtful.append(item.id)
            continue
        confirmed = item.place is Place.TIMER or shard.confirmed(state.now_ms)
        if confirmed and not state.policies.paused(item.lane.topic.key):
            found.append((shard, item, lease))
        else:
            _give_back(state, shard, item, lease)
    _deliver(state, call, found)


def _deliver(state: State, call: DequeueCall, found: list[tuple[Shard, Item, int]]) -> None:
    if not call.reply([item for _, item, _ in found], call.doubtful):
        for shard, item, lease in found:
            _give_back(state, shard, item, lease)
        return
    if found:
        found[0][1].lane.namespace.delivered += len(found)  # a request names one namespace
        if state.explained:
            state.explained.add([item.lane.topic.key for _, item, _ in found], state.now_ms)
        if state.topics.ledgers:
            lanes = [(item.lane, item.id) for _, item, _ in found]
            state.topics.ledgers.delivered(
                [(lane.topic.key, fairness_of(lane.key), item_id) for lane, item_id in lanes]
            )
    redelivered = held_bytes = 0
    for _, item, _ in found:
        redelivered += item.attempt > 1
        item.body = None  # `ShardMemory.drop_body`, with one sum for all items
        if item.held > KNOWN_BYTES:
            held_bytes += item.held - KNOWN_BYTES
            item.held = KNOWN_BYTES
    state.counters.redelivered += redelivered
    if held_bytes:
        state.budget.give(held_bytes)


def _give_back(state: State, shard: Shard, item: Item, lease: int) -> None:
    """End a lease that did not reach its consumer."""
    item_ops.take_back(shard, item, lease, state.now_ms)
    state.touch(shard)
