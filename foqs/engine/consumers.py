"""Consumers: the order in which waiting consumers are served, how long each waits, and how leased items reach them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from foqs.counters import Namespace
from foqs.engine import dequeue, item_ops, ready_lanes, tenants
from foqs.engine.calls import DequeueCall
from foqs.engine.shard import Shard
from foqs.engine.state import State, in_slices
from foqs.errors import FoqsError, OutcomeUnknown
from foqs.fairness.keys import TopicKey, fairness_of, rules_of
from foqs.item import KNOWN_BYTES, Cause, Change, Item, Place, Settles, To, Waits
from foqs.policies.layers import BUILT_IN_POLICIES, NamespacePolicies
from foqs.policies.settings import Settings

_TOPICS = 1_000
"""Topics whose consumers are served in one slice of the event loop."""


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
    """End the wait of `call`, whose consumer has stopped waiting."""
    call.hurried = True
    if call.waits:
        answer_empty(state, call)


def freed(state: State, workers: Iterable[str]) -> None:
    """Try the consumers again that wait because a worker is full: leases of `workers` ended."""
    for worker in workers:
        if worker not in state.holdings.named:
            continue
        for key, calls in state.holdings.freed(worker):
            try_again(state, key, calls)
            if not calls:  # a host with a call of the worker may have asked
                state.callbacks.ready_again(key)


def try_again(state: State, key: TopicKey, calls: list[DequeueCall]) -> None:
    """Let parked consumers wait for the topic, before consumers that came later, from the next slice on."""
    if calls:
        state.waiting[key] = [*calls, *state.waiting.get(key, ())]
        state.due[key] = None
        state.wake()


def ready(state: State, key: TopicKey) -> int:
    """Return the number of items of a topic that are ready here, of tenants that are not paused, and wait for no
    throttle, in memory or not; 0 while the topic is paused."""
    topic = state.topics.get(key)
    if topic is None:
        return 0
    if state.policies.pausing:
        if state.policies.paused(key):
            return 0
        ready_lanes.bounds_of(state, topic)  # no dequeue may have asked since a tenant was paused
    return topic.ready if topic.turns is None else topic.turns.unparked


def holds_all(state: State, key: TopicKey) -> bool:
    """Return True if the ready items of a topic here are all of paused tenants."""
    topic = state.topics.get(key)
    turns = None if topic is None else topic.turns
    return turns is not None and bool(turns.held) and not turns.unparked and turns.ready > 0


def wake(state: State, shard: Shard, now_ms: int) -> None:
    """Serve consumers of the topics whose items on `shard` became ready or came into memory: some of them in each slice
    of the event loop."""
    memory = shard.memory
    if memory.unleased:
        freed(state, memory.take_unleased())
    if memory.stalled or (state.waiting and memory.woken):
        able = ready_lanes.leases(shard, now_ms)
        if able is False:
            # Its items stay here until it may lease again, and no other shard's have changed: try these topics then.
            memory.stall()
            state.touch(shard)
        elif able and memory.stalled:
            tenants.resume(state, memory.resume())
    woken: Collection[TopicKey] = memory.take_woken(_TOPICS) if memory.woken else ()
    if memory.woken:
        state.touch(shard)
    if state.waiting:
        serve(state, woken, now_ms)
        if state.staying:
            let_go(state, now_ms)
    if state.callbacks.became_ready is not None:
        for key in woken:
            state.callbacks.became_ready(key)


@in_slices
def wake_all(state: State, shard: Shard) -> Iterator[None]:
    """Have every topic with a consumer tried again, as the items of `shard` can be merged or leased again."""
    keys = iter(list(state.waiting))
    while part := dict.fromkeys(islice(keys, _TOPICS)):
        shard.memory.woken.update(part)
        state.touch(shard)
        if len(part) == _TOPICS:
            yield


def serve(state: State, keys: Iterable[TopicKey], now_ms: int) -> None:
    """Serve the consumers that wait for these topics: for each topic, first come, first served.

    A waiting consumer found nothing when it was tried last, so only the topics that changed since are looked at: the
    cost grows with `keys`, not with the number of topics that the consumers name. Further topics are left to the next
    slice of the event loop: an owner whose loop stalls is not confirmed in time, and may not lease items.
    """
    due, waiting = state.due, state.waiting
    for key in keys:
        if key in waiting:
            due[key] = None
    slice_: Collection[TopicKey]
    if len(due) <= _TOPICS:
        slice_, state.due = due, {}
    else:
        slice_ = _slice(due)
        state.wake()
    while slice_:
        slice_ = _serve(state, slice_, now_ms)


def _slice(keys: dict[TopicKey, None]) -> dict[TopicKey, None]:
    """Take the topics of one slice out of `keys`."""
    slice_ = dict.fromkeys(islice(keys, _TOPICS))
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
        elif (call := _with_room(state, key, waiting) if state.policies.per_worker else waiting[0]) is not None:
            first.setdefault(call, []).append(key)
    for call, its_keys in first.items():
        if call.done:  # another call's reply may have ended it
            continue
        wants = call.wants if len(call.wants) == 1 else call.part(its_keys)
        if serve_call(state, call, wants, now_ms):
            stop_waiting(state, call)
            again += its_keys
        else:
            _left_waiting(state, its_keys)
    return again


def _serve_first(state: State, key: TopicKey, waiting: list[DequeueCall], now_ms: int) -> bool:
    """Serve the consumers of a topic that wait longest from one merge, if several wait for this topic alone. Return
    True if any was served."""
    served = _fill_first(state, key, waiting, now_ms)
    for call in served:
        stop_waiting(state, call)
    for call in served:
        send(state, call, now_ms)
    return bool(served)


def _fill_first(state: State, key: TopicKey, asking: Sequence[DequeueCall], now_ms: int) -> Sequence[DequeueCall]:
    """Lease items of one merge for the first of the calls `asking`, if several ask for this topic alone. Return the
    calls that got items."""
    calls: list[DequeueCall] = []
    for call in asking[: ready(state, key)]:
        if len(call.wants) > 1:
            break
        if not (state.policies.per_worker and state.holdings.limits(call)):
            calls.append(call)
    if len(calls) < 2 or state.draining:
        return ()
    return calls[: dequeue.fill_waiting(state, calls, key, now_ms)]


def serve_together(state: State, calls: Sequence[DequeueCall], now_ms: int) -> int:
    """Serve calls that begin at the same time, where several ask for one topic alone: each such topic is merged once.
    Return the number of calls that were served."""
    of_topic: dict[TopicKey, list[DequeueCall]] = {}
    for call in calls:
        if len(call.wants) == 1:
            of_topic.setdefault(call.wants[0][0], []).append(call)
    served = 0
    for key, asking in of_topic.items():
        filled = _fill_first(state, key, asking, now_ms) if len(asking) > 1 else ()
        for call in filled:
            send(state, call, now_ms)
        served += len(filled)
    return served


def _with_room(state: State, key: TopicKey, waiting: list[DequeueCall]) -> DequeueCall | None:
    """Return the first consumer that may have more items of the topic (`per_worker`). Park the consumers before it."""
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
    """Report each consumer that found nothing here, once."""
    last: DequeueCall | None = None
    for key in keys:
        waiting = state.waiting.get(key)
        if key not in state.held_up and waiting is not None and waiting[0] is not last:
            last = waiting[0]
            state.callbacks.left_waiting(key)


def end_merge_waits(state: State, now_ms: int) -> None:
    """Merge topics that waited long enough for a late shard without it."""
    due: list[TopicKey] = []
    for key, at_ms in state.held_up.items():
        if at_ms > now_ms or len(due) == _TOPICS:
            break  # they are in the order of time
        due.append(key)
    for key in due:
        del state.held_up[key]
        state.skipping[key] = None
    serve(state, due, now_ms)


def let_go(state: State, now_ms: int) -> None:
    """End the extra wait of calls whose topics have no ready item on any shard and wait for no tokens."""
    for call, until_ms in list(state.staying.items()):
        if not _has_ready(state, call):
            del state.staying[call]
            state.patience.push(max(until_ms, now_ms), call)
            state.alarm(max(until_ms, now_ms))


def _has_ready(state: State, call: DequeueCall) -> bool:
    """Return True if a topic of `call` has ready items. This is asked after each batch, and topics are drained in
    order, so the search continues where it ended."""
    wants, first, throttling = call.wants, call.ready_at, state.throttling
    parked = state.holdings.parked
    for at in chain(range(first, len(wants)), range(first)):
        if parked and call in parked.get(wants[at][0], ()):
            continue
        if ready(state, wants[at][0]) or (throttling.demand.topics and throttling.asks(wants[at][0])):
            call.ready_at = at
            return True
    return False


def serve_call(state: State, call: DequeueCall, wants: Sequence[tuple[TopicKey, int]], now_ms: int) -> bool:
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
    committing = _Committing(state, call)
    for index, (shard, item, _) in enumerate(call.found):
        item.awaited = True
        if _commits_first(item):
            committing.open.add(index)
            _lease_first(shard, item, (committing, index), now_ms)
            state.touch(shard)
    state.deadlines.push(now_ms + state.config.host.confirm_ms, committing)
    state.alarm(now_ms + state.config.host.confirm_ms)


def _commits_first(item: Item) -> bool:
    """Return True if the lease of the item is committed before its delivery."""
    slots, exact = item.lane.slots, item.lane.topic.bounds.exact
    if item.at_most_once or item.order is not None or (exact and rules_of(item.lane.key) in exact):
        return True
    return slots is not None and slots.commits


def _lease_first(shard: Shard, item: Item, waits: Waits, now_ms: int) -> None:
    """Queue the lease of an item that is delivered only when its lease is committed."""
    shard.put(Change(item, To.LEASED, Cause.LEASE, waits), now_ms)


class _Committing(Settles):
    """A dequeue some of whose leases are being committed. It is delivered when the last lease is settled or the wait
    ends. A lease that was committed after that, or certainly was not committed, is given back.

    `open`: indices in `call.found` of leases that are not committed yet."""

    __slots__ = ("_call", "_lost", "_state", "open")

    def __init__(self, state: State, call: DequeueCall) -> None:
        self._state = state
        self._call = call
        self._lost: set[int] = set()
        self.open: set[int] = set()

    @property
    def done(self) -> bool:
        return not self.open

    def settled(self, at: int, error: FoqsError | None) -> None:
        found = self._call.found[at]
        if at not in self.open:
            if error is None:
                _give_back(self._state, *found)
            return
        self.open.remove(at)
        if error is not None:
            self._lost.add(at)
            if isinstance(error, OutcomeUnknown):
                self._doubt(at)
            else:  # or a later transaction would write a lease that no consumer has
                _give_back(self._state, *found)
        if not self.open:
            _committed(self._state, self._call, self._lost)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Deliver the items that can be delivered: the leases still open take too long."""
        self._lost |= self.open
        for at in sorted(self.open):
            self._doubt(at)
        self.open.clear()
        _committed(self._state, self._call, self._lost)

    def _doubt(self, at: int) -> None:
        """Report an at-most-once item as doubtful. Any other item is delivered again."""
        item = self._call.found[at][1]
        if item.at_most_once:
            self._call.doubtful.append(item.id)


