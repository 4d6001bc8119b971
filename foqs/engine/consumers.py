"""Consumers that wait for items: the order in which they are served, and how long each of them waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from foqs.engine import aside, delivery, dequeue, turns
from foqs.engine.pending import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey

_SLICE = 1_000
"""Topics whose consumers are served in one turn of the event loop."""


def wait(state: State, call: DequeueCall, until_ms: int) -> None:
    """Let `call` wait for its topics."""
    state.patience.push(until_ms, call)
    state.alarm(until_ms)
    state.wake()
    call.waits = True
    limited = call.limits_then = call.limits
    for key, _ in call.wants:
        if limited is not None and not state.holdings.room(key, call):
            state.holdings.park(key, call)
            continue
        waiting = state.waiting.get(key)
        if waiting is None:
            state.waiting[key] = [call]
        else:
            waiting.append(call)


def stop_waiting(state: State, call: DequeueCall) -> None:
    """Forget a call that was served here, or by another host, or that ended."""
    state.staying.pop(call, None)
    call.waits = False
    if state.holdings.parked:
        state.holdings.unpark(call)
    for key, _ in call.wants:
        waiting = state.waiting.get(key)
        if waiting is not None and call in waiting:
            waiting.remove(call)
            if not waiting:
                del state.waiting[key]


def answer_empty(state: State, call: DequeueCall) -> None:
    """Reply with no items, unless `call` was answered."""
    if not call.done:
        call.done = True
        call.reply([], [])
    stop_waiting(state, call)


def hurry(state: State, call: DequeueCall) -> None:
    """End the wait of `call`, whose consumer waits no more."""
    call.hurried = True
    if call.waits:
        answer_empty(state, call)


def freed(state: State, workers: Iterable[str]) -> None:
    """Try the consumers again that wait as a worker held all the items that it may hold: leases of `workers` ended."""
    for worker in workers:
        if worker not in state.holdings.named:
            continue
        for key, calls in state.holdings.freed(worker):
            try_again(state, key, calls)
            if not calls:  # a host with a call of the worker may have asked
                state.ready_again(key)


def try_again(state: State, key: TopicKey, calls: list[DequeueCall]) -> None:
    """Let consumers that were parked wait for the topic, before those that came later, from the next turn on."""
    if calls:
        state.waiting[key] = [*calls, *state.waiting.get(key, ())]
        state.due[key] = None
        state.wake()


def ready(state: State, key: TopicKey) -> int:
    """Number of items of a topic that are ready here and wait for no throttle, in memory or not; 0 while the topic is
    paused."""
    topic = state.topics.get(key)
    if topic is None or (state.policies.pausing and state.policies.paused(key)):
        return 0
    return topic.ready if topic.turns is None else topic.turns.unparked


def wake(state: State, shard: Shard, now_ms: int) -> None:
    """Serves consumers of the topics whose items on `shard` became ready, or came into memory: one slice of them in a
    turn of the event loop."""
    if shard.unleased:
        unleased, shard.unleased = shard.unleased, []
        freed(state, unleased)
    if shard.stalled or (state.waiting and shard.woken):
        able = dequeue.leases(shard, now_ms)
        if able is False:
            # Its items stay here until it may lease again, and no other shard's have changed: try these topics then.
            shard.stalled.update(shard.woken)
            shard.woken = {}
            state.touch(shard)
        elif able and shard.stalled:
            stalled, shard.stalled = shard.stalled, {}
            shard.woken.update(stalled)
            aside.resume(state, stalled)
    if len(shard.woken) <= _SLICE:
        woken, shard.woken = shard.woken, {}
    else:
        woken = _slice(shard.woken)
        state.touch(shard)
    if state.waiting:
        serve(state, woken, now_ms)
        let_go(state, now_ms)
    if state.became_ready is not None:
        for key in woken:
            state.became_ready(key)


def wake_all(state: State, shard: Shard) -> None:
    """Have every topic with a consumer tried again, as the items of `shard` can be merged or leased again."""
    turns.begin(state, _wake_all(state, shard, iter(list(state.waiting))))


def _wake_all(state: State, shard: Shard, keys: Iterator[TopicKey]) -> Iterator[None]:
    while part := dict.fromkeys(islice(keys, _SLICE)):
        shard.woken.update(part)
        state.touch(shard)
        if len(part) == _SLICE:
            yield


def serve(state: State, keys: Iterable[TopicKey], now_ms: int) -> None:
    """Serves the consumers that wait for these topics: for each topic, first come, first served.

    A waiting consumer found nothing when it was tried last, so only the topics that changed since are looked at: the
    cost grows with `keys`, not with the number of topics that the consumers name. Topics beyond a slice are left to the
    next turn of the event loop: an owner whose loop stalls is not confirmed in time, and may not lease items.
    """
    due = state.due
    due.update((key, None) for key in keys if key in state.waiting)
    slice_: Collection[TopicKey]
    if len(due) <= _SLICE:
        slice_, state.due = due, {}
    else:
        slice_ = _slice(due)
        state.wake()
    while slice_:
        slice_ = _serve(state, slice_, now_ms)


def _slice(keys: dict[TopicKey, None]) -> dict[TopicKey, None]:
    """Take the topics of one turn out of `keys`."""
    slice_ = dict.fromkeys(islice(keys, _SLICE))
    for key in slice_:
        del keys[key]
    return slice_


def _serve(state: State, keys: Iterable[TopicKey], now_ms: int) -> list[TopicKey]:
    """Try the first consumers of each topic. Return the topics whose next consumer is tried after them."""
    first: dict[DequeueCall, list[TopicKey]] = {}
    again: list[TopicKey] = []
    for key in keys:
        waiting = state.waiting.get(key)
        if waiting is None:
            continue
        if len(waiting) > 1 and _serve_first(state, key, waiting, now_ms):
            again.append(key)
        elif (call := _with_room(state, key, waiting)) is not None:
            first.setdefault(call, []).append(key)
    for call, its_keys in first.items():
        if call.done:  # another call's reply may have ended it
            continue
        if delivery.serve(state, call, call.part(its_keys), now_ms):
            stop_waiting(state, call)
            again += its_keys
        else:
            _left_waiting(state, its_keys)
    return again


def _serve_first(state: State, key: TopicKey, waiting: list[DequeueCall], now_ms: int) -> bool:
    """Serve the consumers of a topic that wait longest from one merge, if several wait for this topic alone. Return
    whether any was served."""
    calls: list[DequeueCall] = []
    for call in waiting[: ready(state, key)]:
        if len(call.wants) > 1:
            break
        if not (state.policies.per_worker and state.holdings.limits(call)):
            calls.append(call)
    if len(calls) < 2 or state.draining:
        return False
    served = calls[: dequeue.fill_waiting(state, calls, key, now_ms)]
    for call in served:
        stop_waiting(state, call)
    for call in served:
        delivery.send(state, call, now_ms)
    return bool(served)


def _with_room(state: State, key: TopicKey, waiting: list[DequeueCall]) -> DequeueCall | None:
    """Return the first consumer that may have more items of the topic (`per_worker`). Those before it are parked."""
    if not state.policies.per_worker:
        return waiting[0]
    full = 0
    for call in waiting:
        if state.holdings.room(key, call):
            break
        state.holdings.park(key, call)
        full += 1
    del waiting[:full]
    if waiting:
        return waiting[0]
    del state.waiting[key]
    return None


def _left_waiting(state: State, keys: Sequence[TopicKey]) -> None:
    """Reports each consumer that found nothing here, once."""
    last: DequeueCall | None = None
    for key in keys:
        waiting = state.waiting.get(key)
        if key not in state.held_up and waiting is not None and waiting[0] is not last:
            last = waiting[0]
            state.left_waiting(key)


def end_merge_waits(state: State, now_ms: int) -> None:
    """Topics that waited long enough for a late shard go on without it."""
    due: list[TopicKey] = []
    for key, at_ms in state.held_up.items():
        if at_ms > now_ms or len(due) == _SLICE:
            break  # they are in the order of time
        due.append(key)
    for key in due:
        del state.held_up[key]
        state.skipping[key] = None
    serve(state, due, now_ms)


def let_go(state: State, now_ms: int) -> None:
    """End the extra wait of calls whose topics have no ready item on any shard any more, and wait for no tokens."""
    for call, until_ms in list(state.staying.items()):
        if not _has_ready(state, call):
            del state.staying[call]
            state.patience.push(max(until_ms, now_ms), call)
            state.alarm(max(until_ms, now_ms))


def _has_ready(state: State, call: DequeueCall) -> bool:
    """Whether a topic of `call` has ready items. This is asked after each batch, and topics are drained in order: the
    search goes on where it ended."""
    wants, first, throttling = call.wants, call.ready_at, state.throttling
    parked = state.holdings.parked
    for at in chain(range(first, len(wants)), range(first)):
        if parked and call in parked.get(wants[at][0], ()):
            continue
        if ready(state, wants[at][0]) or (throttling.demand.topics and throttling.asks(wants[at][0])):
            call.ready_at = at
            return True
    return False