def _committed(state: State, call: DequeueCall, lost: set[int]) -> None:
    """Deliver the leases that are still valid: since they were made some may have been lost, or have ended, or their
    topic was paused."""
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
        confirmed = item.place is Place.TIMER or shard.owner.confirmed(state.now_ms)
        if confirmed and not state.policies.holds(item.lane.topic.key, fairness_of(item.lane.key)):
            found.append((shard, item, lease))
        else:
            _give_back(state, shard, item, lease)
    _deliver(state, call, found)


def _deliver(state: State, call: DequeueCall, found: list[tuple[Shard, Item, int]]) -> None:
    items = [found[0][1]] if len(found) == 1 else [item for _, item, _ in found]
    if not call.reply(items, call.doubtful):
        for shard, item, lease in found:
            _give_back(state, shard, item, lease)
        return
    if found:
        if state.explained:
            state.explained.add([item.lane.topic.key for _, item, _ in found], state.now_ms)
        if state.topics.ledgers:
            lanes = [(item.lane, item.id) for _, item, _ in found]
            state.topics.ledgers.delivered(
                [(lane.topic.key, fairness_of(lane.key), item_id) for lane, item_id in lanes]
            )
        _count(state, call, items, found[0][1].lane.namespace)
    held_bytes = 0
    for item in items:
        item.body = None  # `ShardMemory.drop_body`, with one sum for all items
        if item.held > KNOWN_BYTES:
            held_bytes += item.held - KNOWN_BYTES
            item.held = KNOWN_BYTES
    if held_bytes:
        state.budget.give(held_bytes)


_FRESH = 512


def _count(state: State, call: DequeueCall, items: Sequence[Item], namespace: Namespace) -> None:
    """Count delivered items, all of one namespace, as a request names one."""
    namespace.delivered += len(items)
    topic, now_ms, fresh_ms = items[0].lane.topic, state.now_ms, namespace.fresh_ms
    topic.traffic.delivered += len(items)
    if len(items) == 1:
        (topic.counters or topic.counted()).delivered += 1
        if items[0].attempt == 1:
            fresh_ms.append(now_ms - items[0].deliver_after_ms)
        else:
            state.counters.redelivered += 1
    else:
        start = 0
        if len(call.wants) > 1:
            for at, item in enumerate(items):
                if item.lane.topic is not topic:  # most come topic by topic
                    (topic.counters or topic.counted()).delivered += at - start
                    topic, start = item.lane.topic, at
        (topic.counters or topic.counted()).delivered += len(items) - start
        before = len(fresh_ms)
        fresh_ms += [now_ms - item.deliver_after_ms for item in items if item.attempt == 1]
        state.counters.redelivered += len(items) - len(fresh_ms) + before
    if len(fresh_ms) >= _FRESH:
        namespace.sift()


def _give_back(state: State, shard: Shard, item: Item, lease: int) -> None:
    """End a lease that did not reach its consumer."""
    item_ops.take_back(shard, item, lease, state.now_ms)
    state.touch(shard)


_SLICE = 500
"""Topics that are looked at in one slice of the event loop after a change of settings."""


def apply_settings(state: State, settings: Settings) -> None:
    """Use the settings from now on, and deliver items of resumed topics to consumers that wait, from the next slice of
    the event loop on."""
    ns, policies = settings.ns, state.policies
    before, limiting, weighing = policies.pausing.get(ns), policies.per_worker.get(ns), policies.namespace(ns)
    policies.apply(settings)
    state.throttling.changed(ns)
    tenants.follow(state, ns, weighing)
    if before is not None or policies.namespace(ns).pauses_tenants:
        state.slices.put_off(_follow_pauses(state, ns, before or BUILT_IN_POLICIES))
    if limiting is not None or ns in policies.per_worker:
        state.slices.put_off(_limit_workers(state, ns, limiting))


def _follow_pauses(state: State, ns: str, before: NamespacePolicies) -> Iterator[None]:
    """Let paused tenants give up their claims on units of throttles, and serve the consumers that wait for topics, or
    tenants, that were paused `before`."""
    keys = iter([key for key in {**state.topics, **state.waiting} if key[0] == ns])
    while part := list(islice(keys, _SLICE)):
        resumed = []
        for key in part:
            then, now = before.of(key[1]), state.policies.of(key)
            if then.paused_tenants != now.paused_tenants and (topic := state.topics.get(key)) is not None:
                ready_lanes.bounds_of(state, topic)
            again = (then.paused or then.paused_tenants - now.paused_tenants) and not now.paused
            if again and (key in state.waiting or ready(state, key)):
                resumed.append(key)
        serve(state, resumed, state.now_ms)
        if state.callbacks.became_ready is not None:
            for key in resumed:
                state.callbacks.became_ready(key)
        if len(part) == _SLICE:
            yield


def _limit_workers(state: State, ns: str, before: NamespacePolicies | None) -> Iterator[None]:
    """Try the consumers again that wait for topics with another `per_worker`. Answer the consumers that reported what
    they hold and may have no more: a process needs the limit to know when to ask again."""
    holdings, policies = state.holdings, state.policies
    keys = iter([key for key in {**state.topics, **state.waiting, **holdings.parked} if key[0] == ns])
    while part := list(islice(keys, _SLICE)):
        changed: dict[DequeueCall, None] = {}
        for key in part:
            most = policies.of(key).per_worker
            if most == (None if before is None else before.of(key[1]).per_worker):
                continue
            try_again(state, key, holdings.parked_for(key))
            changed.update(dict.fromkeys(state.waiting.get(key, ())))
            state.callbacks.ready_again(key)
        serve(state, part, state.now_ms)
        for call in changed:
            reported = any(limit.holding is not None for limit in (holdings.limits(call) or {}).values())
            if call.waits and reported and call.limits_then != call.limits and holdings.limited(call):
                answer_empty(state, call)
        if len(part) == _SLICE:
            yield
